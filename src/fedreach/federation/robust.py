"""Robust aggregators: a few malicious clients have a bounded effect on the model.

Most rules give each client one vote, whatever its weight, because a client could claim any number of examples. Clients
with weight 0 are left out. With r updates, a rule withstands f = ceil(share r) malicious ones, but fewer than r / 2. A
robust aggregator protects the model only, not other sums over clients, such as the control variates of SCAFFOLD, label
statistics, and the fit of an adaptation rule.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

import numpy as np

from fedreach._util.arrays import Float32s, Floats, Ints, weighted_sum
from fedreach.federation.base import Aggregator
from fedreach.federation.selection.geometry import gram
from fedreach.federation.types import State

EQUAL = 1e-9  # relative difference of two scores up to which they count as equal
NUMBERS = 4_194_304  # float64 numbers of a block of columns, 32 MiB


class UpdateRows:
    """UpdateRows (r, d) of ``mix @ update``, computed in blocks of columns to avoid a float64 copy of all rows.

    Args:
        update: (m, d) updates.
        mix: (r, m) coefficients. None: use the updates as rows.
    """

    def __init__(self, update: Float32s, mix: Floats | None = None) -> None:
        self.update, self.mix = update, mix

    def __len__(self) -> int:
        return len(self.update if self.mix is None else self.mix)

    def blocks(self) -> Iterator[tuple[slice, Floats]]:
        """Yield blocks of columns, and the (r, b) numbers in them."""
        width, count = self.update.shape[1], max(1, NUMBERS // max(1, len(self.update)))
        for begin in range(0, width, count):
            columns = slice(begin, min(begin + count, width))
            block = self.update[:, columns].astype(np.float64)
            yield columns, block if self.mix is None else self.mix @ block

    @cached_property
    def products(self) -> Floats:
        """The (r, r) inner products of the rows."""
        inner = gram(self.update)
        return inner if self.mix is None else self.mix @ inner @ self.mix.T

    @cached_property
    def squared_distances(self) -> Floats:
        """The (r, r) squared distances between the rows."""
        squares = np.diag(self.products)
        apart = np.maximum(squares[:, None] + squares - 2 * self.products, 0)
        np.fill_diagonal(apart, 0)
        return apart

    def combine(self, coefficients: Floats) -> Floats:
        """Return the (d,) sum of the rows times (r,) coefficients."""
        return weighted_sum(coefficients if self.mix is None else coefficients @ self.mix, self.update)


@dataclass(frozen=True)
class Robust(Aggregator):
    """Base class of robust aggregators.

    Before the rule, `mixing` can average updates, which helps if the data of honest clients differ:

    - ``"nearest_neighbors"``: each update is replaced by the mean of its r - f nearest updates, including itself.
    - ``"bucketing"``: random pairs of updates are averaged. A pair counts as malicious if one of its updates is
      malicious, so f does not change.

    Reference: Allouah et al., "Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity", AISTATS 2023;
    Karimireddy, He and Jaggi, "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing", ICLR 2022.

    Args:
        share: Largest share of malicious clients in a round, at least 0 and below 0.5.
        mixing: Averaging before the rule, see above.
    """

    ignores_weights = True

    share: Annotated[float, "[0, 0.5)"] = 0.2
    mixing: Literal["none", "nearest_neighbors", "bucketing"] = "none"

    def combine(
        self, state: State, weights: Floats, update: Float32s, rng: np.random.Generator
    ) -> tuple[Floats, State]:
        counted = update if (weights > 0).all() else update[weights > 0]
        f = self.malicious(len(counted))
        rows = UpdateRows(counted)
        if self.mixing == "nearest_neighbors":
            rows = UpdateRows(counted, weights_of_smallest(rows.squared_distances, len(rows) - f))
        elif self.mixing == "bucketing":
            rows = UpdateRows(counted, bucket_means(rng.permutation(len(rows))))
        return self.center(state, rows, min(f, (len(rows) - 1) // 2))

    def malicious(self, r: int) -> int:
        """Return f, the number of malicious clients among r that the rule expects."""
        return min(math.ceil(self.share * r - 1e-9), (r - 1) // 2)

    def tolerates(self, r: int) -> int:
        rows = (r + 1) // 2 if self.mixing == "bucketing" else r
        return min(self.malicious(r), (rows - 1) // 2)

    @abstractmethod
    def center(self, state: State, rows: UpdateRows, f: int) -> tuple[Floats, State]:
        """Return the (d,) center of the rows and the new state, if at most f < r / 2 rows are malicious."""


def weights_of_smallest(values: Floats, count: int) -> Floats:
    """Return (..., n) weights for the mean of the `count` smallest numbers; equal numbers share their weight.

    So the mean does not depend on the order of the clients.

    Example:
        >>> weights_of_smallest(np.array([3.0, 1.0, 2.0, 2.0]), 2)
        array([0.  , 0.5 , 0.25, 0.25])
    """
    largest = np.sort(values, axis=-1)[..., count - 1 : count]
    equal = np.abs(values - largest) <= EQUAL * np.abs(largest)
    below = (values < largest) & ~equal
    remaining = count - below.sum(axis=-1, keepdims=True)
    weights: Floats = (below + equal * (remaining / equal.sum(axis=-1, keepdims=True))) / count
    return weights


def bucket_means(order: Ints) -> Floats:
    """Return coefficients that average rows in pairs, in this order; an odd last row is not averaged.

    Example:
        >>> bucket_means(np.array([2, 0, 1]))
        array([[0.5, 0. , 0.5],
               [0. , 1. , 0. ]])
    """
    pairs = [order[begin : begin + 2] for begin in range(0, len(order), 2)]
    mix = np.zeros((len(pairs), len(order)))
    for row, pair in zip(mix, pairs, strict=True):
        row[pair] = 1 / len(pair)
    return mix


# -------------------- Rules for each coordinate


@dataclass(frozen=True)
class Median(Robust):
    """Coordinate-wise median (Yin et al., 2018): each number of the update is the median over the clients.

    Use when: you only know that fewer than half of the clients are malicious. If the data of honest clients differ
    much, the median is biased. In this case, combine it with `mixing`.

    Reference: Yin, Chen, Ramchandran and Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical
    Rates", ICML 2018.

    Example:
        >>> update = np.array([[1, 2], [3, 6], [900, -900]], np.float32)
        >>> Median().combine({}, np.full(3, 1 / 3), update, np.random.default_rng(0))[0]
        array([3., 2.])
    """

    def center(self, state: State, rows: UpdateRows, f: int) -> tuple[Floats, State]:
        return np.concatenate([np.median(block, axis=0) for _, block in rows.blocks()]), state


@dataclass(frozen=True)
class TrimmedMean(Robust):
    """Coordinate-wise trimmed mean (Yin et al., 2018): the mean without the f smallest and f largest numbers.

    Use when: `share` is a good bound on the share of malicious clients. With share 0 the result is the mean of the
    updates.

    Reference: Yin, Chen, Ramchandran and Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical
    Rates", ICML 2018.

    Example:
        >>> update = np.array([[1, 2], [3, 6], [900, -900]], np.float32)
        >>> TrimmedMean(share=0.4).combine({}, np.full(3, 1 / 3), update, np.random.default_rng(0))[0]
        array([3., 2.])
    """

    def center(self, state: State, rows: UpdateRows, f: int) -> tuple[Floats, State]:
        inner = slice(f, len(rows) - f)
        return np.concatenate([np.sort(block, axis=0)[inner].mean(axis=0) for _, block in rows.blocks()]), state


# -------------------- Rules for whole updates
# Their result is a combination of the rows with coefficients that depend on inner products alone.


@dataclass(frozen=True)
class GeometricMedian(Robust):
    """Geometric median (RFA; Pillutla et al., 2022): the point with the smallest sum of distances to the updates.

    The rule uses smoothed Weiszfeld iterations from z = 0::

        c_i = 1 / max(smoothing, ||u_i - z||),   z <- sum_i c_i u_i / sum_i c_i

    Use when: malicious updates are large, or differ from honest updates in direction. In rounds without malicious
    clients, it changes the result less than `krum`.

    Reference: Pillutla, Kakade and Harchaoui, "Robust Aggregation for Federated Learning", IEEE Transactions on Signal
    Processing 70, 2022.

    Args:
        smoothing: Lower limit for the distances in the formula, positive.
        iterations: Number of iterations, at least 1.

    Example:
        >>> update = np.array([[1], [1], [100]], np.float32)
        >>> GeometricMedian(iterations=50).combine({}, np.full(3, 1 / 3), update, np.random.default_rng(0))[0].round(3)
        array([1.05])
    """

    smoothing: Annotated[float, "(0, inf)"] = 0.1
    iterations: Annotated[int, "[1, inf)"] = 10

    def center(self, state: State, rows: UpdateRows, f: int) -> tuple[Floats, State]:
        inner = rows.products
        coefficients = np.zeros(len(rows))
        for _ in range(self.iterations):
            along = inner @ coefficients
            squared = np.diag(inner) - 2 * along + coefficients @ along
            inverse = 1 / np.maximum(self.smoothing, np.sqrt(np.maximum(squared, 0)))
            coefficients = inverse / inverse.sum()
        return rows.combine(coefficients), state


def mean_of_nearest(rows: UpdateRows, f: int, count: int) -> Floats:
    """Return the mean of the `count` rows whose r - f - 1 nearest rows have the smallest sum of squared distances."""
    neighbor_distances = np.sort(rows.squared_distances, axis=1)[:, 1 : len(rows) - f]
    return rows.combine(weights_of_smallest(neighbor_distances.sum(axis=1), count))


@dataclass(frozen=True)
class MultiKrum(Robust):
    """Multi-Krum (Blanchard et al., 2017): the mean of the r - f updates that are nearest to their neighbors.

    The score of an update is the sum of its squared distances to the r - f - 1 nearest other updates. The paper sums
    over r - f - 2 updates. FedReach follows Allouah et al. (2023), who prove the same order of robustness.

    Use when: malicious updates are far from honest updates, and honest updates are similar.

    Reference: Blanchard, El Mhamdi, Guerraoui and Stainer, "Machine Learning with Adversaries: Byzantine Tolerant
    Gradient Descent", NeurIPS 2017.

    Example:
        >>> update = np.array([[1, 2], [3, 6], [900, -900]], np.float32)
        >>> MultiKrum(share=0.4).combine({}, np.full(3, 1 / 3), update, np.random.default_rng(0))[0]
        array([2., 4.])
    """

    def center(self, state: State, rows: UpdateRows, f: int) -> tuple[Floats, State]:
        return mean_of_nearest(rows, f, len(rows) - f), state


@dataclass(frozen=True)
class Krum(Robust):
    """Krum (Blanchard et al., 2017): the single update that is nearest to its neighbors; see `MultiKrum`.

    Use when: you need a reference. Krum ignores all updates but one, so accuracy is lower without malicious clients.

    Reference: Blanchard, El Mhamdi, Guerraoui and Stainer, "Machine Learning with Adversaries: Byzantine Tolerant
    Gradient Descent", NeurIPS 2017.

    Example:
        >>> update = np.array([[1, 2], [3, 6], [2, 3], [900, -900]], np.float32)
        >>> Krum(share=0.25).combine({}, np.full(4, 1 / 4), update, np.random.default_rng(0))[0]
        array([2., 3.])
    """

    def center(self, state: State, rows: UpdateRows, f: int) -> tuple[Floats, State]:
        return mean_of_nearest(rows, f, 1), state


# -------------------- Bounds on the length of updates


@dataclass(frozen=True)
class CenteredClipping(Robust):
    """Centered clipping (Karimireddy et al., 2021): clips differences from the last aggregate v to length `radius`.

    Starting from the aggregate v of the previous round, initially 0, each iteration computes::

        v <- v + (1/r) sum_i (u_i - v) min(1, radius / ||u_i - v||)

    Use when: the updates of honest clients change little between rounds. `share` has an effect only with `mixing`.

    Reference: Karimireddy, He and Jaggi, "Learning from History for Byzantine Robust Optimization", ICML 2021.

    Args:
        radius: Largest length of a difference, positive.
        iterations: Number of iterations per round, at least 1.

    Example:
        >>> update = np.array([[1], [1], [100]], np.float32)
        >>> v, state = CenteredClipping(radius=2.0).combine({}, np.full(3, 1 / 3), update, np.random.default_rng(0))
        >>> v.round(3)  # (1 + 1 + 2) / 3
        array([1.333])
    """

    radius: Annotated[float, "(0, inf)"] = 10.0
    iterations: Annotated[int, "[1, inf)"] = 1

    def center(self, state: State, rows: UpdateRows, f: int) -> tuple[Floats, State]:
        v = np.array(state["center"], np.float64) if "center" in state else np.zeros(rows.update.shape[1])
        for _ in range(self.iterations):
            squares = sum(((block - v[columns]) ** 2).sum(axis=1) for columns, block in rows.blocks())
            lengths = np.sqrt(np.asarray(squares, np.float64))
            factors = np.minimum(1, self.radius / np.maximum(lengths, np.finfo(float).tiny)) / len(rows)
            v = v * (1 - factors.sum()) + rows.combine(factors)
        return v, {"center": v}


@dataclass(frozen=True)
class NormBound(Aggregator):
    """Norm bound (Sun et al., 2019): the weighted mean of updates after clipping to length `bound`.

    Use when: malicious clients are few and send long updates, for example to replace the model. The rule does not
    protect against clients that only flip the sign of their update.

    Reference: Sun, Kairouz, Suresh and McMahan, "Can You Really Backdoor Federated Learning?", 2019, arXiv:1911.07963.

    Args:
        bound: Largest length of an update, positive. ``"median"``: the median length of the round.

    Example:
        >>> update = np.array([[1], [1], [100]], np.float32)
        >>> NormBound().combine({}, np.full(3, 1 / 3), update, np.random.default_rng(0))[0]
        array([1.])
    """

    bound: Annotated[Literal["median"] | float, "(0, inf): Or 'median'."] = "median"

    def combine(
        self, state: State, weights: Floats, update: Float32s, rng: np.random.Generator
    ) -> tuple[Floats, State]:
        lengths = np.sqrt(sum((block**2).sum(axis=1) for _, block in UpdateRows(update).blocks()))
        bound = float(np.median(lengths)) if self.bound == "median" else self.bound
        return weighted_sum(weights * np.minimum(1, bound / np.maximum(lengths, np.finfo(float).tiny)), update), state
