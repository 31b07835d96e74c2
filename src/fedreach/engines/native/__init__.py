"""Engine in C: `trainer.py` calls `training.c` for training, `batches.c` for batches and `sums.c` for sums."""

from fedreach.engines.native.trainer import Native as Native
