"""Figures of a round's simulated time, and of its allocation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedreach._util.arrays import Floats
from fedreach.report.figures.style import (
    GRID,
    INK,
    METHOD,
    MUTED,
    in_percent,
    method_color,
    name_rows,
    new_figure,
    shorten,
    style,
    tag,
    with_style,
)
from fedreach.report.numbers import Run, RunSet, number, unit_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# ---- Parts of a round's simulated time

# In the order of a round. All parts have the method's color and differ by their filling.
FILLS: dict[str, dict[str, Any]] = {
    "probe": {"fill": False, "linewidth": 0.9},
    "computing": {"alpha": 1.0, "linewidth": 0},
    "sending": {"alpha": 0.5, "linewidth": 0},
    "waiting": {"alpha": 0.15, "linewidth": 0},
}
LEAST_VISIBLE_SHARE = 5e-3  # share of a round below which a part is too thin to draw, or a rounding error


def round_time(runs: Sequence[Run]) -> dict[str, float] | None:
    """Return seconds, joules and the seconds of each part of the mean round, over the seeds; None without radio.

    A chosen client computes, sends, and then waits for the slowest. Each part is a mean over the clients of a
    round, so that the parts of a round sum up to its seconds.
    """
    means = [mean for run in runs if (mean := _round_time_of_run(run))]
    if not means or len(means) < len(runs):
        return None
    return {name: float(np.mean([mean[name] for mean in means])) for name in means[0]}


def _round_time_of_run(run: Run) -> dict[str, float]:
    counted = np.isfinite(run.column("seconds")) & (run.rounds["round"] > 0)
    if not counted.any() or not run.airtime:
        return {}
    seconds, probe = run.column("seconds")[counted], np.nan_to_num(run.column("probe_seconds")[counted])
    # If clients replied only to the probe, a round has neither computing nor sending.
    compute, send = (np.nan_to_num(run.airtime[f"{name}_seconds"][counted]) for name in ("compute", "upload"))
    wait = np.maximum(seconds - probe - compute - send, 0.0)  # rounded rows may differ in their last digit
    parts = {"seconds": seconds, "probe": probe, "computing": compute, "sending": send, "waiting": wait}
    means = {name: float(values.mean()) for name, values in parts.items()}
    return means | {"joules": float(np.nanmean(run.column("joules")[counted]))}


def visible_share(mean_round: Mapping[str, float], name: str) -> float:
    """Return the share of the round that a part takes; 0 if it is too small to draw."""
    share = mean_round[name] / mean_round["seconds"] if mean_round["seconds"] > 0 else 0.0
    return share if share > LEAST_VISIBLE_SHARE else 0.0


@with_style
def round_times(comparison: RunSet) -> Figure | None:
    """Draw the parts of each method's mean round as shares of its time; None if no run had a radio."""
    from matplotlib.patches import Patch

    means = {j: mean for j, m in enumerate(comparison.methods) if (mean := round_time(comparison.counted(m)))}
    if not means:
        return None
    figure = new_figure(1.0 + 0.36 * max(len(means), 2))
    axes = figure.subplots()
    seconds, joules = (unit_of(name, [mean[name] for mean in means.values()]) for name in ("seconds", "joules"))
    visible: set[str] = set()
    for place, (j, mean) in enumerate(means.items()):
        start = 0.0
        for name in FILLS:
            if share := visible_share(mean, name):
                visible.add(name)
                (bar,) = axes.barh(place, share, 0.62, start, **_fill(name, method_color(j)))
                tag(bar, j, name)
            start += share
        axes.annotate(
            f"{seconds.text(mean['seconds'])}\n{joules.text(mean['joules'])}",
            (1.0, place),
            xytext=(4, 0),
            textcoords="offset points",
            verticalalignment="center",
            fontsize=style().smallest,
            color=style().muted,
        )
    name_rows(axes, [comparison.methods[j] for j in means])
    axes.set_xlim(0, 1)
    axes.set_xlabel("share of a round's time, %")
    in_percent(axes, "x")
    handles = [Patch(label=name, **_fill(name, MUTED)) for name in FILLS if name in visible]
    figure.legend(handles=handles, loc="outside upper left", ncols=4, handlelength=1.2)
    return figure


def _fill(part: str, color: str) -> dict[str, Any]:
    return {"edgecolor" if part == "probe" else "facecolor": color} | FILLS[part]


# ---- Allocation of a round

LABELLED = 30  # clients up to which each row shows its name
COMPUTE, UPLOAD = METHOD[0], METHOD[1]


@with_style
def allocation(clients: Sequence[Mapping[str, Any]], seconds: float) -> Figure:
    """Draw a row for each client of the cohort, the largest share of bandwidth first.

    Args:
        clients: Rows as in "clients" of `fedreach allocate --json`: client, share, hertz, max_hertz,
            compute_seconds and upload_seconds.
        seconds: Deadline T in seconds.

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
        when.set_yticks(range(len(rows)), [shorten(row["client"], 16) for row in rows])
    else:
        when.set_ylabel("clients, the largest share first")
    handles = [Patch(color=COMPUTE), Patch(color=UPLOAD), Patch(color=GRID), _deadline()]
    names = ["compute", "upload", "at most", f"deadline, {number(seconds)} s"]
    figure.legend(handles, names, loc="outside upper left", ncols=4, handlelength=1.2, columnspacing=0.9)
    return figure


def _column(rows: Sequence[Mapping[str, Any]], name: str) -> Floats:
    return np.array([row[name] for row in rows], dtype=np.float64)


def _bars(axes: Axes, length: Floats, start: Floats, colour: str) -> None:
    """Draw horizontal bars, or one outline if there are too many rows."""
    if len(length) <= LABELLED:
        axes.barh(np.arange(len(length)), length, left=start, height=0.72, color=colour, linewidth=0)
        return
    edges = np.arange(len(length) + 1) - 0.5
    axes.stairs(start + length, edges, baseline=start, orientation="horizontal", fill=True, color=colour, lw=0)


def _deadline() -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=INK, linewidth=0.9, linestyle=(0, (3, 2)))
