"""Participants and unseen clients, and the held-out examples of each client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from fedreach._util.arrays import AnyArray, Bools, Floats, Ints
from fedreach._util.errors import ConfigError, check_type, nearest
from fedreach._util.streams import generator, number_of, uniforms
from fedreach.data.assignment import Partition, check_table

# ---- Participants

SHARE = 0.4  # default share of participants


@dataclass(frozen=True, eq=False)
class ClientIndex:
    """Example indices grouped by client; client i has the indices ``order[offsets[i] : offsets[i + 1]]``."""

    order: Ints  # (n,) example indices
    offsets: Ints  # (N + 1,) start of each client in `order`

    @classmethod
    def of_sizes(cls, order: Ints, sizes: Ints) -> ClientIndex:
        """Build the index of clients with the given sizes, whose examples are consecutive in `order`."""
        return cls(np.ascontiguousarray(order), np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))

    def __getitem__(self, client: int) -> Ints:
        return self.order[self.offsets[client] : self.offsets[client + 1]]

    @property
    def sizes(self) -> Ints:
        """(N,) number of examples of each client."""
        return np.diff(self.offsets)

    def sizes_of(self, clients: Ints) -> Ints:
        """Return the number of examples of each given client, without a pass over all clients."""
        return self.offsets[clients + 1] - self.offsets[clients]

    def of(self, clients: Ints) -> tuple[Ints, Ints]:
        """Return the concatenated examples of the given clients, and the number of examples of each client.

        Example:
            >>> ClientIndex(np.array([4, 7, 5]), np.array([0, 1, 1, 3])).of(np.array([2, 0]))
            (array([7, 5, 4]), array([2, 1]))
        """
        sizes = self.sizes_of(clients)
        places = np.repeat(self.offsets[clients] + sizes - np.cumsum(sizes), sizes)
        return self.order[places + np.arange(len(places))], sizes

    def owner(self) -> Ints:
        """Return the (n,) client of each example in `order`."""
        return np.repeat(np.arange(len(self.offsets) - 1), self.sizes)

    def without(self, gone: Bools) -> ClientIndex:
        """Remove the examples that an (n,) mask of the entries of `order` marks."""
        remaining_sizes = np.bincount(self.owner()[~gone], minlength=len(self.offsets) - 1)
        return ClientIndex.of_sizes(self.order[~gone], remaining_sizes)

    def label_counts(self, labels: Ints, num_classes: int) -> Ints:
        """Return the (N, c) number of examples per client and class; c is 0 if targets are numbers."""
        n = len(self.offsets) - 1
        if not num_classes:
            return np.zeros((n, 0), np.int64)
        check_table(n, num_classes)
        cells = self.owner() * num_classes + labels[self.order]
        return np.bincount(cells, minlength=n * num_classes).reshape(n, num_classes)


@dataclass(frozen=True, eq=False)
class Population:
    """Participants, which may train, and unseen clients, which never train; each client is in one of these groups."""

    participants: Ints  # (n,) ids, increasing
    unseen: Ints  # (N - n,) ids, increasing


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
        label_counts: (N, c) number of examples of each client and class.
        rng: Random generator, which is used only if the number or share of participants is given.
        participants: Number of participants, their share of the clients that are not excluded, in (0, 1), or their
            ids. Default: all clients that are not excluded.
        exclude_clients: Ids of clients that never train.
        exclude_labels: Classes; clients with an example of one of these classes never train.

    Raises:
        ConfigError: If an id or a class does not exist, or more participants are requested than are available.

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
            raise ConfigError(f"population.participants must be in (0, 1) as a share; got {participants}.")
        participants = share_of(participants, len(eligible)) if len(eligible) else None

    if participants is None:
        chosen = eligible
    elif isinstance(participants, int | np.integer):
        if not 1 <= participants <= len(eligible):
            raise ConfigError(
                f"population.participants must be from 1 to {len(eligible)}, the number of clients that are not "
                f"excluded; got {participants}."
            )
        chosen = np.sort(rng.choice(eligible, size=participants, replace=False))
    else:
        _check_range("population.participants", participants, num_clients, "clients")
        chosen = np.unique(np.asarray(participants, dtype=np.int64))
        clash = chosen[barred[chosen]]
        if clash.size:
            raise ConfigError(
                f"population.participants must not contain excluded clients; got {clash[0]}. Remove it from one list."
            )
    if len(chosen) == 0:
        raise ConfigError("population must have at least one participant. Exclude fewer clients or labels.")
    return Population(chosen, np.delete(np.arange(num_clients), chosen))


def share_of(share: float, clients: int) -> int:
    """Return the rounded share of a number of clients, at least 1.

    Example:
        >>> share_of(0.4, 50), share_of(0.1, 3)
        (20, 1)
    """
    return max(1, round(share * clients))


def _check_range(name: str, values: Sequence[int], limit: int, what: str) -> None:
    for value in values:
        if not 0 <= value < limit:
            raise ConfigError(f"{name} must contain {what} from 0 to {limit - 1}; got {value}.")


def ids_of(participants: int | str | Sequence[object] | None, names: Sequence[str]) -> int | list[int]:
    """Return the number of participants, or the ids of participants given by name.

    None means 40% of the clients: at least 1 client, and not all clients if there are two or more.

    Raises:
        ConfigError: If a name is unknown.

    Example:
        >>> ids_of(["south"], ["north", "south"]), ids_of(None, "abcde")
        ([1], 2)
        >>> ids_of(["nroth"], ["north", "south"])
        Traceback (most recent call last):
        fedreach.ConfigError: participants: unknown client 'nroth'. Did you mean 'north'?
    """
    if participants is None:
        return min(share_of(SHARE, len(names)), max(1, len(names) - 1))
    if isinstance(participants, int | np.integer) and not isinstance(participants, bool):
        return int(participants)
    if isinstance(participants, bool | float) or not isinstance(participants, str | Sequence | np.ndarray):
        raise ConfigError(f"participants must be a number or a list of names; got {type(participants).__name__}.")
    requested = [participants] if isinstance(participants, str) else [str(participant) for participant in participants]
    if not requested:
        raise ConfigError("participants must contain at least one client; got none.")
    ids = {name: client for client, name in enumerate(names)}
    for name in requested:
        if name not in ids:
            raise ConfigError(f"participants: unknown client {name!r}.{nearest(name, ids)}")
    return [ids[name] for name in requested]


# ---- Held-out examples of each client: drawn at random, by group, or the latest ones


@dataclass(frozen=True, eq=False)
class Together:
    """Groups and times of examples for a split by group or by time (see `split_held_out`)."""

    group: str | None = None  # name of the group column
    time: str | None = None  # name of the time column
    groups: Ints | None = None  # (n,) group of each example
    moments: Floats | None = None  # (n,) time of each example

    def at(self, rows: Ints) -> Together:
        """Select the groups and times of the given rows."""
        groups = None if self.groups is None else self.groups[rows]
        return replace(self, groups=groups, moments=None if self.moments is None else self.moments[rows])

    def sort_keys(self, first: AnyArray) -> AnyArray:
        """Return the (n, k) sort keys of the examples: `first`, then group and time."""
        return np.column_stack([first, *(key for key in (self.groups, self.moments) if key is not None)])

    def __str__(self) -> str:
        grouped = "" if self.group is None else f"all rows of one {self.group!r} together"
        latest = "" if self.time is None else f"the latest by {self.time!r}"
        return ", ".join(filter(None, [latest, grouped]))


APART = Together()


def draws(partition: Partition | ClientIndex, seed: int, purpose: str, names: Sequence[str] | None = None) -> Floats:
    """Draw a number in [0, 1) for each entry of `partition.order`.

    Args:
        partition: Partition or index of N clients.
        seed: Seed of the draw.
        purpose: Name of the random stream, see `fedreach._util.streams.generator`.
        names: Names of the N clients. With names, the numbers of a client depend only on the seed and its name, not on
            other clients. Default: one random stream for all clients.

    Example:
        >>> two = ClientIndex(np.arange(4), np.array([0, 2, 4]))
        >>> three = ClientIndex(np.arange(9), np.array([0, 5, 7, 9]))
        >>> draws(two, 0, "held-out", ["a", "c"])[2:] == draws(three, 0, "held-out", ["a", "b", "c"])[7:]
        array([ True,  True])
    """
    if names is None:
        return generator(seed, purpose).random(len(partition.order))
    return uniforms(seed, purpose, [number_of(name) for name in names], partition.sizes)


def split_held_out(
    partition: Partition | ClientIndex,
    share: float,
    drawn: Floats,
    together: Together = APART,
) -> tuple[ClientIndex, ClientIndex]:
    """Split each client's examples into training and held-out examples.

    A client with m examples holds out round(share * m) of them, but at least one if m >= 2, and never all. With groups
    or times, this number is approximate. A client with only one group or one time holds out nothing, because it needs
    training examples.

    With groups, all of a client's examples of a group are either held out or used for training. The split considers
    groups in random order. It holds out a group if this brings the number of held-out examples closer to round(share *
    m). If no group satisfies this condition, the smallest group is held out.

    With times, the latest examples are held out. Examples with the same time are never separated. The split holds out
    at least one time, and as many times as bring the number of examples closest to round(share * m).

    With groups and times, the time of a group is the time of its latest example. So no training example is later than a
    held-out group.

    Args:
        partition: Partition or index of N clients.
        share: Share of each client's examples that is held out, in (0, 1).
        drawn: Random number for each entry of `partition.order`, see `draws`.
        together: Groups and times of the examples. Default: none.

    Raises:
        ConfigError: If `share` is not in (0, 1).

    Example:
        >>> from fedreach._util.streams import generator
        >>> partition = Partition(np.arange(10), np.array([0, 4, 10]), kind="iid", parameters={})
        >>> train, held_out = split_held_out(partition, 0.25, draws(partition, 0, "held-out"))
        >>> train.sizes, held_out.sizes
        (array([3, 4]), array([1, 2]))
        >>> years = np.array([2020, 2021, 2022, 2022, 2019, 2019, 2019, 2019, 2020, 2020])
        >>> latest = split_held_out(partition, 0.25, draws(partition, 0, "held-out"), Together(moments=years))[1]
        >>> years[latest[0]], years[latest[1]]
        (array([2022, 2022]), array([2020, 2020]))
    """
    check_type("population", "held_out", share, int, float, np.floating)
    if not 0 < share < 1:
        raise ConfigError(f"population.held_out must be in (0, 1); got {share}.")
    sizes = partition.sizes
    target_sizes = np.clip(np.rint(share * sizes).astype(np.int64), np.minimum(1, sizes - 1), np.maximum(sizes - 1, 0))
    owner = np.repeat(np.arange(len(sizes)), sizes)
    shuffled = np.lexsort((drawn, owner))  # shuffles the examples of all clients at once
    is_held: Bools = np.zeros(len(owner), np.bool_)
    groups, moments = together.groups, together.moments
    if groups is None and moments is None:
        rank = np.arange(len(owner)) - np.repeat(partition.offsets[:-1], sizes)
        is_held[shuffled] = rank < target_sizes[owner]
    else:
        for client, (begin, end) in enumerate(pairwise(partition.offsets.tolist())):
            rows = partition.order[begin:end]
            row_groups = np.arange(len(rows)) if groups is None else groups[rows]
            if moments is None:
                is_held[begin:end] = _whole_groups(row_groups, drawn[begin:end], int(target_sizes[client]))
            else:
                is_held[begin:end] = _latest(_last_of_group(moments[rows], row_groups), int(target_sizes[client]))
    is_held = is_held[shuffled]
    order, held_sizes = partition.order[shuffled], np.bincount(owner[is_held], minlength=len(sizes))
    return ClientIndex.of_sizes(order[~is_held], sizes - held_sizes), ClientIndex.of_sizes(order[is_held], held_sizes)


def _whole_groups(groups: Ints, drawn: Floats, target_size: int) -> Bools:
    """Return the (m,) mask of a client's held-out rows; a group uses the random number of its first row."""
    _, first, place, counts = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
    chosen, count = np.zeros(len(counts), np.bool_), 0
    if len(counts) < 2:
        return chosen[place]
    for group in np.argsort(drawn[first]).tolist():
        more = count + counts[group]
        if more < len(groups) and abs(more - target_size) < abs(count - target_size):
            chosen[group], count = True, more
    if not count:
        chosen[np.lexsort((drawn[first], counts))[0]] = True
    return chosen[place]


def _latest(moments: Floats, target_size: int) -> Bools:
    """Return the (m,) mask of a client's held-out rows, its latest ones."""
    values, place, counts = np.unique(-moments, return_inverse=True, return_counts=True)
    if len(values) < 2:
        return np.zeros(len(moments), np.bool_)
    cut = int(np.argmin(np.abs(np.cumsum(counts)[:-1] - target_size)))  # ties: fewer held-out rows
    return place <= cut


def _last_of_group(moments: Floats, groups: Ints) -> Floats:
    _, place = np.unique(groups, return_inverse=True)
    last = np.full(int(place.max(initial=-1)) + 1, -np.inf)
    np.maximum.at(last, place, moments)
    return last[place]
