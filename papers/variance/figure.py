"""How much of the spread each part of a draw brings in, for two methods and for their difference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedreach.report.analysis import POPULATION
from fedreach.report.figures.style import INK, MUTED, method_color, new_figure, shorten, tag, with_style
from papers.variance.decomposition import Decomposition, Part

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


REACH = 2.5  # of the longest bar: intervals that are longer run out of the frame


@with_style
def components(decomposition: Decomposition) -> Figure:
    """Draw the standard deviations of the four components in points, methods side by side, the difference below.

    Beneath the components, paler, stand the parts that are in them already. Lines are 95% intervals.
    """
    from matplotlib.patches import Patch

    results, parts = decomposition.results, [*decomposition.parts, *decomposition.included]
    figure = new_figure(1.2 + 0.5 * len(parts))
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    _bars(above, parts, [0, 1], [method_color(0), method_color(1)])
    _bars(below, parts, [2], [MUTED])
    above.set_title(f"On {POPULATION[results.column].words}")
    below.set_title(shorten(f"{results.methods[1]} − {results.methods[0]}", 40))
    below.set_xlabel("sd of one seed, percentage points\npaler: in the others already")
    longest = max(_sd(part.of[number].cut) for part in parts for number in range(3))
    farthest = max(_sd(part.of[number].high) for part in parts for number in range(3))
    below.set_xlim(0, 1.04 * min(farthest, REACH * longest) or 1.0)
    handles = [Patch(color=method_color(j), label=shorten(method)) for j, method in enumerate(results.methods)]
    figure.legend(handles=handles, loc="outside upper left", ncols=2)
    return figure


def _bars(axes: Axes, parts: Sequence[Part], which: Sequence[int], colours: Sequence[str]) -> None:
    height = 0.76 / len(which)
    for row, part in enumerate(parts):
        for place, (number, shade) in enumerate(zip(which, colours, strict=True)):
            middle, variance = row + (place - (len(which) - 1) / 2) * height, part.of[number]
            pale = 0.35 if part.within else 0.85
            (bar,) = axes.barh(middle, _sd(variance.cut), 0.9 * height, color=shade, alpha=pale, linewidth=0)
            (line,) = axes.plot([_sd(variance.low), _sd(variance.high)], [middle, middle], color=INK, linewidth=1)
            if number < 2:
                tag(bar, number, f"bar-{row}")
                tag(line, number, f"interval-{row}")
    axes.set_yticks(range(len(parts)), [part.short or part.name for part in parts])
    axes.set_ylim(len(parts) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)


def _sd(variance: float) -> float:
    return 100 * math.sqrt(variance)
