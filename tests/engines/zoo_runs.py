"""A finished run of each member of the zoo, started as users do: modules and data are in files of their own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from fedreach._util.arrays import Float32s
from fedreach.data.federated import FederatedData
from fedreach.experiment.build import Builder
from fedreach.experiment.load import load
from fedreach.experiment.run import run
from fedreach.experiment.schema import Experiment
from fedreach.runs.simulation import Simulation

from . import zoo_families  # noqa: F401 (adds its members to the zoo)
from .zoo import ZOO, Member

ROWS = """
import numpy as np

import fedreach

RNG = np.random.default_rng(0)
X = {
    "features": RNG.standard_normal((130, 8)).astype(np.float32),
    "image": RNG.integers(256, size=(130, 1, 8, 8)).astype(np.uint8),
    "tokens": RNG.integers(5, size=(130, 6)).astype(np.uint8),
}
Y = RNG.integers(5, size=130)


def made(kind):
    x = X[kind]
    return fedreach.from_arrays(x[:110], Y[:110], x[110:], Y[110:], num_classes=5, kind=kind, name=kind)


def features():
    return made("features")


def image():
    return made("image")


def tokens():
    return made("tokens")
"""

EXPERIMENT = """
rounds = 2
data = "rows.py:{kind}"
model = "zoo.py:{name}"
partition = {{ name = "iid", clients = 6 }}
population = {{ participants = 4 }}
method = {{ cohort_size = 3 }}
local = {{ batch_size = 4, lr = 0.0625, drop_last = true }}
evaluation = {{ every = 1, local = false }}
engine = {{ name = "sequential" }}
"""

SEED = 1
QUICK = (
    "mlp",
    "tutorial",
    "lstm_with_dropout",
    "batch_norm",
    "StochasticDepth",
    "NoiseInEvaluation",
    "BranchBySize",
    "Pruned",
    "MaskedGradient",
    "AutocastToTheEnd",
)
"""Members that the quick suite runs; `make test-all` runs all."""


def cases(quick: tuple[str, ...] = QUICK) -> list[Any]:
    """Return all members as parameters of a test; those that are not quick are slow."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in ZOO]


@dataclass(frozen=True)
class ZooRun:
    """A finished run, with the federation and the engine that it had."""

    name: str
    base: Path  # holds the experiment ``zoo.toml`` and the files that it names

    @property
    def member(self) -> Member:
        return ZOO[self.name]

    @property
    def folder(self) -> Path:
        return self.base / "run"

    @cached_property
    def experiment(self) -> Experiment:
        return load(self.base / "zoo.toml").resolved()

    @cached_property
    def data(self) -> FederatedData:
        builder = Builder(self.experiment, self.base)
        return builder.federated(builder.dataset(), SEED)

    @cached_property
    def simulation(self) -> Simulation:
        return Builder(self.experiment, self.base).simulation(self.data, SEED)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each round."""
        return [json.loads(line) for line in (self.folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]

    @cached_property
    def tensors(self) -> dict[str, Any]:
        """The last model, as stored."""
        return load_file(self.folder / "last.safetensors")

    @cached_property
    def logits(self) -> Float32s:
        """What the engine predicts of the test set by the last model."""
        layout = self.simulation.engine.layout
        vector = np.empty(layout.size, np.float32)
        for name, view in layout.views(torch.from_numpy(vector)).items():
            view.copy_(torch.from_numpy(self.tensors[name]))
        return self.simulation.engine.logits(vector, "test", np.arange(len(self.data.dataset.test_y)))


def whole_zoo() -> str:
    """Return the zoo and its families as one file, as a user has models in one."""
    zoo, families = (
        Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("zoo.py", "zoo_families.py")
    )
    lines = families.replace("from __future__ import annotations\n", "").splitlines()
    return "\n".join([zoo, *(line for line in lines if not line.startswith("from .zoo import"))])


def finish(name: str, base: Path) -> ZooRun:
    """Run a member in a folder of its own."""
    (base / "zoo.py").write_text(whole_zoo(), encoding="utf-8")
    (base / "rows.py").write_text(ROWS, encoding="utf-8")
    (base / "zoo.toml").write_text(EXPERIMENT.format(name=name, kind=ZOO[name].kind), encoding="utf-8")
    finished = ZooRun(name, base)
    run(finished.experiment, seed=SEED, folder=finished.folder, base=base)
    return finished
