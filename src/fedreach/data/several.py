"""Examples with several inputs, or with one label per position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedreach._util.arrays import AnyArray, Bools, Ints
from fedreach._util.errors import DataError
from fedreach.data.images import as_numpy

# ---- One label per position, such as the next token or the class of each pixel
# Labels have the shape (n, positions...), such as (n, T) or (n, H, W). Positions with the label `IGNORED` are masked:
# loss and metrics ignore them. Each example has at least one label that is not masked.
#
# Losses and metrics are means over the positions with a label: of a batch, as in
# `torch.nn.functional.cross_entropy`, or of a client. Aggregation weights use the number of *examples* of a client.

IGNORED = -100
"""Label of masked positions; torch and Hugging Face call it `ignore_index`."""


def is_labeled(labels: AnyArray) -> Bools:
    """Return a mask of the positions that have a label, with the shape of the labels."""
    return np.asarray(labels != IGNORED)


def position_counts(labels: AnyArray) -> Ints:
    """Return the (m,) number of labeled positions of each example.

    Example:
        >>> position_counts(np.array([[1, 0, -100], [2, -100, -100]]))
        array([2, 1])
    """
    return np.asarray(is_labeled(labels).reshape(len(labels), -1).sum(axis=1))


def example_classes(labels: AnyArray, num_classes: int) -> int:
    """Return the number of classes if each example has one class, or 0 for labels per position and numeric targets.

    Example:
        >>> example_classes(np.array([0, 1]), 2), example_classes(np.array([[0, 1], [1, 1]]), 2)
        (2, 0)
    """
    return num_classes if labels.ndim == 1 else 0


def next_token_labels(tokens: ArrayLike, attention_mask: ArrayLike | None = None) -> Ints:
    """Return the labels of a model that predicts the next token at each position.

    The label of a position is the token at the next position. The last position and positions that precede padding are
    masked.

    Args:
        tokens: (n, T) token ids.
        attention_mask: (n, T) numbers, with 0 for padding. Default: no padding.

    Raises:
        DataError: If an argument has the wrong shape or type.

    Example:
        >>> next_token_labels([[5, 6, 7, 0]], [[1, 1, 1, 0]])
        array([[   6,    7, -100, -100]])
    """
    ids = np.asarray(tokens)
    mask = np.ones(ids.shape, np.bool_) if attention_mask is None else np.asarray(attention_mask) != 0
    if ids.ndim != 2 or mask.shape != ids.shape or ids.dtype.kind not in "ui":
        raise DataError(
            f"next_token_labels: tokens must be (n, T) integers, and attention_mask must have the same shape; got "
            f"{ids.shape} and {mask.shape}."
        )
    labels = np.full(ids.shape, IGNORED, np.int64)
    labels[:, :-1] = np.where(mask[:, 1:] & mask[:, :-1], ids[:, 1:], IGNORED)
    return labels


# ---- Several inputs per example, by name or in order, stored as one array of records
# A record contains all inputs of one example. Each input has its own shape and type, so integers stay exact. So the
# rest of FedReach can partition, sort, hash and store examples as one array. `fedreach.engines.several` passes the
# inputs to the model: by name as keywords, else in order.

STORED_TYPES: Mapping[str, np.dtype[Any]] = {
    "f": np.dtype("<f4"),
    "i": np.dtype("<i8"),
    "u": np.dtype("<i8"),
    "b": np.dtype("bool"),
}
"""Kinds of NumPy types, with the type that each kind becomes in records. uint8 remains uint8."""
Shapes = dict[str, tuple[int, ...]] | tuple[tuple[int, ...], ...]


def is_inputs_of_example(value: Any) -> bool:
    """Return whether the value contains the inputs of one example: a dictionary, or a tuple of arrays or tensors.

    Example:
        >>> is_inputs_of_example({"a": [1]}), is_inputs_of_example((np.ones(2), np.ones(3)))
        (True, True)
        >>> is_inputs_of_example((1.0, 2.0)), is_inputs_of_example([np.ones(2), np.ones(2)])
        (False, False)
    """
    if isinstance(value, Mapping):
        return "bytes" not in value  # a dictionary with bytes is a compressed image
    return isinstance(value, tuple) and len(value) > 1 and all(_has_shape(part) for part in value)


def is_inputs_of_examples(value: Any, length: int) -> bool:
    """Return whether the value contains several inputs of `length` examples: a dictionary, or a tuple of arrays.

    Example:
        >>> is_inputs_of_examples((np.ones((5, 2)), np.ones((5, 3))), 5)
        True
        >>> is_inputs_of_examples((np.ones(2), np.ones(2), np.ones(2)), 3)  # three examples
        False
    """
    if isinstance(value, Mapping):
        return True
    if not isinstance(value, tuple) or len(value) < 2 or len(value) == length:
        return False
    return all(_has_shape(part) and len(part.shape) > 0 and len(part) == length for part in value)


def _has_shape(part: Any) -> bool:
    return hasattr(part, "shape") and hasattr(part, "dtype")


def records(inputs: Mapping[str, Any] | Sequence[Any], name: str) -> AnyArray:
    """Build (n,) records from several inputs of n examples.

    Args:
        inputs: Arrays of shape (n, ...), by name or in order.
        name: Name of the data, for messages.

    Raises:
        DataError: If a name is not a valid keyword, lengths differ, or an input is not an array of finite numbers.

    Example:
        >>> records({"tokens": [[1, 2]], "age": [0.5]}, "toy").dtype.descr
        [('age', '<f4'), ('tokens', '<i8', (2,))]
    """
    is_named = isinstance(inputs, Mapping)
    named = dict(inputs) if isinstance(inputs, Mapping) else {str(i): part for i, part in enumerate(inputs)}
    if not named or (is_named and not all(isinstance(key, str) and key.isidentifier() for key in named)):
        raise DataError(
            f"{name}: the names of several inputs must be keywords of the model's forward; got {list(named)}."
        )
    arrays = {
        key: _compact_array(named[key], f"{name}: input {key!r}") for key in (sorted(named) if is_named else named)
    }
    lengths = {key: len(array) for key, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"{name}: all inputs must have one entry per example; got {lengths}.")
    dtype = np.dtype([(key, array.dtype, array.shape[1:]) for key, array in arrays.items()])
    table = np.empty(next(iter(lengths.values())), dtype)
    for key, array in arrays.items():
        table[key] = array
    return table


def _compact_array(value: Any, what: str) -> AnyArray:
    """Convert an input to an array of a type for records."""
    try:
        array = np.asarray(as_numpy(value))
    except ValueError as error:
        raise DataError(f"{what} must be one rectangular array; {error}. Pad it to the same length.") from error
    if array.ndim == 0 or array.dtype.kind not in STORED_TYPES or 0 in array.shape[1:]:
        raise DataError(
            f"{what} must be an array of numbers with one entry per example; got {array.dtype} {array.shape}."
        )
    dtype: np.dtype[Any] = array.dtype if array.dtype == np.uint8 else STORED_TYPES[array.dtype.kind]
    with np.errstate(over="ignore"):  # overflow of float32 raises an error below
        stored: AnyArray = array.astype(dtype)
    if stored.dtype.kind == "f" and not np.isfinite(stored).all():
        raise DataError(f"{what} must be finite as float32. Remove the examples that are not finite.")
    return stored


def has_names(layout: np.dtype[Any]) -> bool:
    """Return whether the inputs of records have names."""
    return not (layout.names or ("",))[0].isdigit()


def sample_shape(array: AnyArray) -> Any:
    """Return the shape of an example or, for several inputs, one shape per input, by name or in order.

    Example:
        >>> sample_shape(np.zeros((5, 3))), sample_shape(records({"a": np.zeros((5, 3)), "b": np.zeros(5)}, "toy"))
        ((3,), {'a': (3,), 'b': ()})
    """
    return array.shape[1:] if array.dtype.names is None else shapes(array.dtype)


def shapes(layout: np.dtype[Any]) -> Shapes:
    """Return the shape of each input, by name or in order."""
    shape_by_name = {name: layout[name].shape for name in layout.names or ()}
    return shape_by_name if has_names(layout) else tuple(shape_by_name.values())


def layout_to_json(layout: np.dtype[Any]) -> list[list[Any]]:
    """Return the name, type and shape of each input.

    Example:
        >>> layout_to_json(records((np.zeros((5, 3)), np.zeros(5, int)), "toy").dtype)
        [['0', 'float32', [3]], ['1', 'int64', []]]
    """
    return [[name, layout[name].base.name, list(layout[name].shape)] for name in layout.names or ()]


def layout_of_json(written: Sequence[Sequence[Any]]) -> np.dtype[Any]:
    """Build the layout from the values of `layout_to_json`."""
    return np.dtype([(name, np.dtype(kind).newbyteorder("<"), tuple(shape)) for name, kind, shape in written])


def describe_layout(layout: np.dtype[Any]) -> str:
    """Describe each input by its name, type and shape.

    Example:
        >>> describe_layout(records((np.zeros((5, 3)), np.zeros(5, int)), "toy").dtype)
        '0 float32 (3,), 1 int64 ()'
    """
    return ", ".join(f"{name} {kind} {tuple(shape)}" for name, kind, shape in layout_to_json(layout))
