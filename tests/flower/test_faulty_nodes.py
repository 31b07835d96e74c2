"""Who is not who it should be, or does not tell what it must, does not train: it is named, and the run goes on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedreach._util.errors import ConfigError, TrainingError
from fedreach.flower.app import client_app
from fedreach.flower.experiment import FlowerExperiment
from fedreach.flower.messages import LostError, content_of

from .conftest import SkippingClock
from .faulty import (
    CLIENTS,
    FEDAVG,
    MINIMAX,
    ROUNDS,
    SCAFFOLD,
    Method,
    app_of,
    assert_said,
    culprit_of,
    experiment,
    failing,
    flower,
    simulated,
    undisturbed,
    with_metric,
)
from .in_process import InProcess

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("method", "other", "reason"),
    [
        (FEDAVG, ("method.solver={name='fedprox',mu=0.5}",), "its solver is FedProx"),
        (SCAFFOLD, FEDAVG, r"its solver is FedAvg\(\), not Scaffold"),
        (FEDAVG, ("model=mlp",), "its model is"),
        (FEDAVG, ("local.lr=0.7",), "its local is LocalSGD"),
        (FEDAVG, ("seeds=[5]",), "its seed is 5, not 0"),
        (("method.weighting=disagreement",), FEDAVG, "its measurements is|its measurements are"),
    ],
    ids=["solver", "memory", "model", "lr", "seed", "measurements"],
)
@pytest.mark.sampled(3)
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
    assert_said(heard, rf"Node {grid.node_of[culprit]} does not participate: {reason}")
    assert (culprit, "train") not in grid.sent


def test_a_node_without_a_partition_id_does_not_take_part(tmp_path: Path, heard: pytest.LogCaptureFixture) -> None:
    culprit = culprit_of(FEDAVG)
    grid = InProcess(app_of(FEDAVG), range(CLIENTS))
    del grid.contexts[culprit].node_config["partition-id"]
    found = flower(experiment(FEDAVG), grid, tmp_path)
    always = {number: {culprit} for number in range(1, ROUNDS + 1)}
    assert found == simulated(experiment(FEDAVG), offline=always)
    said = rf"Node {grid.node_of[culprit]} does not participate: it failed: .*must contain 'partition-id'.*Start +the"
    assert_said(heard, said)


def test_of_two_nodes_with_one_partition_id_one_takes_part(tmp_path: Path, heard: pytest.LogCaptureFixture) -> None:
    grid = InProcess(app_of(FEDAVG), range(CLIENTS + 1))
    grid.contexts[CLIENTS].node_config["partition-id"] = 3
    assert flower(experiment(FEDAVG), grid, tmp_path) == undisturbed(FEDAVG)
    assert_said(heard, r"Node \d+ does not participate: it reports to be client 3, but node \d+, which is online")
    assert {client for client, kind in grid.sent if kind == "train"} <= set(range(CLIENTS))


def test_a_partition_id_that_the_data_does_not_have_is_refused(tmp_path: Path, heard: pytest.LogCaptureFixture) -> None:
    grid = InProcess(app_of(FEDAVG), range(CLIENTS + 1))
    assert flower(experiment(FEDAVG), grid, tmp_path) == undisturbed(FEDAVG)
    assert_said(heard, r"does not participate: it failed: .*client must be from 0 to 5; got 6")


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
@pytest.mark.sampled(3)
def test_a_client_that_introduces_itself_wrongly_is_refused(
    name: str, value: Any, tmp_path: Path, heard: pytest.LogCaptureFixture
) -> None:
    culprit = culprit_of(FEDAVG)
    grid = InProcess(app_of(FEDAVG), range(CLIENTS), answering=introducing(culprit, name, value))
    found = flower(experiment(FEDAVG), grid, tmp_path)
    always = {number: {culprit} for number in range(1, ROUNDS + 1)}
    assert found == simulated(experiment(FEDAVG), offline=always)
    assert (culprit, "train") not in grid.sent
    assert_said(heard, f"Node {grid.node_of[culprit]} does not participate: .*({name}|partition-id)")


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
    assert_said(heard, f"Node {grid.node_of[culprit]} does not participate: it failed: OSError: the disk is not there")


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
    assert_said(heard, f"Client {client} .*this client does not report its labels")


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
    with pytest.raises(ConfigError, match=r"must be at least 1; got 0 .*client 2: it failed: .*lower min_clients"):
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


def test_the_cause_is_told_at_once_where_all_clients_fail_before_they_say_who_they_are(
    tmp_path: Path, clock: SkippingClock
) -> None:
    def answering(client: int, message: Message, answer: Callable[[], Message]) -> Message:
        return failing("Traceback\nImportError: no numbers")(message, answer)

    setup, began = experiment(FEDAVG), clock.monotonic()
    grid = InProcess(app_of(FEDAVG), range(CLIENTS), answering=answering)
    with pytest.raises(
        TrainingError, match=r"All 6 nodes fail. Node \d+ was rejected: .*ImportError: no numbers \(and 5 more"
    ):
        flower(setup, grid, tmp_path, patience=60.0)
    assert clock.monotonic() - began < 30


def test_the_cause_is_told_at_once_where_all_clients_fail_to_train(tmp_path: Path) -> None:
    def answering(client: int, message: Message, answer: Callable[[], Message]) -> Message:
        if message.metadata.message_type == "train":
            return failing("Traceback\nValueError: a loss of mine")(message, answer)
        return answer()

    grid = InProcess(app_of(FEDAVG), range(CLIENTS), answering=answering)
    with pytest.raises(
        TrainingError, match=r"clients of round 1 failed\. The error of client \d is: ValueError: a loss of mine"
    ):
        flower(experiment(FEDAVG), grid, tmp_path)
    assert "ValueError: a loss of mine" in (tmp_path / "result.json").read_text()


def test_what_flowers_simulation_wraps_an_error_in_is_not_told(tmp_path: Path) -> None:
    wrapped = "<class 'X'>:<'\nException ClientAppException occurred. Message: it is Tuesday.'>"
    message = Message(RecordDict(), 1, "train")
    message.metadata.__dict__["_message_id"] = "m"
    with pytest.raises(LostError, match=r"^it failed: it is Tuesday$"):
        content_of(Message(Error(code=2, reason=wrapped), reply_to=message))


@pytest.mark.slow
def test_an_app_with_parts_of_a_file_is_made_in_a_process_that_did_not_load_it(tmp_path: Path) -> None:
    """As on Flower's simulation, which copies the app to processes that know nothing of the file."""
    (tmp_path / "own.py").write_text("def by_size(results):\n    return results.metrics['num_examples']\n")
    config = "rounds = 1\ndata = 'digits'\nmodel = 'linear'\nmethod = { weighting = 'own.py:by_size' }\n"
    (tmp_path / "x.toml").write_text(config)
    app = FlowerExperiment(tmp_path / "x.toml").client_app()
    (tmp_path / "app.pkl").write_bytes(cloudpickle.dumps(app))
    program = f"""
import cloudpickle, pathlib
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from in_process import InProcess
from flwr.app import Message, RecordDict
app = cloudpickle.loads(pathlib.Path({str(tmp_path / "app.pkl")!r}).read_bytes())
grid = InProcess(app, range(3))
sent = Message(RecordDict(), grid.node_of[1], "query")
(reply,) = grid.send_and_receive([sent])
print(reply.content.metric_records["metrics"]["client"] if reply.has_content() else reply.error)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "1", done.stderr
