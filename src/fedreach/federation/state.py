"""State of a federation: all values that change from round to round."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from fedreach._util.arrays import Bools, Float32s, Floats, Ints
from fedreach._util.errors import ComponentError
from fedreach._util.row_store import RowTable
from fedreach.federation.accounting import private_state
from fedreach.federation.checks import check_clusters
from fedreach.federation.federation import Federation, visible_view
from fedreach.federation.types import NO_STATE, ServerView, State


@dataclass(frozen=True, eq=False)
class FederationState:
    """Everything that changes; saving it is a checkpoint."""

    round: int  # rounds concluded
    models: Float32s  # (m, d) what is broadcast; m = 1 unless the selection policy makes clusters
    clusters: Ints  # (n,) which model each participant is sent
    loss: Floats  # (n,) last loss heard from each participant
    selection: State
    weighting: State
    server: tuple[State, ...]  # one a model
    solver: tuple[State, ...]  # one a model
    aggregation: tuple[State, ...] = (NO_STATE,)  # one a model
    memory: RowTable | None = None  # in a simulation, what the n clients keep; elsewhere they keep it themselves
    holds: Bools | None = None  # (n,) clients that were sent the model's constants; None of a model without any
    sent: RowTable | None = None  # what the n clients sent last, from the first reports on, if the aggregation wants it

    @property
    def params(self) -> Float32s:
        """The (d,) model of a federation with a single model."""
        if len(self.models) > 1:
            raise ComponentError(f"The state has {len(self.models)} models, one per cluster. Use `state.models`.")
        return np.asarray(self.models[0])

    def by_model(self, rows: Ints) -> Iterator[tuple[int, Ints]]:
        """Yield each model's number and the positions of the participants that train it; skip models without any."""
        if len(self.models) == 1:
            if len(rows):
                yield 0, np.arange(len(rows))
            return
        models = self.clusters[rows]
        for model in np.unique(models):
            yield int(model), np.flatnonzero(models == model)

    def relative_sizes(self, view: ServerView, rows: Ints) -> Floats:
        """Return (k,) numbers of examples of participants, each relative to the mean over those that share its model.

        Participants without known examples, which on Flower have never been online, do not count in the mean.
        """
        known = view.num_examples > 0
        counts = np.bincount(self.clusters[known], minlength=len(self.models))
        sums = np.bincount(self.clusters[known], view.num_examples[known], minlength=len(self.models))
        return np.asarray(view.num_examples[rows] / (sums / np.maximum(counts, 1))[self.clusters[rows]])

    def adapted(self, federation: Federation) -> Float32s:
        """Return the (m, d) models to evaluate and distribute; for most solvers, these are the broadcast models."""
        solver = federation.memory_solver
        if solver is None:
            return self.models
        return np.stack([solver.adapted(model, state) for model, state in zip(self.models, self.solver, strict=True)])


def initial_state(
    federation: Federation,
    params: Float32s,
    view: ServerView,
    memory: RowTable | None = None,
    *,
    secret: bool = False,
) -> FederationState:
    """Return the state before round 1, with a `secret` for the cohorts and noise of private runs on real clients."""
    return FederationState(
        round=0,
        models=params[None],
        clusters=np.zeros(len(view.ids), np.int64),
        loss=view.loss,
        selection=federation.selection.init(visible_view(federation, view)),
        weighting=NO_STATE,
        server=(NO_STATE,),
        solver=(NO_STATE,),
        aggregation=(private_state(federation, len(view.ids), view.rounds, secret=secret),),
        memory=memory,
        holds=np.zeros(len(view.ids), np.bool_) if view.constant_bytes else None,
    )


def update_clusters(federation: Federation, state: FederationState) -> FederationState:
    """Return the state with the current clusters of the selection policy; unchanged if the policy does not cluster.

    The model of a new cluster is initially a copy of the model that its clients used before. For a cluster with other
    members than before, the states of server, solver and aggregator are reset. The stored vectors and last updates of
    its clients are reset, too. All of these refer to an average over the previous members.
    """
    if not federation.selection.makes_clusters:
        return state
    policy = federation.selection
    clusters = check_clusters(policy, policy.clusters(state.selection), len(state.clusters), len(state.models))
    changed = np.unique(
        np.concatenate([clusters[clusters != state.clusters], state.clusters[clusters != state.clusters]])
    )
    if changed.size == 0:
        return state
    count = int(clusters.max()) + 1
    parents = [m if m < len(state.models) else int(state.clusters[clusters == m][0]) for m in range(count)]
    moved = np.flatnonzero(np.isin(clusters, changed))
    memory, sent = (None if rows is None else rows.forget(moved) for rows in (state.memory, state.sent))
    return replace(
        state,
        models=state.models[parents],
        clusters=clusters,
        server=tuple(NO_STATE if m in changed else state.server[m] for m in range(count)),
        solver=tuple(NO_STATE if m in changed else state.solver[m] for m in range(count)),
        aggregation=tuple(NO_STATE if m in changed else state.aggregation[m] for m in range(count)),
        memory=memory,
        sent=sent,
    )
