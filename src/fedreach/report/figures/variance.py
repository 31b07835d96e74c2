"""How much of the spread each part of a draw brings in, for two methods and for their difference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedreach.evidence.components import Variance
from fedreach.report.analysis.quantities import POPULATION
from fedreach.report.figures.style import INK, MUTED, colour, new_figure, short, styled, tag
from fedreach.report.variance.answers import Answers, Part

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@styled
def components(answers: Answers) -> Figure:
    """Draw the standard deviations of the four components in points, methods side by side, the difference below.

    Beneath the components, paler, stand the parts that are in them already. Lines are 95 % intervals.
    """
    from matplotlib.patches import Patch

    study, parts = answers.study, [*answers.parts, *answers.included]
    figure = new_figure(1.0 + 0.55 * len(parts))
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    _bars(above, parts, [0, 1], [colour(0), colour(1)])
    _bars(below, parts, [2], [INK])
    where = POPULATION[study.column].words.removesuffix("' held-out data")
    above.set_title(f"Each method's accuracy on {where}")
    below.set_title(short(f"The difference, {study.methods[1]} − {study.methods[0]}", 50))
    below.set_xlabel("standard deviation of one seed, percentage points")
    below.set_xlim(left=0)
    handles = [Patch(color=colour(j), label=short(method)) for j, method in enumerate(study.methods)]
    figure.legend(handles=handles, loc="outside upper left", ncols=2)
    return figure


def _bars(axes: Axes, parts: Sequence[Part], which: Sequence[int], colours: Sequence[str]) -> None:
    height = 0.72 / len(which)
    for row, part in enumerate(parts):
        for place, (number, shade) in enumerate(zip(which, colours, strict=True)):
            middle = row + (place - (len(which) - 1) / 2) * height
            width, *ends = (_sd(value) for value in _numbers(part.of[number]))
            (bar,) = axes.barh(
                middle, width, 0.9 * height, color=shade, alpha=0.35 if part.within else 0.8, linewidth=0
            )
            (line,) = axes.plot(ends, [middle, middle], color=shade if shade != INK else MUTED, linewidth=1.1)
            if number < 2:
                tag(bar, number, f"bar-{row}")
                tag(line, number, f"interval-{row}")
    axes.set_yticks(np.arange(len(parts)), [f"  {part.name}" if part.within else part.name for part in parts])
    axes.set_ylim(len(parts) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)


def _numbers(variance: Variance) -> tuple[float, float, float]:
    return variance.cut, variance.low, variance.high


def _sd(variance: float) -> float:
    return 100 * math.sqrt(variance)
