"""Experiments that run in FedReach's simulator and on Flower, and whether both runs are the same."""

from __future__ import annotations

import json
import shutil
from copy import copy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from fedreach.experiment.run import run
from fedreach.flower.experiment import FlowerExperiment

from .deployment import APP, DATA

METHODS = ["minimax", "csra", "safari", "scaffold", "feddyn"]
DECIDED = ("round", "cohort", "weights", "lost", "metrics", "bytes_total", "seconds_total", "joules_total")
MEASURED = (
    "train_loss",
    "participant_accuracy",
    "participant_loss",
    "unseen_accuracy",
    "unseen_loss",
    "participation_gap",
)

SHORTER = {
    "rounds = 3": "rounds = 2",
    "every = 3": "every = 2",
    "clients = 5": "clients = 4",
    "participants = 4": "participants = 3",
    "cohort_size = 3": "cohort_size = 2",
}
FASHION = {
    "[partition]": '[data]\nname = "fashion_mnist"\n\n[partition]',
    'name = "linear"': 'name = "lenet"',
    "batch_size = 16": "batch_size = 16\nsteps = 20",
}
SIX_CLIENTS = (  # four of them take part, three a round
    "model=linear",
    "partition.clients=6",
    "population.participants=4",
    "method.cohort_size=3",
    "local.epochs=1",
    "local.batch_size=50",
    "engine.name=sequential",
)


def app_with_both(folder: Path) -> Path:
    """Return a copy of the template that has ``digits.toml`` and ``fashion.toml``: four clients, two rounds."""
    app = folder / "flower_app"
    shutil.copytree(APP, app, ignore=shutil.ignore_patterns("__pycache__", "keys", "runs"))
    text = (app / "flower_app" / "experiment.toml").read_text(encoding="utf-8")
    for name, changes in {"digits": SHORTER, "fashion": {**SHORTER, **FASHION}}.items():
        changed = text
        for old, new in changes.items():
            assert changed.count(old) == 1, f"experiment.toml should hold {old!r} once"
            changed = changed.replace(old, new)
        (app / "flower_app" / f"{name}.toml").write_text(changed, encoding="utf-8")
    return app


def need(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the test if it needs files that are not here; let both sides find them."""
    if data == "fashion" and not Path(DATA, "FashionMNIST").exists():
        pytest.skip("the Fashion-MNIST files are not here; set FEDREACH_DATA to the folder that holds them")
    monkeypatch.setenv("FEDREACH_DATA", DATA)


def anew(setup: FlowerExperiment) -> FlowerExperiment:
    """Return the experiment as a new process would make it, with a model and parts of its own, but for the data."""
    fresh = copy(setup)
    vars(fresh)["data"] = setup.data
    vars(fresh).pop("simulation", None)
    return fresh


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a run folder."""
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]


def simulated(file: Path, method: str, folder: Path) -> Path:
    """Run one method of an experiment in FedReach's simulator, and return the run folder."""
    setup = FlowerExperiment(file, method=method)
    run(setup.experiment, seed=setup.seed, folder=folder, base=setup.base, method=method)
    return folder


def check_same(simulated: Path, real: Path) -> None:
    """Assert the same cohorts, weights and losses in every round, the same evaluation, and the same bits at the end."""
    ours, theirs = rows_of(simulated), rows_of(real)
    for name in DECIDED:
        assert [row.get(name) for row in theirs] == [row.get(name) for row in ours], name
    for mine, other in zip(ours, theirs, strict=True):
        for name in MEASURED:
            # Clients evaluate each by itself, the simulator all at once: batches differ, and so do sums of losses.
            assert (name in other) == (name in mine), name
            if name in mine:
                assert other[name] == pytest.approx(mine[name], abs=1e-6), f"{name} of round {mine['round']}"
    model = "last.safetensors"
    assert (real / model).read_bytes() == (simulated / model).read_bytes(), "the final models differ"
