"""The random steps that partitioners share: orders within groups, Dirichlet mixes, dealing, topping up."""

from __future__ import annotations

import numpy as np

from fedreach.arrays import Floats, Ints
from fedreach.data.partition.arithmetic import raised_sizes


def ordered_by(groups: Ints) -> Ints:
    """Return the stable order that sorts `groups`."""
    # numpy sorts keys of up to 16 bits by radix, several times faster than wider ones.
    return np.argsort(groups.astype(np.min_scalar_type(int(groups.max(initial=0)))), kind="stable")


def shuffled_by(groups: Ints, rng: np.random.Generator) -> Ints:
    """Return all indices, group after group, in random order within each group."""
    mixed = rng.permutation(groups.size)
    return mixed[ordered_by(groups[mixed])]


def rank_in_run(sizes: Ints) -> Ints:
    """Return 0, 1, ..., size - 1 for each run of the given sizes, one run after the other."""
    return np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def drawn_from_each(groups: Ints, take: Ints, rng: np.random.Generator) -> Ints:
    """Draw take[g] members of each group g at random, without replacement; return their indices.

    Example:
        >>> groups = np.array([0, 0, 1, 1, 1])
        >>> drawn = drawn_from_each(groups, np.array([0, 2]), np.random.default_rng(0))
        >>> groups[drawn]
        array([1, 1])
    """
    sizes = np.bincount(groups, minlength=take.size)
    return shuffled_by(groups, rng)[rank_in_run(sizes) < np.repeat(take, sizes)]


def classes_of(labels: Ints) -> tuple[Ints, Ints]:
    """Return (n,) indices of the classes that occur, counted from 0, and their (C,) sizes, all positive.

    A class without samples needs no share: a symmetric Dirichlet vector renormalised over some of its entries is
    again symmetric Dirichlet with the same alpha.
    """
    _, classes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    return classes.astype(np.int64), sizes.astype(np.int64)


def log_dirichlet(alpha: float, shape: tuple[int, int], rng: np.random.Generator) -> Floats:
    """Draw rows ~ Dir(alpha * 1), as logarithms up to a constant per row.

    Dir(alpha) is a row of independent Gamma(alpha) draws over their sum, and Gamma(alpha) has the law of
    Gamma(alpha + 1) * U**(1 / alpha) (Marsaglia and Tsang 2000). In logarithms,
    log G(alpha + 1) - E / alpha with E ~ Exp(1), it is finite for every alpha, where Gamma(1e-6) underflows to 0.
    """
    return np.asarray(np.log(rng.standard_gamma(alpha + 1, shape)) - rng.standard_exponential(shape) / alpha)


def normalised(logs: Floats) -> Floats:
    """Return the rows exp(logs) / sum(exp(logs)); the largest entry never underflows."""
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def deal(classes: Ints, counts: Ints, rng: np.random.Generator) -> Ints:
    """Hand client k counts[k, c] random samples of class c; return the (n,) owner of each sample.

    Args:
        classes: (n,) class of each sample.
        counts: (N, C); column c adds up to the number of samples of class c.
        rng: Orders the samples within each class.
    """
    num_clients, num_classes = counts.shape
    owner = np.empty(classes.size, dtype=np.int64)
    owner[shuffled_by(classes, rng)] = np.repeat(np.tile(np.arange(num_clients), num_classes), counts.T.ravel())
    return owner


def topped_up(owner: Ints, num_clients: int, min_size: int, rng: np.random.Generator) -> tuple[Ints, int]:
    """Move samples from the largest clients to those below `min_size`; return the owners and how many moved.

    One pass, always enough (`raised_sizes`): the largest clients give random samples until they stand at one common
    level, and the samples given are dealt at random to the clients in need. Other clients keep exactly what they have.
    """
    sizes = np.bincount(owner, minlength=num_clients)
    gain = raised_sizes(sizes, min_size) - sizes
    if not gain.any():
        return owner, 0
    moved = rng.permutation(drawn_from_each(owner, np.maximum(-gain, 0), rng))
    owner = owner.copy()
    owner[moved] = np.repeat(np.arange(num_clients), np.maximum(gain, 0))
    return owner, int(moved.size)
