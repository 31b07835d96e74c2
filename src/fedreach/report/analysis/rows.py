"""Which of a run's evaluated rounds a number is of."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedreach.arrays import Ints
from fedreach.report.values import Comparison, Run

When = Literal["last", "best"]


def rows_of(run: Run, when: When, last_rounds: int = 1) -> Ints:
    """Return the last evaluated rounds' rows, so many, or that of the best round on participants' held-out loss.

    The latter is a fair choice: neither the test set nor unseen clients have a say in it.
    """
    evaluated = run.evaluated
    if when == "last":
        return evaluated[-last_rounds:]
    losses = run.column("id_loss")
    if run.best_round is None:
        known = evaluated[np.isfinite(losses[evaluated])]
        return known[[np.argmin(losses[known])]] if len(known) else evaluated[-1:]
    return evaluated[[np.argmin(np.abs(run.rounds["round"][evaluated] - run.best_round))]]


def mean_of(run: Run, column: str, when: When, last_rounds: int = 1) -> float:
    """Return the mean of a column over `rows_of`; nan where one of them has no number."""
    return float(run.column(column)[rows_of(run, when, last_rounds)].mean())


def target_row(run: Run, comparison: Comparison) -> int | None:
    """Return the first row whose primary accuracy is the target or more; None if there is none."""
    if comparison.target_accuracy is None:
        return None
    rows = np.flatnonzero(comparison.score.reached(run.column(comparison.primary), comparison.target_accuracy))
    return int(rows[0]) if len(rows) else None
