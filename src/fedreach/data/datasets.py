"""Data sets as arrays, and specifications of partitions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from fedreach._util.arrays import AnyArray, Bools, Ints
from fedreach._util.errors import ConfigError, DataError, check_type, nearest, regular
from fedreach.data.assignment import Partition, checked_count
from fedreach.data.checks import ArgumentChecks, ExampleKind, channel_scale, no_such_file, read_npz
from fedreach.data.images import as_array
from fedreach.data.preparation import Preparation, TargetScale
from fedreach.data.several import describe_layout, example_classes, is_inputs_of_examples, layout_to_json, sample_shape

# ---- The data set

HASHED = 2**26  # bytes that are hashed at once
ARRAYS = {"x": "train_x", "y": "train_y", "client": "owners", "x_test": "test_x", "y_test": "test_y"}
"""Names of arrays in user files, and the arguments of `from_arrays` that they become."""


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Training set and test set, built and checked by `fedreach.load`, `from_arrays` or `from_npz`.

    Sizes: n training examples, s test examples, C channels, T tokens, t targets. Models receive images that are
    normalized per channel: ``(x / 255 - mean) / std``. `sha256` is the hash of the arrays' values, types and shapes.
    """

    name: str  # name in tables and messages
    train_x: AnyArray  # (n, C, H, W) uint8 images, (n, ...) float32 features, (n, T) tokens, or (n,) records of inputs
    train_y: AnyArray  # (n,) or (n, positions...) int64 classes, or (n, t) float32 numbers
    test_x: AnyArray  # (s, ...) test inputs of the same type and shape; s = 0 without a test set
    test_y: AnyArray  # (s,), (s, positions...) or (s, t) test targets
    num_classes: int  # number of classes; 0 if targets are numbers
    mean: tuple[float, ...]  # (C,) mean of each channel, scaled to [0, 1]; () unless inputs are images
    std: tuple[float, ...]  # (C,) standard deviation of each channel
    kind: ExampleKind  # kind of the inputs
    owners: Ints | None  # (n,) natural client of each training example
    owner_names: tuple[str, ...]  # names of the natural clients
    source: str  # source of the data
    licence: str  # license of the data
    sha256: str  # hash of the arrays
    notes: str = ""  # information that readers of results need, such as "a subset"
    class_names: tuple[str, ...] | None = None  # names of the classes if labels are words
    preparation: Preparation | None = None  # columns of the table if examples are rows of a table
    target_scale: TargetScale | None = None  # scale of numeric targets in training; None: original unit
    loaded: Loaded | None = None  # table of an experiment file that loads the data set

    @property
    def outputs(self) -> int:
        """Number of model outputs per example or position: one per class, or one per numeric target."""
        return self.num_classes or int(self.train_y.shape[1])

    @property
    def positions(self) -> tuple[int, ...]:
        """Shape of an example's labels if each position has a label (see `fedreach.data.several`), else ()."""
        return self.train_y.shape[1:] if self.num_classes else ()

    @property
    def example_classes(self) -> int:
        """Number of classes if each example has one class; 0 for labels per position and numeric targets."""
        return example_classes(self.train_y, self.num_classes)

    @property
    def sample_shape(self) -> Any:
        """Shape of an example's inputs; for several inputs, one shape per input, by name or in order."""
        return sample_shape(self.train_x)

    @property
    def target_names(self) -> tuple[str, ...]:
        """Columns of the numeric targets, or () unless examples are rows of a table."""
        return () if self.preparation is None else tuple(column.name for column in self.preparation.labels)

    @property
    def section(self) -> Mapping[str, Any] | None:
        """``[data]`` table of an experiment file that loads this data set, or None if the data set was changed."""
        loaded = self.loaded
        return loaded.section if loaded is not None and same_fields(self, loaded.dataset, "loaded") else None

    def partition(
        self,
        kind: str | Callable[..., Partition],
        *,
        clients: int = 50,
        participants: float | Sequence[int] | Literal["all"] | None = 0.4,
        held_out: float = 0.2,
        exclude_clients: Sequence[int] = (),
        exclude_labels: Sequence[int] = (),
        empty: Literal["error", "drop"] = "error",
        **options: Any,
    ) -> PartitionSpec:
        """Specify a partition of this data set among clients, and the participants. Each seed draws both again.

        Args:
            kind: Name in `fedreach.data.partition.PARTITIONS`, name ``FILE.py:NAME`` of a custom partition, or function
                ``f(labels, clients, rng, **options)`` that returns a `fedreach.data.assignment.Partition`.
            clients: Number of clients. The kind ``"natural"`` uses the owners of the examples as clients instead.
                Default: 50.
            participants: Number of participants, their share of the clients that are not excluded, or their ids.
                ``"all"`` or None selects all clients that are not excluded. Default: 0.4.
            held_out: Share of each client's examples that is held out, from 0 to below 1. Default: 0.2.
            exclude_clients: Ids of clients that never train.
            exclude_labels: Classes; clients with an example of one of these classes never train.
            empty: ``"error"`` to reject clients without examples, or ``"drop"`` to remove them, see
                `fedreach.data.assignment.without_empty`. Default: "error".
            **options: Options of the kind, such as ``alpha``.

        Example:
            >>> toy = from_arrays(np.eye(8), [0, 1] * 4, name="toy")
            >>> toy.partition("dirichlet_by_class", clients=4, alpha=0.5, participants=2)
            PartitionSpec(toy: dirichlet_by_class, 4 clients, alpha=0.5, participants=2)
        """
        requested = None if participants == "all" else participants
        if isinstance(requested, str):
            raise ConfigError(f"participants must be a number, a share, a list of ids or 'all'; got {requested!r}.")
        who = requested if requested is None or isinstance(requested, int | float) else tuple(requested)
        excluded = tuple(exclude_clients), tuple(exclude_labels)
        return PartitionSpec(self, kind, clients, options, who, held_out, *excluded, empty)

    @property
    def targets(self) -> str:
        """Description of the targets, such as "10 classes"."""
        numbers = "1 number" if self.outputs == 1 else f"{self.outputs} numbers"
        where = f" at {'x'.join(map(str, self.positions))} positions" if self.positions else ""
        return f"{self.num_classes} classes{where}" if self.num_classes else f"{numbers} to predict"

    def __repr__(self) -> str:
        layout = self.train_x.dtype
        shape = "x".join(str(size) for size in self.train_x.shape[1:])
        shape = f"{shape} {layout}" if layout.names is None else f"inputs: {describe_layout(layout)}"
        clients = f", {len(self.owner_names)} natural clients" if self.owners is not None else ""
        return (
            f"Dataset({self.name}: {len(self.train_y)} training and {len(self.test_y)} test samples, {self.kind} "
            f"{shape}, {self.targets}{clients}, sha256 {self.sha256[:12]})"
        )


def form_to_json(dataset: Dataset) -> dict[str, Any]:
    """Return the layout of several inputs and the positions of labels as JSON values, or {} without them."""
    layout = dataset.train_x.dtype
    form: dict[str, Any] = {} if layout.names is None else {"inputs": layout_to_json(layout)}
    return form | ({"positions": list(dataset.positions)} if dataset.positions else {})


class Loaded(NamedTuple):
    """``[data]`` table of an experiment file, and the data set that it loads."""

    section: Mapping[str, Any]  # the [data] table
    dataset: Dataset  # the loaded data set


def same_fields(first: Any, second: Any, *but: str) -> bool:
    """Return whether two instances of a dataclass have identical objects in all fields except the fields `but`."""
    return all(
        getattr(first, attribute.name) is getattr(second, attribute.name)
        for attribute in fields(first)
        if attribute.name not in but
    )


@dataclass(frozen=True, eq=False, repr=False)
class PartitionSpec:
    """Specification of a partition of a data set among clients (see `Dataset.partition`).

    `fedreach.compare` draws the partition for each seed. `FederatedData.from_spec` draws it for one seed.
    """

    dataset: Dataset
    kind: str | Callable[..., Partition]
    clients: int = 50
    options: Mapping[str, Any] = field(default_factory=dict)
    participants: float | Sequence[int] | None = 0.4
    held_out: float = 0.2
    exclude_clients: Sequence[int] = ()
    exclude_labels: Sequence[int] = ()
    empty: Literal["error", "drop"] = "error"

    @property
    def kind_name(self) -> str:
        """Name of the kind of partition, or of the function."""
        return self.kind if isinstance(self.kind, str) else getattr(self.kind, "__name__", repr(self.kind))

    def tables(self) -> dict[str, dict[str, Any]]:
        """Return the tables of an experiment file for this specification."""
        clients = {} if self.kind == "natural" else {"clients": self.clients}
        population = {
            "participants": "all" if self.participants is None else self.participants,
            "held_out": self.held_out,
            "exclude_clients": self.exclude_clients,
            "exclude_labels": self.exclude_labels,
        }
        partition = {"name": self.kind, **clients, "empty": self.empty, **self.options}
        return {"partition": partition, "population": population}

    def __repr__(self) -> str:
        options_text = "".join(f", {key}={value!r}" for key, value in self.options.items())
        clients = "" if self.kind == "natural" else f", {self.clients} clients"
        who = f"participants={self.participants!r}"
        return f"PartitionSpec({self.dataset.name}: {self.kind_name}{clients}{options_text}, {who})"


def content_hash(*arrays: AnyArray) -> str:
    """Return the hexadecimal sha256 of arrays' types, shapes and values; byte order and memory layout do not matter.

    Example:
        >>> a = np.arange(6, dtype=np.int64).reshape(2, 3)
        >>> content_hash(a) == content_hash(np.asfortranarray(a)) == content_hash(a.astype(">i8"))
        True
        >>> content_hash(a) == content_hash(a.reshape(3, 2))
        False
    """
    digest = hashlib.sha256()
    for array in arrays:
        plain = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        digest.update(f"{plain.dtype.descr if plain.dtype.names else plain.dtype.name} {array.shape};".encode())
        add_bytes(digest, plain)
    return digest.hexdigest()


def add_bytes(digest: Any, array: AnyArray) -> None:
    """Add the bytes of a contiguous array to a hash, in blocks so that Ctrl-C works."""
    array = array if array.dtype.names is None else array.view(np.uint8)  # records of several inputs
    content = array.data.cast("B") if array.size else memoryview(b"")
    for begin in range(0, len(content), HASHED):
        digest.update(content[begin : begin + HASHED])


def from_arrays(
    train_x: Any,
    train_y: Any,
    test_x: Any = None,
    test_y: Any = None,
    *,
    owners: Any = None,
    owner_names: Sequence[str] | None = None,
    num_classes: int | None = None,
    class_names: Sequence[str] | None = None,
    kind: ExampleKind | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    name: str = "arrays",
    source: str = "",
    licence: str = "",
    notes: str = "",
    sha256: str | None = None,
) -> Dataset:
    """Build a data set from arrays, and check the arrays without modifying them.

    Args:
        train_x: Training inputs. (n, C, H, W) or (n, H, W) uint8 images, or a list of Pillow images. (n, ...) floats,
            which are stored as float32. (n, T) integers, which require `kind`. For several inputs, either a dictionary
            of (n, ...) arrays or a tuple of them. The keys are the argument names of the model's forward method; a
            tuple follows the order of its arguments.
        train_y: Training targets. (n,) integers from 0 to `num_classes` - 1, or words. (n, positions...) integers for
            labels per position, where -100 masks a position. (n,) or (n, t) floats for numeric targets, stored as (n,
            t) float32.
        test_x: Inputs of the test set, with the shape and type of the training inputs. Default: no test set.
        test_y: Targets of the test set, required with `test_x`.
        owners: (n,) natural client of each training example, as integers or strings. Default: none.
        owner_names: Names of the natural clients; `owners` are then indices into these names. Default: the sorted
            owners.
        num_classes: Number of classes, or 0 for numeric targets, even if they are whole numbers. Default: the number of
            class names, or the largest label + 1.
        class_names: Names of the classes, starting with class 0. Default: if labels are words, these words in
            alphabetical order.
        kind: Kind of the inputs: ``"image"``, ``"features"`` or ``"tokens"``. Default: determined from type and shape.
        mean: (C,) mean of each channel of images, scaled to [0, 1]. Default: mean of the training images.
        std: (C,) standard deviation of each channel. Default: standard deviation of the training images, or 1 if it is
            0.
        name: Name in tables and messages. Default: "arrays".
        source: Source of the data, for reports.
        licence: License of the data, for reports.
        notes: Notes on the data for readers of the results.
        sha256: Known hash of the arrays. If given, FedReach neither hashes the arrays nor checks their values.

    Raises:
        DataError: If a shape, type or value is invalid, or a float is not finite.

    Example:
        >>> x = np.zeros((6, 4), np.float32)
        >>> from_arrays(x, [0, 1, 0, 1, 0, 1], owners=["ann", "ann", "bob", "bob", "eve", "eve"], name="toy")
        Dataset(toy: 6 training and 0 test samples, features 4 float32, 2 classes, 3 natural clients, sha256 ...)
    """
    for argument, value in {"name": name, "kind": kind}.items():
        check_type("from_arrays", argument, value, str, *([type(None)] if argument == "kind" else []))
    check_type("from_arrays", "num_classes", num_classes, int, np.integer, type(None))
    check, is_checked = ArgumentChecks(name), sha256 is not None
    if (test_x is None) != (test_y is None):
        raise check.error("test_x and test_y must be given together; got only one. Give both or neither")
    has_length = hasattr(train_y, "__len__") and getattr(train_y, "ndim", 1) > 0
    if has_length and is_inputs_of_examples(train_x, len(train_y)):
        if kind not in (None, "several"):
            raise check.error(f"kind must be omitted for several inputs; got {kind!r}")
        kind = "several"
    else:
        train_x = as_array(train_x, f"data set {name!r}", kind)
    x, kind = check.samples("train_x", train_x, kind, is_checked=is_checked)
    train_y, test_y, words = check.words(train_y, test_y, class_names)
    if words is not None and num_classes is None:
        num_classes = len(words)
    y = check.labels("train_y", train_y, len(x), num_classes)
    if not len(y):
        raise check.error("train_x must have at least one example; got none")
    if y.dtype.kind == "f":
        num_classes = 0
    if test_x is None:
        x_test, y_test = np.empty((0, *x.shape[1:]), x.dtype), np.empty((0, *y.shape[1:]), y.dtype)
    else:
        x_test, _ = check.samples("test_x", test_x, kind, is_checked=is_checked)
        y_test = check.labels("test_y", test_y, len(x_test), num_classes)
        if (form := _form(x, y)) != (form_of_test := _form(x_test, y_test)):
            raise check.error(f"test_x and test_y must have the form of the training set, {form}; got {form_of_test}")
    owner, names = check.owners(owners, owner_names, len(y))
    averages, deviations = channel_scale(check, x, kind, mean, std)
    return Dataset(
        name=name,
        train_x=x,
        train_y=y,
        test_x=x_test,
        test_y=y_test,
        num_classes=int(max(y.max(), y_test.max(initial=0))) + 1 if num_classes is None else num_classes,
        mean=averages,
        std=deviations,
        kind=kind,
        owners=owner,
        owner_names=names,
        source=source,
        licence=licence,
        sha256=sha256 or content_hash(x, y, x_test, y_test, *([] if owner is None else [owner])),
        notes=notes,
        class_names=words,
    )


def _form(x: AnyArray, y: AnyArray) -> str:
    """Describe shape and type of inputs and labels."""
    return f"{x.shape[1:]} {x.dtype} with labels {y.shape[1:]}"


def check_array_names(path: Path, arrays: Mapping[str, Any]) -> None:
    """Raise DataError if a user file or folder contains an unknown array, or if x or y is missing."""
    unknown, missing = [key for key in arrays if key not in ARRAYS], [key for key in ("x", "y") if key not in arrays]
    if unknown or missing:
        problem = f"unknown array {unknown[0]!r}" if unknown else f"array {missing[0]!r} is missing"
        raise DataError(f"{path}: {problem}.{nearest(unknown[0] if unknown else '', ARRAYS)}")


def from_npz(path: Path | str, *, kind: ExampleKind | None = None, num_classes: int | None = None) -> Dataset:
    """Load a data set from an ``.npz`` file with ``x`` and ``y``, and optionally ``client``, ``x_test`` and ``y_test``.

    The arrays are as in `from_arrays`. ``client`` contains the natural client of each training example, as integers or
    strings. To write a file, use ``np.savez_compressed("mine.npz", x=x, y=y, client=client)``. The name of the file
    becomes the name of the data set. `kind` and `num_classes` are as in `from_arrays`.

    Raises:
        DataError: If the file is missing or damaged, contains unknown arrays or Python objects, or an array is invalid.
    """
    path = Path(path)
    try:
        with regular(path).open("rb") as stream:
            file = read_npz(stream)
    except FileNotFoundError as error:
        raise no_such_file(path, (".npz",)) from error
    except (OSError, ValueError) as error:  # an incomplete file, or an invalid path
        raise DataError(
            f"{path}: must be a readable .npz file without Python objects; got: {error}. "
            "Write it with np.savez_compressed(path, x=x, y=y)."
        ) from error
    check_array_names(path, file)
    arrays: dict[str, Any] = {ARRAYS[key]: array for key, array in file.items()}
    return from_arrays(**arrays, kind=kind, num_classes=num_classes, name=path.stem, source=str(path.name))


# ---- Data of the server


@dataclass(frozen=True, eq=False)
class ServerData:
    """Examples of the server. Label noise does not change their labels."""

    x: AnyArray  # (s, ...) inputs, with type and shape of the data set
    y: AnyArray  # (s,) classes, or (s, t) numbers


def draw_for_server(owner: Ints, examples: int, rng: np.random.Generator) -> Bools:
    """Draw the server's examples at random from the training examples of all clients.

    Each client keeps at least one example. Except for this rule, all examples are equally likely to be drawn. `owner`
    (n,) contains the client of each training example. The result is an (n,) mask of the server's examples.

    Raises:
        ConfigError: If `examples` is not a whole number of at least 1, or is too large.

    Example:
        >>> taken = draw_for_server(np.array([0, 0, 0, 1, 2, 2]), 3, np.random.Generator(np.random.Philox(0)))
        >>> int(taken.sum()), bool(taken[3])         # client 1 has one example and keeps it
        (3, False)
    """
    examples = checked_count("server_data.examples", examples, 1)
    shuffled = rng.permutation(len(owner))
    clients, at = np.unique(owner[shuffled][::-1], return_index=True)  # at: last example of each client, from the end
    spare = np.delete(shuffled, len(owner) - 1 - at)
    if examples > len(spare):
        raise ConfigError(
            f"server_data.examples must be at most {len(spare)}, because each of the {len(clients)} clients keeps one "
            f"of the {len(owner)} training examples; got {examples}."
        )
    for_server = np.zeros(len(owner), np.bool_)
    for_server[spare[:examples]] = True
    return for_server


def check_server_data(dataset: Dataset, data: tuple[Any, Any] | Path | str) -> ServerData:
    """Check the server's own data, and return them.

    The data are (s, ...) inputs and (s,) targets, or the path of an ``.npz`` file with ``x`` and ``y``. Their kind,
    type, shape and classes must match the data set.

    Raises:
        DataError: If the data are invalid.

    Example:
        >>> from fedreach.data.sets import load
        >>> digits = load("digits")
        >>> check_server_data(digits, (digits.test_x[:5], digits.test_y[:5])).x.shape
        (5, 1, 8, 8)
    """
    if isinstance(data, Path | str):
        file = from_npz(data, kind=dataset.kind, num_classes=dataset.num_classes)
        if file.owners is not None or len(file.test_y):
            raise DataError(f"{data}: must contain only x and y. Remove client, x_test and y_test.")
        x, y, name = file.train_x, file.train_y, str(data)
    else:
        check, name = ArgumentChecks("server_data"), "server_data"
        x, _ = check.samples("x", data[0], dataset.kind)
        y = check.labels("y", data[1], len(x), dataset.num_classes)
    if len(y) == 0:
        raise DataError(f"{name} must have at least one example; got none.")
    if (form := _form(dataset.train_x, dataset.train_y)) != _form(x, y):
        raise DataError(f"{name} must have the form of {dataset.name}, {form}; got {_form(x, y)}.")
    return ServerData(x, y)
