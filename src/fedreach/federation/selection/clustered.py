"""Give clients that pull in different directions models of their own."""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from fedreach.arrays import AnyArray, Bools, Floats, Ints
from fedreach.errors import require
from fedreach.federation.selection.base import Policy
from fedreach.federation.selection.shared.clustering import bipartition
from fedreach.federation.selection.shared.gradient_table import GradientTable
from fedreach.federation.values import ClientView, Probe, Reports, Selection, State

Thresholds = Literal["relative", "absolute"]


@dataclass(frozen=True)
class Clustered(Policy):
    """Split clients into clusters with a model each, where training has come to a stop that not all of them want.

    All start in one cluster. From round `first_round` on, a cluster of which more than two clients reported splits in
    two after the round if

        |mean_i D_i| < eps1    and    max_i |D_i| > eps2,

    D_i their updates: its model stands still although single clients would still move it. The two parts come from
    complete linkage of the distances 1 - cos(D_i, D_j). That with more reports keeps the cluster's number (of two equal
    ones, that of the lowest id); the other gets the next number that is free. Clusters never merge.

    Members that did not report in that round follow their last known update: they join the part whose mean
    direction has the larger cosine with it. Old updates are not linked together with the new ones, because they still
    hold what all clients once had in common, and so resemble each other; the means of the two parts point opposite
    ways where the model stands still, and there this cancels. As a split is for ever, it waits for members never
    heard from: those available in the next round are asked for an update first, which costs bytes, and from then on the
    cluster may split. Those who could not be asked join the part with more reports.

    The cohort is drawn as by `Uniform`. If it is small, clusters may never have three reports in a round, and then do
    not split. In the paper everybody reports, and updates count equally.

    When: groups of clients need different models, and no one model suits all.

    Args:
        eps1: Positive; smaller ones split later.
        eps2: Not negative; larger ones split less.
        thresholds: In which unit they are. ``"relative"``: eps1 of the largest |D_i| of the cluster in this round, eps2
            of the largest of the first round. ``"absolute"``: lengths, which depend on model and step size; the
            authors' code has 0.4 and 1.6.
        first_round: First round after which a cluster may split, at least 1; in the authors' code, 21.
        sketch: Numbers kept of each update, see `GradientTable`; None keeps all.

    Raises:
        ConfigError: If an option is out of its range.

    Reference: Sattler, Müller and Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multi-Task
    Optimization under Privacy Constraints", IEEE TNNLS 2021; thresholds and linkage of the authors' code.

    Example:
        >>> policy, view = Clustered(first_round=1), ClientView.of(np.arange(5), np.full(5, 10))
        >>> update = np.array([[1, 0.1, 0], [0.9, 0, 0.1], [-1, 0.2, 0], [-0.8, -0.1, 0.1], [1.1, 0, 0]], np.float32)
        >>> policy.clusters(policy.observe(policy.init(view), Reports(view.ids, update, {})))
        array([0, 0, 1, 1, 0])
    """

    reads_updates: ClassVar[bool] = True

    eps1: float = 0.4
    eps2: float = 0.7
    thresholds: Thresholds = "relative"
    first_round: int = 21
    sketch: int | None = None

    def __post_init__(self) -> None:
        require(self, thresholds=get_args(Thresholds), eps1="(0, inf]", eps2="[0, inf]")
        require(self, first_round="[1, inf)", sketch="[1, inf)")

    @property
    def _table(self) -> GradientTable:
        return GradientTable(sketch=self.sketch)

    def init(self, view: ClientView) -> State:
        """Return one cluster, a table without updates, nobody to ask, and no first round yet."""
        n = len(view.ids)
        return {
            **self._table.init(view),
            "clusters": np.zeros(n, np.int64),
            "asked": np.zeros(n, np.bool_),
            "first_largest": np.zeros(1),
        }

    def clusters(self, state: State) -> Ints:
        return state["clusters"]

    def probe(self, state: State, view: ClientView, k: int, rng: np.random.Generator) -> Probe | None:
        """Return those never heard from whose cluster is about to split."""
        ids = view.ids[view.available & state["asked"] & (state["heard"] == 0)]
        return Probe(ids, asks="update") if ids.size else None

    def select(self, state: State, view: ClientView, k: int, rng: np.random.Generator) -> Selection:
        return Selection(rng.choice(view.available_ids, size=k, replace=False))

    def observe(self, state: State, reports: Reports) -> State:
        """Return the state with the new updates and, after a round, the clusters that they split."""
        state = self._table.observe(state, reports)
        if reports.probe or len(reports.ids) == 0:
            return state
        positions = np.searchsorted(state["ids"], reports.ids)
        if state["first_largest"][0] == 0:
            state = {**state, "first_largest": np.array([_lengths(state["rows"][positions]).max()])}
        if reports.round >= self.first_round:
            for number in np.unique(state["clusters"][positions]):
                state = self._split(state, number, positions[state["clusters"][positions] == number])
        return state

    def _split(self, state: State, number: int, fresh: Ints) -> State:
        """Return the state in which a cluster has split, if the updates of those at the positions `fresh` say so."""
        rows = state["rows"]
        if not self._is_divided(rows[fresh].astype(np.float64), float(state["first_largest"][0])):
            return state
        members = np.flatnonzero(state["clusters"] == number)
        silent = members[state["heard"][members] == 0]
        if not state["asked"][silent].all():
            asked = state["asked"].copy()
            asked[silent] = True
            return {**state, "asked": asked}
        side = bipartition(rows[fresh])
        leaves = np.zeros(len(rows), np.bool_)
        leaves[members] = _nearer(rows[members], rows[fresh], side)
        leaves[fresh] = side
        clusters, asked = state["clusters"].copy(), state["asked"].copy()
        clusters[leaves] = clusters.max() + 1
        asked[members] = False
        return {**state, "clusters": clusters, "asked": asked}

    def _is_divided(self, updates: Floats, first_largest: float) -> bool:
        """Return whether the mean of (r, p) updates is small although one of them is large."""
        largest = _lengths(updates).max()
        relative = self.thresholds == "relative"
        eps1 = self.eps1 * (largest if relative else 1)
        eps2 = self.eps2 * (first_largest if relative else 1)
        return len(updates) > 2 and bool(np.linalg.norm(updates.mean(axis=0)) < eps1 and largest > eps2)


def _lengths(rows: AnyArray) -> Floats:
    return np.asarray(np.linalg.norm(rows.astype(np.float64), axis=1))


def _nearer(rows: AnyArray, fresh: AnyArray, side: Bools) -> Bools:
    """Return which rows have a larger cosine with the mean direction of the side True; a row of zeros has not."""
    fresh = fresh.astype(np.float64)
    fresh /= np.maximum(_lengths(fresh), 1e-300)[:, None]
    centres = np.stack([fresh[~side].mean(axis=0), fresh[side].mean(axis=0)])
    centres /= np.maximum(_lengths(centres), 1e-300)[:, None]
    return np.asarray(rows @ (centres[1] - centres[0]) > 0)
