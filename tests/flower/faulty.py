"""What a run on Flower comes to, in the simulator and with clients that do something wrong, for the tests of faults."""

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

pytest.importorskip("flwr")

from flwr.app import Array, Error, Message, MetricRecord
from flwr.clientapp import ClientApp
from safetensors.numpy import load_file

import fedreach as fr
from fedreach.data.splits import Population
from fedreach.federation.state import FederationState
from fedreach.flower.experiment import FlowerExperiment
from fedreach.runs.simulation import Simulation

from ..conftest import rows  # noqa: TID252
from .in_process import InProcess
from .same import SIX_CLIENTS, anew

Clients = Mapping[int, set[int]]  # round -> clients
Method = tuple[str, ...]

FEDAVG: Method = ()
SCAFFOLD: Method = ("method.solver=scaffold",)
FEDDYN: Method = ("method.solver=feddyn",)
DISAGREEMENT: Method = ("method.weighting=disagreement",)
MINIMAX: Method = ("method.selection=minimax", "method.weighting=entropy")  # probes for updates, asks for labels
CLIENTS, ROUNDS, TIMEOUT = 6, 4, 0.4
SMALL = (*SIX_CLIENTS, f"rounds={ROUNDS}", f"evaluation.every={ROUNDS}")


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

    def train(self, params: Any, ids: Any, round_: int, lr: float, terms: Any) -> Any:
        self.ids = [int(client) for client in ids]
        return self._engine.train(params, ids, round_, lr, terms)


class Planned(fr.Participation):
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
    (model,) = state.adapted(setup.simulation.federation)
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
    assert outcome.model != undisturbed(method).model  # or tests that go by it could not fail
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


# ------------------------------------------------------------------------------------------- what clients do wrong


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


def failing(reason: str) -> Callable[[Message, Callable[[], Message]], Message]:
    return lambda message, answer: Message(Error(code=2, reason=reason), reply_to=message)


def assert_said(heard: pytest.LogCaptureFixture, pattern: str) -> None:
    assert heard_lines(heard, pattern), "\n".join(record.getMessage() for record in heard.records)


def heard_lines(heard: pytest.LogCaptureFixture, pattern: str) -> list[str]:
    said = [record.getMessage() for record in heard.records if record.levelno >= logging.WARNING]
    return [line for line in said if re.search(pattern, line, re.DOTALL)]
