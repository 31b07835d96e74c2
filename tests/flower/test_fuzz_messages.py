"""Whatever arrives in the place of a client's reply, the server ends in no traceback and takes nothing malformed.

Replies of honest clients are recorded once, one is changed, and the server reads them all: what the others said must be
read as before, and of the changed one only what is finite, in shape and of the right size may be believed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedreach.federation.steps import AskLosses
from fedreach.federation.types import Probe
from fedreach.flower import messages
from fedreach.flower.adaptation import RemoteAdaptation, RemoteFit
from fedreach.flower.evaluation import read_evaluations
from fedreach.flower.strategy import FedReachStrategy

from .faulty import CLIENTS, DISAGREEMENT, SCAFFOLD, TIMEOUT, Method, app_of, experiment
from .fuzzing import changed
from .in_process import InProcess
from .same import anew
from .test_adaptation import GUARDED, setup_of

POWER: Method = ("method.selection=power_of_choice",)
COUNTS: Method = ("method.selection=kl_filter", "method.weighting=entropy")
CULPRIT = 4


class World(NamedTuple):
    """A run after its first round was planned, and what clients replied to each kind of question until then."""

    strategy: FedReachStrategy
    said: dict[tuple[str, int], Message]  # kind, node -> the last reply
    nodes: dict[int, int]  # client -> node


class Canned:
    """A grid on which nodes reply what they are told to, whatever they are asked."""

    def __init__(self, replies: dict[int, Message]) -> None:
        self.replies, self.waiting = replies, dict[str, int]()

    def get_node_ids(self) -> Iterable[int]:
        return list(self.replies)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self.waiting = {f"m{i}": message.metadata.dst_node_id for i, message in enumerate(messages)}
        return list(self.waiting)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found = []
        for name in list(message_ids):
            reply = self.replies.get(self.waiting.pop(name, -1))
            if reply is not None:
                reply.metadata.__dict__["_reply_to_message_id"] = name
                found.append(reply)
        return found


@cache
def world(method: Method, *, adaptation: bool = False) -> World:
    setup, said = setup_of(*method) if adaptation else anew(experiment(method)), dict[tuple[str, int], Message]()

    def listen(client: int, message: Message, answer: Callable[[], Message]) -> Message:
        reply = answer()
        said[message.metadata.message_type, grid.node_of[client]] = reply
        return reply

    clients = setup.data.num_clients if adaptation else CLIENTS
    grid = InProcess(setup.client_app() if adaptation else app_of(method), range(clients), answering=listen)
    strategy = setup.strategy(Path(tempfile.mkdtemp()), timeout=TIMEOUT, patience=0.3)
    if adaptation:
        strategy.run(grid)
    else:
        strategy._begin(grid)
        list(grid.send_and_receive(strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid)))
        strategy._open.close()
    return World(strategy, said, dict(grid.node_of))


def replies_of(w: World, kind: str) -> dict[int, Message]:
    """Return the replies to a kind of question, node -> copy."""
    return {node: copy(reply) for (of, node), reply in w.said.items() if of == kind}


def one_of(w: World, kind: str) -> int:
    """Return the client whose reply is changed, one that was asked."""
    clients = sorted(client for client, node in w.nodes.items() if (kind, node) in w.said)
    return CULPRIT if CULPRIT in clients else clients[0]


# ------------------------------------------------------------------------------------------------------ questions


def trained(method: Method, data: Any) -> bool:
    """Return whether the changed reply was refused, as the others below do; assert what must hold either way."""
    w = world(method)
    strategy, culprit = w.strategy, one_of(w, "train")
    round_, replies = strategy._round, replies_of(w, "train")
    assert round_ is not None
    request = round_.request
    clients = [client for client, node in w.nodes.items() if node in replies]

    def read(changed_to: Message | None) -> tuple[dict[int, Any], dict[int, str]]:
        came = [reply for reply in {**replies, w.nodes[culprit]: changed_to}.values() if reply is not None]
        return round_.collect(request, clients, came, {})

    (found, lost), (silent, silent_lost) = read(data.draw(changed(replies[w.nodes[culprit]]))), read(None)
    for client, answer in silent.items():
        assert found[client].update.tobytes() == answer.update.tobytes()
        assert found[client][1:] == answer[1:]
    assert {culprit} | silent.keys() == found.keys() | lost.keys()
    if culprit in found:
        answer, federation = found[culprit], strategy.federation
        facts = strategy.registry.known[culprit]
        assert answer.update.shape == (strategy.layout.size,)
        assert np.abs(answer.update).max() <= 1e30
        assert answer.metrics["num_examples"] == facts.num_examples
        assert np.isfinite([*answer.metrics.values()]).all()
        size, own = np.array([facts.num_examples]), np.array([culprit])
        assert answer.steps == federation.local.steps_of(size, own, federation.seed, request.view.round)[0]
    else:
        reports = round_.reports(found, lost, request)
        assert reports.update.tobytes() == round_.reports(silent, silent_lost, request).update.tobytes()
    return culprit in lost


def evaluated(data: Any) -> bool:
    w = world(SCAFFOLD)
    strategy, culprit, replies = w.strategy, one_of(w, "evaluate"), replies_of(w, "evaluate")
    strategy._evaluation_messages(ConfigRecord())
    given_ = {**replies, w.nodes[culprit]: data.draw(changed(replies[w.nodes[culprit]]))}
    scores = read_evaluations(given_.values(), strategy._tasks, strategy.registry, 0)
    assert {task.client for task in scores} | {culprit} == {task.client for task in strategy._tasks}
    parts = strategy.registry.known[culprit].parts
    for task, said in scores.items():
        for part, score in said.items() if task.client == culprit else ():
            assert score["examples"] == parts[part]
            assert np.isfinite([score["score"], score["loss"]]).all()
    return culprit not in {task.client for task in scores}


def introduced(data: Any) -> bool:
    w = world(SCAFFOLD)
    registry, culprit, replies = copy(w.strategy.registry), one_of(w, "query"), replies_of(w, "query")
    known = dict(registry.known)
    registry.known = {client: facts for client, facts in known.items() if client != culprit}
    registry.nodes = {client: node for client, node in registry.nodes.items() if client != culprit}
    registry.refused, registry.asked = {}, {}
    node = w.nodes[culprit]
    registry.grid = Canned({**replies, node: data.draw(changed(replies[node]))})  # type: ignore[assignment]
    registry.meet()
    assert all(registry.nodes[client] == w.nodes[client] for client in known if client != culprit)
    assert all(registry.known[client] == known[client] for client in known if client != culprit)
    if culprit in registry.nodes:
        facts, sizes = registry.known[culprit], registry.sizes
        assert sizes is not None
        assert 0 <= facts.num_examples + (facts.num_held_out or 0) <= sizes[culprit]
    assert set(registry.nodes) <= set(known)  # there are no others in the data
    return culprit not in registry.nodes


def told_labels(data: Any) -> bool:
    w = world(COUNTS)
    registry, culprit, replies = copy(w.strategy.registry), one_of(w, "query.labels"), replies_of(w, "query.labels")
    known = registry.known
    registry.known = {c: replace(facts, label_counts=None, label_entropy=None) for c, facts in known.items()}
    node = w.nodes[culprit]
    clients = sorted(client for client, each in w.nodes.items() if each in replies)
    registry.grid = Canned({**replies, node: data.draw(changed(replies[node]))})  # type: ignore[assignment]
    lacking = registry.learn_labels(clients)
    assert set(lacking) <= {culprit}
    assert all(registry.known[client] == known[client] for client in clients if client != culprit)
    counts = registry.known[culprit].label_counts
    assert (counts is None) == (culprit in lacking)
    if counts is not None:
        assert len(counts) == len(known[clients[0]].label_counts or ())
        assert min(counts) >= 0
    return culprit in lacking


def told_a_loss(data: Any) -> bool:
    w = world(POWER)
    current, culprit, replies = w.strategy._round, one_of(w, "query.loss"), replies_of(w, "query.loss")
    assert current is not None
    clients = sorted(client for client, node in w.nodes.items() if node in replies)
    request = AskLosses(current.request.state, current.request.view, Probe(np.array(clients)))
    node = w.nodes[culprit]
    current.registry.grid = Canned({**replies, node: data.draw(changed(replies[node]))})  # type: ignore[assignment]
    found = current.losses(request)
    assert found.keys() | {culprit} == set(clients)
    assert np.isfinite([*found.values()]).all()
    return culprit not in found


@cache
def an_exchange() -> tuple[World, Any, Any, dict[int, Message]]:
    """Return the first exchange of a fit, and what participants replied to it."""
    w, kept = world((GUARDED,), adaptation=True), []
    whole = RemoteFit._exchange

    def keeping(self: Any, record: Any, exchange: Any) -> Any:
        answers = whole(self, record, exchange)
        if not kept:
            kept.append((self, exchange, replies_of(World(w.strategy, said, w.nodes), "query.adaptation")))
        return answers

    said = dict[tuple[str, int], Message]()

    def listen(client: int, message: Message, answer: Callable[[], Message]) -> Message:
        reply = answer()
        said[message.metadata.message_type, grid.node_of[client]] = reply
        return reply

    setup = setup_of(GUARDED)
    grid = InProcess(setup.client_app(), range(setup.data.num_clients), answering=listen)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RemoteFit, "_exchange", keeping)
        setup.strategy(Path(tempfile.mkdtemp()), timeout=TIMEOUT, patience=0.3).run(grid)
    fit, exchange, replies = kept[0]
    return World(w.strategy, said, dict(grid.node_of)), fit, exchange, replies


def contributed(data: Any) -> bool:
    w, fit, exchange, replies = an_exchange()
    client = exchange.sets[0][2]
    node = w.nodes[client]
    spoilt = {node: data.draw(changed(replies[node]))}
    fit.registry.grid = Canned({**{n: copy(r) for n, r in replies.items()}, **spoilt})
    answers, lost = fit._exchange(ArrayRecord(), exchange)
    assert set(lost) <= {client}
    if client not in lost:
        for sums in answers[client].values():
            assert all(np.abs(values).max(initial=0) <= 2.0**62 for values in sums.values())
    return client in lost


def adapted(data: Any) -> bool:
    w = world((GUARDED,), adaptation=True)
    remote = RemoteAdaptation(w.strategy.federation, w.strategy.registry, w.strategy.writer, None)
    client = int(w.strategy.registry.unseen()[0])
    reply = data.draw(changed(w.said["evaluate.adaptation", w.nodes[client]]))
    try:
        scores = remote.scores_of(client, "both", messages.metrics_of(messages.content_of(reply)), all_modes=False)
    except messages.ReplyError:
        return True
    for mode in scores.modes.values():
        assert np.isfinite(mode[client]).all()
    return False


QUESTIONS: dict[str, Callable[[Any], bool]] = {
    "train, with a memory": lambda data: trained(SCAFFOLD, data),
    "train, with a measurement": lambda data: trained(DISAGREEMENT, data),
    "evaluate": evaluated,
    "who it is": introduced,
    "labels": told_labels,
    "a loss": told_a_loss,
    "sums for a rule": contributed,
    "adapted": adapted,
}


def fuzzed(question: Callable[[Any], bool], examples: int) -> None:
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def run(data: Any) -> None:
        question(data)

    run()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("question", [name for name in QUESTIONS if name != "sums for a rule"])
def test_a_few_changed_replies_are_refused_or_possible(question: str) -> None:
    fuzzed(QUESTIONS[question], 6)


@pytest.mark.slow
@pytest.mark.parametrize("question", QUESTIONS)
def test_thousands_of_changed_replies_are_refused_or_possible(question: str) -> None:
    fuzzed(QUESTIONS[question], 300)
