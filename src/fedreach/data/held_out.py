"""Which rows each client holds out: drawn at random, whole groups of rows, or the latest ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from fedreach.arrays import Bools, Floats, Ints
from fedreach.data.partition import Partition
from fedreach.data.population import Ranges
from fedreach.errors import ConfigError, check_type
from fedreach.streams import generator, number_of, uniforms


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
        whole = "" if self.group is None else f"all rows of one {self.group!r} together"
        latest = "" if self.time is None else f"the latest by {self.time!r}"
        return ", ".join(filter(None, [latest, whole]))


APART = Together()


def draws(partition: Partition | Ranges, seed: int, purpose: str, names: Sequence[str] | None = None) -> Floats:
    """Return a random number in [0, 1) for each place of `partition.order`.

    Args:
        partition: Whose samples they are, over N clients.
        seed: Of the draw.
        purpose: What the numbers are for, see `fedreach.streams.generator`.
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
        >>> from fedreach.streams import generator
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
    wanted = np.clip(np.rint(share * sizes).astype(np.int64), np.minimum(1, sizes - 1), np.maximum(sizes - 1, 0))
    wanted = np.maximum(wanted, 0)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    shuffled = np.lexsort((drawn, owner))  # inside every client at once
    is_held: Bools = np.zeros(len(owner), np.bool_)
    groups, moments = together.groups, together.moments
    if groups is None and moments is None:
        rank = np.arange(len(owner)) - np.repeat(partition.offsets[:-1], sizes)
        is_held[shuffled] = rank < wanted[owner]
    else:
        for client, (begin, end) in enumerate(pairwise(partition.offsets.tolist())):
            rows = partition.order[begin:end]
            own = np.arange(len(rows)) if groups is None else groups[rows]
            if moments is None:
                is_held[begin:end] = _whole_groups(own, drawn[begin:end], int(wanted[client]))
            else:
                is_held[begin:end] = _latest(_last_of_group(moments[rows], own), int(wanted[client]))
    is_held = is_held[shuffled]
    order, held = partition.order[shuffled], np.bincount(owner[is_held], minlength=len(sizes))
    return Ranges.of_sizes(order[~is_held], sizes - held), Ranges.of_sizes(order[is_held], held)


def _whole_groups(groups: Ints, drawn: Floats, wanted: int) -> Bools:
    """Return which of a client's rows are held out; a group's place in the draw is that of its first row."""
    _, first, place, counts = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
    chosen, count = np.zeros(len(counts), np.bool_), 0
    if len(counts) < 2:
        return chosen[place]
    for group in np.argsort(drawn[first]).tolist():
        more = count + counts[group]
        if more < len(groups) and abs(more - wanted) < abs(count - wanted):
            chosen[group], count = True, more
    if not count:
        chosen[np.lexsort((drawn[first], counts))[0]] = True
    return chosen[place]


def _latest(moments: Floats, wanted: int) -> Bools:
    """Return which of a client's rows are held out, given when each was taken."""
    values, place, counts = np.unique(-moments, return_inverse=True, return_counts=True)
    if len(values) < 2:
        return np.zeros(len(moments), np.bool_)
    cut = int(np.argmin(np.abs(np.cumsum(counts)[:-1] - wanted)))  # of two as near, the fewer
    return place <= cut


def _last_of_group(moments: Floats, groups: Ints) -> Floats:
    _, place = np.unique(groups, return_inverse=True)
    last = np.full(int(place.max(initial=-1)) + 1, -np.inf)
    np.maximum.at(last, place, moments)
    return last[place]
