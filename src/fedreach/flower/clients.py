"""The nodes of clients and the statistics that each client reported."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from logging import getLogger
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedreach._util.arrays import AnyArray, Ints
from fedreach._util.errors import ConfigError, TrainingError
from fedreach.data.splits import Population
from fedreach.engines.models.state import constant_bytes
from fedreach.federation.federation import Federation
from fedreach.federation.labels import released_entropy
from fedreach.federation.types import ServerView
from fedreach.flower import messages
from fedreach.flower.agreement import MAX_CLIENTS, ClientStatistics, first_difference

LOG = getLogger("flwr")
POLL_SECONDS = 0.2
QUIET_SECONDS = 2.0  # without a new node: then all are taken to be there
MEETING_SECONDS = 5.0  # that a round waits for the handshakes of new nodes
AGAIN_SECONDS = 10.0  # until a node that failed is asked again

R = TypeVar("R")


class ClientModel(NamedTuple):
    """A client and one of several models for it; each model is sent in its own message."""

    client: int
    model: int = 0


K = TypeVar("K", int, ClientModel)
"""Client that receives one message, or client and model of a task."""


def _pair_of(key: int | ClientModel) -> ClientModel:
    return key if isinstance(key, ClientModel) else ClientModel(key)


class HeldError(messages.ReplyError):
    """Another online node already has this client id."""


class Refusal(NamedTuple):
    """The reason why a node is rejected."""

    reason: str
    until: float  # when it is asked again; infinite if it disagrees with the server


@dataclass
class ClientRegistry:
    """Registry of clients and their nodes, which exchanges messages with them."""

    federation: Federation
    terms: dict[str, str]  # what clients must agree to, see `training_terms`
    timeout: float  # seconds that a client has for a reply
    population: Population | None = None  # None: all clients that are online at first participate
    sizes: Ints | None = None  # (n,) examples of each client, if the server knows them
    max_examples: int | None = None  # training examples that a client may report; None: any number
    grid: Grid = field(init=False)
    run: str = ""  # its name, under which clients store what they keep
    known: dict[int, ClientStatistics] = field(default_factory=dict)  # an earlier process of the run may have asked
    nodes: dict[int, int] = field(default_factory=dict)  # client -> node
    online: frozenset[int] = frozenset()  # nodes
    refused: dict[int, Refusal] = field(default_factory=dict)  # by node
    blamed: dict[str, str] = field(default_factory=dict)  # "client 3" or "node 7" -> its wrong reply
    samples: str | None = None  # form of all clients' examples, see `samples_of`; None: unknown
    asked: dict[str, tuple[int, float]] = field(default_factory=dict)  # message -> node without a reply, time limit
    constants: Mapping[str, AnyArray] = field(default_factory=dict)  # of the model; nodes get them once
    carried: Mapping[str, ConfigRecord] = field(default_factory=dict)  # records of every message
    process: str = field(default_factory=lambda: uuid4().hex)  # names the sums of secure aggregation
    sums: int = 0  # of secure aggregation so far

    # ------------------------------------------------------------------------------------------------ messages

    def message(
        self,
        node: int,
        kind: str,
        content: Mapping[str, Any],
        group: int = 0,
        hashed: dict[int, bytes] | None = None,
    ) -> Message:
        """Return a message with a digest (see `messages.seal`) that expires after the timeout."""
        records = RecordDict({**content, **self.carried})
        return messages.seal(Message(records, node, kind, ttl=self.timeout, group_id=str(group)), node, hashed)

    def compose(self, kind: str, contents: Mapping[K, Mapping[str, Any]]) -> list[Message]:
        """Return a message for each task whose client is online."""
        tasks = {_pair_of(key): content for key, content in contents.items()}
        nodes, hashed = self.nodes_of(client for client, _ in tasks), dict[int, bytes]()
        return [
            self.message(nodes[client], kind, content, model, hashed)
            for (client, model), content in tasks.items()
            if client in nodes
        ]

    def ask(
        self,
        kind: str,
        contents: Mapping[K, Mapping[str, Any]],
        reader: Callable[[K, Message], R],
        failed: str | None = None,
    ) -> tuple[dict[K, R], dict[K, str]]:
        """Send messages and read the replies that arrive in time (see `read`)."""
        return self.read(self.send(self.compose(kind, contents)), contents, reader, failed)

    def send(self, sent: Iterable[Message]) -> list[Message]:
        """Send messages and return the replies that arrive in time."""
        return send_and_wait(self.grid, sent, self.timeout)

    def read(
        self,
        replies: Iterable[Message],
        tasks: Iterable[K],
        reader: Callable[[K, Message], R],
        failed: str | None = None,
    ) -> tuple[dict[K, R], dict[K, str]]:
        """Return the results of `reader` for replies, and the reasons why other tasks have no result.

        Args:
            replies: Replies in any order. The first correct reply per task counts, so a stale one takes nobody's place.
            tasks: Tasks that were sent.
            reader: Function that returns the result of a reply, or raises a `ReplyError`.
            failed: Text in the log about clients without a result. None: nothing is logged.
        """
        lost = dict.fromkeys(tasks, f"no reply within {self.timeout:g} s")
        waiting = {(self.nodes.get(_pair_of(key).client), str(_pair_of(key).model)): key for key in lost}
        results: dict[K, R] = {}
        for reply in replies:
            node = reply.metadata.src_node_id
            key = waiting.get((node, reply.metadata.group_id))
            if key is None:  # an error in Flower itself comes from node 1 and names no client
                description = reply.error.reason if reply.has_error() else "an unexpected reply"
                LOG.warning("Node %s: %s", node, description)
                continue
            try:
                required = self.trains_as_asked(_pair_of(key).client)
                results[key] = reader(key, messages.check_digest(messages.content_of(reply), node, required=required))
                del lost[key], waiting[node, reply.metadata.group_id]
            except messages.ReplyError as error:
                lost[key] = str(error)
                self.blame(f"client {_pair_of(key).client}", error)
        for key, reason in lost.items() if failed else ():
            LOG.warning("Client %s %s: %s.", _pair_of(key).client, failed, reason)
        return results, lost

    def blame(self, who: str, error: messages.ReplyError) -> None:
        """Record a wrong reply for the next row of the run; lost replies are not recorded."""
        if not isinstance(error, messages.LostError):
            self.blamed.setdefault(who, str(error))

    def blamed_since(self) -> dict[str, str]:
        """Return and reset the wrong replies since the last call."""
        blamed, self.blamed = self.blamed, {}
        return blamed

    # --------------------------------------------------------------------------------------------- who is there

    def gather(self, min_clients: int, patience: float) -> None:
        """Wait for the population, or else for `min_clients` clients and other clients that connect shortly after.

        Raises:
            TrainingError: If fewer than `min_clients` participants are online after `patience` seconds, or if all
                expected nodes are online and fail.
        """
        expected = self._expected()
        until = time.monotonic() + patience
        arrived, changed = until - patience, until - patience  # when the last client came, and the last node
        while True:
            before, online = len(self.nodes), self.online
            self.meet(min(MEETING_SECONDS, until - time.monotonic()))
            ready = [client for client in self.nodes if self._may_train(client)]
            now = time.monotonic()
            arrived = now if len(self.nodes) > before else arrived
            changed = now if self.online != online else changed
            missing = set() if expected is None else expected - self._present()
            all_there = now > arrived + QUIET_SECONDS if expected is None else not missing
            if len(ready) >= min_clients and (all_there or now > until):
                break
            all_fail = len(self.online) >= len(expected or range(min_clients)) and not self.asked
            if all_fail and now > changed + QUIET_SECONDS and self.online <= self.refused.keys():
                raise TrainingError(
                    f"All {len(self.online)} nodes fail.{self.why_refused()} Fix the failure, then rerun the command."
                )
            if now > until:
                absent = f" Missing: {', '.join(sorted(map(str, missing)))}." if missing else ""
                raise TrainingError(
                    f"The number of online clients that may train and have examples must be at least {min_clients}; "
                    f"got {len(ready)} after {patience:.0f} seconds.{absent}{self.why_refused()} Start more "
                    "SuperNodes, or lower `min_clients`."
                )
            time.sleep(POLL_SECONDS)
        if self.population is None:
            self.population = Population(np.array(sorted(self.nodes), np.int64), np.empty(0, np.int64))

    def _expected(self) -> set[Any] | None:
        """Return the clients to wait for; None: all that are online."""
        p = self.population
        return None if p is None else {*p.participants.tolist(), *p.unseen.tolist()}

    def _present(self) -> set[Any]:
        return set(self.nodes)

    def _may_train(self, client: int) -> bool:
        is_named = self.population is None or client in self.population.participants
        return is_named and self.known[client].num_examples > 0

    def why_refused(self) -> str:
        """Return the reasons why nodes were rejected, each reason once."""
        nodes: dict[str, list[int]] = {}
        for node, refusal in self.refused.items():
            nodes.setdefault(refusal.reason.rstrip("."), []).append(node)
        return "".join(
            f" Node {first} was rejected: {text}{f' (and {len(more)} more nodes for the same reason)' if more else ''}."
            for text, (first, *more) in nodes.items()
        )

    def meet(self, patience: float = MEETING_SECONDS) -> None:
        """Update the online nodes, and ask new nodes for their client; a later call reads late replies."""
        now, new_messages = time.monotonic(), set[str]()
        self.online = frozenset(self.grid.get_node_ids())
        self._forget_handshakes(now)
        for node in sorted(self.online - {*self.nodes.values(), *(node for node, _ in self.asked.values())}):
            if node not in self.refused or now >= self.refused[node].until:
                (name,) = self.grid.push_messages([self.message(node, *self._handshake())])
                self.asked[name] = node, now + self.timeout
                new_messages.add(name)
        while self.asked:
            replies = list(self.grid.pull_messages(list(self.asked)))
            for reply in sorted(replies, key=lambda reply: reply.metadata.src_node_id):
                handshake = self.asked.pop(reply.metadata.reply_to_message_id, None)
                if handshake is not None:
                    self._take_handshake(reply, handshake[0])
            self._forget_handshakes(time.monotonic())
            if not new_messages & self.asked.keys() or time.monotonic() > now + patience:
                break
            time.sleep(POLL_SECONDS)

    def _handshake(self) -> tuple[str, Mapping[str, Any]]:
        """Return the kind and the content of the first message to a node."""
        constants = {messages.CONSTANTS: messages.array_record(self.constants)} if self.constants else {}
        return MessageType.QUERY, constants

    def _forget_handshakes(self, now: float) -> None:
        """Stop waiting for nodes that are gone or late."""
        self.asked = {
            name: (node, until) for name, (node, until) in self.asked.items() if now < until and node in self.online
        }

    def trains_as_asked(self, client: int) -> bool:
        """Return whether a client runs `client_app`."""
        return client in self.known and self.known[client].trains_as_asked

    def _take_handshake(self, reply: Message, node: int) -> None:
        """Register the client of a node, or note why the node is rejected."""
        try:
            is_ours = messages.FEDREACH in messages.content_of(reply).content
            client, facts = self.read_handshake(messages.check_digest(reply, node, required=is_ours))
            holder = self.nodes.get(client)
            if holder in self.online:  # a dead node may count as online for a minute
                raise HeldError(
                    f"it reports to be client {client}, but node {holder}, which is online, already is this client"
                )
        except messages.ReplyError as error:
            asked_again = reply.has_error() or isinstance(error, HeldError | messages.AlteredError)
            if node not in self.refused:
                LOG.warning("Node %s does not participate: %s.", node, error)
            self.refused[node] = Refusal(str(error), time.monotonic() + AGAIN_SECONDS if asked_again else np.inf)
            self.blame(f"node {node}", error)
            return
        self.refused.pop(node, None)
        if (before := self.known.get(client)) is not None:
            facts = replace(facts, label_counts=before.label_counts, label_entropy=before.label_entropy)
        self.known[client], self.nodes[client] = facts, node

    def read_handshake(self, reply: Message) -> tuple[int, ClientStatistics]:
        content = messages.content_of(reply).content
        metrics = messages.metrics_of(reply)
        client = messages.whole_number(metrics, messages.CLIENT)
        if client >= MAX_CLIENTS:
            raise messages.ReplyError(f"its partition-id must be below {MAX_CLIENTS}; got {client}")
        count, bits = messages.whole_number(metrics, messages.EXAMPLES), messages.whole_number(metrics, messages.BITS)
        agreed = content.config_records.get(messages.FEDREACH)
        if agreed is None:
            hides = self.federation.label_statistics.only_sum
            needs = "adaptation rule needs" if self.federation.adapts else "solver or measurements need"
            needs = "secure aggregation needs" if hides else needs
            if self.federation.has_memory or self.federation.measurements() or self.federation.adapts or hides:
                raise messages.ReplyError(
                    f"it uses a custom app, but the federation's {needs} fedreach.flower.app.client_app"
                )
            facts = ClientStatistics(count, bits, trains_as_asked=False)
        else:
            reason = first_difference(self.terms, agreed)
            if reason is not None:
                raise messages.ReplyError(f"{reason}; server and clients must use the same federation and model")
            samples = agreed.get(messages.SAMPLES)
            if not isinstance(samples, str) or self.samples not in (None, samples):
                raise messages.ReplyError(
                    f"its examples are {samples!r}, but the examples of other clients are {self.samples!r}"
                )
            held_out = messages.whole_number(metrics, messages.HELD_OUT)
            facts = ClientStatistics(count, bits, True, held_out, samples=samples)
        self._check_examples(client, facts)
        return client, facts

    def _check_examples(self, client: int, facts: ClientStatistics) -> None:
        """Reject numbers of examples that differ from those at the start of the run, or that the client cannot have."""
        before, held_out = self.known.get(client), facts.num_held_out
        if self.max_examples is not None and facts.num_examples > self.max_examples:
            raise messages.ReplyError(
                f"client {client} must report at most {self.max_examples} training examples (max_examples); got "
                f"{facts.num_examples}"
            )
        if before is not None and (facts.num_examples, held_out) != (before.num_examples, before.num_held_out):
            raise messages.ReplyError(
                f"client {client} reports {facts.num_examples} training and {held_out} held-out examples, but reported "
                f"{before.num_examples} and {before.num_held_out} at the start of the run; changed data require a new "
                "run"
            )
        if self.sizes is not None and facts.num_examples + (held_out or 0) > self.sizes[client : client + 1].sum():
            raise messages.ReplyError(
                f"client {client} has {self.sizes[client : client + 1].sum()} examples, but reports "
                f"{facts.num_examples} training and {held_out} held-out examples"
            )

    # ------------------------------------------------------------------------------------------------ facts and view

    def _agree_on_samples(self) -> set[int]:
        """Reject and return clients whose examples differ in form from most, such as images on another scale."""
        forms = {client: facts.samples for client, facts in sorted(self.known.items()) if facts.samples is not None}
        counts = Counter(forms.values())
        self.samples = max(counts, key=lambda form: counts[form], default=None)  # a tie goes to the lowest id
        refused = {client for client, form in forms.items() if form != self.samples}
        for client in sorted(refused):
            reason = f"its examples are {forms[client]}, but the examples of most clients are {self.samples}"
            self.blame(f"client {client}", messages.ReplyError(reason))
            LOG.warning("Client %s does not participate: %s.", client, reason)
            del self.known[client]
            if client in self.nodes:
                self.refused[self.nodes.pop(client)] = Refusal(reason, np.inf)
        return refused

    def learn_labels(self, clients: Iterable[int]) -> dict[int, str]:
        """Request the label statistics that components need; return the reasons of clients that did not send them."""
        lacking: dict[int, str] = {}
        for fact in sorted(self._needs()):  # entropies last: the server computes them from counts
            available = [client for client in clients if client in self.nodes and client not in lacking]
            request = {messages.FEDREACH: ConfigRecord({"fact": fact})}
            contents = {client: request for client in available if getattr(self.known[client], fact) is None}
            facts, lost = self.ask("query.labels", contents, partial(self._read_fact, fact))
            for client, values in facts.items():
                self.known[client] = replace(self.known[client], **values)
            lacking |= lost
        widths = {c: len(facts.label_counts) for c, facts in self.known.items() if facts.label_counts is not None}
        usual = max(widths.values(), key=lambda width: (list(widths.values()).count(width), width), default=0)
        for client, width in widths.items():
            if width != usual:
                lacking[client] = f"its label_counts are {width} numbers, but most clients report {usual}"
                self.blame(f"client {client}", messages.ReplyError(lacking[client]))
                self.known[client] = replace(self.known[client], label_counts=None)
        return lacking

    def _read_fact(self, fact: str, client: int, reply: Message) -> dict[str, Any]:
        values = messages.array(messages.arrays(reply, messages.LABELS), fact, None, np.float64)
        if values.ndim != 1 or not len(values) or (values < 0).any():
            raise messages.ReplyError(
                f"its {fact} must be a list of numbers of at least 0; got {str(values.tolist())[:100]}"
            )
        if fact == "label_entropy":
            return {fact: float(values[0])}
        entropy = float(released_entropy(values[None])[0]) if "label_entropy" in self._needs() else None
        return {fact: values.tolist(), "label_entropy": entropy}

    def settle(self, min_clients: int) -> None:
        """Choose the participants: named or online clients that have sent the required label statistics.

        Raises:
            ConfigError: If fewer than `min_clients` clients qualify.
        """
        assert self.population is not None  # `gather` comes first
        refused = self._agree_on_samples()
        participants = [client for client in self.population.participants.tolist() if client not in refused]
        unseen = [client for client in self.population.unseen.tolist() if client not in refused]
        lacking: dict[int, str] = {}
        if self._needs():
            lacking = dict.fromkeys((client for client in participants if client not in self.nodes), "it is offline")
            lacking |= self.learn_labels(participants)
            for client, reason in sorted(lacking.items()):
                LOG.warning(
                    "Client %s does not train: components need statistics of its labels, but %s.", client, reason
                )
        participants = [client for client in participants if client not in lacking]
        if len(participants) < min_clients:
            reasons = "; ".join(f"client {client}: {reason}" for client, reason in sorted(lacking.items()))
            raise ConfigError(
                "The number of clients that report the label statistics of the components must be at least "
                f"{min_clients}; got {len(participants)} ({reasons}). Choose components that need no label statistics, "
                "or lower min_clients."
            )
        LOG.info("Clients %s participate; other clients are only evaluated.", participants)
        self.population = Population(np.array(participants, np.int64), np.array(sorted({*unseen, *lacking}), np.int64))

    def return_to(self, participants: Sequence[int]) -> None:
        """Restore the participants from an earlier process of the same run; all other named clients are unseen."""
        named = [] if self.population is None else [*self.population.participants, *self.population.unseen]
        unseen = np.setdiff1d(np.array(named, np.int64), participants)
        self.population = Population(np.array(participants, np.int64), unseen)
        self.samples = next((facts.samples for facts in self.known.values() if facts.samples is not None), None)

    def view(self, participants: Sequence[int]) -> ServerView:
        """Return the server's view of participants at the start of a round; unknown participants have no examples."""
        facts, nodes = [self.known.get(client) for client in participants], self.nodes_of(participants)
        sizes = np.array([0 if f is None else f.num_examples for f in facts], np.int64)
        present = np.array([client in nodes for client in participants], np.bool_) & (sizes > 0)
        labels: dict[str, Any] = {
            fact: np.array([getattr(f, fact) for f in facts if f is not None], np.float64) for fact in self._needs()
        }
        view = ServerView.of(np.array(participants, np.int64), sizes, available=present)
        return replace(view, **labels, constant_bytes=constant_bytes(self.constants))

    def bits_per_example(self) -> float:
        """Return the median size of an example over participants, on which a single client has little influence.

        Raises:
            ConfigError: If most participants do not report the size.
        """
        assert self.population is not None
        participants = self.population.participants.tolist()
        bits = float(np.median([self.known[c].bits_per_example for c in participants if c in self.known]))
        if bits == 0:
            raise ConfigError(
                "The radio requires the size of an example, but most participants did not report it. Call "
                "share_labels with bits_per_example."
            )
        return bits

    def _needs(self) -> frozenset[str]:
        """Return the label statistics that the server needs; secure aggregation needs none."""
        return frozenset() if self.federation.label_statistics.only_sum else self.federation.needs()

    def nodes_of(self, clients: Iterable[int]) -> dict[int, int]:
        """Return the nodes of these clients that are online."""
        nodes = self.nodes
        return {client: nodes[client] for client in clients if client in nodes and nodes[client] in self.online}

    def unseen(self) -> list[int]:
        """Return the clients that never train: named unseen clients, and clients that connected too late."""
        assert self.population is not None
        participants = set(self.population.participants.tolist())
        return sorted({*self.population.unseen.tolist(), *(set(self.nodes) - participants)})


def send_and_wait(grid: Grid, sent: Iterable[Message], timeout: float) -> list[Message]:
    """Send messages and return the replies that arrive in time, in any order.

    `Grid.send_and_receive` has the same effect, but in a deployment it checks for replies only every three seconds.
    """
    waiting = set(grid.push_messages(list(sent)))
    until, replies = time.monotonic() + timeout, []
    while waiting:
        arrived = list(grid.pull_messages(waiting))
        replies += arrived
        waiting -= {reply.metadata.reply_to_message_id for reply in arrived}
        if not waiting or time.monotonic() > until:
            break
        time.sleep(POLL_SECONDS)
    return replies
