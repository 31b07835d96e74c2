"""The figure of a record: curves along its axis, or means of methods with the numbers that a paper prints."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import stdtrit

from fedreach.report.figures.style import INK, MUTED, line_style, new_figure, plain_numbers, shorten, with_style
from papers.measured import HUNDREDTHS
from papers.record import shown_titles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE_LETTERS = 38  # of a line above a panel


def figure_of(record: Mapping[str, Any]) -> Figure | None:
    """Return the figure of a record: curves along its axis, else methods side by side; None without numbers."""
    from fedreach.report.figures.curves import sweep

    return sweep(record, shown_titles(record), shares=HUNDREDTHS) or beside(
        record, shown_titles(record), shares=HUNDREDTHS
    )


@with_style
def beside(record: Mapping[str, Any], titles: Mapping[str, str], *, shares: Sequence[str] = ()) -> Figure | None:
    """Draw means over seeds with their 95% confidence intervals, and the numbers of the paper as hollow diamonds.

    Args:
        record: As of `sweep`, with one value of the axis, and ``paper``: quantities, each
            with ``numbers``: method -> a number, in per cent where the quantity is a share; gains over another method
            are not drawn.
        titles: Of the quantities; those without a title are not drawn.
        shares: Quantities that are fractions, drawn in per cent.
    """
    methods: Sequence[str] = record["methods"]
    drawn = {
        quantity: {
            m: 100 ** (quantity in shares) * np.array(rows, dtype=np.float64)[:, 0] for m, rows in by_method.items()
        }
        for quantity, by_method in record["numbers"].items()
        if quantity in titles
    }
    drawn = {
        quantity: values for quantity, values in drawn.items() if any(np.isfinite(v).all() for v in values.values())
    }
    if not drawn:
        return None
    printed = {table["quantity"]: table["numbers"] for table in record.get("paper", ()) if not table["over"]}
    titled = {quantity: textwrap.fill(titles[quantity], TITLE_LETTERS) for quantity in drawn}
    more = sum(text.count("\n") for text in titled.values())
    figure = new_figure((0.5 + 0.19 * len(methods)) * len(drawn) + 0.2 * bool(printed) + 0.14 * more)
    panels = figure.subplots(len(drawn), 1, squeeze=False)[:, 0]
    for axes, (quantity, by_method) in zip(panels, drawn.items(), strict=True):
        for j, method in enumerate(methods):
            values, number = by_method[method], printed.get(quantity, {}).get(method)
            if np.isfinite(values).all():
                half = 0.0
                if len(values) > 1:
                    half = stdtrit(len(values) - 1, 0.975) * values.std(ddof=1) / len(values) ** 0.5
                axes.errorbar(
                    values.mean(), j, xerr=half or None, **line_style(j) | {"linestyle": ""}, elinewidth=1, zorder=3
                )
            if isinstance(number, int | float):
                axes.plot(
                    number, j, "D", color="none", markeredgecolor=INK, markeredgewidth=0.9, markersize=4.5, zorder=4
                )
        axes.set_yticks(range(len(methods)), [shorten(method) for method in methods])
        axes.set_ylim(len(methods) - 0.5, -0.5)
        axes.set_title(titled[quantity])
        plain_numbers(axes.xaxis, far=False)
    if printed:
        figure.supxlabel("filled: here, mean and 95% CI; hollow: the paper", fontsize=8, color=MUTED)
    return figure
