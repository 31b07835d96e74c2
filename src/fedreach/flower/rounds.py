"""Rounds on Flower: what goes out and what comes back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import getLogger
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from torch import nn

from fedreach._util.arrays import AnyArray, Float32s, Floats
from fedreach._util.errors import ComponentError, ConfigError
from fedreach.engines.models.flat import Layout
from fedreach.engines.protocols import Engine
from fedreach.federation.base import name_of
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
from fedreach.federation.types import ClientResults, ServerView
from fedreach.flower import messages
from fedreach.flower.agreement import Checks
from fedreach.flower.clients import ClientRegistry, send_and_wait
from fedreach.flower.fitting import EvaluationTask
from fedreach.flower.messages import (
    CONFIG,
    DRAWS,
    FEDREACH,
    KEYS,
    LACKS_MEMORY,
    MASKED,
    MEMORY,
    MODEL,
    ROUND,
    RUN,
    SOLVER,
    UPDATE,
    ReplyError,
)
from fedreach.runs.simulation import train_server

# ---- Messages from the server: training, losses, evaluation


@dataclass(eq=False)
class Outgoing:
    """Writes the messages of a run."""

    federation: Federation
    module: nn.Module  # its state dict is sent
    layout: Layout
    rounds: int  # length of the run, which schedules of the local learning rate refer to
    timeout: float  # seconds until a message expires; later replies do not count
    knows: Callable[[int], bool]  # whether a client runs `client_app`, which gets constants separately
    run: str = ""  # its name, under which clients store their memory

    def record(self, params: Float32s) -> ArrayRecord:
        """Return the trained and averaged tensors of a (d,) model, for `client_app`."""
        return messages.model_record(self.layout, params)

    def whole(self, params: Float32s) -> ArrayRecord:
        """Return the full state dict of a (d,) model, for custom apps and for the user."""
        return messages.full_record(self.module, self.layout, params)

    def train(
        self,
        nodes: Mapping[int, int],
        state: FederationState,
        view: ServerView,
        counted: Mapping[int, int],
        config: ConfigRecord,
        *,
        draws: Mapping[int, int] | None = None,
        keys: ConfigRecord | None = None,
        restore: bool = False,
    ) -> list[Message]:
        """Return one message per client with its model, the state of the solver, and the round of its memory.

        Args:
            nodes: Node of each client that trains.
            counted: Last round of each client whose reply counted.
            config: The user's own, which FedReach does not read.
            draws: Number of draws of each client, if the selection reports it; clients may compute their own weight.
            keys: Public keys of the clients, for secure aggregation.
            restore: Send the memory of clients that lost it.
        """
        if not nodes:
            return []
        solver, models = self.federation.memory_solver, _Records(self, list(state.models))
        lr = self.federation.local.lr_at(view.round, self.rounds)
        mean = view.num_examples[view.num_examples > 0].mean()
        result = []
        for client, node in nodes.items():
            row = int(view.rows(np.array([client]))[0])
            model = int(state.clusters[row])
            content = models.content(model, config, view.round, client)
            memory_round = 0 if state.memory is None or state.memory.blocks[row] is None else counted[client]
            share = float(view.num_examples[row] / mean)
            numbers = {ROUND: view.round, "lr": lr, "memory-round": memory_round, "share": share}
            if draws is not None:
                numbers[DRAWS] = draws[client]
            content[FEDREACH] = ConfigRecord({RUN: self.run, **numbers})
            if solver is not None and solver.sends_state and state.solver[model]:
                content[SOLVER] = messages.array_record(state.solver[model])
            if restore and state.memory is not None:
                content[MEMORY] = messages.array_record({MEMORY: state.memory.read(np.array([row]))[0]})
            if keys is not None:
                content[KEYS] = keys
            result.append(Message(content, node, MessageType.TRAIN, ttl=self.timeout))
        return result

    def losses(
        self, nodes: Mapping[int, int], state: FederationState, view: ServerView, batch_size: int
    ) -> list[Message]:
        """Return one message per client that asks for the loss of its model, over a batch or, with 0, all examples."""
        models, result = _Records(self, list(state.models)), []
        for client, node in nodes.items():
            model = int(state.clusters[view.rows(np.array([client]))[0]])
            content = models.content(model, ConfigRecord(), view.round, client)
            content[FEDREACH] = ConfigRecord({RUN: self.run, ROUND: view.round, "batch-size": batch_size})
            result.append(Message(content, node, "query.loss", ttl=self.timeout))
        return result

    def evaluate(
        self,
        tasks: Mapping[tuple[int, str], EvaluationTask],
        models: Sequence[Float32s],
        number: int,
        config: ConfigRecord,
    ) -> list[Message]:
        """Return one message per task; `tasks` maps a node and a message group to the task."""
        records, request = _Records(self, models), ConfigRecord({RUN: self.run, ROUND: number})
        return [
            Message(
                RecordDict({**records.content(task.model, config, number, task.client), FEDREACH: request}),
                node,
                MessageType.EVALUATE,
                ttl=self.timeout,
                group_id=group,
            )
            for (node, group), task in tasks.items()
        ]


class _Records:
    """Cache of models as records, each written once for all clients."""

    def __init__(self, outgoing: Outgoing, models: Sequence[Float32s]) -> None:
        self.outgoing, self.models, self.records = outgoing, models, dict[tuple[int, bool], ArrayRecord]()

    def of(self, model: int, client: int) -> ArrayRecord:
        """Return a model in the form that this client needs."""
        key = model, self.outgoing.knows(client)
        if key not in self.records:
            write = self.outgoing.record if key[1] else self.outgoing.whole
            self.records[key] = write(self.models[model])
        return self.records[key]

    def content(self, model: int, config: ConfigRecord, number: int, client: int) -> RecordDict:
        return RecordDict({MODEL: self.of(model, client), CONFIG: _with_round(config, number)})


def _with_round(config: ConfigRecord, number: int) -> ConfigRecord:
    """Return the user's own config with the round, as Flower's strategies send it."""
    return ConfigRecord({**config, "server-round": number})


# ---- Replies: answers that count, and reasons why others do not

LOG = getLogger("flwr")


class Answer(NamedTuple):
    """A reply that counts."""

    update: AnyArray  # (d,) of float32; with secure aggregation, (d + 1,) masked words
    metrics: Mapping[str, float]
    steps: int


@dataclass
class CollectedReplies:
    """Replies of the clients that were asked."""

    answers: dict[int, Answer]
    lost: dict[int, str]  # client -> why its reply does not count
    lost_memory: list[int] = field(default_factory=list)  # clients that lost their memory

    @classmethod
    def nothing(cls, clients: Iterable[int], timeout: float) -> CollectedReplies:
        """Return the value before any reply."""
        return cls({}, dict.fromkeys(clients, f"no reply within {timeout:g} s"))


@dataclass(frozen=True, eq=False)
class Incoming:
    """Reads the replies of a run."""

    federation: Federation
    layout: Layout
    checks: Checks
    registry: ClientRegistry  # has earlier replies and notes impossible ones

    def read(
        self,
        replies: Iterable[Message],
        clients: Mapping[int, int],
        collected: CollectedReplies,
        state: FederationState,
        view: ServerView,
        run: str,
    ) -> None:
        """Add the replies of `clients` (node -> client) to the collected ones; a node counts once.

        Replies must belong to the run with the name `run` and to the round of the view.
        """
        waiting = dict(clients)
        collected.lost_memory = []
        for reply in replies:
            client = waiting.pop(reply.metadata.src_node_id, None)
            if client is None:  # an error in Flower itself comes from node 1 and names no client
                description = reply.error.reason if reply.has_error() else "a reply that nobody asked for"
                LOG.warning("Node %s: %s", reply.metadata.src_node_id, description)
                continue
            try:
                metrics = messages.metrics_of(messages.content_of(reply))
                if LACKS_MEMORY in metrics:
                    collected.lost_memory.append(client)
                    collected.lost[client] = "it lost what it kept between rounds"
                    continue
                if self.registry.known[client].trains_as_asked:
                    messages.check_question(reply, run, view.round)
                collected.answers[client] = self._read_answer(client, reply, metrics, state, view)
                collected.lost.pop(client)
            except ReplyError as error:
                collected.lost[client] = str(error)
                self.registry.blame(f"client {client}", error)

    def _read_answer(
        self, client: int, reply: Message, metrics: Mapping[str, Any], state: FederationState, view: ServerView
    ) -> Answer:
        """Return the answer in a reply; raise a ReplyError if it is impossible."""
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

    def reports(self, collected: CollectedReplies, view: ServerView, *, probe: bool = False) -> ClientResults:
        """Return the replies in the form that components read, ids increasing."""
        hidden = self.federation.label_statistics.only_sum
        if hidden and collected.lost and collected.answers:
            missing, cause = next(iter(collected.lost.items()))
            reason = f"the masks of secure aggregation cancel only if all report, and client {missing} did not: {cause}"
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
            except ComponentError as error:  # one client sent nonsense, but the sum does not show which
                collected.lost |= dict.fromkeys(collected.answers, f"the secure aggregation makes no sense: {error}")
                collected.answers = {}
                return self.reports(collected, view, probe=probe)
        names = ["num_examples", "loss"]
        names += [] if hidden else [measurement.name for measurement in self.federation.measurements()]
        metrics: dict[str, Floats] = {name: np.array([a.metrics[name] for a in answers]) for name in names}
        if view.label_entropy is not None:
            metrics["label_entropy"] = view.label_entropy[rows]
        return ClientResults(
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


# ---- A round between sending and receiving


@dataclass(eq=False)
class OpenRound:
    """The `Side` of a round that uses messages: `begin` returns those to the cohort, `end` takes the replies.

    It has the generator of the round and so is never stored: a restarted server repeats the round.
    """

    federation: Federation
    registry: ClientRegistry
    outgoing: Outgoing
    incoming: Incoming
    participation: Participation  # loses replies as in the simulator
    engine: Engine | None  # of the server, if it trains
    counted: Mapping[int, int]  # client -> last round whose reply counted
    grid: Grid
    config: ConfigRecord  # the user's own, which FedReach does not read
    probed: dict[int, Answer] = field(default_factory=dict)  # answers of clients that sent their update in the probe
    began: float = field(default_factory=time.perf_counter)

    def begin(self, steps: Steps) -> list[Message]:
        """Run the round until its cohort is selected; return messages to clients that did not train in the probe."""
        self.steps, self.request = steps, run_until_cohort(steps, self)
        if isinstance(self.request, AskServer):
            return []
        chosen = self.request.selection.ids.tolist()
        LOG.info("FedReach chose clients %s.", chosen)
        keys = self.federation.label_statistics.only_sum
        return self._train_messages(self.request, [client for client in chosen if client not in self.probed], keys=keys)

    def end(self, replies: Iterable[Message]) -> RoundOutcome:
        """Finish the round with the replies to the messages of `begin`."""
        request = self.request
        if not isinstance(request, AskServer):
            chosen = request.selection.ids.tolist()
            probe_answers = {client: self.probed[client] for client in chosen if client in self.probed}
            collected = self._collect(
                request, [client for client in chosen if client not in probe_answers], replies, probe_answers
            )
            done = next_request(self.steps, self.incoming.reports(collected, request.view))
            if isinstance(done, RoundOutcome):
                return done
            assert isinstance(done, AskServer)  # clients have no more to do
            request = done
        done = next_request(self.steps, self.learnt(request))
        assert isinstance(done, RoundOutcome)
        return done

    # ----------------------------------------------------------------------------------------------- as a `Side`

    def losses(self, request: AskLosses) -> Mapping[int, float]:
        """Ask the clients of a probe for their losses; return those that arrived in time."""
        probe, losses = request.probe, dict[int, float]()
        ids = probe.ids.tolist()
        custom_apps = [client for client in ids if not self.registry.known[client].trains_as_asked]
        if custom_apps:
            raise ConfigError(
                f"{name_of(self.federation.selection)} asks clients for losses, and that is not in the app of client "
                f"{custom_apps[0]}. Use fedreach.flower.app.client_app, or another selection."
            )
        nodes = self.registry.nodes_of(ids)
        clients = {node: client for client, node in nodes.items()}
        batch_size = probe.batch_size if probe.asks == "batch_loss" else 0
        sent = self.outgoing.losses(nodes, request.state, request.view, batch_size)
        for reply in send_and_wait(self.grid, sent, self.registry.timeout):
            client = clients.get(reply.metadata.src_node_id)
            try:
                if client is not None:
                    metrics = messages.metrics_of(messages.content_of(reply))
                    messages.check_question(reply, self.outgoing.run, request.view.round)
                    losses[client] = self.incoming.checks.loss(metrics)
            except ReplyError as error:
                LOG.warning("Client %s did not tell its loss: %s.", client, error)
                self.registry.blame(f"client {client}", error)
        return losses

    def updates(self, request: AskUpdates) -> ClientResults:
        """Ask the clients of a probe for their updates; `end` receives those of the cohort."""
        ids = request.selection.ids.tolist()
        collected = self._collect(
            request, ids, send_and_wait(self.grid, self._train_messages(request, ids), self.registry.timeout)
        )
        for client, reason in collected.lost.items():
            LOG.warning("Client %s did not answer the probe of round %s: %s.", client, request.view.round, reason)
        self.probed = collected.answers
        return self.incoming.reports(collected, request.view, probe=True)

    def learnt(self, request: AskServer) -> FederationState:
        assert self.engine is not None  # the strategy checked it
        return train_server(self.federation, self.engine, self.engine.task.data.server, request)

    # --------------------------------------------------------------------------------------------------- messages

    def _train_messages(
        self, request: AskUpdates, clients: Iterable[int], *, keys: bool = False, restore: bool = False
    ) -> list[Message]:
        nodes, selection = self.registry.nodes_of(clients), request.selection
        public = self.registry.keys(nodes) if keys else None
        draws = None
        if selection.draws is not None:
            draws = dict(zip(selection.ids.tolist(), selection.draws.tolist(), strict=True))
        return self.outgoing.train(
            nodes, request.state, request.view, self.counted, self.config, draws=draws, keys=public, restore=restore
        )

    def _collect(
        self,
        request: AskUpdates,
        asked_clients: list[int],
        replies: Iterable[Message],
        probe_answers: Mapping[int, Answer] | None = None,
    ) -> CollectedReplies:
        """Return the replies and the `probe_answers`; a client that lost its memory gets it and is asked again."""
        collected = CollectedReplies.nothing(asked_clients, self.registry.timeout)
        collected.answers |= probe_answers or {}
        clients = {node: client for client, node in self.registry.nodes_of(asked_clients).items()}
        round_context = request.state, request.view, self.outgoing.run
        self.incoming.read(replies, clients, collected, *round_context)
        clients_without_memory = collected.lost_memory
        if clients_without_memory:
            LOG.info("Clients %s lost what they kept between rounds, and are sent it.", clients_without_memory)
            clients = {node: client for client, node in self.registry.nodes_of(clients_without_memory).items()}
            replies = send_and_wait(
                self.grid, self._train_messages(request, clients_without_memory, restore=True), self.registry.timeout
            )
            self.incoming.read(replies, clients, collected, *round_context)
        reply_ids = np.array(sorted(collected.answers), np.int64)
        lost = lost_replies(
            self.participation, reply_ids, self.federation.seed, request.view.round, probe=request.probe
        )
        for client in lost.tolist():
            del collected.answers[client]
            collected.lost[client] = "its reply did not arrive"
        return collected
