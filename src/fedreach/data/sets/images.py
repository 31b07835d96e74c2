"""Sets of images: MNIST and its kin from IDX files, CIFAR from the original pickles."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import numpy as np

from fedreach.arrays import AnyArray, Ints
from fedreach.data.datasets import Dataset, from_arrays
from fedreach.data.sets import readers
from fedreach.data.sets.download import Place, Source
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
        split: ``letters`` (26 classes), ``digits``, ``mnist`` (10), ``balanced``, ``bymerge`` (47) or ``byclass`` (62).
        classes: Keep the first so many classes. 10 of the letters, A to J, are what FedDyn's code calls EMNIST and
            other papers EMNIST-10.

    Raises:
        ConfigError: An unknown split or too many classes.
    """
    if not isinstance(split, str) or split not in EMNIST_CLASSES:
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
