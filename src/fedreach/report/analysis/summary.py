"""One row of numbers per method, at the last round or at the best round on participants' held-out loss."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedreach.report.analysis.quantities import POPULATION, QUANTITIES, SPENT, Quantity
from fedreach.report.analysis.statistics import Paired, Spread, holm, paired, spread
from fedreach.report.values import Comparison, Run

When = Literal["last", "best"]


@dataclass(frozen=True)
class MethodSummary:
    """What one method reached. Accuracies and gaps are fractions; spreads are over seeds unless named otherwise."""

    method: str
    is_baseline: bool
    seeds: int  # runs the numbers are from
    seeds_planned: int
    at: Mapping[str, Spread]  # each of `QUANTITIES`
    gap_over_clients: tuple[float, float] | None  # 95 % bootstrap over clients, limits averaged over seeds
    reached: int  # seeds that reached the target accuracy
    to_target: Mapping[str, Spread]  # each of `SPENT`, over the seeds that reached it
    difference: Paired  # primary accuracy minus the baseline's, seed by seed
    corrected_p: float | None  # Holm, over the methods compared with the baseline


def summarize(comparison: Comparison, when: When = "last") -> tuple[MethodSummary, ...]:
    """Return one row per method, in the comparison's order.

    Args:
        when: ``"last"``: at the last evaluated round. ``"best"``: at each run's best round on participants'
            held-out loss, which is a fair choice: neither the test set nor unseen clients have a say in it.
    """
    rows = [_summarize_method(comparison, method, when) for method in comparison.methods]
    corrected = holm([row.difference.p for row in rows])
    return tuple(replace(row, corrected_p=p) for row, p in zip(rows, corrected, strict=True))


def _summarize_method(comparison: Comparison, method: str, when: When) -> MethodSummary:
    runs = comparison.counted(method)
    planned = sum(run.method == method for run in comparison.runs) + sum(m == method for m, _ in comparison.absent)
    rows = [(run, row_of(run, when)) for run in runs]
    hits = [(run, hit) for run in runs if (hit := target_row(run, comparison)) is not None]
    limits = [[run.column(f"participation_gap_{side}")[row] for side in ("low", "high")] for run, row in rows]
    low, high = np.mean(limits, axis=0) if limits else (np.nan, np.nan)
    return MethodSummary(
        method=method,
        is_baseline=method == comparison.baseline,
        seeds=len(runs),
        seeds_planned=planned,
        at={name: _spread(rows, quantity) for name, quantity in QUANTITIES.items()},
        gap_over_clients=(float(low), float(high)) if np.isfinite([low, high]).all() else None,
        reached=len(hits),
        to_target={name: _spread(hits, QUANTITIES[name]) for name in SPENT},
        difference=_difference(comparison, method, when),
        corrected_p=None,
    )


def _spread(rows: list[tuple[Run, int]], quantity: Quantity) -> Spread:
    return spread([run.column(quantity.column)[row] / quantity.scale for run, row in rows])


def primary_of(row: MethodSummary, comparison: Comparison) -> Spread:
    """Return the accuracy that methods are judged by."""
    return row.at[POPULATION[comparison.primary].name]


def row_of(run: Run, when: When) -> int:
    """Return the row of the last evaluated round, or of the best round on participants' held-out loss."""
    evaluated = np.flatnonzero(np.isfinite(run.column("id_accuracy")))
    if when == "last":
        return int(evaluated[-1])
    losses = run.column("id_loss")
    if run.best_round is None:
        known = evaluated[np.isfinite(losses[evaluated])]
        return int(known[np.argmin(losses[known])]) if len(known) else int(evaluated[-1])
    return int(evaluated[np.argmin(np.abs(run.rounds["round"][evaluated] - run.best_round))])


def target_row(run: Run, comparison: Comparison) -> int | None:
    """Return the first row whose primary accuracy is the target or more; None if there is none."""
    if comparison.target_accuracy is None:
        return None
    rows = np.flatnonzero(run.column(comparison.primary) >= comparison.target_accuracy)
    return int(rows[0]) if len(rows) else None


def _difference(comparison: Comparison, method: str, when: When) -> Paired:
    if method == comparison.baseline:
        return Paired(0, None, None, None, None, "the baseline")
    base = {run.seed: run for run in comparison.counted(comparison.baseline)}
    pairs = [(run, base[run.seed]) for run in comparison.counted(method) if run.seed in base]
    # Only runs on the same clients are a pair.
    same = [(run, other) for run, other in pairs if run.partition.hash == other.partition.hash]
    if not same:
        reason = "other clients than the baseline's" if pairs else "no seed in common with the baseline"
        return Paired(0, None, None, None, None, reason)
    name = comparison.primary
    return paired([a.column(name)[row_of(a, when)] - b.column(name)[row_of(b, when)] for a, b in same])
