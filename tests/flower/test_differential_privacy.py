"""The privacy of clients on Flower: clipping and noise as in the simulator, with secrets of their own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
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
from fedreach.federation.federation import simulated_noise
from fedreach.federation.secure_aggregation import Words
from fedreach.federation.state import initial_state
from fedreach.flower.experiment import FlowerExperiment
from fedreach.flower.local import LocalClient
from fedreach.flower.secure_server import SecureSum
from fedreach.runs.adaptation import write_adaptation
from fedreach.runs.folder import RunFolder

from .faulty import flower, simulated
from .in_process import Answering, InProcess
from .same import anew, rows_of

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


# ---- With secure aggregation, clients clip and add noise

SECURE = (
    "method.label_statistics=secure_aggregation",
    "method.selection=full",
    "method.cohort_size=2",
    "partition.clients=6",
    "population.participants=5",
)


@pytest.fixture
def secure(tmp_path: Path) -> FlowerExperiment:
    (tmp_path / "private.toml").write_text(EXPERIMENT, encoding="utf-8")
    return FlowerExperiment(tmp_path / "private.toml", overrides=(*SECURE, "rounds=3", "evaluation.every=3"))


def silent(leavers: dict[int, set[int]]) -> Answering:
    """An `Answering` in which the clients of a round do not send their update."""

    def answering(client: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        leaves = message.metadata.message_type == "train" and client in leavers.get(
            message.content["fedreach"]["round"], ()
        )
        return None if leaves else answer()

    return answering


def test_with_the_noise_of_the_simulator_the_model_is_the_simulators_also_if_clients_leave(
    secure: FlowerExperiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of five clients leaves in round 2, and two in round 3, so that its sum is lost."""
    monkeypatch.setattr("fedreach.flower.strategy.initial_state", lambda *a, **options: initial_state(*a))
    monkeypatch.setattr(
        LocalClient, "noise_generator", lambda self, round_: simulated_noise(self.federation, round_, self.client)
    )
    clients = secure.data.population.participants.tolist()
    leavers = {2: {clients[1]}, 3: {clients[0], clients[3]}}
    found = flower(secure, InProcess(secure.client_app(), range(6), answering=silent(leavers)), tmp_path)
    expected = simulated(secure, lost=leavers)
    assert found._replace(weights=[], lost=[*map(sorted, found.lost)]) == expected._replace(weights=[])
    assert [len(cohort) for cohort in found.cohorts] == [5, 4, 0]


def sums_of(setup: FlowerExperiment, folder: Path) -> list[Words]:
    """Return the sums that the server unmasks in a run."""
    sums: list[Words] = []

    class Noting(SecureSum):
        def total(self, words):
            total = super().total(words)
            sums.append(total[""]["masked"].view(np.int64))
            return total

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedreach.flower.rounds.SecureSum", Noting)
        setup.strategy(folder, timeout=5, patience=5).run(InProcess(setup.client_app(), range(6)))
    return sums


def test_the_sums_that_the_server_unmasks_have_noise_that_nobody_can_repeat(
    secure: FlowerExperiment, tmp_path: Path
) -> None:
    noisy = [sums_of(secure, tmp_path / name) for name in ("a", "b")]
    unit = secure.simulation.federation.aggregation.unit
    for first, second in zip(*noisy, strict=True):
        assert len(first) == len(second) == secure.simulation.engine.layout.size  # no weight
    difference = (noisy[0][0] - noisy[1][0]) * unit  # of the first round, in which both have the same updates
    assert difference.std() == pytest.approx(np.sqrt(2) * 0.1, rel=5 / np.sqrt(2 * len(difference)))
    stored = json.loads((tmp_path / "a" / "result.json").read_text(encoding="utf-8"))["privacy"]
    assert stored["server"]["participations"] == 3
    assert stored["server"]["epsilon"] > stored["epsilon"]
    assert "The sums that the server sees are" in stored["statement"]


def test_a_server_that_was_killed_after_it_saw_a_sum_does_not_get_a_second_sum_of_the_round(
    secure: FlowerExperiment, tmp_path: Path
) -> None:
    """The mean of two sums of the same updates would have half of the noise."""
    grid, sums = InProcess(secure.client_app(), range(6)), list[int]()

    class Killing(SecureSum):
        def total(self, words):
            total = super().total(words)
            sums.append(len(sums))
            if len(sums) == 2:
                raise KeyboardInterrupt
            return total

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedreach.flower.rounds.SecureSum", Killing)
        with pytest.raises(KeyboardInterrupt):
            secure.strategy(tmp_path / "run", timeout=5, patience=5).run(grid)
        anew(secure).strategy(tmp_path / "run", timeout=5, patience=5).run(grid)
    assert len(sums) == 3  # of rounds 1, 2 and 3: the second attempt at round 2 had no sum
    rows = rows_of(tmp_path / "run")
    assert [len(row["cohort"]) for row in rows] == [0, 5, 0, 5]
    assert len(rows[2]["lost"]) == 5


def test_a_client_with_another_clipping_norm_is_refused(secure: FlowerExperiment, tmp_path: Path) -> None:
    other = FlowerExperiment(
        tmp_path / "private.toml", overrides=(*SECURE, "rounds=3", "evaluation.every=3", "method.aggregation.clip=0.2")
    )
    apps = {client: (other if client == 2 else secure).client_app() for client in range(6)}
    strategy = secure.strategy(tmp_path / "run", timeout=5, patience=0.1, min_clients=3)
    strategy.run(InProcess(apps, range(6)))
    (row, *_) = rows_of(tmp_path / "run")
    assert "its aggregation is DPFedAvg(clip=0.2" in next(iter(row["refused"].values()))


def test_an_epsilon_that_clients_cannot_turn_into_noise_is_rejected(tmp_path: Path) -> None:
    text = EXPERIMENT.replace("noise_multiplier = 1.0", "epsilon = 8.0")
    (tmp_path / "private.toml").write_text(text, encoding="utf-8")
    setup = FlowerExperiment(tmp_path / "private.toml", overrides=SECURE)
    for create in (partial(setup.made_app, 1), partial(setup.strategy, tmp_path / "run")):
        with pytest.raises(ConfigError, match="must have noise_multiplier, so that clients"):
            create()
