"""Several quantities along one axis, such as energy and time against bandwidth, a panel each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedreach.arrays import Floats
from fedreach.report.figures.curves import Curve, draw, id_of
from fedreach.report.figures.spending import FAR
from fedreach.report.figures.style import Legend, in_percent, look, new_figure, plain_numbers, styled, tag

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEW = 25  # points that are marked one by one


@styled
def sweep(record: Mapping[str, Any], titles: Mapping[str, str]) -> Figure | None:
    """Draw the numbers of a reproduction, one line a method with a band of +- sd over seeds; None without an axis.

    Args:
        record: With ``x`` (v values), their ``axis``, ``methods`` and ``numbers``: quantity -> method -> (seeds, v)
            lists, None where there is no number.
        titles: Of the quantities; those without a title are not drawn.
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
    figure = new_figure(0.4 + 1.9 * len(known) + legend.height)
    panels = figure.subplots(len(known), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (quantity, by_method) in zip(panels, known.items(), strict=True):
        lines = {j: v.mean(axis=0) for j, m in enumerate(methods) if np.isfinite(v := by_method[m]).all()}
        share = quantity == "accuracy"
        far = not share and max(y[-1] for y in lines.values()) > FAR * min(y[-1] for y in lines.values())
        if far:
            axes.set_yscale("log")
        for j, mean in lines.items():
            _line(axes, j, x, mean, by_method[methods[j]], len(legend.names), far=far)
        axes.set_title(titles[quantity])
        if share:
            in_percent(axes)
        else:
            if not far:
                axes.set_ylim(bottom=0)
            plain_numbers(axes.yaxis, far=far)
    panels[-1].set_xlabel(record["axis"])
    legend.draw(figure)
    return figure


def _line(axes: Axes, j: int, x: Floats, mean: Floats, seeds: Floats, neighbours: int, *, far: bool) -> None:
    sd = seeds.std(axis=0, ddof=1) if len(seeds) > 1 else np.full(len(x), np.nan)
    low = np.maximum(mean - sd, mean / (3 * FAR)) if far else mean - sd  # a logarithmic axis has no 0
    draw(axes, j, x, Curve(x, x, mean, low, mean + sd), neighbours)
    if len(x) <= FEW:
        (marks,) = axes.plot(x[:-1], mean[:-1], **look(j) | {"linestyle": ""}, zorder=4)
        tag(marks, j, f"marks{id_of(axes)}")
