"""The privacy of clients on Flower: the server clips and adds noise as in the simulator, with a secret of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Message
from safetensors.numpy import load_file

from fedreach._util.errors import ConfigError
from fedreach.evaluation.modes import AdaptationEvaluator
from fedreach.federation.adaptation.fitting import SumNoise
from fedreach.federation.adaptation.methods import BBSE
from fedreach.flower.experiment import FlowerExperiment
from fedreach.runs.adaptation import write_adaptation
from fedreach.runs.folder import RunFolder

from .in_process import Answering, InProcess
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


ADAPTED = EXPERIMENT.replace(
    "noise_multiplier = 1.0 }", 'noise_multiplier = 1.0, adaptation_noise = 0.1 }\nadaptation = "bbse"'
)
FITTED = ("adaptation.json", "adapted.jsonl", "adaptation.safetensors")


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


def adapt(folder: Path, answering: Answering = lambda client, message, answer: answer()) -> InProcess:
    """Run the experiment with a fitted adaptation rule, and return the grid."""
    (folder / "private.toml").write_text(ADAPTED, encoding="utf-8")
    setup = FlowerExperiment(folder / "private.toml")
    grid = InProcess(setup.client_app(), range(4), answering=answering)
    setup.strategy(folder / "run", timeout=5, patience=5).run(grid)
    return grid


def test_the_rule_is_fitted_once_to_the_sums_of_the_simulator_with_the_noise_of_the_secret(tmp_path: Path) -> None:
    adapt(tmp_path)
    folder, other = tmp_path / "run", RunFolder(tmp_path / "simulator")
    shutil.copytree(folder, other.path)
    state = load_file(folder / "checkpoint.safetensors")
    secret = int.from_bytes(state["aggregation.0.secret"].tobytes())
    simulation = FlowerExperiment(tmp_path / "private.toml").simulation
    evaluator = AdaptationEvaluator(simulation.engine, simulation.data, BBSE(), inputs=(5, 20))
    layout = simulation.engine.layout
    for seed, noise in ((secret, 0.1), (0, 0.1), (secret, 0.2)):
        write_adaptation(other, layout, replace(evaluator, noise=SumNoise(noise, seed)))
        same = [(folder / name).read_bytes() == (other.path / name).read_bytes() for name in FITTED]
        assert all(same) if (seed, noise) == (secret, 0.1) else not any(same[1:]), (seed, noise)
    record = json.loads((folder / "adaptation.json").read_text(encoding="utf-8"))
    assert list(record["rounds"]) == ["last"]
    assert "participant_adapted_accuracy" not in record["columns"]["last"]
    assert record["columns"]["last"]["unseen_adapted_accuracy"] > 0
    privacy = json.loads((folder / "result.json").read_text(encoding="utf-8"))["privacy"]
    assert privacy["adaptation_noise"] == 0.1
    assert "The models with the adaptation rule" in privacy["statement"]


def test_an_interrupted_adaptation_keeps_its_fit_even_if_a_participant_has_left(tmp_path: Path) -> None:
    fitted: list[dict[str, bytes]] = []

    def kill(client: int, message: Message, answer: Callable[[], Message]) -> Message:
        if message.metadata.message_type == "evaluate.adaptation":  # the rule is on its way to an unseen client
            fitted.append({name: array.data for name, array in message.content["state"].items()})
            raise KeyboardInterrupt
        return answer()

    with pytest.raises(KeyboardInterrupt):
        adapt(tmp_path, kill)
    leaver = int(FlowerExperiment(tmp_path / "private.toml").data.population.participants[0])

    def leave(client: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        if message.metadata.message_type == "evaluate.adaptation":
            fitted.append({name: array.data for name, array in message.content["state"].items()})
        return None if client == leaver and message.metadata.message_type == "query.adaptation" else answer()

    adapt(tmp_path, leave)
    assert len(fitted) == 2
    assert fitted[0] == fitted[1]


def test_cohorts_of_a_fixed_size_are_rejected_on_flower_because_clients_are_offline(tmp_path: Path) -> None:
    (tmp_path / "private.toml").write_text(EXPERIMENT.replace('"poisson"', '"uniform"'), encoding="utf-8")
    setup = FlowerExperiment(tmp_path / "private.toml")
    with pytest.raises(ConfigError, match="needs clients that are always available"):
        setup.strategy(tmp_path / "run", timeout=5, patience=5)
