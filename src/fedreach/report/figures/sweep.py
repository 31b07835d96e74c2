"""Several quantities along one axis, such as energy and time against bandwidth, a panel each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedreach.arrays import Floats
from fedreach.report.figures.curves import Curve, draw, id_of
from fedreach.report.figures.names import Legend, heading, short
from fedreach.report.figures.spending import FAR
from fedreach.report.figures.style import in_percent, label_x, look, new_panels, plain_numbers, styled, tag

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEW = 25  # points that are marked one by one


@styled
def sweep(
    record: Mapping[str, Any], titles: Mapping[str, str], *, shares: Collection[str] = ("accuracy",), lines: bool = True
) -> Figure | None:
    """Draw numbers along an axis, one line a method with a band of +- sd over seeds; None without an axis.

    Args:
        record: With ``x`` (v values), their ``axis``, ``methods`` and ``numbers``: quantity -> method -> (seeds, v)
            lists, None where there is no number. ``names`` are what the values are called, where they are no numbers;
            ``log`` says that they are far apart.
        titles: Of the quantities; those without a title are not drawn.
        shares: Quantities that are fractions, drawn in per cent.
        lines: Whether values are joined; else each stands by itself.
    """
    x = np.array(record["x"], dtype=np.float64)
    known = {
        quantity: {m: np.array(rows, dtype=np.float64) for m, rows in by_method.items()}
        for quantity, by_method in record["numbers"].items()
        if quantity in titles
    }
    known = {quantity: found for quantity, found in known.items() if any(np.isfinite(v).any() for v in found.values())}
    if len(x) < 2 or not known:
        return None
    methods: Sequence[str] = record["methods"]
    legend = Legend.of(methods, range(len(methods)))
    figure, panels = new_panels(len(known), 1.9, legend=legend.height)
    for axes, (quantity, by_method) in zip(panels, known.items(), strict=True):
        means = {j: v.mean(axis=0) for j, m in enumerate(methods) if np.isfinite(v := by_method[m]).all()}
        share = quantity in shares
        far = not share and max(y[-1] for y in means.values()) > FAR * min(y[-1] for y in means.values())
        if far:
            axes.set_yscale("log")
        for j, mean in means.items():
            _line(axes, j, x, mean, by_method[methods[j]], len(legend.names), far=far, joined=lines)
        heading(axes, titles[quantity])
        if share:
            in_percent(axes)
        else:
            if not far:
                axes.set_ylim(bottom=0)
            plain_numbers(axes.yaxis, far=far)
    if record.get("log"):
        panels[-1].set_xscale("log")
        plain_numbers(panels[-1].xaxis, far=True)
    if record.get("names"):
        panels[-1].set_xticks(x, [short(name, 12) for name in record["names"]])
    label_x(panels, record["axis"])
    legend.draw(figure)
    return figure


def _line(
    axes: Axes, j: int, x: Floats, mean: Floats, seeds: Floats, neighbours: int, *, far: bool, joined: bool
) -> None:
    sd = seeds.std(axis=0, ddof=1) if len(seeds) > 1 else np.full(len(x), np.nan)
    low = np.maximum(mean - sd, mean / (3 * FAR)) if far else mean - sd  # a logarithmic axis has no 0
    if not joined:
        alone = axes.errorbar(x, mean, np.nan_to_num(sd), **look(j) | {"linestyle": ""}, elinewidth=0.8, zorder=4)
        tag(alone.lines[0], j, f"marks{id_of(axes)}")
        return
    draw(axes, j, x, Curve(x, x, mean, low, mean + sd), neighbours)
    if len(x) <= FEW:
        (marks,) = axes.plot(x[:-1], mean[:-1], **look(j) | {"linestyle": ""}, zorder=4)
        tag(marks, j, f"marks{id_of(axes)}")
