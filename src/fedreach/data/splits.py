"""Which clients participate, and which of their examples are held out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from fedreach._util.arrays import Bools, Floats, Ints
from fedreach._util.errors import ConfigError, check_type, nearest
from fedreach._util.streams import generator, number_of, uniforms
from fedreach.data.assignment import Partition, check_table

# -------------------- Who takes part, and which samples each client trains and is tested on

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
        remaining_sizes = np.bincount(self.owner()[~gone], minlength=len(self.offsets) - 1)
        return Ranges.of_sizes(self.order[~gone], remaining_sizes)

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
        fedreach.ConfigError: participants: there is no client 'nroth'. Did you mean 'north'?
    """
    if participants is None:
        return min(share_of(SHARE, len(names)), max(1, len(names) - 1))
    if isinstance(participants, int | np.integer) and not isinstance(participants, bool):
        return int(participants)
    if isinstance(participants, bool | float) or not isinstance(participants, str | Sequence | np.ndarray):
        raise ConfigError(f"participants must be how many, or a list of names; got {type(participants).__name__}.")
    requested = [participants] if isinstance(participants, str) else [str(participant) for participant in participants]
    if not requested:
        raise ConfigError("participants must name at least one client; got none.")
    ids = {name: client for client, name in enumerate(names)}
    for name in requested:
        if name not in ids:
            raise ConfigError(f"participants: there is no client {name!r}.{nearest(name, ids)}")
    return [ids[name] for name in requested]


# -------------------- Which rows each client holds out: drawn at random, whole groups of rows, or the latest ones


@dataclass(frozen=True, eq=False)
class Together:
    """Which samples of a client are on the same side, and which of them are the latest; see `split_held_out`."""

    group: str | None = None  # the column that says it
    time: str | None = None  # likewise
    groups: Ints | None = None  # (n,) group of each sample
    moments: Floats | None = None  # (n,) when each was taken

    def at(self, rows: Ints) -> Together:
        """Return the same of some samples."""
        groups = None if self.groups is None else self.groups[rows]
        return replace(self, groups=groups, moments=None if self.moments is None else self.moments[rows])

    def __str__(self) -> str:
        grouped = "" if self.group is None else f"all rows of one {self.group!r} together"
        latest = "" if self.time is None else f"the latest by {self.time!r}"
        return ", ".join(filter(None, [latest, grouped]))


APART = Together()


def draws(partition: Partition | Ranges, seed: int, purpose: str, names: Sequence[str] | None = None) -> Floats:
    """Return a random number in [0, 1) for each place of `partition.order`.

    Args:
        partition: Whose samples they are, over N clients.
        seed: Of the draw.
        purpose: What the numbers are for, see `fedreach._util.streams.generator`.
        names: Of the N clients. Each client then has a stream of its own, which follows from the seed and its name: no
            client's numbers depend on what others hold, or on who they are. None: one stream goes over all clients in
            order, as partitions that are drawn depend on all clients anyway.

    Example:
        >>> two = Ranges(np.arange(4), np.array([0, 2, 4]))
        >>> three = Ranges(np.arange(9), np.array([0, 5, 7, 9]))
        >>> draws(two, 0, "held-out", ["a", "c"])[2:] == draws(three, 0, "held-out", ["a", "b", "c"])[7:]
        array([ True,  True])
    """
    if names is None:
        return generator(seed, purpose).random(len(partition.order))
    return uniforms(seed, purpose, [number_of(name) for name in names], partition.sizes)


def split_held_out(
    partition: Partition | Ranges,
    share: float,
    drawn: Floats,
    together: Together = APART,
) -> tuple[Ranges, Ranges]:
    """Split each client's samples into a training and a held-out part.

    A client with m samples holds out round(share * m) of them, at least one where m is 2 or more and never all. Samples
    that must not be parted make that about so many. A client all of whose samples belong
    together trains on them and holds nothing out: else it would not take part at all.

    Args:
        partition: Whose samples they are, over N clients.
        share: In (0, 1).
        drawn: A random number for each place of `partition.order`, see `draws`.
        together: With groups, a client's samples of one group are on the same side. Groups are taken in random order,
            each where that brings the number of held-out samples nearer to what is asked for; where none does, the
            smallest is held out. With moments, the latest samples are held out, and those of one moment are on the same
            side: so many moments as bring their number nearest to what is asked for, at least one. With both, a group
            counts as taken at its last moment, so that nothing is trained on that is later than a held-out group.

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
        raise ConfigError(f"population.held_out must be a share in (0, 1); got {share}.")
    sizes = partition.sizes
    target_sizes = np.clip(np.rint(share * sizes).astype(np.int64), np.minimum(1, sizes - 1), np.maximum(sizes - 1, 0))
    target_sizes = np.maximum(target_sizes, 0)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    shuffled = np.lexsort((drawn, owner))  # inside every client at once
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
    return Ranges.of_sizes(order[~is_held], sizes - held_sizes), Ranges.of_sizes(order[is_held], held_sizes)


def _whole_groups(groups: Ints, drawn: Floats, target_size: int) -> Bools:
    """Return which of a client's rows are held out; a group's place in the draw is that of its first row."""
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
    """Return which of a client's rows are held out, given when each was taken."""
    values, place, counts = np.unique(-moments, return_inverse=True, return_counts=True)
    if len(values) < 2:
        return np.zeros(len(moments), np.bool_)
    cut = int(np.argmin(np.abs(np.cumsum(counts)[:-1] - target_size)))  # of two as near, the fewer
    return place <= cut


def _last_of_group(moments: Floats, groups: Ints) -> Floats:
    _, place = np.unique(groups, return_inverse=True)
    last = np.full(int(place.max(initial=-1)) + 1, -np.inf)
    np.maximum.at(last, place, moments)
    return last[place]
