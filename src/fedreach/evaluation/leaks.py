"""Columns that give the label away by themselves, as what is only known once the label is.

Looked for in the participants' training rows alone, with the labels that they train on.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from fedreach.arrays import Floats, Ints
from fedreach.data.federated import FederatedData
from fedreach.evaluation.baselines import LARGEST, training_rows
from fedreach.evaluation.metrics.auroc import pairs_in_order

LEAST_AUROC = 0.995
MOST_WRONG = 0.01
"""Of the rows that naming the majority class of all gets wrong, those that a table of a column's values may, too."""
LEAST_RANKS = 0.999
LEAST_ROWS = 20
LEAST_OF_CLASS = 5
FEW_VALUES = 100


class Leak(NamedTuple):
    """A column that gives the label away, and by which number."""

    column: str
    measure: str  # "AUROC", "accuracy" or "rank correlation"
    value: float


def leaks(data: FederatedData) -> list[Leak]:
    """Return the columns of a table, or the inputs among features, each of which gives the label away.

    - **AUROC** of numbers, dates, true and false: of any two classes that are next to each other by their medians, the
      share of pairs of rows that the column has in order; what is missing stands before all numbers. A column whose
      least one is at least 0.995 leaks. Nothing is fitted but an order, so names of rows do not leak.
    - **accuracy** of categories, and of numbers with at most a hundred values: each participant's rows are predicted by
      the most frequent class that the *others* have with the same value (a single participant's row by its other
      rows). A column that is wrong of at most a hundredth of the rows that are not of the majority class leaks.
    - **rank correlation** of a column with a number to predict: 0.999 or more, in either direction, leaks.

    Of fewer than 20 rows, or fewer than 5 of a second class, nothing can be told; nor is anything of images.

    Example:
        >>> ages = {"hospital": ["a", "b"] * 20, "age": [30, 31, 32, 33] * 10, "ill": ["no", "no", "yes", "yes"] * 10}
        >>> table = {**ages, "code": [*"xxyy"] * 10, "weight": range(40)}
        >>> leaks(FederatedData.from_frame(table, client="hospital", label="ill", participants=["a", "b"]))
        [Leak(column='age', measure='AUROC', value=1.0), Leak(column='code', measure='accuracy', value=1.0)]
    """
    d, rows = data.dataset, training_rows(data)
    if d.positions or d.kind != "features" or d.train_x.ndim != 2 or len(rows) * d.train_x.shape[1] > LARGEST:
        return []
    labels = data.labels[rows]
    if len(rows) < LEAST_ROWS:
        return []
    if not d.num_classes:
        columns = _columns(data, rows) if labels.shape[1] == 1 else ()
        found = [
            Leak(name, "rank correlation", _ranked(values, labels[:, 0]))
            for name, values, words in columns
            if not words
        ]
        return [leak for leak in found if abs(leak.value) >= LEAST_RANKS]
    many = np.flatnonzero(np.bincount(labels, minlength=d.num_classes) >= LEAST_OF_CLASS)
    if len(many) < 2 or np.isin(labels, many).mean() < 1 - MOST_WRONG:
        return []
    return [
        leak
        for name, values, words in _columns(data, rows)
        if (leak := _of_classes(data, name, values, labels, words=words))
    ]


def _columns(data: FederatedData, rows: Ints) -> Iterator[tuple[str, Floats, bool]]:
    """Yield name, (n,) values and whether they are words of each column; what is missing is -inf."""
    d = data.dataset
    if d.preparation is None:
        for j in range(d.train_x.shape[1]):
            yield f"input {j}", d.train_x[rows, j].astype(np.float64), False
        return
    end = 0
    for column in d.preparation.used:
        begin, end = end, end + len(column.feature_names)
        inputs, words = d.train_x[rows, begin:end], column.kind == "category"
        there = inputs[:, -1] == 0 if column.missing else np.ones(len(rows), bool)
        values = inputs[:, : len(column.categories)].argmax(axis=1) if words else inputs[:, 0]
        yield column.name, np.where(there, values, -np.inf), words


def _of_classes(data: FederatedData, name: str, values: Floats, labels: Ints, *, words: bool) -> Leak | None:
    if not words and (auroc := _neighbours_apart(values, labels)) >= LEAST_AUROC:
        return Leak(name, "AUROC", round(auroc, 6))
    _, codes = np.unique(values, return_inverse=True)
    if codes.max() >= FEW_VALUES:
        return None
    right, wrong_at_best = _looked_up(data, codes, labels), len(labels) - np.bincount(labels).max()
    wrong = len(labels) - right
    return Leak(name, "accuracy", round(right / len(labels), 6)) if wrong <= MOST_WRONG * wrong_at_best else None


def _neighbours_apart(values: Floats, labels: Ints) -> float:
    """Return the least AUROC of two classes that are next to each other by their medians."""
    of_class = [values[labels == k] for k in np.unique(labels)]
    of_class = [own for own in of_class if len(own) >= LEAST_OF_CLASS]
    of_class.sort(key=lambda own: float(np.sort(own)[len(own) // 2]))
    return min(
        pairs_in_order(np.arange(len(low) + len(high)) >= len(low), np.concatenate([low, high]))
        for low, high in pairwise(of_class)
    )


def _looked_up(data: FederatedData, codes: Ints, labels: Ints) -> int:
    """Return of how many rows the others have the row's class the most often with its value."""
    participants = data.population.participants
    owners = np.repeat(np.arange(len(participants)), data.train.sizes[participants])
    if len(participants) == 1:
        owners = np.arange(len(labels))
    classes = np.eye(data.dataset.num_classes, dtype=np.int64)[labels]
    _, mine = np.unique(owners * (codes.max() + 1) + codes, return_inverse=True)
    others = _summed(classes, codes) - _summed(classes, mine)
    return int(((others.argmax(axis=1) == labels) & (others.max(axis=1) > 0)).sum())


def _summed(rows: Ints, groups: Ints) -> Ints:
    """Return in each row the sum of all rows of its group."""
    sums = np.zeros((groups.max() + 1, rows.shape[1]), np.int64)
    np.add.at(sums, groups, rows)
    return sums[groups]


def _ranked(values: Floats, target: Floats) -> float:
    """Return Spearman's rank correlation of the rows that have a value; 0 where a tenth or more have none."""
    there = np.isfinite(values)
    ranks = [_ranks(each[there]) for each in (values, target)]
    if there.mean() <= 0.9 or any(np.ptp(each) == 0 for each in ranks):
        return 0.0
    x, y = (each - each.mean() for each in ranks)
    return round(float(x @ y / np.sqrt((x @ x) * (y @ y))), 6)


def _ranks(values: Floats) -> Floats:
    """Return the rank of each value, of equal ones their mean."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return ranks
