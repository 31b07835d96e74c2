"""Format of a model's inputs, and user data from torch Datasets and arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Self

import numpy as np
import pyarrow as pa

from fedreach._util.arrays import AnyArray, Floats, Ints
from fedreach._util.errors import ConfigError, DataError
from fedreach.data import cells, images, several
from fedreach.data.checks import SEVERAL, ArgumentChecks, ExampleKind
from fedreach.data.datasets import content_hash, from_arrays
from fedreach.data.own import numbered_list, together_of
from fedreach.data.preparation import Preparation
from fedreach.data.splits import APART, Together
from fedreach.data.stored import OwnData, OwnSamples
from fedreach.data.table_source import as_arrow

# ---- Format of the inputs of a model; needs only NumPy

DTYPES = {"image": "uint8", "tokens": "int64", "features": "float32", "table": "float64", "several": "uint8"}
"""Kinds of inputs, with the type of raw examples of each kind."""


class RawSamples(np.ndarray[Any, np.dtype[Any]]):
    """Raw examples, as `SampleFormat.array` returns them."""


@dataclass(frozen=True)
class SampleFormat:
    """Format of the examples that a model accepts, which is the format of its training examples.

    Example:
        >>> from fedreach.data.preparation import InputColumn
        >>> ward = InputColumn("ward", "category", categories=("heart", "surgery"))
        >>> table = SampleFormat("wards", "features", (2,), preparation=Preparation((ward,)))
        >>> table.array({"ward": ["surgery", "eyes", None]}).tolist()
        [[1.0], [-1.0], [nan]]
        >>> SampleFormat.of_json("wards", table.to_json()) == table
        True
    """

    name: str  # name of the data set
    kind: ExampleKind  # kind of the inputs
    shape: tuple[int, ...]  # shape of a training example
    mean: tuple[float, ...] = ()  # (C,) mean of each channel of images
    std: tuple[float, ...] = ()  # (C,) standard deviation of each channel
    preparation: Preparation | None = None  # columns of a table
    layout: np.dtype[Any] | None = None  # record type of several inputs, see `fedreach.data.several`
    positions: tuple[int, ...] = ()  # shape of the labels of an example, if each position has a label

    @property
    def dtype(self) -> str:
        """Type of raw examples."""
        return DTYPES[self.kind if self.preparation is None else "table"]

    @property
    def raw_shape(self) -> tuple[int, ...]:
        """Shape of a raw example. For a table, an example has one number for each column in `used`."""
        if self.layout is not None:
            return (self.layout.itemsize,)
        return self.shape if self.preparation is None else (len(self.preparation.used),)

    @property
    def sample_shape(self) -> Any:
        """Shape of an example for the model factory. For several inputs, one shape per input, by name or in order."""
        return self.shape if self.layout is None else several.shapes(self.layout)

    def refuse_form(self, what: str) -> None:
        """Raise an error if the model has several inputs or labels per position, which `what` does not support.

        Raises:
            ConfigError: If the model has several inputs, or labels per position.
        """
        form = "several inputs" if self.layout is not None else "one label per position" if self.positions else ""
        if form:
            raise ConfigError(
                f"{what} requires a model with one input and one label per example; got {form}. Use "
                "fedreach.deploy.load(run).predict(inputs) in Python, or export with --to safetensors."
            )

    def array(self, samples: Any) -> AnyArray:
        """Convert raw examples to an array for the model.

        Args:
            samples: Table if the model was trained on a table, else an array. Images with one channel do not need a
                channel axis. `RawSamples` remain unchanged.

        Raises:
            ConfigError: If a column of the table is missing, or `samples` is not a table.
            DataError: If the examples differ from the training examples in shape or type.
        """
        if isinstance(samples, RawSamples):
            return np.asarray(samples)
        if self.preparation is not None:
            return self.preparation.raw(samples)
        check = ArgumentChecks(self.name, "examples for the model of")
        x, _ = check.samples("x", samples, self.kind)
        if self.layout is not None:
            if x.dtype != self.layout:
                raise check.error(
                    f"x must have the inputs of training, {several.describe_layout(self.layout)}; got "
                    f"{several.describe_layout(x.dtype)}"
                )
            return x.view(np.uint8).reshape(len(x), -1)
        if x.shape[1:] != self.shape:
            hint = ". For a single example, use x[None]" if np.shape(samples) == self.shape else ""
            raise check.error(f"x must be examples of shape {self.shape}, as in training; got {x.shape}{hint}")
        return np.require(x, np.int64 if self.kind == "tokens" else x.dtype, ["C", "W"])

    def of_columns(self, numbers: Floats) -> AnyArray:
        """Convert a table of numbers, one example per row, to raw examples.

        Args:
            numbers: (m, k) numbers, where the k columns are the values of an example in C order.

        Raises:
            DataError: If the examples differ from the training examples in size or type.
        Example:
            >>> SampleFormat("digits", "image", (1, 2, 2)).of_columns(np.array([[0.0, 1.0, 2.0, 255.0]])).tolist()
            [[[[0, 1], [2, 255]]]]
        """
        size = int(np.prod(self.shape))
        if numbers.shape[1] != size:
            raise DataError(
                f"The model requires {size} columns in addition to client and label; got {numbers.shape[1]}."
            )
        if self.kind != "features":
            top = 255.0 if self.kind == "image" else float(2**62)
            bad = np.flatnonzero(~((numbers >= 0) & (numbers <= top) & (np.floor(numbers) == numbers)).all(axis=1))
            if len(bad):
                rule = "0 to 255" if self.kind == "image" else "at least 0"
                raise DataError(
                    f"The model requires whole numbers ({rule}); got other numbers in {len(bad)} rows, first in row "
                    f"{bad[0]}."
                )
            numbers = numbers.astype(self.dtype)
        return self.array(numbers.reshape(-1, *self.shape))

    def to_json(self) -> dict[str, Any]:
        """Return the format as JSON values, for readers of a model file."""
        record: dict[str, Any] = {"kind": self.kind, "dtype": self.dtype, "shape": list(self.raw_shape)}
        record |= {} if self.layout is None else {"inputs": several.layout_to_json(self.layout)}
        record |= {"positions": list(self.positions)} if self.positions else {}
        if self.preparation is None:
            return record | ({"mean": list(self.mean), "std": list(self.std)} if self.kind == "image" else {})
        used, columns = self.preparation.used, self.preparation.columns
        return record | {
            "kind": "table",
            "columns": [column.to_json() for column in used],
            "other_columns": [column.to_json() for column in columns if column not in used],
            "features": list(self.preparation.feature_names),
        }

    @classmethod
    def of_json(cls, name: str, stored: Mapping[str, Any]) -> Self:
        """Build the format from the values of `to_json`; additional keys are ignored."""
        if stored["kind"] != "table":
            mean, std = (tuple(stored.get(key, ())) for key in ("mean", "std"))
            return cls(name, stored["kind"], tuple(stored["shape"]), mean, std, None, *form_of(stored))
        other_columns = stored["other_columns"]  # in training, client and labels come first
        last = [column for column in other_columns if column["kind"] in ("left out", "dropped")]
        first = [column for column in other_columns if column not in last]
        preparation = Preparation.of_json([*first, *stored["columns"], *last])
        return cls(name, "features", (len(stored["features"]),), preparation=preparation)


def form_of(stored: Mapping[str, Any]) -> tuple[np.dtype[Any] | None, tuple[int, ...]]:
    """Read the layout of several inputs (None for a single input) and the positions of labels from a model file."""
    return several.layout_of_json(stored["inputs"]) if "inputs" in stored else None, tuple(stored.get("positions", ()))


# ---- User data: torch Datasets and arrays


def of_samples(
    x: AnyArray,
    y: AnyArray,
    owners: Ints,
    names: tuple[str, ...],
    *,
    kind: ExampleKind | None,
    name: str,
    num_classes: int | None = None,
    class_names: Sequence[str] | None = None,
    together: Together = APART,
) -> OwnData:
    """Build user data from arrays; images are normalized later with the participants' pixels.

    With groups, FedReach sorts the examples like the rows of a table, so their order does not matter. The same data in
    a table have the same held-out examples.
    """
    plain = from_arrays(x, y, kind=kind, name=name, num_classes=num_classes, class_names=class_names)
    if together.groups is None:
        return OwnSamples(name, owners, names, plain, together=together)
    labels: AnyArray = plain.train_y.reshape(len(plain.train_y), -1)  # for positions, all labels of an example
    if plain.example_classes:
        labels = cells.by_text(plain.train_y, plain.class_names or tuple(map(str, range(plain.num_classes))))
    order = cells.row_order(owners, together.sort_keys(labels), {})
    x, y = plain.train_x[order], plain.train_y[order]
    plain = replace(plain, train_x=x, train_y=y, sha256=content_hash(x, y, plain.test_x, plain.test_y))
    return OwnSamples(name, owners[order], names, plain, together=together.at(order))


def _together(options: Mapping[str, Any], length: int) -> Together:
    """Read the groups and times of `length` examples from the options ``group`` and ``time``, which may be None.

    Raises:
        DataError: If there are not `length` groups or times, or one is missing.

    Example:
        >>> _together({"group": ["p1", "p1", "p2"], "time": None}, 3).groups
        array([0, 0, 1])
        >>> _together({"group": ["p1", "p1"], "time": None}, 3)
        Traceback (most recent call last):
        fedreach.DataError: group must have one entry for each of the 3 examples; got 2.
    """
    table = {option: as_arrow(values, option) for option, values in options.items() if values is not None}
    for option, column in table.items():
        if len(column) != length:
            raise DataError(f"{option} must have one entry for each of the {length} examples; got {len(column)}.")
    group, time = (option if option in table else None for option in ("group", "time"))
    return together_of(table, group, time, what="")


def of_torch(
    data: Any,
    clients: Any,
    kind: ExampleKind | None,
    num_classes: int | None,
    name: str,
    group: Any = None,
    time: Any = None,
) -> OwnData:
    """Read a torch Dataset; see `fedreach.data.federated.FederatedData.from_torch`."""
    length = size(data, name)
    owners, names = numbered_list("clients", clients)
    if len(owners) != length:
        raise DataError(f"clients must have one entry for each of the {length} examples; got {len(owners)}.")
    together = _together({"group": group, "time": time}, length)
    x, y = samples(pairs(data, name), length, name, kind)
    about: dict[str, Any] = {"num_classes": num_classes, "class_names": class_names_of(data)}
    return of_samples(x, y, owners, names, kind=kind, name=name, together=together, **about)


def of_clients(
    data: Mapping[Any, Any],
    kind: ExampleKind | None,
    num_classes: int | None,
    name: str,
    *,
    group: Mapping[Any, Any] | None = None,
    time: Mapping[Any, Any] | None = None,
) -> OwnData:
    """Read arrays or Datasets by client; see `fedreach.data.federated.FederatedData.from_clients`."""
    if not isinstance(data, Mapping) or not data:
        example = '{"north": (x, y), "south": dataset}'
        raise ConfigError(f"from_clients: data must be a dictionary such as {example}; got {type(data).__name__}.")
    numbers, names = numbered_list("from_clients: a name", list(data))
    if len(names) < len(data):
        raise ConfigError(f"from_clients: clients must have different names; got {list(data)}.")
    clients = [client for _, client in sorted(zip(numbers.tolist(), data, strict=True), key=lambda pair: pair[0])]
    parts = [_arrays_of(f"data of {client}", data[client], kind) for client in clients]
    empty = [name for name, (x, _) in zip(names, parts, strict=True) if not len(x)]
    if empty:
        raise DataError(
            f"from_clients: each client must have an example; {', '.join(empty[:5])} have none. Remove these clients."
        )
    if len({(x.shape[1:], sort_of(x), y.shape[1:]) for x, y in parts}) > 1:
        forms = "; ".join(
            f"{name}: {x.shape[1:]} {x.dtype} and {y.shape[1:]}"
            for name, (x, y) in zip(names[:5], parts[:5], strict=True)
        )
        raise DataError(f"from_clients: all clients must have examples of the same shape and type; got {forms}.")
    x, y = np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])
    lengths = {client: len(y) for client, (_, y) in zip(clients, parts, strict=True)}
    owners = np.repeat(np.arange(len(parts)), list(lengths.values()))
    class_lists = {class_names for source in data.values() if (class_names := class_names_of(source)) is not None}
    options = {option: _of_each_client(option, by, lengths) for option, by in {"group": group, "time": time}.items()}
    about: dict[str, Any] = {"num_classes": num_classes, "together": _together(options, len(y))}
    about["class_names"] = class_lists.pop() if len(class_lists) == 1 else None
    return of_samples(x, y, owners, names, kind=kind, name=name, **about)


def _arrays_of(what: str, source: Any, kind: ExampleKind | None) -> tuple[AnyArray, AnyArray]:
    """Return inputs and labels of a client, from a pair of arrays or a Dataset."""
    if not (isinstance(source, tuple) and len(source) == 2):
        return samples(pairs(source, what), size(source, what), what, kind)
    check = ArgumentChecks(what)
    y = check.rows("y", images.as_labels(source[1], f"{check.of} {what!r}: a label"))
    are_several = several.is_inputs_of_examples(source[0], len(y))
    x = several.records(source[0], what) if are_several else check.rows("x", images.as_array(source[0], what, kind))
    if len(x) != len(y):
        raise check.error(f"x and y must have the same length; got {len(x)} and {len(y)}")
    return x, y


def _of_each_client(option: str, by_client: Mapping[Any, Any] | None, lengths: Mapping[Any, int]) -> pa.Array | None:
    """Concatenate the values of an option over all clients, or return None if the option is not set.

    Args:
        option: Name of the option, for messages.
        by_client: Values for the examples of each client, by client.
        lengths: Number of examples of each client, in the order of the result.

    Raises:
        ConfigError: If `by_client` is not a dictionary, or a client is missing or unknown.
        DataError: If a client does not have one value per example.
    """
    if by_client is None:
        return None
    if not isinstance(by_client, Mapping) or set(by_client) != set(lengths):
        got = list(by_client) if isinstance(by_client, Mapping) else type(by_client).__name__
        raise ConfigError(f"from_clients: {option} must be a dictionary with the clients {list(lengths)}; got {got}.")
    columns = {client: as_arrow(by_client[client], f"{option} of {client}") for client in lengths}
    for client, column in columns.items():
        if len(column) != lengths[client]:
            raise DataError(
                f"{option} of {client} must have one entry for each of its {lengths[client]} examples; got "
                f"{len(column)}."
            )
    if len({column.type for column in columns.values()}) == 1:
        return pa.concat_arrays(list(columns.values()))
    return as_arrow([cell for column in columns.values() for cell in column.to_pylist()], option)


def sort_of(array: AnyArray) -> str:
    """Return a text for the type of an array, which is the same text for all floats."""
    if array.dtype.names is not None:
        return str(array.dtype.descr)
    return "f" if array.dtype.kind == "f" else array.dtype.str if array.dtype == np.uint8 else array.dtype.kind


def size(dataset: Any, name: str) -> int:
    """Return the number of examples of a Dataset.

    Raises:
        ConfigError: If the Dataset has no length or cannot be indexed.
    """
    endless = any(base.__name__ == "IterableDataset" for base in type(dataset).__mro__)
    indexed = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__") and not isinstance(dataset, Mapping)
    if indexed and not endless:
        try:
            return len(dataset)
        except (TypeError, NotImplementedError):
            pass  # for example, a wrapped Dataset without a length
    raise ConfigError(
        f"{name} must be a Dataset with `__len__` and `__getitem__`; got {type(dataset).__name__}. Convert a finite "
        "part of it to a list: list(itertools.islice(dataset, 10_000))."
    )


def pairs(dataset: Any, name: str) -> Iterator[tuple[Any, Any]]:
    """Yield the input and the label of each example."""
    for number in range(len(dataset)):
        sample = dataset[number]
        if isinstance(sample, Mapping):
            labels = [key for key in ("labels", "label") if key in sample]
            if len(labels) != 1:
                raise DataError(
                    f"{name}: example {number} must have the key 'labels' or 'label', and inputs; got the keys "
                    f"{list(sample)}."
                )
            sample = {key: value for key, value in sample.items() if key != labels[0]}, sample[labels[0]]
        if not isinstance(sample, tuple | list) or len(sample) != 2:
            raise DataError(
                f"{name}: each example must be a pair of input and label; example {number} is a {type(sample).__name__}"
                f"{f' of {len(sample)}' if isinstance(sample, tuple | list) else ''}. {SEVERAL}: ((a, b), label)."
            )
        yield sample[0], sample[1]


def samples(
    rows: Iterable[tuple[Any, Any]], length: int, name: str, kind: ExampleKind | None = None
) -> tuple[AnyArray, AnyArray]:
    """Stack examples into (n, ...) inputs and (n,) labels.

    Raises:
        DataError: If there are no examples, inputs differ in shape or type, or a label is invalid.
    """
    labels: list[Any] = []

    def inputs() -> Iterator[Any]:
        for number, (value, label) in enumerate(rows):
            labels.append(_label(label, f"{name}: the label of example {number}"))
            yield value

    values = inputs()
    first = next(values, None)
    if several.is_inputs_of_example(first):
        x = _stack_records(first, values, length, name)
    else:
        x = images.stack_inputs(chain([] if first is None else [first], values), length, name, kind)
    try:
        return x, np.array(labels)
    except ValueError as error:  # labels of different lengths
        raise DataError(f"{name}: all labels must have the same shape; {error}.") from error


def _label(label: Any, what: str) -> Any:
    """Convert a label to a text, a number, a list of numbers or an array."""
    if isinstance(label, str):
        return label
    if label is None or isinstance(label, Mapping):
        raise DataError(
            f"{what} must be a class or a number; got {type(label).__name__}. Remove examples without a label."
        )
    array = images.classes_of_pixels(label, what) if images.is_picture(label) else np.asarray(images.as_numpy(label))
    if array.dtype == np.bool_ and array.ndim:
        array = array.astype(np.int64)
    return array if array.ndim > 1 else array.tolist()


def _stack_records(first: Any, remaining: Iterator[Any], length: int, name: str) -> AnyArray:
    """Stack the several inputs of each example to (n,) records.

    Raises:
        DataError: If the inputs of an example differ from those of the first one.
    """
    table: AnyArray | None = None
    for number, value in enumerate(chain([first], remaining)):
        if not several.is_inputs_of_example(value):
            raise DataError(f"{name}: example {number} must have several inputs, like the first one; got one input.")
        is_named = isinstance(value, Mapping)
        arrays: Any = {key: _array_of(value[key]) for key in value} if is_named else tuple(map(_array_of, value))
        record = several.records(arrays, f"{name}, example {number}")
        if table is None:
            table = np.empty(length, record.dtype)
        if record.dtype != table.dtype:
            raise DataError(
                f"{name}: all examples must have inputs of the same shape and type; the first has "
                f"{several.describe_layout(table.dtype)}, and example {number} has "
                f"{several.describe_layout(record.dtype)}. Pad texts to the same length."
            )
        table[number] = record[0]
    assert table is not None  # there is at least the first example
    return table


def _array_of(part: Any) -> Any:
    if images.is_picture(part):
        raise DataError("Several inputs must be arrays; got an image. Convert the image with np.asarray and scale it.")
    return np.asarray(images.as_numpy(part))[None]


def class_names_of(dataset: Any) -> tuple[str, ...] | None:
    """Return the class names of a Dataset that has them, such as a torchvision Dataset, or None."""
    names = getattr(dataset, "classes", None)
    return tuple(names) if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names) else None
