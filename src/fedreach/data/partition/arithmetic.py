"""Sharing out whole numbers: pure functions, no randomness.

All totals are exact, so whatever is built on them covers every sample once.
"""

from __future__ import annotations

import numpy as np

from fedreach.arrays import Floats, Ints


def rounded_sizes(raw: Floats, total: int) -> Ints:
    """Round the shares raw_k / sum(raw) * total to whole numbers that add up to `total`.

    Largest remainders: every share is rounded down and the samples left over go, one each, to the largest
    fractional parts (ties: lowest index first). Each size is therefore within one of its share. FedDyn's code
    hands all that is left over, about N/2 samples, to client 0: with 10,000 clients of 100 samples that client
    would hold 50 times what the others hold.

    Args:
        raw: (N,) weights, not negative, with a positive sum.
        total: Number of samples.

    Example:
        >>> rounded_sizes(np.array([1.0, 1.0, 1.0]), 11)
        array([4, 4, 3])
    """
    shares = raw / raw.sum() * total
    sizes: Ints = np.floor(shares).astype(np.int64)
    sizes[np.argsort(sizes - shares, kind="stable")[: total - sizes.sum()]] += 1
    return sizes


def filled_evenly(capacities: Ints, total: int) -> Ints:
    """Pour `total` units into vessels as evenly as their capacities allow.

    x_k = min(capacity_k, L) with the largest whole level L that `total` reaches; the units that are left raise the
    largest vessels by one (ties: lowest index first).

    Args:
        capacities: (N,) whole numbers, not negative.
        total: From 0 to capacities.sum().

    Example:
        >>> filled_evenly(np.array([2, 9, 5, 7]), 16)
        array([2, 5, 4, 5])
    """
    ascending = np.sort(capacities)
    below = np.cumsum(ascending) - ascending  # what the smaller vessels hold once they are full
    rest = np.arange(capacities.size, 0, -1)  # vessels at least as large
    full = int(np.count_nonzero(below + ascending * rest <= total))
    if full == capacities.size:
        return capacities.copy()
    level, left = divmod(int(total - below[full]), int(rest[full]))
    filled = np.minimum(capacities, level)
    filled[np.argsort(-capacities, kind="stable")[:left]] += 1
    return filled


def raised_sizes(sizes: Ints, min_size: int) -> Ints:
    """Lift every size to `min_size` and cut the largest sizes down to one common level to pay for it.

    Args:
        sizes: (N,) whole numbers with sizes.sum() >= N * min_size.
        min_size: The least that each may hold.

    Example:
        >>> raised_sizes(np.array([0, 9, 3, 8, 1]), 2)
        array([2, 7, 3, 7, 2])
    """
    owed = np.maximum(min_size - sizes, 0).sum()
    # The level cannot fall below min_size: cutting all the way down to it frees sum - (N min_size - owed) >= owed.
    return np.maximum(filled_evenly(sizes, int(sizes.sum() - owed)), min_size)
