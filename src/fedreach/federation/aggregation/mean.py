"""The weighted sum of updates, row by row in float64: the same bits for any number of threads."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedreach.arrays import Bools, Float32s, Floats
from fedreach.federation.values import State


def finite_rows(update: Float32s) -> Bools:
    """Return (k,) whether all numbers of each row are finite.

    Example:
        >>> finite_rows(np.array([[1.0, 2.0], [np.nan, 0.0], [3e38, 3e38], [np.inf, -np.inf]], np.float32))
        array([ True, False,  True, False])
    """
    with np.errstate(over="ignore", invalid="ignore"):
        # What is not finite stays so in a sum, which reads the rows once; a sum may overflow, though.
        finite: Bools = np.isfinite(update.sum(axis=1))
    for row in np.flatnonzero(~finite):
        finite[row] = np.isfinite(update[row]).all()
    return finite


BLOCK = 65_536  # numbers of a vector that are summed at a time


def weighted_sum(weights: Floats, update: Float32s) -> Floats:
    """Return ``weights @ update`` in float64, one row after the other.

    A matrix product would be as fast (both wait for memory) but sums in an order that depends on the number of
    threads; this one gives the same bits on every machine.
    """
    total = np.zeros(update.shape[1])
    product = np.empty(min(len(total), BLOCK))
    for begin in range(0, len(total), BLOCK):  # block by block, so that sums stay in the cache
        part = total[begin : begin + BLOCK]
        own = product[: len(part)]
        for weight, row in zip(weights, update[:, begin : begin + BLOCK], strict=True):
            own[:] = row  # float64 first: a product of two kinds of numbers is twice as slow
            own *= weight
            part += own
    return total


@dataclass(frozen=True)
class Mean:
    """The weighted mean of the updates, sum_i w_i u_i, as weights sum to 1.

    When: always, as the baseline; the one that a secure sum allows.

    Example:
        >>> update = np.array([[1, 2], [3, 6]], np.float32)
        >>> Mean().combine({}, np.array([0.75, 0.25]), update, np.random.default_rng(0))[0]
        array([1.5, 3. ])
    """

    linear: ClassVar[bool] = True

    def combine(
        self, state: State, weights: Floats, update: Float32s, rng: np.random.Generator
    ) -> tuple[Floats, State]:
        return weighted_sum(weights, update), state
