"""Who takes part, and which samples each client trains and is tested on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedreach.arrays import Bools, Ints
from fedreach.data.partition.draws import check_table
from fedreach.errors import ConfigError, nearest

SHARE = 0.4  # of the clients take part, where nothing else is said


@dataclass(frozen=True, eq=False)
class Ranges:
    """Sample indices grouped by client: client i owns ``order[offsets[i] : offsets[i + 1]]``."""

    order: Ints  # (samples,)
    offsets: Ints  # (N + 1,)

    @classmethod
    def of_sizes(cls, order: Ints, sizes: Ints) -> Ranges:
        """Return the ranges of clients with so many samples each, one after the other in `order`."""
        return cls(np.ascontiguousarray(order), np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))

    def __getitem__(self, client: int) -> Ints:
        return self.order[self.offsets[client] : self.offsets[client + 1]]

    @property
    def sizes(self) -> Ints:
        """Number of samples of each client, (N,)."""
        return np.diff(self.offsets)

    def sizes_of(self, clients: Ints) -> Ints:
        """Number of samples of each of these clients; nobody else is looked at."""
        return self.offsets[clients + 1] - self.offsets[clients]

    def of(self, clients: Ints) -> tuple[Ints, Ints]:
        """Return the samples of these clients, one after the other, and how many each has.

        Example:
            >>> Ranges(np.array([4, 7, 5]), np.array([0, 1, 1, 3])).of(np.array([2, 0]))
            (array([7, 5, 4]), array([2, 1]))
        """
        sizes = self.sizes_of(clients)
        places = np.repeat(self.offsets[clients] + sizes - np.cumsum(sizes), sizes)
        return self.order[places + np.arange(len(places))], sizes

    def owner(self) -> Ints:
        """Client of each sample in `order`, (samples,)."""
        return np.repeat(np.arange(len(self.offsets) - 1), self.sizes)

    def without(self, gone: Bools) -> Ranges:
        """Return the ranges without the samples of `order` that are flagged, (samples,)."""
        left = np.bincount(self.owner()[~gone], minlength=len(self.offsets) - 1)
        return Ranges.of_sizes(self.order[~gone], left)

    def label_counts(self, labels: Ints, num_classes: int) -> Ints:
        """Return the (N, c) number of samples per client and class."""
        n = len(self.offsets) - 1
        if not num_classes:  # targets are numbers
            return np.zeros((n, 0), np.int64)
        check_table(n, num_classes)
        cells = self.owner() * num_classes + labels[self.order]
        return np.bincount(cells, minlength=n * num_classes).reshape(n, num_classes)


@dataclass(frozen=True, eq=False)
class Population:
    """The clients that may train and those that never train; ids increasing, together all clients."""

    participants: Ints  # (n,)
    unseen: Ints  # (N - n,)


def draw_population(
    label_counts: Ints,
    rng: np.random.Generator,
    *,
    participants: float | Sequence[int] | None = None,
    exclude_clients: Sequence[int] = (),
    exclude_labels: Sequence[int] = (),
) -> Population:
    """Divide N clients into participants and unseen clients.

    Args:
        label_counts: (N, c) examples per client and class.
        rng: Draws the participants where only their number is given.
        participants: How many take part, or which share in (0, 1) of those that are not excluded, drawn at random; or
            the ids of those that do; or None for all that are not excluded.
        exclude_clients: Ids of clients that never train.
        exclude_labels: Clients with an example of one of these classes never train.

    Raises:
        ConfigError: If an id or label does not exist, or fewer clients are left than shall take part.

    Example:
        >>> draw_population(np.array([[5, 0], [0, 5], [5, 0]]), None, exclude_labels=[1]).unseen
        array([1])
    """
    num_clients, num_classes = label_counts.shape
    _check_range("population.exclude_clients", exclude_clients, num_clients, "clients")
    _check_range("population.exclude_labels", exclude_labels, num_classes, "classes")
    barred = np.zeros(num_clients, np.bool_)
    barred[list(exclude_clients)] = True
    barred |= label_counts[:, list(exclude_labels)].any(axis=1)
    eligible = np.flatnonzero(~barred)
    if isinstance(participants, float):
        if not 0 < participants < 1:
            raise ConfigError(f"population.participants as a share must be in (0, 1); got {participants}.")
        participants = share_of(participants, len(eligible)) if len(eligible) else None

    if participants is None:
        chosen = eligible
    elif isinstance(participants, int | np.integer):
        if not 1 <= participants <= len(eligible):
            raise ConfigError(
                f"population.participants must be between 1 and the {len(eligible)} clients that are not excluded "
                f"(of {num_clients}); got {participants}."
            )
        chosen = np.sort(rng.choice(eligible, size=participants, replace=False))
    else:
        _check_range("population.participants", participants, num_clients, "clients")
        chosen = np.unique(np.asarray(participants, dtype=np.int64))
        clash = chosen[barred[chosen]]
        if clash.size:
            raise ConfigError(f"population.participants lists client {clash[0]}, which is excluded. Take it off one.")
    if len(chosen) == 0:
        raise ConfigError("population: no client is left to take part. Exclude fewer clients or labels.")
    return Population(chosen, np.delete(np.arange(num_clients), chosen))


def share_of(share: float, clients: int) -> int:
    """Return how many of so many clients a share is, at least one.

    Example:
        >>> share_of(0.4, 50), share_of(0.1, 3)
        (20, 1)
    """
    return max(1, round(share * clients))


def _check_range(name: str, values: Sequence[int], limit: int, what: str) -> None:
    for value in values:
        if not 0 <= value < limit:
            raise ConfigError(f"{name} must name {what} from 0 to {limit - 1}; got {value}.")


def ids_of(participants: int | str | Sequence[object] | None, names: Sequence[str]) -> int | list[int]:
    """Return how many of the clients take part, or the ids of those that are named.

    Without a wish it is 40 % of them, at least one, and not all if there are two or more.

    Raises:
        ConfigError: If there is no client of a name; the nearest is told.

    Example:
        >>> ids_of(["south"], ["north", "south"]), ids_of(None, "abcde")
        ([1], 2)
        >>> ids_of(["nroth"], ["north", "south"])
        Traceback (most recent call last):
        fedreach.errors.ConfigError: participants: there is no client 'nroth'. Did you mean 'north'?
    """
    if participants is None:
        return min(share_of(SHARE, len(names)), max(1, len(names) - 1))
    if isinstance(participants, int | np.integer) and not isinstance(participants, bool):
        return int(participants)
    if isinstance(participants, bool | float) or not isinstance(participants, str | Sequence | np.ndarray):
        raise ConfigError(f"participants must be how many, or a list of names; got {type(participants).__name__}.")
    asked = [participants] if isinstance(participants, str) else [str(each) for each in participants]
    if not asked:
        raise ConfigError("participants must name at least one client; got none.")
    ids = {name: client for client, name in enumerate(names)}
    for name in asked:
        if name not in ids:
            raise ConfigError(f"participants: there is no client {name!r}.{nearest(name, ids)}")
    return [ids[name] for name in asked]
