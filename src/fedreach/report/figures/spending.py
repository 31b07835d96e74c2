"""What simulated time and energy buy: accuracy against them, and both over the rounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from fedreach.arrays import Bools, Floats
from fedreach.report.analysis.quantities import QUANTITIES, RADIO
from fedreach.report.figures.curves import Curve, at, curves, draw, leave_out_the_start, ring, target_line, title_of
from fedreach.report.figures.names import Legend, heading
from fedreach.report.figures.style import label_x, new_panels, plain_numbers, styled
from fedreach.report.numbers import Unit, unit_of
from fedreach.report.values import Comparison, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

FAR = 10.0  # methods whose ends differ by more share a logarithmic axis: a linear one would press the cheap ones flat
POINTS = 200  # of a line over the rounds


@styled
def accuracy_against(comparison: Comparison, quantity: str) -> Figure | None:
    """Draw accuracy against the "seconds" or "joules" spent, panels as in `curves.accuracy`; None without a radio."""
    columns = list(dict.fromkeys([comparison.seen, comparison.primary]))
    drawn = {column: curves(comparison, column) for column in columns}
    spent = {column: _spent(comparison, drawn[column], quantity) for column in columns}
    ends = [x[-1] for by_method in spent.values() for x in by_method.values()]
    if not ends:
        return None
    unit, far = unit_of(quantity, ends), _far(ends)
    legend = Legend.of(comparison.methods, spent[comparison.seen])
    figure, panels = new_panels(len(columns), 1.75, legend=legend.height, sharey=True)
    for axes, column in zip(panels, columns, strict=True):
        if far:
            axes.set_xscale("log")
        for j, x in spent[column].items():
            shown = x > 0 if far else x >= 0
            draw(axes, j, x[shown] / unit.size, _cut(drawn[column][j], shown), len(legend.names))
        title_of(axes, comparison, column)
    for j in spent[comparison.primary]:
        ring(panels[-1], j, comparison, QUANTITIES[quantity].column, unit.size)
    label_x(panels, f"{QUANTITIES[quantity].words} so far, {unit.name}, probes included")
    every = [drawn[column][j] for column in columns for j in spent[column]]
    leave_out_the_start(panels[-1], every, falling=comparison.score.lower_is_better)
    starts = [_start(panels[-1], drawn[column][j], x) for column in columns for j, x in spent[column].items()]
    panels[-1].set_xlim(left=0.7 * min(starts) / unit.size if far else 0)
    _plain_numbers(panels[-1].xaxis, far=far)
    target_line(panels[-1], comparison)
    legend.draw(figure)
    return figure


@styled
def spending(comparison: Comparison) -> Figure | None:
    """Draw simulated time and energy so far over the rounds, a panel each; None if no run had a radio."""
    drawn = {quantity: _totals(comparison, quantity.column) for quantity in RADIO}
    drawn = {quantity: by_method for quantity, by_method in drawn.items() if by_method}
    if not drawn:
        return None
    legend = Legend.of(comparison.methods, sorted({j for by_method in drawn.values() for j in by_method}))
    figure, panels = new_panels(len(drawn), 1.75, legend=legend.height)
    for axes, (quantity, by_method) in zip(panels, drawn.items(), strict=True):
        ends = [made.mean[-1] for made in by_method.values()]
        unit, far = unit_of(quantity.name, ends), _far(ends)
        if far:
            axes.set_yscale("log")
        for j, made in by_method.items():
            shown = _cut(_scaled(made, unit), made.mean > 0 if far else made.mean >= 0)
            if far:  # a band may reach below 0, which such an axis does not have
                shown = replace(shown, low=np.maximum(shown.low, shown.mean / FAR))
            draw(axes, j, shown.rounds, shown, len(legend.names))
        heading(axes, f"{quantity.words.capitalize()} so far, {unit.name}")
        if not far:
            axes.set_ylim(bottom=0)
        _plain_numbers(axes.yaxis, far=far)
    label_x(panels, "round")
    legend.draw(figure)
    return figure


def _spent(comparison: Comparison, drawn: Mapping[int, Curve], quantity: str) -> dict[int, Floats]:
    """Return what each method had spent, mean over seeds, at the rounds of its curve; not of those without radio."""
    spent = {}
    for j, made in drawn.items():
        x = at(comparison.counted(comparison.methods[j]), made.rounds, QUANTITIES[quantity].column).mean(0)
        if np.isfinite(x).all() and x[-1] > 0:
            spent[j] = x
    return spent


def _start(axes: Axes, made: Curve, spent: Floats) -> float:
    """Return what was spent at the first point that lies inside the frame."""
    inside = np.flatnonzero((made.mean >= axes.get_ylim()[0]) & (spent > 0))
    return float(spent[inside[0]] if len(inside) else spent[-1])


def _totals(comparison: Comparison, column: str) -> dict[int, Curve]:
    found = {}
    for j, method in enumerate(comparison.methods):
        runs = comparison.counted(method)
        rounds = _common_rounds(runs)
        if len(rounds) and np.isfinite(values := at(runs, rounds, column)).all() and values[:, -1].min() > 0:
            nothing = np.full(len(rounds), np.nan)
            mean, sd = values.mean(0), values.std(0, ddof=1) if len(runs) > 1 else nothing
            found[j] = Curve(rounds, nothing, mean, mean - sd, mean + sd)
    return found


def _common_rounds(runs: tuple[Run, ...]) -> Floats:
    if not runs:
        return np.zeros(0)
    rounds = reduce(np.intersect1d, [run.rounds["round"] for run in runs])
    places = np.unique(np.linspace(0, len(rounds) - 1, min(POINTS, len(rounds))).round().astype(int))
    return np.asarray(rounds[places], np.float64)


def _cut(made: Curve, shown: Bools) -> Curve:
    return Curve(made.rounds[shown], made.megabytes[shown], made.mean[shown], made.low[shown], made.high[shown])


def _scaled(made: Curve, unit: Unit) -> Curve:
    return replace(made, mean=made.mean / unit.size, low=made.low / unit.size, high=made.high / unit.size)


def _far(ends: Iterable[float]) -> bool:
    known = list(ends)
    return max(known) > FAR * min(known)


def _plain_numbers(axis: Axis, *, far: bool) -> None:
    low, high = axis.get_view_interval()
    plain_numbers(axis, far=far, ticks=(1.0, 3.0) if high < 1e3 * low else (1.0,))  # while there is room
