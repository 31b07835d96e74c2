"""What faults are tried on: a small run in which all kinds of files of a run folder occur, and what came of a fault."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedreach.experiment.load import load
from fedreach.experiment.run import run
from fedreach.federation.selection import geometry
from fedreach.runs.callbacks import Callback
from fedreach.runs.schema import Timing

TOML = """
name = "small"
rounds = 3
seeds = [0]
partition = { clients = 6, alpha = 0.5 }
population.participants = 4
model = { name = "linear" }
engine = { name = "sequential", threads = 1 }
run.checkpoint_seconds = 1e-6
[local]
lr = 0.1
batch_size = 16
[evaluation]
every = 1
inputs = [5]
examples_per_client = 20
[method]
cohort_size = 2
solver = "scaffold"
aggregation = "fedvarp"
selection = { name = "minimax", storage = "disk" }
adaptation = "bbse"
"""
"""Rows of what clients keep and sent, and of a table of updates; a checkpoint after each round; an adaptation rule."""
DIFFER = (Timing.FILE, "run.json", ".lock")
"""Files that differ between two runs of the same thing, as they say when and where it was."""


@dataclass
class Counts:
    """What came of faults."""

    injected: int = 0
    survived: int = 0  # as if there had been none
    told: int = 0  # refused, by the name of what is damaged
    lost: int = 0  # refused without that, or by a traceback
    wrong: int = 0  # taken for what it is not
    found: list[str] = field(default_factory=list)  # the faults of the last two kinds

    def add(self, outcome: str, fault: str) -> None:
        """Count a fault."""
        self.injected += 1
        setattr(self, outcome, getattr(self, outcome) + 1)
        if outcome in ("lost", "wrong"):
            self.found.append(f"{outcome}: {fault}")

    def row(self) -> tuple[int, int, int, int, int]:
        """Return the numbers of a table's row."""
        return self.injected, self.survived, self.told, self.lost, self.wrong


@contextmanager
def large_tables() -> Iterator[None]:
    """Have tables of updates stand in files of their own, however small they are."""
    before = geometry.LARGE
    geometry.LARGE = 1
    try:
        yield
    finally:
        geometry.LARGE = before


def train(folder: Path, *callbacks: Callback, seed: int = 0) -> None:
    """Run the small run in a folder, or go on with it."""
    path = folder.parent / "small.toml"
    if not path.exists():
        path.write_text(TOML, encoding="utf-8")
    with large_tables():
        run(load(path).resolved(), seed=seed, folder=folder, base=path.parent, callbacks=callbacks)


def content(folder: Path) -> dict[str, Any]:
    """Return what must be the same in two folders of the same run: bytes, and of which rounds the time is known."""
    found: dict[str, Any] = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    for name in DIFFER:
        found.pop(name, None)
    timing = folder / Timing.FILE
    found[Timing.FILE] = timing.read_bytes().count(b"\n") if timing.exists() else None
    return found
