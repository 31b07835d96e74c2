"""CIFAR-10, CIFAR-100 and the fixed subset of it, from the original pickles (folder or .tar.gz) or packed ``.npz``."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np

from fedreach.arrays import AnyArray, Ints
from fedreach.data import readers
from fedreach.data.datasets import Dataset, from_arrays
from fedreach.data.download import Place, Source
from fedreach.errors import ConfigError

_PACKED = ("cifar-10", "cifar-100-subset")


def _read_cifar(
    place: Place, source: Source, batches: tuple[str, ...], labels: str, num_classes: int
) -> list[AnyArray]:
    """Return training images, training labels, test images, test labels; the last batch is the test set."""
    path = place.locate(source, source.folders)

    def unpack(batch: str) -> tuple[AnyArray, Ints]:
        where = path / f"{batch}.npz" if packed else path / batch
        data = pickles[batch] if path.is_file() else readers.read_bytes(where)
        parse = readers.parse_packed if packed else readers.parse_cifar_pickle
        key = labels.removeprefix("fine_") if packed else labels
        parsed = parse(where, data, key, num_classes)
        readers.check_published(where, data, source.parts.get(where.name))
        return parsed

    packed = path.name in _PACKED
    pickles = readers.read_tar(path, batches) if path.is_file() else {}
    with ThreadPoolExecutor(2) as pool:  # unpacking LZMA leaves python free
        *train, test = pool.map(unpack, batches)
    x, y = zip(*train, strict=True)
    return [np.concatenate(x), np.concatenate(y), *test]


def cifar10(place: Place, source: Source) -> Dataset:
    """CIFAR-10, with the mean and deviation of FedDyn's code."""
    batches = (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch")
    parts = _read_cifar(place, source, batches, "labels", 10)
    return from_arrays(*parts, **source.about, num_classes=10, mean=(0.491, 0.482, 0.447), std=(0.247, 0.243, 0.262))


def cifar100(place: Place, source: Source, labels: Literal["fine", "coarse"] = "fine") -> Dataset:
    """CIFAR-100, or its subset: which one is the name that was asked for, never what happens to lie there."""
    if labels not in ("fine", "coarse"):
        raise ConfigError(f"{source.name} labels must be 'fine' (100 classes) or 'coarse' (20); got {labels!r}.")
    num_classes = 100 if labels == "fine" else 20
    parts = _read_cifar(place, source, ("train", "test"), f"{labels}_labels", num_classes)
    return from_arrays(
        *parts, **source.about, num_classes=num_classes, mean=(0.5071, 0.4867, 0.4408), std=(0.2675, 0.2565, 0.2761)
    )
