"""The server at work on its own data, by an engine; the simulator and Flower ask it alike."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from fedreach.arrays import Float32s, Ints
from fedreach.data.positions import position_counts
from fedreach.data.server_data import ServerData
from fedreach.engines.protocols import Engine
from fedreach.errors import PartError
from fedreach.evaluation.evaluator import mean_of
from fedreach.federation.federation import Federation
from fedreach.federation.state import FederationState
from fedreach.federation.steps import AskServer, server_batches, server_split
from fedreach.federation.traits import name_of


def learnt(federation: Federation, engine: Engine, own: ServerData | None, request: AskServer) -> FederationState:
    """Return the state of the request after the server step has learnt from the server's own data."""
    server, state = federation.learning_server, request.state
    assert server is not None  # or it were not asked,
    assert own is not None  # and whoever asks saw to it
    answers = [
        server.learn(params, kept, EngineData(federation, engine, own, request, model))
        for model, (params, kept) in enumerate(zip(state.models, state.server, strict=True))
    ]
    return replace(state, models=np.stack([params for params, _ in answers]), server=tuple(kept for _, kept in answers))


@dataclass(eq=False)
class EngineData:
    """The `OwnData` of one model in one round."""

    federation: Federation
    engine: Engine
    own: ServerData
    request: AskServer
    model: int
    rng: np.random.Generator = field(init=False)
    steps: int = 0  # that were taken: each draws its own dropout

    def __post_init__(self) -> None:
        self.rng = server_batches(self.federation.seed, self.request.view.round)

    @property
    def examples(self) -> int:
        return len(self.own.y)

    def split(self, held_out: float) -> tuple[Ints, Ints]:
        return server_split(self.own.y, held_out, self.federation.seed)

    def step(self, params: Float32s, index: Ints, rate: float) -> Float32s:
        self.steps += 1
        return params + self.engine.server_step(params, index, self.request.view.round, rate, self.steps - 1)

    def distill(self, params: Float32s, index: Ints, teacher: Float32s, rate: float) -> Float32s:
        return params + self.engine.distill_step(params, index, teacher, rate)

    def logits(self, params: Float32s, index: Ints) -> Float32s:
        return self.engine.logits(params, "server", index)

    def loss(self, params: Float32s, index: Ints) -> float:
        at_positions = self.own.y.ndim > 1 and self.own.y.dtype.kind == "i"
        counts = position_counts(self.own.y[index]) if at_positions else None
        return mean_of(self.engine.predict(params, "server", index)[1], counts)

    def local_models(self) -> Iterator[Float32s]:
        if not self.federation.traits["server"].reads_updates:
            raise PartError(
                f"{name_of(self.federation.server)}.learn looks at clients' local models, and does not say so. Write "
                "`reads_updates = True` into its class."
            )
        sent, reports, view = self.request.sent, self.request.reports, self.request.view
        if sent is None or reports is None:  # a round in which no client was asked
            return
        rows = view.rows(reports.ids)
        for row, update in zip(rows, reports.update, strict=True):
            if self.request.state.clusters[row] == self.model:
                yield sent.models[sent.clusters[row]] + update
