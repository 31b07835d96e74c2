"""Baselines as rows beside those of methods: the majority class or the mean target, and one pooled linear model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedreach.evidence.judgement import Judgement
from fedreach.evidence.spread import spread
from fedreach.report.analysis.quantities import QUANTITIES, SPENT
from fedreach.report.analysis.summary import MethodSummary, probabilities
from fedreach.report.values import Comparison
from fedreach.runs.schema import BaselinesRecord

TITLES = {
    ("majority", True): "majority class",
    ("mean", False): "mean of the targets",
    ("pooled", True): "pooled logistic regression",
    ("pooled", False): "pooled ridge regression",
}
"""Name of a baseline, and whether targets are classes -> what it is called."""


def baselines_of(comparison: Comparison) -> tuple[BaselinesRecord, ...]:
    """Return the baselines of each federation, which the runs of all methods on it share."""
    found = {
        (run.partition.hash, str(run.baselines.columns)): run.baselines
        for run in comparison.all_counted
        if run.baselines is not None
    }
    return tuple(found.values())


def title(name: str, comparison: Comparison) -> str:
    """Return what a baseline is called."""
    return TITLES[name, comparison.score.percent]


def summarize_baselines(comparison: Comparison) -> tuple[MethodSummary, ...]:
    """Return a row for each baseline, over federations: as many as seeds, or one where all seeds share it."""
    records = baselines_of(comparison)
    names = dict.fromkeys(name for record in records for name in record.columns)
    return tuple(
        _summary(comparison, name, [record.columns[name] for record in records if name in record.columns])
        for name in names
    )


def _summary(comparison: Comparison, name: str, found: list[Mapping[str, float]]) -> MethodSummary:
    def over(column: str) -> list[float]:
        return [columns.get(column, np.nan) for columns in found]

    scores = {each.name: each.column_by(comparison.score) for each in QUANTITIES.values()}
    low, high = (float(np.mean(over(f"participation_gap_{side}"))) for side in ("low", "high"))
    return MethodSummary(
        method=title(name, comparison),
        is_baseline=False,
        seeds=len(found),
        seeds_planned=len(found),
        at={quantity: spread(over(column)) for quantity, column in scores.items()}
        | {quantity: spread(over(column)) for quantity, column in probabilities(comparison).items()},
        gap_over_clients=(low, high) if np.isfinite([low, high]).all() else None,
        reached=0,
        to_target={quantity: spread([]) for quantity in SPENT},
        difference=Judgement(0, None),
    )
