"""Metrics beside accuracy and loss, where an experiment asked for any: what each method reached."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedreach.evidence.spread import Spread, spread
from fedreach.report.analysis.quantities import FURTHER, Quantity
from fedreach.report.analysis.rows import When, mean_of, rows_of
from fedreach.report.values import Comparison, Run

COLUMN = re.compile(
    r"(id|unseen|test)_(?!(accuracy|mae)(_|$)|loss$)(?P<name>[a-z][a-z0-9_]*?)(_worst_decile|_pooled|_undefined)?"
)
"""Of such a metric, whose name does not end as columns do; see `fedreach.evaluation.Evaluator`."""


@dataclass(frozen=True)
class MetricSummary:
    """What one method reached in one metric."""

    method: str
    metric: str
    at: Mapping[str, Spread]  # each of `FURTHER` -> over seeds


def metrics_of(comparison: Comparison) -> tuple[str, ...]:
    """Return the names of the metrics that any counted run has, in the order in which its rows do."""
    columns = (column for run in comparison.all_counted for column in run.rounds)
    return tuple(dict.fromkeys(found["name"] for column in columns if (found := COLUMN.fullmatch(column))))


def has_named_metrics(comparison: Comparison) -> bool:
    """Say whether anybody named a metric; AUROC of two classes is there without, and stands in the main table."""
    configs = (run.config.get("evaluation", {}).get("metrics", ()) for run in comparison.all_counted)
    named = {metric["name"] for metrics in configs for metric in metrics}
    return any(metric != "auroc" or metric in named for metric in metrics_of(comparison))


def summarize_metrics(comparison: Comparison, when: When = "last") -> tuple[MetricSummary, ...]:
    """Return a row for each metric and method, metric by metric; `when` is as in `summarize`."""

    def over_seeds(method: str, metric: str, quantity: Quantity) -> Spread:
        column, last = quantity.column.format(metric), comparison.plan.last_rounds
        value = _left_out if quantity.unit == "clients" else mean_of
        return spread([value(run, column, when, last) for run in comparison.counted(method)])

    return tuple(
        MetricSummary(method, metric, {name: over_seeds(method, metric, each) for name, each in FURTHER.items()})
        for metric in metrics_of(comparison)
        for method in comparison.methods
    )


def _left_out(run: Run, column: str, when: When, last_rounds: int) -> float:
    """Return for how many clients a metric is undefined: none where this is not written, but the metric is."""
    rows = rows_of(run, when, last_rounds)
    undefined, defined = run.column(column)[rows], run.column(column.removesuffix("_undefined"))[rows]
    return float(np.where(np.isfinite(undefined), undefined, np.where(np.isfinite(defined), 0.0, np.nan)).mean())
