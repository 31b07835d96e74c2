"""An engine in C: `training.c` trains, `batches.c` says on what, `sums.c` adds up, `trainer.py` calls them."""

from fedreach.engines.native.trainer import Native as Native
