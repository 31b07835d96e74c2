"""Rounds on Flower: messages to clients and their replies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from logging import getLogger
from typing import NamedTuple

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict

from fedreach._util.arrays import AnyArray, Float32s, Floats
from fedreach._util.errors import ComponentError, ConfigError
from fedreach.engines.protocols import Engine
from fedreach.federation.attacks import Attackers
from fedreach.federation.base import name_of
from fedreach.federation.checks import erasing_updates, too_long
from fedreach.federation.federation import Federation
from fedreach.federation.participation import Participation
from fedreach.federation.secure_aggregation import FixedPoint, mean_of
from fedreach.federation.state import FederationState
from fedreach.federation.steps import (
    AskLosses,
    AskServer,
    AskUpdates,
    RoundOutcome,
    Steps,
    lost_replies,
    next_request,
    run_until_cohort,
)
from fedreach.federation.types import ClientResults
from fedreach.flower import messages
from fedreach.flower.clients import ClientRegistry
from fedreach.flower.secure_server import SecureSum
from fedreach.runs.simulation import train_server

LOG = getLogger("flwr")
LOST_MEMORY = "it lost its state between rounds"


class Answer(NamedTuple):
    """A reply that counts."""

    update: AnyArray  # (d,) of float32; with secure aggregation, (d + 1,) masked words
    metrics: Mapping[str, float]
    steps: int


Answers = dict[int, Answer]
Reasons = dict[int, str]
"""Client -> reason why its reply does not count."""


def model_contents(
    writer: messages.ModelWriter,
    registry: ClientRegistry,
    models: Sequence[Float32s],
    config: ConfigRecord,
    round_: int,
) -> Callable[[int, int], RecordDict]:
    """Return a function of a model's number and a client that returns the content of a message with the model.

    Each model is encoded once for all clients that need the same format. The content includes FedReach's record, and
    the user's config with the round in the form that Flower's strategies use.
    """

    @cache
    def write(model: int, trains_as_asked: bool) -> ArrayRecord:
        return (writer.record if trains_as_asked else writer.whole)(models[model])

    def content(model: int, client: int) -> RecordDict:
        return RecordDict(
            {
                messages.MODEL: write(model, registry.trains_as_asked(client)),
                messages.CONFIG: ConfigRecord({**config, "server-round": round_}),
                messages.FEDREACH: ConfigRecord({messages.RUN: registry.run, messages.ROUND: round_}),
            }
        )

    return content


@dataclass(eq=False)
class OpenRound:
    """The client backend of a round on Flower: `begin` returns messages to the cohort, and `end` reads the replies.

    The object contains the random generator of the round, so it is never stored. A restarted server repeats the round.
    """

    federation: Federation
    registry: ClientRegistry
    writer: messages.ModelWriter
    rounds: int  # length of the run, which schedules of the local learning rate refer to
    participation: Participation  # loses replies as in the simulator
    engine: Engine | None  # of the server, if it trains
    counted: Mapping[int, int]  # client -> last round whose reply counted
    config: ConfigRecord  # the user's own, which FedReach does not read
    attackers: Attackers  # clients whose updates the server changes, if their attack needs the honest updates
    probed: Answers = field(default_factory=dict)  # answers of clients that sent their update in the probe
    secure: SecureSum | None = field(default=None, init=False)  # the masked sum of the cohort's updates
    began: float = field(default_factory=time.perf_counter)

    def begin(self, steps: Steps) -> list[Message]:
        """Run the round until its cohort is selected; return messages to clients that did not train in the probe."""
        self.steps, self.request = steps, run_until_cohort(steps, self)
        if isinstance(self.request, AskServer):
            return []
        chosen = self.request.selection.ids.tolist()
        LOG.info("FedReach chose clients %s.", chosen)
        remaining = [client for client in chosen if client not in self.probed]
        if self.federation.label_statistics.only_sum and chosen:
            self.secure = SecureSum(self.registry, chosen)
            remaining = [*self.secure.sealed]
        return self.registry.compose(MessageType.TRAIN, self._contents(self.request, remaining))

    def end(self, replies: Iterable[Message]) -> RoundOutcome:
        """Finish the round with the replies to the messages of `begin`."""
        request = self.request
        if not isinstance(request, AskServer):
            chosen = request.selection.ids.tolist()
            probed = {client: self.probed[client] for client in chosen if client in self.probed}
            remaining = [client for client in chosen if client not in probed]
            done = next_request(self.steps, self.reports(*self.collect(request, remaining, replies, probed), request))
            if isinstance(done, RoundOutcome):
                return done
            assert isinstance(done, AskServer)  # clients have no more to do
            request = done
        done = next_request(self.steps, self.learnt(request))
        assert isinstance(done, RoundOutcome)
        return done

    # ----------------------------------------------------------------------------------------------- as a `Side`

    def losses(self, request: AskLosses) -> Mapping[int, float]:
        """Request the losses of the clients of a probe, and return the losses that arrived in time."""
        probe, state, view = request.probe, request.state, request.view
        ids = probe.ids.tolist()
        custom_apps = [client for client in ids if not self.registry.known[client].trains_as_asked]
        if custom_apps:
            raise ConfigError(
                f"{name_of(self.federation.selection)} requests losses, which the app of client {custom_apps[0]} does "
                "not support. Use fedreach.flower.app.client_app, or another selection."
            )
        content_of = model_contents(self.writer, self.registry, list(state.models), ConfigRecord(), view.round)
        contents: dict[int, RecordDict] = {}
        for client, row in zip(ids, view.rows(probe.ids).tolist(), strict=True):
            contents[client] = content = content_of(int(state.clusters[row]), client)
            batch_size = probe.batch_size if probe.asks == "batch_loss" else 0
            content.config_records[messages.FEDREACH]["batch-size"] = batch_size

        def read(client: int, reply: Message) -> float:
            messages.check_question(reply, self.registry.run, view.round)
            return float(messages.number(messages.metrics_of(reply), messages.LOSS))

        return self.registry.ask("query.loss", contents, read, "did not report its loss")[0]

    def updates(self, request: AskUpdates) -> ClientResults:
        """Request the updates of the clients of a probe; `end` receives the updates of the cohort."""
        ids = request.selection.ids.tolist()
        sent = self.registry.compose(MessageType.TRAIN, self._contents(request, ids))
        self.probed, lost = self.collect(request, ids, self.registry.send(sent), {})
        for client, reason in lost.items():
            LOG.warning("Client %s did not reply to the probe of round %s: %s.", client, request.view.round, reason)
        return self.reports(self.probed, lost, request)

    def learnt(self, request: AskServer) -> FederationState:
        assert self.engine is not None  # the strategy checked it
        return train_server(self.federation, self.engine, self.engine.task.data.server, request)

    # --------------------------------------------------------------------------------------------------- messages

    def _contents(self, request: AskUpdates, clients: Sequence[int], *, restore: bool = False) -> dict[int, RecordDict]:
        """Return the messages to clients: their model, the state of the solver, and the round of their memory.

        Args:
            restore: Send the memory of clients that lost it.
        """
        federation, state, view = self.federation, request.state, request.view
        nodes = self.registry.nodes_of(clients)
        if not nodes:
            return {}
        selection, memory = request.selection, state.memory
        draws = None if selection.draws is None else dict(zip(selection.ids.tolist(), selection.draws, strict=True))
        solver = federation.memory_solver
        content_of = model_contents(self.writer, self.registry, list(state.models), self.config, view.round)
        lr = federation.local.lr_at(view.round, self.rounds)
        share = view.share
        contents: dict[int, RecordDict] = {}
        for client in nodes:
            row = int(view.rows(np.array([client]))[0])
            model = int(state.clusters[row])
            contents[client] = content = content_of(model, client)
            terms = content.config_records[messages.FEDREACH]
            terms["lr"], terms["share"] = lr, float(share[row])
            terms["memory-round"] = 0 if memory is None or memory.blocks[row] is None else self.counted[client]
            if draws is not None:
                terms[messages.DRAWS] = int(draws[client])
            if solver is not None and solver.sends_state and state.solver[model]:
                content[messages.SOLVER] = messages.array_record(state.solver[model])
            if restore and memory is not None:
                content[messages.MEMORY] = messages.array_record({messages.MEMORY: memory.read(np.array([row]))[0]})
            if self.secure is not None:
                content.update(self.secure.request(client))
        return contents

    def collect(
        self, request: AskUpdates, clients: Sequence[int], replies: Iterable[Message], probed: Answers
    ) -> tuple[Answers, Reasons]:
        """Return the answers that count, including `probed`, and the reasons why other answers do not count.

        If a client lost its state, the server sends it and repeats the request.
        """
        reader = partial(self._read_answer, request)
        answers, lost = self.registry.read(replies, clients, reader)
        lost |= {} if self.secure is None else self.secure.lost
        forgetful = [client for client, reason in lost.items() if reason == LOST_MEMORY]
        if forgetful:
            LOG.info("Clients %s lost their stored vectors; the server sends them again.", forgetful)
            contents = self._contents(request, forgetful, restore=True)
            restored, still_lost = self.registry.ask(MessageType.TRAIN, contents, reader)
            answers |= restored
            lost = {client: reason for client, reason in lost.items() if client not in restored} | still_lost
        answers |= probed
        for client, reason in self._find_erasing(request, answers).items():
            self.registry.blame(f"client {client}", messages.ReplyError(reason))
            del answers[client]
            lost[client] = reason
        ids = np.array(sorted(answers), np.int64)
        missing = lost_replies(self.participation, ids, self.federation.seed, request.view.round, probe=request.probe)
        for client in missing.tolist():
            del answers[client]
            lost[client] = "its reply did not arrive"
        return answers, lost

    def _find_erasing(self, request: AskUpdates, answers: Answers) -> Reasons:
        """Return the clients whose update would erase the model, and the reasons; see `erasing_updates`."""
        if self.federation.label_statistics.only_sum:
            return {}
        clients = sorted(answers)
        largest = np.array([np.abs(answers[client].update).max(initial=0) for client in clients], np.float64)
        clusters = request.state.clusters[request.view.rows(np.array(clients, np.int64))]
        models = np.abs(request.state.models).max(axis=1, initial=0)[clusters].astype(np.float64)
        return {clients[row]: reason for row, reason in erasing_updates(largest, models).items()}

    def _read_answer(self, request: AskUpdates, client: int, reply: Message) -> Answer:
        """Return the answer in a reply; raise a ReplyError if it is wrong."""
        federation, layout, facts = self.federation, self.writer.layout, self.registry.known[client]
        state, view, hides = request.state, request.view, federation.label_statistics.only_sum
        metrics = messages.metrics_of(reply)
        if messages.LACKS_MEMORY in metrics:
            raise messages.LostError(LOST_MEMORY)
        if facts.trains_as_asked:
            messages.check_question(reply, self.registry.run, view.round)
        count = messages.same_count(metrics, messages.EXAMPLES, facts.num_examples)
        names = (
            [messages.LOSS]
            if hides
            else [messages.LOSS, *(measurement.name for measurement in federation.measurements())]
        )
        numbers = {name: float(messages.number(metrics, name)) for name in names}
        numbers = {"num_examples": float(count), "loss": numbers.pop(messages.LOSS), **numbers}
        size, ids = np.array([count]), np.array([client])
        steps = int(federation.local.steps_of(size, ids, federation.seed, view.round)[0])
        if hides:
            words = messages.array(
                messages.arrays(reply, messages.MASKED), messages.MASKED, (layout.size + 1,), np.uint64
            )
            return Answer(words, numbers, steps)
        start = state.models[int(state.clusters[view.rows(ids)[0]])]
        if messages.UPDATE in reply.content.array_records:
            update = messages.array(messages.arrays(reply, messages.UPDATE), messages.UPDATE, (layout.size,))
        else:
            update = messages.params_of(messages.arrays(reply, messages.MODEL), layout) - start
        if facts.trains_as_asked:
            p, lr = layout.num_trainable, federation.local.lr_at(view.round, self.rounds)
            if wrong := too_long(federation.local, update[:p], start[:p], steps, lr):
                raise messages.ReplyError(wrong)
        return Answer(update, numbers, steps)

    def reports(self, answers: Answers, lost: Reasons, request: AskUpdates) -> ClientResults:
        """Return the replies in the form that components read, by increasing id."""
        layout, hides = self.writer.layout, self.federation.label_statistics.only_sum
        view, mean = request.view, None
        if self.secure is not None and answers:
            try:
                words = {client: {"": {messages.MASKED: answer.update}} for client, answer in answers.items()}
                total = self.secure.total(words)[""][messages.MASKED]
                mean = mean_of(total, FixedPoint(len(self.secure.cohort)), len(answers))
            except messages.LostError as error:
                lost, answers = lost | dict.fromkeys(sorted(answers), str(error)), {}
            except ComponentError as error:  # one client sent nonsense, but the sum does not show which
                lost, answers = (
                    lost | dict.fromkeys(sorted(answers), f"the sum of secure aggregation is invalid: {error}"),
                    {},
                )
        ids = np.array(sorted(answers), np.int64)
        counted, rows = [answers[client] for client in ids.tolist()], view.rows(ids)
        update = np.empty((len(ids), 0 if hides else layout.size), np.float32)
        for row, answer in enumerate(() if hides else counted):
            update[row] = answer.update
        names = ["num_examples", "loss"]
        names += [] if hides else [measurement.name for measurement in self.federation.measurements()]
        metrics: dict[str, Floats] = {name: np.array([a.metrics[name] for a in counted]) for name in names}
        if view.label_entropy is not None:
            metrics["label_entropy"] = view.label_entropy[rows]
        reports = ClientResults(
            ids,
            update,
            metrics,
            label_counts=None if view.label_counts is None else view.label_counts[rows],
            lost=dict(lost),
            trainable=layout.num_trainable,
            output_bias=layout.output_bias,
            steps=None if hides else np.array([answer.steps for answer in counted], np.int64),
            round=view.round,
            probe=request.probe,
            secure_mean=mean,
        )
        attackers = self.attackers
        if attackers.attack.colludes:
            colluded = attackers.with_collusion(reports)
            reports = attackers.only_valid(colluded, self.federation, request.state, view, self.rounds)
        return reports
