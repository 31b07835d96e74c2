"""Data that the server holds itself: drawn from the clients' training data, or given."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedreach.arrays import AnyArray, Bools, Ints
from fedreach.data.checks import Check
from fedreach.data.datasets import Dataset, from_npz
from fedreach.data.partition.draws import checked_count
from fedreach.errors import ConfigError, DataError


@dataclass(frozen=True, eq=False)
class ServerData:
    """What the server holds itself. Its labels are right: label noise is the clients' matter."""

    x: AnyArray  # (s, ...) samples of the type and shape of the data set's
    y: AnyArray  # (s,) classes, or (s, t) numbers


def drawn_for_server(owner: Ints, examples: int, rng: np.random.Generator) -> Bools:
    """Draw the server's examples at random from everybody's training data, but never a client's last one.

    The examples are shuffled, and the first ones that are not the last of their client are taken. So every example is
    equally likely, but for clients about to run dry. `owner` (samples,) is the client of each training example; the
    answer flags those that the server takes.

    Raises:
        ConfigError: If `examples` is no such number, or fewer can be taken.

    Example:
        >>> taken = drawn_for_server(np.array([0, 0, 0, 1, 2, 2]), 3, np.random.Generator(np.random.Philox(0)))
        >>> int(taken.sum()), bool(taken[3])         # client 1 has one example and keeps it
        (3, False)
    """
    examples = checked_count("server_data.examples", examples, 1)
    shuffled = rng.permutation(len(owner))
    kept, at = np.unique(owner[shuffled][::-1], return_index=True)  # at: where each client comes last, from the end
    spare = np.delete(shuffled, len(owner) - 1 - at)
    if examples > len(spare):
        raise ConfigError(
            f"server_data.examples must be at most {len(spare)}, as each of the {len(kept)} clients keeps one of their "
            f"{len(owner)} training examples; got {examples}."
        )
    taken = np.zeros(len(owner), np.bool_)
    taken[spare[:examples]] = True
    return taken


def given_to_server(dataset: Dataset, data: tuple[Any, Any] | Path | str) -> ServerData:
    """Return your own data for the server, checked like a data set.

    It is (s, ...) samples and (s,) labels, or the path of an ``.npz`` file with ``x`` and ``y``: samples of the kind,
    type and shape that the clients hold, labels of their classes.

    Raises:
        DataError: If they are not.

    Example:
        >>> from fedreach.data.sets.catalogue import load
        >>> digits = load("digits")
        >>> given_to_server(digits, (digits.test_x[:5], digits.test_y[:5])).x.shape
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
    if y.shape[1:] != dataset.train_y.shape[1:]:
        raise DataError(
            f"{name} must have {dataset.train_y.shape[1:]} numbers a sample, as {dataset.name}; got {y.shape[1:]}."
        )
    if len(y) == 0:
        raise DataError(f"{name} must hold at least one sample; got none.")
    if (x.shape[1:], x.dtype) != (dataset.train_x.shape[1:], dataset.train_x.dtype):
        raise DataError(
            f"{name} must have samples like those of {dataset.name}, {dataset.train_x.shape[1:]} "
            f"{dataset.train_x.dtype}; got {x.shape[1:]} {x.dtype}."
        )
    return ServerData(x, y)
