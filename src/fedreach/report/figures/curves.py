"""Curves over rounds, costs and swept options, and differences to the baseline."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from fedreach._util.arrays import Bools, Floats
from fedreach.report.analysis import POPULATION, QUANTITIES, RADIO, target_row
from fedreach.report.figures.style import (
    INK,
    MUTED,
    PANEL,
    SINGLE_PANEL,
    Legend,
    heading,
    in_percent,
    line_style,
    marks,
    name_rows,
    new_figure,
    plain_numbers,
    shorten,
    style,
    tag,
    with_style,
)
from fedreach.report.numbers import RunData, RunSet, Unit, unit_of
from fedreach.report.overview import Analysis
from fedreach.report.theory import recorded_terms

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# ---- Curves of several runs

LOG_RATIO = 10.0  # ratio of ends from which an axis is logarithmic: a linear one would flatten the cheap methods
POINTS = 200  # points of a line over the rounds
WIDE = 5.0  # inches, from which panels are side by side in a paper
MAX_PANELS_IN_ROW = 3  # most panels side by side
STRETCHES = 30  # points of a curve of single rounds, which would be illegible: cohorts change from round to round


@dataclass(frozen=True)
class Curve:
    """Mean and band of a number at e rounds that all runs share, or at e values of a swept option."""

    rounds: Floats  # (e,)
    x: Floats  # (e,) where it is drawn: at its rounds, or at what they cost
    mean: Floats  # (e,)
    low: Floats  # (e,) nan without a band
    high: Floats  # (e,)

    def at(self, mask: Bools) -> Curve:
        """Return the curve at the points that `mask` selects."""
        return Curve(*(values[mask] for values in vars(self).values()))


def curve_of(values: Floats, rounds: Floats) -> Curve:
    """Return the mean of (s, e) values of s runs at e rounds, with a band of ± sd if there are several runs."""
    mean = values.mean(0)
    sd = values.std(0, ddof=1) if len(values) > 1 else np.full(len(mean), np.nan)
    return Curve(rounds, rounds, mean, mean - sd, mean + sd)


def curve(runs: Sequence[RunData], column: str, x_column: str = "round") -> Curve:
    """Return mean and band of a column against `x_column`; the band is ± sd over seeds, or the CI over clients."""
    rounds = reduce(np.intersect1d, [run.rounds["round"][np.isfinite(run.column(column))] for run in runs])
    curve = replace(curve_of(values_at(runs, rounds, column), rounds), x=values_at(runs, rounds, x_column).mean(0))
    if len(runs) > 1:
        return curve
    return replace(curve, **{end: values_at(runs, rounds, f"{column}_{end}")[0] for end in ("low", "high")})


def values_at(runs: Sequence[RunData], rounds: Floats, column: str) -> Floats:
    """Return a column of s runs at e rounds that all runs share, shape (s, e)."""
    return np.array([run.column(column)[np.searchsorted(run.rounds["round"], rounds)] for run in runs])


def curves(comparison: RunSet, column: str, x_column: str = "round") -> dict[int, Curve]:
    """Return the curves by the position of the method; methods without data have no curve."""
    with_column = [
        [run for run in comparison.counted(method) if np.isfinite(run.column(column)).any()]
        for method in comparison.methods
    ]
    return {
        j: method_curve
        for j, runs in enumerate(with_column)
        if runs and len((method_curve := curve(runs, column, x_column)).rounds)
    }


def draw_panels(
    methods: Sequence[str],
    drawn: Mapping[Any, Mapping[int, Curve]],
    x_label: str = "round",
    *,
    tall: float = PANEL,
    margins: float = 0.4,
    sharey: bool = False,
    draw_method: Callable[[Axes, int, Curve, int], None] | None = None,
) -> tuple[Figure, list[Axes]]:
    """Draw a panel for each key of `drawn`, below a common legend.

    Args:
        methods: Names of all methods.
        drawn: Curves of each panel, by the position of the method.
        x_label: Label of the x-axis, which all panels share.
        tall: Height of a panel on the page in inches, without `margins` and the legend.
        margins: Inches above and below the panels.
        sharey: Share the y-axis as well.
        draw_method: Function that draws one curve. Default: `draw`.
    """
    legend = Legend.of(methods, sorted({j for by_method in drawn.values() for j in by_method}))
    # In a wide paper, panels are side by side.
    columns = len(drawn) if style().printed and style().width >= WIDE and len(drawn) <= MAX_PANELS_IN_ROW else 1
    rows = len(drawn) // columns
    figure = new_figure(margins + tall * rows + legend.height)
    panels = list(figure.subplots(rows, columns, sharex=True, sharey=sharey, squeeze=False).ravel())
    for axes, by_method in zip(panels, drawn.values(), strict=True):
        for j, method_curve in by_method.items():
            (draw_method or draw)(axes, j, method_curve, len(legend.names))
    if columns > 1:
        figure.supxlabel(x_label, fontsize=style().size, color=style().muted)
    else:
        panels[-1].set_xlabel(x_label)
    legend.draw(figure)
    return figure, panels


# ---- Score and gap over the rounds, and what they cost

LABEL = (0.2, 0.16)  # width and height of a short text in a panel, as shares of it


@with_style
def accuracy(comparison: RunSet, against: str = "round") -> Figure | None:
    """Draw the score against rounds, or against the megabytes, seconds or joules so far.

    The upper panel shows participants, and the lower panel unseen clients (else the test set), on the same scale.
    Against megabytes, only the lower panel is drawn. A ring marks the cost at which the target is first reached. A
    population without scores has no panel. If no population has scores, the result is None.
    """
    quantity, alone = QUANTITIES[against], against == "megabytes"
    columns = dict.fromkeys([comparison.primary] if alone else [comparison.seen, comparison.primary])
    every = {column: curves(comparison, column, quantity.column) for column in columns}
    if quantity.is_radio:
        every = {
            column: {j: c for j, c in of.items() if np.isfinite(c.x).all() and c.x[-1] > 0}
            for column, of in every.items()
        }
    every = {column: by_method for column, by_method in every.items() if by_method}
    if not every:
        return None
    ends = [method_curve.x[-1] for by_method in every.values() for method_curve in by_method.values()]
    unit = unit_of(against, ends) if quantity.is_radio else Unit(quantity.unit, quantity.scale)
    far = quantity.is_radio and _are_far_apart(ends)
    drawn = {
        column: {j: replace(c, x=c.x / unit.size).at(c.x > 0 if far else c.x >= 0) for j, c in by_method.items()}
        for column, by_method in every.items()
    }
    label = f"{quantity.words} so far, {unit.name}"
    label = {"round": "round", "megabytes": "communication so far, MB"}.get(against, label)
    tall = SINGLE_PANEL if alone else PANEL
    figure, panels = draw_panels(comparison.methods, drawn, label, tall=tall, sharey=True)
    for axes, column in zip(panels, drawn, strict=True):
        if far:
            axes.set_xscale("log")
        title_of(axes, comparison, column, tall)
    method_curves = [method_curve for by_method in drawn.values() for method_curve in by_method.values()]
    leave_out_the_start(panels[-1], method_curves, falling=comparison.score.lower_is_better)
    if against != "round":
        for j in drawn.get(comparison.primary, ()):
            ring(panels[-1], j, comparison, quantity.column, unit.size)
        panels[-1].set_xlim(
            left=0.7 * min(_start(panels[-1], method_curve) for method_curve in method_curves) if far else 0
        )
    if quantity.is_radio:
        _plain_numbers(panels[-1].xaxis, far=far)
    target_line(panels[-1], comparison)
    return figure


def _start(axes: Axes, method_curve: Curve) -> float:
    """Return the cost at the first point inside the frame."""
    inside = np.flatnonzero(method_curve.mean >= axes.get_ylim()[0])
    return float(method_curve.x[inside[0] if len(inside) else -1])


@with_style
def gap(comparison: RunSet) -> Figure | None:
    """Draw the participation gap over rounds; None if all clients participate."""
    drawn = curves(comparison, "participation_gap")
    if not drawn:
        return None
    figure, (axes,) = draw_panels(comparison.methods, {"gap": drawn}, tall=SINGLE_PANEL)
    axes.axhline(0, color=INK, linewidth=0.8)
    heading(axes, "Participation gap" + ", points" * comparison.score.percent, SINGLE_PANEL)
    if comparison.score.percent:
        in_percent(axes)
    return figure


@with_style
def spending(comparison: RunSet) -> Figure | None:
    """Draw cumulative simulated time and energy over rounds, in one panel each; None if no run had a radio."""
    totals = {q: by_method for q in RADIO if (by_method := _totals(comparison, q.column))}
    ends = {q: [method_curve.mean[-1] for method_curve in by_method.values()] for q, by_method in totals.items()}
    units = {q: unit_of(q.name, values) for q, values in ends.items()}
    drawn = {
        q: {j: _rescale(c, units[q], far=_are_far_apart(ends[q])) for j, c in by_method.items()}
        for q, by_method in totals.items()
    }
    if not drawn:
        return None
    figure, panels = draw_panels(comparison.methods, drawn)
    for axes, quantity in zip(panels, drawn, strict=True):
        heading(axes, f"{quantity.words.capitalize()} so far, {units[quantity].name}")
        if far := _are_far_apart(ends[quantity]):
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        _plain_numbers(axes.yaxis, far=far)
    return figure


def _totals(comparison: RunSet, column: str) -> dict[int, Curve]:
    totals = {}
    for j, runs in enumerate(map(comparison.counted, comparison.methods)):
        rounds = reduce(np.intersect1d, [run.rounds["round"] for run in runs]) if runs else np.zeros(0)
        rounds = rounds[np.unique(np.linspace(0, len(rounds) - 1, min(POINTS, len(rounds))).round().astype(int))]
        if len(rounds) and np.isfinite(values := values_at(runs, rounds, column)).all() and values[:, -1].min() > 0:
            totals[j] = curve_of(values, rounds)
    return totals


def _rescale(total: Curve, unit: Unit, *, far: bool) -> Curve:
    """Return a curve in a unit; on a logarithmic axis, which has no 0, its band does not reach below it."""
    scaled = replace(total, mean=total.mean / unit.size, low=total.low / unit.size, high=total.high / unit.size)
    if not far:
        return scaled
    return replace(scaled, low=np.maximum(scaled.low, scaled.mean / LOG_RATIO)).at(scaled.mean > 0)


def _are_far_apart(ends: Iterable[float]) -> bool:
    values = list(ends)
    return max(values) > LOG_RATIO * min(values)


def _plain_numbers(axis: Any, *, far: bool) -> None:
    low, high = axis.get_view_interval()
    plain_numbers(axis, far=far, ticks=(1.0, 3.0) if high < 1e3 * low else (1.0,))  # while there is room


def title_of(axes: Axes, comparison: RunSet, column: str, tall: float = PANEL) -> None:
    """Write the score and population above a panel, and label its y-axis with the unit of the score."""
    score = comparison.score
    heading(axes, f"{score.words.capitalize()} on {POPULATION[column].words}{', %' * score.percent}", tall)
    if score.percent:
        in_percent(axes)


def draw(axes: Axes, j: int, method_curve: Curve, neighbours: int) -> None:
    """Draw the curve of the method at position j, with its band and a marker at the end."""
    x = method_curve.x
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
    """Return the index of the axes in their figure, which makes the ids of their artists unique."""
    figure = axes.get_figure()
    return figure.axes.index(axes) if figure is not None else 0


def ring(axes: Axes, j: int, comparison: RunSet, column: str, unit: float) -> None:
    """Mark where the method at position j first reaches the target on average, if it does with all seeds."""
    runs = comparison.counted(comparison.methods[j])
    hits = [run.column(column)[row] / unit for run in runs if (row := target_row(run, comparison)) is not None]
    if len(hits) == len(runs) and comparison.target_accuracy is not None:
        (mark,) = axes.plot(
            np.mean(hits), comparison.target_accuracy, "o", ms=7, mfc="none", mec=line_style(j)["color"]
        )
        tag(mark, j, "ring")


def target_line(axes: Axes, comparison: RunSet) -> None:
    """Draw and label the target accuracy if the comparison has one."""
    target = comparison.target_accuracy
    if target is None:
        return
    axes.axhline(target, color=MUTED, linewidth=0.9, linestyle=(0, (2, 2)))
    low, high = axes.get_ylim()
    low, high = min(low, target - 0.02), max(high, target + 0.02)
    axes.set_ylim(low, high)
    x, below = _free_place(axes, (target - low) / (high - low))
    label = axes.annotate(
        f"target {100 * target:g}%",
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


# ---- Several quantities along a swept option, one panel each

MAX_MARKED_POINTS = 25  # points up to which each has a marker


@with_style
def sweep(
    record: Mapping[str, Any], titles: Mapping[str, str], *, shares: Collection[str] = ("accuracy",), lines: bool = True
) -> Figure | None:
    """Draw numbers against a swept option, one line per method with a band of ± sd over seeds; None without an axis.

    Args:
        record: ``x`` (v values), their ``axis``, ``methods`` and ``numbers``: quantity -> method -> (seeds, v) lists,
            with None for a missing number. ``names`` contains the names of values that are not numbers. ``log``
            requests a logarithmic axis.
        titles: Titles of the quantities. Quantities without a title are not drawn.
        shares: Quantities that are fractions and are drawn in percent.
        lines: Connect values with lines. Otherwise, draw markers with bars.
    """
    x = np.array(record["x"], dtype=np.float64)
    drawn: dict[str, dict[int, Curve]] = {}
    for quantity in record["numbers"].keys() & titles.keys():
        values = [np.array(record["numbers"][quantity][m], dtype=np.float64) for m in record["methods"]]
        drawn[quantity] = {j: curve_of(v, x) for j, v in enumerate(values) if np.isfinite(v.mean(axis=0)).all()}
    drawn = {quantity: drawn[quantity] for quantity in record["numbers"] if drawn.get(quantity)}
    if len(x) < 2 or not drawn:
        return None
    far = {q: q not in shares and _are_far_apart(c.mean[-1] for c in by.values()) for q, by in drawn.items()}
    for quantity in filter(far.get, drawn):
        drawn[quantity] = {
            j: replace(c, low=np.maximum(c.low, c.mean / (3 * LOG_RATIO))) for j, c in drawn[quantity].items()
        }  # a logarithmic axis has no 0
    figure, panels = draw_panels(
        record["methods"], drawn, shorten(record["axis"], 40), tall=1.9, draw_method=_joined if lines else _apart
    )
    for axes, quantity in zip(panels, drawn, strict=True):
        heading(axes, titles[quantity])
        if quantity in shares:
            in_percent(axes)
            continue
        if far[quantity]:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        plain_numbers(axes.yaxis, far=far[quantity])
    if record.get("log"):
        panels[-1].set_xscale("log")
        plain_numbers(panels[-1].xaxis, far=True)
    if record.get("names"):
        panels[-1].set_xticks(x, [shorten(name, 12) for name in record["names"]])
    return figure


def _joined(axes: Axes, j: int, line: Curve, neighbours: int) -> None:
    draw(axes, j, line, neighbours)
    if len(line.x) <= MAX_MARKED_POINTS:
        (points,) = axes.plot(line.x[:-1], line.mean[:-1], **line_style(j) | {"linestyle": ""}, zorder=4)
        tag(points, j, f"marks{id_of(axes)}")


def _apart(axes: Axes, j: int, line: Curve, _: int) -> None:
    bars = np.nan_to_num(line.high - line.mean)
    points = axes.errorbar(line.x, line.mean, bars, **line_style(j) | {"linestyle": ""}, elinewidth=0.8, zorder=4)
    tag(points.lines[0], j, f"marks{id_of(axes)}")


# ---- Terms of the papers' bounds over the rounds


@with_style
def theory(analysis: Analysis) -> Figure | None:
    """Draw the terms of bounds, one panel each; None if no run contains terms."""
    terms = recorded_terms(analysis)
    if not terms:
        return None
    drawn = {term: theory_curves(analysis.comparison, term.name) for term in terms}
    figure, panels = draw_panels(analysis.comparison.methods, drawn, tall=1.2, margins=0.3)
    pooled = analysis.references.pooled
    references = {"entropy": analysis.references.participants, "label_gap": pooled, "label_gap_so_far": pooled}
    for axes, term in zip(panels, terms, strict=True):
        axes.set_title(term.title)  # many names are longer than their panels are tall
        axes.locator_params(axis="y", nbins=4)
        if term.percent:
            in_percent(axes)
        if term.name in references:
            axes.axhline(references[term.name], color=MUTED, linewidth=0.9, linestyle=(0, (2, 2)))
    return figure


def theory_curves(comparison: RunSet, name: str) -> dict[int, Curve]:
    """Return the curve of this term for each method, by the method's position."""
    curves_by_method = {}
    for j, method in enumerate(comparison.methods):
        runs = [run for run in comparison.counted(method) if np.isfinite(run.theory.get(name, np.nan)).any()]
        if runs and len((curve := mean_by_stretch(runs, name)).rounds):
            curves_by_method[j] = curve
    return curves_by_method


def mean_by_stretch(runs: Sequence[RunData], name: str) -> Curve:
    """Return a term's mean in intervals of rounds, and ± sd over several seeds.

    An interval is drawn at the mean of its rounds if all runs have a number in it.
    """
    last = max(run.last_round for run in runs)
    edges = np.unique(np.linspace(0, last, min(STRETCHES, max(last, 1)) + 1).round())
    values = np.array([_means(run, name, edges) for run in runs])
    complete = np.isfinite(values).all(axis=0)
    values, middle = values[:, complete], ((edges[:-1] + edges[1:] + 1) / 2)[complete]
    return curve_of(values, middle)


def _means(run: RunData, name: str, edges: Floats) -> Floats:
    """Return the mean of the finite values in each stretch (edge, next edge]; nan without any."""
    values = run.theory[name]
    finite = np.isfinite(values)
    stretch = np.searchsorted(edges, run.rounds["round"][finite], side="left") - 1
    inside = stretch >= 0  # round 0 does not train
    count = np.bincount(stretch[inside], minlength=len(edges) - 1)
    total = np.bincount(stretch[inside], values[finite][inside], minlength=len(edges) - 1)
    return np.asarray(np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0))


# ---- Differences to the baseline


@with_style
def differences(analysis: Analysis) -> Figure | None:
    """Draw each difference to the baseline with its CI over seeds, and the margin; None without differences."""
    comparison = analysis.comparison
    rows = [(j, row) for j, row in enumerate(analysis.last) if row.difference.estimate is not None]
    if not rows:
        return None
    figure = new_figure(0.85 + max(0.36 * len(rows), 0.8))
    axes = figure.subplots()
    for place, (j, row) in enumerate(rows):
        difference = row.difference
        middle = difference.estimate or 0.0
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
    units = "points" if score.percent else f"{score.words} (lower is better)"
    if style().printed:
        label_lines = textwrap.wrap(
            f"difference to {shorten(comparison.baseline, 60)} on {where}, {units}", style().letters(style().width)
        )
        figure.supxlabel("\n".join(label_lines), fontsize=style().size, color=style().muted)
    else:
        axes.set_title(f"Difference on {where}")
        axes.set_xlabel(f"difference to {shorten(comparison.baseline, 14)}, {units}")
    if score.percent:
        in_percent(axes, "x")
    return figure
