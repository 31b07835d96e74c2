"""A figure that no honest client reports counts like a lost reply, bit for bit; row and page name who told it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Message
from flwr.clientapp import ClientApp

from fedreach._util.errors import ConfigError
from fedreach.federation.secure_aggregation import FixedPoint, mean_of
from fedreach.flower.app import share_labels
from fedreach.flower.messages import ReplyError, array
from fedreach.flower.strategy import FedReachStrategy
from fedreach.report.write import write_report

from ..conftest import rows  # noqa: TID252
from .faulty import (
    CLIENTS,
    FEDAVG,
    ROUNDS,
    Method,
    app_of,
    assert_said,
    culprit_of,
    experiment,
    flower,
    simulated,
    spoiled,
    undisturbed,
    with_metric,
    without_reply,
)
from .in_process import InProcess
from .lying import (
    COUNTS,
    ENTROPY,
    LIES,
    Lie,
    asked_before,
    silent,
    silent_about_the_question,
    telling,
)
from .test_adaptation import SECURE, setup_of

slow = pytest.mark.slow
QUICK = {"a round that was before", "further than clipped steps"}


@pytest.mark.parametrize("lie", [pytest.param(lie, marks=() if lie in QUICK else slow) for lie in LIES])
def test_a_report_that_cannot_be_counts_like_none_and_is_named_in_the_row(
    lie: str, tmp_path: Path, heard: pytest.LogCaptureFixture
) -> None:
    method, spoil, why = LIES[lie]
    grid = InProcess(app_of(method), range(CLIENTS), answering=spoiled(culprit_of(method), 2, spoil))
    found = flower(experiment(method), grid, tmp_path)
    assert found == silent(method)
    assert found == without_reply(method)
    assert found.lost == [[], [culprit_of(method)], [], []]
    assert_said(heard, rf"Client {culprit_of(method)} .*{why}")
    (named,) = [row for row in rows(tmp_path) if "refused" in row]
    assert named["round"] == 2
    assert list(named["refused"]) == [f"client {culprit_of(method)}"]


def test_huge_numbers_of_either_sign_are_refused() -> None:
    def read(largest: float) -> np.ndarray:
        return array(ArrayRecord({"update": Array(np.array([1.0, largest], np.float32))}), "update", (2,))

    for huge in (2e30, -2e30):
        with pytest.raises(ReplyError, match=r"contains numbers up to 2e\+30, which are too large"):
            read(huge)
        assert read(huge / 4)[1] == np.float32(huge / 4)


def test_a_report_that_is_sent_again_a_round_later_does_not_count(tmp_path: Path) -> None:
    kept: list[Message] = []

    def answering(asked: int, message: Message, answer: Callable[[], Message]) -> Message:
        reply = answer()
        if asked == culprit_of(FEDAVG) and message.metadata.message_type == "train":
            kept.append(reply)
            if len(kept) == 2:
                return Message(kept[0].content, reply_to=message)
        return reply

    grid = InProcess(app_of(FEDAVG), range(CLIENTS), answering=answering)
    assert flower(experiment(FEDAVG), grid, tmp_path) == without_reply(FEDAVG)


def test_a_lost_reply_is_nobodys_lie(tmp_path: Path) -> None:
    grid = InProcess(
        app_of(FEDAVG), range(CLIENTS), answering=spoiled(culprit_of(FEDAVG), 2, lambda message, answer: None)
    )
    assert flower(experiment(FEDAVG), grid, tmp_path) == without_reply(FEDAVG)
    assert not [row for row in rows(tmp_path) if "refused" in row]


def test_the_page_names_who_said_what_cannot_be(tmp_path: Path) -> None:
    spoil = with_metric("train_loss", float("nan"))
    grid = InProcess(app_of(FEDAVG), range(CLIENTS), answering=spoiled(culprit_of(FEDAVG), 2, spoil))
    flower(experiment(FEDAVG), grid, tmp_path)
    page = write_report([tmp_path], tmp_path / "page").page.read_text()
    assert "The server rejected these replies" in page
    assert f"client {culprit_of(FEDAVG)}, round 2: its &#39;train_loss&#39; is not finite" in page


# ------------------------------------------------------------------------------------------------------- probes


@pytest.mark.parametrize(
    "spoil",
    [
        with_metric("train_loss", float("nan")),
        pytest.param(asked_before(round=7), marks=slow),
        pytest.param(silent_about_the_question, marks=slow),
    ],
    ids=["not finite", "another round", "no round"],
)
def test_a_loss_that_cannot_be_is_as_good_as_none(spoil: Lie, tmp_path: Path) -> None:
    method = ("method.selection=power_of_choice",)

    def run(lie: Lie, folder: Path) -> tuple[Any, list[Mapping[str, Any]]]:
        def answering(client: int, message: Message, answer: Callable[[], Message]) -> Any:
            probed = message.metadata.message_type == "query.loss" and client == 2
            return lie(message, answer) if probed else answer()

        found = flower(experiment(method), InProcess(app_of(method), range(CLIENTS), answering=answering), folder)
        return found, rows(folder)

    lied, told = run(spoil, tmp_path / "lied")
    silent, _ = run(lambda message, answer: None, tmp_path / "silent")
    assert lied == silent
    assert {name for row in told for name in row.get("refused", {})} == {"client 2"}


# ------------------------------------------------------------------------------------------------------- labels


@pytest.mark.parametrize(
    ("method", "change", "why"),
    [
        (ENTROPY, lambda e: e * 0 - 0.1, "its label_entropy must be a list of numbers of at least 0"),
        pytest.param(COUNTS, lambda n: n + 1j, "its 'label_counts' must be float64; got complex128", marks=slow),
        (COUNTS, lambda n: np.append(n, 0.0), "its label_counts are 11 numbers, but most clients report 10"),
    ],
    ids=["below 0", "complex", "11 classes"],
)
def test_labels_that_cannot_be_are_not_believed(
    method: Method,
    change: Callable[[np.ndarray], np.ndarray],
    why: str,
    tmp_path: Path,
    heard: pytest.LogCaptureFixture,
) -> None:
    fact = "label_entropy" if method == ENTROPY else "label_counts"
    grid = InProcess(app_of(method), range(CLIENTS), answering=telling(4, fact, change))
    assert flower(experiment(method), grid, tmp_path) == simulated(experiment(method), without=4)
    assert (4, "train") not in grid.sent
    assert_said(heard, f"Client 4 does not train: .*{why}")
    assert list(rows(tmp_path)[0]["refused"]) == ["client 4"]


def test_where_counts_are_told_nobody_is_asked_for_entropies_too(tmp_path: Path) -> None:
    method = (*COUNTS, *ENTROPY)
    grid = InProcess(app_of(method), range(CLIENTS))
    assert flower(experiment(method), grid, tmp_path) == undisturbed(method)
    assert [kind for _, kind in grid.sent].count("query.labels") == 4


def test_a_client_that_claims_more_examples_than_the_limit_does_not_participate(tmp_path: Path) -> None:
    def answering(asked: int, message: Message, answer: Callable[[], Message]) -> Any:
        lies = (asked, message.metadata.message_type) == (3, "query")
        return with_metric("num-examples", 2**40)(message, answer) if lies else answer()

    made = experiment(FEDAVG).simulation
    strategy = FedReachStrategy(
        made.federation, made.engine.task.module, rounds=2, folder=tmp_path, timeout=0.4, max_examples=1000
    )
    grid = InProcess(app_of(FEDAVG), range(CLIENTS), answering=answering)
    strategy.run(grid)
    assert (3, "train") not in grid.sent
    node = f"node {grid.node_of[3]}"
    assert "client 3 must report at most 1000 training examples" in rows(tmp_path)[0]["refused"][node]
    with pytest.raises(ConfigError, match=r"FedReachStrategy\.max_examples must be positive"):
        FedReachStrategy(made.federation, made.engine.task.module, rounds=2, folder=tmp_path, max_examples=0)


# --------------------------------------------------------------------------------------------------- evaluation


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        pytest.param(
            "num-examples",
            10_000,
            r"its 'num-examples' must be \d+, as at the start of the run; got 10000",
            marks=slow,
        ),
        pytest.param(
            "train-examples", 1, r"its 'train-examples' must be \d+, as at the start of the run; got 1", marks=slow
        ),
        ("both-examples", 1, r"its 'both-examples' must be \d+, as at the start of the run; got 1"),
    ],
)
def test_scores_that_cannot_be_are_left_out(
    name: str, value: float, why: str, tmp_path: Path, heard: pytest.LogCaptureFixture
) -> None:
    def answering(asked: int, message: Message, answer: Callable[[], Message]) -> Any:
        lies = (asked, message.metadata.message_type) == (3, "evaluate")
        return with_metric(name, value)(message, answer) if lies else answer()

    assert flower(experiment(FEDAVG), InProcess(app_of(FEDAVG), range(CLIENTS), answering=answering), tmp_path) == (
        undisturbed(FEDAVG)
    )
    last = [line for line in rows(tmp_path, "clients.jsonl") if line["round"] == ROUNDS]
    assert {client for line in last for client in line["ids"]} == set(range(CLIENTS)) - {3}
    assert_said(heard, f"Client 3 did not evaluate: {why}")
    assert rows(tmp_path)[-1]["refused"].keys() == {"client 3"}


# ---------------------------------------------------------------------------------------------------- who it is


@pytest.mark.parametrize(("train", "held_out"), [(-1, 0), (0, -1), (-1, 1)])
def test_a_client_that_comes_back_with_other_examples_is_refused(
    train: int, held_out: int, tmp_path: Path, heard: pytest.LogCaptureFixture
) -> None:
    culprit, came = culprit_of(FEDAVG), list[int]()

    def answering(asked: int, message: Message, answer: Callable[[], Message]) -> Any:
        kind = message.metadata.message_type
        if kind == "train" and asked == culprit and not came:
            came.append(grid.restart(culprit))
            return None
        if kind == "query" and asked == culprit and came:
            reply = answer()
            numbers = reply.content["metrics"]
            numbers["num-examples"] += train
            numbers["held-out-examples"] += held_out
            return reply
        return answer()

    grid = InProcess(app_of(FEDAVG), range(CLIENTS), answering=answering)
    found = flower(experiment(FEDAVG), grid, tmp_path)
    away = {number: {culprit} for number in range(2, ROUNDS + 1)}
    assert found == simulated(experiment(FEDAVG), lost={1: {culprit}}, offline=away)
    assert_said(heard, f"client {culprit} reports .* examples, but reported .* at the start of the run")


@pytest.mark.parametrize("name", ["num-examples", pytest.param("held-out-examples", marks=slow)])
def test_a_client_that_claims_more_than_there_is_is_refused(
    name: str, tmp_path: Path, heard: pytest.LogCaptureFixture
) -> None:
    culprit = culprit_of(FEDAVG)

    def answering(asked: int, message: Message, answer: Callable[[], Message]) -> Any:
        lies = (asked, message.metadata.message_type) == (culprit, "query")
        return with_metric(name, 1_000_000)(message, answer) if lies else answer()

    grid = InProcess(app_of(FEDAVG), range(CLIENTS), answering=answering)
    found = flower(experiment(FEDAVG), grid, tmp_path)
    assert found == simulated(experiment(FEDAVG), offline={n: {culprit} for n in range(1, ROUNDS + 1)})
    assert_said(heard, rf"client {culprit} has \d+ examples, but reports .*1000000")
    assert list(rows(tmp_path)[0]["refused"]) == [f"node {grid.node_of[culprit]}"]


def test_a_place_is_refused_while_its_holder_is_there_and_free_when_it_is_gone(
    tmp_path: Path, heard: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedreach.flower.clients.AGAIN_SECONDS", 0.0)
    second = CLIENTS

    def answering(asked: int, message: Message, answer: Callable[[], Message]) -> Message:
        if message.metadata.message_type == "train" and message.content["config"]["server-round"] == 2:
            grid.absent.add(3)  # the holder goes; what it was asked, it still answers
        return answer()

    grid = InProcess(app_of(FEDAVG), range(CLIENTS + 1), answering=answering)
    grid.contexts[second].node_config["partition-id"] = 3
    assert flower(experiment(FEDAVG), grid, tmp_path) == undisturbed(FEDAVG)  # the data are the same
    holder, other = (grid.node_of[client] for client in (3, second))
    assert holder < other  # nodes that come at once are heard in this order
    assert_said(heard, f"Node {other} does not participate: it reports to be client 3, but node {holder}, which is")
    assert list(rows(tmp_path)[0]["refused"]) == [f"node {other}"]
    trained = [client for client, kind in grid.sent if kind == "train"]
    assert second in trained
    assert 3 in trained[: trained.index(second)]


# -------------------------------------------------------------------------------------------------- secure aggregation


def test_an_app_that_trains_by_itself_is_out_of_secure_aggregation(
    tmp_path: Path, heard: pytest.LogCaptureFixture
) -> None:
    custom = ClientApp()
    share_labels(custom, lambda context: [0, 1], num_classes=2)
    setup = setup_of(*SECURE, "method.adaptation=none")
    grid = InProcess(dict.fromkeys(range(8), setup.client_app()) | {5: custom}, range(8))
    setup.strategy(tmp_path, timeout=1, patience=0.2, min_clients=2).run(grid)
    assert (5, "train") not in grid.sent
    assert_said(heard, f"Node {grid.node_of[5]} does not participate: it uses a custom app, but .* secure aggregation")


@pytest.mark.parametrize("seed", range(20))
def test_words_that_are_no_share_never_make_a_mean(seed: int) -> None:
    """Half of what is drawn at random has a weight that is not too small: that alone must not let it through."""
    words = np.random.default_rng(seed).integers(2**64, size=6, dtype=np.uint64)
    words[-1] >>= np.uint64(2)  # a weight of several clients
    with pytest.raises(ValueError, match="A client sent an invalid share"):
        mean_of(words, FixedPoint(3))
