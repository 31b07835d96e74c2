"""A partition: which client holds which sample."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from fedreach.arrays import AnyArray, Ints
from fedreach.data.array_files import read_npz
from fedreach.data.partition.draws import check_table, checked_labels
from fedreach.errors import DataError

FORMAT = "fedreach-partition/1"  # of the file: an .npz with a JSON header


@dataclass(frozen=True, eq=False)
class Partition:
    """Each of n samples belongs to exactly one of N clients.

    Client k holds the samples order[offsets[k] : offsets[k + 1]]. Within a client the indices are kept in increasing
    order, whatever order they came in, so that one assignment has one representation and one digest. Where the data
    set is sorted by class, so is a client: shuffle before cutting off a held-out part.

    Raises:
        DataError: If the samples are not covered exactly once, or the parameters are not JSON.

    Example:
        >>> p = Partition.from_owner([1, 0, 1, 1], num_clients=3, kind="natural")
        >>> p.sizes, p[1], p.owner()
        (array([1, 3, 0]), array([0, 2, 3]), array([1, 0, 1, 1]))
        >>> p.label_counts([5, 0, 5, 1], num_classes=6)[1]
        array([0, 1, 0, 0, 0, 2])
    """

    order: Ints  # (n,) sample indices grouped by client, each of 0 .. n-1 once; copied, then read-only
    offsets: Ints  # (N + 1,) where each client begins; from 0 to n, never falling; copied, then read-only
    kind: str  # name of the partitioner, as in `PARTITIONS`
    parameters: Mapping[str, Any] = field(default_factory=dict)  # what it was called with and reports, as JSON

    def __post_init__(self) -> None:
        order, offsets = _whole("order", self.order), _whole("offsets", self.offsets)
        n = order.size
        if offsets.size < 2 or offsets[0] != 0 or offsets[-1] != n or (np.diff(offsets) < 0).any():
            raise DataError(
                f"offsets of a partition must run from 0 to its {n} samples without falling, one more than there are "
                f"clients; got {offsets.size} of them: {offsets[:3]} .. {offsets[-3:]}. Use Partition.from_owner."
            )
        outside = order[(order < 0) | (order >= n)]
        times = np.bincount(order[(order >= 0) & (order < n)], minlength=n)
        if outside.size or (times != 1).any():
            wrong = int(np.flatnonzero(times != 1)[0])
            raise DataError(
                f"order of a partition must hold each sample index from 0 to {n - 1} once; sample {wrong} occurs "
                f"{times[wrong]} times and {outside.size} indices lie outside. Partition all samples again."
            )
        clients = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
        order = order[np.lexsort((order, clients))]
        try:
            parameters = json.loads(json.dumps(dict(self.parameters), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise DataError(f"parameters of a partition must be plain JSON values; {error}.") from error
        for array in (order, offsets):
            array.setflags(write=False)
        for name, value in {"order": order, "offsets": offsets, "parameters": parameters}.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_owner(
        cls, owner: ArrayLike, num_clients: int, kind: str, parameters: Mapping[str, Any] | None = None
    ) -> Self:
        """Build a partition from the (n,) client of each sample, each from 0 to num_clients - 1."""
        clients = _whole("owner", owner)
        check_table(max(1, num_clients), 1)
        if num_clients < 1 or clients.min(initial=0) < 0 or clients.max(initial=0) >= num_clients:
            raise DataError(
                f"owner must name clients from 0 to {num_clients - 1}; got {clients.min(initial=0)} to "
                f"{clients.max(initial=0)}. Number the clients with numpy.unique(owner, return_inverse=True)."
            )
        sizes = np.bincount(clients, minlength=num_clients)
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        return cls(np.argsort(clients, kind="stable"), offsets, kind, parameters or {})

    @property
    def num_clients(self) -> int:
        """N, clients without samples included."""
        return self.offsets.size - 1

    @property
    def num_samples(self) -> int:
        """n."""
        return self.order.size

    @property
    def sizes(self) -> Ints:
        """(N,) number of samples of each client."""
        return np.diff(self.offsets)

    def __getitem__(self, client: int) -> Ints:
        """Return the sample indices of one client, increasing; a read-only view."""
        if not 0 <= client < self.num_clients:
            raise IndexError(f"client must be from 0 to {self.num_clients - 1} in this partition; got {client}.")
        return self.order[self.offsets[client] : self.offsets[client + 1]]

    def owner(self) -> Ints:
        """Return the (n,) client of each sample."""
        owner = np.empty_like(self.order)
        owner[self.order] = np.repeat(np.arange(self.num_clients), self.sizes)
        return owner

    def label_counts(self, labels: ArrayLike, num_classes: int) -> Ints:
        """Return the (N, C) table of how many samples of each class each client holds; without classes C is 0.

        Raises:
            DataError: If there is not one label per sample, or a label is not below `num_classes`.
        """
        if num_classes == 0:  # targets are numbers
            return np.zeros((self.num_clients, 0), np.int64)
        classes = checked_labels(labels)
        if classes.size != self.num_samples or classes.max() >= num_classes:
            raise DataError(
                f"labels must be one class below {num_classes} for each of the {self.num_samples} samples of this "
                f"partition; got {classes.size} labels up to {classes.max()}. Pass the labels it was made from."
            )
        check_table(self.num_clients, num_classes)
        cells = np.bincount(self.owner() * num_classes + classes, minlength=self.num_clients * num_classes)
        return cells.reshape(self.num_clients, num_classes)

    def digest(self) -> str:
        """Return the sha256 of who holds what, in hex.

        Equal exactly when the same clients hold the same samples; `kind` and `parameters` do not enter.
        """
        content = hashlib.sha256(b"fedreach partition")
        for array in (self.offsets, self.order):
            content.update(array.size.to_bytes(8, "little") + array.astype("<i8").tobytes())
        return content.hexdigest()

    def save(self, path: Path | str) -> None:
        """Write the partition to one compressed .npz file; the same partition gives the same bytes.

        Raises:
            DataError: If the file cannot be written. What stood there before is then unchanged.
        """
        header = {"kind": self.kind, "parameters": self.parameters, "digest": self.digest()}
        _write(Path(path), header, {"order": self.order, "offsets": self.offsets})

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read what `save` wrote, and check that it is whole.

        Raises:
            DataError: If the file is missing, damaged, altered, of another version, or not a partition.
        """
        header, arrays = _read(Path(path), ("order", "offsets"))
        partition = cls(arrays["order"], arrays["offsets"], str(header.get("kind")), header.get("parameters") or {})
        if header.get("digest") != partition.digest():
            raise DataError(f"{path}: the samples of this partition were altered after it was saved. Make it again.")
        return partition


def _whole(name: str, values: ArrayLike) -> Ints:
    array = np.asarray(values)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
        raise DataError(
            f"{name} of a partition must be a one-dimensional array of whole numbers, not empty; "
            f"got shape {array.shape}, dtype {array.dtype}. Use Partition.from_owner."
        )
    return array.astype(np.int64)


def _write(path: Path, header: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """Write beside `path` first and then rename, so that a half-written file is never taken for a whole one."""
    text = json.dumps({"format": FORMAT, **header}, sort_keys=True).encode()
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            np.savez_compressed(file, header=np.frombuffer(text, np.uint8), **arrays)
        part.replace(path)
    except OSError as error:
        raise DataError(f"{path}: the partition cannot be written ({error}). Choose another path.") from error
    finally:
        part.unlink(missing_ok=True)


def _read(path: Path, names: Sequence[str]) -> tuple[dict[str, Any], dict[str, AnyArray]]:
    """Return the header and the named arrays, or a DataError that says what is wrong with the file."""
    try:
        with path.open("rb") as file:
            stored = read_npz(file)
            header = json.loads(stored["header"].tobytes())
            found = header["format"]
            arrays = {name: stored[name] for name in names} if found == FORMAT else {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path}: not a readable partition ({error}). Make or copy it again.") from error
    if found != FORMAT:
        raise DataError(f"{path}: written as {found!r}, and this version reads {FORMAT!r}. Make the partition again.")
    return header, arrays
