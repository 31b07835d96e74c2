"""Client selection based on labels."""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from fedreach._util.arrays import AnyArray, Bools, Floats, Ints
from fedreach._util.errors import ComponentError
from fedreach.federation.base import Selection
from fedreach.federation.selection.geometry import KeepsUpdates, gram, inverse, lengths
from fedreach.federation.selection.random import DivergenceFilter, largest
from fedreach.federation.types import ClientResults, Cohort, Probe, ServerView, State

# -------------------- Highest label entropy


@dataclass(frozen=True)
class EntropyTopK(Selection):
    """Selection of the k available clients with the highest label entropy; ties go to the lower id.

    This cohort minimizes b/K sum_{i not selected} H_i, the tight form of the bound in "Advocating for the Silent"
    (arXiv 2310.07171, proof of Theorem 2).

    Use when: clients may reveal label counts, and you want to measure the effect of balanced labels alone. The cohort
    is the same in every round unless availability changes. A client that reports false label counts can have itself
    selected in every round.
    """

    needs = ("label_entropy",)

    def select(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Cohort:
        assert view.label_entropy is not None  # because of `needs`
        # Entropies of equal histograms in another class order differ by rounding; that must not decide a tie.
        entropy = view.label_entropy[view.available].round(12)
        return Cohort(largest(view.ids[view.available], entropy, k))


# -------------------- KL filter


@dataclass(frozen=True)
class KLFilter(DivergenceFilter):
    """Random selection among clients whose label distribution is close to that of all participants.

    Client i passes the filter if KL(p || p_i) <= `threshold`. Here p_i is the client's smoothed label distribution, and
    p is the label distribution of all participants, available or not (see
    `fedreach._util.divergence.label_divergences`). The policy draws k clients uniformly from the clients that pass, or
    selects all of them if fewer than k pass. If no client passes, or if these clients have fewer than `min_examples`
    together, the policy admits further clients by increasing divergence (ties: lower id). The remark of the round
    reports both cases.

    With few examples per client, hardly any client passes the paper's threshold of 0.2 nats: fewer than 1% of clients
    with 750 examples from Dirichlet(0.5).

    Use when: clients may reveal label counts, and clients with unusual label distributions should not train. The
    policy trusts reported label counts.

    Args:
        threshold: Largest divergence e1 in nats, at least 0.
        direction: ``"global_to_local"``: KL(p || p_i), as in the paper; ``"local_to_global"``: KL(p_i || p).
        smoothing: Number kappa of pseudo-examples to add to each class of a client, at least 0. With 0, KL(p || p_i) is
            infinite for a client that lacks a class.
        min_examples: Smallest number e2 of training examples of all admitted clients together. None: k times the mean
            number per client.

    Raises:
        ConfigError: If an option is out of range.

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", constraints 37e
    and 37f without the radio. Constraint 37f applies to the admitted clients, not to the k drawn clients.

    Example:
        >>> from dataclasses import replace
        >>> counts = np.array([[10, 10, 0], [5, 5, 10], [30, 0, 0], [8, 12, 10]])
        >>> view = replace(ServerView.of(np.arange(4), counts.sum(axis=1)), label_counts=counts)
        >>> KLFilter(0.21).select({}, view, 3, np.random.Generator(np.random.Philox(0))).ids
        array([0, 3])
    """

    def select(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Cohort:
        """Return the cohort; the remark reports admitted clients beyond the threshold and a small cohort."""
        admitted = self.admitted(view, k)
        ids = admitted.ids
        remark = "" if admitted.kept and admitted.enough and len(ids) >= k else admitted.said
        return Cohort(ids if len(ids) <= k else rng.choice(ids, size=k, replace=False), remark)


# -------------------- Clusters of rows

MAX_CLUSTERS = 8  # clusters tried where their number is not given
DECIMALS = 9  # of coordinates, distances and silhouettes; the rest is rounding and must not decide


def bipartition(rows: AnyArray) -> Bools:
    """Return (n,) the side of each of n >= 2 rows after complete linkage with the distances 1 - cosine.

    The nearest groups of rows are merged until two groups remain. The distance of two groups is the distance of their
    farthest members. The larger side is False; if both sides are equal, the side with the first row.

    Example:
        >>> rows = np.array([[1, 0.1, 0], [0.9, 0, 0.1], [-1, 0.2, 0], [-0.8, -0.1, 0.1], [1.1, 0, 0]])
        >>> bipartition(rows)
        array([False, False,  True,  True, False])
    """
    from scipy.cluster.hierarchy import cut_tree, linkage
    from scipy.spatial.distance import squareform

    distance = np.maximum(1 - gram(rows, inverse(lengths(rows))), 0).round(DECIMALS)  # 1 from a row of zeros
    np.fill_diagonal(distance, 0)
    labels = cut_tree(linkage(squareform(distance, checks=False), "complete"), n_clusters=[2])[:, 0]
    side: Bools = labels != labels[0]
    return ~side if 2 * side.sum() > len(side) else side


def ward(distance: Floats) -> Floats:
    """Return the (n - 1, 4) merges of n points by Ward's method, given their (n, n) distances, as scipy's `linkage`.

    The same formula (Lance and Williams) also combines distances that are not Euclidean.

    Example:
        >>> ward(np.array([[0, 1, 4], [1, 0, 3], [4, 3, 0.0]]))[:, :2]
        array([[0., 1.], [2., 3.]])
    """
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    return np.asarray(linkage(squareform(distance.round(DECIMALS), checks=False), "ward"))


def angles(rows: AnyArray) -> Floats:
    """Return the (n, n) angles between rows, from 0 to pi; pi/2 between a row of zeros and any nonzero row.

    Example:
        >>> angles(np.array([[1.0, 0], [-2, 0], [0, 0], [0, 0]])) / np.pi
        array([[0. , 1. , 0.5, 0.5],
               [1. , 0. , 0.5, 0.5],
               [0.5, 0.5, 0. , 0. ],
               [0.5, 0.5, 0. , 0. ]])
    """
    length = lengths(rows)
    still = length == 0
    angle: Floats = np.arccos(np.clip(gram(rows, inverse(length)), -1, 1))
    angle[np.ix_(still, still)] = 0
    np.fill_diagonal(angle, 0)
    return angle


def kmeans(points: Floats, count: int | None = None) -> Ints:
    """Return the cluster of each point, numbered from 0 by first member, with at most one cluster per distinct point.

    The function uses k-means++ with 10 restarts and a fixed seed. Without `count`, it uses the number of clusters from
    2 to min(8, n - 1) with the largest mean silhouette; ties go to the smaller number. Fewer than three points, or
    equal points, form one cluster. Points are first sorted by coordinates. So the clusters do not depend on the order
    of the points.

    Example:
        >>> kmeans(np.array([[5.0], [0.0], [5.1], [0.1], [9.0], [9.1]]))
        array([0, 1, 0, 1, 2, 2])
    """
    from sklearn.cluster import KMeans
    from sklearn.metrics import silhouette_score

    rounded = points.round(DECIMALS)
    order = np.lexsort(rounded.T[::-1]) if points.shape[1] else np.arange(len(points))
    ordered = points[order]
    different = len(np.unique(rounded, axis=0))
    counts = range(2, min(MAX_CLUSTERS, len(points) - 1, different) + 1) if count is None else [min(count, different)]
    best, labels = -np.inf, np.zeros(len(points), np.int64)
    for number in counts:
        if number < 2:
            continue
        assigned = KMeans(number, n_init=10, random_state=0).fit(ordered).labels_
        silhouette = round(silhouette_score(ordered, assigned), DECIMALS) if len(counts) > 1 else 0.0
        if silhouette > best:
            best = silhouette
            labels[order] = assigned
    return by_first_member(labels)


def by_first_member(labels: Ints) -> Ints:
    """Return cluster numbers 0, 1, ... in the order of the clusters' first members.

    Example:
        >>> by_first_member(np.array([7, 2, 7, 5]))
        array([0, 1, 0, 2])
    """
    _, first, where = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[where]


# -------------------- Clustered federated learning


@dataclass(frozen=True)
class Clustered(KeepsUpdates):
    """Clustered federated learning (Sattler et al., 2021): a cluster splits when its model no longer changes.

    All clients start in one cluster. From round `first_round` on, a cluster with more than two replies splits after the
    round if

        |mean_i D_i| < eps1    and    max_i |D_i| > eps2,

    where D_i are the updates of its clients. Then the model no longer changes, although single clients would still
    change it. Complete linkage with the distances 1 - cos(D_i, D_j) defines the two parts. The part with more replies
    keeps the cluster's number; of two equal parts, the part with the lowest id keeps it. The other part has the next
    free number. Clusters never merge.

    Members that did not reply in this round join the part whose mean direction is closer to their last update. A split
    is delayed for members that never replied. In the next round, available members among them are probed for an update,
    at extra cost, and then the cluster may split. Members that could not be probed join the larger part.

    The cohort is drawn as in `Uniform`. With a small cohort, a cluster may never have three replies in a round. Then it
    never splits. In the paper all clients reply, and updates have equal weights.

    Use when: groups of clients need different models.

    Args:
        eps1: Upper limit for the length of the mean update, positive. Smaller values delay splits.
        eps2: Lower limit for the length of the largest update, at least 0. Larger values prevent splits.
        thresholds: Unit of both limits. ``"relative"``: eps1 relative to the largest |D_i| of the cluster in this
            round, eps2 relative to the largest of the first round. ``"absolute"``: lengths, which depend on the model
            and the learning rate; the authors' code uses 0.4 and 1.6.
        first_round: First round after which a cluster may split, at least 1; 21 in the authors' code.
        sketch: Number of values stored per update, see `GradientTable`. None: all values.

    Raises:
        ConfigError: If an option is out of range.

    Reference: Sattler, Müller and Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multi-Task
    Optimization under Privacy Constraints", IEEE TNNLS 2021, with thresholds and linkage as in the authors' code.

    Example:
        >>> policy, view = Clustered(first_round=1), ServerView.of(np.arange(5), np.full(5, 10))
        >>> update = np.array([[1, 0.1, 0], [0.9, 0, 0.1], [-1, 0.2, 0], [-0.8, -0.1, 0.1], [1.1, 0, 0]], np.float32)
        >>> policy.clusters(policy.observe(policy.init(view), ClientResults(view.ids, update, {})))
        array([0, 0, 1, 1, 0])
    """

    eps1: Annotated[float, "(0, inf)"] = 0.4
    eps2: Annotated[float, "[0, inf]"] = 0.7
    thresholds: Literal["relative", "absolute"] = "relative"
    first_round: Annotated[int, "[1, inf)"] = 21
    sketch: Annotated[int | None, "[1, inf)"] = None

    def init(self, view: ServerView) -> State:
        """Return a state with one cluster, without updates, clients to probe or a first round."""
        n = len(view.ids)
        return {
            **self._table.init(view),
            "clusters": np.zeros(n, np.int64),
            "asked": np.zeros(n, np.bool_),
            "first_largest": np.zeros(1),
        }

    def clusters(self, state: State) -> Ints:
        return state["clusters"]

    def probe(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Probe | None:
        """Return a probe of the clients without an update whose cluster can split."""
        ids = view.ids[view.available & state["asked"] & (state["heard"] == 0)]
        return Probe(ids, asks="update") if ids.size else None

    def select(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Cohort:
        return Cohort(rng.choice(view.available_ids, size=k, replace=False))

    def observe(self, state: State, reports: ClientResults) -> State:
        """Return the state with the new updates and, after a round, the new clusters."""
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
        """Return the state after the split of a cluster, if the updates at the positions `fresh` require a split."""
        rows = state["rows"]
        if not self._is_divided(rows[fresh].astype(np.float64), float(state["first_largest"][0])):
            return state
        members = np.flatnonzero(state["clusters"] == number)
        silent = members[state["heard"][members] == 0]
        if not state["asked"][silent].all():
            pending = state["asked"].copy()
            pending[silent] = True
            return {**state, "asked": pending}
        side = bipartition(rows[fresh])
        leaves = np.zeros(len(rows), np.bool_)
        leaves[members] = _nearer(rows[members], rows[fresh], side)
        leaves[fresh] = side
        clusters, pending = state["clusters"].copy(), state["asked"].copy()
        clusters[leaves] = clusters.max() + 1
        pending[members] = False
        return {**state, "clusters": clusters, "asked": pending}

    def _is_divided(self, updates: Floats, first_largest: float) -> bool:
        """Return whether the mean of (r, p) updates is small although an update is large."""
        largest = _lengths(updates).max()
        relative = self.thresholds == "relative"
        eps1 = self.eps1 * (largest if relative else 1)
        eps2 = self.eps2 * (first_largest if relative else 1)
        return len(updates) > 2 and bool(np.linalg.norm(updates.mean(axis=0)) < eps1 and largest > eps2)


def _lengths(rows: AnyArray) -> Floats:
    return np.asarray(np.linalg.norm(rows.astype(np.float64), axis=1))


def _nearer(rows: AnyArray, fresh: AnyArray, side: Bools) -> Bools:
    """Return which rows have a larger cosine with the mean direction of the side True; False for a row of zeros."""
    fresh = fresh.astype(np.float64)
    fresh /= np.maximum(_lengths(fresh), 1e-300)[:, None]
    centres = np.stack([fresh[~side].mean(axis=0), fresh[side].mean(axis=0)])
    centres /= np.maximum(_lengths(centres), 1e-300)[:, None]
    return np.asarray(rows @ (centres[1] - centres[0]) > 0)


# -------------------- HiCS-FL


@dataclass(frozen=True)
class HiCS(Selection):
    """HiCS-FL client selection (Chen and Vikalo, 2024): prefers clients with varied labels, inferred from biases.

    The update b_i of the output layer's bias increases with the share of each class at client i. So the server
    estimates the entropy of the client's labels by H_i = H(softmax(b_i / T)) with temperature T. Ward's method divides
    clients into `groups` groups with the distance

        angle(b_i, b_j) + entropy_weight |H_i - H_j|.

    In round t of R, each place in the cohort is filled from group g with probability proportional to exp(gamma_t H_g).
    Here H_g is the mean H_i of the group and gamma_t = gamma (1 - t / R). Within the group, client i is drawn with
    probability proportional to its number of examples, without replacement. First, clients without an update are
    selected at random. This takes n / k rounds and needs no probe.

    Clients do not send labels, but the server infers the variety of their labels. The server stores c numbers per
    client for c classes. The model must end in a linear layer with a bias. The paper uses equal weights:
    ``weighting = "equal"``.

    Use when: some clients have varied labels, most clients have few classes, and label counts must remain private. With
    label counts, use `entropy_topk`. Late in training, updates are small, and all labels appear varied.

    Args:
        temperature: Temperature T, positive; 0.0025 (Fashion-MNIST) and 0.0015 in the paper. T separates clients best
            near the mean |b_i|, which increases with learning rate and epochs. On digits (linear model, learning rate
            0.1, 2 epochs) this mean is 0.03. There the standard deviation of H_i is 0.62 nats at T = 0.03, 0.16 at
            0.0025 and 0.01 at 0.3.
        entropy_weight: Weight of the entropy in the distance, at least 0; lambda in the paper.
        gamma: Preference for varied labels in round 0, at least 0; 4 (Fashion-MNIST, CIFAR-10) or 2 in the paper. With
            0, groups are drawn uniformly.
        groups: Number of groups, at least 1 and at most the number of clients. None: k, as in the paper.

    Raises:
        ConfigError: If an option is out of range.
        ComponentError: If the model does not end in a linear layer with a bias.

    Reference: Chen and Vikalo, "Heterogeneity-Guided Client Sampling: Towards Fast and Efficient Non-IID Federated
    Learning", NeurIPS 2024, eq. (7), (9) and (10) and Algorithm 1, with the options of appendix A.1.2. The authors'
    code (github.com/CityChan/HiCS-FL) differs in five points. It estimates H_i from mean weights, and passes distances
    to Ward's method as if they were points. It uses entropy only while the variance of the H_i is below 0.1. It draws
    clients of a group uniformly, and ignores later updates if alphas differ.

    Example:
        >>> policy, view = HiCS(temperature=0.1, gamma=99.0, groups=2), ServerView.of(np.arange(4), np.full(4, 10))
        >>> bias = np.array([[1, 0, 0], [0.1, 0.1, 0.1], [0, 1, 0], [0.1, 0.12, 0.1]], np.float32)
        >>> state = policy.observe(policy.init(view), ClientResults(view.ids, bias, {}, output_bias=3))
        >>> sorted(policy.select(state, view, 2, np.random.Generator(np.random.Philox(0))).ids.tolist())
        [1, 3]
    """

    reads_updates = True
    reads_length = True
    needs_classes = True

    temperature: Annotated[float, "(0, inf)"] = 0.0025
    entropy_weight: Annotated[float, "[0, inf)"] = 10.0
    gamma: Annotated[float, "[0, inf)"] = 4.0
    groups: Annotated[int | None, "[1, inf)"] = None

    def init(self, view: ServerView) -> State:
        """Return an empty table of biases, because the length of a bias is not known yet."""
        n = len(view.ids)
        return {"ids": view.ids, "bias": np.zeros((n, 0)), "heard": np.zeros(n, np.bool_)}

    def observe(self, state: State, reports: ClientResults) -> State:
        """Return the state with the new biases of the clients that replied."""
        if len(reports.ids) == 0:
            return state
        c = reports.output_bias
        if c is None:
            raise ComponentError(
                "HiCS requires a model whose last trained parameters are the bias of a linear layer, because it reads "
                "the update of this bias; got a model with other last parameters. Use another model or another "
                "selection."
            )
        where, heard = np.searchsorted(state["ids"], reports.ids), state["heard"].copy()
        bias = state["bias"].copy() if state["heard"].any() else np.zeros((len(heard), c))
        bias[where], heard[where] = reports.trained[:, -c:], True
        return {**state, "bias": bias, "heard": heard}

    def select(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Cohort:
        new = np.flatnonzero(view.available & ~state["heard"])
        if len(new) >= k:
            return Cohort(view.ids[rng.choice(new, k, replace=False)])
        heard = np.flatnonzero(view.available & state["heard"])
        chance = self._log_chance(state["bias"][heard], view.num_examples[heard], view, k)
        # Places drawn one after the other, again where it was had: the largest log p_i - log(-log U_i).
        drawn = np.argsort(-(chance + rng.gumbel(size=len(heard))), kind="stable")[: k - len(new)]
        return Cohort(view.ids[np.concatenate([new, heard[drawn]])])

    def _log_chance(self, bias: Floats, num_examples: Ints, view: ServerView, k: int) -> Floats:
        """Return (a,) the logarithm of each client's selection probability for a place, up to a constant."""
        entropy = estimated_entropy(bias, self.temperature)
        group = self._groups(bias, entropy, k)
        mean = np.bincount(group, entropy) / np.bincount(group)
        remaining = 1.0 if view.rounds is None else max(0.0, 1 - view.round / view.rounds)
        within = np.log(num_examples / np.bincount(group, num_examples)[group])
        return np.asarray(self.gamma * remaining * mean[group] + within)

    def _groups(self, bias: Floats, entropy: Floats, k: int) -> Ints:
        """Return (a,) the group 0, 1, ... of each client."""
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
