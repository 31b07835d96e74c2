"""What becomes of replies: answers that count, and why the others do not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from logging import getLogger
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Message

from fedreach.arrays import AnyArray, Floats
from fedreach.errors import PartError
from fedreach.federation.aggregation.secure_sum import FixedPoint, mean_of
from fedreach.federation.federation import Federation
from fedreach.federation.state import FederationState
from fedreach.federation.values import ClientView, Reports
from fedreach.flower import messages
from fedreach.flower.checks import Checks
from fedreach.flower.clients import ClientRegistry
from fedreach.flower.messages import LACKS, MASKED, MODEL, UPDATE, ReplyError
from fedreach.models.flat import Layout

LOG = getLogger("flwr")


class Answer(NamedTuple):
    """A report that counts."""

    update: AnyArray  # (d,) of float32; of a secure sum, (d + 1,) masked words
    metrics: Mapping[str, float]
    steps: int


@dataclass
class Collected:
    """What came from those who were asked."""

    answers: dict[int, Answer]
    lost: dict[int, str]  # client -> why its reply does not count
    lost_memory: list[int] = field(default_factory=list)  # those that lost what they kept between rounds

    @classmethod
    def nothing(cls, asked: Iterable[int], timeout: float) -> Collected:
        """Return what there is before any reply."""
        return cls({}, dict.fromkeys(asked, f"no reply within {timeout:g} s"))


@dataclass(frozen=True, eq=False)
class Incoming:
    """Reads the reports of a run."""

    federation: Federation
    layout: Layout
    checks: Checks
    registry: ClientRegistry  # knows what clients said before, and takes note of who says what cannot be

    def read(
        self,
        replies: Iterable[Message],
        clients: Mapping[int, int],
        collected: Collected,
        state: FederationState,
        view: ClientView,
        run: str,
    ) -> None:
        """Add the replies of those who were asked, node -> client, to what was collected; a node counts once.

        `run` names the run, which replies must be of, as of the round of the view.
        """
        waiting = dict(clients)
        collected.lost_memory = []
        for reply in replies:
            client = waiting.pop(reply.metadata.src_node_id, None)
            if client is None:  # an error in Flower itself comes from node 1, and says not whom it is about
                what = reply.error.reason if reply.has_error() else "a reply that nobody asked for"
                LOG.warning("Node %s: %s", reply.metadata.src_node_id, what)
                continue
            try:
                metrics = messages.metrics_of(messages.content_of(reply))
                if LACKS in metrics:
                    collected.lost_memory.append(client)
                    collected.lost[client] = "it lost what it kept between rounds"
                    continue
                if self.registry.known[client].trains_as_asked:
                    messages.check_question(reply, run, view.round)
                collected.answers[client] = self._answer(client, reply, metrics, state, view)
                collected.lost.pop(client)
            except ReplyError as error:
                collected.lost[client] = str(error)
                self.registry.blame(f"client {client}", error)

    def _answer(
        self, client: int, reply: Message, metrics: Mapping[str, Any], state: FederationState, view: ClientView
    ) -> Answer:
        """Return a report, or say by a ReplyError why it cannot be believed."""
        checks, facts, hidden = self.checks, self.registry.known[client], self.federation.label_statistics.only_sum
        count, loss = checks.num_examples(metrics, facts), checks.loss(metrics)
        numbers = {"num_examples": float(count), "loss": loss} | ({} if hidden else checks.measured(metrics))
        steps = checks.steps(metrics, facts, client, view.round)
        start = state.models[int(state.clusters[view.rows(np.array([client]))[0]])]
        if hidden:
            update = messages.array(messages.arrays(reply, MASKED), MASKED, (self.layout.size + 1,), np.uint64)
        elif UPDATE in reply.content.array_records:
            update = messages.array(messages.arrays(reply, UPDATE), UPDATE, (self.layout.size,))
        else:
            update = messages.params_of(messages.arrays(reply, MODEL), self.layout) - start
        if not hidden:
            update = checks.update(update, start, facts, steps, view.round)
        return Answer(update, numbers, steps)

    def reports(self, collected: Collected, view: ClientView, *, probe: bool = False) -> Reports:
        """Return what came as the federation's parts see it, ids increasing."""
        hidden = self.federation.label_statistics.only_sum
        if hidden and collected.lost and collected.answers:
            missing, why = next(iter(collected.lost.items()))
            reason = f"the masks of a secure sum cancel only if all report, and client {missing} did not: {why}"
            collected.lost |= dict.fromkeys(collected.answers, reason)
            collected.answers = {}
        ids = np.array(sorted(collected.answers), np.int64)
        answers, rows = [collected.answers[client] for client in ids.tolist()], view.rows(ids)
        update = np.empty((len(ids), 0 if hidden else self.layout.size), np.float32)
        for row, answer in enumerate(() if hidden else answers):
            update[row] = answer.update
        mean = None
        if hidden and answers:
            total = np.zeros(self.layout.size + 1, np.uint64)
            for answer in answers:
                total += answer.update  # wraps around at 2^64
            try:
                mean = mean_of(total, FixedPoint(len(answers)))
            except PartError as error:  # one of them sent nonsense, and nobody can tell who
                collected.lost |= dict.fromkeys(collected.answers, f"the secure sum makes no sense: {error}")
                collected.answers = {}
                return self.reports(collected, view, probe=probe)
        names = ["num_examples", "loss"]
        names += [] if hidden else [measurement.name for measurement in self.federation.measurements()]
        metrics: dict[str, Floats] = {name: np.array([a.metrics[name] for a in answers]) for name in names}
        if view.label_entropy is not None:
            metrics["label_entropy"] = view.label_entropy[rows]
        return Reports(
            ids,
            update,
            metrics,
            label_counts=None if view.label_counts is None else view.label_counts[rows],
            lost=dict(collected.lost),
            trainable=self.layout.num_trainable,
            output_bias=self.layout.output_bias,
            steps=None if hidden else np.array([answer.steps for answer in answers], np.int64),
            round=view.round,
            probe=probe,
            secure_mean=mean,
        )
