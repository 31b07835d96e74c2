"""Label noise: a known share of the training labels is corrupted, and the changes are recorded.

Apply noise to training labels; held-out and test labels stay true. Noise comes after partitioning or before it. Noise
before partitioning concentrates on clients that hold many examples of the class that it leads to, because the
partition is drawn by the noisy labels.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from fedreach._util.arrays import Bools, Ints
from fedreach._util.errors import ConfigError, DataError, nearest
from fedreach.data import assignment
from fedreach.data.assignment import Partition

Kind = Literal["to_one_class", "symmetric", "asymmetric"]
Scope = Literal["pooled", "per_client", "before_split"]


@dataclass(frozen=True, eq=False)
class LabelNoise:
    """Corrupted labels and a record of the changes; the arrays are read-only."""

    labels: Ints  # (n,) the labels to train on
    selected: Ints  # (m,) sorted indices of the examples chosen for corruption
    changed: Bools  # (n,) whether the label differs from the original
    record: dict[str, Any]  # plain JSON values: kind, rate, scope, num_selected, num_changed, and target or mapping


def corrupt(
    labels: ArrayLike,
    rng: np.random.Generator,
    *,
    kind: Kind,
    rate: float,
    num_classes: int,
    partition: Partition | None = None,
    scope: Scope = "pooled",
    clients: float = 1.0,
    target: int = 0,
    mapping: Sequence[int] | None = None,
) -> LabelNoise:
    """Choose exactly round(rate * n) examples uniformly, and corrupt their labels.

    - "to_one_class": the label becomes `target`. About 1/C of the chosen examples have it already: they count as
      selected, but not as changed. (This is the noise of Xu et al., arXiv 2311.05936: some labels are set to 0.)
    - "symmetric": uniform over the C - 1 other classes.
    - "asymmetric": class c becomes mapping[c].

    The chosen examples are the first in a random order of all. So with an equal generator, a higher rate corrupts the
    same examples and more.

    When: to test a method against annotators that err at random (`symmetric`), confuse particular classes
    (`asymmetric`) or fall back on one answer (`to_one_class`).

    Args:
        labels: (n,) class of each example, below C. Not written to.
        rng: Generator that draws examples, and classes for "symmetric".
        kind: One of the three kinds above.
        rate: Share of the examples to corrupt, from 0 to 1. Halves round to even, as in Python.
        num_classes: C; at least 2 unless the kind is "to_one_class".
        partition: Partition of the examples; required for the scope "per_client", and if `clients` is below 1.
        scope: "pooled": round(rate * n) of all examples. "per_client": round(rate * n_k) of each client k.
            "before_split": as "pooled", but before the partition is drawn by the resulting labels.
        clients: Share of the clients that are noisy; they are drawn, and examples of other clients are not chosen.
        target: Label of "to_one_class", below C.
        mapping: (C,) new class of each class; "asymmetric" only. Default: c becomes (c + 1) mod C.

    Raises:
        ConfigError: If an option is unknown, outside its range, or does not belong to the kind.
        DataError: If a label is not below C, or the partition has another number of examples.

    Example:
        >>> noise = corrupt([0, 1, 2, 0], np.random.default_rng(0), kind="to_one_class", rate=1.0, num_classes=3)
        >>> noise.labels, noise.changed
        (array([0, 0, 0, 0]), array([False,  True,  True, False]))
        >>> noise.record["num_selected"], noise.record["num_changed"]
        (4, 2)
    """
    assignment.check_generator(rng)
    clean = assignment.checked_labels(labels)
    num_classes = assignment.checked_count("num_classes of corrupt", num_classes, 1)
    if clean.max() >= num_classes:
        raise DataError(f"labels must be below num_classes = {num_classes}; got {clean.max()}.")
    rate = assignment.checked_number("rate of label noise", rate, 0, 1)
    new_label, about = _rule(kind, num_classes, target, mapping, rng)
    groups = _groups(scope, clean.size, partition)
    clients = assignment.checked_number("clients of label noise", clients, 0, 1)
    open_ = np.arange(clean.size) if clients == 1 else _of_some(clients, scope, partition, rng)

    take = np.rint(rate * np.bincount(groups[open_])).astype(np.int64)
    selected = np.sort(open_[assignment.draw_from_each(groups[open_], take, rng)])
    noisy = clean.copy()
    noisy[selected] = new_label(clean[selected])
    changed = noisy != clean
    for array in (noisy, selected, changed):
        array.setflags(write=False)
    client_share = {} if clients == 1 else {"clients": clients}
    counts = {"num_selected": int(selected.size), "num_changed": int(changed.sum())}
    record = {"kind": kind, "rate": rate, "scope": scope, **client_share, **about, **counts}
    return LabelNoise(noisy, selected, changed, record)


def _rule(
    kind: str, num_classes: int, target: int, mapping: Sequence[int] | None, rng: np.random.Generator
) -> tuple[Callable[[Ints], Ints], dict[str, Any]]:
    """Return the function from old to new labels, and its parameters for the record."""
    if kind not in get_args(Kind):
        raise ConfigError(f"kind of label noise is unknown: {kind!r}.{nearest(str(kind), get_args(Kind))}")
    if mapping is not None and kind != "asymmetric":
        raise ConfigError(f"mapping belongs to the label noise 'asymmetric'; got it with {kind!r}. Leave it out.")
    if kind == "to_one_class":
        label = assignment.checked_count("target of label noise", target, 0)
        if label >= num_classes:
            raise ConfigError(f"target of label noise must be below num_classes = {num_classes}; got {label}.")
        return lambda old: np.full_like(old, label), {"target": label}
    if num_classes < 2:
        raise ConfigError(f"label noise {kind!r} needs at least 2 classes; got num_classes = {num_classes}.")
    if kind == "symmetric":
        return lambda old: (old + rng.integers(1, num_classes, old.size)) % num_classes, {}
    table = (np.arange(num_classes) + 1) % num_classes if mapping is None else np.asarray(mapping)
    if table.shape != (num_classes,) or table.dtype.kind not in "iu" or table.min() < 0 or table.max() >= num_classes:
        raise ConfigError(
            f"mapping of label noise must name a new class, 0 to {num_classes - 1}, for each class; got {mapping!r}."
        )
    return lambda old: table[old], {"mapping": table.tolist()}


def _groups(scope: str, num_samples: int, partition: Partition | None) -> Ints:
    """Return the (n,) groups within which examples are chosen: one for all, or one per client."""
    if scope not in get_args(Scope):
        raise ConfigError(f"scope of label noise is unknown: {scope!r}.{nearest(str(scope), get_args(Scope))}")
    if partition is not None and partition.num_samples != num_samples:
        raise DataError(f"label noise: the partition is of {partition.num_samples} samples; got {num_samples} labels.")
    if scope != "per_client":
        return np.zeros(num_samples, dtype=np.int64)
    if partition is None:
        raise ConfigError("scope 'per_client' of label noise needs the partition; pass it, or use the scope 'pooled'.")
    return partition.owner()


def _of_some(share: float, scope: str, partition: Partition | None, rng: np.random.Generator) -> Ints:
    """Draw a share of the clients, and return the sorted indices of their examples."""
    if partition is None or scope == "before_split":
        raise ConfigError(
            f"clients = {share:g} of label noise needs a partition and scope 'pooled' or 'per_client'; got {scope!r}."
        )
    noisy = rng.permutation(partition.num_clients)[: round(share * partition.num_clients)]
    return np.flatnonzero(np.isin(partition.owner(), noisy))


NOISES: Mapping[str, Callable[..., LabelNoise]] = dict.fromkeys(get_args(Kind), corrupt)
"""Kind, as in experiment files -> function that adds the noise."""
