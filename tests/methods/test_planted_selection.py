"""Mistakes in who trains: each is caught by the check that is about it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedreach.federation.selection import SELECTIONS
from fedreach.federation.selection.geometry import farthest_first, principal_points, vertices
from fedreach.federation.selection.labels import EntropyTopK, KLFilter
from fedreach.federation.selection.losses import Minimax, PowerOfChoice
from fedreach.federation.selection.random import Uniform
from fedreach.federation.selection.updates import ConvexHull, MaxSimilarity
from fedreach.federation.types import Cohort, ServerView

from .planted import must_be_caught, noting

FAULTS = []
caught_by = noting(FAULTS)

Clustered, Rademacher = SELECTIONS["clustered"], SELECTIONS["rademacher"]


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
        return Cohort(ids[first[:k]])


@caught_by("golden minimax")
class MinimaxTheOtherWay(Minimax):
    def choose(self, ids, rows, k, rng, nearest=None):
        return MaxSimilarity().choose(ids, rows, k, rng)


@caught_by("lengths do not count")
class MinimaxByInnerProduct(Minimax):
    def choose(self, ids, rows, k, rng, nearest=None):
        product = (rows @ rows.T).astype(np.float64)
        np.fill_diagonal(product, -np.inf)
        return Cohort(ids[np.argsort(product.max(axis=1), kind="stable")[:k]])


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
        return Cohort(ids[np.sort(found)])


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
        return Cohort(view.ids[place])


@caught_by("golden divergences")
class KLInTheWrongDirection(KLFilter):
    def select(self, state, view, k, rng):
        other = {"global_to_local": "local_to_global", "local_to_global": "global_to_local"}[self.direction]
        right = KLFilter(self.threshold, other, self.smoothing, self.min_examples)
        return right.select(state, view, k, rng)


@caught_by("who is away counts in the pool")
class PoolOfThoseAvailable(KLFilter):
    def select(self, state, view, k, rng):
        there = view.available
        seen = ServerView.of(view.ids[there], view.num_examples[there])
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
        return Cohort(np.roll(ids, rng.integers(len(ids)))[:k])


@pytest.mark.parametrize(("kind", "cls", "options", "check"), FAULTS)
def test_a_planted_fault_is_caught(kind, cls, options, check):
    must_be_caught(kind, cls, options, check)
