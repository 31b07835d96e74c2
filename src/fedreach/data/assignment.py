"""A partition as an assignment of examples to clients, and its statistics."""

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
from fedreach._util.errors import ConfigError, DataError, nearest
from fedreach.data.checks import read_npz

# ---- Shared by the partitions: checks of arguments, exact arithmetic, and random steps


def ordered_by(groups: Ints) -> Ints:
    """Return the stable order that sorts `groups`."""
    # NumPy sorts keys of up to 16 bits by radix, several times faster than wider keys.
    return np.argsort(groups.astype(np.min_scalar_type(int(groups.max(initial=0)))), kind="stable")


def shuffled_by(groups: Ints, rng: np.random.Generator) -> Ints:
    """Return all indices, group after group, in random order within each group."""
    mixed = rng.permutation(groups.size)
    return mixed[ordered_by(groups[mixed])]


def rank_in_run(sizes: Ints) -> Ints:
    """Return 0, 1, ..., size - 1 for each run of these sizes, concatenated."""
    return np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def draw_from_each(groups: Ints, take: Ints, rng: np.random.Generator) -> Ints:
    """Draw take[g] members of each group g at random without replacement, and return their indices.

    Example:
        >>> groups = np.array([0, 0, 1, 1, 1])
        >>> drawn = draw_from_each(groups, np.array([0, 2]), np.random.default_rng(0))
        >>> groups[drawn]
        array([1, 1])
    """
    sizes = np.bincount(groups, minlength=take.size)
    return shuffled_by(groups, rng)[rank_in_run(sizes) < np.repeat(take, sizes)]


def classes_of(labels: Ints) -> tuple[Ints, Ints]:
    """Return (n,) indices, from 0, of the classes that occur, and their (C,) positive sizes.

    A class without examples needs no share: a symmetric Dirichlet vector, renormalized over some of its entries, is
    again symmetric Dirichlet with the same alpha.
    """
    _, classes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    return classes.astype(np.int64), sizes.astype(np.int64)


def log_dirichlet(alpha: float, shape: tuple[int, int], rng: np.random.Generator) -> Floats:
    """Draw rows ~ Dir(alpha * 1) as logarithms, up to a constant per row.

    Dir(alpha) is a row of independent Gamma(alpha) draws over their sum, and Gamma(alpha) is distributed as
    Gamma(alpha + 1) * U**(1 / alpha) (Marsaglia and Tsang 2000). Its logarithm, log G(alpha + 1) - E / alpha with
    E ~ Exp(1), is finite for every alpha, whereas a draw of Gamma(1e-6) underflows to 0.
    """
    return np.asarray(np.log(rng.standard_gamma(alpha + 1, shape)) - rng.standard_exponential(shape) / alpha)


def normalized_rows(logs: Floats) -> Floats:
    """Return the rows exp(logs) / sum(exp(logs)); the largest entry never underflows."""
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def deal(classes: Ints, counts: Ints, rng: np.random.Generator) -> Ints:
    """Deal counts[k, c] random examples of class c to client k, for (N, C) counts; return the (n,) owners."""
    num_clients, num_classes = counts.shape
    owner = np.empty(classes.size, dtype=np.int64)
    owner[shuffled_by(classes, rng)] = np.repeat(np.tile(np.arange(num_clients), num_classes), counts.T.ravel())
    return owner


def top_up(owner: Ints, num_clients: int, min_size: int, rng: np.random.Generator) -> tuple[Ints, int]:
    """Move examples from the largest clients to those below `min_size`; return the owners and the number moved.

    One pass is always enough (`raised_sizes`). The largest clients give random examples until they reach a common
    size, and these examples are dealt at random to the clients below `min_size`. Other clients keep their examples.
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
    """Round the (N,) shares raw_k / sum(raw) * total, raw_k >= 0, to whole numbers that add up to `total`.

    Uses largest remainders: every share is rounded down, and the largest fractional parts get one of the remaining
    examples each (ties: lowest index first). So each size is within 1 of its share. FedDyn's code gives the remaining
    examples, about N/2, to client 0: with 10,000 clients of 100 examples, client 0 would hold 50 times as many.

    Example:
        >>> rounded_sizes(np.array([1.0, 1.0, 1.0]), 11)
        array([4, 4, 3])
    """
    shares = raw / raw.sum() * total
    sizes: Ints = np.floor(shares).astype(np.int64)
    sizes[np.argsort(sizes - shares, kind="stable")[: total - sizes.sum()]] += 1
    return sizes


def filled_evenly(capacities: Ints, total: int) -> Ints:
    """Distribute `total` units over (N,) capacities as evenly as these allow; they must hold at least `total`.

    x_k = min(capacity_k, L) with the largest whole level L that `total` reaches; each remaining unit raises one of the
    largest entries by 1 (ties: lowest index first).

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
    """Raise every size to `min_size`, and lower the largest sizes to one common level in exchange.

    The (N,) sizes must sum to N * min_size or more.

    Example:
        >>> raised_sizes(np.array([0, 9, 3, 8, 1]), 2)
        array([2, 7, 3, 7, 2])
    """
    owed = np.maximum(min_size - sizes, 0).sum()
    # The level never falls below min_size: lowering all sizes to it frees sum - (N min_size - owed) >= owed.
    return np.maximum(filled_evenly(sizes, int(sizes.sum() - owed)), min_size)


ALPHA_RANGE = (1e-100, 1e100)  # outside, exp() and log() of the Dirichlet draws leave the floating-point range


MAX_TABLE = 3 * 10**8  # numbers, 8 bytes each


def check_table(num_clients: int, num_classes: int) -> None:
    """Raise DataError for an implausibly large table of clients x classes, as of labels that are really ids."""
    if num_clients * num_classes > MAX_TABLE:
        raise DataError(
            f"A table of {num_clients} clients x {num_classes} classes must have at most {MAX_TABLE} numbers. Lower "
            "the number of clients, or number the classes from 0 without gaps, as "
            "np.unique(y, return_inverse=True) does."
        )


def checked_labels(labels: ArrayLike) -> Ints:
    """Return class labels as an (n,) int64 array; there must be at least one, and none may be negative."""
    array = np.asarray(labels)
    if (array.dtype.kind == "f" and array.size) or (array.ndim > 1 and array.dtype.kind in "iu"):
        what = "are numbers to predict" if array.dtype.kind == "f" else "stand at every position"
        raise DataError(
            f"labels must be one class a sample; these {what}. Use the partition 'iid', 'natural' or your own."
        )
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
        raise DataError(
            f"labels must be a one-dimensional array of whole numbers; got shape {array.shape}, dtype {array.dtype}."
        )
    if array.min() < 0:
        raise DataError(f"labels must not be negative; got {array.min()}. Number the classes from 0.")
    return array.astype(np.int64)


def checked_count(name: str, value: Any, low: int) -> int:
    """Return `value` as an int that is at least `low`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < low:
        raise ConfigError(f"{name} must be a whole number, at least {low}; got {value!r}.")
    return int(value)


def checked_number(name: str, value: Any, low: float, high: float) -> float:
    """Return `value` as a finite float in [low, high]."""
    if (
        isinstance(value, bool) or not isinstance(value, Real) or not low <= float(value) <= high
    ):  # false for nan as well
        raise ConfigError(f"{name} must be a number from {low:g} to {high:g}; got {value!r}.")
    return float(value)


def check_generator(rng: Any) -> None:
    """Raise ConfigError for a seed or a global module: the caller owns the random stream."""
    if not isinstance(rng, np.random.Generator):
        raise ConfigError(f"rng must be a numpy Generator; got {type(rng).__name__}. Use np.random.default_rng(seed).")


def checked_arguments(labels: ArrayLike, num_clients: Any, rng: Any, *, any_targets: bool = False) -> tuple[Ints, int]:
    """Check the arguments of a partition, and return the (n,) labels and the number of clients.

    With `any_targets`, labels may be numbers or have one entry per position: then the result is n zeros.
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
    """Raise DataError if the clients cannot all hold `min_size` examples."""
    if num_samples < num_clients * min_size:
        raise DataError(
            f"{num_clients} clients with at least min_size = {min_size} samples need {num_clients * min_size} samples; "
            f"there are {num_samples}. Lower the number of clients, or min_size where the partition has that option."
        )


# ---- A partition: which client holds which example

FORMAT = "fedreach-partition/1"  # of the file: an .npz with a JSON header


@dataclass(frozen=True, eq=False)
class Partition:
    """An assignment of each of n examples to exactly one of N clients.

    Client k holds the examples order[offsets[k] : offsets[k + 1]]. Within a client, the indices are sorted, so that
    equal assignments have equal digests. If the data set is sorted by class, so is each client: shuffle before you
    cut off a held-out part.

    Raises:
        DataError: If an example is missing or assigned twice, or the parameters are not JSON.

    Example:
        >>> p = Partition.from_owner([1, 0, 1, 1], num_clients=3, kind="natural")
        >>> p.sizes, p[1], p.owner()
        (array([1, 3, 0]), array([0, 2, 3]), array([1, 0, 1, 1]))
        >>> p.label_counts([5, 0, 5, 1], num_classes=6)[1]
        array([0, 1, 0, 0, 0, 2])
    """

    order: Ints  # (n,) example indices grouped by client, each of 0 .. n-1 once; copied, then read-only
    offsets: Ints  # (N + 1,) start of each client, from 0 to n, never falling; copied, then read-only
    kind: str  # name of the partitioner, as in `PARTITIONS`
    parameters: Mapping[str, Any] = field(default_factory=dict)  # its arguments and what it reports, as JSON

    def __post_init__(self) -> None:
        order, offsets = _whole_numbers("order", self.order), _whole_numbers("offsets", self.offsets)
        n = order.size
        if offsets.size < 2 or offsets[0] != 0 or offsets[-1] != n or (np.diff(offsets) < 0).any():
            raise DataError(
                f"offsets of a partition must run from 0 to its {n} samples without falling, one more than there are "
                f"clients; got {offsets.size} of them: {offsets[:3]} .. {offsets[-3:]}. Use Partition.from_owner."
            )
        ranked = np.sort(order)
        if (wrong := np.flatnonzero(ranked != np.arange(n))).size:
            raise DataError(
                f"order of a partition must hold each sample index from 0 to {n - 1} once; got "
                f"{ranked[wrong[0]]} instead of {wrong[0]}. Partition all samples again."
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
        """Build a partition from the (n,) client of each example, from 0 to num_clients - 1."""
        clients = _whole_numbers("owner", owner)
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
        """N, including clients without examples."""
        return self.offsets.size - 1

    @property
    def num_samples(self) -> int:
        """n."""
        return self.order.size

    @property
    def sizes(self) -> Ints:
        """(N,) number of examples of each client."""
        return np.diff(self.offsets)

    def __getitem__(self, client: int) -> Ints:
        """Return the sorted example indices of one client, as a read-only view."""
        if not 0 <= client < self.num_clients:
            raise IndexError(f"client must be from 0 to {self.num_clients - 1} in this partition; got {client}.")
        return self.order[self.offsets[client] : self.offsets[client + 1]]

    def owner(self) -> Ints:
        """Return the (n,) client of each example."""
        owner = np.empty_like(self.order)
        owner[self.order] = np.repeat(np.arange(self.num_clients), self.sizes)
        return owner

    def label_counts(self, labels: ArrayLike, num_classes: int) -> Ints:
        """Return the (N, C) number of examples by client and class; C is 0 if there are no classes.

        Raises:
            DataError: If the number of labels is not n, or a label is not below `num_classes`.
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
        """Return the sha256 of the assignment, in hex.

        Two digests are equal if the same clients hold the same examples; `kind` and `parameters` do not count.
        """
        content = hashlib.sha256(b"fedreach partition")
        for array in (self.offsets, self.order):
            content.update(array.size.to_bytes(8, "little") + array.astype("<i8").tobytes())
        return content.hexdigest()

    def save(self, path: Path | str) -> None:
        """Write the partition to a compressed .npz file; equal partitions give equal bytes.

        Raises:
            DataError: If the file cannot be written; an existing file is then unchanged.
        """
        header = {"format": FORMAT, "kind": self.kind, "parameters": self.parameters, "digest": self.digest()}
        text = json.dumps(header, sort_keys=True).encode()
        path = Path(path)
        part = path.with_name(f".{path.name}.{os.getpid()}.part")  # renamed, so that a half-written file is never read
        try:
            with part.open("wb") as file:
                np.savez_compressed(file, header=np.frombuffer(text, np.uint8), order=self.order, offsets=self.offsets)
            part.replace(path)
        except OSError as error:
            raise DataError(f"{path}: the partition cannot be written ({error}). Choose another path.") from error
        finally:
            part.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a partition that `save` wrote, and check that it is complete.

        Raises:
            DataError: If the file is missing, damaged, changed, of another version, or not a partition.
        """
        try:
            with Path(path).open("rb") as file:
                stored = read_npz(file)
            header = json.loads(stored["header"].tobytes())
            if header["format"] != FORMAT:
                raise ValueError(f"written as {header['format']!r}, and this version reads {FORMAT!r}")
            order, offsets = stored["order"], stored["offsets"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(f"{path}: not a readable partition ({error}). Make or copy it again.") from error
        partition = cls(order, offsets, str(header.get("kind")), header.get("parameters") or {})
        if header.get("digest") != partition.digest():
            raise DataError(f"{path}: the samples of this partition were altered after it was saved. Make it again.")
        return partition


def _whole_numbers(name: str, values: ArrayLike) -> Ints:
    array = np.asarray(values)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
        raise DataError(
            f"{name} of a partition must be whole numbers, one-dimensional, not empty; got {array.dtype} {array.shape}."
        )
    return array.astype(np.int64)


# ---- Clients without examples: raise an error, or drop them

EMPTY = ("error", "drop")


def without_empty(partition: Partition, empty: str) -> Partition:
    """Return the partition without clients that hold no examples; the others are numbered from 0 without gaps.

    Args:
        partition: Partition, perhaps with empty clients.
        empty: ``"error"`` to raise an error with their ids, or ``"drop"`` to leave them out.

    Raises:
        DataError: With ``"error"``, if a client is empty.
        ConfigError: If `empty` is unknown.

    Example:
        >>> three = Partition.from_owner([0, 2, 2], num_clients=3, kind="natural")
        >>> without_empty(three, "drop").sizes
        array([1, 2])
    """
    if empty not in EMPTY:
        raise ConfigError(f"partition.empty is unknown: {empty!r}.{nearest(str(empty), EMPTY)}")
    gone = np.flatnonzero(partition.sizes == 0)
    if not gone.size:
        return partition
    if empty == "error":
        more = f" and {gone.size - 10} more" if gone.size > 10 else ""
        raise DataError(
            f"partition.empty = 'error': {gone.size} of {partition.num_clients} clients hold no samples: clients "
            f"{', '.join(map(str, gone[:10]))}{more}. Choose 'drop', or partition into fewer clients."
        )
    offsets = np.delete(partition.offsets, gone)
    return Partition(partition.order, offsets, partition.kind, {**partition.parameters, "empty": empty})


# ---- Skew of a partition: sizes, label entropy, divergence from the whole, effective classes


@dataclass(frozen=True, eq=False)
class PartitionStatistics:
    """Statistics with one number per client; nan for a client without examples.

    With p_k the label distribution of client k and p that of all examples together:
    entropy H(p_k) = -sum_c p_kc ln p_kc, divergence KL(p_k || p) = sum_c p_kc ln(p_kc / p_c), effective classes
    exp(H(p_k)): the number of equally frequent classes with the same entropy.
    """

    sizes: Ints  # (N,)
    entropy_nats: Floats  # (N,) from 0 to ln C
    divergence_nats: Floats  # (N,) 0 for the label distribution of the whole; always finite
    effective_classes: Floats  # (N,) from 1 to C

    def summary(self) -> dict[str, Any]:
        """Return counts, and the min, median, mean and max of each statistic, as plain JSON values.

        Sizes include all clients; the other statistics leave out clients without examples.
        """
        is_empty = self.sizes == 0
        counts = {"num_clients": self.sizes.size, "num_samples": self.sizes.sum(), "num_empty": is_empty.sum()}
        names = ("entropy_nats", "divergence_nats", "effective_classes")
        values = {"size": self.sizes, **{name: getattr(self, name)[~is_empty] for name in names}}
        measures: dict[str, Callable[..., Any]] = {"min": np.min, "median": np.median, "mean": np.mean, "max": np.max}
        return {key: int(count) for key, count in counts.items()} | {
            name: {key: float(measure(array)) for key, measure in measures.items()} for name, array in values.items()
        }


def statistics(partition: Partition, labels: ArrayLike, num_classes: int) -> PartitionStatistics:
    """Return the skew of each of N clients, from the (n,) classes of the examples, below `num_classes`.

    Raises:
        DataError: If the labels do not fit the partition.

    Example:
        >>> p = Partition.from_owner([0, 0, 1, 1], num_clients=2, kind="natural")
        >>> s = statistics(p, [0, 1, 1, 1], num_classes=2)
        >>> s.effective_classes, s.divergence_nats.round(4)    # 2nd: ln(1 / 0.75)
        (array([2., 1.]), array([0.1438, 0.2877]))
    """
    counts = partition.label_counts(labels, num_classes)
    entropy = label_entropy(counts)
    sizes, pooled = counts.sum(axis=1), counts.sum(axis=0) / counts.sum()
    mix = counts / np.maximum(sizes, 1)[:, None]
    # For p_kc = 0 the summand is 0 (p ln p -> 0), so ln 1 replaces ln 0.
    log_mix = np.log(np.where(mix > 0, mix, 1))
    log_whole = np.log(np.where(pooled > 0, pooled, 1))
    has_samples = sizes > 0
    divergence = np.where(has_samples, np.maximum((mix * (log_mix - log_whole)).sum(axis=1), 0), np.nan)
    return PartitionStatistics(sizes, entropy, divergence, np.exp(entropy))


def label_entropy(counts: Ints | Floats) -> Floats:
    """Return H_i = -sum_c p_ic ln p_ic in nats for (N, C) label counts, with 0 ln 0 = 0; nan for empty clients.

    Rows may also be distributions, which sum to 1.

    Example:
        >>> label_entropy(np.array([[10, 0, 0, 0], [5, 5, 0, 0], [1, 2, 3, 4], [25, 25, 25, 25]])).round(4)
        array([0.    , 0.6931, 1.2799, 1.3863])
    """
    sizes = counts.sum(axis=1)
    mix = counts / np.where(sizes > 0, sizes, 1)[:, None]
    entropy = -(mix * np.log(np.where(mix > 0, mix, 1))).sum(axis=1)
    return np.where(sizes > 0, np.maximum(entropy, 0), np.nan)
