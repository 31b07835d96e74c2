"""What clients say while an adaptation rule is fitted and used: sums, metrics, and no nonsense that counts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Context, Message, MetricRecord
from flwr.clientapp import ClientApp

from fedreach._util.errors import ComponentError, TrainingError
from fedreach.engines.models.networks import build
from fedreach.evaluation.modes import mode_names
from fedreach.federation.adaptation.methods import BBSE
from fedreach.federation.secure_aggregation import exact_sum
from fedreach.flower.app import client_app, share_labels
from fedreach.flower.local import ClientData
from fedreach.flower.strategy import FedReachStrategy
from fedreach.runs.folder import ADAPTATION_FILE, RunFolder
from fedreach.testing.problems import tiny_federation

from .in_process import InProcess
from .test_adaptation import (
    CLIENTS,
    GUARDED,
    SECURE,
    TEN,
    Spoil,
    adapt,
    adapted_without,
    fail,
    lines_of,
    record_of,
    setup_of,
    with_array,
)

# ------------------------------------------------------------------------------------------------ what leaves a client


def overheard(folder: Path, *overrides: str) -> list[tuple[int, Message, Message]]:
    """Return client, message and reply of all that was said."""
    said = []

    def listen(client: int, message: Message, answer: Callable[[], Message]) -> Message:
        reply = answer()
        said.append((client, message, reply))
        return reply

    adapt(folder, *overrides, answering=listen)
    return said


def test_an_unseen_client_sends_metrics_and_nothing_else(tmp_path: Path) -> None:
    setup = setup_of(GUARDED, "model=mlp")
    unseen, adapted = set(setup.data.population.unseen.tolist()), 0
    base, more = mode_names(setup.simulation.federation.adaptation, [5, 40], online=True)
    scores = [
        f"{mode}_{name}"
        for mode in [*base, *(r for pair in more for r in pair)]
        for name in ("accuracy", "loss", "calibration_error")
    ]
    for client, message, reply in overheard(tmp_path, GUARDED, "model=mlp"):
        kind = message.metadata.message_type
        if client in unseen:
            assert not reply.content.array_records
            assert kind not in ("train", "query.labels", "query.adaptation")
        if kind == "evaluate.adaptation":
            adapted += client in unseen
            assert set(reply.content) == {"metrics", "fedreach"}
            assert set(reply.content["fedreach"]) == {"digest"}
            assert set(reply.content["metrics"]) <= {*scores, "adapted", "repaired"}
            assert set(message.content) == {"arrays", "state", "fedreach"}
            assert "guard_means" in message.content["state"]
        elif client in unseen and kind == "query":
            assert set(reply.content) == {"metrics", "fedreach"}
    models = len(set(record_of(tmp_path)["rounds"].values()))
    assert adapted == models * len(unseen)


@pytest.mark.slow
def test_participants_send_sums_whose_size_does_not_tell_how_many_examples_there_are(tmp_path: Path) -> None:
    shapes: dict[tuple[int, int], set[str]] = {}
    for _, message, reply in overheard(tmp_path, GUARDED, "model=mlp"):
        asked = message.content.config_records.get("fedreach", {})
        if message.metadata.message_type == "query.adaptation" and "exchange" in asked:
            assert set(reply.content) == {"metrics", "fedreach", *(f"sums-{fit}" for fit in asked["fits"])}
            assert not reply.content["metrics"]
            for fit in asked["fits"]:
                found = {name: array.numpy().shape for name, array in reply.content[f"sums-{fit}"].items()}
                shapes.setdefault((asked["session"], asked["exchange"], fit), set()).add(repr(found))
        elif message.metadata.message_type == "query.adaptation":
            assert set(reply.content["metrics"]) == {"num-examples"}
    assert len(shapes) > 6
    assert all(len(found) == 1 for found in shapes.values())


def test_predictions_do_not_depend_on_the_labels_of_an_unseen_client(tmp_path: Path) -> None:
    """What is sent to it and what it is told are the same, whatever its labels are; only its scores differ."""
    adapt(tmp_path / "as they are", GUARDED)
    setup = setup_of(GUARDED)
    d, unseen = setup.data, setup.data.population.unseen
    y = d.dataset.train_y.copy()
    index = np.concatenate([d.partition[int(client)] for client in unseen])
    y[index] = (y[index] + 1) % d.dataset.num_classes
    other = setup_of(GUARDED)
    vars(other)["data"] = replace(d, dataset=replace(d.dataset, train_y=y), labels=y)
    grid = InProcess(other.client_app(), range(CLIENTS))
    other.strategy(tmp_path / "permuted", timeout=5, patience=1).run(grid)
    states = [RunFolder(tmp_path / name).read_tensors(ADAPTATION_FILE) for name in ("as they are", "permuted")]
    assert states[0] is not None
    assert states[1] is not None
    for name, value in states[0][0].items():
        assert states[1][0][name].tobytes() == value.tobytes()
    a, b = (record_of(tmp_path / name)["columns"]["last"] for name in ("as they are", "permuted"))
    assert a["unseen_adapted"] == b["unseen_adapted"]
    assert a["unseen_unadapted_accuracy"] != b["unseen_unadapted_accuracy"]
    assert a["participant_adapted_accuracy"] == b["participant_adapted_accuracy"]


def test_a_client_that_withholds_its_labels_fits_no_rule_and_is_not_a_part_of_it(
    tmp_path: Path, heard: pytest.LogCaptureFixture
) -> None:
    setup = setup_of()
    silent = int(setup.data.population.participants[2])
    federation, data = setup.simulation.federation, setup.data
    withholding = client_app(
        federation, "linear", lambda context: data, share_label_statistics=False, kept_in_process=CLIENTS
    )
    apps = {client: withholding if client == silent else setup.client_app() for client in range(CLIENTS)}
    grid = InProcess(apps, range(CLIENTS))
    setup.strategy(tmp_path, timeout=1, patience=1).run(grid)
    assert f"Client {silent} does not contribute to the adaptation rule" in heard.text
    line = next(line for line in lines_of(tmp_path) if line["population"] == "participants")
    assert line["ids"] == [client for client in data.population.participants.tolist() if client != silent]
    assert "left" not in record_of(tmp_path)


# --------------------------------------------------------------------------------------------------- wrong scores


def with_metric(**changes: float | None) -> Spoil:
    def spoil(reply: Message) -> Message:
        metrics = {**reply.content["metrics"], **changes}
        reply.content["metrics"] = MetricRecord({name: value for name, value in metrics.items() if value is not None})
        return reply

    return spoil


NONSENSE: dict[str, tuple[Spoil, str]] = {
    "not a number": (with_metric(online_loss=float("nan")), "'online_loss' is not finite"),
    "a mode is missing": (with_metric(oracle_prior_accuracy=None), "it sent no number 'oracle_prior_accuracy'"),
    "half a pair": (with_metric(adapted_5_accuracy=None), "it sent no number 'adapted_5_accuracy'"),
    "two adapted clients in one": (with_metric(adapted=2), "must be 0 or 1"),
    "failed": (fail, "it failed: OSError: disk gone"),
    "silent": (lambda reply: None, "no reply within"),
}


@pytest.mark.slow
def test_who_says_nonsense_of_how_it_is_adapted_is_left_out_of_the_scores_by_name(
    tmp_path: Path, heard: pytest.LogCaptureFixture
) -> None:
    many = ("partition.clients=14", "population.participants=3", "partition.alpha=1.0")
    wrong = dict(zip(setup_of(*many).data.population.unseen.tolist(), NONSENSE.values(), strict=False))

    def answering(client: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        adapted = client in wrong and message.metadata.message_type == "evaluate.adaptation"
        return wrong[client][0](answer()) if adapted else answer()

    adapt(tmp_path / "right", *many)
    adapt(tmp_path / "wrong", *many, answering=answering)
    for client, (_, why) in wrong.items():
        assert re.search(f"Client {client} .*{re.escape(why)}", heard.text), why
    for ours, theirs in zip(lines_of(tmp_path / "wrong"), lines_of(tmp_path / "right"), strict=True):
        keep = [place for place, client in enumerate(theirs["ids"]) if client not in wrong]
        assert (len(keep) < len(theirs["ids"])) == (theirs["population"] == "unseen")
        for name in ("ids", "accuracy", "loss", "calibration_error"):
            assert ours[name] == [theirs[name][place] for place in keep]


# ----------------------------------------------------------------------------------------------------- agreement


def test_a_client_with_another_rule_is_refused_by_name(tmp_path: Path, heard: pytest.LogCaptureFixture) -> None:
    setup, other = setup_of(), setup_of("method.adaptation=bbse")
    client = int(setup.data.population.unseen[0])
    apps = {each: (other if each == client else setup).client_app() for each in range(CLIENTS)}
    setup.strategy(tmp_path, timeout=1, patience=0.2).run(InProcess(apps, range(CLIENTS)))
    assert "its adaptation is BBSE(hard=False), not LabelShift(" in heard.text


def test_an_app_that_trains_by_itself_is_refused_where_there_is_a_rule(tmp_path: Path) -> None:
    app = ClientApp()
    share_labels(app, lambda context: [0, 1], num_classes=2)
    with pytest.raises(TrainingError, match="the federation's adaptation rule needs fedreach"):
        setup_of().strategy(tmp_path, timeout=1, patience=0.1).run(InProcess(app, range(CLIENTS)))


def test_a_strategy_without_an_experiment_serves_too(tmp_path: Path) -> None:
    federation = replace(tiny_federation(), adaptation=BBSE())
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((6, 40, 4)).astype(np.float32), rng.integers(2, size=(6, 40))
    x[:, :, 0] += 2 * y

    def load(context: Context) -> ClientData:
        client = context.node_config["partition-id"]
        return ClientData((x[client, :20], y[client, :20]), (x[client, 20:], y[client, 20:]), num_classes=2)

    model = build("linear", (4,), 2, seed=0)
    strategy = FedReachStrategy(federation, model, rounds=1, folder=tmp_path, min_clients=6, timeout=5, inputs=[3])
    strategy.run(InProcess(client_app(federation, "linear", load), range(6)))
    columns = record_of(tmp_path)["columns"]["last"]
    assert columns["participant_adapted_3_accuracy"] > 0.5
    assert not [name for name in columns if name.startswith(("unseen", "test"))]


# ------------------------------------------------------------------------------------------- secure aggregation


def test_under_secure_aggregation_the_server_sees_masked_words(tmp_path: Path) -> None:
    words, sums = list[np.ndarray](), Counter[str]()
    for _, message, reply in overheard(tmp_path, *SECURE, *TEN):
        if message.metadata.message_type == "query.adaptation":
            for name, record in reply.content.array_records.items():
                sums[name] += 1
                words += [array.numpy() for array in record.values()]
    assert sums["sums-0"] >= 20
    assert all(each.dtype == np.uint64 for each in words)
    whole = np.concatenate([each.ravel() for each in words])
    bits = np.unpackbits(whole.view(np.uint8)).reshape(-1, 8).mean(axis=0)
    assert abs(bits - 0.5).max() < 5 * 0.5 / np.sqrt(whole.nbytes)  # unmasked, most words begin with zeros or ones


def test_under_secure_aggregation_a_part_of_one_participant_is_not_left_out_of_a_sum(
    tmp_path: Path, heard: pytest.LogCaptureFixture
) -> None:
    """The sum of all less that of all others is what it contributed."""
    said = overheard(tmp_path, *SECURE)
    fits = {
        tuple(m.content["fedreach"]["fits"])
        for _, m, _ in said
        if "exchange" in m.content.config_records.get("fedreach", {})
    }
    assert fits == {(0,)}
    assert "FedReach does not evaluate adaptation on participants" in heard.text
    columns = record_of(tmp_path)["columns"]["last"]
    assert "unseen_adapted_accuracy" in columns
    assert "participant_adapted_accuracy" not in columns


@pytest.mark.slow
@pytest.mark.parametrize("step", ["keys", "shares", "mask", "reveal"])
def test_under_secure_aggregation_too_the_fit_is_of_those_that_stayed(step: str, tmp_path: Path) -> None:
    setup = setup_of(*SECURE, *TEN)
    leaver = int(setup.data.population.participants[3])
    gone: list[int] = []

    def leave(client: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        record = message.content.config_records.get("secure")
        second = setup.experiment.rounds + 2  # of the first fit, after the sums of all rounds
        if client == leaver and record is not None and (record["number"], record["step"]) == (second, step):
            gone.append(client)
        return None if gone and client == leaver else answer()

    adapt(tmp_path, *SECURE, *TEN, answering=leave)
    assert gone
    alone = replace(adapted_without(setup, {leaver}), summed=exact_sum)
    stored = RunFolder(tmp_path).read_tensors("last.safetensors")
    assert stored is not None
    vector = np.concatenate([stored[0][name].ravel() for name in setup.simulation.engine.layout.names])
    _, _, (fitted,) = alone.evaluate(vector[None], np.zeros(10, np.int64), 2)
    ours = RunFolder(tmp_path).read_tensors(ADAPTATION_FILE)
    assert ours is not None
    for name, value in fitted.state.items():
        assert ours[0][f"last/{name}"].tobytes() == np.asarray(value).tobytes(), name


def test_a_client_refuses_to_mask_two_answers_alike(tmp_path: Path) -> None:
    replies: list[str] = []

    def ask_twice(client: int, message: Message, answer: Callable[[], Message]) -> Message:
        reply = answer()
        if "exchange" in message.content.config_records.get("fedreach", {}):
            replies.append(answer().error.reason)
        return reply

    adapt(tmp_path, *SECURE, answering=ask_twice)
    assert len(replies) > 5
    assert all("must follow the step 'shares'" in reply for reply in replies)


def test_nonsense_in_secure_aggregation_ends_the_fit_with_a_reason(tmp_path: Path) -> None:
    def spoil(client: int, message: Message, answer: Callable[[], Message]) -> Message:
        reply = answer()
        asked = message.content.config_records.get("fedreach", {})
        if asked.get("exchange") == 2 and client == min(setup_of().data.population.participants):
            return with_array(lambda words: words + np.uint64(2**62))(reply)
        return reply

    with pytest.raises(ComponentError, match="A client sent an invalid share, but the sum does not show which client"):
        adapt(tmp_path, *SECURE, answering=spoil)
