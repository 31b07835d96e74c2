"""Prefer groups of clients whose labels seem varied, less and less."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedreach.arrays import AnyArray, Floats, Ints
from fedreach.errors import PartError, require
from fedreach.federation.selection.base import Policy
from fedreach.federation.selection.shared.clustering import angles, ward
from fedreach.federation.values import ClientView, Reports, Selection, State


@dataclass(frozen=True)
class HiCS(Policy):
    """Prefer groups of clients whose labels are varied, as the bias of the output layer tells; later prefer none.

    The update b_i of the output layer's bias grows with a class's share of client i's examples. Its labels' entropy is
    estimated by H_i = H(softmax(b_i / T)), T the temperature. Clients are joined into `groups` by Ward's method on

        angle(b_i, b_j) + entropy_weight |H_i - H_j|.

    In round t of R, a place of the cohort goes to group g with probability proportional to exp(gamma_t H_g), H_g the
    mean of its H_i and gamma_t = gamma (1 - t / R), and there to client i in proportion to its number of examples. Who
    has a place already gets no other, and the place is drawn again. At first clients never heard from are chosen at
    random, which asks nobody and takes n / k rounds where all are available; places that they leave free are drawn as
    above.

    No labels are told, but the server infers how varied they are. Nothing but c numbers a client is kept.

    *When to use it:* where some clients have varied labels and most have few classes, and rounds are dear. Where all
    are alike in this, groups are those of similar clients, drawn evenly. Where clients tell their label entropy,
    `entropy_topk` need not guess it. As training goes on, small updates seem varied, whatever their labels. The paper
    averages equally: `weighting = "equal"`. The model must end in a linear layer with a bias, as all built-in ones do.

    When: label counts must stay private, and the bias of the output layer may stand in for them.

    Args:
        temperature: T, positive; the paper has 0.0025 (Fashion-MNIST) and 0.0015. Estimates tell clients apart best
            with T near the mean |b_i|, which grows with rate and epochs: on the digits (linear model, rate 0.1, 2
            epochs) it is 0.03, and their standard deviation is 0.62 nats at T = 0.03, 0.16 at 0.0025, 0.01 at 0.3.
        entropy_weight: Not negative; the paper's lambda.
        gamma: Of round 0, not negative; 4 (Fashion-MNIST, CIFAR-10) or 2 in the paper. 0 draws groups evenly.
        groups: At least 1; None: k, as in the paper. No more than there are clients.

    Raises:
        ConfigError: If an option is out of its range.
        PartError: If the model does not end in a bias.

    Reference: Chen and Vikalo, "Heterogeneity-Guided Client Sampling: Towards Fast and Efficient Non-IID Federated
    Learning", NeurIPS 2024, eq. (7), (9) and (10), Algorithm 1; options of appendix A.1.2. The authors' code,
    github.com/CityChan/HiCS-FL, estimates H_i by the layer's mean weights and takes angles of weights and bias; hands
    Ward's method the matrix of distances as if its rows were points; goes by entropy only while the variance of the
    H_i is below 0.1, and else as `urns_by_similarity`; draws all clients of a group alike; takes clients in turn at
    first and, where alphas differ, never looks at what they send later; and has T = 0.001 in its settings for
    Fashion-MNIST and CIFAR-10.

    Example:
        >>> policy, view = HiCS(temperature=0.1, gamma=99.0, groups=2), ClientView.of(np.arange(4), np.full(4, 10))
        >>> bias = np.array([[1, 0, 0], [0.1, 0.1, 0.1], [0, 1, 0], [0.1, 0.12, 0.1]], np.float32)
        >>> state = policy.observe(policy.init(view), Reports(view.ids, bias, {}, output_bias=3))
        >>> sorted(policy.select(state, view, 2, np.random.Generator(np.random.Philox(0))).ids.tolist())
        [1, 3]
    """

    reads_updates: ClassVar[bool] = True
    reads_length: ClassVar[bool] = True
    needs_classes: ClassVar[bool] = True

    temperature: float = 0.0025
    entropy_weight: float = 10.0
    gamma: float = 4.0
    groups: int | None = None

    def __post_init__(self) -> None:
        require(self, temperature="(0, inf)", entropy_weight="[0, inf)", gamma="[0, inf)", groups="[1, inf)")

    def init(self, view: ClientView) -> State:
        """Return a table of biases without numbers, as their length is not known yet."""
        n = len(view.ids)
        return {"ids": view.ids, "bias": np.zeros((n, 0)), "heard": np.zeros(n, np.bool_)}

    def observe(self, state: State, reports: Reports) -> State:
        """Return the state with the biases of those that reported."""
        if len(reports.ids) == 0:
            return state
        c = reports.output_bias
        if c is None:
            raise PartError(
                "HiCS must see the update of the output layer's bias: the last parameters that are trained must be the "
                "bias of a linear layer, and this model ends otherwise. Give it one, or take another selection."
            )
        where, heard = np.searchsorted(state["ids"], reports.ids), state["heard"].copy()
        bias = state["bias"].copy() if state["heard"].any() else np.zeros((len(heard), c))
        bias[where], heard[where] = reports.trained[:, -c:], True
        return {**state, "bias": bias, "heard": heard}

    def select(self, state: State, view: ClientView, k: int, rng: np.random.Generator) -> Selection:
        new = np.flatnonzero(view.available & ~state["heard"])
        if len(new) >= k:
            return Selection(view.ids[rng.choice(new, k, replace=False)])
        known = np.flatnonzero(view.available & state["heard"])
        chance = self._log_chance(state["bias"][known], view.num_examples[known], view, k)
        # Places drawn one after the other, again where it was had: the largest log p_i - log(-log U_i).
        drawn = np.argsort(-(chance + rng.gumbel(size=len(known))), kind="stable")[: k - len(new)]
        return Selection(view.ids[np.concatenate([new, known[drawn]])])

    def _log_chance(self, bias: Floats, num_examples: Ints, view: ClientView, k: int) -> Floats:
        """Return (a,) the logarithm of the probability with which each client gets a place, up to a constant."""
        entropy = estimated_entropy(bias, self.temperature)
        group = self._groups(bias, entropy, k)
        mean = np.bincount(group, entropy) / np.bincount(group)
        left = 1.0 if view.rounds is None else max(0.0, 1 - view.round / view.rounds)
        within = np.log(num_examples / np.bincount(group, num_examples)[group])
        return np.asarray(self.gamma * left * mean[group] + within)

    def _groups(self, bias: Floats, entropy: Floats, k: int) -> Ints:
        """Return (a,) each client's group 0, 1, ..."""
        from scipy.cluster.hierarchy import cut_tree

        count = min(k if self.groups is None else self.groups, len(bias))
        if count == len(bias):
            return np.arange(count)
        apart = angles(bias) + self.entropy_weight * np.abs(entropy[:, None] - entropy)
        return np.asarray(cut_tree(ward(apart), n_clusters=[count])[:, 0], np.int64)


def estimated_entropy(bias: AnyArray, temperature: float) -> Floats:
    """Return (n,) entropies in nats of the softmax of (n, c) updates of the output layer's bias.

    Example:
        >>> estimated_entropy(np.array([[0.2, 0.2], [0.0, 5.0]]), temperature=0.1).round(6)
        array([0.693147, 0. ])
    """
    logits = (bias - bias.max(axis=1, keepdims=True)) / temperature
    raw = np.exp(logits)
    total = raw.sum(axis=1)
    return np.asarray(np.log(total) - (raw * logits).sum(axis=1) / total)
