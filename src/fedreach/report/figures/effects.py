"""How far each method is from the baseline, and how sure that is."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from fedreach.report.analysis.analysis import Analysis
from fedreach.report.analysis.quantities import POPULATION
from fedreach.report.figures.names import name_rows, short
from fedreach.report.figures.style import INK, MUTED, in_percent, look, new_figure, style, styled, tag

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled
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
            (bar,) = axes.plot([difference.low, difference.high], [place, place], color=look(j)["color"], lw=2.2)
            tag(bar, j, "interval")
        (dot,) = axes.plot(middle, place, **look(j) | {"markersize": 7})
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
        said = textwrap.wrap(f"{units} above {comparison.baseline} on {where}", style().letters(style().width))
        figure.supxlabel("\n".join(said), fontsize=style().size, color=style().muted)
    else:
        axes.set_title(f"Difference on {where}")
        axes.set_xlabel(f"{units} above {short(comparison.baseline, 14)}")
    if score.percent:
        in_percent(axes, "x")
    return figure
