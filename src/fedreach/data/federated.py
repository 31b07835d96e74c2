"""Federated data: one data set and, for each client, the range of samples that it trains and is tested on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedreach._util.arrays import AnyArray, Ints
from fedreach._util.errors import ConfigError, DataError, check_type
from fedreach._util.registry import find
from fedreach._util.streams import generator
from fedreach._util.tables import visible
from fedreach.data import huggingface, own, samples
from fedreach.data.assignment import Partition, divided
from fedreach.data.cells import ColumnOptions, named
from fedreach.data.checks import Kind
from fedreach.data.datasets import (
    Dataset,
    Recipe,
    ServerData,
    content_hash,
    drawn_for_server,
    given_to_server,
    same_fields,
)
from fedreach.data.noise import LabelNoise, corrupt
from fedreach.data.partition import partition as partition_of_kind
from fedreach.data.preparation import Preparation, TargetScale
from fedreach.data.several import example_classes
from fedreach.data.splits import APART, Population, Ranges, Together, draw_population, draws, ids_of, split_held_out
from fedreach.data.stored import OwnData

Participants = int | str | Sequence[object] | None
"""How many take part, drawn by the seed; or the names of those that do; or None: 40 % of them, drawn likewise."""


@dataclass(frozen=True, eq=False)
class Shifted:
    """Which unseen clients are shifted, and what that did; see `fedreach.data.shifts.shift_unseen`."""

    clients: Ints  # ids, increasing
    dropped: Ints  # (N, c) samples that they no longer have, by class
    sha256: str  # of what they hold now
    record: Mapping[str, Any]  # plain JSON values: kind, share, clients, dropped


@dataclass(frozen=True, eq=False)
class Origin:
    """What federated data were made of, and what the tables of an experiment say of how."""

    data: Dataset | OwnData
    tables: Mapping[str, Mapping[str, Any]]  # partition, population
    made: FederatedData | None = None  # as they were then


@dataclass(frozen=True, eq=False)
class FederatedData:
    """What every method of a comparison shares.

    Participants train on `train` and are tested on `held_out`; unseen clients never train, so all of their
    samples are test data. `labels` may be noisy on the training part; held-out and test labels never are. Samples that
    the server took from clients, or that a shift dropped, are in neither part, so that nobody trains or is tested on
    them. Where unseen clients are shifted, inputs and labels of `dataset` are those that they have.
    """

    dataset: Dataset
    labels: AnyArray  # of the training set, as clients see them: (samples,) classes, or (samples, t) numbers
    partition: Partition
    population: Population
    train: Ranges
    held_out: Ranges
    noise: Mapping[str, Any] | None
    server: ServerData | None = None
    shift: Shifted | None = None
    client_names: tuple[str, ...] | None = None  # (N,) where clients have names other than their ids
    together: Together = APART  # what is held out together
    left_out: Ints | None = None  # (N,) samples that are in no part, see `fedreach.data.validation`; None: none
    note: str = ""  # how it was said who takes part, where that was drawn
    draw: Callable[[int], FederatedData] | None = None  # see `redrawn`
    origin: Origin | None = None  # see `by_experiment`

    @property
    def by_experiment(self) -> Origin | None:
        """How an experiment makes the very same data; None where none does, or they were changed since."""
        origin = self.origin
        unchanged = origin is not None and same_fields(self, origin.made, "note", "draw", "origin")
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
        """Return the rows of a table, by the client that a column names.

        Columns of numbers become inputs of mean 0 and deviation 1, columns of words one input for each category, and
        what is missing an input of its own; all of it measured on the participants' training rows, so that nothing of
        the others is known: see `fedreach.data.preparation.Preparation`, which is kept as `schema`. Columns that say
        nothing are left out, and that is told there. The order of the rows does not matter.

        Args:
            table: Of pandas, polars or pyarrow, a dictionary of a list for each column, or a .csv or .parquet file.
            client: The column that names each row's client.
            label: The column of classes, numbers or words. Or instead:
            target: The column of numbers to predict, or several; they stay as they are. The loss is ``mse`` unless a
                method says ``huber``; both put targets on the scale of participants', see
                `fedreach.data.preparation.TargetScale`.
            columns: What is not as it looks: columns that are no inputs, kinds, words for missing values, and what
                stands before decimals; see `fedreach.data.cells.ColumnOptions`.
            group: The column of groups, such as a patient's visits: a client's rows of one are held out together or
                trained on together. It is no input.
            time: The column of numbers or dates by which the latest rows of each client are held out. It stays an input
                unless `columns` drops it.
            participants: How many of the clients take part, or the names of those that do. Default: 40 % at random.
            held_out: Share of each client's rows that is held out, see `fedreach.data.splits.split_held_out`.
            seed: Of what is held out, and of who takes part where that is drawn.
            name: Of the data set, in tables and messages. Default: that of the file, else "table".

        Raises:
            ConfigError: If a column, or a client of `participants`, is not there; the nearest is told.
            DataError: If the file cannot be read, a client or a label is missing, a number is infinite, or no column
                says anything.

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
        """Return the examples of a map-style torch Dataset, by their clients; each is read once.

        What the Dataset draws at random, such as a turned image, is therefore drawn once. uint8 images are put on the
        scale of the participants' pixels, all else stays as it is. Pictures of Pillow are what they look like, gray or
        RGB, see `fedreach.data.images.as_shown`; what was converted is told in the notes of the data set.

        Args:
            dataset: Whatever has a length and, by number, pairs of input and label; tensors, arrays, images and lists.
                Several inputs are ``((a, b), label)``, which the model's forward gets in this order, or
                ``({"tokens": a, "age": b}, label)``, which it gets as keywords; or one dictionary as Hugging Face's,
                with the label under ``labels``. A label may be an array: one at every position, -100 where masked.
            clients: The client of each example, names or numbers.
            group: The group of each example, such as its patient: a client's examples of one are held out together or
                trained on together, as the same rows of a table would be in `from_frame`. Default: no groups.
            time: When each example was taken, numbers or dates: the latest of each client are held out. Default: drawn.
            participants: As in `from_frame`; also `held_out`, `seed` and `name`.
            kind: As in `fedreach.data.datasets.from_arrays`; also `num_classes`.

        Raises:
            ConfigError: If the Dataset has no length or no numbers, as one that may be endless.
            DataError: If its inputs are not of one shape and type, a picture or a label cannot be one, or there is not
                one client, group or time for each.

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
        """Return the data of clients by name: a pair of arrays, or a Dataset, for each.

        Clients are numbered by their names, so that the order of the dictionary does not matter. The arguments are as
        in `from_torch`; `group` and `time` are by client, too, such as ``{"north": ["p1", "p1", "p2"], "south": ...}``.

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
        """Return a Dataset of Hugging Face, or a FederatedDataset of flwr-datasets, by client.

        Where all columns but client and label hold single numbers or words, they are a table, as in `from_frame`.

        Args:
            ds: A Dataset with a length; or a FederatedDataset, whose partitions are the clients.
            client: The column that names the client; None for a FederatedDataset.
            label: The column of classes.
            inputs: The column of images or arrays; needed where there are further columns. Or several in a list, which
                the model's forward gets as keywords.
            columns: Of a table, as in `from_frame`.
            group: The column of groups, as in `from_frame`; also `time`.
            split: Of a FederatedDataset.
            participants: As in `from_frame`; also `held_out`, `seed` and `name`.
            kind: As in `fedreach.data.datasets.from_arrays`.

        Raises:
            ConfigError: If a column is not there, or it must be said which one is meant.
            DataError: As in `from_frame` and `from_torch`.
        """
        of_clients = huggingface.of_huggingface(
            ds, client, label, inputs, split, kind, name, columns, group=group, time=time
        )
        return _federate_own(of_clients, participants, held_out, seed, seed)

    @classmethod
    def from_recipe(cls, recipe: Recipe, *, seed: int = 0) -> FederatedData:
        """Return the federated data that a seed draws by a recipe, see `fedreach.data.datasets.Dataset.partition`.

        Raises:
            ConfigError: If there is no such kind of partition, or an option of it is refused.
            DataError: If the samples cannot be divided like that.

        Example:
            >>> from fedreach.data.sets import load
            >>> FederatedData.from_recipe(load("digits").partition("shards", clients=10, classes_per_client=2))
            FederatedData(digits: 10 clients; 4 take part (4, 6, 7, 9), 6 never train; drawn by seed 0)
        """
        kind = recipe.kind
        if not isinstance(kind, str):
            make: Callable[..., Partition] = kind
        else:
            make = find("partition", kind, Path.cwd()) if ":" in kind else partial(partition_of_kind, kind)
        drawn = recipe.clients, seed, recipe.options, recipe.empty
        partition = divided(recipe.dataset, recipe.called, make, *drawn, natural=kind == "natural")
        federated = federate(
            recipe.dataset,
            partition,
            seed=seed,
            participants=recipe.participants,
            exclude_clients=recipe.exclude_clients,
            exclude_labels=recipe.exclude_labels,
            held_out=recipe.held_out,
        )
        draw, origin = partial(_by_recipe, recipe), Origin(recipe.dataset, recipe.tables(), federated)
        return replace(federated, note=f"drawn by seed {seed}", draw=draw, origin=origin)

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """What the classes are called, where labels are words."""
        return self.dataset.class_names

    @property
    def schema(self) -> Preparation | None:
        """What each column of a table is, and what it becomes; None where the samples are no rows of a table."""
        return self.dataset.preparation

    def name_of(self, client: int) -> str:
        """Return what a client is called: its name, or else its id."""
        return str(client) if self.client_names is None else self.client_names[client]

    def redrawn(self, seed: int) -> FederatedData:
        """Return the same clients with the same held-out data, where others take part: those that this seed draws.

        Where participants are named, or nothing is to be drawn, it is the same data.
        """
        return self if self.draw is None else self.draw(seed)

    def __repr__(self) -> str:
        chosen, unseen = self.population.participants.tolist(), len(self.population.unseen)
        who = ", ".join(visible(self.name_of(client)) for client in chosen[:6]) + (", ..." if len(chosen) > 6 else "")
        takes, trains = "takes" if len(chosen) == 1 else "take", "trains" if unseen == 1 else "train"
        return (
            f"FederatedData({self.dataset.name}: {self.num_clients} clients; {len(chosen)} {takes} part ({who}), "
            f"{unseen} never {trains}{'; ' * bool(self.note)}{self.note})"
        )

    @property
    def num_clients(self) -> int:
        """Participants and unseen clients together."""
        return len(self.train.offsets) - 1

    def label_counts(self) -> Ints:
        """Return the (N, c) labels of clients' training parts as they see them; c = 0 of numbers or at positions."""
        return self.train.label_counts(self.labels, self.dataset.example_classes)

    def taken_by_server(self) -> Ints:
        """Return the (N,) number of samples that the server took from each client."""
        dropped = 0 if self.shift is None else self.shift.dropped.sum(axis=1)
        counts = self.partition.sizes - self.train.sizes - self.held_out.sizes - dropped
        return counts if self.left_out is None else counts - self.left_out

    def digest(self) -> str:
        """Return the sha256 that names this federation: data, labels, partition, splits and who takes part."""
        d = self.dataset
        digest = hashlib.sha256(f"{d.sha256} {d.kind} {d.num_classes} {d.mean} {d.std}".encode())
        labels = self.labels
        if labels.dtype.kind == "f":  # which would be cut off below; without label noise they are the data set's
            digest.update(content_hash(labels).encode())
            labels = labels[:0]
        arrays = (labels, self.train.order, self.train.offsets, self.held_out.order, self.held_out.offsets)
        for array in (*arrays, self.population.participants):
            digest.update(np.ascontiguousarray(array, dtype="<i8").tobytes())
        if self.server is not None:
            digest.update(f"server {content_hash(self.server.x, self.server.y)}".encode())
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
    """Choose who takes part, hold data out, give the server its share and add label noise.

    Args:
        dataset: What is divided; one's own that is on no scale yet is put on that of the participants' training part.
            So are targets that are numbers, see `fedreach.data.preparation.TargetScale`.
        partition: How, over N clients.
        seed: Of the four choices; each has a stream of its own, so that one does not change the others.
        population_seed: Of who takes part alone, so that with one `seed` others take part and all hold the same; None:
            `seed`.
        participants: See `fedreach.data.splits.draw_population`, also for the two exclusions; also by their names.
        held_out: Share of each client's samples that is held out, see `split_held_out`.
        noise: Arguments of `fedreach.data.noise.corrupt`, such as ``{"kind": "symmetric", "rate": 0.2}``. Only
            training labels are corrupted: what is held out must measure the truth. With the scope "before_split" the
            labels are those of `noisy_before_split`, by which the partition should have been drawn.
        server_examples: How many training examples the server takes from the clients, those that never train too, so
            that its sample stands for everybody; see `fedreach.data.datasets.drawn_for_server`. None: none.
        server_data: Data of the server's own instead, see `fedreach.data.datasets.given_to_server`; clients then
            keep all of theirs.

    Raises:
        ConfigError: If an argument is outside its range.
        DataError: If partition or server data do not belong to the data set; or a number to predict is the same in all
            rows that participants train on.

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
            f"The partition divides {len(partition.order)} samples, but {dataset.name} has {len(dataset.train_y)} "
            "training samples. It belongs to another data set."
        )
    classes = example_classes(dataset.train_y, dataset.num_classes)
    target_form = "stand at positions" if dataset.num_classes else "are numbers"
    if noise is not None and not classes:
        raise ConfigError(f"noise: it makes classes wrong, and targets of {dataset.name} {target_form}. Leave it out.")
    if exclude_labels and not classes:
        raise ConfigError(
            f"population.exclude_labels names classes, and targets of {dataset.name} {target_form}. "
            "Use exclude_clients."
        )
    names = names_of(dataset, partition)
    together = dataset.together if isinstance(dataset, OwnData) else APART
    drawn = draws(partition, seed, "held-out", stream_names(partition, names))
    train, held_out_part = split_held_out(partition, held_out, drawn, together)
    population = draw_population(
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
        for_server = drawn_for_server(train.owner(), server_examples, generator(seed, "server-data"))
        index = np.sort(train.order[for_server])
        server, train = ServerData(dataset.train_x[index], dataset.train_y[index]), train.without(for_server)
    elif server_data is not None:
        server = given_to_server(dataset, server_data)
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


def noisy_before_split(dataset: Dataset | OwnData, noise: Mapping[str, Any], seed: int) -> LabelNoise:
    """Return the labels by which samples are shared out where noise comes first; `noise` as in `federate`."""
    return corrupt(dataset.train_y, generator(seed, "noise"), num_classes=dataset.num_classes, **noise)


def _federate_own(
    data: OwnData, participants: Participants, held_out: float, seed: int, population_seed: int
) -> FederatedData:
    """Return one's own data by their own clients, those of them that are asked for or drawn."""
    chosen = ids_of(participants, data.owner_names)
    partition = Partition.from_owner(data.owners, len(data.owner_names), "natural")
    federated = federate(
        data, partition, seed=seed, population_seed=population_seed, participants=chosen, held_out=held_out
    )
    who = chosen if isinstance(chosen, int) else [data.owner_names[client] for client in chosen]
    # Who holds what and what is held out is the data's, for every seed; who takes part is drawn, unless named.
    population: dict[str, Any] = {"participants": who, "held_out": held_out}
    tables: dict[str, dict[str, Any]] = {"partition": {"name": "natural", "seed": seed}, "population": population}
    federated = replace(federated, origin=Origin(data, tables, federated))
    if not isinstance(chosen, int):
        return federated
    note = f"drawn by seed {population_seed}{', 40 % of them' * (participants is None)}"
    return replace(federated, note=note, draw=partial(_federate_own, data, participants, held_out, seed))


def _by_recipe(recipe: Recipe, seed: int) -> FederatedData:
    return FederatedData.from_recipe(recipe, seed=seed)


def _by_names(
    participants: float | Sequence[int | str] | None, names: Sequence[str] | None, num_clients: int
) -> float | list[int] | None:
    """Return how many or which share take part, or the ids of those that do: of clients with names by those."""
    if participants is None or isinstance(participants, int | float | np.integer):
        return participants
    if not any(isinstance(participant, str) for participant in participants):
        return [int(participant) for participant in participants]
    ids = ids_of(participants, names or [str(client) for client in range(num_clients)])
    assert not isinstance(ids, int)  # names were given
    return ids


def stream_names(partition: Partition, names: Sequence[str] | None) -> Sequence[str] | None:
    """Return the names that key streams of clients, their numbers where they have none; None where they are drawn."""
    if partition.kind != "natural":
        return None
    return names or [str(client) for client in range(partition.num_clients)]


def names_of(dataset: Dataset | OwnData, partition: Partition) -> tuple[str, ...] | None:
    """Return the names of the clients of a natural partition; those of merged ones are joined. None: they have none."""
    if dataset.owners is None or partition.kind != "natural" or named(dataset.owner_names) is None:
        return None
    owners_by_client = [
        np.unique(dataset.owners[partition[client]]).tolist() for client in range(partition.num_clients)
    ]
    if partition.num_clients == len(dataset.owner_names):  # clients without samples are called what they are called
        owners_by_client = [owners or [client] for client, owners in enumerate(owners_by_client)]
    return tuple(" + ".join(dataset.owner_names[owner] for owner in owners) for owners in owners_by_client)
