"""Data sets by name."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedreach._util.errors import ConfigError, check_type, nearest
from fedreach.data.checks import check_option_names
from fedreach.data.datasets import Dataset, Loaded, from_arrays, from_npz
from fedreach.data.sets.download import Place, Source, data_folder, sources
from fedreach.data.sets.readers import cifar10, cifar100, emnist, idx_digits, shakespeare
from fedreach.data.stored import from_folder

# ---- Known data sets by name; to add one, add an entry to ``sources.json`` and a reader here

NO_DOWNLOAD = {"download": False}


def load(
    name: str, folder: Path | str | None = None, *, download: bool = True, progress: bool = False, **options: Any
) -> Dataset:
    """Load a known data set, or your own from an ``.npz`` file or from a folder with ``x.npy``.

    Files are read from `folder`, or from the folder in the environment variable ``FEDREACH_DATA``, or from the user's
    cache folder, in the formats and paths that torchvision and others use. Missing files are downloaded to that
    folder. The structure is always checked, and the content if its published checksum is known.

    Args:
        name: A key of `LOADERS`, the path of an ``.npz`` file (see `from_npz`), or the path of the ``x.npy`` in a
            folder that stays on disk (see `from_folder`).
        folder: Data folder.
        download: Allow downloads of missing files.
        progress: Show a progress bar while downloading.
        **options: Options of the data set: emnist ``split``, ``classes``; cifar100 and cifar100_subset ``labels``
            (``"fine"`` or ``"coarse"``); shakespeare ``stride``, ``min_samples``, ``max_samples``, ``roles``,
            ``train_fraction``.

    Raises:
        ConfigError: If the name or an option is unknown, or an option is out of range.
        DataError: If a file is missing, cannot be downloaded, or is damaged; the message names the file.

    Example:
        >>> load("digits")
        Dataset(digits: 1437 training and 360 test samples, image 1x8x8 uint8, 10 classes, sha256 ...)
    """
    check_type("load", "name", name, str)
    check_type("load", "folder", folder, str, Path, type(None))
    where = {"name": name} | ({} if folder is None else {"folder": str(folder)}) | ({} if download else NO_DOWNLOAD)
    if name.endswith((".npz", ".npy")):
        check_option_names(f"data set {name!r}", options, ("kind", "num_classes"))
        dataset = from_npz(name, **options) if name.endswith(".npz") else from_folder(_folder_of(name), **options)
        return replace(dataset, loaded=Loaded({**where, **options}, dataset))
    if name not in LOADERS:
        raise ConfigError(
            "data set must be a known name, or the path of an .npz file or of the x.npy of a folder of arrays; "
            f"got {name!r}.{nearest(name, LOADERS)}"
        )
    check_option_names(f"data set {name!r}", options, options_of(name))
    dataset = LOADERS[name](Place(data_folder(folder), download, progress), sources()[name], **options)
    return replace(dataset, loaded=Loaded({**where, **options}, dataset))


def _folder_of(name: str) -> Path:
    path = Path(name)
    if path.name != "x.npy":
        raise ConfigError(f"data set {name!r}: a folder of arrays is named by its x.npy; got {path.name!r}.")
    return path.parent


def options_of(name: str) -> tuple[str, ...]:
    """Return the names of the options of a known data set."""
    return tuple(inspect.signature(LOADERS[name]).parameters)[2:]


def _digits(place: Place, source: Source) -> Dataset:
    """Load the 1,797 digits that scikit-learn ships; the last 360 rows are the test set.

    According to scikit-learn's notes, rows are grouped by writer, so that most test writers are not in training.
    Pixels keep their range 0..16. Mean 0 and standard deviation 16 / 255 turn pixel / 255 into pixel / 16, in [0, 1].
    """
    with np.load(Path(__file__).with_name("digits.npz"), allow_pickle=False) as file:
        x, y = file["x"], file["y"]
    cut = len(y) - 360
    return from_arrays(x[:cut], y[:cut], x[cut:], y[cut:], **source.about, num_classes=10, mean=(0.0,), std=(16 / 255,))


def _breast_cancer(place: Place, source: Source) -> Dataset:
    """Load the 569 tumors that scikit-learn ships, in its order; every fifth row is the test set.

    Each column is centered and divided by its standard deviation, both over the 456 training rows. As for image sets,
    these numbers are fixed and stored in the file, so that all seeds share them. A federation could compute them from
    sums over participants. The last 114 rows would not represent the training set: 23% of them are malignant, and 41%
    of the others.
    """
    with np.load(Path(__file__).with_name("breast_cancer.npz"), allow_pickle=False) as file:
        x, y = ((file["x"] - file["mean"]) / file["std"]).astype(np.float32), file["y"]
    test = np.arange(len(y)) % 5 == 4
    return from_arrays(x[~test], y[~test], x[test], y[test], **source.about, num_classes=2)


def _diabetes(place: Place, source: Source) -> Dataset:
    """Load the 442 patients that scikit-learn ships, in its order; every fifth row is the test set.

    The target measures the progression of the disease within a year, from 25 to 346. Each column is centered and
    divided by its standard deviation, both over the 354 training rows, as in `_breast_cancer`. The numbers have no
    stated license, so that they are read from scikit-learn and not shipped here.
    """
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True, scaled=False)
    test = np.arange(len(y)) % 5 == 4
    x = (x - x[~test].mean(axis=0)) / x[~test].std(axis=0)
    return from_arrays(x[~test], y[~test], x[test], y[test], **source.about, num_classes=0)


LOADERS: Mapping[str, Callable[..., Dataset]] = {
    "digits": _digits,
    "breast_cancer": _breast_cancer,
    "diabetes": _diabetes,
    "mnist": idx_digits(0.1307, 0.3081),
    "fashion_mnist": idx_digits(0.2860, 0.3530),
    "cifar10": cifar10,
    "cifar100": cifar100,
    "cifar100_subset": cifar100,
    "emnist": emnist,
    "shakespeare": shakespeare,
}
