"""Fitting an adaptation rule by messages.

Queries go to clients and sums come back until the rule is fitted. The participants are fixed at the start: those that
are available and have held-out examples. The same messages carry cross-fits, which score participants. If a participant
fails to reply, all fits restart without it, so each is bit for bit the fit of those that stayed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from logging import getLogger
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from fedreach._util.arrays import AnyArray, Floats
from fedreach._util.errors import TrainingError
from fedreach.evaluation.modes import folds
from fedreach.federation.adaptation.fitting import UNFITTED, FittedRule, after_exchange, next_query, plain_sum
from fedreach.federation.base import name_of
from fedreach.federation.federation import Federation
from fedreach.federation.secure_aggregation import LARGEST_EXACT, sum_of_limbs
from fedreach.federation.types import State
from fedreach.flower import messages
from fedreach.flower.clients import ClientRegistry

LOG = getLogger("flwr")
Answers = dict[int, dict[str, AnyArray]]
"""Fit -> contribution of a participant."""


class RuleFit(NamedTuple):
    """The fitted rule of a model, and the cross-fitted rules that score participants."""

    fitted: FittedRule
    without: Mapping[int, State]  # participant -> state of the rule that others fitted


class Exchange(NamedTuple):
    """One exchange of several fits."""

    session: str
    number: int
    sets: Sequence[Sequence[int]]  # participants of each fit
    queries: Mapping[int, State]  # fit -> query of its rule; a finished fit has none


@dataclass(eq=False)
class RemoteFit:
    """Fits the adaptation rule of the federation."""

    federation: Federation
    registry: ClientRegistry
    held_out: dict[int, int] = field(default_factory=dict, init=False)  # participant -> its number of held-out examples

    def holding_out(self, participants: Sequence[int]) -> list[int]:
        """Return the available participants that have held-out examples and send sums over them."""

        def read(client: int, reply: Message) -> int:
            known_count = self.registry.known[client].num_held_out or 0
            return messages.same_count(messages.metrics_of(reply), messages.EXAMPLES, known_count)

        contents: dict[int, Mapping[str, Any]] = {client: {} for client in participants}
        counts, _ = self.registry.ask("query.adaptation", contents, read, "does not help to fit the adaptation rule")
        self.held_out = {client: count for client, count in sorted(counts.items()) if count}
        return list(self.held_out)

    def fitted(self, record: ArrayRecord, members: Sequence[int], *, cross: bool) -> RuleFit:
        """Fit the rule on these participants; all sums exclude one that leaves.

        Args:
            record: The model.
            members: Participants that contribute, ids increasing.
            cross: Also fit the rule without each fold of the participants, to score them.

        Raises:
            TrainingError: If no participant is left; with secure aggregation, if only one is left.
        """
        contributors, departed = list(members), dict[int, int]()
        while True:
            if len(contributors) < (messages.MIN_CLIENTS if self._hides else 1):
                departures = f", and clients {sorted(departed)} left in the midst" if departed else ""
                raise TrainingError(
                    f"{name_of(self.federation.adaptation)} cannot be fitted: {len(contributors)} participants that "
                    f"hold examples out are left{departures}. Start clients again, and then the run, in the same "
                    "folder: nothing is trained anew."
                )
            parts = folds(contributors) if cross else []
            if self._hides and any(len(part) < messages.MIN_CLIENTS for part in parts):
                LOG.warning("Participants are not adapted themselves: a sum without one of them would show its part.")
                parts = []
            fits, lost, exchange = self._attempt(
                record, [contributors, *([c for c in contributors if c not in p] for p in parts)]
            )
            if not lost:
                break
            for client, reason in lost.items():
                LOG.warning(
                    "Client %s left in exchange %s of fitting the adaptation rule, which begins anew without it: %s.",
                    *(client, exchange, reason),
                )
            departed |= dict.fromkeys(lost, exchange)
            contributors = [client for client in contributors if client not in lost]
        without = {client: fit.state for part, fit in zip(parts, fits[1:], strict=True) for client in part}
        return RuleFit(fits[0]._replace(left=departed), without)

    def _attempt(
        self, record: ArrayRecord, sets: Sequence[Sequence[int]]
    ) -> tuple[list[FittedRule], Mapping[int, str], int]:
        """Return the fit of each set; or the participants that did not reply, the reasons, and the exchange."""
        rule, fits, session, number = self.federation.adaptation, [UNFITTED] * len(sets), uuid4().hex, 0
        while True:
            next_queries = {fit: next_query(rule, fitted) for fit, fitted in enumerate(fits)}
            queries = {fit: query for fit, query in next_queries.items() if query is not None}
            if not queries:
                return fits, {}, number
            number += 1
            answers, lost = self._exchange(record, Exchange(session, number, sets, queries))
            if lost:
                return fits, lost, number
            LOG.info("Fitting %s, exchange %s: %s participants answered.", name_of(rule), number, len(answers))
            for fit, query in queries.items():
                sums = self._sum_answers([answers[client][fit] for client in sets[fit]])
                fits[fit] = after_exchange(rule, fits[fit], query, sums)

    def _exchange(self, record: ArrayRecord, exchange: Exchange) -> tuple[dict[int, Answers], dict[int, str]]:
        """Return the answers, client -> fit -> arrays, and the reasons of missing ones."""
        fits = {c: [fit for fit in exchange.queries if c in exchange.sets[fit]] for c in exchange.sets[0]}
        contents = {c: self._question(record, exchange, of_client) for c, of_client in fits.items() if of_client}

        def read(client: int, reply: Message) -> Answers:
            return {fit: self._read_arrays(messages.arrays(reply, f"sums-{fit}")) for fit in fits[client]}

        self.registry.online = frozenset(self.registry.grid.get_node_ids())
        answers, lost = self.registry.ask("query.adaptation", contents, read)
        for fit in exchange.queries:
            odd = _find_odd_shapes({client: of_fits[fit] for client, of_fits in answers.items() if fit in of_fits})
            for client, reason in odd.items():
                self.registry.blame(f"client {client}", messages.ReplyError(reason))
            lost |= odd
        return answers, lost

    @property
    def _hides(self) -> bool:
        return self.federation.label_statistics.only_sum

    def _question(self, record: ArrayRecord, exchange: Exchange, fits: Sequence[int]) -> RecordDict:
        request = ConfigRecord(
            {messages.RUN: self.registry.run, messages.SESSION: exchange.session, messages.EXCHANGE: exchange.number}
        )
        request[messages.FITS] = list(fits)
        content = RecordDict({messages.MODEL: record, messages.FEDREACH: request})
        for fit in fits:
            content[f"query-{fit}"] = messages.array_record(exchange.queries[fit])
            if self._hides:
                request[f"members-{fit}"] = list(exchange.sets[fit])
        if self._hides:
            content[messages.KEYS] = self.registry.keys(exchange.sets[0])
        return content

    def _read_arrays(self, record: ArrayRecord) -> dict[str, AnyArray]:
        kind = np.uint64 if self._hides else np.float64
        return {key: messages.array(record, key, None, kind, LARGEST_EXACT) for key in record}

    def _sum_answers(self, answers: Sequence[Mapping[str, AnyArray]]) -> dict[str, Floats]:
        """Return the sums of the participants' answers by name, in the order of their ids."""
        columns = {name: [answer[name] for answer in answers] for name in answers[0]}
        if self._hides:  # words wrap around
            return {name: sum_of_limbs(np.sum(words, axis=0), len(words)) for name, words in columns.items()}
        return {name: plain_sum(parts) for name, parts in columns.items()}


def _find_odd_shapes(answers: Mapping[int, Mapping[str, AnyArray]]) -> dict[int, str]:
    """Return the clients whose arrays differ from most in names or shapes, and the reasons."""
    shapes = {c: {name: values.shape for name, values in sorted(answer.items())} for c, answer in answers.items()}
    usual = max(shapes.values(), key=[*shapes.values()].count, default={})
    return {c: f"it sent {shape}, and most clients {usual}" for c, shape in shapes.items() if shape != usual}
