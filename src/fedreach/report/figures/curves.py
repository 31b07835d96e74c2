"""Curves over rounds, and differences to the baseline."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from fedreach._util.arrays import Floats
from fedreach.report.analysis import POPULATION, target_row
from fedreach.report.figures.style import (
    INK,
    MUTED,
    PANEL,
    SINGLE_PANEL,
    Legend,
    heading,
    in_percent,
    label_x,
    line_style,
    marks,
    name_rows,
    new_figure,
    new_panels,
    shorten,
    style,
    tag,
    with_style,
)
from fedreach.report.numbers import Run, RunSet
from fedreach.report.overview import Analysis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# ---- Accuracy, gap and communication over the rounds

LABEL = (0.2, 0.16)  # width and height of a short text in a panel, as shares of it


@dataclass(frozen=True)
class Curve:
    """Mean and band of a column at the e rounds that all runs evaluated."""

    rounds: Floats  # (e,)
    megabytes: Floats  # (e,) sent so far, mean over seeds
    mean: Floats  # (e,)
    low: Floats  # (e,) nan without a band
    high: Floats  # (e,)


def curve(runs: Sequence[Run], column: str) -> Curve:
    """Return mean and band of a column: ± sd over seeds, or for a single seed the 95% CI over clients."""
    evaluated = [run.rounds["round"][np.isfinite(run.column(column))] for run in runs]
    rounds = reduce(np.intersect1d, evaluated)
    values = values_at(runs, rounds, column)
    mean = values.mean(0)
    if len(runs) > 1:
        sd = values.std(0, ddof=1)
        low, high = mean - sd, mean + sd
    else:
        low, high = values_at(runs, rounds, f"{column}_low")[0], values_at(runs, rounds, f"{column}_high")[0]
    return Curve(rounds, values_at(runs, rounds, "bytes_total").mean(0) / 1e6, mean, low, high)


def values_at(runs: Sequence[Run], rounds: Floats, column: str) -> Floats:
    """Return a column of s runs at e rounds that all runs have, shape (s, e)."""
    return np.array([run.column(column)[np.searchsorted(run.rounds["round"], rounds)] for run in runs])


def curves(comparison: RunSet, column: str) -> dict[int, Curve]:
    """Return the curve of each method that has one, by the method's position."""
    with_column = [
        [run for run in comparison.counted(method) if np.isfinite(run.column(column)).any()]
        for method in comparison.methods
    ]
    return {
        j: method_curve
        for j, runs in enumerate(with_column)
        if runs and len((method_curve := curve(runs, column)).rounds)
    }


@with_style
def accuracy(comparison: RunSet) -> Figure | None:
    """Draw accuracy over rounds: participants above, unseen clients (else the test set) below, same scale.

    A population without scores has no panel; None if no population has scores.
    """
    drawn = {column: curves(comparison, column) for column in (comparison.seen, comparison.primary)}
    columns = [column for column, of_methods in drawn.items() if of_methods]
    if not columns:
        return None
    legend = Legend.of(comparison.methods, drawn[columns[0]])
    figure, panels = new_panels(len(columns), 1.75, legend=legend.height, sharey=True)
    for axes, column in zip(panels, columns, strict=True):
        for j, method_curve in drawn[column].items():
            draw(axes, j, method_curve.rounds, method_curve, len(legend.names))
        title_of(axes, comparison, column)
    label_x(panels, "round")
    every = [method_curve for by_method in drawn.values() for method_curve in by_method.values()]
    leave_out_the_start(panels[-1], every, falling=comparison.score.lower_is_better)
    target_line(panels[-1], comparison)
    legend.draw(figure)
    return figure


@with_style
def gap(comparison: RunSet) -> Figure | None:
    """Draw the participation gap over rounds; None if no client is unseen."""
    drawn = curves(comparison, "participation_gap")
    if not drawn:
        return None
    legend = Legend.of(comparison.methods, drawn)
    figure = new_figure(2.6 + legend.height)
    axes = figure.subplots()
    for j, method_curve in drawn.items():
        draw(axes, j, method_curve.rounds, method_curve, len(legend.names))
    axes.axhline(0, color=INK, linewidth=0.8)
    heading(axes, "Participation gap" + ", percentage points" * comparison.score.percent, SINGLE_PANEL)
    axes.set_xlabel("round")
    if comparison.score.percent:
        in_percent(axes)
    legend.draw(figure)
    return figure


@with_style
def cost(comparison: RunSet) -> Figure | None:
    """Draw the primary accuracy against communication; a ring marks where the target is first reached."""
    drawn = curves(comparison, comparison.primary)
    if not drawn:
        return None
    legend = Legend.of(comparison.methods, drawn)
    figure = new_figure(2.6 + legend.height)
    axes = figure.subplots()
    for j, method_curve in drawn.items():
        draw(axes, j, method_curve.megabytes, method_curve, len(legend.names))
        ring(axes, j, comparison, "bytes_total", 1e6)
    title_of(axes, comparison, comparison.primary, SINGLE_PANEL)
    axes.set_xlabel("MB sent so far, down + up, probes included")
    axes.set_xlim(left=0)
    leave_out_the_start(axes, list(drawn.values()), falling=comparison.score.lower_is_better)
    target_line(axes, comparison)
    legend.draw(figure)
    return figure


def title_of(axes: Axes, comparison: RunSet, column: str, tall: float = PANEL) -> None:
    """Write the score and population above a panel, and label its axis in the unit of the score."""
    score = comparison.score
    heading(axes, f"{score.words.capitalize()} on {POPULATION[column].words}{', %' * score.percent}", tall)
    if score.percent:
        in_percent(axes)


def draw(axes: Axes, j: int, x: Floats, method_curve: Curve, neighbours: int) -> None:
    """Draw the curve of the method at position j over x, with its band and a mark at its end."""
    bounded = np.isfinite(method_curve.low) & np.isfinite(method_curve.high)
    if bounded.any():
        alpha = 0.14 if neighbours <= 6 else 0.06
        band = axes.fill_between(
            x[bounded],
            method_curve.low[bounded],
            method_curve.high[bounded],
            color=line_style(j)["color"],
            alpha=alpha,
            lw=0,
        )
        tag(band, j, f"band{id_of(axes)}")
    (line,) = axes.plot(x, method_curve.mean, zorder=3, **line_style(j) | marks(j))
    (end,) = axes.plot(x[-1], method_curve.mean[-1], clip_on=False, zorder=4, **line_style(j))
    tag(line, j, f"line{id_of(axes)}")
    tag(end, j, f"end{id_of(axes)}")


def leave_out_the_start(axes: Axes, drawn: Sequence[Curve], *, falling: bool = False) -> None:
    # The steep first fifth of the rounds would take most of the height and merge all methods into one line.
    late = [method_curve.mean[method_curve.rounds >= 0.2 * method_curve.rounds[-1]] for method_curve in drawn]
    values = np.concatenate([np.concatenate([method_curve.low, method_curve.high]) for method_curve in drawn] + late)
    bottom, top = min(part.min() for part in late), np.nanmax(values)
    if falling:
        bottom, top = np.nanmin(values), max(part.max() for part in late)
    axes.set_ylim(bottom - 0.04 * (top - bottom), top + 0.04 * (top - bottom) + 1e-3)


def id_of(axes: Axes) -> int:
    """Return the position of the axes in their figure, which makes the ids of their artists unique."""
    figure = axes.get_figure()
    return figure.axes.index(axes) if figure is not None else 0


def ring(axes: Axes, j: int, comparison: RunSet, column: str, unit: float) -> None:
    """Mark where the method at position j first reaches the target, on average, if all its seeds do."""
    runs = comparison.counted(comparison.methods[j])
    hits = [run.column(column)[row] / unit for run in runs if (row := target_row(run, comparison)) is not None]
    if len(hits) == len(runs) and comparison.target_accuracy is not None:
        (mark,) = axes.plot(
            np.mean(hits), comparison.target_accuracy, "o", ms=7, mfc="none", mec=line_style(j)["color"]
        )
        tag(mark, j, "ring")


def target_line(axes: Axes, comparison: RunSet) -> None:
    """Draw and name the target accuracy, if there is one."""
    target = comparison.target_accuracy
    if target is None:
        return
    axes.axhline(target, color=MUTED, linewidth=0.9, linestyle=(0, (2, 2)))
    low, high = axes.get_ylim()
    low, high = min(low, target - 0.02), max(high, target + 0.02)
    axes.set_ylim(low, high)
    x, below = _free_place(axes, (target - low) / (high - low))
    label = axes.annotate(
        f"target {100 * target:g} %",
        (x, target),
        xycoords=("axes fraction", "data"),
        xytext=(3 - 6 * x, -3 if below else 3),
        textcoords="offset points",
        horizontalalignment={0.0: "left", 0.5: "center", 1.0: "right"}[x],
        verticalalignment="top" if below else "baseline",
        fontsize=style().smallest,
        color=style().muted,
    )
    label.set_in_layout(False)


def _free_place(axes: Axes, height: float) -> tuple[float, bool]:
    """Return where a line at this height should be named, and whether below it, to cover the fewest points of curves.

    Positions are shares of the axes' width and height. A name above a high line would touch the panel's title.
    """
    lines = [np.asarray(line.get_xydata()) for line in axes.lines]
    drawn = [line for line in lines if len(line) > 2]  # marks have one point, level lines two
    axes_lines = [axes.transLimits.transform(axes.transScale.transform(line)) for line in drawn]
    width, tall = LABEL

    def count_covered(place: tuple[float, bool]) -> int:
        x, below = place
        across = x * (1 - width) + np.linspace(0, width, 20)
        bottom, top = (height - tall, height) if below else (height, height + tall)
        heights = [np.interp(across, points[:, 0], points[:, 1], left=np.nan, right=np.nan) for points in axes_lines]
        return sum(int(((y > bottom) & (y < top)).sum()) for y in heights)

    places = [(0.0, False), (0.0, True), (1.0, True), (1.0, False), (0.5, False), (0.5, True)]
    allowed = [place for place in places if place[1] or height + tall <= 1]
    return min(allowed, key=count_covered)  # the first of the best


# ---- Differences to the baseline


@with_style
def differences(analysis: Analysis) -> Figure | None:
    """Draw each method's difference to the baseline with its interval over seeds, and the margin; None without any."""
    comparison = analysis.comparison
    rows = [(j, row) for j, row in enumerate(analysis.last) if row.difference.mean is not None]
    if not rows:
        return None
    figure = new_figure(0.85 + max(0.36 * len(rows), 0.8))
    axes = figure.subplots()
    for place, (j, row) in enumerate(rows):
        difference = row.difference
        middle = difference.mean or 0.0
        if difference.low is not None and difference.high is not None:
            (bar,) = axes.plot([difference.low, difference.high], [place, place], color=line_style(j)["color"], lw=2.2)
            tag(bar, j, "interval")
        (dot,) = axes.plot(middle, place, **line_style(j) | {"markersize": 7})
        tag(dot, j, "mean")
    axes.margins(x=0.08)
    axes.axvline(0, color=INK, linewidth=0.9)
    if comparison.margin is not None:
        axes.axvspan(-comparison.margin, comparison.margin, color=MUTED, alpha=0.12, linewidth=0)
    name_rows(axes, [row.method for _, row in rows])
    where = POPULATION[comparison.primary].words.removesuffix("' held-out data")
    score = comparison.score
    units = "percentage points" if score.percent else f"{score.words}, less is better:"
    if style().printed:
        label_lines = textwrap.wrap(f"{units} above {comparison.baseline} on {where}", style().letters(style().width))
        figure.supxlabel("\n".join(label_lines), fontsize=style().size, color=style().muted)
    else:
        axes.set_title(f"Difference on {where}")
        axes.set_xlabel(f"{units} above {shorten(comparison.baseline, 14)}")
    if score.percent:
        in_percent(axes, "x")
    return figure
