"""The complete analysis of a comparison."""

from collections.abc import Mapping
from dataclasses import astuple, dataclass

import numpy as np

from fedreach.evaluation.statistics import Spread, spread
from fedreach.report.adaptation import AdaptationSummary, adapted_leaders, summarize_adaptation
from fedreach.report.analysis import (
    Difference,
    Leaders,
    MethodSummary,
    MetricSummary,
    When,
    leaders,
    planned_differences,
    primary_of,
    summarize,
    summarize_baselines,
    summarize_metrics,
)
from fedreach.report.numbers import RunData, RunSet
from fedreach.report.theory import RECORDED, References, reference_values


@dataclass(frozen=True)
class Analysis:
    """All numbers of a comparison, computed once for tables, files, page and figures."""

    comparison: RunSet
    contrasts: Mapping[When, tuple[Difference, ...]]  # planned differences, tested
    last: tuple[MethodSummary, ...]  # one per method, at the last round
    best: tuple[MethodSummary, ...]  # at the best round on participants' held-out loss
    baselines: tuple[MethodSummary, ...]  # scores that a model must beat; empty if the runs have none
    terms: Mapping[str, Mapping[str, Spread]]  # method -> term of a bound, see `theory.terms` -> spread over seeds
    metrics: Mapping[When, tuple[MetricSummary, ...]]  # additional metrics; empty if no experiment has any
    adaptation: tuple[AdaptationSummary, ...]  # one per method with an adaptation rule, by the last model
    leaders: Mapping[When, Leaders]  # methods that are better than all others
    adapted_leaders: Leaders  # likewise by adapted accuracy, among rules that need no labels
    references: References  # references for the terms, means over federations

    def rows(self, when: When) -> tuple[MethodSummary, ...]:
        """Return a summary of each method at the last or the best round."""
        return self.last if when == "last" else self.best

    def judged(self, when: When = "last") -> list[MethodSummary]:
        """Return the summaries of methods that have a result."""
        return [row for row in self.rows(when) if primary_of(row, self.comparison).mean is not None]


def analyse(comparison: RunSet) -> Analysis:
    """Compute all numbers of a comparison that `read` returned.

    Example::

        analysis = analyse(read([Path("out")]))
        print(summary_text(analysis, width=100))
    """
    terms = {
        method: {name: spread([_term(run, name) for run in comparison.counted(method)]) for name in RECORDED}
        for method in comparison.methods
    }
    judged: dict[When, tuple[Difference, ...]] = {
        "last": planned_differences(comparison, "last"),
        "best": planned_differences(comparison, "best"),
    }
    last, best = (summarize(comparison, judged[when], when) for when in judged)
    adaptation = summarize_adaptation(comparison)
    return Analysis(
        comparison=comparison,
        contrasts=judged,
        last=last,
        best=best,
        baselines=summarize_baselines(comparison),
        terms=terms,
        metrics={when: summarize_metrics(comparison, when) for when in judged},
        adaptation=adaptation,
        leaders={when: leaders(comparison, when) for when in judged},
        adapted_leaders=adapted_leaders(comparison, adaptation),
        references=_references(comparison),
    )


def _term(run: RunData, name: str) -> float:
    """Return a term of a run: the mean over rounds, or the last value if it accumulates over rounds."""
    values = run.theory.get(name, np.zeros(0))
    finite = values[np.isfinite(values)]
    if not len(finite):
        return np.nan
    return float(finite[-1] if name == "label_gap_so_far" else finite.mean())


def _references(comparison: RunSet) -> References:
    partitions = {run.partition.hash: run.partition for run in comparison.all_counted}.values()
    if not partitions:
        return References(np.nan, np.nan, np.nan)
    means = np.mean([astuple(reference_values(partition)) for partition in partitions], axis=0)
    return References(*map(float, means))
