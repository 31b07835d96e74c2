"""What the papers' bounds look at, over the rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedreach.arrays import Floats
from fedreach.report.analysis.analysis import Analysis
from fedreach.report.analysis.terms import Term
from fedreach.report.analysis.theory import References
from fedreach.report.figures.curves import Curve, draw
from fedreach.report.figures.names import Legend
from fedreach.report.figures.style import MUTED, in_percent, label_x, new_panels, styled
from fedreach.report.render.theory import shown
from fedreach.report.values import Comparison, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STRETCHES = 30  # points of a curve: cohorts change from round to round, and single rounds would be a scribble


@styled
def theory(analysis: Analysis) -> Figure | None:
    """Draw the terms, a panel each; None if no run has any."""
    comparison, terms = analysis.comparison, shown(analysis)
    if not terms:
        return None
    drawn = {term.name: theory_curves(comparison, term.name) for term in terms}
    legend = Legend.of(comparison.methods, sorted({j for made in drawn.values() for j in made}))
    figure, panels = new_panels(len(terms), 1.2, rest=0.3, legend=legend.height)
    for axes, term in zip(panels, terms, strict=True):
        for j, made in drawn[term.name].items():
            draw(axes, j, made.rounds, made, len(legend.names))
        axes.set_title(term.title)  # many names are longer than their panels are tall
        axes.locator_params(axis="y", nbins=4)
        if term.percent:
            in_percent(axes)
        _beside(axes, term, analysis.references)
    label_x(panels, "round")
    legend.draw(figure)
    return figure


def theory_curves(comparison: Comparison, name: str) -> dict[int, Curve]:
    """Return the curve of each method that has this term, by the method's position."""
    found = {}
    for j, method in enumerate(comparison.methods):
        runs = [run for run in comparison.counted(method) if np.isfinite(run.theory.get(name, np.nan)).any()]
        if runs and len((made := stretched(runs, name)).rounds):
            found[j] = made
    return found


def stretched(runs: Sequence[Run], name: str) -> Curve:
    """Return a term's mean in stretches of rounds, and +- sd over seeds where there are several.

    A stretch is drawn if all runs have a number in it, at the mean of its rounds.
    """
    last = max(run.last_round for run in runs)
    edges = np.unique(np.linspace(0, last, min(STRETCHES, max(last, 1)) + 1).round())
    values = np.array([_means(run, name, edges) for run in runs])
    known = np.isfinite(values).all(axis=0)
    values, middle = values[:, known], ((edges[:-1] + edges[1:] + 1) / 2)[known]
    nothing = np.full(len(middle), np.nan)
    mean, sd = values.mean(axis=0), values.std(axis=0, ddof=1) if len(runs) > 1 else nothing
    return Curve(rounds=middle, megabytes=nothing, mean=mean, low=mean - sd, high=mean + sd)


def _means(run: Run, name: str, edges: Floats) -> Floats:
    """Return the mean of the known values in each stretch (edge, next edge]; nan where there is none."""
    values = run.theory[name]
    known = np.isfinite(values)
    stretch = np.searchsorted(edges, run.rounds["round"][known], side="left") - 1
    inside = stretch >= 0  # round 0 trains nobody
    count = np.bincount(stretch[inside], minlength=len(edges) - 1)
    total = np.bincount(stretch[inside], values[known][inside], minlength=len(edges) - 1)
    return np.asarray(np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0))


def _beside(axes: Axes, term: Term, references: References) -> None:
    """Draw, dashed, what the choice of clients and weights is to be compared with."""
    pooled = references.pooled
    value = {"entropy": references.participants, "label_gap": pooled, "label_gap_so_far": pooled}.get(term.name)
    if value is not None:
        axes.axhline(value, color=MUTED, linewidth=0.9, linestyle=(0, (2, 2)))
