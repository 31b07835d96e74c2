"""An engine in C: `training.c` trains, `batches.c` says on what, `sums.c` adds up, `engine.py` calls them."""

from __future__ import annotations

from fedreach.engines.native.engine import Native

__all__ = ["Native"]
