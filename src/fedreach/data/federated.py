"""Federated data: a data set, and the examples that each client trains on and is tested on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedreach._util.arrays import AnyArray, Bools, Ints
from fedreach._util.errors import ComponentError, ConfigError, DataError, check_type
from fedreach._util.registry import find
from fedreach._util.streams import generator
from fedreach._util.tables import visible
from fedreach.data import datasets, huggingface, own, samples, splits
from fedreach.data.assignment import Partition, without_empty
from fedreach.data.cells import ColumnOptions, names_unless_numbers
from fedreach.data.checks import Kind
from fedreach.data.datasets import Dataset, PartitionSpec, ServerData
from fedreach.data.noise import LabelNoise, corrupt
from fedreach.data.partition import partition as partition_of_kind
from fedreach.data.preparation import Preparation, TargetScale
from fedreach.data.several import example_classes
from fedreach.data.splits import APART, ClientIndex, Population, Together
from fedreach.data.stored import OwnData

Participants = int | str | Sequence[object] | None
"""Number of participants, drawn by the seed; or their names. None: 40% of the clients, drawn by the seed."""


@dataclass(frozen=True, eq=False)
class Shifted:
    """Shifted unseen clients, and the effect of the shift; see `fedreach.data.shifts.shift_unseen`."""

    clients: Ints  # sorted ids
    dropped: Ints  # (N, c) examples that the shift removed, by class
    sha256: str  # of their examples after the shift
    record: Mapping[str, Any]  # plain JSON values: kind, share, clients, dropped


@dataclass(frozen=True, eq=False)
class Provenance:
    """The data and the tables of an experiment file that federated data were made from."""

    data: Dataset | OwnData
    tables: Mapping[str, Mapping[str, Any]]  # partition, population
    made: FederatedData | None = None  # as they were made


@dataclass(frozen=True, eq=False)
class FederatedData:
    """Data that all methods of a comparison share.

    Participants train on `train` and are tested on `held_out`. Unseen clients never train, so all of their examples
    are test data. `labels` may be noisy for training; held-out and test labels are always true. Examples that the
    server took from clients, or that a shift removed, are in neither part. For shifted unseen clients, `dataset` holds
    the shifted inputs and labels.
    """

    dataset: Dataset
    labels: AnyArray  # of the training set, as clients see them: (n,) classes, or (n, t) numbers
    partition: Partition
    population: Population
    train: ClientIndex
    held_out: ClientIndex
    noise: Mapping[str, Any] | None
    server: ServerData | None = None
    shift: Shifted | None = None
    client_names: tuple[str, ...] | None = None  # (N,) if clients have names other than their ids
    together: Together = APART  # examples that are held out together
    left_out: Ints | None = None  # (N,) examples in neither part, see `fedreach.data.validation`; None: none
    note: str = ""  # how the participants were drawn, if they were
    draw: Callable[..., FederatedData] | None = None  # see `redrawn`
    origin: Provenance | None = None  # see `by_experiment`

    @property
    def by_experiment(self) -> Provenance | None:
        """How an experiment file makes these data; None if none does, or if they were changed."""
        origin = self.origin
        unchanged = origin is not None and datasets.same_fields(self, origin.made, "note", "draw", "origin")
        return origin if unchanged else None

    @classmethod
    def from_frame(
        cls,
        table: Any,
        *,
        client: str,
        label: str | None = None,
        target: str | Sequence[str] | None = None,
        columns: ColumnOptions | None = None,
        group: str | None = None,
        time: str | None = None,
        participants: Participants = None,
        held_out: float = 0.2,
        seed: int = 0,
        name: str | None = None,
    ) -> FederatedData:
        """Make federated data from a table with a column that names the client of each row.

        Columns of numbers become inputs with mean 0 and standard deviation 1, and columns of words one input per
        category. A missing value is an input of its own. All scales are measured on the participants' training rows,
        never on other clients: see `fedreach.data.preparation.Preparation`, which is stored as `schema`. Columns
        without information are left out, and the schema gives the reason. The order of the rows does not matter.

        Args:
            table: A table of pandas, polars or pyarrow, a dictionary of lists, or the path of a .csv or .parquet file.
            client: Column that names the client of each row.
            label: Column of classes, as numbers or words; give either this or `target`.
            target: Column of numbers to predict, or several; they stay unscaled. The loss is ``mse`` unless a method
                chooses ``huber``; both train on the participants' scale, see
                `fedreach.data.preparation.TargetScale`.
            columns: Options for columns: columns to drop, kinds, words for missing values, and the decimal separator;
                see `fedreach.data.cells.ColumnOptions`.
            group: Column of groups, such as the patient of a visit: a client holds out all rows of a group or none.
                It is not an input.
            time: Column of numbers or dates by which each client holds out its latest rows. It stays an input unless
                `columns` drops it.
            participants: Number of participants, or their names. Default: 40% of the clients, drawn at random.
            held_out: Share of each client's rows that is held out, see `fedreach.data.splits.split_held_out`.
            seed: Seed of the held-out rows, and of the participants if they are drawn.
            name: Name of the data set in tables and messages. Default: name of the file, or "table".

        Raises:
            ConfigError: If a column or a client of `participants` is unknown; the message suggests the nearest name.
            DataError: If the file cannot be read, a client or a label is missing, a number is infinite, or no column
                holds information.

        Example:
            >>> table = {"hospital": ["north", "south", "east"] * 4, "age": range(20, 32), "ill": ["no", "yes"] * 6}
            >>> data = FederatedData.from_frame(table, client="hospital", label="ill", participants=["north"])
            >>> data
            FederatedData(table: 3 clients; 1 takes part (north), 2 never train)
            >>> data.client_names, data.class_names
            (('east', 'north', 'south'), ('no', 'yes'))
            >>> print(data.schema)
            hospital  client
            ill       label   no, yes
            age       number  25 ± 3.742
        """
        check_type("from_frame", "name", name, str, type(None))
        if isinstance(table, str | Path):
            name = name or Path(table).name.removesuffix(".gz").rsplit(".", 1)[0]
        of_clients = own.of_frame(table, client, label, name or "table", target, columns, group=group, time=time)
        return _federate_own(of_clients, participants, held_out, seed, seed)

    @classmethod
    def from_torch(
        cls,
        dataset: Any,
        *,
        clients: Any,
        group: Any = None,
        time: Any = None,
        participants: Participants = None,
        held_out: float = 0.2,
        seed: int = 0,
        kind: Kind | None = None,
        num_classes: int | None = None,
        name: str = "dataset",
    ) -> FederatedData:
        """Make federated data from a map-style torch Dataset; each example is read once.

        So random transforms of the Dataset, such as a rotation, are drawn once. uint8 images are put on the scale of
        the participants' pixels; other inputs stay unchanged. Pillow images become gray or RGB, see
        `fedreach.data.images.as_shown`.

        Args:
            dataset: Object with a length and, by number, pairs of input and label: tensors, arrays, images or lists.
                Several inputs are ``((a, b), label)``, which the model's forward gets in this order, or
                ``({"tokens": a, "age": b}, label)``, which it gets as keywords. A dictionary as in Hugging Face data
                sets holds the label as ``labels``. A label may be an array with one label per position, -100 if
                masked.
            clients: Client of each example, as names or numbers.
            group: Group of each example, such as its patient: a client holds out all examples of a group or none, as
                in `from_frame`. Default: no groups.
            time: Time of each example, as numbers or dates: each client holds out its latest examples. Default: the
                examples to hold out are drawn.
            participants: As in `from_frame`; also `held_out`, `seed` and `name`.
            kind: As in `fedreach.data.datasets.from_arrays`; also `num_classes`.

        Raises:
            ConfigError: If the Dataset has no length or cannot be indexed.
            DataError: If inputs differ in shape or type, an image or a label is invalid, or `clients`, `group` or
                `time` does not have one entry per example.

        Example:
            >>> pairs = [([1.0, 2.0], 0), ([3.0, 4.0], 1), ([5.0, 6.0], 0), ([7.0, 8.0], 1)]
            >>> FederatedData.from_torch(pairs, clients=["ann", "bob", "bob", "ann"], participants=["bob"])
            FederatedData(dataset: 2 clients; 1 takes part (bob), 1 never trains)
            >>> data = FederatedData.from_torch(pairs * 2, clients=["ann"] * 8, time=range(8), held_out=0.25)
            >>> sorted(data.held_out[0].tolist())
            [6, 7]
        """
        of_clients = samples.of_torch(dataset, clients, kind, num_classes, name, group=group, time=time)
        return _federate_own(of_clients, participants, held_out, seed, seed)

    @classmethod
    def from_clients(
        cls,
        data: Mapping[Any, Any],
        *,
        group: Mapping[Any, Any] | None = None,
        time: Mapping[Any, Any] | None = None,
        participants: Participants = None,
        held_out: float = 0.2,
        seed: int = 0,
        kind: Kind | None = None,
        num_classes: int | None = None,
        name: str = "clients",
    ) -> FederatedData:
        """Make federated data from a pair of arrays, or a Dataset, per client name.

        Clients are numbered in the order of their names, so that the order of the dictionary does not matter. The
        arguments are as in `from_torch`; `group` and `time` are also dictionaries by client, such as
        ``{"north": ["p1", "p1", "p2"], "south": ...}``.

        Example:
            >>> north, south = np.ones((4, 2)), [([0.0, 0.5], 1), ([0.5, 0.0], 0)]
            >>> FederatedData.from_clients({"north": (north, [0, 1, 0, 1]), "south": south})
            FederatedData(clients: 2 clients; 1 takes part (south), 1 never trains; drawn by seed 0, 40 % of them)
        """
        of_clients = samples.of_clients(data, kind, num_classes, name, group=group, time=time)
        return _federate_own(of_clients, participants, held_out, seed, seed)

    @classmethod
    def from_huggingface(
        cls,
        ds: Any,
        *,
        client: str | None = None,
        label: str = "label",
        inputs: str | Sequence[str] | None = None,
        columns: ColumnOptions | None = None,
        group: str | None = None,
        time: str | None = None,
        split: str = "train",
        participants: Participants = None,
        held_out: float = 0.2,
        seed: int = 0,
        kind: Kind | None = None,
        name: str = "huggingface",
    ) -> FederatedData:
        """Make federated data from a Hugging Face Dataset, or from a FederatedDataset of flwr-datasets.

        If all columns except client and label hold single numbers or words, they are a table, as in `from_frame`.

        Args:
            ds: A Dataset with a length; or a FederatedDataset, whose partitions are the clients.
            client: Column that names the client; None for a FederatedDataset.
            label: Column of classes.
            inputs: Column of images or arrays, required if there are further columns; or a list of columns, which the
                model's forward gets as keywords.
            columns: Options for the columns of a table, as in `from_frame`.
            group: Column of groups, as in `from_frame`; also `time`.
            split: Split of a FederatedDataset.
            participants: As in `from_frame`; also `held_out`, `seed` and `name`.
            kind: As in `fedreach.data.datasets.from_arrays`.

        Raises:
            ConfigError: If a column is unknown, or an argument is missing that names a column.
            DataError: As in `from_frame` and `from_torch`.
        """
        of_clients = huggingface.of_huggingface(
            ds, client, label, inputs, split, kind, name, columns, group=group, time=time
        )
        return _federate_own(of_clients, participants, held_out, seed, seed)

    @classmethod
    def from_spec(cls, spec: PartitionSpec, *, seed: int = 0) -> FederatedData:
        """Draw federated data by a spec and a seed, see `fedreach.data.datasets.Dataset.partition`.

        Raises:
            ConfigError: If the kind of partition is unknown, or one of its options is invalid.
            DataError: If the examples cannot be divided in this way.

        Example:
            >>> from fedreach.data.sets import load
            >>> FederatedData.from_spec(load("digits").partition("shards", clients=10, classes_per_client=2))
            FederatedData(digits: 10 clients; 4 take part (4, 6, 7, 9), 6 never train; drawn by seed 0)
        """
        kind = spec.kind
        if not isinstance(kind, str):
            make: Callable[..., Partition] = kind
        else:
            make = find("partition", kind, Path.cwd()) if ":" in kind else partial(partition_of_kind, kind)
        partition = draw_partition(spec.dataset, spec.called, make, spec.clients, seed, spec.options, spec.empty)
        federated = federate(
            spec.dataset,
            partition,
            seed=seed,
            participants=spec.participants,
            exclude_clients=spec.exclude_clients,
            exclude_labels=spec.exclude_labels,
            held_out=spec.held_out,
        )
        draw, origin = partial(cls.from_spec, spec), Provenance(spec.dataset, spec.tables(), federated)
        return replace(federated, note=f"drawn by seed {seed}", draw=draw, origin=origin)

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes, if labels are words."""
        return self.dataset.class_names

    @property
    def schema(self) -> Preparation | None:
        """Kind and inputs of each column of a table; None if the examples are not rows of a table."""
        return self.dataset.preparation

    def name_of(self, client: int) -> str:
        """Return the name of a client, or its id if it has none."""
        return str(client) if self.client_names is None else self.client_names[client]

    def redrawn(self, seed: int) -> FederatedData:
        """Return the same clients and held-out data with the participants that this seed draws.

        If the participants are named, or nothing is drawn, the data stay the same.
        """
        return self if self.draw is None else self.draw(seed=seed)

    def __repr__(self) -> str:
        chosen, unseen = self.population.participants.tolist(), len(self.population.unseen)
        who = ", ".join(visible(self.name_of(client)) for client in chosen[:6]) + (", ..." if len(chosen) > 6 else "")
        takes, trains = "takes" if len(chosen) == 1 else "take", "trains" if unseen == 1 else "train"
        return (
            f"FederatedData({self.dataset.name}: {self.num_clients} clients; {len(chosen)} {takes} part ({who}), "
            f"{unseen} never {trains}{'; ' * bool(self.note)}{self.note})"
        )

    @property
    def takes_part(self) -> Bools:
        """(N,) whether each client participates."""
        return np.isin(np.arange(self.num_clients), self.population.participants)

    @property
    def num_clients(self) -> int:
        """Participants and unseen clients together."""
        return len(self.train.offsets) - 1

    def label_counts(self) -> Ints:
        """Return the (N, c) label counts of training parts as clients see them; c = 0 for numbers or positions."""
        return self.train.label_counts(self.labels, self.dataset.example_classes)

    def taken_by_server(self) -> Ints:
        """Return the (N,) number of examples that the server took from each client."""
        dropped = 0 if self.shift is None else self.shift.dropped.sum(axis=1)
        counts = self.partition.sizes - self.train.sizes - self.held_out.sizes - dropped
        return counts if self.left_out is None else counts - self.left_out

    def digest(self) -> str:
        """Return the sha256 of this federation: data, labels, partition, splits and participants."""
        d = self.dataset
        digest = hashlib.sha256(f"{d.sha256} {d.kind} {d.num_classes} {d.mean} {d.std}".encode())
        labels = self.labels
        if labels.dtype.kind == "f":  # numbers would be cut off below
            digest.update(datasets.content_hash(labels).encode())
            labels = labels[:0]
        arrays = (labels, self.train.order, self.train.offsets, self.held_out.order, self.held_out.offsets)
        for array in (*arrays, self.population.participants):
            digest.update(np.ascontiguousarray(array, dtype="<i8").tobytes())
        if self.server is not None:
            digest.update(f"server {datasets.content_hash(self.server.x, self.server.y)}".encode())
        if self.shift is not None:
            digest.update(f"shift {self.shift.sha256}".encode())
        return digest.hexdigest()


def federate(
    dataset: Dataset | OwnData,
    partition: Partition,
    *,
    seed: int = 0,
    population_seed: int | None = None,
    participants: float | Sequence[int | str] | None = None,
    exclude_clients: Sequence[int] = (),
    exclude_labels: Sequence[int] = (),
    held_out: float = 0.2,
    noise: Mapping[str, Any] | None = None,
    server_examples: int | None = None,
    server_data: tuple[Any, Any] | Path | str | None = None,
) -> FederatedData:
    """Draw participants and held-out data, give the server its examples, and add label noise.

    Args:
        dataset: Data set to divide. Unscaled data of users and numeric targets are put on the scale of the
            participants' training part, see `fedreach.data.preparation.TargetScale`.
        partition: Partition over N clients.
        seed: Seed of the four draws; each has its own stream, so that one does not change the others.
        population_seed: Seed of the participants alone, so that the same `seed` can have other participants while all
            clients hold the same data. Default: `seed`.
        participants: As in `fedreach.data.splits.draw_population`, also for the two exclusions; or names of clients.
        held_out: Share of each client's examples that is held out, see `split_held_out`.
        noise: Arguments of `fedreach.data.noise.corrupt`, such as ``{"kind": "symmetric", "rate": 0.2}``. Only
            training labels are corrupted, as held-out labels must be true. With the scope "before_split", the labels
            are those of `noisy_before_split`; the partition should have been drawn by them.
        server_examples: Number of training examples that the server takes from all clients, unseen ones too, so that
            they represent all data; see `fedreach.data.datasets.draw_for_server`. Default: none.
        server_data: The server's own data instead, see `fedreach.data.datasets.check_server_data`; clients then keep
            all of their examples.

    Raises:
        ConfigError: If an argument is outside its range.
        DataError: If the partition or the server's data do not fit the data set, or a number to predict is the same in
            all rows that participants train on.

    Example:
        >>> from fedreach.data.sets import load
        >>> from fedreach.data.partition import iid
        >>> from fedreach._util.streams import generator
        >>> digits = load("digits")
        >>> data = federate(digits, iid(digits.train_y, 50, generator(0, "partition")), participants=20)
        >>> len(data.population.participants), len(data.population.unseen)
        (20, 30)
    """
    if len(partition.order) != len(dataset.train_y):
        raise DataError(
            f"The partition is of {len(partition.order)} samples, but {dataset.name} has {len(dataset.train_y)}. "
            "It belongs to another data set."
        )
    classes = example_classes(dataset.train_y, dataset.num_classes)
    target_form = "stand at positions" if dataset.num_classes else "are numbers"
    if noise is not None and not classes:
        raise ConfigError(f"noise: it makes classes wrong, and targets of {dataset.name} {target_form}. Leave it out.")
    if exclude_labels and not classes:
        raise ConfigError(f"population.exclude_labels: targets of {dataset.name} {target_form}. Use exclude_clients.")
    names = names_of(dataset, partition)
    together = dataset.together if isinstance(dataset, OwnData) else APART
    drawn = splits.draws(partition, seed, "held-out", stream_names(partition, names))
    train, held_out_part = splits.split_held_out(partition, held_out, drawn, together)
    population = splits.draw_population(
        partition.label_counts(dataset.train_y, classes),
        generator(seed if population_seed is None else population_seed, "population"),
        participants=_by_names(participants, names, partition.num_clients),
        exclude_clients=exclude_clients,
        exclude_labels=exclude_labels,
    )
    if isinstance(dataset, OwnData):
        dataset = dataset.prepared([train[client] for client in population.participants.tolist()])
    if not dataset.num_classes:
        client_targets = [dataset.train_y[train[client]] for client in population.participants.tolist()]
        dataset = replace(dataset, target_scale=TargetScale.of_clients(client_targets, dataset.target_names))
    server = None
    if server_examples is not None and server_data is not None:
        raise ConfigError("server_data: give server_examples or server_data, not both.")
    if server_examples is not None:
        for_server = datasets.draw_for_server(train.owner(), server_examples, generator(seed, "server-data"))
        index = np.sort(train.order[for_server])
        server, train = ServerData(dataset.train_x[index], dataset.train_y[index]), train.without(for_server)
    elif server_data is not None:
        server = datasets.check_server_data(dataset, server_data)
    labels, record = dataset.train_y, None
    if noise is not None:
        if noise.get("scope") == "before_split":
            label_noise = noisy_before_split(dataset, noise, seed)
            noisy = label_noise.labels[train.order]
            counted = np.isin(train.order, label_noise.selected).sum(), label_noise.changed[train.order].sum()
        else:
            divided = Partition(np.arange(len(train.order)), train.offsets, kind=partition.kind)
            rng = generator(seed, "noise")
            label_noise = corrupt(labels[train.order], rng, num_classes=dataset.num_classes, partition=divided, **noise)
            noisy, counted = label_noise.labels, (label_noise.selected.size, label_noise.changed.sum())
        labels = labels.copy()
        labels[train.order] = noisy
        record = {**label_noise.record, "num_selected": int(counted[0]), "num_changed": int(counted[1])}
    parts = dataset, labels, partition, population, train, held_out_part, record, server
    return FederatedData(*parts, client_names=names, together=together)


def draw_partition(
    dataset: Dataset | OwnData,
    name: str,
    make: Callable[..., object],
    clients: int,
    seed: int,
    options: Mapping[str, Any],
    empty: str = "error",
    labels: AnyArray | None = None,
) -> Partition:
    """Return the partition that a seed draws, see `fedreach.data.assignment.without_empty` for `empty`.

    Args:
        dataset: Data set to partition; for ``"natural"``, its owners determine the number of clients.
        name: Name of `make`, a function like those of `fedreach.data.partition.PARTITIONS`.
        make: The function.
        clients: Number of clients.
        seed: Seed of the partition.
        options: Options of `make`.
        empty: Policy for empty clients.
        labels: Labels to partition by, such as noisy ones. Default: those of the data set.

    Raises:
        ConfigError: If natural clients are requested, and the data set has none.
        ComponentError: If `make` does not return a partition.
    """
    if name == "natural":
        if dataset.owners is None:
            raise ConfigError(f"partition.name is 'natural', but {dataset.name} has no natural clients.")
        options, clients = {**options, "owners": dataset.owners}, int(dataset.owners.max()) + 1
    partition = make(dataset.train_y if labels is None else labels, clients, generator(seed, "partition"), **options)
    if not isinstance(partition, Partition):
        raise ComponentError(
            f"partition {name!r} must return a fedreach.data.assignment.Partition; got {type(partition).__name__}. "
            "Partition.from_owner makes one of the client of each sample."
        )
    return without_empty(partition, empty)


def noisy_before_split(dataset: Dataset | OwnData, noise: Mapping[str, Any], seed: int) -> LabelNoise:
    """Return the noisy labels that a partition is drawn by; `noise` as in `federate`."""
    return corrupt(dataset.train_y, generator(seed, "noise"), num_classes=dataset.num_classes, **noise)


def _federate_own(
    data: OwnData, participants: Participants, held_out: float, split_seed: int, seed: int
) -> FederatedData:
    """Return the data of a user by their natural clients, with participants that are named or drawn by `seed`."""
    chosen = splits.ids_of(participants, data.owner_names)
    partition = Partition.from_owner(data.owners, len(data.owner_names), "natural")
    federated = federate(data, partition, seed=split_seed, population_seed=seed, participants=chosen, held_out=held_out)
    who = chosen if isinstance(chosen, int) else [data.owner_names[client] for client in chosen]
    # Every seed keeps the clients' examples and held-out parts; the participants are drawn, unless named.
    population: dict[str, Any] = {"participants": who, "held_out": held_out}
    tables: dict[str, dict[str, Any]] = {"partition": {"name": "natural", "seed": split_seed}, "population": population}
    federated = replace(federated, origin=Provenance(data, tables, federated))
    if not isinstance(chosen, int):
        return federated
    note = f"drawn by seed {seed}{', 40 % of them' * (participants is None)}"
    return replace(federated, note=note, draw=partial(_federate_own, data, participants, held_out, split_seed))


def _by_names(
    participants: float | Sequence[int | str] | None, names: Sequence[str] | None, num_clients: int
) -> float | list[int] | None:
    """Return the number, the share or the ids of the participants, from ids or names."""
    if participants is None or isinstance(participants, int | float | np.integer):
        return participants
    if not any(isinstance(participant, str) for participant in participants):
        return [int(participant) for participant in participants]
    ids = splits.ids_of(participants, names or [str(client) for client in range(num_clients)])
    assert not isinstance(ids, int)  # a list of names gives ids
    return ids


def stream_names(partition: Partition, names: Sequence[str] | None) -> Sequence[str] | None:
    """Return the names or ids that key the random streams of natural clients; None for drawn clients."""
    if partition.kind != "natural":
        return None
    return names or [str(client) for client in range(partition.num_clients)]


def names_of(dataset: Dataset | OwnData, partition: Partition) -> tuple[str, ...] | None:
    """Return the client names of a natural partition; None without names."""
    if dataset.owners is None or partition.kind != "natural" or names_unless_numbers(dataset.owner_names) is None:
        return None
    clients = range(partition.num_clients)  # clients without examples keep their names
    owners_by_client = [np.unique(dataset.owners[partition[client]]).tolist() or [client] for client in clients]
    return tuple(" + ".join(dataset.owner_names[owner] for owner in owners) for owners in owners_by_client)
