"""What partitioners share: checks of their arguments, exact arithmetic, and random steps."""

import math
import operator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedreach.arrays import Floats, Ints
from fedreach.errors import ConfigError, DataError
from fedreach.limits import check_memory


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
    """Hand client k counts[k, c] random samples of class c, (N, C) in all; return the (n,) owner of each sample."""
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


def rounded_sizes(raw: Floats, total: int) -> Ints:
    """Round the (N,) shares raw_k / sum(raw) * total, raw_k >= 0, to whole numbers that add up to `total`.

    Largest remainders: every share is rounded down and the samples left over go, one each, to the largest
    fractional parts (ties: lowest index first). Each size is therefore within one of its share. FedDyn's code
    hands all that is left over, about N/2 samples, to client 0: with 10,000 clients of 100 samples that client
    would hold 50 times what the others hold.

    Example:
        >>> rounded_sizes(np.array([1.0, 1.0, 1.0]), 11)
        array([4, 4, 3])
    """
    shares = raw / raw.sum() * total
    sizes: Ints = np.floor(shares).astype(np.int64)
    sizes[np.argsort(sizes - shares, kind="stable")[: total - sizes.sum()]] += 1
    return sizes


def filled_evenly(capacities: Ints, total: int) -> Ints:
    """Pour `total` units into (N,) vessels, which hold as many or more, as evenly as their capacities allow.

    x_k = min(capacity_k, L) with the largest whole level L that `total` reaches; the units that are left raise the
    largest vessels by one (ties: lowest index first).

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

    The (N,) sizes must sum to N * min_size or more.

    Example:
        >>> raised_sizes(np.array([0, 9, 3, 8, 1]), 2)
        array([2, 7, 3, 7, 2])
    """
    owed = np.maximum(min_size - sizes, 0).sum()
    # The level cannot fall below min_size: cutting all the way down to it frees sum - (N min_size - owed) >= owed.
    return np.maximum(filled_evenly(sizes, int(sizes.sum() - owed)), min_size)


ALPHA_RANGE = (1e-100, 1e100)  # outside it exp() and log() of the Dirichlet draws leave the floating-point range


DRAWN = 3  # tables that `log_dirichlet` holds at once: the logarithms, and the two that are subtracted from them


def check_table(num_clients: int, num_classes: int, at_once: int = 1) -> None:
    """Refuse tables of N clients x C classes that memory does not hold: 8 N C bytes each, so many at once."""
    check_memory(
        f"A table of {num_clients} clients x {num_classes} classes",
        8 * num_clients * num_classes * at_once,
        "Lower the number of clients, or number the classes from 0 without gaps, as "
        "np.unique(y, return_inverse=True) does.",
        DataError,
    )


def checked_labels(labels: ArrayLike) -> Ints:
    """Return the class labels as an (n,) int64 array: at least one, whole numbers, none negative."""
    array = np.asarray(labels)
    if array.dtype.kind == "f" and array.size:
        raise DataError(
            "labels must be classes, and these are numbers to predict. Divide such data by the partition 'iid' or "
            "'natural', or by your own function."
        )
    if array.ndim > 1 and array.dtype.kind in "iu":
        raise DataError(
            "labels must be one class a sample, and these stand at every position. Divide such data by the partition "
            "'iid' or 'natural', or by your own function."
        )
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
        raise DataError(
            "labels must be a one-dimensional array with one whole number per sample; "
            f"got shape {array.shape}, dtype {array.dtype}. Pass the class index of each training sample."
        )
    if array.min() < 0:
        raise DataError(f"labels must not be negative; got {array.min()}. Number the classes from 0.")
    return array.astype(np.int64)


def checked_count(name: str, value: Any, low: int) -> int:
    """Return `value` as an int that is at least `low`."""
    try:
        count = operator.index(value)
    except TypeError:
        count = low - 1
    if isinstance(value, bool) or count < low:
        raise ConfigError(f"{name} must be a whole number, at least {low}; got {value!r}.")
    return count


def checked_number(name: str, value: Any, low: float, high: float) -> float:
    """Return `value` as a finite float in [low, high]."""
    try:
        number = math.nan if isinstance(value, str | bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not low <= number <= high:  # false for nan as well
        raise ConfigError(f"{name} must be a number from {low:g} to {high:g}; got {value!r}.")
    return number


def check_generator(rng: Any) -> None:
    """Refuse seeds and global modules: the caller owns the stream."""
    if not isinstance(rng, np.random.Generator):
        raise ConfigError(
            f"rng must be a numpy Generator; got {type(rng).__name__}. "
            "Use fedreach.streams.generator(seed, 'partition')."
        )


def checked_arguments(labels: ArrayLike, num_clients: Any, rng: Any, *, any_targets: bool = False) -> tuple[Ints, int]:
    """Return what every partitioner is handed: (n,) labels and the number of clients, and look at the generator.

    With `any_targets` labels may be numbers, or stand at every position: then only how many there are is told.
    """
    check_generator(rng)
    targets = np.asarray(labels)
    numbers = targets.dtype.kind == "f" and targets.ndim in (1, 2)
    uncounted = any_targets and len(targets) and (numbers or (targets.dtype.kind in "iu" and targets[:1].size > 1))
    classes = np.zeros(len(targets), np.int64) if uncounted else checked_labels(labels)
    clients = checked_count("num_clients", num_clients, 1)
    check_table(clients, 1)  # where each of them begins
    return classes, clients


def check_enough(num_samples: int, num_clients: int, min_size: int) -> None:
    """Refuse a partition in which not every client can hold `min_size` samples."""
    if num_samples < num_clients * min_size:
        raise DataError(
            f"{num_clients} clients with at least min_size = {min_size} samples need {num_clients * min_size} samples; "
            f"there are {num_samples}. Lower the number of clients, or min_size where the partition has that option."
        )
