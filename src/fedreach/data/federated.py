"""Federated data: one data set and, for each client, the range of samples that it trains and is tested on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedreach.arrays import AnyArray, Bools, Ints
from fedreach.data.datasets import Dataset, content_hash
from fedreach.data.noise import corrupt
from fedreach.data.partition import Partition
from fedreach.data.server_data import ServerData, drawn_for_server, given_to_server
from fedreach.errors import ConfigError, DataError
from fedreach.streams import generator


@dataclass(frozen=True, eq=False)
class Ranges:
    """Sample indices grouped by client: client i owns ``order[offsets[i] : offsets[i + 1]]``."""

    order: Ints  # (samples,)
    offsets: Ints  # (N + 1,)

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
        return _ranges(self.order[~gone], left)

    def label_counts(self, labels: Ints, num_classes: int) -> Ints:
        """Return the (N, c) number of samples per client and class."""
        n = len(self.offsets) - 1
        cells = self.owner() * num_classes + labels[self.order]
        return np.bincount(cells, minlength=n * num_classes).reshape(n, num_classes)


@dataclass(frozen=True, eq=False)
class Shifted:
    """Which unseen clients are shifted, and what that did; see `fedreach.data.shifts.shift_unseen`."""

    clients: Ints  # ids, increasing
    dropped: Ints  # (N, c) samples that they no longer have, by class
    sha256: str  # of what they hold now
    record: Mapping[str, Any]  # plain JSON values: kind, share, clients, dropped


@dataclass(frozen=True, eq=False)
class FederatedData:
    """What every method of a comparison shares.

    Participants train on `train` and are tested on `held_out`; unseen clients never train, so all of their
    samples are test data. `labels` may be noisy on the training part; held-out and test labels never are. Samples that
    the server took from clients, or that a shift dropped, are in neither part, so that nobody trains or is tested on
    them. Where unseen clients are shifted, inputs and labels of `dataset` are those that they have.
    """

    dataset: Dataset
    labels: Ints  # (samples,) of the training set, as clients see them
    partition: Partition
    population: Population
    train: Ranges
    held_out: Ranges
    noise: Mapping[str, Any] | None
    server: ServerData | None = None
    shift: Shifted | None = None

    @property
    def num_clients(self) -> int:
        """Participants and unseen clients together."""
        return len(self.train.offsets) - 1

    def label_counts(self) -> Ints:
        """Return the (N, c) labels that the clients see on their training part."""
        return self.train.label_counts(self.labels, self.dataset.num_classes)

    def taken_by_server(self) -> Ints:
        """Return the (N,) number of samples that the server took from each client."""
        dropped = 0 if self.shift is None else self.shift.dropped.sum(axis=1)
        return self.partition.sizes - self.train.sizes - self.held_out.sizes - dropped

    def digest(self) -> str:
        """Return the sha256 that names this federation: data, labels, partition, splits and who takes part."""
        d = self.dataset
        digest = hashlib.sha256(f"{d.sha256} {d.kind} {d.num_classes} {d.mean} {d.std}".encode())
        arrays = (self.labels, self.train.order, self.train.offsets, self.held_out.order, self.held_out.offsets)
        for array in (*arrays, self.population.participants):
            digest.update(np.ascontiguousarray(array, dtype="<i8").tobytes())
        if self.server is not None:
            digest.update(f"server {content_hash(self.server.x, self.server.y)}".encode())
        if self.shift is not None:
            digest.update(f"shift {self.shift.sha256}".encode())
        return digest.hexdigest()


def federate(
    dataset: Dataset,
    partition: Partition,
    *,
    seed: int = 0,
    population_seed: int | None = None,
    participants: float | Sequence[int] | None = None,
    exclude_clients: Sequence[int] = (),
    exclude_labels: Sequence[int] = (),
    held_out: float = 0.2,
    noise: Mapping[str, Any] | None = None,
    server_examples: int | None = None,
    server_data: tuple[Any, Any] | Path | str | None = None,
) -> FederatedData:
    """Choose who takes part, hold data out, give the server its share and add label noise.

    Args:
        dataset: What is divided.
        partition: How, over N clients.
        seed: Of the four choices; each has a stream of its own, so that one does not change the others.
        population_seed: Of who takes part alone, so that with one `seed` others take part and all hold the same; None:
            `seed`.
        participants: See `fedreach.data.federated.draw_population`, also for the two exclusions.
        held_out: Share of each client's samples that is held out, see `split_held_out`.
        noise: Arguments of `fedreach.data.noise.corrupt`, such as ``{"kind": "symmetric", "rate": 0.2}``. Only
            training labels are corrupted: what is held out must measure the truth.
        server_examples: How many training examples the server takes from the clients, those that never train too, so
            that its sample stands for everybody; see `fedreach.data.server_data.drawn_for_server`. None: none.
        server_data: Data of the server's own instead, see `fedreach.data.server_data.given_to_server`; clients then
            keep all of theirs.

    Raises:
        ConfigError: If an argument is outside its range.
        DataError: If partition or server data do not belong to the data set.

    Example:
        >>> from fedreach.data.sets.catalogue import load
        >>> from fedreach.data.partition import iid
        >>> from fedreach.streams import generator
        >>> digits = load("digits")
        >>> data = federate(digits, iid(digits.train_y, 50, generator(0, "partition")), participants=20)
        >>> len(data.population.participants), len(data.population.unseen)
        (20, 30)
    """
    if len(partition.order) != len(dataset.train_y):
        raise DataError(
            f"The partition divides {len(partition.order)} samples, but {dataset.name} has {len(dataset.train_y)} "
            "training samples. It belongs to another data set."
        )
    train, held = split_held_out(partition, held_out, generator(seed, "held-out"))
    population = draw_population(
        partition.label_counts(dataset.train_y, dataset.num_classes),
        generator(seed if population_seed is None else population_seed, "population"),
        participants=participants,
        exclude_clients=exclude_clients,
        exclude_labels=exclude_labels,
    )
    server = None
    if server_examples is not None and server_data is not None:
        raise ConfigError("server_data: give server_examples or server_data, not both.")
    if server_examples is not None:
        taken = drawn_for_server(train.owner(), server_examples, generator(seed, "server-data"))
        index = np.sort(train.order[taken])
        server, train = ServerData(dataset.train_x[index], dataset.train_y[index]), train.without(taken)
    elif server_data is not None:
        server = given_to_server(dataset, server_data)
    labels, record = dataset.train_y, None
    if noise is not None:
        own = Partition(np.arange(len(train.order)), train.offsets, kind=partition.kind)
        made = corrupt(
            labels[train.order], generator(seed, "noise"), num_classes=dataset.num_classes, partition=own, **noise
        )
        labels = labels.copy()
        labels[train.order] = made.labels
        record = made.record
    return FederatedData(dataset, labels, partition, population, train, held, record, server)


def split_held_out(partition: Partition, share: float, rng: np.random.Generator) -> tuple[Ranges, Ranges]:
    """Split each client's samples at random into a training and a held-out part.

    A client with m samples holds out round(share * m) of them, at least one where m is 2 or more and never all.

    Raises:
        ConfigError: If `share` is not in (0, 1).

    Example:
        >>> from fedreach.streams import generator
        >>> partition = Partition(np.arange(10), np.array([0, 4, 10]), kind="iid", parameters={})
        >>> train, held_out = split_held_out(partition, 0.25, generator(0, "split"))
        >>> train.sizes, held_out.sizes
        (array([3, 4]), array([1, 2]))
    """
    if not 0 < share < 1:
        raise ConfigError(f"population.held_out must be a share in (0, 1); got {share}.")
    sizes = partition.sizes
    held = np.clip(np.rint(share * sizes).astype(np.int64), np.minimum(1, sizes - 1), np.maximum(sizes - 1, 0))
    held = np.maximum(held, 0)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    # Sorting by (owner, random key) shuffles inside every client at once.
    shuffled = partition.order[np.lexsort((rng.random(len(owner)), owner))]
    rank = np.arange(len(owner)) - np.repeat(partition.offsets[:-1], sizes)
    is_held: Bools = rank < held[owner]
    return _ranges(shuffled[~is_held], sizes - held), _ranges(shuffled[is_held], held)


def _ranges(order: AnyArray, sizes: Ints) -> Ranges:
    return Ranges(np.ascontiguousarray(order), np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))


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
