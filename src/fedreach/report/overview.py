"""The analysis as a whole."""

from collections.abc import Mapping
from dataclasses import astuple, dataclass

import numpy as np

from fedreach.evaluation.statistics import Spread, spread
from fedreach.report.adaptation import ServedSummary, served_leaders, summarize_serving
from fedreach.report.analysis import (
    Difference,
    Leaders,
    MethodSummary,
    MetricSummary,
    When,
    contrasts,
    leaders,
    primary_of,
    summarize,
    summarize_baselines,
    summarize_metrics,
)
from fedreach.report.numbers import RECORDED, Comparison, Run
from fedreach.report.theory import References, references

# --- Everything that a report says in numbers, made once; tables, files, page and figures are renderings of it


@dataclass(frozen=True)
class Analysis:
    """The numbers of a comparison."""

    comparison: Comparison
    contrasts: Mapping[When, tuple[Difference, ...]]  # the differences that the plan names, judged
    last: tuple[MethodSummary, ...]  # a method each, at the last round
    best: tuple[MethodSummary, ...]  # at the best round on participants' held-out loss
    baselines: tuple[MethodSummary, ...]  # what a model must beat; none of runs that have none
    terms: Mapping[str, Mapping[str, Spread]]  # method -> term of a bound, see `theory.terms` -> spread over seeds
    metrics: Mapping[When, tuple[MetricSummary, ...]]  # beside accuracy and loss; none where none was asked for
    serving: tuple[ServedSummary, ...]  # of the methods that have a serving rule, by the last model
    leaders: Mapping[When, Leaders]  # who is better than every other method, where that is decided
    served_leaders: Leaders  # likewise by what serving reaches, of rules that need no labels
    references: References  # what the terms are to be read beside; means over the federations

    def rows(self, when: When) -> tuple[MethodSummary, ...]:
        """Return a summary of each method at the last or the best round."""
        return self.last if when == "last" else self.best

    def judged(self, when: When = "last") -> list[MethodSummary]:
        """Return the summaries of those methods that have a result."""
        return [row for row in self.rows(when) if primary_of(row, self.comparison).mean is not None]


def analyse(comparison: Comparison) -> Analysis:
    """Return the numbers of what `read` returns.

    Example::

        analysis = analyse(read([Path("out")]))
        print(terminal_table(analysis))
    """
    terms = {
        method: {name: spread([_term(run, name) for run in comparison.counted(method)]) for name in RECORDED}
        for method in comparison.methods
    }
    judged: dict[When, tuple[Difference, ...]] = {
        "last": contrasts(comparison, "last"),
        "best": contrasts(comparison, "best"),
    }
    last, best = (summarize(comparison, judged[when], when) for when in judged)
    serving = summarize_serving(comparison)
    return Analysis(
        comparison=comparison,
        contrasts=judged,
        last=last,
        best=best,
        baselines=summarize_baselines(comparison),
        terms=terms,
        metrics={when: summarize_metrics(comparison, when) for when in judged},
        serving=serving,
        leaders={when: leaders(comparison, when) for when in judged},
        served_leaders=served_leaders(comparison, serving),
        references=_references(comparison),
    )


def _term(run: Run, name: str) -> float:
    """Return a run's number: the mean over the rounds that have one, or of what is summed up so far the last."""
    values = run.theory.get(name, np.zeros(0))
    known = values[np.isfinite(values)]
    if not len(known):
        return np.nan
    return float(known[-1] if name == "label_gap_so_far" else known.mean())


def _references(comparison: Comparison) -> References:
    partitions = {run.partition.hash: run.partition for run in comparison.all_counted}.values()
    if not partitions:
        return References(np.nan, np.nan, np.nan)
    means = np.mean([astuple(references(partition)) for partition in partitions], axis=0)
    return References(*map(float, means))
