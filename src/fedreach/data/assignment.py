"""Partition of examples among clients, and statistics of the clients' heterogeneity."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from fedreach._util.arrays import Floats, Ints
from fedreach._util.errors import ConfigError, DataError, nearest, regular
from fedreach.data.checks import read_npz

# ---- Arithmetic and random draws of partitions


def ordered_by(groups: Ints) -> Ints:
    """Return the indices that sort `groups`, in a stable order."""
    # NumPy sorts keys of up to 16 bits by radix sort, which is several times faster.
    return np.argsort(groups.astype(np.min_scalar_type(int(groups.max(initial=0)))), kind="stable")


def shuffled_by(groups: Ints, rng: np.random.Generator) -> Ints:
    """Return all indices, sorted by group and in random order within each group."""
    mixed = rng.permutation(groups.size)
    return mixed[ordered_by(groups[mixed])]


def rank_in_run(sizes: Ints) -> Ints:
    """Return the concatenation of 0, 1, ..., size - 1 for each size."""
    return np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def draw_from_each(groups: Ints, take: Ints, rng: np.random.Generator) -> Ints:
    """Draw take[g] members of each group g at random without replacement; return their indices.

    Example:
        >>> groups = np.array([0, 0, 1, 1, 1])
        >>> drawn = draw_from_each(groups, np.array([0, 2]), np.random.default_rng(0))
        >>> groups[drawn]
        array([1, 1])
    """
    sizes = np.bincount(groups, minlength=take.size)
    return shuffled_by(groups, rng)[rank_in_run(sizes) < np.repeat(take, sizes)]


def classes_of(labels: Ints) -> tuple[Ints, Ints]:
    """Number the classes that occur from 0; return the (n,) new class numbers and their (C,) numbers of examples.

    Classes without examples can be ignored. If a symmetric Dirichlet vector is renormalized over some of its entries,
    the result is again symmetric Dirichlet with the same alpha.
    """
    _, classes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    return classes.astype(np.int64), sizes.astype(np.int64)


def log_dirichlet(alpha: float, shape: tuple[int, int], rng: np.random.Generator) -> Floats:
    """Draw the logarithms of rows from Dir(alpha * 1), up to a constant per row.

    A Dirichlet vector is a vector of independent Gamma(alpha) draws divided by their sum. Gamma(alpha) has the
    distribution of Gamma(alpha + 1) * U**(1 / alpha) (Marsaglia and Tsang, 2000). The logarithm of this product is
    finite for every alpha. In contrast, a direct draw from Gamma(1e-6) underflows to 0.
    """
    return np.asarray(np.log(rng.standard_gamma(alpha + 1, shape)) - rng.standard_exponential(shape) / alpha)


def normalized_rows(logs: Floats) -> Floats:
    """Return the rows exp(logs) / sum(exp(logs)); the largest entry of a row does not underflow."""
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def deal(classes: Ints, counts: Ints, rng: np.random.Generator) -> Ints:
    """Assign counts[k, c] random examples of class c to client k, for (N, C) counts; return the (n,) owners."""
    num_clients, num_classes = counts.shape
    owner = np.empty(classes.size, dtype=np.int64)
    owner[shuffled_by(classes, rng)] = np.repeat(np.tile(np.arange(num_clients), num_classes), counts.T.ravel())
    return owner


def top_up(owner: Ints, num_clients: int, min_size: int, rng: np.random.Generator) -> tuple[Ints, int]:
    """Move examples from the largest clients to clients below `min_size`; return owners and number of moved examples.

    The largest clients lose random examples until they have equal sizes. These examples are assigned at random to the
    clients below `min_size`. All other clients keep their examples.
    """
    sizes = np.bincount(owner, minlength=num_clients)
    gain = raised_sizes(sizes, min_size) - sizes
    if not gain.any():
        return owner, 0
    moved = rng.permutation(draw_from_each(owner, np.maximum(-gain, 0), rng))
    owner = owner.copy()
    owner[moved] = np.repeat(np.arange(num_clients), np.maximum(gain, 0))
    return owner, int(moved.size)


def rounded_sizes(raw: Floats, total: int) -> Ints:
    """Round the (N,) shares raw_k / sum(raw) * total to whole numbers with the sum `total`.

    This is the largest remainder method. It rounds all shares down and adds one unit to the shares with the largest
    fractions (ties: lowest index). So each size differs from its share by less than 1. FedDyn's code instead adds all
    remaining units, about N / 2, to client 0.

    Example:
        >>> rounded_sizes(np.array([1.0, 1.0, 1.0]), 11)
        array([4, 4, 3])
    """
    shares = raw / raw.sum() * total
    sizes: Ints = np.floor(shares).astype(np.int64)
    sizes[np.argsort(sizes - shares, kind="stable")[: total - sizes.sum()]] += 1
    return sizes


def filled_evenly(capacities: Ints, total: int) -> Ints:
    """Distribute `total` units over (N,) capacities as evenly as possible; the capacities must sum to at least `total`.

    Entry k is x_k = min(capacity_k, L), where L is the largest possible whole number. The remaining units are added to
    the largest capacities, one to each (ties: lowest index).

    Example:
        >>> filled_evenly(np.array([2, 9, 5, 7]), 16)
        array([2, 5, 4, 5])
    """
    ascending = np.sort(capacities)
    below = np.cumsum(ascending) - ascending  # sum of the smaller capacities
    num_larger = np.arange(capacities.size, 0, -1)  # number of capacities at least as large
    full = int(np.count_nonzero(below + ascending * num_larger <= total))
    if full == capacities.size:
        return capacities.copy()
    level, surplus = divmod(int(total - below[full]), int(num_larger[full]))
    filled = np.minimum(capacities, level)
    filled[np.argsort(-capacities, kind="stable")[:surplus]] += 1
    return filled


def raised_sizes(sizes: Ints, min_size: int) -> Ints:
    """Raise each size to `min_size`, and lower the largest sizes to a common level to keep the sum.

    The sum of the (N,) sizes must be at least N * min_size.

    Example:
        >>> raised_sizes(np.array([0, 9, 3, 8, 1]), 2)
        array([2, 7, 3, 7, 2])
    """
    owed = np.maximum(min_size - sizes, 0).sum()
    # The level never falls below min_size: lowering all sizes to it frees sum - (N min_size - owed) >= owed.
    return np.maximum(filled_evenly(sizes, int(sizes.sum() - owed)), min_size)


ALPHA_RANGE = (1e-100, 1e100)  # outside, the Dirichlet draws overflow or underflow


MAX_TABLE = 3 * 10**8  # numbers of 8 bytes


def check_table(num_clients: int, num_classes: int) -> None:
    """Raise DataError if a table of clients x classes would be too large, for example because labels are ids."""
    if num_clients * num_classes > MAX_TABLE:
        raise DataError(
            f"The number of clients times the number of classes must be at most {MAX_TABLE}; got {num_clients} * "
            f"{num_classes}. Use fewer clients, or number the classes from 0 without gaps, for example with "
            "np.unique(y, return_inverse=True)."
        )


def checked_labels(labels: ArrayLike) -> Ints:
    """Return class labels as an (n,) int64 array; raise DataError if labels are missing or below 0."""
    array = np.asarray(labels)
    if (array.dtype.kind == "f" and array.size) or (array.ndim > 1 and array.dtype.kind in "iu"):
        form = "numbers" if array.dtype.kind == "f" else "one label per position"
        raise DataError(
            f"labels must be one class per example; got {form}. Use the partition 'iid' or 'natural', or your own."
        )
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
        raise DataError(
            f"labels must be a one-dimensional array of whole numbers; got shape {array.shape}, dtype {array.dtype}."
        )
    if array.min() < 0:
        raise DataError(f"labels must be at least 0; got {array.min()}. Number the classes from 0.")
    return array.astype(np.int64)


def checked_count(name: str, value: Any, low: int) -> int:
    """Return `value` as an int; raise ConfigError unless it is a whole number of at least `low`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < low:
        raise ConfigError(f"{name} must be a whole number, at least {low}; got {value!r}.")
    return int(value)


def checked_number(name: str, value: Any, low: float, high: float) -> float:
    """Return `value` as a float; raise ConfigError unless it is a number in [low, high]."""
    if (
        isinstance(value, bool) or not isinstance(value, Real) or not low <= float(value) <= high
    ):  # false for nan as well
        raise ConfigError(f"{name} must be a number from {low:g} to {high:g}; got {value!r}.")
    return float(value)


def check_generator(rng: Any) -> None:
    """Raise ConfigError if `rng` is not a NumPy generator, for example if it is a seed."""
    if not isinstance(rng, np.random.Generator):
        raise ConfigError(f"rng must be a numpy Generator; got {type(rng).__name__}. Use np.random.default_rng(seed).")


def checked_arguments(labels: ArrayLike, num_clients: Any, rng: Any, *, any_targets: bool = False) -> tuple[Ints, int]:
    """Check the arguments of a partition; return the (n,) labels and the number of clients.

    With `any_targets`, targets can also be numbers or one label per position. The returned labels are then zeros.
    """
    check_generator(rng)
    targets = np.asarray(labels)
    numbers = targets.dtype.kind == "f" and targets.ndim in (1, 2)
    uncounted = any_targets and len(targets) and (numbers or (targets.dtype.kind in "iu" and targets[:1].size > 1))
    classes = np.zeros(len(targets), np.int64) if uncounted else checked_labels(labels)
    clients = checked_count("num_clients", num_clients, 1)
    check_table(clients, 1)  # the offsets of the clients
    return classes, clients


def check_enough(num_samples: int, num_clients: int, min_size: int) -> None:
    """Raise DataError if there are fewer than `num_clients` * `min_size` examples."""
    if num_samples < num_clients * min_size:
        raise DataError(
            f"{num_clients} clients with min_size = {min_size} require {num_clients * min_size} examples; got "
            f"{num_samples}. Use fewer clients, or a lower min_size if the partition has this option."
        )


# ---- The partition and its file

FORMAT = "fedreach-partition/1"  # format of the file, an .npz with a JSON header


@dataclass(frozen=True, eq=False)
class Partition:
    """Partition of n examples into N clients; each example belongs to exactly one client.

    Client k holds the examples order[offsets[k] : offsets[k + 1]], sorted by index. Therefore equal partitions have
    equal digests. If the data set is sorted by class, shuffle a client's examples before you hold out some of them.

    Raises:
        DataError: If an example is missing or assigned twice, or if `parameters` are not JSON values.

    Example:
        >>> p = Partition.from_owner([1, 0, 1, 1], num_clients=3, kind="natural")
        >>> p.sizes, p[1], p.owner()
        (array([1, 3, 0]), array([0, 2, 3]), array([1, 0, 1, 1]))
        >>> p.label_counts([5, 0, 5, 1], num_classes=6)[1]
        array([0, 1, 0, 0, 0, 2])
    """

    order: Ints  # (n,) example indices grouped by client, each from 0 to n - 1 once; read-only copy
    offsets: Ints  # (N + 1,) start of each client in `order`, from 0 to n, non-decreasing; read-only copy
    kind: str  # name of the kind, as in `PARTITIONS`
    parameters: Mapping[str, Any] = field(default_factory=dict)  # options and information of the kind, as JSON values

    def __post_init__(self) -> None:
        order, offsets = _whole_numbers("order", self.order), _whole_numbers("offsets", self.offsets)
        n = order.size
        if offsets.size < 2 or offsets[0] != 0 or offsets[-1] != n or (np.diff(offsets) < 0).any():
            raise DataError(
                f"offsets of a partition must be non-decreasing from 0 to {n}, one more than the number of clients; "
                f"got {offsets.size} offsets: {offsets[:3]} .. {offsets[-3:]}. Use Partition.from_owner."
            )
        ranked = np.sort(order)
        if (wrong := np.flatnonzero(ranked != np.arange(n))).size:
            raise DataError(
                f"order of a partition must contain each example index from 0 to {n - 1} once; got "
                f"{ranked[wrong[0]]} instead of {wrong[0]}. Use Partition.from_owner."
            )
        clients = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
        order = order[np.lexsort((order, clients))]
        try:
            parameters = json.loads(json.dumps(dict(self.parameters), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise DataError(f"parameters of a partition must be JSON values; got: {error}.") from error
        for array in (order, offsets):
            array.setflags(write=False)
        for name, value in {"order": order, "offsets": offsets, "parameters": parameters}.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_owner(
        cls, owner: ArrayLike, num_clients: int, kind: str, parameters: Mapping[str, Any] | None = None
    ) -> Self:
        """Build a partition from the (n,) clients of the examples, numbered from 0 to num_clients - 1."""
        clients = _whole_numbers("owner", owner)
        check_table(max(1, num_clients), 1)
        if num_clients < 1 or clients.min(initial=0) < 0 or clients.max(initial=0) >= num_clients:
            raise DataError(
                f"owner must contain clients from 0 to {num_clients - 1}; got {clients.min(initial=0)} to "
                f"{clients.max(initial=0)}. Number the clients with numpy.unique(owner, return_inverse=True)."
            )
        sizes = np.bincount(clients, minlength=num_clients)
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        return cls(np.argsort(clients, kind="stable"), offsets, kind, parameters or {})

    @property
    def num_clients(self) -> int:
        """Number of clients N, including clients without examples."""
        return self.offsets.size - 1

    @property
    def num_samples(self) -> int:
        """Number of examples n."""
        return self.order.size

    @property
    def sizes(self) -> Ints:
        """(N,) number of examples of each client."""
        return np.diff(self.offsets)

    def __getitem__(self, client: int) -> Ints:
        """Return the sorted example indices of a client, read-only."""
        if not 0 <= client < self.num_clients:
            raise IndexError(f"client must be from 0 to {self.num_clients - 1}; got {client}.")
        return self.order[self.offsets[client] : self.offsets[client + 1]]

    def owner(self) -> Ints:
        """Return the (n,) client of each example."""
        owner = np.empty_like(self.order)
        owner[self.order] = np.repeat(np.arange(self.num_clients), self.sizes)
        return owner

    def label_counts(self, labels: ArrayLike, num_classes: int) -> Ints:
        """Return the (N, C) number of examples per client and class. C is 0 if targets are numbers.

        Raises:
            DataError: If the number of labels is not n, or a label is not below `num_classes`.
        """
        if num_classes == 0:
            return np.zeros((self.num_clients, 0), np.int64)
        classes = checked_labels(labels)
        if classes.size != self.num_samples or classes.max() >= num_classes:
            raise DataError(
                f"labels must be {self.num_samples} classes below {num_classes}, one per example of the partition; got "
                f"{classes.size} labels up to {classes.max()}. Pass the labels of the partitioned data set."
            )
        check_table(self.num_clients, num_classes)
        cells = np.bincount(self.owner() * num_classes + classes, minlength=self.num_clients * num_classes)
        return cells.reshape(self.num_clients, num_classes)

    def digest(self) -> str:
        """Return the sha256 of the partition, in hex.

        Two partitions have the same digest if the same clients hold the same examples.
        """
        content = hashlib.sha256(b"fedreach partition")
        for array in (self.offsets, self.order):
            content.update(array.size.to_bytes(8, "little") + array.astype("<i8").tobytes())
        return content.hexdigest()

    def save(self, path: Path | str) -> None:
        """Write the partition to a compressed .npz file. Equal partitions give equal files.

        Raises:
            DataError: If the file cannot be written. An existing file then remains unchanged.
        """
        header = {"format": FORMAT, "kind": self.kind, "parameters": self.parameters, "digest": self.digest()}
        text = json.dumps(header, sort_keys=True).encode()
        path = Path(path)
        if path.name in ("", "..") or path.is_dir():
            raise DataError(f"{path} is a folder; a partition is a file. Choose another path.")
        part = path.with_name(f".{path.name}.{os.getpid()}.part")  # renamed once complete
        try:
            with part.open("wb") as file:
                np.savez_compressed(file, header=np.frombuffer(text, np.uint8), order=self.order, offsets=self.offsets)
            part.replace(path)
        except OSError as error:
            raise DataError(f"{path}: cannot write the partition ({error}). Choose another path.") from error
        finally:
            part.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read and check a partition that `save` wrote.

        Raises:
            DataError: If the file is missing, damaged, modified or not a partition, or has another version.
        """
        try:
            with regular(Path(path)).open("rb") as file:
                stored = read_npz(file)
            header = json.loads(stored["header"].tobytes())
            if header["format"] != FORMAT:
                raise ValueError(f"format must be {FORMAT!r}; got {header['format']!r}")
            order, offsets = stored["order"], stored["offsets"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(f"{path}: must be a partition file ({error}). Create or copy it again.") from error
        partition = cls(order, offsets, str(header.get("kind")), header.get("parameters") or {})
        if header.get("digest") != partition.digest():
            raise DataError(f"{path}: the partition was modified after it was saved. Create it again.")
        return partition


def _whole_numbers(name: str, values: ArrayLike) -> Ints:
    array = np.asarray(values)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
        raise DataError(
            f"{name} of a partition must be a non-empty, one-dimensional array of whole numbers; got {array.dtype} "
            f"{array.shape}."
        )
    return array.astype(np.int64)


# ---- Empty clients

EMPTY = ("error", "drop")


def without_empty(partition: Partition, empty: str) -> Partition:
    """Remove the clients without examples, or raise an error if there are any.

    Args:
        partition: Partition that may have clients without examples.
        empty: ``"error"`` raises an error that lists the empty clients. ``"drop"`` removes them and numbers the other
            clients from 0.

    Raises:
        DataError: If a client is empty and `empty` is ``"error"``.
        ConfigError: If `empty` is unknown.

    Example:
        >>> three = Partition.from_owner([0, 2, 2], num_clients=3, kind="natural")
        >>> without_empty(three, "drop").sizes
        array([1, 2])
    """
    if empty not in EMPTY:
        raise ConfigError(f"Unknown value of partition.empty: {empty!r}.{nearest(str(empty), EMPTY)}")
    gone = np.flatnonzero(partition.sizes == 0)
    if not gone.size:
        return partition
    if empty == "error":
        more = f" and {gone.size - 10} more" if gone.size > 10 else ""
        raise DataError(
            f"partition.empty is 'error', but {gone.size} of {partition.num_clients} clients have no examples: "
            f"{', '.join(map(str, gone[:10]))}{more}. Use 'drop' or fewer clients."
        )
    offsets = np.delete(partition.offsets, gone)
    return Partition(partition.order, offsets, partition.kind, {**partition.parameters, "empty": empty})


# ---- Statistics: sizes and label skew


@dataclass(frozen=True, eq=False)
class PartitionStatistics:
    """Statistics of each client, nan for clients without examples.

    p_k is the label distribution of client k, and p is the label distribution of all examples. The entropy is H(p_k) =
    -sum_c p_kc ln p_kc. The divergence is KL(p_k || p) = sum_c p_kc ln(p_kc / p_c). The number of effective classes is
    exp(H(p_k)), because this number of equally frequent classes has the same entropy. The earth mover's distance is
    sum_c |p_kc - p_c|, as in Zhao et al., arXiv 1806.00582, section 3: twice the share of examples to relabel.
    """

    sizes: Ints  # (N,) number of examples
    entropy_nats: Floats  # (N,) entropy of the label distribution, from 0 to ln C
    divergence_nats: Floats  # (N,) divergence from the label distribution of all examples, at least 0, finite
    effective_classes: Floats  # (N,) number of effective classes, from 1 to C
    earth_movers_distance: Floats  # (N,) from the label distribution of all examples, from 0 to 2

    def summary(self) -> dict[str, Any]:
        """Return counts, and the minimum, median, mean and maximum of each statistic, as JSON values.

        Sizes include all clients. The other statistics exclude clients without examples.
        """
        is_empty = self.sizes == 0
        counts = {"num_clients": self.sizes.size, "num_samples": self.sizes.sum(), "num_empty": is_empty.sum()}
        names = ("entropy_nats", "divergence_nats", "effective_classes", "earth_movers_distance")
        values = {"size": self.sizes, **{name: getattr(self, name)[~is_empty] for name in names}}
        measures: dict[str, Callable[..., Any]] = {"min": np.min, "median": np.median, "mean": np.mean, "max": np.max}
        return {key: int(count) for key, count in counts.items()} | {
            name: {key: float(measure(array)) for key, measure in measures.items()} for name, array in values.items()
        }


def statistics(partition: Partition, labels: ArrayLike, num_classes: int) -> PartitionStatistics:
    """Compute the statistics of N clients from the (n,) classes of the examples.

    Raises:
        DataError: If the number of labels is not n, or a label is not below `num_classes`.

    Example:
        >>> p = Partition.from_owner([0, 0, 1, 1], num_clients=2, kind="natural")
        >>> s = statistics(p, [0, 1, 1, 1], num_classes=2)
        >>> s.effective_classes, s.divergence_nats.round(4)    # 2nd divergence: ln(1 / 0.75)
        (array([2., 1.]), array([0.1438, 0.2877]))
    """
    counts = partition.label_counts(labels, num_classes)
    entropy = label_entropy(counts)
    sizes, pooled = counts.sum(axis=1), counts.sum(axis=0) / counts.sum()
    mix = counts / np.maximum(sizes, 1)[:, None]
    # ln 1 replaces ln 0, as p ln p is 0 for p = 0
    log_mix = np.log(np.where(mix > 0, mix, 1))
    log_whole = np.log(np.where(pooled > 0, pooled, 1))
    has_samples = sizes > 0
    divergence = np.where(has_samples, np.maximum((mix * (log_mix - log_whole)).sum(axis=1), 0), np.nan)
    distance = np.where(has_samples, np.abs(mix - pooled).sum(axis=1), np.nan)
    return PartitionStatistics(sizes, entropy, divergence, np.exp(entropy), distance)


def label_entropy(counts: Ints | Floats) -> Floats:
    """Return the entropy -sum_c p_ic ln p_ic in nats for each row of (N, C) label counts, or nan for a row of zeros.

    Rows can also be distributions with the sum 1. The term 0 ln 0 counts as 0.

    Example:
        >>> label_entropy(np.array([[10, 0, 0, 0], [5, 5, 0, 0], [1, 2, 3, 4], [25, 25, 25, 25]])).round(4)
        array([0.    , 0.6931, 1.2799, 1.3863])
    """
    sizes = counts.sum(axis=1)
    mix = counts / np.where(sizes > 0, sizes, 1)[:, None]
    entropy = -(mix * np.log(np.where(mix > 0, mix, 1))).sum(axis=1)
    return np.where(sizes > 0, np.maximum(entropy, 0), np.nan)
