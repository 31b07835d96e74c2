"""Label noise: changes to a given share of the training labels.

Held-out and test labels always remain correct. FedReach applies label noise after or before the partition. If the noise
precedes the partition, a partition by labels uses the noisy labels. Then clients with many examples of the new class
have more noise.
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
    """Noisy labels and a record of the changes. The arrays are read-only."""

    labels: Ints  # (n,) labels for training
    selected: Ints  # (m,) sorted indices of the selected examples
    changed: Bools  # (n,) true where the label differs from the original one
    record: dict[str, Any]  # JSON values: kind, rate, scope, num_selected, num_changed, and target or mapping


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
    """Select exactly round(rate * n) examples at random and change their labels.

    - "to_one_class": each selected label becomes `target`, as in the experiments of arXiv 2311.05936. Examples that
      already have this label count as selected, but not as changed.
    - "symmetric": each selected label becomes one of the C - 1 other classes at random.
    - "asymmetric": each selected label c becomes mapping[c].

    With the same seed, a higher rate selects the examples of a lower rate and additional examples.

    Use when: you study annotators that make random errors (`symmetric`), confuse certain classes (`asymmetric`) or
    prefer one class (`to_one_class`).

    Args:
        labels: (n,) class of each example, from 0 to C - 1. The array is not modified.
        rng: Random generator.
        kind: Kind of noise: "to_one_class", "symmetric" or "asymmetric".
        rate: Share of the examples that are selected, from 0 to 1. In round(rate * n), halves are rounded to even
            numbers.
        num_classes: Number of classes C, at least 2 unless the kind is "to_one_class".
        partition: Partition of the examples. Required with the scope "per_client" and with `clients` below 1.
        scope: Where examples are selected. "pooled" selects round(rate * n) of all examples. "per_client" selects
            round(rate * n_k) examples of each client k. "before_split" selects like "pooled", but the partition uses
            the noisy labels.
        clients: Share of the clients with noisy labels, from 0 to 1. These clients are drawn at random. Default: 1.
        target: New label of "to_one_class", from 0 to C - 1. Default: 0.
        mapping: (C,) new class of each class, for "asymmetric" only. Default: (c + 1) mod C.

    Raises:
        ConfigError: If an option is unknown, outside its range, or not an option of this kind.
        DataError: If a label is not below C, or the partition does not have n examples.

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
        raise ConfigError(f"Unknown kind of label noise: {kind!r}.{nearest(str(kind), get_args(Kind))}")
    if mapping is not None and kind != "asymmetric":
        raise ConfigError(f"mapping requires the label noise 'asymmetric'; got {kind!r}. Remove mapping.")
    if kind == "to_one_class":
        label = assignment.checked_count("target of label noise", target, 0)
        if label >= num_classes:
            raise ConfigError(f"target of label noise must be below num_classes = {num_classes}; got {label}.")
        return lambda old: np.full_like(old, label), {"target": label}
    if num_classes < 2:
        raise ConfigError(f"Label noise {kind!r} requires at least 2 classes; got num_classes = {num_classes}.")
    if kind == "symmetric":
        return lambda old: (old + rng.integers(1, num_classes, old.size)) % num_classes, {}
    table = (np.arange(num_classes) + 1) % num_classes if mapping is None else np.asarray(mapping)
    if table.shape != (num_classes,) or table.dtype.kind not in "iu" or table.min() < 0 or table.max() >= num_classes:
        raise ConfigError(
            f"mapping of label noise must give each class a new class from 0 to {num_classes - 1}; got {mapping!r}."
        )
    return lambda old: table[old], {"mapping": table.tolist()}


def _groups(scope: str, num_samples: int, partition: Partition | None) -> Ints:
    """Return the (n,) group of each example: its client with the scope "per_client", else 0."""
    if scope not in get_args(Scope):
        raise ConfigError(f"Unknown scope of label noise: {scope!r}.{nearest(str(scope), get_args(Scope))}")
    if partition is not None and partition.num_samples != num_samples:
        raise DataError(
            f"label noise: the partition must have {num_samples} examples, one per label; got {partition.num_samples}."
        )
    if scope != "per_client":
        return np.zeros(num_samples, dtype=np.int64)
    if partition is None:
        raise ConfigError("Label noise with the scope 'per_client' requires a partition. Use the scope 'pooled'.")
    return partition.owner()


def _of_some(share: float, scope: str, partition: Partition | None, rng: np.random.Generator) -> Ints:
    """Draw a share of the clients, and return the sorted indices of their examples."""
    if partition is None or scope == "before_split":
        raise ConfigError(
            f"clients = {share:g} of label noise requires a partition and the scope 'pooled' or 'per_client'; got "
            f"the scope {scope!r}."
        )
    noisy = rng.permutation(partition.num_clients)[: round(share * partition.num_clients)]
    return np.flatnonzero(np.isin(partition.owner(), noisy))


NOISES: Mapping[str, Callable[..., LabelNoise]] = dict.fromkeys(get_args(Kind), corrupt)
"""Kinds of label noise in experiment files, with the function that applies each kind."""
