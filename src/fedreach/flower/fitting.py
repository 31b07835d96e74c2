"""A serving rule is fitted by messages: queries down, sums up, until it has all that it needs.

The participants that can be reached as it begins and hold examples out are the set, once and for all exchanges. The
fits without a part of them, which their own scores go by, go on in the same messages. One that does not answer, or
wrongly, is out of all sums: the fits begin anew without it, so that each is bit for bit the fit of those that stayed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import getLogger
from typing import NamedTuple
from uuid import uuid4

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedreach.arrays import AnyArray, Floats
from fedreach.errors import PartError, TrainingError
from fedreach.evaluation.serving import folds
from fedreach.federation.aggregation.secure_sum import LARGEST_EXACT, NO_SUM, sum_of_limbs
from fedreach.federation.federation import Federation
from fedreach.federation.serving.fit import UNFITTED, Fitted, after_exchange, next_query, plain_sum
from fedreach.federation.traits import name_of
from fedreach.federation.values import State
from fedreach.flower import masks, messages
from fedreach.flower.clients import ClientRegistry, ask
from fedreach.flower.messages import EXAMPLES, EXCHANGE, FITS, KEYS, MODEL, OURS, RUN, SESSION, LostError, ReplyError

LOG = getLogger("flwr")
Answers = dict[int, dict[str, AnyArray]]
"""Fit -> what a participant contributes to it."""


class Shared(NamedTuple):
    """A model's rule, and those by which the participants' own scores are found."""

    fitted: Fitted
    without: Mapping[int, State]  # participant -> the rule's state as others fitted it


class Exchange(NamedTuple):
    """One exchange of fits that go on together."""

    session: str
    number: int
    sets: Sequence[Sequence[int]]  # of each fit, who contributes
    queries: Mapping[int, State]  # fit -> what its rule asks; a fit that has ended has none


@dataclass(eq=False)
class RemoteFit:
    """Fits the federation's rule.

    Args:
        federation: Whose rule it is.
        registry: Knows the nodes.
        run: Name of the run, for masks.
        grid: Carries messages.
    """

    federation: Federation
    registry: ClientRegistry
    run: str
    grid: Grid
    nodes: Mapping[int, int] = field(default_factory=dict, init=False)  # participant -> node, as the fits began
    held_out: dict[int, int] = field(default_factory=dict, init=False)  # participant -> examples, as it says

    def holding_out(self, participants: Sequence[int]) -> list[int]:
        """Return which of the participants that can be reached hold examples out, and tell sums over them."""
        nodes, found = self.registry.nodes_of(participants), []
        self.nodes = nodes
        sent = [Message(RecordDict(), node, "query.serving", ttl=self.registry.timeout) for node in nodes.values()]
        replies = _by_node(ask(self.grid, sent, self.registry.timeout))
        for client, node in nodes.items():
            try:
                said = messages.metrics_of(self._reply(replies, node))
                count, known = messages.whole(said, EXAMPLES), self.registry.known[client].num_held_out
                if count != known:
                    raise ReplyError(f"it says that it holds {count} examples out, but it said {known} before")
                if count:
                    self.held_out[client] = count
                    found.append(client)
            except ReplyError as error:
                self.registry.blame(f"client {client}", error)
                LOG.warning("Client %s does not help to fit the serving rule: %s.", client, error)
        return found

    def fitted(self, record: ArrayRecord, members: Sequence[int], *, cross: bool) -> Shared:
        """Fit the rule on these participants; one that leaves is taken out of all sums.

        Args:
            record: The model.
            members: Who contributes, ids increasing.
            cross: Whether the rule is fitted anew without each part of the participants, for their own scores.

        Raises:
            TrainingError: If nobody is left; under a secure sum, if one is left.
        """
        there, left = list(members), dict[int, int]()
        hidden = self._hidden
        while True:
            if len(there) < (masks.MIN_CLIENTS if hidden else 1):
                gone = f", and clients {sorted(left)} left in the midst" if left else ""
                raise TrainingError(
                    f"{name_of(self.federation.serving)} cannot be fitted: {len(there)} participants that hold "
                    f"examples out are left{gone}. Start clients again, and then the run, in the same folder: nothing "
                    "is trained anew."
                )
            parts = folds(there) if cross else []
            if hidden and any(len(part) < masks.MIN_CLIENTS for part in parts):
                LOG.warning("Participants are not served themselves: a sum without one of them would show its part.")
                parts = []
            fits, lost, exchange = self._attempt(record, [there, *([c for c in there if c not in p] for p in parts)])
            if not lost:
                break
            for client, reason in lost.items():
                LOG.warning(
                    "Client %s left in exchange %s of fitting the serving rule, which begins anew without it: %s.",
                    *(client, exchange, reason),
                )
            left |= dict.fromkeys(lost, exchange)
            there = [client for client in there if client not in lost]
        without = {client: fit.state for part, fit in zip(parts, fits[1:], strict=True) for client in part}
        return Shared(fits[0]._replace(left=left), without)

    def _attempt(
        self, record: ArrayRecord, sets: Sequence[Sequence[int]]
    ) -> tuple[list[Fitted], Mapping[int, str], int]:
        """Return a fit by each of these sets; or who did not answer, why, and in which exchange."""
        fits, session, number = [UNFITTED] * len(sets), uuid4().hex, 0
        while True:
            asked = {fit: next_query(self.federation.serving, fitted) for fit, fitted in enumerate(fits)}
            queries = {fit: query for fit, query in asked.items() if query is not None}
            if not queries:
                return fits, {}, number
            number += 1
            answers, lost = self._exchange(record, Exchange(session, number, sets, queries))
            if lost:
                return fits, lost, number
            said = "Fitting %s, exchange %s: %s participants answered."
            LOG.info(said, name_of(self.federation.serving), number, len(answers))
            for fit, query in queries.items():
                sums = self._summed([answers[client][fit] for client in sets[fit]])
                facts = [self.registry.known[client] for client in sets[fit]]
                if self._hidden and not self.registry.checks.are_contributions(query, sums, facts):
                    raise PartError(NO_SUM)
                fits[fit] = after_exchange(self.federation.serving, fits[fit], query, sums)

    def _exchange(self, record: ArrayRecord, exchange: Exchange) -> tuple[dict[int, Answers], dict[int, str]]:
        """Return what participants answer, client -> fit -> arrays, and why some do not."""
        asked = {c: [fit for fit in exchange.queries if c in exchange.sets[fit]] for c in exchange.sets[0]}
        asked = {client: fits for client, fits in asked.items() if fits}
        online = set(self.grid.get_node_ids())  # of those who were there as the fits began
        nodes = {client: self.nodes[client] for client in asked if self.nodes[client] in online}
        sent = [self._question(record, exchange, asked[client], node) for client, node in nodes.items()]
        replies = _by_node(ask(self.grid, sent, self.registry.timeout))
        answers: dict[int, Answers] = {}
        lost = dict.fromkeys((client for client in asked if client not in nodes), "it is not there any more")
        for client, node in nodes.items():
            try:
                reply = self._reply(replies, node)
                answers[client] = {fit: self._arrays(reply, messages.sums_name(fit)) for fit in asked[client]}
            except ReplyError as error:
                lost[client] = str(error)
        for fit, query in exchange.queries.items():
            mine = {client: answer[fit] for client, answer in answers.items() if fit in answer}
            impossible = {} if self._hidden else self._impossible(query, mine)
            lost |= impossible | _of_other_shapes({c: answer for c, answer in mine.items() if c not in impossible})
        for client, reason in lost.items():
            if client in answers:
                self.registry.blame(f"client {client}", ReplyError(reason))
        return answers, lost

    def _impossible(self, query: State, answers: Mapping[int, Mapping[str, AnyArray]]) -> dict[int, str]:
        """Return whose contributions to a fit no client with their examples makes, and that it is so."""
        found = {}
        for client, answer in answers.items():
            try:
                self.registry.checks.contribution(query, answer, self.registry.known[client])
            except ReplyError as error:
                found[client] = str(error)
        return found

    @property
    def _hidden(self) -> bool:
        return self.federation.label_statistics.only_sum

    def _question(self, record: ArrayRecord, exchange: Exchange, fits: Sequence[int], node: int) -> Message:
        asked = ConfigRecord({SESSION: exchange.session, EXCHANGE: exchange.number, FITS: list(fits)})
        asked[RUN] = self.run
        content = RecordDict({MODEL: record, OURS: asked})
        for fit in fits:
            content[messages.query_name(fit)] = messages.array_record(exchange.queries[fit])
            if self._hidden:
                asked[messages.members_name(fit)] = list(exchange.sets[fit])
        if self._hidden:
            content[KEYS] = self.registry.keys(exchange.sets[0])
        return Message(content, node, "query.serving", ttl=self.registry.timeout)

    def _arrays(self, reply: Message, name: str) -> dict[str, AnyArray]:
        record, kind = messages.arrays(reply, name), self._kind
        found = {key: messages.array(record, key, None, kind) for key in record}
        for key, values in found.items():
            if kind is np.float64 and (largest := float(np.abs(values).max(initial=0))) > LARGEST_EXACT:
                raise ReplyError(f"its {key!r} holds numbers up to {largest:.3g}")
            if kind is np.uint64 and (not values.ndim or len(values) != 4):
                raise ReplyError(f"its {key!r} must be four words a number; got {values.shape}")
        return found

    @property
    def _kind(self) -> type:
        return np.uint64 if self._hidden else np.float64

    def _summed(self, answers: Sequence[Mapping[str, AnyArray]]) -> dict[str, Floats]:
        """Return sums by name, of what each participant answers, in the order of their ids."""
        columns = {name: [answer[name] for answer in answers] for name in answers[0]}
        if self._hidden:  # words wrap around
            return {name: sum_of_limbs(np.sum(words, axis=0), len(words)) for name, words in columns.items()}
        return {name: plain_sum(parts) for name, parts in columns.items()}

    def _reply(self, replies: Mapping[int, Message], node: int) -> Message:
        if node not in replies:
            raise LostError(f"no answer within {self.registry.timeout:g} s")
        return messages.content_of(replies[node])


def _by_node(replies: Iterable[Message]) -> dict[int, Message]:
    """Return the first reply of each node."""
    found: dict[int, Message] = {}
    for reply in replies:
        found.setdefault(reply.metadata.src_node_id, reply)
    return found


def _of_other_shapes(answers: Mapping[int, Mapping[str, AnyArray]]) -> dict[int, str]:
    """Return whose arrays have other names or shapes than most clients' have, and that they do."""
    shapes = {c: {name: values.shape for name, values in sorted(answer.items())} for c, answer in answers.items()}
    usual = max(shapes.values(), key=[*shapes.values()].count, default={})
    return {c: f"it sent {shape}, and most clients {usual}" for c, shape in shapes.items() if shape != usual}
