"""MNIST, Fashion-MNIST and EMNIST, from the idx files in which they are published."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedreach.arrays import AnyArray, Ints
from fedreach.data import readers
from fedreach.data.datasets import Dataset, from_arrays
from fedreach.data.download import Place, Source
from fedreach.errors import ConfigError, nearest

EMNIST_CLASSES = {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26, "digits": 10, "mnist": 10}


def _read_idx(place: Place, source: Source, name: str, ndim: int) -> tuple[Path, AnyArray]:
    candidates = [f"{folder}/{name}{end}" for folder in source.folders for end in (".gz", "")]
    archives = [path for path in source.files if path.endswith(".zip")]
    path = place.locate(source, candidates + archives)
    data = readers.read_zip(path, f"gzip/{name}.gz") if path.suffix == ".zip" else readers.read_bytes(path)
    array = readers.parse_idx(path, data, ndim)
    readers.check_published(path, data, source.parts.get(name))
    return path, array


def _read_idx_pair(
    place: Place, source: Source, stem: str, num_classes: int, first_label: int = 0
) -> tuple[AnyArray, Ints]:
    """Return images (n, H, W) and labels (n,) from 0 on."""
    _, x = _read_idx(place, source, f"{stem}-images-idx3-ubyte", 3)
    path, labels = _read_idx(place, source, f"{stem}-labels-idx1-ubyte", 1)
    if len(labels) != len(x):
        raise readers.damaged(path, f"{len(labels)} labels for {len(x)} images")
    return x, readers.check_labels(path, labels.astype(np.int64) - first_label, num_classes)


def idx_digits(mean: float, std: float) -> Callable[..., Dataset]:
    """Return the reader of MNIST or Fashion-MNIST, with its mean and deviation in common use."""

    def read(place: Place, source: Source) -> Dataset:
        parts = [*_read_idx_pair(place, source, "train", 10), *_read_idx_pair(place, source, "t10k", 10)]
        return from_arrays(*parts, **source.about, num_classes=10, mean=(mean,), std=(std,))

    return read


def emnist(place: Place, source: Source, split: str = "letters", classes: int | None = None) -> Dataset:
    """EMNIST. The letters are labelled from 1 and the images lie transposed in the files; both are put right.

    Mean and deviation are those of the training images kept, as in FedDyn's code.

    Args:
        place: The data folder.
        source: Entry of ``sources.json``.
        split: ``letters`` (26 classes), ``digits``, ``mnist`` (10), ``balanced``, ``bymerge`` (47) or ``byclass`` (62).
        classes: Keep the first so many classes. 10 of the letters, A to J, are what FedDyn's code calls EMNIST and
            other papers EMNIST-10.

    Raises:
        ConfigError: An unknown split or too many classes.
    """
    if split not in EMNIST_CLASSES:
        raise ConfigError(f"emnist split must be known; got {split!r}.{nearest(str(split), EMNIST_CLASSES)}")
    total = EMNIST_CLASSES[split]
    classes = total if classes is None else classes
    if isinstance(classes, bool) or not isinstance(classes, int) or not 1 <= classes <= total:
        raise ConfigError(
            f"emnist classes must be a whole number from 1 to {total} for split {split!r}; got {classes!r}."
        )
    parts = []
    for part in ("train", "test"):
        x, y = _read_idx_pair(place, source, f"emnist-{split}-{part}", total, int(split == "letters"))
        parts += [x.transpose(0, 2, 1)[y < classes], y[y < classes]]
    return from_arrays(*parts, **source.about, num_classes=classes)
