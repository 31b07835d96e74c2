"""The engine in C: `training.c` trains, `batches.c` draws batches, `sums.c` computes sums, `trainer.py` calls them."""

from fedreach.engines.native.trainer import Native as Native
