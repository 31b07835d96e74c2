"""The privacy of clients on Flower: the server clips and adds noise as in the simulator, with a secret of its own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from safetensors.numpy import load_file

from fedreach._util.errors import ConfigError
from fedreach.flower.experiment import FlowerExperiment

from .in_process import InProcess
from .same import rows_of

EXPERIMENT = """
name = "private"
rounds = 6
[partition]
name = "iid"
clients = 4
[population]
participants = 3
[model]
name = "linear"
[method]
cohort_size = 1
selection = "poisson"
weighting = "equal"
aggregation = { name = "dp_fedavg", clip = 0.1, delta = 1e-5, noise_multiplier = 1.0 }
[local]
steps = 1
[evaluation]
every = 6
[engine]
name = "sequential"
"""


def run(folder: Path, *, stop_after: int | None = None) -> list[int]:
    """Run the experiment on Flower, or end it after some rounds; return the numbers of clients in its rounds."""
    (folder / "private.toml").write_text(EXPERIMENT, encoding="utf-8")
    setup = FlowerExperiment(folder / "private.toml")
    strategy = setup.strategy(folder / "run", timeout=5, patience=5)
    if stop_after is not None:
        finished = strategy.aggregate_evaluate

        def evaluate(server_round, replies):
            finished(server_round, replies)
            if server_round == stop_after:
                raise KeyboardInterrupt

        strategy.aggregate_evaluate = evaluate
    strategy.run(InProcess(setup.client_app(), range(4)))
    return [len(row["cohort"]) for row in rows_of(folder / "run")[1:]]


def test_a_private_run_has_noise_in_empty_rounds_and_keeps_its_secret_when_it_resumes(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, stop_after=3)
    before = load_file(tmp_path / "run" / "checkpoint.safetensors")
    sizes = run(tmp_path)
    after = load_file(tmp_path / "run" / "checkpoint.safetensors")
    secret = "aggregation.0.secret"
    assert before[secret].any()
    assert np.array_equal(before[secret], after[secret])
    assert len(sizes) == 6
    moved = np.linalg.norm(after["models"] - before["models"]) / np.sqrt(after["models"].size)
    assert moved == pytest.approx(np.sqrt(3) * 0.1, rel=0.15)  # of three rounds, whatever their cohorts
    result = json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))
    assert (result["privacy"]["participants"], result["privacy"]["rounds"]) == (3, 6)
    assert "probability 1/3" in result["privacy"]["statement"]


def test_cohorts_of_a_fixed_size_are_rejected_on_flower_because_clients_are_offline(tmp_path: Path) -> None:
    (tmp_path / "private.toml").write_text(EXPERIMENT.replace('"poisson"', '"uniform"'), encoding="utf-8")
    setup = FlowerExperiment(tmp_path / "private.toml")
    with pytest.raises(ConfigError, match="needs clients that are always available"):
        setup.strategy(tmp_path / "run", timeout=5, patience=5)
