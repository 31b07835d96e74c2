"""The folder `benchmarks`, for tests: it is no package, and its modules import each other by their bare names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@contextmanager
def benchmarks(*names: str, folders: tuple[str, ...] = ("",)) -> Iterator[list[ModuleType]]:
    """Import modules of these folders; afterwards nothing of them is left."""
    path, before = list(sys.path), set(sys.modules)
    sys.path[:0] = [str(BENCHMARKS / folder) for folder in folders]
    try:
        yield [import_module(name) for name in names]
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", None)).startswith(str(BENCHMARKS)):
                del sys.modules[name]
