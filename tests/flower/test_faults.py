"""Whatever a client does wrong, the run ends as if that client had not replied: bit for bit, and it is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Error, Message

from fedreach._util.errors import TrainingError
from fedreach.engines.models.networks import build
from fedreach.flower.experiment import FlowerExperiment
from fedreach.flower.strategy import FedReachStrategy

from .faulty import (
    CLIENTS,
    FEDAVG,
    FEDDYN,
    SCAFFOLD,
    SMALL,
    TIMEOUT,
    Method,
    app_of,
    assert_said,
    culprit_of,
    experiment,
    failing,
    flower,
    one_nan,
    outcome_of,
    spoiled,
    undisturbed,
    with_metric,
    with_update,
    without_record,
    without_reply,
)
from .in_process import InProcess


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


def with_empty_arrays(message: Message, answer: Callable[[], Message]) -> Message:
    reply = answer()
    reply.content["update"] = ArrayRecord()
    return reply


def with_junk(message: Message, answer: Callable[[], Message]) -> Message:
    reply = answer()
    good = reply.content.array_records["update"]["update"]
    reply.content["update"] = ArrayRecord({"update": Array(good.dtype, good.shape, good.stype, b"not an array")})
    return reply


def raising(message: Message, answer: Callable[[], Message]) -> Message:
    message.content.array_records["arrays"].clear()  # so that the app itself raises
    return answer()


def one_huge_number(update: np.ndarray) -> np.ndarray:
    update[3] = 1e20
    return update


FAULTS: dict[str, tuple[Callable[[Message, Callable[[], Message]], Any], str]] = {
    "one NaN": (with_update(one_nan), "its 'update' is not finite"),
    "all infinite": (with_update(lambda u: u + np.float32(np.inf)), "its 'update' is not finite"),
    "finite, but 3e38": (
        with_update(lambda u: u * 0 + np.float32(3e38)),
        r"'update' contains numbers up to 3e\+38",
    ),
    "once 1e20": (
        with_update(one_huge_number),
        r"its update contains numbers up to 1e\+20, which would erase the model",
    ),
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
        r"its 'num-examples' must be \d+, as at the start of the run; got 99999",
    ),
    "no examples": (
        with_metric("num-examples", 0),
        r"its 'num-examples' must be \d+, as at the start of the run; got 0",
    ),
    "half an example": (with_metric("num-examples", 1.5), "its 'num-examples' must be a whole number"),
    "an exception": (raising, "it failed: .*Error"),
    "an error without words": (failing("  \n "), "it failed: "),
    "an error of many lines": (failing("Traceback:\n  a\n\nValueError: oh"), "it failed: ValueError: oh"),
    "no reply": (lambda message, answer: None, "no reply within 0.4 s"),
    "trained, and no reply": (lambda message, answer: answer() and None, "no reply within 0.4 s"),
}
MEMORY_FAULTS: dict[str, tuple[Callable[[Message, Callable[[], Message]], Any], str]] = {
    "forgets again and again": (with_metric("lacks-memory-of-round", 1), "it lost its state between rounds"),
}


@pytest.mark.parametrize("method", [FEDAVG, SCAFFOLD], ids=["fedavg", "scaffold"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.sampled(5)
def test_a_wrong_reply_counts_like_none_and_is_named(
    method: Method, fault: str, tmp_path: Path, heard: pytest.LogCaptureFixture
) -> None:
    refuse(method, *FAULTS[fault], tmp_path, heard)


@pytest.mark.parametrize("method", [SCAFFOLD, FEDDYN], ids=["scaffold", "feddyn"])
@pytest.mark.parametrize("fault", MEMORY_FAULTS)
@pytest.mark.sampled(3)
def test_a_client_that_forgets_again_and_again_counts_like_none(
    method: Method, fault: str, tmp_path: Path, heard: pytest.LogCaptureFixture
) -> None:
    refuse(method, *MEMORY_FAULTS[fault], tmp_path, heard)


def refuse(method: Method, spoil: Any, reason: str, folder: Path, heard: pytest.LogCaptureFixture) -> None:
    setup, culprit = experiment(method), culprit_of(method)
    grid = InProcess(app_of(method), range(CLIENTS), answering=spoiled(culprit, 2, spoil))
    found = flower(setup, grid, folder)
    assert found == without_reply(method)
    assert found.lost == [[], [culprit], [], []]
    assert_said(heard, rf"Client {culprit} does not count in round 2: .*({reason})")


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
    assert_said(heard, f"Node {grid.node_of[bystander]}: an unexpected reply")
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
    assert_said(heard, f"Node {grid.node_of[culprit_of(method)]}: an unexpected reply")


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
    def answering(client: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        return None if message.metadata.message_type == "train" else answer()

    with pytest.raises(TrainingError, match=r"No client's update counted in any of the 4 rounds: all 12 were lost"):
        flower(experiment(FEDAVG), InProcess(app_of(FEDAVG), range(CLIENTS), answering=answering), tmp_path)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["status"] == "failed"
    assert "No client's update counted" in result["error"]
