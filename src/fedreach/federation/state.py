"""State of a federation: all values that change from round to round."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedreach._util.arrays import Bools, Float32s, Floats, Ints
from fedreach._util.errors import ComponentError, ConfigError
from fedreach._util.row_store import RowTable
from fedreach._util.streams import generator
from fedreach.federation.accounting import private_state
from fedreach.federation.base import name_of
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


def initial_models(federation: Federation, params: Float32s, sizes: Sequence[int]) -> Float32s:
    """Return the (m, d) initial models of a federation whose selection policy has m `first_models`.

    The first is `params`. In each other model, the numbers of every trained tensor are in another random order.

    Args:
        federation: Federation.
        params: (d,) initial model.
        sizes: Numbers of values in the trained tensors, which come first.

    Raises:
        ConfigError: If a model equals the first one, because each tensor has equal or too few numbers.

    Example:
        >>> from fedreach.federation.selection import IFCA
        >>> from fedreach.testing.problems import tiny_federation
        >>> ifca = replace(tiny_federation(), selection=IFCA(n_clusters=3))
        >>> initial_models(ifca, np.array([1, 2, 3, 4, 7, 8, 0], np.float32), [4, 2])
        array([[1., 2., 3., 4., 7., 8., 0.],
               [1., 2., 4., 3., 8., 7., 0.],
               [1., 3., 2., 4., 7., 8., 0.]], dtype=float32)
    """
    count = federation.selection.first_models
    if count == 1:
        return params[None]
    models = np.tile(params, (count, 1))
    for number, model in enumerate(models[1:], start=1):
        rng = generator(federation.seed, "initial models", number)
        for tensor in np.split(model, np.cumsum(sizes))[:-1]:
            rng.shuffle(tensor)
    if (models[1:] == params).all(axis=1).any():
        raise ConfigError(
            f"{name_of(federation.selection)} needs {count} different initial models, but each trained tensor of "
            "this model has equal or too few numbers. Use a model with random initial parameters."
        )
    return models


def initial_state(
    federation: Federation,
    params: Float32s,
    view: ServerView,
    memory: RowTable | None = None,
    *,
    secret: bool = False,
) -> FederationState:
    """Return the state before round 1, with a `secret` for the cohorts and noise of private runs on real clients.

    `params` is the (d,) initial model, or the (m, d) initial models (see `initial_models`).
    """
    models = np.atleast_2d(params)
    return FederationState(
        round=0,
        models=models,
        clusters=np.zeros(len(view.ids), np.int64),
        loss=view.loss,
        selection=federation.selection.init(visible_view(federation, view)),
        weighting=NO_STATE,
        server=(NO_STATE,) * len(models),
        solver=(NO_STATE,) * len(models),
        aggregation=(private_state(federation, len(view.ids), view.rounds, secret=secret),) * len(models),
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
    count = max(len(state.models), int(clusters.max()) + 1)
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
