"""Curves of runs over their rounds, and bounds over distances: means over seeds with pointwise intervals."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import stdtrit

from fedreach.federation.convergence import LOSSES, distances, lower_bound, upper_bound
from fedreach.report.figures.style import Legend, in_percent, line_style, new_figure, with_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = {"accuracy": "test_accuracy", "train_loss": "train_loss"}
"""Quantities whose curves a recipe can ask for, and their columns in the rows of a run."""
MAX_POINTS = 40  # of a curve, evenly spaced
MAX_LINES = 8  # in one panel; with more, each value of the axis has a panel
MAX_PANELS = 4  # of a quantity
TITLE_LETTERS = 52  # of a line above a panel
DISTANCES = np.append(0.0, distances(0.2, 0.02))  # those of the metric `bound_disagreement`
BOUNDS = {f"{end}_{loss}": loss for loss in LOSSES for end in ("upper", "lower")}

FIGURES = {
    "curves": (
        "round",
        {"Accuracy on the test set, %": ["accuracy"], "Mean loss of the clients in training": ["train_loss"]},
    ),
    "bounds": (
        "Hellinger distance",
        {
            "Upper and lower bound on the mean squared JSD": ["upper_jsd", "lower_jsd"],
            "Upper and lower bound on the mean squared 0-1 loss": ["upper_zero_one", "lower_zero_one"],
        },
    ),
}
"""Figures: their horizontal axis, and the quantities in the panel of each title."""

Points = Mapping[float, float]  # round or distance -> value


def run_curves(rows: Sequence[Mapping[str, Any]], quantities: Sequence[str]) -> dict[str, Points]:
    """Return the curves of a run: of `quantities` over its rounds, and of bounds if its last evaluation has moments."""
    curves = {
        quantity: {row["round"]: row[column] for row in rows if (v := row.get(column)) is not None and np.isfinite(v)}
        for quantity, column in COLUMNS.items()
        if quantity in quantities
    }
    for quantity, loss in BOUNDS.items():
        names = [f"test_squared_{loss}_{moment}" for moment in ("mean", "variance")]
        if evaluated := [[row[name] for name in names] for row in rows if row.get(names[0]) is not None]:
            mean, variance = evaluated[-1]
            upper = quantity.startswith("upper")
            bound = upper_bound(mean, variance, DISTANCES, 1.0) if upper else lower_bound(mean, variance, DISTANCES)
            curves[quantity] = dict(zip(DISTANCES.round(9).tolist(), bound.tolist(), strict=True))
    return {quantity: points for quantity, points in curves.items() if points}


def mean_curves(runs: Mapping[str, Sequence[Sequence[Mapping[str, Points]]]], x: Sequence[float]) -> dict[str, Any]:
    """Return quantity -> value of the axis -> ``at`` (points) and ``lines``: line -> (points, 2) mean and half-width.

    The half-width is that of the pointwise 95% interval of the mean over seeds (Student's t); None for one seed. Points
    are those that all runs share, at most `MAX_POINTS`. A line of which a run lacks the curve is left out.

    Args:
        runs: Line -> seeds x values of the axis -> curves of the run, see `run_curves`.
        x: Values of the axis.
    """
    curves: dict[str, Any] = {}
    for quantity in (*COLUMNS, *BOUNDS):
        for v, value in enumerate(x):
            lines = {line: [seed[v].get(quantity, {}) for seed in seeds] for line, seeds in runs.items()}
            lines = {line: of_seeds for line, of_seeds in lines.items() if all(of_seeds)}
            rounds = [set(points) for of_seeds in lines.values() for points in of_seeds]
            if not rounds or not (shared := sorted(set.intersection(*rounds))):
                continue
            places = np.unique(np.linspace(0, len(shared) - 1, min(MAX_POINTS, len(shared))).round().astype(int))
            at = [shared[place] for place in places]
            curves.setdefault(quantity, {})[f"{value:g}"] = {
                "at": at,
                "lines": {
                    line: [_mean([points[a] for points in of_seeds]) for a in at] for line, of_seeds in lines.items()
                },
            }
    return curves


def _mean(values: Sequence[float]) -> list[float | None]:
    n = len(values)
    half = stdtrit(n - 1, 0.975) * np.std(values, ddof=1) / n**0.5 if n > 1 else None
    return [float(f"{np.mean(values):.4g}"), None if half is None else float(f"{half:.2g}")]


def figures_of(record: Mapping[str, Any]) -> dict[str, Figure]:
    """Return the figures of a record's curves by their name; empty for a record without curves."""
    drawn = {name: _draw(record, label, titles) for name, (label, titles) in FIGURES.items()}
    return {name: figure for name, figure in drawn.items() if figure is not None}


@with_style
def _draw(record: Mapping[str, Any], label: str, titles: Mapping[str, Sequence[str]]) -> Figure | None:
    from fedreach.report.figures.curves import Curve, leave_out_the_start

    curves = record.get("curves", {})
    panels = [
        (title, of_value, lines)
        for title, quantities in titles.items()
        if quantities[0] in curves
        for of_value, lines in _panels(record["axis"], [curves[quantity] for quantity in quantities])
    ]
    if not panels:
        return None
    names = list(dict.fromkeys(name for _, _, lines in panels for name, _, _ in lines))
    legend = Legend.of(names, range(len(names)))
    figure = new_figure(0.5 + 1.7 * len(panels) + legend.height)
    every = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (title, of_value, lines) in zip(every, panels, strict=True):
        drawn = []
        for name, at, points in lines:
            mean, half = np.array(points, dtype=np.float64).T
            drawn.append(Curve(np.array(at), np.array(at), mean, mean - half, mean + half))
            look = line_style(names.index(name)) | {"marker": "o" if len(at) < 3 else ""}
            axes.fill_between(at, mean - half, mean + half, color=look["color"], alpha=0.14, lw=0)
            axes.plot(at, mean, **look)
        axes.set_title(textwrap.fill(title + of_value, TITLE_LETTERS))
        if title.endswith("%"):
            in_percent(axes)
            leave_out_the_start(axes, drawn)
    seeds = len(record["seeds"])
    spread = f"mean, pointwise 95% CI, {seeds} seeds" if seeds > 1 else "one seed"
    every[-1].set_xlabel(f"{label}; {spread}")
    legend.draw(figure)
    return figure


Line = tuple[str, Sequence[float], Sequence[Sequence[float | None]]]  # name, points, mean and half-width at each


def _panels(axis: str, curves: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[Line]]]:
    """Yield the panels of quantities: one with all lines, or one for each of some values of the axis, and its name.

    A line that is the same at all values of the axis is drawn once.
    """
    values = list(curves[0])
    of_value = {
        value: [
            (line, curve[value]["at"], points) for curve in curves for line, points in curve[value]["lines"].items()
        ]
        for value in values
    }
    if len(values) == 1:
        yield "", of_value[values[0]]
        return
    everywhere = [entry for entry in of_value[values[0]] if all(entry in of_value[value] for value in values)]
    varied = [
        (f"{line}, {value}", at, points)
        for value in values
        for line, at, points in of_value[value]
        if (line, at, points) not in everywhere
    ]
    if len(everywhere) + len(varied) <= MAX_LINES * len(curves):
        yield f"; by {axis}", everywhere + varied
        return
    for place in np.unique(np.linspace(0, len(values) - 1, min(MAX_PANELS, len(values))).round().astype(int)):
        yield f"; {axis}: {values[place]}", of_value[values[place]]
