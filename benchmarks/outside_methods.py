"""Methods of others as coded where the code departs from the paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import fedreach as fr
from fedreach._util.arrays import Float32s, Floats, Ints
from fedreach.federation.selection.labels import angles, estimated_entropy
from fedreach.federation.selection.random import fill_urns, groups_within
from fedreach.federation.solvers import Scaffold
from fedreach.federation.types import ClientResults, Cohort, ServerView, State


@dataclass(frozen=True)
class StepsByExamples(Scaffold):
    """SCAFFOLD as a later version (8c0e099) of Flower's `niid_bench` has it: K counts examples, not batches.

    So what a round adds to a c_i is a 1/B of what option II says, B the size of a batch: corrections arrive over B
    rounds. (The code takes the correction out of momentum and leaves momentum out of K, which together are what
    `scaffold` does, but for the first steps of a round; and starts all c_i and c at the model, which cancels.)
    """

    batch_size: float = 64.0

    def remember(self, memory: Float32s, state: State, update: Float32s, steps: Floats, lr: float) -> Float32s:
        return super().remember(memory, state, update, self.batch_size * steps, lr)


@dataclass(frozen=True)
class HiCSAsCoded(fr.Selection):
    """Choose as the code of HiCS-FL does, where it departs from the paper that `hics` follows.

    The first n / k rounds take the clients in turn, and what they sent then is all that is ever known of them
    (`keeps_first`: in settings with several alphas). An entropy is that of the softmax of the mean update of each
    class's weights in the output layer, over T. Ward's method is handed the matrix of angles of weights and bias, plus
    differences of entropy, as if its rows were points. While the variance of the entropies is below `most_variance`, a
    place goes to a group that has anybody left, in proportion to exp(gamma_t H_g), and there to anybody alike; else
    clients are drawn from urns of similar ones, as by `urns_by_similarity`. Weigh by `by_draws`.

    Args:
        features: Inputs of the output layer, 100 of `mlp`.

    Reference: github.com/CityChan/HiCS-FL, `server/server_hics.py` and `clustering.py`; options of its settings for
    Fashion-MNIST.
    """

    reads_updates: ClassVar[bool] = True
    needs_classes: ClassVar[bool] = True

    features: int
    temperature: float = 0.001
    entropy_weight: float = 10.0
    gamma: float = 4.0
    groups: int = 5
    most_variance: float = 0.1
    keeps_first: bool = True

    def init(self, view: ServerView) -> State:
        n = len(view.ids)
        return {"ids": view.ids, "layer": np.zeros((n, 0), np.float32), "heard": np.zeros(n, np.bool_)}

    def observe(self, state: State, reports: ClientResults) -> State:
        assert reports.output_bias is not None  # `mlp` has one
        width = reports.output_bias * (self.features + 1)
        layer = state["layer"].copy() if state["heard"].any() else np.zeros((len(state["ids"]), width), np.float32)
        where, heard = np.searchsorted(state["ids"], reports.ids), state["heard"].copy()
        counts = ~heard[where] if self.keeps_first else np.ones(len(where), np.bool_)
        layer[where[counts]], heard[where] = reports.trained[counts, -width:], True
        return {**state, "layer": layer, "heard": heard}

    def select(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Cohort:
        from scipy.cluster.hierarchy import cut_tree, linkage
        from scipy.spatial.distance import pdist

        new = np.flatnonzero(~state["heard"])[:k]
        if len(new) == k:
            return Cohort(view.ids[new])
        entropy = self.entropy(state["layer"])
        apart = angles(state["layer"]) + self.entropy_weight * np.abs(entropy[:, None] - entropy)
        tree = linkage(pdist(apart), "ward")  # its rows as points
        remark = f"variance of entropies {entropy.var():.3f}"
        if entropy.var() >= self.most_variance:
            balls = k * view.num_examples.astype(np.int64)
            urns = fill_urns(balls, groups_within(tree, balls, int(balls.sum()) // k), k)
            drawn = [np.searchsorted(urn.cumsum(), rng.integers(urn.sum()), side="right") for urn in urns]
            return Cohort.drawn(view.ids[np.array(drawn)], remark)
        group = cut_tree(tree, n_clusters=[self.groups])[:, 0]
        left = 1 - (view.round - 1) / (view.rounds or view.round)
        return Cohort(view.ids[np.sort(self._places(group, entropy, left, k, rng))], remark)

    def entropy(self, layer: Float32s) -> Floats:
        """Return (n,) entropies in nats, of (n, c (features + 1)) updates of weights, class by class, and bias."""
        classes = layer.shape[1] // (self.features + 1)
        weights = layer[:, : classes * self.features].reshape(len(layer), classes, self.features)
        return estimated_entropy(weights.mean(axis=2, dtype=np.float64), self.temperature)

    def _places(self, group: Ints, entropy: Floats, left: float, k: int, rng: np.random.Generator) -> Ints:
        many = np.bincount(group)
        chance = np.exp(self.gamma * left * np.bincount(group, entropy) / many)
        taken = np.zeros(len(many), np.int64)
        for _ in range(k):
            free = chance * (taken < many)  # drawing again until a group has anybody left
            taken[rng.choice(len(many), p=free / free.sum())] += 1
        return np.concatenate(
            [rng.choice(np.flatnonzero(group == g), taken[g], replace=False) for g in range(len(many))]
        )
