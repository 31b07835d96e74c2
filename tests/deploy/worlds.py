"""Tiny runs of every kind of data and model, and what the engine that trained them says."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file
from tests.data.hospitals import table

from fedreach._util.arrays import Float32s, Ints
from fedreach.data.cells import cells_by_name, row_order
from fedreach.data.federated import FederatedData
from fedreach.data.own import numbered_column
from fedreach.data.table_source import Table, read_table
from fedreach.deploy.model import TrainedModel
from fedreach.deploy.saved import load as load_model
from fedreach.experiment.build import Builder
from fedreach.experiment.load import load
from fedreach.experiment.run import run
from fedreach.runs.simulation import Simulation

OWN = '''
import numpy as np
import torch
from torch import nn

import fedreach


class Net(nn.Module):
    """Dropout, BatchNorm, and an order of inputs that is drawn once and not trained."""

    def __init__(self, sample_shape, num_classes, width=16):
        super().__init__()
        size = int(np.prod(sample_shape))
        self.register_buffer("order", torch.randperm(size))
        self.first, self.norm = nn.Linear(size, width), nn.BatchNorm1d(width)
        self.drop, self.last = nn.Dropout(0.3), nn.Linear(width, num_classes)

    def forward(self, x):
        x = x.flatten(1)[:, self.order]
        return self.last(self.drop(torch.relu(self.norm(self.first(x)))))


class Stubborn(Net):
    """Looks at values, which no graph can follow."""

    def forward(self, x):
        return super().forward(x) if float(x.sum()) > 0 else 2 * super().forward(x)


def tokens():
    x = np.random.default_rng(0).integers(12, size=(300, 7))
    return fedreach.from_arrays(x, x[:, -1], kind="tokens", num_classes=12, name="words")


def colours():
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=150)
    bright = 60 + 40 * y[:, None, None, None] * np.arange(3)[:, None, None]
    x = np.clip(rng.normal(bright, 30, (150, 3, 8, 8)), 0, 255).astype(np.uint8)
    return fedreach.from_arrays(x, y, class_names=["red", "green", "blue"], name="colours")


def pictures():
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=240)
    bright = 60 + 60 * y[:, None, None, None] * np.linspace(0, 1, 16)
    x = np.clip(rng.normal(bright, 20, (240, 1, 16, 16)), 0, 255).astype(np.uint8)
    return fedreach.from_arrays(x, y, name="pictures")


def plain():
    rng = np.random.default_rng(0)
    y = rng.integers(4, size=300)
    return fedreach.from_arrays(rng.normal(y[:, None], 1, (300, 5)), y, num_classes=4, name="numbers")
'''

SHARED = """
rounds = 3
population = { participants = 4 }
evaluation = { every = 1 }
engine = { name = "sequential" }
"""
DIVIDED = "partition = { clients = 6, alpha = 1.0 }"
NATURAL = 'partition = { name = "natural" }'
COHORT = "method = { cohort_size = 3 }"
SHORT = "local = { batch_size = 16, lr = 0.05 }"
LONG = "local = { batch_size = 16, lr = 0.5, epochs = 10 }"  # until not everything is of one class

WORLDS = {
    "images": (
        'data = "digits"',
        'model = { name = "mlp", hidden = [24] }',
        DIVIDED,
        'method = { cohort_size = 3, adaptation = { name = "label_shift", strength = 1.0 } }',
        SHORT,
    ),
    "colours": (
        'data = "own.py:colours"',
        'model = { name = "resnet20", width = 8, norm = "batch" }',
        DIVIDED,
        COHORT,
        SHORT,
    ),
    "pictures": (
        'data = "own.py:pictures"',
        'model = "lenet"',
        DIVIDED,
        'method = { cohort_size = 3, adaptation = "label_shift" }',
        SHORT,
    ),
    "wards": (
        'data = { name = "hospitals.csv", client = "hospital", label = "readmitted" }',
        'model = { name = "mlp", hidden = [8] }',
        NATURAL,
        'method = { cohort_size = 3, adaptation = "bbse" }',
        LONG,
    ),
    "numbers": (
        'data = { name = "hospitals.csv", client = "hospital", target = "age" }',
        'model = { name = "mlp", hidden = [8] }',
        NATURAL,
        'method = { cohort_size = 3, loss = "mse" }',
        "local = { batch_size = 16, lr = 0.001 }",
    ),
    "features": ('data = "own.py:plain"', 'model = "linear"', DIVIDED, COHORT, SHORT),
    "tokens": (
        'data = "own.py:tokens"',
        'model = { name = "lstm", hidden = 8, layers = 2 }',
        DIVIDED,
        'method = { cohort_size = 3, adaptation = "label_shift" }',
        LONG,
    ),
    "own": ('data = "digits"', 'model = { name = "own.py:Net", width = 8, seed = 5 }', DIVIDED, COHORT, SHORT),
    "stubborn": (
        'data = "own.py:plain"',
        'model = "own.py:Stubborn"',
        DIVIDED,
        COHORT,
    ),
    "table": (
        'data = { name = "hospitals.csv", client = "hospital", label = "readmitted" }',
        'model = { name = "mlp", hidden = [8] }',
        NATURAL,
        COHORT,
        LONG,
    ),
    "clusters": (
        'data = "own.py:plain"',
        'model = "linear"',
        DIVIDED,
        'method = { cohort_size = 4, selection = { name = "clustered", eps1 = 100.0, eps2 = 0.0, first_round = 1 } }',
        SHORT,
    ),
}


TABLES = {"table": "readmitted", "wards": "readmitted", "numbers": "age"}
"""Worlds of a table, and the column of labels."""


@dataclass(frozen=True)
class World:
    """A finished run, and the simulation that it was."""

    base: Path
    folder: Path
    data: FederatedData
    simulation: Simulation
    rows: Any  # of the data set as its owner has them, in the order in which it was trained on: an array or a table

    def model(self, which: Any = "last", **options: Any) -> TrainedModel:
        return load_model(self.folder, which, base=self.base, **options)

    def held_out(self) -> Ints:
        """Return what all clients hold out."""
        return np.sort(self.data.held_out.order)

    def at(self, index: Ints) -> Any:
        """Return some rows as their owner has them."""
        if isinstance(self.rows, dict):
            return {name: [column[row] for row in index.tolist()] for name, column in self.rows.items()}
        return self.rows[index]

    def vector(self, which: str = "last", head: str = "") -> Float32s:
        """Return the model that the run left, as the engine has it."""
        tensors, layout = load_file(self.folder / f"{which}.safetensors"), self.simulation.engine.layout
        vector = np.empty(layout.size, np.float32)
        for name, view in layout.views(torch.from_numpy(vector)).items():
            view.copy_(torch.from_numpy(tensors[head + name]))
        return vector

    def logits(self, index: Ints, which: str = "last", head: str = "") -> Float32s:
        """Return what the engine says."""
        return self.simulation.engine.logits(self.vector(which, head), "true", index)


def make(name: str, base: Path) -> World:
    """Run a world in a folder of its own."""
    (base / "own.py").write_text(OWN, encoding="utf-8")
    hospitals = table()
    with (base / "hospitals.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([list(hospitals), *zip(*hospitals.values(), strict=True)])
    (base / "study.toml").write_text("\n".join(WORLDS[name]) + SHARED, encoding="utf-8")
    experiment = load(base / "study.toml").resolved()
    run(experiment, seed=1, folder=base / "run", base=base)
    builder = Builder(experiment, base)
    data = builder.federated(builder.dataset(), 1)
    rows = data.dataset.train_x if name not in TABLES else _in_order(read_table(base / "hospitals.csv"), TABLES[name])
    return World(base, base / "run", data, builder.simulation(data, 1), rows)


def _in_order(rows: Table, label: str) -> dict[str, Any]:
    """Return the rows of a table in the order in which they are trained on."""
    (owners, _), (labels, _) = (numbered_column(rows, name) for name in ("hospital", label))
    order = row_order(owners, labels, cells_by_name(rows, without=("hospital", label)))
    return {name: [_typed(cell) for cell in column.take(order).to_pylist()] for name, column in rows.items()}


def _typed(cell: str) -> float | str | None:
    """Return what a program with libraries of its own makes of a cell."""
    try:
        return float(cell)
    except ValueError:
        return None if cell in ("", "NA") else cell
