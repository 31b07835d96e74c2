"""Data sets as arrays, and the specification of a partition."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from fedreach._util.arrays import AnyArray, Bools, Ints
from fedreach._util.errors import ConfigError, DataError, check_type, nearest
from fedreach.data.assignment import checked_count
from fedreach.data.checks import Check, Kind, channel_scale, no_such_file, read_npz
from fedreach.data.images import as_array
from fedreach.data.preparation import Preparation, TargetScale
from fedreach.data.several import describe_layout, example_classes, is_inputs_of_examples, layout_to_json, sample_shape

if TYPE_CHECKING:
    from fedreach.data.assignment import Partition


# ---- A data set: arrays, normalization, source and hash

HASHED = 2**26  # bytes per block of hashing
ARRAYS = {"x": "train_x", "y": "train_y", "client": "owners", "x_test": "test_x", "y_test": "test_y"}
"""Names of arrays in users' files -> arguments of `from_arrays`."""


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """A training set and a standard test set; `load`, `from_arrays` and `from_npz` make and check one.

    Shapes: n training examples, s test examples, C channels, T tokens. Images are normalized per channel when they
    are used: ``(x / 255 - mean) / std``. `sha256` depends on the values, types and shapes of the arrays alone, not on
    the format of their file.
    """

    name: str
    train_x: AnyArray  # (n, C, H, W) uint8 images, (n, ...) float32 features, (n, T) tokens, or (n,) records of several
    train_y: AnyArray  # (n,) or (n, positions...) int64 classes; or (n, t) float32 numbers to predict
    test_x: AnyArray  # (s, ...) of the same type and shape; s = 0 without a test set
    test_y: AnyArray  # (s,), (s, positions...) or (s, t)
    num_classes: int  # 0 if targets are numbers
    mean: tuple[float, ...]  # (C,) after scaling to [0, 1]; () for features and tokens
    std: tuple[float, ...]  # (C,)
    kind: Kind
    owners: Ints | None  # (n,) natural client of each training example
    owner_names: tuple[str, ...]
    source: str
    licence: str
    sha256: str
    notes: str = ""  # facts that a reader of results must know, such as "a subset"
    class_names: tuple[str, ...] | None = None  # if labels are words
    preparation: Preparation | None = None  # if the examples are rows of a table
    target_scale: TargetScale | None = None  # scale on which models learn numeric targets; None: unscaled
    loaded: Loaded | None = None  # if an experiment file can load it, too

    @property
    def outputs(self) -> int:
        """Numbers that a model returns per example, or per position: one per class, or one per target."""
        return self.num_classes or int(self.train_y.shape[1])

    @property
    def positions(self) -> tuple[int, ...]:
        """Shape of the labels of an example with one label per position, see `fedreach.data.several`; else ()."""
        return self.train_y.shape[1:] if self.num_classes else ()

    @property
    def example_classes(self) -> int:
        """c if each example has one class; 0 if each position has one, or targets are numbers."""
        return example_classes(self.train_y, self.num_classes)

    @property
    def sample_shape(self) -> Any:
        """Shape of an example; for several inputs, the shape of each, by name or in order."""
        return sample_shape(self.train_x)

    @property
    def target_names(self) -> tuple[str, ...]:
        """Columns of the numbers to predict; () if the examples are not rows of a table."""
        return () if self.preparation is None else tuple(column.name for column in self.preparation.labels)

    @property
    def section(self) -> Mapping[str, Any] | None:
        """The ``[data]`` table of an experiment that loads this data set; None if none does, or it was changed."""
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
        """Return the specification of a partition among clients of which some participate; each seed draws its own.

        Args:
            kind: A name of `fedreach.data.partition.PARTITIONS`, a custom ``FILE.py:NAME``, or a function
                ``f(labels, clients, rng, **options)`` that returns a `fedreach.data.assignment.Partition`.
            clients: Number of clients; ``"natural"`` uses the owners of the examples instead.
            participants: Number of participants, share of the clients that are not excluded, or ids. ``"all"`` or
                None: all clients that are not excluded.
            held_out: Share of each client's examples that is held out.
            exclude_clients: Ids of clients that never train.
            exclude_labels: Classes; clients with an example of one of them never train.
            empty: Policy for clients without examples, see `fedreach.data.assignment.without_empty`.
            **options: Options of the kind, such as ``alpha``; unknown options raise an error when it is drawn.

        Example:
            >>> toy = from_arrays(np.eye(8), [0, 1] * 4, name="toy")
            >>> toy.partition("dirichlet_by_class", clients=4, alpha=0.5, participants=2)
            PartitionSpec(toy: dirichlet_by_class, 4 clients, alpha=0.5, participants=2)
        """
        requested = None if participants == "all" else participants
        if isinstance(requested, str):
            raise ConfigError(f"participants must be a number, a share, ids or 'all'; got {requested!r}.")
        who = requested if requested is None or isinstance(requested, int | float) else tuple(requested)
        excluded = tuple(exclude_clients), tuple(exclude_labels)
        return PartitionSpec(self, kind, clients, options, who, held_out, *excluded, empty)

    @property
    def targets(self) -> str:
        """Description of the targets."""
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
    """Return the layout of several inputs and the positions of labels as JSON; {} for one input and one label."""
    layout = dataset.train_x.dtype
    form: dict[str, Any] = {} if layout.names is None else {"inputs": layout_to_json(layout)}
    return form | ({"positions": list(dataset.positions)} if dataset.positions else {})


class Loaded(NamedTuple):
    """The table of an experiment file that loads a data set."""

    section: Mapping[str, Any]  # [data]
    dataset: Dataset  # the data set as it was loaded


def same_fields(first: Any, second: Any, *but: str) -> bool:
    """Return whether two dataclass instances hold identical objects, except in the fields `but`."""
    return all(
        getattr(first, attribute.name) is getattr(second, attribute.name)
        for attribute in fields(first)
        if attribute.name not in but
    )


@dataclass(frozen=True, eq=False, repr=False)
class PartitionSpec:
    """Specification of how a data set is divided among clients, see `Dataset.partition`.

    In `fedreach.compare`, every seed draws its own federated data; `FederatedData.from_spec` draws them for one
    seed.
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
    def called(self) -> str:
        """Name of the kind."""
        return self.kind if isinstance(self.kind, str) else getattr(self.kind, "__name__", repr(self.kind))

    def tables(self) -> dict[str, dict[str, Any]]:
        """Return the tables of an experiment file that specify it."""
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
        return f"PartitionSpec({self.dataset.name}: {self.called}{clients}{options_text}, {who})"


def content_hash(*arrays: AnyArray) -> str:
    """Return the sha256, in hex, of the type, shape and values of arrays; byte order and layout do not matter.

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
    """Add the bytes of a contiguous array to a hash, in blocks, so that Ctrl-C can interrupt."""
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
    kind: Kind | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    name: str = "arrays",
    source: str = "",
    licence: str = "",
    notes: str = "",
    sha256: str | None = None,
) -> Dataset:
    """Make a data set from your own arrays. All checks run here, once; the arrays are never written to.

    Args:
        train_x: (n, C, H, W) or (n, H, W) uint8 images, or a list of Pillow images; (n, ...) floats, stored as
            float32; or (n, T) integers, which need `kind`, because they could be tokens or features. Several inputs
            are a dictionary of (n, ...) arrays by the names of the forward's arguments, or a tuple of arrays in their
            order.
        train_y: (n,) integer labels from 0 to `num_classes` - 1; or words, numbered alphabetically; or
            (n, positions...) integer labels per position, with -100 for a masked position; or (n,) or (n, t) floats
            to predict, stored as (n, t) float32.
        test_x: Inputs of the standard test set, like those of the training set; or None.
        test_y: Labels of the standard test set; given together with `test_x`.
        owners: (n,) client of each training example, integers or strings; or None.
        owner_names: Names of the clients; `owners` are then indices into it. Default: the sorted distinct owners.
        num_classes: Number of classes; 0: labels are numbers to predict, even if they are whole. Default: the number
            of class names, or else the largest label + 1.
        class_names: Names of the classes, from class 0 on. Default: the words, if labels are words.
        kind: ``"image"``, ``"features"`` or ``"tokens"``. Default: from type and shape.
        mean: (C,) mean of each channel after scaling to [0, 1]; images only. Default: of the training images.
        std: (C,) standard deviation likewise; a constant channel gets 1.
        name: Name in tables and messages.
        source: Source of the data.
        licence: License of the data.
        notes: Facts that a reader of results must know.
        sha256: Hash of examples that were checked when it was computed; their numbers are not checked again.

    Raises:
        DataError: If a shape, type or value breaks the rules above, or a float is not finite.

    Example:
        >>> x = np.zeros((6, 4), np.float32)
        >>> from_arrays(x, [0, 1, 0, 1, 0, 1], owners=["ann", "ann", "bob", "bob", "eve", "eve"], name="toy")
        Dataset(toy: 6 training and 0 test samples, features 4 float32, 2 classes, 3 natural clients, sha256 ...)
    """
    for argument, value in {"name": name, "kind": kind}.items():
        check_type("from_arrays", argument, value, str, *([type(None)] if argument == "kind" else []))
    check_type("from_arrays", "num_classes", num_classes, int, np.integer, type(None))
    check, is_checked = Check(name), sha256 is not None
    if (test_x is None) != (test_y is None):
        raise check.error("test_x and test_y go together; got only one of them. Give both or neither")
    if hasattr(train_y, "__len__") and is_inputs_of_examples(train_x, len(train_y)):
        if kind not in (None, "several"):
            raise check.error(f"kind must be left out where there are several inputs; got {kind!r}")
        kind = "several"
    else:
        train_x = as_array(train_x, f"data set {name!r}", kind)
    x, kind = check.samples("train_x", train_x, kind, is_checked=is_checked)
    train_y, test_y, words = check.words(train_y, test_y, class_names)
    if words is not None and num_classes is None:
        num_classes = len(words)
    y = check.labels("train_y", train_y, len(x), num_classes)
    if not len(y):
        raise check.error("train_x must hold at least one sample; got none")
    if y.dtype.kind == "f":
        num_classes = 0
    if test_x is None:
        x_test, y_test = np.empty((0, *x.shape[1:]), x.dtype), np.empty((0, *y.shape[1:]), y.dtype)
    else:
        x_test, _ = check.samples("test_x", test_x, kind, is_checked=is_checked)
        y_test = check.labels("test_y", test_y, len(x_test), num_classes)
        if (form := _form(x, y)) != (form_of_test := _form(x_test, y_test)):
            raise check.error(f"test_x and test_y must be like train_x and train_y, {form}; got {form_of_test}")
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
    """Describe the form of an example."""
    return f"{x.shape[1:]} {x.dtype} with labels {y.shape[1:]}"


def check_array_names(path: Path, arrays: Mapping[str, Any]) -> None:
    """Raise DataError if an array of a user's file or folder is unknown, or x or y is missing."""
    unknown, missing = [key for key in arrays if key not in ARRAYS], [key for key in ("x", "y") if key not in arrays]
    if unknown or missing:
        problem = f"unknown array {unknown[0]!r}" if unknown else f"no array {missing[0]!r}"
        raise DataError(f"{path}: {problem}.{nearest(unknown[0] if unknown else '', ARRAYS)}")


def from_npz(path: Path | str, *, kind: Kind | None = None, num_classes: int | None = None) -> Dataset:
    """Read your own ``.npz`` file with ``x`` and ``y``, and optionally ``client``, ``x_test`` and ``y_test``.

    The arrays follow the rules of `from_arrays`; ``client`` holds the natural client of each training example, integers
    or strings. Write a file with ``np.savez_compressed("mine.npz", x=x, y=y, client=client)``. The stem of the file
    becomes the name of the data set; `kind` and `num_classes` are as in `from_arrays`.

    Raises:
        DataError: If the file is missing or damaged, holds other keys or Python objects, or its arrays break a rule.
    """
    path = Path(path)
    try:
        with path.open("rb") as stream:
            file = read_npz(stream)
    except FileNotFoundError as error:
        raise no_such_file(path, (".npz",)) from error
    except (OSError, ValueError) as error:  # an incomplete file, or an invalid path
        raise DataError(
            f"{path}: must be a readable .npz file without python objects; got: {error}. "
            "Write it with np.savez_compressed(path, x=x, y=y)."
        ) from error
    check_array_names(path, file)
    arrays: dict[str, Any] = {ARRAYS[key]: array for key, array in file.items()}
    return from_arrays(**arrays, kind=kind, num_classes=num_classes, name=path.stem, source=str(path.name))


# ---- Data of the server: drawn from the clients' training data, or provided by the user


@dataclass(frozen=True, eq=False)
class ServerData:
    """Examples that the server holds. Their labels are true: label noise affects clients only."""

    x: AnyArray  # (s, ...) inputs of the type and shape of the data set
    y: AnyArray  # (s,) classes, or (s, t) numbers


def draw_for_server(owner: Ints, examples: int, rng: np.random.Generator) -> Bools:
    """Draw the server's examples at random from all clients' training data, but never a client's last example.

    The server takes the first examples in random order that are not the last of their client. So all examples are
    equally likely, except at clients with few examples. `owner` (samples,) is the client of each training example.
    The result flags the examples of the server.

    Raises:
        ConfigError: If `examples` is not a whole number above 0, or more than can be taken.

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
            f"server_data.examples must be at most {len(spare)}, as each of the {len(clients)} clients keeps one of "
            f"their {len(owner)} training examples; got {examples}."
        )
    for_server = np.zeros(len(owner), np.bool_)
    for_server[spare[:examples]] = True
    return for_server


def check_server_data(dataset: Dataset, data: tuple[Any, Any] | Path | str) -> ServerData:
    """Check your own data for the server as a data set is checked, and return them.

    They are (s, ...) inputs and (s,) labels, or the path of an ``.npz`` file with ``x`` and ``y``. Kind, type, shape
    and classes must be those of the clients' data.

    Raises:
        DataError: If they are not.

    Example:
        >>> from fedreach.data.sets import load
        >>> digits = load("digits")
        >>> check_server_data(digits, (digits.test_x[:5], digits.test_y[:5])).x.shape
        (5, 1, 8, 8)
    """
    if isinstance(data, Path | str):
        file = from_npz(data, kind=dataset.kind, num_classes=dataset.num_classes)
        if file.owners is not None or len(file.test_y):
            raise DataError(f"{data}: data for the server are x and y alone. Leave out client, x_test and y_test.")
        x, y, name = file.train_x, file.train_y, str(data)
    else:
        check, name = Check("server_data"), "server_data"
        x, _ = check.samples("x", data[0], dataset.kind)
        y = check.labels("y", data[1], len(x), dataset.num_classes)
    if len(y) == 0:
        raise DataError(f"{name} must hold at least one sample; got none.")
    if (form := _form(dataset.train_x, dataset.train_y)) != _form(x, y):
        raise DataError(f"{name} must have samples like those of {dataset.name}, {form}; got {_form(x, y)}.")
    return ServerData(x, y)
