"""Mistakes in who trains: each is caught, by the law that says what is wrong."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from fedreach.federation.selection import (
    SELECTIONS,
    ConvexHull,
    EntropyTopK,
    KLFilter,
    MaxSimilarity,
    Minimax,
    Policy,
    PowerOfChoice,
    Uniform,
)
from fedreach.federation.selection.shared.hull import farthest_first, principal_points, vertices
from fedreach.federation.values import ClientView, Probe, Selection

from .planted import check_caught, noting

Clustered, Rademacher = SELECTIONS["clustered"], SELECTIONS["rademacher"]

FAULTS = []
caught_by = noting(FAULTS)


def largest_cosines(rows):
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    cosine = (unit @ unit.T).astype(np.float64).round(12)
    np.fill_diagonal(cosine, -1)
    return cosine.max(axis=1, initial=-1)


@caught_by("nearest neighbours both stay")
class MinimaxByValue(Minimax):
    """The paper's set of values: of two clients with one value, the second vanishes."""

    def choose(self, ids, rows, k, rng, nearest=None):
        _, first = np.unique(largest_cosines(rows), return_index=True)
        return Selection(ids[first[:k]])


@caught_by("valid choice")
class MinimaxWithOneMore(Minimax):
    """The paper's loop ``while |chosen| <= k``."""

    def choose(self, ids, rows, k, rng, nearest=None):
        return super().choose(ids, rows, min(k + 1, len(ids)), rng, nearest)


@caught_by("golden minimax")
class MinimaxTheOtherWay(Minimax):
    def choose(self, ids, rows, k, rng, nearest=None):
        return MaxSimilarity().choose(ids, rows, k, rng)


@caught_by("lengths do not count")
class MinimaxByInnerProduct(Minimax):
    def choose(self, ids, rows, k, rng, nearest=None):
        product = (rows @ rows.T).astype(np.float64)
        np.fill_diagonal(product, -np.inf)
        return Selection(ids[np.argsort(product.max(axis=1), kind="stable")[:k]])


@caught_by("the latest updates count")
class StaleNearest(Minimax):
    """Who is nearest to whom stays as it was after round 1."""

    def observe(self, state, reports):
        return {**super().observe(state, reports), **{key: state[key] for key in ("nearest", "whom") if key in state}}


@caught_by("the farthest from the mean is first")
class HullFromTheInnermost(ConvexHull):
    def choose(self, ids, rows, k, rng):
        points = principal_points(rows, self.components, normalize=self.normalize)
        layer = vertices(points)
        if not self.exact or k >= len(layer):
            return super().choose(ids, rows, k, rng)
        out = np.linalg.norm(points - points.mean(axis=0), axis=1)
        found = farthest_first(lambda i: np.linalg.norm(points - points[i], axis=1), -out, layer, [], k)
        return Selection(ids[np.sort(found)])


@caught_by("valid choice")
class HullWithDuplicates(ConvexHull):
    def choose(self, ids, rows, k, rng):
        found = super().choose(ids, rows, k, rng).ids
        return Selection(np.r_[found[:1], found[:-1]] if len(found) > 1 else found)


@caught_by("candidates in proportion to examples")
class CandidatesDrawnUniformly(PowerOfChoice):
    def _candidates(self, view, k, rng):
        alike = replace(view, num_examples=np.ones_like(view.num_examples))
        return super()._candidates(alike, k, rng)


@caught_by("only candidates")
class PlaceAmongTheCandidates(PowerOfChoice):
    """The wrong clients where there are fewer candidates than clients."""

    def select(self, state, view, k, rng):
        place = np.argsort(-view.loss[view.probed], kind="stable")[:k]
        return Selection(view.ids[place])


@caught_by("golden divergences")
class KLInTheWrongDirection(KLFilter):
    def select(self, state, view, k, rng):
        other = {"global_to_local": "local_to_global", "local_to_global": "global_to_local"}[self.direction]
        right = KLFilter(self.threshold, other, self.smoothing, self.min_examples, self.infeasible)
        return right.select(state, view, k, rng)


@caught_by("who is away counts in the pool")
class PoolOfThoseAvailable(KLFilter):
    def select(self, state, view, k, rng):
        there = view.available
        seen = ClientView.of(view.ids[there], view.num_examples[there])
        return super().select(state, replace(seen, label_counts=view.label_counts[there], round=view.round), k, rng)


@caught_by("the most varied labels")
class LeastEntropy(EntropyTopK):
    def select(self, state, view, k, rng):
        return super().select(state, replace(view, label_entropy=-view.label_entropy), k, rng)


@caught_by("golden split")
class ClustersOfOtherClients(Clustered):
    """The right sides, but those of the clients in reverse order."""

    def clusters(self, state):
        return super().clusters(state)[::-1]


@caught_by("the lowest score is best")
class HighestScoreIsBest(Rademacher):
    def __init__(self):
        super().__init__(n_clusters=3)  # their number is not what is wrong, and looking for it takes long

    def scores(self, state, view):
        return -super().scores(state, view)


@caught_by("a clusters score is the mean")
class SumOfScores(Rademacher):
    def __init__(self, n_clusters=3, average="mean"):
        super().__init__(n_clusters=n_clusters, average=average)

    def scores(self, state, view):
        known = state["cluster"] >= 0
        return super().scores(state, view) * np.bincount(state["cluster"][known])


@caught_by("every set equally often")
class NeighboursOnly(Uniform):
    """Each client is chosen equally often, and always beside the same ones."""

    def select(self, state, view, k, rng):
        ids = view.ids[view.available]
        return Selection(np.roll(ids, rng.integers(len(ids)))[:k])


@caught_by("valid choice")
class PositionsForIds(Policy):
    def select(self, state, view, k, rng):
        return Selection(np.flatnonzero(view.available)[:k])


@caught_by("valid choice")
class DeafToAvailability(Policy):
    def select(self, state, view, k, rng):
        return Selection(view.ids[:k])


@caught_by("arguments untouched")
class WritesToTheView(Policy):
    def select(self, state, view, k, rng):
        view.loss[np.isnan(view.loss)] = np.inf
        order = np.argsort(-view.loss[view.available], kind="stable")
        return Selection(view.ids[view.available][order[:k]])


@caught_by("arguments untouched")
class WritesToItsState(Policy):
    """Longest waiting first; the count goes up in place."""

    def init(self, view):
        return {"ids": view.ids, "waited": np.arange(len(view.ids))}

    def select(self, state, view, k, rng):
        order = np.argsort(-state["waited"][view.available], kind="stable")
        return Selection(view.ids[view.available][order[:k]])

    def observe(self, state, reports):
        state["waited"][:] += 1
        state["waited"][np.searchsorted(state["ids"], reports.ids)] = 0
        return state


@caught_by("same again")
class GlobalGenerator(Policy):
    def select(self, state, view, k, rng):
        ids = np.random.permutation(view.ids[view.available])  # noqa: NPY002 (that is the fault)
        return Selection(ids[:k])


@caught_by("same again")
class CountsInItself(Policy):
    def __init__(self):
        self.rounds = 0

    def select(self, state, view, k, rng):
        self.rounds += 1
        return Selection(np.roll(view.ids[view.available], self.rounds)[:k])


@caught_by("renaming")
class LowIdsFirst(Policy):
    def select(self, state, view, k, rng):
        return Selection(view.ids[view.available][:k])


@caught_by("renaming")
class LowIdsMoreOften(Policy):
    def select(self, state, view, k, rng):
        ids = view.ids[view.available]
        p = 10.0 ** -np.arange(len(ids))
        return Selection(rng.choice(ids, size=k, replace=False, p=p / p.sum()))


@caught_by("open about updates")
class QuietlyByUpdates(Policy):
    def init(self, view: ClientView):
        return {"ids": view.ids, "length": np.zeros(len(view.ids))}

    def probe(self, state, view, k, rng):
        return Probe(view.ids[view.available], asks="update")

    def select(self, state, view, k, rng):
        order = np.argsort(-state["length"][view.available], kind="stable")
        return Selection(view.ids[view.available][order[:k]])

    def observe(self, state, reports):
        length = state["length"].copy()
        length[np.searchsorted(state["ids"], reports.ids)] = reports.trained[:, 0]
        return {**state, "length": length}


@caught_by("going on from a file")
class StateOfLists(Policy):
    def init(self, view):
        return {"seen": []}

    def select(self, state, view, k, rng):
        return Selection(rng.choice(view.ids[view.available], size=k, replace=False))


@caught_by("cohort size")
class StopsHalfWay(Policy):
    def select(self, state, view, k, rng):
        return Selection(rng.choice(view.ids[view.available], size=-(-k // 2), replace=False))


@caught_by("valid choice")
class NeedsWhatItDidNotAskFor(Policy):
    def select(self, state, view, k, rng):
        return Selection(view.ids[view.available][np.argsort(view.label_entropy[view.available])[:k]])


@dataclass
class Changeable(Policy):
    rate: float = 1.0

    def select(self, state, view, k, rng):
        return Selection(rng.choice(view.ids[view.available], size=k, replace=False))


caught_by("options are all it is")(Changeable)


@pytest.mark.parametrize(("kind", "cls", "options", "law"), FAULTS)
def test_a_planted_fault_is_caught_by_the_law_that_says_it(kind, cls, options, law):
    check_caught(kind, cls, options, law)
