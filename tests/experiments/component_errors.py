"""Errors raised in parts of users' own, every kind of part by every kind of error, and how each is told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fedreach._util.errors import FedReachError, RunFolderError
from fedreach.experiment.load import load
from fedreach.experiment.run import run

ERRORS = {
    "OSError": "raise OSError(28, 'No space left on device', 'mine.txt')",
    "PermissionError": "raise PermissionError(13, 'Permission denied', 'mine.txt')",
    "FileNotFoundError": "open('nowhere/at/all')",
    "IsADirectoryError": "open('.')",
    "BlockingIOError": "raise BlockingIOError(11, 'try again')",
    "MemoryError": "raise MemoryError",
    "KeyError": "{}['key']",
    "SystemExit": "raise SystemExit(0)",
    "RecursionError": "boom()",
    "StopIteration": "next(iter(()))",
    "UserWarning": "raise UserWarning('a warning that was made an error')",
    "BrokenPipeError": "raise BrokenPipeError(32, 'Broken pipe')",
}
"""The type of an error, and code that raises it."""

ALWAYS = """\
from dataclasses import dataclass
from torch import nn
from fedreach.data.shifts import Shift, SHIFTS
from fedreach.federation.aggregation import AGGREGATIONS
from fedreach.federation.labels import LABEL_STATISTICS
from fedreach.federation.participation import PARTICIPATIONS
from fedreach.federation.selection import SELECTIONS
from fedreach.federation.server import SERVERS
from fedreach.federation.adaptation import ADAPTATIONS
from fedreach.federation.solvers import SOLVERS
from fedreach.federation.weighting import WEIGHTINGS
from fedreach.wireless.rules import RULES
from fedreach.wireless.radio import RADIOS

def boom():
    {error}
"""

PARTS = {
    "selection": ("method.selection=mine.py:f", "def f(view, k, rng): boom()"),
    "weighting": ("method.weighting=mine.py:f", "def f(reports): boom()"),
    "loss": ("method.loss=mine.py:f", "def f(outputs, targets): boom()"),
    "metric": ("evaluation.metrics=['mine.py:f']", "def f(y_true, scores): boom()"),
    "partition": ("partition={name='mine.py:f',clients=12}", "def f(labels, clients, rng): boom()"),
    "data": ("data=mine.py:f", "def f(): boom()"),
    "model": ("model=mine.py:f", "def f(sample_shape, num_classes): boom()"),
    "module": (
        "model=mine.py:Net",
        "class Net(nn.Module):\n    def __init__(self, num_classes):\n        super().__init__()\n"
        "        self.layer = nn.Linear(64, num_classes)\n    def forward(self, x): boom()",
    ),
    "training": (
        "model=mine.py:Net",
        "class Net(nn.Module):\n    rounds = 0\n    def __init__(self, num_classes):\n        super().__init__()\n"
        "        self.layer = nn.Linear(64, num_classes)\n    def forward(self, x):\n"
        "        if self.training and len(x) > 2: boom()\n        return self.layer(x.flatten(1))",
    ),
    "solver": ("method.solver=mine.py:P", "class P(SOLVERS['fedavg']):\n    def correct(self, *given): boom()"),
    "server": ("method.server=mine.py:P", "class P(SERVERS['average']):\n    def apply(self, *given): boom()"),
    "aggregation": (
        "method.aggregation=mine.py:P",
        "class P(AGGREGATIONS['mean']):\n    def combine(self, *g): boom()",
    ),
    "adaptation": (
        "method.adaptation=mine.py:P",
        "class P(ADAPTATIONS['bbse']):\n    def contribute(self, *given): boom()",
    ),
    "labels": (
        "method.weighting=entropy method.label_statistics=mine.py:P",
        "class P(LABEL_STATISTICS['exact']):\n    def release(self, *given): boom()",
    ),
    "participation": (
        "population.participation=mine.py:P",
        "class P(PARTICIPATIONS['always']):\n    def available(self, *given): boom()",
    ),
    "shift": (
        "shift={name='mine.py:P',strength=0.5}",
        "class P(SHIFTS['brightness']):\n    def shifted(self, *given): boom()",
    ),
    "radio": ("radio=mine.py:P", "class P(RADIOS['gigahertz']):\n    def gains(self, *given): boom()"),
}
"""Kind of part, the options that name one, and its code."""

LINE = 1 + ALWAYS.splitlines().index("    {error}")


@dataclass
class Counts:
    """Of errors that were put into parts."""

    injected: int = 0
    told: int = 0  # as those of the part, with file and line
    wrong: list[str] = field(default_factory=list)  # what was said instead


def tried(base: Path, pairs: Iterable[tuple[str, str]]) -> Counts:
    """Put errors into parts, one after the other, and return how they were told.

    Args:
        base: Folder with the experiment ``tiny.toml``, in which runs are made; it must be the current one.
        pairs: Of kinds of `PARTS` and `ERRORS`.
    """
    counts = Counts()
    for kind, error in pairs:
        counts.injected += 1
        if wrong := _wrong(base, kind, error, base / f"{kind}-{error}"):
            counts.wrong.append(f"{kind}, {error}: {wrong}")
        else:
            counts.told += 1
    return counts


def every() -> Iterator[tuple[str, str]]:
    """Yield every kind with every error."""
    return ((kind, error) for kind in PARTS for error in ERRORS)


def _wrong(base: Path, kind: str, error: str, folder: Path) -> str:
    """Return what is wrong with how an error was told; "" where nothing is."""
    option, code = PARTS[kind]
    (base / "mine.py").write_text(ALWAYS.format(error=ERRORS[error]) + "\n\n" + code + "\n", encoding="utf-8")
    try:
        experiment = load(base / "tiny.toml", [*option.split(), "rounds=1", "engine.name=sequential"]).resolved()
        run(experiment, seed=0, folder=folder, base=base)
    except RunFolderError as found:
        return f"told as ours: {found}"
    except FedReachError as found:
        said = f"{found}"
        placed = f"mine.py, line {LINE}, in boom" in said
        kept = (folder / "traceback.txt").exists() and "in boom" in (folder / "traceback.txt").read_text("utf-8")
        return "" if placed and kept and "cannot be written" not in said else f"without its place: {said}"
    except BaseException as found:  # SystemExit, too
        return f"not told: {type(found).__name__}: {found}"
    return "nothing was said"
