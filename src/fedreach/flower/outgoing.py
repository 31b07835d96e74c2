"""What the server sends: to train, to tell a loss, to evaluate."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from torch import nn

from fedreach.arrays import Float32s
from fedreach.federation.federation import Federation
from fedreach.federation.state import FederationState
from fedreach.federation.values import ClientView
from fedreach.flower import messages
from fedreach.flower.evaluation import EvaluationTask
from fedreach.flower.messages import CONFIG, DRAWS, KEYS, MEMORY, MODEL, OURS, ROUND, RUN, SOLVER
from fedreach.models.flat import Layout


@dataclass(eq=False)
class Outgoing:
    """Writes the messages of a run."""

    federation: Federation
    module: nn.Module  # whose state dict is sent
    layout: Layout
    rounds: int  # length of the run, which schedules of the local rate refer to
    timeout: float  # seconds for which a message is valid; a reply after them does not count
    knows: Callable[[int], bool]  # whether a client runs `client_app`, which is sent a model's constants apart
    run: str = ""  # its name, by which clients tell what they keep for it

    def record(self, params: Float32s) -> ArrayRecord:
        """Return what is trained and averaged of a (d,) model, for `client_app`."""
        return messages.model_record(self.layout, params)

    def whole(self, params: Float32s) -> ArrayRecord:
        """Return a (d,) model as its whole state dict, for apps that know nothing of FedReach, and for the user."""
        return messages.whole_record(self.module, self.layout, params)

    def train(
        self,
        nodes: Mapping[int, int],
        state: FederationState,
        view: ClientView,
        counted: Mapping[int, int],
        config: ConfigRecord,
        *,
        draws: Mapping[int, int] | None = None,
        keys: ConfigRecord | None = None,
        restore: bool = False,
    ) -> list[Message]:
        """Return one message a client: its model, what its solver needs, and which memory it should have.

        Args:
            nodes: Client -> node, of those that train.
            counted: Client -> last round in which its report counted.
            config: The user's own, which FedReach does not read.
            draws: Client -> how often it was drawn, where the selection says so: a client may have to weigh itself.
            keys: The clients' public keys, for a secure sum.
            restore: Whether to send what a client should have kept, because it lost it.
        """
        if not nodes:
            return []
        solver, models = self.federation.memory_solver, _Records(self, list(state.models))
        rate = self.federation.local.rate_at(view.round, self.rounds)
        mean = view.num_examples[view.num_examples > 0].mean()
        result = []
        for client, node in nodes.items():
            row = int(view.rows(np.array([client]))[0])
            model = int(state.clusters[row])
            content = models.content(model, config, view.round, client)
            kept = 0 if state.memory is None or state.memory.blocks[row] is None else counted[client]
            share = float(view.num_examples[row] / mean)
            numbers = {ROUND: view.round, "rate": rate, "memory-round": kept, "share": share}
            if draws is not None:
                numbers[DRAWS] = draws[client]
            content[OURS] = ConfigRecord({RUN: self.run, **numbers})
            if solver is not None and solver.sends_state and state.solver[model]:
                content[SOLVER] = messages.array_record(state.solver[model])
            if restore and state.memory is not None:
                content[MEMORY] = messages.array_record({MEMORY: state.memory.read(np.array([row]))[0]})
            if keys is not None:
                content[KEYS] = keys
            result.append(Message(content, node, MessageType.TRAIN, ttl=self.timeout))
        return result

    def losses(
        self, nodes: Mapping[int, int], state: FederationState, view: ClientView, batch_size: int
    ) -> list[Message]:
        """Return one message a client that asks for the loss of its model, over a batch or, with 0, over all it has."""
        models, result = _Records(self, list(state.models)), []
        for client, node in nodes.items():
            model = int(state.clusters[view.rows(np.array([client]))[0]])
            content = models.content(model, ConfigRecord(), view.round, client)
            content[OURS] = ConfigRecord({RUN: self.run, ROUND: view.round, "batch-size": batch_size})
            result.append(Message(content, node, "query.loss", ttl=self.timeout))
        return result

    def evaluate(
        self,
        tasks: Mapping[tuple[int, str], EvaluationTask],
        models: Sequence[Float32s],
        number: int,
        config: ConfigRecord,
    ) -> list[Message]:
        """Return one message a task, given each with its node and the message's group."""
        records, ours = _Records(self, models), ConfigRecord({RUN: self.run, ROUND: number})
        return [
            Message(
                RecordDict({**records.content(task.model, config, number, task.client), OURS: ours}),
                node,
                MessageType.EVALUATE,
                ttl=self.timeout,
                group_id=group,
            )
            for (node, group), task in tasks.items()
        ]


class _Records:
    """Models, each written once for all that are sent it."""

    def __init__(self, outgoing: Outgoing, models: Sequence[Float32s]) -> None:
        self.outgoing, self.models, self.records = outgoing, models, dict[tuple[int, bool], ArrayRecord]()

    def of(self, model: int, client: int) -> ArrayRecord:
        """Return a model as this client is sent it."""
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
