"""Wrong answers to probes and evaluations cost no more than these answers: the model is that of the simulator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Message

from ..conftest import rows  # noqa: TID252
from .faulty import (
    CLIENTS,
    FEDAVG,
    MINIMAX,
    ROUNDS,
    SCAFFOLD,
    Method,
    app_of,
    assert_said,
    bits,
    experiment,
    failing,
    flower,
    one_nan,
    simulated,
    spoiled,
    undisturbed,
    with_metric,
    with_update,
    without_record,
)
from .in_process import InProcess


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
@pytest.mark.sampled(3)
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


NAMES_OF_WRONG_SCORES = ["silent", "fails", "NaN", "no size", "endless", "no loss", "no metrics"]
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
@pytest.mark.sampled(5)
def test_a_client_that_evaluates_wrongly_is_left_out_of_the_scores_only(
    spoil: Any, reason: str, client: int, tmp_path: Path, heard: pytest.LogCaptureFixture
) -> None:
    def answering(asked: int, message: Message, answer: Callable[[], Message]) -> Any:
        return spoil(message, answer) if (asked, message.metadata.message_type) == (client, "evaluate") else answer()

    grid = InProcess(app_of(FEDAVG), range(CLIENTS), answering=answering)
    assert set(experiment(FEDAVG).data.population.unseen.tolist()) == {0, 1}
    assert flower(experiment(FEDAVG), grid, tmp_path) == undisturbed(FEDAVG)
    last = rows(tmp_path)[-1]
    assert 0 < last["participant_accuracy"] <= 1
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
