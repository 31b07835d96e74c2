"""Where the simulated time of a round goes: to the probe, to computing, to sending, or to waiting for the slowest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedreach.report.figures.names import name_rows
from fedreach.report.figures.style import MUTED, colour, in_percent, new_figure, style, styled, tag
from fedreach.report.numbers import number, unit_of
from fedreach.report.values import Comparison, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# In the order of a round; all in the method's colour, so what it is filled with tells them apart.
FILLS: dict[str, dict[str, Any]] = {
    "probe": {"fill": False, "linewidth": 0.9},
    "computing": {"alpha": 1.0, "linewidth": 0},
    "sending": {"alpha": 0.5, "linewidth": 0},
    "waiting": {"alpha": 0.15, "linewidth": 0},
}
SEEN = 5e-3  # share of a round below which a part is too thin to be drawn, or the rounding of the rows


@dataclass(frozen=True)
class RoundTime:
    """What the mean round of a method took."""

    seconds: float
    joules: float
    parts: dict[str, float]  # seconds of each of `FILLS`; they sum up to `seconds`

    def share(self, name: str) -> float:
        """Return the share of the round that a part takes; 0 if too little to be seen."""
        share = self.parts[name] / self.seconds if self.seconds > 0 else 0.0
        return share if share > SEEN else 0.0


def round_time(runs: Sequence[Run]) -> RoundTime | None:
    """Return the parts of the mean round, mean over the seeds; None if a run has no radio.

    A chosen client computes, sends, and then waits for the slowest. Each part is a mean over the clients of a
    round, so that the parts of a round sum up to its seconds.
    """
    means = [mean for run in runs if (mean := _of_one_run(run)) is not None]
    if not means or len(means) < len(runs):
        return None
    parts = {name: float(np.mean([mean.parts[name] for mean in means])) for name in FILLS}
    return RoundTime(
        float(np.mean([mean.seconds for mean in means])), float(np.mean([mean.joules for mean in means])), parts
    )


def _of_one_run(run: Run) -> RoundTime | None:
    counted = np.isfinite(run.column("seconds")) & (run.rounds["round"] > 0)
    if not counted.any() or not run.airtime:
        return None
    seconds, probe = run.column("seconds")[counted], np.nan_to_num(run.column("probe_seconds")[counted])
    # In a round in which only the probe was answered nobody computes or sends after it.
    compute, send = (np.nan_to_num(run.airtime[f"{name}_seconds"][counted]) for name in ("compute", "upload"))
    wait = np.maximum(seconds - probe - compute - send, 0.0)  # rounded rows may differ in their last digit
    parts = {name: float(values.mean()) for name, values in zip(FILLS, (probe, compute, send, wait), strict=True)}
    return RoundTime(float(seconds.mean()), float(np.nanmean(run.column("joules")[counted])), parts)


@styled
def round_times(comparison: Comparison) -> Figure | None:
    """Draw the parts of each method's mean round as shares of its time; None if no run had a radio."""
    from matplotlib.patches import Patch

    means = {j: made for j, m in enumerate(comparison.methods) if (made := round_time(comparison.counted(m)))}
    if not means:
        return None
    figure = new_figure(1.0 + 0.36 * max(len(means), 2))
    axes = figure.subplots()
    seconds = unit_of("seconds", [made.seconds for made in means.values()])
    joules = unit_of("joules", [made.joules for made in means.values()])
    for place, (j, made) in enumerate(means.items()):
        left = 0.0
        for name, fill in FILLS.items():
            share = made.share(name)
            if share > 0:
                look = {"edgecolor": colour(j)} if name == "probe" else {"facecolor": colour(j)}
                (bar,) = axes.barh(place, share, 0.62, left, **look | fill)
                tag(bar, j, name)
            left += share
        axes.annotate(
            f"{number(made.seconds / seconds.size)} {seconds.name}\n{number(made.joules / joules.size)} {joules.name}",
            (1.0, place),
            xytext=(4, 0),
            textcoords="offset points",
            verticalalignment="center",
            fontsize=style().smallest,
            color=style().muted,
        )
    shown = [name for name in FILLS if any(made.share(name) > 0 for made in means.values())]
    name_rows(axes, [comparison.methods[j] for j in means])
    axes.set_xlim(0, 1)
    axes.set_xlabel("share of a round's time, %")
    in_percent(axes, "x")
    handles = [
        Patch(label=name, **({"edgecolor": MUTED} if name == "probe" else {"facecolor": MUTED}) | FILLS[name])
        for name in shown
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=4, handlelength=1.2)
    return figure
