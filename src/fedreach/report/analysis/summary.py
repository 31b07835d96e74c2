"""One row of numbers per method, at the last round or at the best round on participants' held-out loss."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedreach.evidence.judgement import Judgement
from fedreach.evidence.scores import MainScore
from fedreach.evidence.spread import Spread, spread
from fedreach.report.analysis.contrasts import Difference
from fedreach.report.analysis.quantities import POPULATION, QUANTITIES, SPENT, Quantity
from fedreach.report.analysis.rows import When, mean_of, rows_of, target_row
from fedreach.report.values import Comparison, Run

PROBABILITIES = {"auroc": "auroc", "log_loss": "loss"}
"""Of two classes: name in summaries and records -> end of the stored column."""


@dataclass(frozen=True)
class MethodSummary:
    """What one method reached. Accuracies and gaps are fractions, or errors; spreads are over seeds unless said."""

    method: str
    is_baseline: bool
    seeds: int  # runs the numbers are from
    seeds_planned: int
    at: Mapping[str, Spread]  # each of `QUANTITIES` and of `probabilities`
    gap_over_clients: tuple[float, float] | None  # 95 % interval over clients, limits averaged over seeds
    reached: int  # seeds that reached the target accuracy
    to_target: Mapping[str, Spread]  # each of `SPENT`, over the seeds that reached it
    difference: Judgement  # primary accuracy minus the baseline's, seed by seed


def summarize(
    comparison: Comparison, contrasts: Sequence[Difference], when: When = "last"
) -> tuple[MethodSummary, ...]:
    """Return one row per method, in the comparison's order.

    Args:
        contrasts: Of the comparison, at the same rounds.
        when: ``"last"``: at the last evaluated round, or the mean of so many as the plan says. ``"best"``: at each
            run's best round on participants' held-out loss.
    """
    to_baseline = {each.first: each.judged for each in contrasts if each.second == comparison.baseline}
    return tuple(_summarize_method(comparison, method, when, to_baseline) for method in comparison.methods)


def _summarize_method(
    comparison: Comparison, method: str, when: When, to_baseline: Mapping[str, Judgement]
) -> MethodSummary:
    runs, last = comparison.counted(method), comparison.plan.last_rounds
    planned = sum(run.method == method for run in comparison.runs) + sum(m == method for m, _ in comparison.absent)
    hits = [(run, hit) for run in runs if (hit := target_row(run, comparison)) is not None]
    limits = [[mean_of(run, f"participation_gap_{side}", when, last) for side in ("low", "high")] for run in runs]
    low, high = np.mean(limits, axis=0) if limits else (np.nan, np.nan)
    none = Judgement(0, None, note="the baseline" if method == comparison.baseline else "not among the contrasts")
    return MethodSummary(
        method=method,
        is_baseline=method == comparison.baseline,
        seeds=len(runs),
        seeds_planned=planned,
        at={
            name: spread([_value(run, quantity, comparison.score, when, last) for run in runs])
            for name, quantity in QUANTITIES.items()
        }
        | {
            name: spread([mean_of(run, column, when, last) for run in runs])
            for name, column in probabilities(comparison).items()
        },
        gap_over_clients=(float(low), float(high)) if np.isfinite([low, high]).all() else None,
        reached=len(hits),
        to_target={name: _spent(hits, QUANTITIES[name]) for name in SPENT},
        difference=to_baseline.get(method, none),
    )


def _value(run: Run, quantity: Quantity, score: MainScore, when: When, last_rounds: int) -> float:
    """Return a quantity at the rounds that are looked at; what adds up over the rounds, at the last of them."""
    if quantity.unit in ("%", "points"):
        return mean_of(run, quantity.column_by(score), when, last_rounds)
    return float(run.column(quantity.column)[rows_of(run, when, last_rounds)[-1]]) / quantity.scale


def _spent(hits: Sequence[tuple[Run, int]], quantity: Quantity) -> Spread:
    return spread([run.column(quantity.column)[row] / quantity.scale for run, row in hits])


def probabilities(comparison: Comparison) -> dict[str, str]:
    """Return the columns that say how good probabilities of two classes are, on whom methods are judged by."""
    two = any(run.partition.num_classes == 2 for run in comparison.all_counted)
    where = comparison.primary.partition("_")[0]
    return {name: f"{where}_{ending}" for name, ending in PROBABILITIES.items()} if two else {}


def primary_of(row: MethodSummary, comparison: Comparison) -> Spread:
    """Return the accuracy that methods are judged by."""
    return row.at[POPULATION[comparison.primary].name]
