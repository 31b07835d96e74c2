"""How many inputs without labels a client needs before it is served better."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedreach.evidence.judgement import Judgement
from fedreach.report.analysis.analysis import Analysis
from fedreach.report.analysis.quantities import POPULATION
from fedreach.report.figures.names import ALONE, Legend, heading
from fedreach.report.figures.style import INK, MUTED, in_percent, look, new_figure, styled, tag

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

APART = 0.07
"""Between the marks of two methods, where numbers of inputs lie 1 apart."""


@styled
def inputs(analysis: Analysis) -> Figure | None:
    """Draw what serving gains against the number of a client's inputs; None if no method is served so.

    References that need labels are left out: they do not go by inputs alone.

    “All” is set apart: there a client is served by the very inputs that are predicted, elsewhere by others.
    """
    position = {method: j for j, method in enumerate(analysis.comparison.methods)}
    rows = [row for row in analysis.serving if row.gain_with and row.gain.mean is not None and not row.needs_labels]
    if not rows:
        return None
    numbers = sorted({n for row in rows for n in row.gain_with})
    legend = Legend.of(analysis.comparison.methods, [position[row.method] for row in rows])
    figure = new_figure(2.8 + legend.height)
    axes = figure.subplots()
    for place, row in enumerate(rows):
        shift = APART * (place - (len(rows) - 1) / 2)
        some = [(x + shift, row.gain_with[n]) for x, n in enumerate(numbers) if n in row.gain_with]
        _draw(axes, position[row.method], some, "some")
        _draw(axes, position[row.method], [(len(numbers) + shift, row.gain)], "all")
    axes.axhline(0, color=INK, linewidth=0.9)
    axes.axvline(len(numbers) - 0.5, color=MUTED, linewidth=0.7, linestyle=(0, (2, 2)))
    axes.set_xticks(range(len(numbers) + 1), [*map(str, numbers), "all of them"])
    axes.set_xlim(-0.5, len(numbers) + 0.5)
    axes.grid(axis="x", visible=False)
    axes.set_xlabel("inputs without labels that a client is served by")
    where = POPULATION["unseen_accuracy" if rows[0].population == "unseen" else "id_accuracy"].words
    heading(axes, f"Served minus plain on {where}, points", ALONE)
    in_percent(axes, "y")
    legend.draw(figure)
    return figure


def _draw(axes: Axes, j: int, found: list[tuple[float, Judgement]], part: str) -> None:
    """Draw the gains of the method at position j, each with its interval over seeds."""
    known = [(x, gain, gain.mean) for x, gain in found if gain.mean is not None]
    (line,) = axes.plot([x for x, _, _ in known], [mean for _, _, mean in known], **look(j))
    tag(line, j, f"mean-{part}")
    for number, (x, gain, _) in enumerate(known):
        if gain.low is not None and gain.high is not None:
            (bar,) = axes.plot([x, x], [gain.low, gain.high], color=look(j)["color"], lw=1.4)
            tag(bar, j, f"interval-{part}-{number}")
