"""How many inputs without labels a client needs before it is served better."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedreach.report.analysis.analysis import Analysis
from fedreach.report.figures.style import INK, in_percent, look, new_figure, styled, tag

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled
def inputs(analysis: Analysis) -> Figure | None:
    """Draw what serving gains against the number of a client's inputs; None if no method is served so."""
    position = {method: j for j, method in enumerate(analysis.comparison.methods)}
    rows = [row for row in analysis.serving if row.gain_with and row.gain.mean is not None]
    if not rows:
        return None
    numbers = sorted({n for row in rows for n in row.gain_with})
    figure = new_figure(2.6)
    axes = figure.subplots()
    for place, row in enumerate(rows):
        j, shift = position[row.method], 0.05 * (place - (len(rows) - 1) / 2)
        gains = [row.gain_with.get(n) for n in numbers] + [row.gain]
        found = [(x + shift, gain) for x, gain in enumerate(gains) if gain is not None and gain.mean is not None]
        (line,) = axes.plot([x for x, _ in found], [gain.mean or 0.0 for _, gain in found], **look(j))
        tag(line, j, "mean")
        for x, gain in found:
            if gain.low is not None and gain.high is not None:
                (bar,) = axes.plot([x, x], [gain.low, gain.high], color=look(j)["color"], lw=1.4)
                tag(bar, j, f"interval-{x:.2f}")
    axes.axhline(0, color=INK, linewidth=0.9)
    axes.set_xticks(range(len(numbers) + 1), [*map(str, numbers), "all"])
    axes.set_xlabel("inputs of a client, without labels")
    axes.set_title("Served minus plain, points")
    in_percent(axes, "y")
    return figure
