"""Federated data: a data set, and the training and test examples of each client."""

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
from fedreach.data.checks import ExampleKind
from fedreach.data.datasets import Dataset, PartitionSpec, ServerData
from fedreach.data.noise import LabelNoise, corrupt
from fedreach.data.partition import partition as partition_of_kind
from fedreach.data.preparation import Preparation, TargetScale
from fedreach.data.several import example_classes
from fedreach.data.splits import APART, ClientIndex, Population, Together
from fedreach.data.stored import OwnData

Participants = int | str | Sequence[object] | None
"""Number of participants to draw with the seed, or names of the participants. None draws 40% of the clients."""


@dataclass(frozen=True, eq=False)
class Shifted:
    """Unseen clients with a shift, and the result of the shift; see `fedreach.data.shifts.shift_unseen`."""

    clients: Ints  # ids of the shifted clients, increasing
    dropped: Ints  # (N, c) number of removed examples of each client and class
    sha256: str  # hash of the clients' examples after the shift
    record: Mapping[str, Any]  # JSON values: kind, share, clients, dropped


@dataclass(frozen=True, eq=False)
class Provenance:
    """Data set and tables of an experiment file from which FedReach built federated data."""

    data: Dataset | OwnData
    tables: Mapping[str, Mapping[str, Any]]  # the tables partition and population
    result: FederatedData | None = None


@dataclass(frozen=True, eq=False)
class FederatedData:
    """Federated data: the examples of each client, and which clients participate.

    Participants train on `train` and are tested on `held_out`. Unseen clients never train, so all of their examples are
    test data. Label noise changes only labels for training. None of these sets contains examples that the server has
    drawn from clients, or that a shift has removed. For unseen clients with a shift, `dataset` contains the shifted
    inputs and labels.

    Build federated data with one of the methods `from_frame`, `from_torch`, `from_clients`, `from_huggingface` and
    `from_spec`.
    """

    dataset: Dataset
    labels: AnyArray  # labels for training, with label noise: (n,) classes, or (n, t) numbers
    partition: Partition
    population: Population
    train: ClientIndex  # training examples of each client
    held_out: ClientIndex  # held-out examples of each client
    noise: Mapping[str, Any] | None  # record of the label noise
    server: ServerData | None = None  # examples of the server
    shift: Shifted | None = None  # shift of unseen clients
    client_names: tuple[str, ...] | None = None  # (N,) names of the clients; None: ids are the names
    together: Together = APART  # groups and times of the examples
    left_out: Ints | None = None  # (N,) number of examples in neither part, see `fedreach.data.validation`
    note: str = ""  # how the participants were drawn
    draw: Callable[..., FederatedData] | None = None  # draws the participants again, see `redrawn`
    origin: Provenance | None = None  # see `by_experiment`

    @property
    def by_experiment(self) -> Provenance | None:
        """Data set and tables of an experiment file that produce these data, or None if no experiment file does."""
        origin = self.origin
        unchanged = origin is not None and datasets.same_fields(self, origin.result, "note", "draw", "origin")
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
        """Build federated data from a table in which one column is the client of each row.

        A column of numbers becomes an input with mean 0 and standard deviation 1. A column of words becomes one input
        per category. An additional input marks missing values. FedReach computes means, standard deviations and
        categories only from the participants' training rows. It omits columns without information. The attribute
        `schema` describes all columns. The order of the rows does not matter.

        Args:
            table: Table of pandas, polars or pyarrow, dictionary of lists, or path of a .csv or .parquet file.
            client: Column with the client of each row.
            label: Column of classes, as numbers or words. Specify either `label` or `target`.
            target: One or more columns of numbers to predict. The default loss is ``mse``. In training, the targets are
                scaled with the participants' statistics (see `fedreach.data.preparation.TargetScale`). Results are in
                the original unit.
            columns: Options for columns, such as columns to drop; see `fedreach.data.cells.ColumnOptions`.
            group: Column of groups, such as patients. A client holds out all rows of a group or none of them. The
                column is not an input.
            time: Column of numbers or dates. Each client holds out its latest rows. The column is also an input unless
                `columns` drops it.
            participants: Number of participants, or their names. Default: 40% of the clients, drawn with the seed.
            held_out: Share of each client's rows that is held out, in (0, 1). Default: 0.2.
            seed: Seed of the draws of held-out rows and participants.
            name: Name of the data set in tables and messages. Default: name of the file, or "table".

        Raises:
            ConfigError: If a column or participant is unknown.
            DataError: If the file is unreadable, a client or a label is missing, a number is infinite, or no column can
                be an input.

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
        kind: ExampleKind | None = None,
        num_classes: int | None = None,
        name: str = "dataset",
    ) -> FederatedData:
        """Build federated data from a map-style torch Dataset.

        FedReach reads each example once, so random transforms of the Dataset are applied only once. Images have the
        type uint8, and FedReach normalizes them with the mean and standard deviation of the participants' pixels.
        Pillow images become grayscale or RGB, see `fedreach.data.images.as_shown`. Other inputs are not scaled.

        Args:
            dataset: Dataset of pairs of input and label, which can be tensors, arrays, images or lists. For several
                inputs, a pair is ``((a, b), label)`` or ``({"tokens": a, "age": b}, label)``. A tuple follows the order
                of the arguments of the model's forward method, and a dictionary contains their names. An example can
                also be a dictionary whose key ``labels`` is the label. A label can be an array with one label per
                position, where -100 masks a position.
            clients: Clients of the examples, as names or numbers.
            group: Groups of the examples, such as patients. A client holds out all examples of a group or none of them.
                Default: no groups.
            time: Times of the examples, as numbers or dates. Each client holds out its latest examples. Default:
                held-out examples are drawn at random.
            participants: As in `from_frame`. The arguments `held_out`, `seed` and `name` are also as in `from_frame`.
            kind: As in `fedreach.data.datasets.from_arrays`. The argument `num_classes` is also as in `from_arrays`.

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
        kind: ExampleKind | None = None,
        num_classes: int | None = None,
        name: str = "clients",
    ) -> FederatedData:
        """Build federated data from a dictionary that contains a pair of arrays or a torch Dataset for each client.

        The order of the dictionary does not matter. `group` and `time` are dictionaries by client, such as
        ``{"north": ["p1", "p1", "p2"], "south": ...}``. The other arguments are as in `from_torch`.

        Example:
            >>> north, south = np.ones((4, 2)), [([0.0, 0.5], 1), ([0.5, 0.0], 0)]
            >>> FederatedData.from_clients({"north": (north, [0, 1, 0, 1]), "south": south})
            FederatedData(clients: 2 clients; 1 takes part (south), 1 never trains; drawn by seed 0, 40% of them)
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
        kind: ExampleKind | None = None,
        name: str = "huggingface",
    ) -> FederatedData:
        """Build federated data from a Hugging Face Dataset, or from a FederatedDataset of flwr-datasets.

        If all columns except client and label contain single numbers or words, FedReach reads the data as a table, as
        in `from_frame`.

        Args:
            ds: Dataset with a length, or FederatedDataset whose partitions are the clients.
            client: Column with the client of each example; None for a FederatedDataset.
            label: Column of classes. Default: "label".
            inputs: Column of images or arrays, required if there are further columns. For several inputs, a list of
                columns, whose names are the argument names of the model's forward method.
            columns: Options for columns of a table, as in `from_frame`.
            group: Column of groups, as in `from_frame`. The argument `time` is also as in `from_frame`.
            split: Split of a FederatedDataset. Default: "train".
            participants: As in `from_frame`. The arguments `held_out`, `seed` and `name` are also as in `from_frame`.
            kind: As in `fedreach.data.datasets.from_arrays`.

        Raises:
            ConfigError: If a column is unknown, or an argument that names a required column is missing.
            DataError: For the same reasons as in `from_frame` and `from_torch`.
        """
        of_clients = huggingface.of_huggingface(
            ds, client, label, inputs, split, kind, name, columns, group=group, time=time
        )
        return _federate_own(of_clients, participants, held_out, seed, seed)

    @classmethod
    def from_spec(cls, spec: PartitionSpec, *, seed: int = 0) -> FederatedData:
        """Draw federated data from a specification, see `fedreach.data.datasets.Dataset.partition`.

        Raises:
            ConfigError: If the kind of partition is unknown, or an option is invalid.
            DataError: If the data do not allow this partition.

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
        partition = draw_partition(spec.dataset, spec.kind_name, make, spec.clients, seed, spec.options, spec.empty)
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
        """Names of the classes if labels are words, else None."""
        return self.dataset.class_names

    @property
    def schema(self) -> Preparation | None:
        """Columns of the table with their kinds and inputs, or None if examples are not rows of a table."""
        return self.dataset.preparation

    def name_of(self, client: int) -> str:
        """Return the name of a client, or its id as text if it has no name."""
        return str(client) if self.client_names is None else self.client_names[client]

    def redrawn(self, seed: int) -> FederatedData:
        """Draw the participants again with another seed.

        Data with named participants do not change. With data from a `PartitionSpec`, FedReach also draws the partition
        again.
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
        """(N,) mask of the participants."""
        return np.isin(np.arange(self.num_clients), self.population.participants)

    @property
    def num_clients(self) -> int:
        """Number of clients N: participants and unseen clients."""
        return len(self.train.offsets) - 1

    def label_counts(self) -> Ints:
        """Return (N, c) counts of training labels, including label noise; c is 0 unless each example has one class."""
        return self.train.label_counts(self.labels, self.dataset.example_classes)

    def taken_by_server(self) -> Ints:
        """Return the (N,) number of examples that the server has drawn from each client."""
        dropped = 0 if self.shift is None else self.shift.dropped.sum(axis=1)
        counts = self.partition.sizes - self.train.sizes - self.held_out.sizes - dropped
        return counts if self.left_out is None else counts - self.left_out

    def digest(self) -> str:
        """Return the sha256 of data, labels, partition, held-out examples and participants."""
        d = self.dataset
        digest = hashlib.sha256(f"{d.sha256} {d.kind} {d.num_classes} {d.mean} {d.std}".encode())
        labels = self.labels
        if labels.dtype.kind == "f":  # the conversion to integers below would truncate them
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
    """Draw the participants, the held-out examples, the server's examples and the label noise.

    Args:
        dataset: Data set that is partitioned. Unscaled user data and numeric targets are scaled with statistics of the
            participants' training examples, see `fedreach.data.preparation.TargetScale`.
        partition: Partition of the data set into N clients.
        seed: Seed of the four draws. Each draw has its own random stream.
        population_seed: Seed of the participants. Default: `seed`.
        participants: Number, share, ids or names of the participants; see `fedreach.data.splits.draw_population`.
        exclude_clients: Ids of clients that never train.
        exclude_labels: Classes; clients with an example of one of these classes never train.
        held_out: Share of each client's examples that is held out, in (0, 1). Default: 0.2.
        noise: Arguments of `fedreach.data.noise.corrupt`, such as ``{"kind": "symmetric", "rate": 0.2}``. The noise
            changes only training labels. With the scope "before_split", draw the partition with `noisy_before_split`.
        server_examples: Number of training examples that the server draws from all clients, including unseen clients,
            see `fedreach.data.datasets.draw_for_server`. Default: none.
        server_data: The server's own data instead of `server_examples`, see `fedreach.data.datasets.check_server_data`.

    Raises:
        ConfigError: If an argument is outside its range.
        DataError: If the partition or the server's data do not match the data set, or a numeric target is equal in all
            training rows of the participants.

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
            f"The partition must divide the {len(dataset.train_y)} examples of {dataset.name}; got a partition of "
            f"{len(partition.order)} examples. It belongs to another data set."
        )
    classes = example_classes(dataset.train_y, dataset.num_classes)
    target_form = "one label per position" if dataset.num_classes else "numbers as targets"
    if noise is not None and not classes:
        raise ConfigError(f"noise: requires one class per example; {dataset.name} has {target_form}. Remove noise.")
    if exclude_labels and not classes:
        raise ConfigError(
            f"population.exclude_labels: requires one class per example; {dataset.name} has {target_form}. Use "
            "exclude_clients."
        )
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
        dataset = dataset.prepare([train[client] for client in population.participants.tolist()])
    if not dataset.num_classes:
        client_targets = [dataset.train_y[train[client]] for client in population.participants.tolist()]
        dataset = replace(dataset, target_scale=TargetScale.of_clients(client_targets, dataset.target_names))
    server = None
    if server_examples is not None and server_data is not None:
        raise ConfigError("server_examples and server_data must not be given together. Remove one.")
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
    """Draw a partition with a seed.

    Args:
        dataset: Data set that is partitioned. With ``"natural"``, the clients are the owners of its examples.
        name: Name of `make`, for messages.
        make: Function that draws the partition, with the signature of the functions in
            `fedreach.data.partition.PARTITIONS`.
        clients: Number of clients.
        seed: Seed of the partition.
        options: Options of `make`.
        empty: ``"error"`` to reject empty clients, or ``"drop"`` to remove them, see
            `fedreach.data.assignment.without_empty`.
        labels: Labels by which the examples are partitioned, such as noisy labels. Default: labels of the data set.

    Raises:
        ConfigError: If the partition is ``"natural"`` and the data set has no natural clients.
        ComponentError: If `make` does not return a partition.
    """
    if name == "natural":
        if dataset.owners is None:
            raise ConfigError(
                f"partition.name is 'natural', but {dataset.name} has no natural clients. Use another partition."
            )
        options, clients = {**options, "owners": dataset.owners}, int(dataset.owners.max()) + 1
    partition = make(dataset.train_y if labels is None else labels, clients, generator(seed, "partition"), **options)
    if not isinstance(partition, Partition):
        raise ComponentError(
            f"partition {name!r} must return a fedreach.data.assignment.Partition; got {type(partition).__name__}. "
            "Partition.from_owner builds one from the client of each example."
        )
    return without_empty(partition, empty)


def noisy_before_split(dataset: Dataset | OwnData, noise: Mapping[str, Any], seed: int) -> LabelNoise:
    """Draw noisy labels before the partition, which then uses them; `noise` is as in `federate`."""
    return corrupt(dataset.train_y, generator(seed, "noise"), num_classes=dataset.num_classes, **noise)


def _federate_own(
    data: OwnData, participants: Participants, held_out: float, split_seed: int, seed: int
) -> FederatedData:
    """Build federated data from user data with natural clients; the participants are named or drawn with `seed`."""
    chosen = splits.ids_of(participants, data.owner_names)
    partition = Partition.from_owner(data.owners, len(data.owner_names), "natural")
    federated = federate(data, partition, seed=split_seed, population_seed=seed, participants=chosen, held_out=held_out)
    who = chosen if isinstance(chosen, int) else [data.owner_names[client] for client in chosen]
    # Another seed draws other participants, but keeps the clients' training and held-out examples.
    population: dict[str, Any] = {"participants": who, "held_out": held_out}
    tables: dict[str, dict[str, Any]] = {"partition": {"name": "natural", "seed": split_seed}, "population": population}
    federated = replace(federated, origin=Provenance(data, tables, federated))
    if not isinstance(chosen, int):
        return federated
    note = f"drawn by seed {seed}{', 40% of them' * (participants is None)}"
    return replace(federated, note=note, draw=partial(_federate_own, data, participants, held_out, split_seed))


def _by_names(
    participants: float | Sequence[int | str] | None, names: Sequence[str] | None, num_clients: int
) -> float | list[int] | None:
    """Replace names of participants with ids; keep a number or share."""
    if participants is None or isinstance(participants, int | float | np.integer):
        return participants
    if not any(isinstance(participant, str) for participant in participants):
        return [int(participant) for participant in participants]
    ids = splits.ids_of(participants, names or [str(client) for client in range(num_clients)])
    assert not isinstance(ids, int)  # a list of names never gives a number
    return ids


def stream_names(partition: Partition, names: Sequence[str] | None) -> Sequence[str] | None:
    """Return the names of the random streams of natural clients, or None for other partitions."""
    if partition.kind != "natural":
        return None
    return names or [str(client) for client in range(partition.num_clients)]


def names_of(dataset: Dataset | OwnData, partition: Partition) -> tuple[str, ...] | None:
    """Return the client names of a natural partition, or None if clients have no names."""
    if dataset.owners is None or partition.kind != "natural" or names_unless_numbers(dataset.owner_names) is None:
        return None
    clients = range(partition.num_clients)
    owners_by_client = [np.unique(dataset.owners[partition[client]]).tolist() or [client] for client in clients]
    return tuple(" + ".join(dataset.owner_names[owner] for owner in owners) for owners in owners_by_client)
