"""Built-in data sets by name."""

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

# ---- Loaders by name; a new data set needs an entry in ``sources.json`` and a reader

NO_DOWNLOAD = {"download": False}


def load(
    name: str, folder: Path | str | None = None, *, download: bool = True, progress: bool = False, **options: Any
) -> Dataset:
    """Load a built-in data set, or your data from an ``.npz`` file or a folder of arrays.

    FedReach searches `folder` for the files. Without `folder`, it searches the folder in the environment variable
    ``FEDREACH_DATA``, and without this variable, the user's cache folder. FedReach uses the file formats and paths of
    torchvision and other libraries. It downloads missing files to the folder that it searches. Files with a known
    checksum must match this checksum.

    Args:
        name: Name in `LOADERS`, path of an ``.npz`` file (see `from_npz`), or path of the file ``x.npy`` in a folder of
            arrays (see `from_folder`).
        folder: Folder of the data files.
        download: Download missing files. Default: True.
        progress: Show progress of downloads on stderr. Default: False.
        **options: Options of the data set. emnist: ``split``, ``classes``. cifar100 and cifar100_subset: ``labels``
            (``"fine"`` or ``"coarse"``). shakespeare: ``stride``, ``min_samples``, ``max_samples``, ``roles``,
            ``train_fraction``.

    Raises:
        ConfigError: If the name or an option is unknown, or an option is outside its range.
        DataError: If a file is missing or damaged, or cannot be downloaded.

    Example:
        >>> load("digits")
        Dataset(digits: 1437 training and 360 test samples, image 1x8x8 uint8, 10 classes, sha256 ...)
    """
    check_type("load", "name", name, str)
    check_type("load", "folder", folder, str, Path, type(None))
    where = {"name": name} | ({} if folder is None else {"folder": str(folder)}) | ({} if download else NO_DOWNLOAD)
    if name.endswith((".npz", ".npy")):
        check_option_names(f"data set {name!r}", options, ("kind", "num_classes"))
        if name.endswith(".npz"):
            dataset = from_npz(name, **options)
        elif Path(name).name == "x.npy":
            dataset = from_folder(Path(name).parent, **options)
        else:
            raise ConfigError(f"data set {name!r}: must be the x.npy of a folder of arrays; got {Path(name).name!r}.")
        return replace(dataset, loaded=Loaded({**where, **options}, dataset))
    if name not in LOADERS:
        raise ConfigError(
            "data set must be a known name, the path of an .npz file, or the path of x.npy in a folder of arrays; "
            f"got {name!r}.{nearest(name, LOADERS)}"
        )
    check_option_names(f"data set {name!r}", options, options_of(name))
    dataset = LOADERS[name](Place(data_folder(folder), download, progress), sources()[name], **options)
    return replace(dataset, loaded=Loaded({**where, **options}, dataset))


def options_of(name: str) -> tuple[str, ...]:
    """Return the names of the options of a built-in data set."""
    return tuple(inspect.signature(LOADERS[name]).parameters)[2:]


def _digits(place: Place, source: Source) -> Dataset:
    """Load the 1,797 digits of scikit-learn; the last 360 rows are the test set.

    scikit-learn's notes state that rows are grouped by writer. So most writers of the test set are not in the training
    set. Pixels are from 0 to 16. Mean 0 and standard deviation 16 / 255 normalize them to [0, 1].
    """
    with np.load(Path(__file__).with_name("digits.npz"), allow_pickle=False) as file:
        x, y = file["x"], file["y"]
    cut = len(y) - 360
    return from_arrays(x[:cut], y[:cut], x[cut:], y[cut:], **source.about, num_classes=10, mean=(0.0,), std=(16 / 255,))


def _breast_cancer(place: Place, source: Source) -> Dataset:
    """Load the 569 tumors of scikit-learn, in its order; every fifth row is the test set.

    Each column is normalized with the mean and standard deviation of the 456 training rows, which are stored in the
    file. So all seeds share them, as for image sets. The last 114 rows would not be a representative test set: 23% of
    them are malignant, and 41% of the others.
    """
    with np.load(Path(__file__).with_name("breast_cancer.npz"), allow_pickle=False) as file:
        x, y = ((file["x"] - file["mean"]) / file["std"]).astype(np.float32), file["y"]
    test = np.arange(len(y)) % 5 == 4
    return from_arrays(x[~test], y[~test], x[test], y[test], **source.about, num_classes=2)


def _diabetes(place: Place, source: Source) -> Dataset:
    """Load the 442 patients of scikit-learn, in its order; every fifth row is the test set.

    The target is the progression of the disease within a year, from 25 to 346. Each column is normalized with the mean
    and standard deviation of the 354 training rows. The data have no stated license, so FedReach reads them from
    scikit-learn and does not contain them.
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
