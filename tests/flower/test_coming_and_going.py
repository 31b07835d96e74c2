"""Clients that come late, go away or start anew: the run is that of the simulator in which they were away."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Message

from fedreach._util.errors import TrainingError
from fedreach.data.splits import Population
from fedreach.flower.experiment import FlowerExperiment
from fedreach.flower.strategy import FedReachStrategy
from fedreach.runs.simulation import Simulation

from ..conftest import rows  # noqa: TID252
from .faulty import (
    CLIENTS,
    FEDAVG,
    FEDDYN,
    MINIMAX,
    ROUNDS,
    SCAFFOLD,
    SMALL,
    TIMEOUT,
    Method,
    app_of,
    bits,
    culprit_of,
    experiment,
    flower,
    number,
    outcome_of,
    simulated,
    spoiled,
    undisturbed,
    without_reply,
)
from .in_process import InProcess


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
    assert json.loads((tmp_path / "client_statistics.json").read_text())["participants"] == [0, 1, 2, 3, 4]
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
    assert "participant_accuracy" not in rows(tmp_path)[2]
    assert "participant_accuracy" in rows(tmp_path)[3]


@pytest.mark.sampled(2)
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
    method: Method, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower counts a dead node as online for about a minute: until then two nodes claim to be the client."""
    monkeypatch.setattr("fedreach.flower.clients.AGAIN_SECONDS", 0.0)
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
        TrainingError, match=r"clients that may train .* at least 3; got 1 after 0 seconds.*Start more SuperNodes"
    ):
        flower(experiment(FEDAVG), grid, tmp_path, min_clients=3, patience=0.3)
    assert not (tmp_path / "rounds.jsonl").exists()
    grid.absent.clear()  # nothing stands in the way of another try
    assert flower(experiment(FEDAVG), grid, tmp_path, min_clients=3) == undisturbed(FEDAVG)


def test_too_few_clients_are_answered_with_the_reasons_of_those_that_were_refused(tmp_path: Path) -> None:
    grid = InProcess(app_of(SCAFFOLD), range(CLIENTS))
    with pytest.raises(TrainingError, match=r"Node \d+ was rejected: its solver is Scaffold.*not FedAvg"):
        flower(experiment(FEDAVG), grid, tmp_path)
