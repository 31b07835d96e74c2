"""Who gets what in a round: when each client computes and sends, its share of the band, its CPU frequency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedreach.arrays import Floats
from fedreach.report.figures.names import short
from fedreach.report.figures.style import GRID, INK, METHOD, in_percent, new_figure, styled
from fedreach.report.numbers import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LABELLED = 30  # up to this many clients each row bears its name
COMPUTE, UPLOAD = METHOD[0], METHOD[1]


@styled
def allocation(clients: Sequence[Mapping[str, Any]], seconds: float) -> Figure:
    """Draw a row for each client that takes part; its largest share comes first.

    Args:
        clients: Rows as `fedreach allocate --json` has them under "clients": client, share, hertz, max_hertz,
            compute_seconds and upload_seconds.
        seconds: The deadline T.

    Example:
        >>> rows = [dict(client="a", share=1.0, hertz=4e8, max_hertz=2e9, compute_seconds=0.25, upload_seconds=0.2)]
        >>> [axes.get_title(loc="left") for axes in allocation(rows, 0.45).axes]
        ['time', 'band', 'CPU']
    """
    from matplotlib.patches import Patch

    rows = sorted(clients, key=lambda row: -row["share"])
    tall = 0.165 * max(len(rows), 4) if len(rows) <= LABELLED else 3.6
    figure = new_figure(0.95 + tall)
    when, band, cpu = figure.subplots(1, 3, sharey=True, width_ratios=[2.1, 1, 1])
    compute, upload = _column(rows, "compute_seconds"), _column(rows, "upload_seconds")
    _bars(when, compute, np.zeros(len(rows)), COMPUTE)
    _bars(when, upload, compute, UPLOAD)
    when.axvline(seconds, color=INK, linewidth=0.9, linestyle=(0, (3, 2)))
    when.set_title("time")
    when.set_xlabel("seconds")
    _bars(band, _column(rows, "share"), np.zeros(len(rows)), UPLOAD)
    band.set_title("band")
    band.set_xlabel("share, %")
    in_percent(band, "x")
    scale, unit = (1e9, "GHz") if _column(rows, "max_hertz").max() >= 1e8 else (1e6, "MHz")
    _bars(cpu, _column(rows, "max_hertz") / scale, np.zeros(len(rows)), GRID)
    _bars(cpu, _column(rows, "hertz") / scale, np.zeros(len(rows)), COMPUTE)
    cpu.set_title("CPU")
    cpu.set_xlabel(unit)
    for axes in (when, band, cpu):
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(left=0)
        axes.locator_params(axis="x", nbins=3 if axes is not when else 5 if seconds < 1000 else 4)
    when.set_ylim(len(rows) - 0.5, -0.5)
    if len(rows) <= LABELLED:
        when.set_yticks(range(len(rows)), [short(row["client"], 16) for row in rows])
    else:
        when.set_ylabel("clients, the largest share first")
    handles = [Patch(color=COMPUTE), Patch(color=UPLOAD), Patch(color=GRID), _deadline()]
    names = ["compute", "upload", "at most", f"deadline, {number(seconds)} s"]
    figure.legend(handles, names, loc="outside upper left", ncols=4, handlelength=1.2, columnspacing=0.9)
    return figure


def _column(rows: Sequence[Mapping[str, Any]], name: str) -> Floats:
    return np.array([row[name] for row in rows], dtype=np.float64)


def _bars(axes: Axes, length: Floats, start: Floats, colour: str) -> None:
    """Draw horizontal bars, or one outline where they are too many for bars."""
    if len(length) <= LABELLED:
        axes.barh(np.arange(len(length)), length, left=start, height=0.72, color=colour, linewidth=0)
        return
    edges = np.arange(len(length) + 1) - 0.5
    axes.stairs(start + length, edges, baseline=start, orientation="horizontal", fill=True, color=colour, lw=0)


def _deadline() -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=INK, linewidth=0.9, linestyle=(0, (3, 2)))
