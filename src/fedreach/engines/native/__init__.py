"""An engine in C: `training.c` trains, `batches.c` says on what, `sums.c` adds up, `trainer.py` calls them."""

from __future__ import annotations

from fedreach.engines.native.trainer import Native as Native
