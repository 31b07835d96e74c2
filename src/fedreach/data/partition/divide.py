"""From a data set to who holds what: the partition that a seed draws, without clients that are short of samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from fedreach.arrays import AnyArray, Ints
from fedreach.data.partition.assignment import Partition
from fedreach.data.partition.empty import handle_empty
from fedreach.errors import ConfigError, DataError, PartError
from fedreach.streams import generator


class Divisible(Protocol):
    """What is asked of a data set that is divided."""

    @property
    def name(self) -> str:
        """In messages."""

    @property
    def train_y(self) -> AnyArray:
        """Labels, (n,), or (n, t) numbers."""

    @property
    def owners(self) -> Ints | None:
        """Natural client of each sample, (n,)."""


class Labelled(NamedTuple):
    """A data set by the labels that it is divided by, which need not be the true ones."""

    name: str
    train_y: AnyArray
    owners: Ints | None


def divided(
    dataset: Divisible,
    called: str,
    make: Callable[..., object],
    clients: int,
    seed: int,
    options: Mapping[str, Any],
    empty: str = "error",
    *,
    natural: bool = False,
) -> Partition:
    """Return the partition that a seed draws.

    Args:
        dataset: What is divided.
        called: What `make` is called in a message.
        make: As those of `fedreach.data.partition.PARTITIONS`.
        clients: How many there are to be.
        seed: Of the partition.
        options: Of the kind.
        empty: See `handle_empty`.
        natural: Whether `make` is handed the owners, who say how many clients there are.

    Raises:
        ConfigError: If the data set has no natural clients, and they are asked for.
        DataError: If a client is empty, and that is not wanted.
        PartError: If what `make` returns is no partition.
    """
    given = dict(options)
    if natural:
        if dataset.owners is None:
            raise ConfigError(f"partition.name is 'natural', but {dataset.name} has no natural clients.")
        given["owners"], clients = dataset.owners, int(dataset.owners.max()) + 1
    made = make(dataset.train_y, clients, generator(seed, "partition"), **given)
    if not isinstance(made, Partition):
        raise PartError(
            f"partition {called!r} must return a fedreach.data.partition.Partition; got {type(made).__name__}. "
            "Partition.from_owner makes one of the client of each sample."
        )
    return without_empty(made, empty)


def without_empty(partition: Partition, empty: str) -> Partition:
    """Return the partition after `handle_empty`, which is told by the key of an experiment file where it refuses."""
    try:
        return handle_empty(partition, empty).partition
    except DataError as error:
        raise DataError(f"partition.empty = {empty!r}: {error}") from error
