"""Figures of sweeps and of the papers' bounds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedreach._util.arrays import Floats
from fedreach.report.figures.costs import LOG_RATIO
from fedreach.report.figures.curves import Curve, draw, id_of
from fedreach.report.figures.style import (
    MUTED,
    Legend,
    heading,
    in_percent,
    label_x,
    line_style,
    new_panels,
    plain_numbers,
    shorten,
    tag,
    with_style,
)
from fedreach.report.numbers import Run, RunSet, Term
from fedreach.report.overview import Analysis
from fedreach.report.theory import References, recorded_terms

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# ---- Several quantities along one axis, one panel each

MAX_MARKED_POINTS = 25  # points up to which each has a marker


@with_style
def sweep(
    record: Mapping[str, Any], titles: Mapping[str, str], *, shares: Collection[str] = ("accuracy",), lines: bool = True
) -> Figure | None:
    """Draw numbers along an axis, one line per method with a band of ± sd over seeds; None without an axis.

    Args:
        record: ``x`` (v values), their ``axis``, ``methods`` and ``numbers``: quantity -> method -> (seeds, v) lists,
            None for a missing number. ``names`` name values that are not numbers; ``log`` requests a logarithmic axis.
        titles: Titles of the quantities; those without a title are not drawn.
        shares: Quantities that are fractions, drawn in percent.
        lines: Join values by lines; else draw markers with bars.
    """
    x = np.array(record["x"], dtype=np.float64)
    numbers = {
        quantity: {m: np.array(rows, dtype=np.float64) for m, rows in by_method.items()}
        for quantity, by_method in record["numbers"].items()
        if quantity in titles
    }
    numbers = {
        quantity: by_method
        for quantity, by_method in numbers.items()
        if any(np.isfinite(v).any() for v in by_method.values())
    }
    if len(x) < 2 or not numbers:
        return None
    methods: Sequence[str] = record["methods"]
    legend = Legend.of(methods, range(len(methods)))
    figure, panels = new_panels(len(numbers), 1.9, legend=legend.height)
    for axes, (quantity, by_method) in zip(panels, numbers.items(), strict=True):
        means = {j: v.mean(axis=0) for j, m in enumerate(methods) if np.isfinite(v := by_method[m]).all()}
        share = quantity in shares
        far = not share and max(y[-1] for y in means.values()) > LOG_RATIO * min(y[-1] for y in means.values())
        if far:
            axes.set_yscale("log")
        for j, mean in means.items():
            _line(axes, j, x, mean, by_method[methods[j]], len(legend.names), far=far, joined=lines)
        heading(axes, titles[quantity])
        if share:
            in_percent(axes)
        else:
            if not far:
                axes.set_ylim(bottom=0)
            plain_numbers(axes.yaxis, far=far)
    if record.get("log"):
        panels[-1].set_xscale("log")
        plain_numbers(panels[-1].xaxis, far=True)
    if record.get("names"):
        panels[-1].set_xticks(x, [shorten(name, 12) for name in record["names"]])
    label_x(panels, record["axis"])
    legend.draw(figure)
    return figure


def _line(
    axes: Axes, j: int, x: Floats, mean: Floats, seeds: Floats, neighbours: int, *, far: bool, joined: bool
) -> None:
    sd = seeds.std(axis=0, ddof=1) if len(seeds) > 1 else np.full(len(x), np.nan)
    low = np.maximum(mean - sd, mean / (3 * LOG_RATIO)) if far else mean - sd  # a logarithmic axis has no 0
    if not joined:
        alone = axes.errorbar(x, mean, np.nan_to_num(sd), **line_style(j) | {"linestyle": ""}, elinewidth=0.8, zorder=4)
        tag(alone.lines[0], j, f"marks{id_of(axes)}")
        return
    draw(axes, j, x, Curve(x, x, mean, low, mean + sd), neighbours)
    if len(x) <= MAX_MARKED_POINTS:
        (marks,) = axes.plot(x[:-1], mean[:-1], **line_style(j) | {"linestyle": ""}, zorder=4)
        tag(marks, j, f"marks{id_of(axes)}")


# ---- Terms of the papers' bounds over the rounds

STRETCHES = 30  # points of a curve: cohorts change from round to round, and curves of single rounds are illegible


@with_style
def theory(analysis: Analysis) -> Figure | None:
    """Draw the terms, one panel each; None if no run has any."""
    comparison, terms = analysis.comparison, recorded_terms(analysis)
    if not terms:
        return None
    drawn = {term.name: theory_curves(comparison, term.name) for term in terms}
    legend = Legend.of(comparison.methods, sorted({j for by_method in drawn.values() for j in by_method}))
    figure, panels = new_panels(len(terms), 1.2, margins=0.3, legend=legend.height)
    for axes, term in zip(panels, terms, strict=True):
        for j, curve in drawn[term.name].items():
            draw(axes, j, curve.rounds, curve, len(legend.names))
        axes.set_title(term.title)  # many names are longer than their panels are tall
        axes.locator_params(axis="y", nbins=4)
        if term.percent:
            in_percent(axes)
        _draw_reference(axes, term, analysis.references)
    label_x(panels, "round")
    legend.draw(figure)
    return figure


def theory_curves(comparison: RunSet, name: str) -> dict[int, Curve]:
    """Return the curve of each method with this term, by the method's position."""
    curves_by_method = {}
    for j, method in enumerate(comparison.methods):
        runs = [run for run in comparison.counted(method) if np.isfinite(run.theory.get(name, np.nan)).any()]
        if runs and len((curve := mean_by_stretch(runs, name)).rounds):
            curves_by_method[j] = curve
    return curves_by_method


def mean_by_stretch(runs: Sequence[Run], name: str) -> Curve:
    """Return a term's mean in stretches of rounds, and ± sd over several seeds.

    A stretch is drawn at the mean of its rounds if all runs have a number in it.
    """
    last = max(run.last_round for run in runs)
    edges = np.unique(np.linspace(0, last, min(STRETCHES, max(last, 1)) + 1).round())
    values = np.array([_means(run, name, edges) for run in runs])
    complete = np.isfinite(values).all(axis=0)
    values, middle = values[:, complete], ((edges[:-1] + edges[1:] + 1) / 2)[complete]
    nothing = np.full(len(middle), np.nan)
    mean, sd = values.mean(axis=0), values.std(axis=0, ddof=1) if len(runs) > 1 else nothing
    return Curve(rounds=middle, megabytes=nothing, mean=mean, low=mean - sd, high=mean + sd)


def _means(run: Run, name: str, edges: Floats) -> Floats:
    """Return the mean of the finite values in each stretch (edge, next edge]; nan without any."""
    values = run.theory[name]
    finite = np.isfinite(values)
    stretch = np.searchsorted(edges, run.rounds["round"][finite], side="left") - 1
    inside = stretch >= 0  # round 0 does not train
    count = np.bincount(stretch[inside], minlength=len(edges) - 1)
    total = np.bincount(stretch[inside], values[finite][inside], minlength=len(edges) - 1)
    return np.asarray(np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0))


def _draw_reference(axes: Axes, term: Term, references: References) -> None:
    """Draw the reference value of a term as a dashed line."""
    pooled = references.pooled
    value = {"entropy": references.participants, "label_gap": pooled, "label_gap_so_far": pooled}.get(term.name)
    if value is not None:
        axes.axhline(value, color=MUTED, linewidth=0.9, linestyle=(0, (2, 2)))
