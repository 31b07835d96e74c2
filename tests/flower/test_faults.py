"""Whatever a client does wrong, the run ends as if that client had not replied: bit for bit, and it is named."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

flwr = pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402
from torch import nn  # noqa: E402

from fedreach.data.federated import Population  # noqa: E402
from fedreach.errors import ConfigError, DataError, TrainingError  # noqa: E402
from fedreach.federation.server import Safari  # noqa: E402
from fedreach.federation.state import FederationState  # noqa: E402
from fedreach.flower import ClientData, FedReachStrategy, FlowerExperiment, client_app, share_labels  # noqa: E402
from fedreach.flower.local import server_engine  # noqa: E402
from fedreach.models import build  # noqa: E402
from fedreach.simulation.simulation import Simulation  # noqa: E402
from fedreach.testing.problems import tiny_federation  # noqa: E402

from .in_process import InProcess  # noqa: E402
from .same import anew  # noqa: E402

Clients = Mapping[int, set[int]]  # round -> clients
Spoil = Callable[[Message], "Message | list[Message] | None"]
Method = tuple[str, ...]

FEDAVG: Method = ()
SCAFFOLD: Method = ("method.solver=scaffold",)
FEDDYN: Method = ("method.solver=feddyn",)
DISAGREEMENT: Method = ("method.weighting=disagreement",)
MINIMAX: Method = ("method.selection=minimax", "method.weighting=entropy")  # probes for updates, asks for labels
CLIENTS, ROUNDS, TIMEOUT = 6, 4, 0.4
SMALL = (
    f"rounds={ROUNDS}",
    "model=linear",
    f"partition.clients={CLIENTS}",
    "population.participants=4",
    "method.cohort=3",
    "local.epochs=1",
    "local.batch_size=50",
    f"evaluation.every={ROUNDS}",
    "engine.name=sequential",
)


# ------------------------------------------------------------------------------------ what the model ought to be


class Outcome(NamedTuple):
    """What a run comes to."""

    cohorts: list[list[int]]  # of rounds 1, 2, ...
    lost: list[list[int]]
    weights: list[list[float]]
    model: str  # a digest of its bits: as numbers they would fill the screen


class Overheard:
    """An engine that can be asked whom it trained last; everything else is the engine's."""

    def __init__(self, engine: Any) -> None:
        self._engine, self.ids = engine, list[int]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def train(self, params: Any, ids: Any, round_: int, rate: float, terms: Any) -> Any:
        self.ids = [int(client) for client in ids]
        return self._engine.train(params, ids, round_, rate, terms)


class Planned:
    """A participation that makes exactly these clients unavailable, and loses exactly these replies."""

    def __init__(self, participants: list[int], engine: Overheard, offline: Clients, lost: Clients) -> None:
        self.participants, self.engine, self.offline, self.lost, self.round = participants, engine, offline, lost, 0

    def available(self, n: int, rng: np.random.Generator) -> Any:
        return np.array([client not in self.offline.get(self.round, ()) for client in self.participants])

    def replies(self, k: int, rng: np.random.Generator) -> Any:
        asked = self.engine.ids if k else []
        assert len(asked) == k
        return np.array([client not in self.lost.get(self.round, ()) for client in asked], np.bool_)


def simulated(
    setup: FlowerExperiment, *, offline: Clients | None = None, lost: Clients | None = None, without: int | None = None
) -> Outcome:
    """Run the simulator with these clients away, or with their replies lost, or with one that never takes part."""
    data, simulation = setup.data, setup.simulation
    if without is not None:
        p = data.population
        unseen = np.sort(np.append(p.unseen, without))
        data = replace(data, population=Population(p.participants[p.participants != without], unseen))
    engine = Overheard(simulation.engine)
    planned = Planned(data.population.participants.tolist(), engine, offline or {}, lost or {})
    simulation = Simulation(simulation.federation, data, engine, setup.experiment.rounds, planned)  # type: ignore[arg-type]
    state, reports = simulation.start(), []
    for number in range(1, setup.experiment.rounds + 1):
        planned.round = number
        state, report, _ = simulation.step(state)
        reports.append(report)
    return Outcome(
        [list(report.cohort) for report in reports],
        [sorted(report.lost) for report in reports],
        [[round(weight, 9) for weight in report.weights] for report in reports],
        bits(setup, state),
    )


def bits(setup: FlowerExperiment, state: FederationState) -> str:
    layout = setup.simulation.engine.layout
    (model,) = state.served(setup.simulation.federation)
    return digest({name: view.numpy() for name, view in layout.views(torch.from_numpy(model.copy())).items()})


def digest(model: Mapping[str, np.ndarray]) -> str:
    parts = [name.encode() + str(array.dtype).encode() + array.tobytes() for name, array in sorted(model.items())]
    return hashlib.sha256(b"".join(parts)).hexdigest()


@cache
def experiment(method: Method, *more: str) -> FlowerExperiment:
    return FlowerExperiment(overrides=(*SMALL, *method, *more))


@cache
def app_of(method: Method, *more: str) -> ClientApp:
    """The clients' app; what it keeps loaded is the same for all runs of a method, as each has contexts of its own."""
    return experiment(method, *more).client_app()


@cache
def undisturbed(method: Method) -> Outcome:
    return simulated(experiment(method))


def culprit_of(method: Method) -> int:
    """A client that trains in rounds 1 and 2 and again later, so that what it keeps between rounds matters."""
    first, second, *later = undisturbed(method).cohorts
    return next(c for c in first if c in second and any(c in cohort for cohort in later))


@cache
def without_reply(method: Method) -> Outcome:
    """What a run comes to if the culprit's reply of round 2 is lost."""
    outcome = simulated(experiment(method), lost={2: {culprit_of(method)}})
    assert outcome.model != undisturbed(method).model  # or the tests below could not fail
    return outcome


def flower(
    setup: FlowerExperiment, grid: InProcess, folder: Path, *, timeout: float = TIMEOUT, **options: Any
) -> Outcome:
    anew(setup).strategy(folder, timeout=timeout, **{"patience": 0.3, **options}).run(grid)
    return outcome_of(folder)


def outcome_of(folder: Path) -> Outcome:
    assert json.loads((folder / "result.json").read_text())["status"] == "finished"
    found = rows(folder)[1:]
    cohorts, lost, weights = ([row[name] for row in found] for name in ("cohort", "lost", "weights"))
    return Outcome(cohorts, lost, weights, digest(load_file(folder / "last.safetensors")))


def rows(folder: Path, name: str = "rounds.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]


def test_one_experiment_makes_the_same_run_twice(tmp_path: Path) -> None:
    setup = FlowerExperiment(overrides=SMALL)
    for name in "ab":
        setup.strategy(tmp_path / name, timeout=TIMEOUT).run(InProcess(setup.client_app(), range(CLIENTS)))
        assert outcome_of(tmp_path / name) == undisturbed(FEDAVG)


def test_a_strategy_does_not_change_the_model_that_it_is_given(tmp_path: Path) -> None:
    setup = FlowerExperiment(overrides=SMALL)
    module = build("linear", (64,), 10, seed=3)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    strategy = FedReachStrategy(setup.simulation.federation, module, rounds=1, folder=tmp_path, timeout=TIMEOUT)
    strategy.run(InProcess(setup.client_app(), range(CLIENTS)))
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


# ------------------------------------------------------------------------------------------- replies of training


def number(message: Message) -> int:
    return int(message.content.config_records["config"]["server-round"])


def spoiled(client: int, round_: int, spoil: Callable[[Message, Callable[[], Message]], Any]) -> Any:
    """An `Answering` in which one client's answer to one round's training is spoiled."""

    def answering(asked: int, message: Message, answer: Callable[[], Message]) -> Any:
        trains = message.metadata.message_type == "train"
        if asked == client and trains and number(message) == round_:
            return spoil(message, answer)
        return answer()

    return answering


def with_update(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Message, Callable[[], Message]], Message]:
    def spoil(message: Message, answer: Callable[[], Message]) -> Message:
        reply = answer()
        record = reply.content.array_records["update"]
        record["update"] = Array(change(np.array(record["update"].numpy())))
        return reply

    return spoil


def with_metric(name: str, value: Any) -> Callable[[Message, Callable[[], Message]], Message]:
    def spoil(message: Message, answer: Callable[[], Message]) -> Message:
        reply = answer()
        metrics = dict(reply.content.metric_records["metrics"]) | {name: value}
        metrics = {key: kept for key, kept in metrics.items() if kept is not None}
        reply.content["metrics"] = MetricRecord(metrics)
        return reply

    return spoil


def one_nan(update: np.ndarray) -> np.ndarray:
    update[3] = np.nan
    return update


def without_record(name: str) -> Callable[[Message, Callable[[], Message]], Message]:
    def spoil(message: Message, answer: Callable[[], Message]) -> Message:
        reply = answer()
        del reply.content[name]
        return reply

    return spoil


def with_empty_arrays(message: Message, answer: Callable[[], Message]) -> Message:
    reply = answer()
    reply.content["update"] = ArrayRecord()
    return reply


def with_junk(message: Message, answer: Callable[[], Message]) -> Message:
    reply = answer()
    good = reply.content.array_records["update"]["update"]
    reply.content["update"] = ArrayRecord({"update": Array(good.dtype, good.shape, good.stype, b"not an array")})
    return reply


def failing(reason: str) -> Callable[[Message, Callable[[], Message]], Message]:
    return lambda message, answer: Message(Error(code=2, reason=reason), reply_to=message)


def raising(message: Message, answer: Callable[[], Message]) -> Message:
    message.content.array_records["arrays"].clear()  # so that the app itself raises
    return answer()


FAULTS: dict[str, tuple[Callable[[Message, Callable[[], Message]], Any], str]] = {
    "one NaN": (with_update(one_nan), "its 'update' is not finite"),
    "all infinite": (with_update(lambda u: u + np.float32(np.inf)), "its 'update' is not finite"),
    "finite, but 3e38": (with_update(lambda u: u * 0 + np.float32(3e38)), r"its 'update' holds numbers up to 3e\+38"),
    "one number more": (
        with_update(lambda u: np.append(u, u[:1])),
        r"its 'update' must be float32 \(650,\); got float",
    ),
    "a matrix": (with_update(lambda u: u[None]), r"its 'update' must be float32 \(650,\); got float32 \(1, 650\)"),
    "float64": (with_update(lambda u: u.astype(np.float64)), r"must be float32 \(650,\); got float64"),
    "float16": (with_update(lambda u: u.astype(np.float16)), r"must be float32 \(650,\); got float16"),
    "whole numbers": (with_update(lambda u: u.astype(np.int32)), r"must be float32 \(650,\); got int32"),
    "junk": (with_junk, "its 'update' cannot be read"),
    "no update": (without_record("update"), "it sent no arrays 'arrays'"),
    "no array in the update": (with_empty_arrays, "it sent no 'update'|no array|'update'"),
    "no metrics": (without_record("metrics"), "it sent no 'metrics'"),
    "loss infinite": (with_metric("train_loss", float("inf")), "its 'train_loss' is not finite"),
    "loss NaN": (with_metric("train_loss", float("nan")), "its 'train_loss' is not finite"),
    "loss a list": (with_metric("train_loss", [1.0]), "its 'train_loss' is not a number"),
    "no loss": (with_metric("train_loss", None), "it sent no number 'train_loss'"),
    "other examples": (
        with_metric("num-examples", 99999),
        r"it says that it has 99999 examples, but it said \d+ before",
    ),
    "no examples": (with_metric("num-examples", 0), "its 'num-examples' must be a whole number from 1 to .*; got 0"),
    "half an example": (with_metric("num-examples", 1.5), "its 'num-examples' must be a whole number"),
    "an exception": (raising, "it failed: .*Error"),
    "an error without words": (failing("  \n "), "it failed: "),
    "an error of many lines": (failing("Traceback:\n  a\n\nValueError: oh"), "it failed: ValueError: oh"),
    "no reply": (lambda message, answer: None, "no reply within 0.4 s"),
    "trained, and no reply": (lambda message, answer: answer() and None, "no reply within 0.4 s"),
}
MEMORY_FAULTS: dict[str, tuple[Callable[[Message, Callable[[], Message]], Any], str]] = {
    "no steps": (with_metric("steps", 0), "its 'steps' must be a whole number from 1 to .*; got 0"),
    "steps not told": (with_metric("steps", None), "it sent no number 'steps'"),
    "negative steps": (with_metric("steps", -3), "its 'steps' must be a whole number from 1 to .*; got -3"),
    "endless steps": (with_metric("steps", 1e300), "its 'steps' "),
    "forgets again and again": (with_metric("lacks-memory-of-round", 1), "it says that it lost|it lost what it kept"),
}


@pytest.mark.parametrize("method", [FEDAVG, SCAFFOLD], ids=["fedavg", "scaffold"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_reply_counts_like_none_and_is_named(
    method: Method, fault: str, tmp_path: Path, heard: pytest.LogCaptureFixture
) -> None:
    refuse(method, *FAULTS[fault], tmp_path, heard)


@pytest.mark.parametrize("method", [SCAFFOLD, FEDDYN], ids=["scaffold", "feddyn"])
@pytest.mark.parametrize("fault", MEMORY_FAULTS)
def test_what_only_a_solver_with_a_memory_asks_for_is_checked_too(
    method: Method, fault: str, tmp_path: Path, heard: pytest.LogCaptureFixture
) -> None:
    refuse(method, *MEMORY_FAULTS[fault], tmp_path, heard)


@pytest.mark.parametrize("value", [0.0, -1.0, 1e-9], ids=str)
def test_a_measurement_that_no_honest_client_has_is_refused(
    value: float, tmp_path: Path, heard: pytest.LogCaptureFixture
) -> None:
    refuse(DISAGREEMENT, with_metric("disagreement", value), "its 'disagreement' must be at least 0.3", tmp_path, heard)


def refuse(method: Method, spoil: Any, reason: str, folder: Path, heard: pytest.LogCaptureFixture) -> None:
    setup, culprit = experiment(method), culprit_of(method)
    grid = InProcess(app_of(method), range(CLIENTS), answering=spoiled(culprit, 2, spoil))
    found = flower(setup, grid, folder)
    assert found == without_reply(method)
    assert found.lost == [[], [culprit], [], []]
    assert_said(heard, rf"Client {culprit} does not count in round 2: .*({reason})")


def assert_said(heard: pytest.LogCaptureFixture, pattern: str) -> None:
    assert heard_lines(heard, pattern), "\n".join(record.getMessage() for record in heard.records)


def heard_lines(heard: pytest.LogCaptureFixture, pattern: str) -> list[str]:
    said = [record.getMessage() for record in heard.records if record.levelno >= logging.WARNING]
    return [line for line in said if re.search(pattern, line, re.DOTALL)]


def test_steps_do_not_matter_to_a_solver_that_keeps_nothing(tmp_path: Path) -> None:
    grid = InProcess(
        app_of(FEDAVG), range(CLIENTS), answering=spoiled(culprit_of(FEDAVG), 2, with_metric("steps", None))
    )
    assert flower(experiment(FEDAVG), grid, tmp_path) == undisturbed(FEDAVG)


def test_a_reply_that_claims_to_be_of_a_node_that_was_not_asked_counts_for_nobody(
    tmp_path: Path, heard: pytest.LogCaptureFixture
) -> None:
    (bystander,) = {2, 3, 4, 5} - set(undisturbed(FEDAVG).cohorts[1])
    culprit = culprit_of(FEDAVG)

    def forge(message: Message, answer: Callable[[], Message]) -> Message:
        reply = answer()
        reply.metadata.__dict__["_src_node_id"] = grid.node_of[bystander]
        return reply

    grid = InProcess(app_of(FEDAVG), range(CLIENTS), answering=spoiled(culprit, 2, forge))
    assert bystander in grid.node_of
    assert flower(experiment(FEDAVG), grid, tmp_path) == without_reply(FEDAVG)
    assert_said(heard, f"Node {grid.node_of[bystander]}: a reply that nobody asked for")
    assert_said(heard, f"Client {culprit} does not count in round 2: no reply")


def test_a_reply_in_the_name_of_a_node_that_is_not_there_counts_for_nobody(tmp_path: Path) -> None:
    def forge(message: Message, answer: Callable[[], Message]) -> list[Message]:
        true, forged = answer(), answer()
        forged.metadata.__dict__["_src_node_id"] = 77
        return [forged, true]

    grid = InProcess(app_of(FEDAVG), range(CLIENTS), answering=spoiled(culprit_of(FEDAVG), 2, forge))
    assert flower(experiment(FEDAVG), grid, tmp_path) == undisturbed(FEDAVG)


@pytest.mark.parametrize("method", [FEDAVG, SCAFFOLD], ids=["fedavg", "scaffold"])
def test_a_node_that_replies_twice_counts_once(method: Method, tmp_path: Path, heard: pytest.LogCaptureFixture) -> None:
    grid = InProcess(
        app_of(method),
        range(CLIENTS),
        answering=spoiled(culprit_of(method), 2, lambda message, answer: [answer(), answer()]),
    )
    assert flower(experiment(method), grid, tmp_path) == undisturbed(method)
    assert_said(heard, f"Node {grid.node_of[culprit_of(method)]}: a reply that nobody asked for")


def test_an_error_of_flower_itself_loses_the_client_that_it_is_about(
    tmp_path: Path, heard: pytest.LogCaptureFixture
) -> None:
    culprit = culprit_of(FEDAVG)

    def unavailable(message: Message, answer: Callable[[], Message]) -> Message:
        reply = Message(Error(code=3, reason="Node Unavailable"), reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = 1  # the SuperLink speaks
        return reply

    grid = InProcess(app_of(FEDAVG), range(CLIENTS), answering=spoiled(culprit, 2, unavailable))
    assert flower(experiment(FEDAVG), grid, tmp_path) == without_reply(FEDAVG)
    assert_said(heard, "Node 1: Node Unavailable")
    assert_said(heard, f"Client {culprit} does not count in round 2")


def test_if_nobody_ever_counts_the_run_fails_and_says_so(tmp_path: Path) -> None:
    def answering(client: int, message: Message, answer: Callable[[], Message]) -> Message:
        return failing("out of memory")(message, answer) if message.metadata.message_type == "train" else answer()

    with pytest.raises(TrainingError, match=r"No client's update counted in any of the 4 rounds: all 12 were lost"):
        flower(experiment(FEDAVG), InProcess(app_of(FEDAVG), range(CLIENTS), answering=answering), tmp_path)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["status"] == "failed"
    assert "No client's update counted" in result["error"]


# -------------------------------------------------------------------------------------- probes, labels, evaluation


def test_an_update_probe_that_goes_wrong_leaves_its_client_out_of_the_choice(
    tmp_path: Path, heard: pytest.LogCaptureFixture
) -> None:
    setup = experiment(MINIMAX)
    culprit = undisturbed(MINIMAX).cohorts[0][0]
    expected = simulated(setup, lost={1: {culprit}})
    assert expected.model != undisturbed(MINIMAX).model
    grid = InProcess(app_of(MINIMAX), range(CLIENTS), answering=spoiled(culprit, 1, with_update(one_nan)))
    found = flower(setup, grid, tmp_path)
    assert found.model == expected.model
    assert found.cohorts == expected.cohorts
    assert_said(heard, f"Client {culprit} .*its 'update' is not finite")


@pytest.mark.parametrize("method", [FEDAVG, SCAFFOLD, MINIMAX], ids=["fedavg", "scaffold", "minimax"])
def test_losses_that_the_experiment_simulates_are_those_of_the_simulator(method: Method, tmp_path: Path) -> None:
    more = ("population.participation={name='bernoulli',act_prob=0.8,reply_prob=0.6}",)
    setup = experiment(method, *more)
    simulation = setup.simulation
    state, expected = simulation.start(), []
    for _ in range(ROUNDS):
        state, report, _ = simulation.step(state)
        expected.append((list(report.cohort), sorted(report.lost)))
    assert any(lost for _, lost in expected)
    found = flower(setup, InProcess(app_of(method, *more), range(CLIENTS)), tmp_path)
    assert list(zip(found.cohorts, found.lost, strict=True)) == expected
    assert found.model == bits(setup, state)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda message, answer: None,
        failing("ValueError: oh"),
        with_metric("train_loss", float("nan")),
        with_metric("train_loss", None),
        without_record("metrics"),
    ],
    ids=["silent", "fails", "NaN", "no loss", "no metrics"],
)
def test_a_client_that_does_not_tell_its_loss_is_chosen_by_what_was_known_of_it(spoil: Any, tmp_path: Path) -> None:
    setup = experiment(("method.selection=power_of_choice",))

    def answering(client: int, message: Message, answer: Callable[[], Message]) -> Any:
        probed = message.metadata.message_type == "query.loss" and client == 2
        return spoil(message, answer) if probed else answer()

    grid = InProcess(app_of(("method.selection=power_of_choice",)), range(CLIENTS), answering=answering)
    found = flower(setup, grid, tmp_path)
    assert "query.loss" in {kind for _, kind in grid.sent}
    assert found.lost == [[]] * ROUNDS
    assert all(len(cohort) == 3 for cohort in found.cohorts)


NAMES_OF_WRONG_SCORES = ["silent", "fails", "NaN", "above 1", "below 0", "no size", "endless", "no loss", "no metrics"]
NAMES_OF_WRONG_SCORES += ["another model", "no model"]


def of_another_exam(model: str) -> Callable[[Message, Callable[[], Message]], Message]:
    def spoil(message: Message, answer: Callable[[], Message]) -> Message:
        reply = answer()
        reply.metadata.__dict__["_group_id"] = model
        return reply

    return spoil


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda message, answer: None, ""),
        (failing("ValueError: oh"), "did not evaluate: it failed: ValueError: oh"),
        (with_metric("eval_loss", float("nan")), "did not evaluate: its 'eval_loss' is not finite"),
        (with_metric("eval_acc", 1.5), "did not evaluate: its 'eval_acc' must be at most 1; got 1.5"),
        (with_metric("eval_acc", -0.5), "did not evaluate: its 'eval_acc' must be at least 0; got -0.5"),
        (with_metric("num-examples", None), "did not evaluate: it sent no number 'num-examples'"),
        (with_metric("num-examples", 1e300), "did not evaluate: its 'num-examples'"),
        (with_metric("train_loss", None), "did not evaluate: it sent no number 'train_loss'"),
        (without_record("metrics"), "did not evaluate: it sent no 'metrics'"),
        (of_another_exam("7"), ""),
        (of_another_exam("x"), ""),
    ],
    ids=NAMES_OF_WRONG_SCORES,
)
@pytest.mark.parametrize("client", [0, 3], ids=["unseen", "participant"])
def test_a_client_that_evaluates_wrongly_is_left_out_of_the_scores_only(
    spoil: Any, reason: str, client: int, tmp_path: Path, heard: pytest.LogCaptureFixture
) -> None:
    def answering(asked: int, message: Message, answer: Callable[[], Message]) -> Any:
        return spoil(message, answer) if (asked, message.metadata.message_type) == (client, "evaluate") else answer()

    grid = InProcess(app_of(FEDAVG), range(CLIENTS), answering=answering)
    assert set(experiment(FEDAVG).data.population.unseen.tolist()) == {0, 1}
    assert flower(experiment(FEDAVG), grid, tmp_path) == undisturbed(FEDAVG)
    last = rows(tmp_path)[-1]
    assert 0 < last["id_accuracy"] <= 1
    assert 0 < last["unseen_accuracy"] <= 1
    scored = [line["ids"] for line in rows(tmp_path, "clients.jsonl") if line["round"] == ROUNDS]
    assert {other for ids in scored for other in ids} == set(range(CLIENTS)) - {client}
    if reason:
        assert_said(heard, f"Client {client} {reason}")


def test_scores_that_nobody_asked_for_are_not_counted(tmp_path: Path) -> None:
    def answering(asked: int, message: Message, answer: Callable[[], Message]) -> Any:
        if (asked, message.metadata.message_type) != (3, "evaluate"):
            return answer()
        reply, other = answer(), with_metric("eval_acc", 1.0)(message, answer)
        other.metadata.__dict__["_src_node_id"] = 77
        return [reply, other]

    grid = InProcess(app_of(FEDAVG), range(CLIENTS), answering=answering)
    flower(experiment(FEDAVG), grid, tmp_path / "a")
    flower(experiment(FEDAVG), InProcess(app_of(FEDAVG), range(CLIENTS)), tmp_path / "b")
    for name in ("rounds.jsonl", "clients.jsonl"):
        assert rows(tmp_path / "a", name) == rows(tmp_path / "b", name)


# ------------------------------------------------------------------------------------- who may take part, and who not


@pytest.mark.parametrize(
    ("method", "other", "reason"),
    [
        (FEDAVG, ("method.solver={name='fedprox',mu=0.5}",), "its solver is FedProx"),
        (SCAFFOLD, FEDAVG, r"its solver is FedAvg\(\), not Scaffold"),
        (FEDAVG, ("model=mlp",), "its model is"),
        (FEDAVG, ("local.rate=0.7",), "its local is LocalSGD"),
        (FEDAVG, ("seeds=[5]",), "its seed is 5, not 0"),
        (("method.weighting=disagreement",), FEDAVG, "its measurements is|its measurements are"),
    ],
    ids=["solver", "memory", "model", "rate", "seed", "measurements"],
)
def test_a_client_of_another_federation_is_refused_by_name(
    method: Method, other: Method, reason: str, tmp_path: Path, heard: pytest.LogCaptureFixture
) -> None:
    culprit = culprit_of(method)
    # Told as the same partition: only what the clients are asked to do differs.
    apps = dict.fromkeys(range(CLIENTS), app_of(method)) | {culprit: app_of(other)}
    grid = InProcess(apps, range(CLIENTS))
    found = flower(experiment(method), grid, tmp_path)
    always = {number: {culprit} for number in range(1, ROUNDS + 1)}
    assert found == simulated(experiment(method), offline=always)
    assert_said(heard, rf"Node {grid.node_of[culprit]} does not take part: {reason}")
    assert (culprit, "train") not in grid.sent


def test_a_node_without_a_partition_id_does_not_take_part(tmp_path: Path, heard: pytest.LogCaptureFixture) -> None:
    culprit = culprit_of(FEDAVG)
    grid = InProcess(app_of(FEDAVG), range(CLIENTS))
    del grid.contexts[culprit].node_config["partition-id"]
    found = flower(experiment(FEDAVG), grid, tmp_path)
    always = {number: {culprit} for number in range(1, ROUNDS + 1)}
    assert found == simulated(experiment(FEDAVG), offline=always)
    said = rf"Node {grid.node_of[culprit]} does not take part: it failed: .*must hold 'partition-id'.*Start +the"
    assert_said(heard, said)


def test_of_two_nodes_with_one_partition_id_one_takes_part(tmp_path: Path, heard: pytest.LogCaptureFixture) -> None:
    grid = InProcess(app_of(FEDAVG), range(CLIENTS + 1))
    grid.contexts[CLIENTS].node_config["partition-id"] = 3
    assert flower(experiment(FEDAVG), grid, tmp_path) == undisturbed(FEDAVG)
    assert_said(heard, r"Node \d+ says it is client 3, and so does node \d+, which is online")
    assert {client for client, kind in grid.sent if kind == "train"} <= set(range(CLIENTS))


def test_a_partition_id_that_the_data_does_not_have_is_refused(tmp_path: Path, heard: pytest.LogCaptureFixture) -> None:
    grid = InProcess(app_of(FEDAVG), range(CLIENTS + 1))
    assert flower(experiment(FEDAVG), grid, tmp_path) == undisturbed(FEDAVG)
    assert_said(heard, r"does not take part: it failed: .*There are clients 0 to 5 in the data; got client 6")


def introducing(client: int, name: str, value: Any) -> Any:
    def answering(asked: int, message: Message, answer: Callable[[], Message]) -> Any:
        wrong = (asked, message.metadata.message_type) == (client, "query")
        return with_metric(name, value)(message, answer) if wrong else answer()

    return answering


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("client", -1),
        ("client", 2.5),
        ("client", None),
        ("client", 1e300),
        ("client", 3_000_000),
        ("num-examples", -1),
        ("num-examples", float("nan")),
        ("num-examples", 1e300),
        ("bits-per-example", 1e300),
    ],
)
def test_a_client_that_introduces_itself_wrongly_is_refused(
    name: str, value: Any, tmp_path: Path, heard: pytest.LogCaptureFixture
) -> None:
    culprit = culprit_of(FEDAVG)
    grid = InProcess(app_of(FEDAVG), range(CLIENTS), answering=introducing(culprit, name, value))
    found = flower(experiment(FEDAVG), grid, tmp_path)
    always = {number: {culprit} for number in range(1, ROUNDS + 1)}
    assert found == simulated(experiment(FEDAVG), offline=always)
    assert (culprit, "train") not in grid.sent
    assert_said(heard, f"Node {grid.node_of[culprit]} does not take part: .*({name}|partition-id)")


def test_a_node_that_does_not_say_who_it_is_is_asked_again(tmp_path: Path) -> None:
    silent = {"times": 0}
    culprit = culprit_of(FEDAVG)

    def answering(asked: int, message: Message, answer: Callable[[], Message]) -> Any:
        if (asked, message.metadata.message_type) == (culprit, "query") and silent["times"] < 2:
            silent["times"] += 1
            return None
        return answer()

    grid = InProcess(app_of(FEDAVG), range(CLIENTS), answering=answering)
    found = flower(experiment(FEDAVG), grid, tmp_path, timeout=0.3, patience=0.2)
    assert silent["times"] >= 1
    late = [{number: {culprit} for number in range(1, first)} for first in range(1, ROUNDS + 2)]  # it joins in `first`
    assert found in [simulated(experiment(FEDAVG), offline=offline) for offline in late]


def test_a_node_that_fails_at_first_is_asked_again(
    tmp_path: Path, heard: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedreach.flower.clients.AGAIN_SECONDS", 0.0)
    culprit, failed = culprit_of(SCAFFOLD), list[int]()

    def answering(asked: int, message: Message, answer: Callable[[], Message]) -> Message:
        if (asked, message.metadata.message_type) == (culprit, "query") and not failed:
            failed.append(asked)
            return failing("OSError: the disk is not there yet")(message, answer)
        return answer()

    grid = InProcess(app_of(SCAFFOLD), range(CLIENTS), answering=answering)
    assert flower(experiment(SCAFFOLD), grid, tmp_path, patience=5.0) == undisturbed(SCAFFOLD)
    assert_said(heard, f"Node {grid.node_of[culprit]} does not take part: it failed: OSError: the disk is not there")


@pytest.mark.parametrize("client", [0, 3], ids=["unseen", "participant"])
def test_a_client_that_withholds_its_labels_never_trains_where_they_are_needed(
    client: int, tmp_path: Path, heard: pytest.LogCaptureFixture
) -> None:
    setup = experiment(MINIMAX)
    apps = dict.fromkeys(range(CLIENTS), app_of(MINIMAX)) | {client: withholding(setup)}
    grid = InProcess(apps, range(CLIENTS))
    found = flower(setup, grid, tmp_path)
    if client == 0:  # labels of clients that never train are not asked for
        assert (0, "query.labels") not in grid.sent
        assert found == undisturbed(MINIMAX)
        return
    assert found == simulated(setup, without=client)
    assert (client, "train") not in grid.sent
    assert (client, "evaluate") in grid.sent
    assert_said(heard, f"Client {client} .*this client does not tell anything of its labels")


def withholding(setup: FlowerExperiment) -> ClientApp:
    federation = setup.simulation.federation
    return client_app(federation, "linear", lambda context: setup.data, share_label_statistics=False)


def test_a_kl_filter_does_without_a_client_that_withholds_its_labels(tmp_path: Path) -> None:
    method = ("method.selection=kl_filter",)
    setup = experiment(method)
    grid = InProcess(dict.fromkeys(range(CLIENTS), app_of(method)) | {4: withholding(setup)}, range(CLIENTS))
    assert flower(setup, grid, tmp_path) == simulated(setup, without=4)


def test_if_too_few_tell_their_labels_the_run_does_not_begin(tmp_path: Path) -> None:
    setup = experiment(MINIMAX)
    grid = InProcess(withholding(setup), range(CLIENTS))
    with pytest.raises(ConfigError, match=r"0 clients tell .*client 2: it failed: .*lower min_clients"):
        flower(setup, grid, tmp_path)
    assert "train" not in {kind for _, kind in grid.sent}


@pytest.mark.parametrize(
    "values",
    [[1.0, -1.0] * 5, [float("nan")] * 10, [1.0] * 3, [[1.0] * 10]],
    ids=["negative", "NaN", "three classes", "a matrix"],
)
def test_labels_told_wrongly_count_as_withheld(
    values: list[Any], tmp_path: Path, heard: pytest.LogCaptureFixture
) -> None:
    method = ("method.selection=kl_filter",)

    def answering(asked: int, message: Message, answer: Callable[[], Message]) -> Message:
        reply = answer()
        if (asked, message.metadata.message_type) == (2, "query.labels"):  # the first that is read
            reply.content["labels"] = ArrayRecord({"label_counts": Array(np.array(values))})
        return reply

    grid = InProcess(app_of(method), range(CLIENTS), answering=answering)
    assert flower(experiment(method), grid, tmp_path) == simulated(experiment(method), without=2)
    assert_said(heard, "Client 2 .*its label_counts|Client 2 .*its 'label_counts'")


# ------------------------------------------------------------------------------------------------ coming and going


def at_round(round_: int, do: Callable[[], object]) -> Any:
    """An `Answering` that does something once, as soon as the first message of a round's training arrives."""
    done: list[object] = []

    def answering(client: int, message: Message, answer: Callable[[], Message]) -> Message:
        if message.metadata.message_type == "train" and number(message) == round_ and not done:
            done.append(do())
        return answer()

    return answering


@pytest.mark.parametrize("method", [FEDAVG, SCAFFOLD], ids=["fedavg", "scaffold"])
def test_a_named_client_that_joins_late_trains_from_then_on(method: Method, tmp_path: Path) -> None:
    late = culprit_of(method)

    def everybody_comes() -> None:
        grid.absent.clear()

    grid = InProcess(app_of(method), range(CLIENTS), answering=at_round(2, everybody_comes))
    grid.absent.add(late)
    found = flower(experiment(method), grid, tmp_path)
    assert found == simulated(experiment(method), offline={1: {late}, 2: {late}})
    assert any(late in cohort for cohort in found.cohorts)


def test_a_client_that_nobody_named_and_that_joins_late_is_evaluated_only(tmp_path: Path) -> None:
    setup = FlowerExperiment(overrides=SMALL)

    def everybody_comes() -> None:
        grid.absent.clear()

    grid = InProcess(app_of(FEDAVG), range(CLIENTS), answering=at_round(2, everybody_comes))
    grid.absent.add(5)
    made = setup.simulation
    FedReachStrategy(
        made.federation, made.engine.task.module, rounds=ROUNDS, folder=tmp_path, min_clients=5, timeout=TIMEOUT
    ).run(grid)
    found = outcome_of(tmp_path)
    assert (5, "train") not in grid.sent
    assert (5, "evaluate") in grid.sent
    assert json.loads((tmp_path / "facts.json").read_text())["participants"] == [0, 1, 2, 3, 4]
    everybody = Population(np.arange(5), np.array([5]))
    data = replace(setup.data, population=everybody)
    simulation = Simulation(made.federation, data, made.engine, ROUNDS)
    state = simulation.start()
    for _ in range(ROUNDS):
        state, _, _ = simulation.step(state)
    assert found.model == bits(setup, state)


@pytest.mark.parametrize("method", [FEDAVG, SCAFFOLD, FEDDYN, MINIMAX], ids=["fedavg", "scaffold", "feddyn", "minimax"])
def test_a_round_in_which_everybody_is_offline_changes_nothing(method: Method, tmp_path: Path) -> None:
    rounds = 3
    more = (f"rounds={rounds}", "evaluation.every=1")
    setup = experiment(method, *more)
    asked = {"times": 0}

    class Nightly(InProcess):
        def get_node_ids(self) -> list[int]:
            # Asked twice a round, before it and before its evaluation, and at least once as the run begins.
            asked["times"] += 1
            begun = sum(kind == "evaluate" for _, kind in self.sent) // CLIENTS  # evaluations that are over
            return [] if begun == 2 and not self.rested() else list(super().get_node_ids())

        def rested(self) -> bool:
            return (tmp_path / "rounds.jsonl").read_bytes().count(b"\n") > 2

    found = flower(setup, Nightly(app_of(method, *more), range(CLIENTS)), tmp_path)
    everybody = set(range(CLIENTS))
    assert found == simulated(setup, offline={2: everybody})
    assert found.cohorts[1] == []
    assert "id_accuracy" not in rows(tmp_path)[2]
    assert "id_accuracy" in rows(tmp_path)[3]


@pytest.mark.parametrize("method", [FEDAVG, SCAFFOLD, FEDDYN, MINIMAX], ids=["fedavg", "scaffold", "feddyn", "minimax"])
def test_nodes_that_restart_between_rounds_get_their_memory_back(method: Method, tmp_path: Path) -> None:
    setup = experiment(method, "evaluation.every=1")

    def answering(client: int, message: Message, answer: Callable[[], Message]) -> Message:
        reply = answer()
        if message.metadata.message_type == "evaluate" and client % 2:
            grid.restart(client)  # it replied, and starts anew before the next round
        return reply

    grid = InProcess(app_of(method, "evaluation.every=1"), range(CLIENTS), answering=answering)
    before = dict(grid.node_of)
    assert flower(setup, grid, tmp_path) == undisturbed(method)
    changed = {client for client, node in grid.node_of.items() if node != before[client]}
    assert changed == {1, 3, 5}


@pytest.mark.parametrize("method", [FEDAVG, SCAFFOLD, FEDDYN], ids=["fedavg", "scaffold", "feddyn"])
def test_a_node_that_restarts_while_it_trains_is_lost_for_that_round_only(method: Method, tmp_path: Path) -> None:
    culprit = culprit_of(method)

    def die(message: Message, answer: Callable[[], Message]) -> None:
        answer()
        grid.restart(culprit)

    grid = InProcess(app_of(method), range(CLIENTS), answering=spoiled(culprit, 2, die))
    assert flower(experiment(method), grid, tmp_path) == without_reply(method)


@pytest.mark.parametrize("method", [FEDAVG, SCAFFOLD], ids=["fedavg", "scaffold"])
def test_a_node_that_restarts_takes_its_place_again_once_the_link_misses_the_old_one(
    method: Method, tmp_path: Path
) -> None:
    """Flower counts a dead node as online for about a minute: until then two nodes claim to be the client."""
    culprit, old = culprit_of(method), []

    def die(message: Message, answer: Callable[[], Message]) -> None:
        old.append(grid.restart(culprit, seen_as_online=True))

    def answering(asked: int, message: Message, answer: Callable[[], Message]) -> Any:
        if message.metadata.message_type == "train" and number(message) == 3 and old:
            grid.forget(old[0])  # missed during round 3
        return spoiled(culprit, 2, die)(asked, message, answer)

    grid = InProcess(app_of(method), range(CLIENTS), answering=answering)
    found = flower(experiment(method), grid, tmp_path)
    third = {3: {culprit}}
    expected = [
        simulated(experiment(method), lost={2: {culprit}} | third),  # asked in round 3 at its old node
        simulated(experiment(method), lost={2: {culprit}}, offline=third),
        simulated(experiment(method), lost={2: {culprit}}),  # the new node was taken at once
    ]
    assert found in expected
    assert culprit in undisturbed(method).cohorts[3]
    assert culprit in found.cohorts[3]


def test_too_few_clients_end_the_run_before_it_begins(tmp_path: Path) -> None:
    grid = InProcess(app_of(FEDAVG), range(CLIENTS))
    grid.absent |= {2, 3, 4}
    with pytest.raises(
        TrainingError, match=r"1 clients? that may train .*after 0 seconds, and 3 are needed.*Start more SuperNodes"
    ):
        flower(experiment(FEDAVG), grid, tmp_path, min_clients=3, patience=0.3)
    assert not (tmp_path / "rounds.jsonl").exists()
    grid.absent.clear()  # nothing stands in the way of another try
    assert flower(experiment(FEDAVG), grid, tmp_path, min_clients=3) == undisturbed(FEDAVG)


def test_too_few_clients_are_answered_with_the_reasons_of_those_that_were_refused(tmp_path: Path) -> None:
    grid = InProcess(app_of(SCAFFOLD), range(CLIENTS))
    with pytest.raises(TrainingError, match=r"Node \d+ was refused: its solver is Scaffold.*not FedAvg"):
        flower(experiment(FEDAVG), grid, tmp_path)


# ----------------------------------------------------------------------------------------------------- wrong inputs


def strategy_with(folder: Path, **options: Any) -> FedReachStrategy:
    federation = options.pop("federation", tiny_federation())
    return FedReachStrategy(federation, nn.Linear(2, 2), **{"rounds": 2, "folder": folder, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, r"FedReachStrategy.rounds must be .*got 0\."),
        ({"rounds": -1}, r"FedReachStrategy.rounds must be .*got -1\."),
        ({"min_clients": 0}, r"FedReachStrategy.min_clients must be .*got 0\."),
        ({"evaluate_every": 0}, r"FedReachStrategy.evaluate_every must be .*got 0\."),
        ({"timeout": 0}, r"FedReachStrategy.timeout must be .*got 0\."),
        ({"timeout": float("nan")}, r"FedReachStrategy.timeout must be .*got nan\."),
        ({"population": Population(np.empty(0, np.int64), np.arange(3))}, "must have a participant|min_clients"),
        (
            {"population": Population(np.arange(2), np.empty(0, np.int64)), "min_clients": 3},
            r"min_clients must be at most the 2 participants .*got 3\.",
        ),
        ({"federation": replace(tiny_federation(), server=Safari())}, r"Safari trains on data .*Pass engine="),
    ],
)
def test_a_strategy_that_cannot_run_is_refused_with_a_remedy(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        strategy_with(tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


X, Y = np.zeros((5, 2), np.float32), np.array([0, 1, 0, 1, 1])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (ClientData((X, Y[:4]), num_classes=2), "5.*4|4.*5"),
        (ClientData((X, Y + 5), num_classes=2), "must be 0 to 1; got 6"),
        (ClientData((X, Y - 1), num_classes=2), "must be 0 to 1; got -1"),
        (
            ClientData((X, Y), (np.zeros((2, 3), np.float32), [0, 1]), num_classes=2),
            r"held_out must have .*\(2,\).*\(3,\)",
        ),
        (ClientData((np.full((5, 2), np.nan, np.float32), Y), num_classes=2), "finite|NaN|nan"),
    ],
    ids=["lengths", "labels too large", "negative labels", "shapes", "NaN"],
)
def test_data_of_a_client_that_cannot_be_used_are_refused(data: ClientData, message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        data.federated(0)


def test_a_server_engine_without_data_is_refused() -> None:
    with pytest.raises(DataError, match="needs a test set, data of the server's own, or both; got neither"):
        server_engine(tiny_federation(), nn.Linear(2, 2), num_classes=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "lineer"}, "Did you mean 'linear'"),
        ({"engine": "sequentiel"}, "sequential"),
        ({"model": 3}, "callable"),
    ],
)
def test_a_client_app_that_cannot_train_says_so_to_the_server(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"model": "linear", **options}

    def run() -> None:
        own = ClientData((X, Y), num_classes=2)
        app = client_app(tiny_federation(), given.pop("model"), lambda context: own, **given)
        strategy_with(tmp_path, patience=0.1, timeout=TIMEOUT).run(InProcess(app, range(2)))

    with pytest.raises((ConfigError, TrainingError), match=message):
        run()


def test_what_the_data_function_raises_is_told_to_the_server(tmp_path: Path) -> None:
    def load(context: Any) -> ClientData:
        raise FileNotFoundError("no scans in this hospital")

    grid = InProcess(client_app(tiny_federation(), "linear", load), range(2))
    with pytest.raises(TrainingError, match=r"Node 1000 was refused: it failed: .*no scans in this hospital"):
        strategy_with(tmp_path, patience=0.1, timeout=TIMEOUT).run(grid)


def app_of_its_own() -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Any) -> Message:
        arrays = message.content.array_records["arrays"]
        metrics = MetricRecord({"train_loss": 1.0, "num-examples": 5})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Any) -> Message:
        metrics = MetricRecord({"eval_loss": 1.0, "eval_acc": 0.5, "num-examples": 5})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (lambda context: [0, 1, 2], "num_classes|class|label"),
        (lambda context: [0, -1], "negative|class|label"),
        (lambda context: [0.5, 1.0], "whole|class|label"),
        (lambda context: [[0, 1]], "1-D|1d|shape|one|label"),
        (lambda context: None, "label|None"),
    ],
    ids=["too many classes", "negative", "fractions", "a matrix", "nothing"],
)
def test_labels_that_cannot_be_counted_are_told_to_the_server(labels: Any, message: str, tmp_path: Path) -> None:
    app = app_of_its_own()
    share_labels(app, labels, num_classes=2)
    federation = experiment(MINIMAX).simulation.federation
    with pytest.raises((ConfigError, TrainingError), match=rf"it failed: .*({message})"):
        strategy_with(tmp_path, federation=federation, patience=0.1, timeout=TIMEOUT).run(InProcess(app, range(5)))


def test_an_app_that_trains_by_itself_is_refused_where_clients_keep_something(tmp_path: Path) -> None:
    app = app_of_its_own()
    share_labels(app, lambda context: Y, num_classes=2)
    federation = experiment(SCAFFOLD).simulation.federation
    with pytest.raises(TrainingError, match=r"it trains by itself, and .* need fedreach.flower.client_app"):
        strategy_with(tmp_path, federation=federation, patience=0.1, timeout=TIMEOUT).run(InProcess(app, range(5)))


def test_an_app_that_told_nothing_is_refused_and_told_what_to_add(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"Node 1000 was refused: it failed: .*query"):
        strategy_with(tmp_path, patience=0.1, timeout=TIMEOUT).run(InProcess(app_of_its_own(), range(3)))


def test_a_model_of_another_shape_cannot_be_sent(tmp_path: Path) -> None:
    app = app_of_its_own()
    share_labels(app, lambda context: Y, num_classes=2)
    strategy = strategy_with(tmp_path, timeout=TIMEOUT)
    other = ArrayRecord(build("linear", (3,), 2, seed=0).state_dict())
    with pytest.raises(ConfigError, match="model"):
        strategy.start(InProcess(app, range(3)), other, num_rounds=2)
