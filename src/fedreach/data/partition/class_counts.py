"""Clients whose mix of classes is given, sample for sample."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from fedreach.data.partition import draws
from fedreach.data.partition.assignment import Partition
from fedreach.errors import ConfigError, DataError


def class_counts(
    labels: ArrayLike, num_clients: int, rng: np.random.Generator, *, counts: Sequence[Sequence[int]]
) -> Partition:
    """Give the first clients as many random samples of each class as is said; deal the rest to the others in turn.

    When: a paper, or a census, says what a client holds. Whoever shall not matter gets the rest and never takes part.

    Cover: every sample once.

    Args:
        counts: A list for each of the first clients: its samples of class 0, 1, ...; classes after the last are 0.

    Raises:
        DataError: If there are more lists than clients, a class has fewer samples, or the rest leaves a client empty or
            finds nobody to hold it.
        ConfigError: If a list holds anything but counts, at least one in all.

    Example:
        >>> labels = np.arange(30) % 3
        >>> class_counts(labels, 2, np.random.default_rng(0), counts=[[5, 0, 1]]).label_counts(labels, 3)
        array([[ 5,  0,  1],
               [ 5, 10,  9]])
    """
    checked, num_clients = draws.checked_arguments(labels, num_clients, rng)
    if not isinstance(counts, list | tuple):
        raise ConfigError(
            f"counts of class_counts must be a list for each of some clients, as [[100, 50], [0, 30]]; got {counts!r}."
        )
    if len(counts) > num_clients:
        raise DataError(f"class_counts: counts are for {len(counts)} clients; there are {num_clients}.")
    rows = [_checked(row) for row in counts]
    present, (classes, supply) = np.unique(checked), draws.classes_of(checked)
    wanted = np.array([[dict(enumerate(row)).get(label, 0) for label in present.tolist()] for row in rows], np.int64)
    wanted = wanted.reshape(len(rows), present.size)
    _check_there(rows, dict(zip(present.tolist(), supply.tolist(), strict=True)))
    owner = draws.deal(classes, np.vstack([wanted, supply - wanted.sum(axis=0)]), rng)
    rest, others = np.flatnonzero(owner == len(rows)), num_clients - len(rows)
    if not others and rest.size:
        raise DataError(f"class_counts: {rest.size} samples are left, and no client to hold them. Add one.")
    draws.check_enough(rest.size, others, 1)
    owner[rng.permutation(rest)] = len(rows) + np.arange(rest.size) % max(others, 1)
    return Partition.from_owner(owner, num_clients, "class_counts", {"counts": rows})


def _checked(row: Sequence[int]) -> list[int]:
    if not isinstance(row, list | tuple) or not row:
        raise ConfigError(f"counts of class_counts: each client's must be a list of numbers; got {row!r}.")
    found = [draws.checked_count("counts of class_counts", count, 0) for count in row]
    if not sum(found):
        raise ConfigError("counts of class_counts: each of these clients must hold a sample; got a list of 0 only.")
    return found


def _check_there(rows: list[list[int]], supply: dict[int, int]) -> None:
    for label in range(max(map(len, rows), default=0)):
        asked, there = sum(row[label] for row in rows if label < len(row)), supply.get(label, 0)
        if asked > there:
            raise DataError(f"class_counts: {asked} samples of class {label} are asked for, and {there} are there.")
