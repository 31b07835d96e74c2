"""What happened to single clients: who was chosen, whose report counted how much, who is served how well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedreach.arrays import Floats, Ints
from fedreach.report.figures.names import name_rows, short, strip_name
from fedreach.report.figures.style import MUTED, colour, heat_colours, in_percent, look, new_figure, style, styled, tag
from fedreach.report.values import Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS = 30  # columns of the weight heat map
DOTS = 60  # quantiles drawn per strip
ALL_NAMED = 8  # up to so many participants each has its name at the axis


def participants_of(comparison: Comparison) -> Ints:
    """Return the ids that take part in any counted run, increasing."""
    return np.unique(np.concatenate([run.partition.participants for run in comparison.all_counted]))


def chosen_shares(comparison: Comparison, method: str) -> Floats:
    """Return in which share of the rounds each participant was in the cohort, over all seeds; nan if never asked."""
    ids = participants_of(comparison)
    chosen, offered = np.zeros(len(ids)), np.zeros(len(ids))
    for run in comparison.counted(method):
        chosen += np.bincount(np.searchsorted(ids, run.replies.chosen), minlength=len(ids))
        offered[np.searchsorted(ids, run.partition.participants)] += max(run.last_round, 0)
    return np.asarray(np.divide(chosen, offered, out=np.full(len(ids), np.nan), where=offered > 0))


def mean_weights(comparison: Comparison, method: str) -> tuple[Floats, Floats]:
    """Return each participant's mean weight in stretches of rounds, 0 for rounds without its report.

    Returns:
        The edges of the stretches (b + 1,) and the weights (n, b), n participants.
    """
    ids, runs = participants_of(comparison), comparison.counted(method)
    last = max(run.last_round for run in runs)
    edges = np.unique(np.round(np.linspace(0, last, min(BINS, max(last, 1)) + 1)))
    total, offered = np.zeros((len(ids), len(edges) - 1)), np.zeros((len(ids), len(edges) - 1))
    for run in runs:
        # Rounds count from 1: round r lies in the stretch (edge, next edge].
        stretch = np.searchsorted(edges, run.replies.weight_round, side="left") - 1
        np.add.at(total, (np.searchsorted(ids, run.replies.weight_client), stretch), run.replies.weight)
        length = np.clip(run.last_round, edges[:-1], edges[1:]) - edges[:-1]
        offered[np.searchsorted(ids, run.partition.participants)] += length
    return edges, np.divide(total, offered, out=np.zeros_like(total), where=offered > 0)


@styled
def chosen(comparison: Comparison) -> Figure | None:
    """Draw how often each participant was chosen, one strip a method; None if no round was trained."""
    drawn = _trained(comparison)
    if not drawn:
        return None
    ids = participants_of(comparison)
    figure = new_figure(0.75 + max(0.62 * len(drawn), 1.4))
    panels = figure.subplots(len(drawn), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, j in zip(panels, drawn, strict=True):
        shares = chosen_shares(comparison, comparison.methods[j])
        bars = axes.stairs(np.nan_to_num(shares), np.arange(len(ids) + 1) - 0.5, fill=True, color=colour(j), lw=0)
        tag(bars, j, "bars")
        axes.axhline(float(np.nanmean(shares)), color=MUTED, linewidth=0.8, linestyle=(0, (3, 2)))
        axes.set_title(strip_name(comparison.methods[j]))
        axes.grid(axis="x", visible=False)
        in_percent(axes)
    panels[0].set_xlim(-0.5, len(ids) - 0.5)
    panels[0].set_ylim(bottom=0)
    panels[0].locator_params(axis="y", nbins=2)
    names = names_of(comparison)
    _id_ticks(panels[-1], ids, "x", names)
    panels[-1].set_xlabel("participant's id" if names is None else "participant")
    figure.supylabel("chosen in % of the rounds", fontsize=style().size, color=style().muted)
    return figure


@styled
def weights(comparison: Comparison) -> Figure | None:
    """Draw whose reports counted how much and when, one heat map a method with known weights; None if there is none.

    Under a secure sum on Flower each client knows its own weight only.
    """
    runs = {j: comparison.counted(comparison.methods[j]) for j in _trained(comparison)}
    drawn = [j for j, counted in runs.items() if all(np.isfinite(run.replies.weight).all() for run in counted)]
    if not drawn:
        return None
    ids = participants_of(comparison)
    maps = {j: mean_weights(comparison, comparison.methods[j]) for j in drawn}
    # A few very large weights would leave the rest white: the scale ends at the 99.5 % quantile.
    top = float(np.quantile(np.concatenate([heat.ravel() for _, heat in maps.values()]), 0.995)) or 1.0
    figure = new_figure(1.0 + max(0.8 * len(drawn), 1.4))
    panels = figure.subplots(len(drawn), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    image: Any = None
    for axes, j in zip(panels, drawn, strict=True):
        edges, heat = maps[j]
        image = axes.imshow(
            heat,
            extent=(0, edges[-1], len(ids) - 0.5, -0.5),
            cmap=heat_colours(),
            vmin=0,
            vmax=top,
            aspect="auto",
            interpolation="none",
        )
        axes.set_title(strip_name(comparison.methods[j]))
        axes.grid(visible=False)
        tag(image, j, "heat")
    names = names_of(comparison)
    _id_ticks(panels[-1], ids, "y", names, 3)
    panels[-1].set_xlabel("round")
    figure.supylabel("participant's id" if names is None else "participant", fontsize=style().size, color=style().muted)
    bar = figure.colorbar(image, ax=list(panels), location="top", shrink=0.6, aspect=30, pad=0.01, extend="max")
    bar.set_label("mean weight of the client's report, %", fontsize=style().smaller)
    in_percent(bar.ax, "x")
    bar.outline.set_visible(False)
    return figure


@styled
def distribution(comparison: Comparison) -> Figure | None:
    """Draw accuracy client by client at the last evaluation; None if no client was evaluated."""
    from matplotlib.lines import Line2D

    drawn = [j for j, m in enumerate(comparison.methods) if len(client_accuracies(comparison, m, "participants"))]
    if not drawn:
        return None
    figure = new_figure(0.95 + 0.44 * len(drawn))
    axes = figure.subplots()
    both = False
    for place, j in enumerate(drawn):
        for offset, population in ((-0.18, "participants"), (0.18, "unseen")):
            values = client_accuracies(comparison, comparison.methods[j], population)
            if len(values):
                both |= population == "unseen"
                _strip(axes, j, place + offset, values, filled=population == "participants")
    name_rows(axes, [comparison.methods[j] for j in drawn])
    score = comparison.score
    axes.set_xlabel(f"{score.words} of one client{', %' * score.percent}")
    if score.percent:
        axes.set_xlim(right=1.0)
        in_percent(axes, "x")
    handles = [Line2D([], [], ls="", marker="o", ms=4, color=MUTED, label="participants")]
    if both:
        handles.append(Line2D([], [], ls="", marker="o", ms=4, mfc="none", mec=MUTED, label="unseen clients"))
    handles.append(Line2D([], [], ls="-", lw=2.5, color=MUTED, alpha=0.6, label="middle 80 %"))
    figure.legend(handles=handles, loc="outside upper left", ncols=3)
    return figure


def client_accuracies(comparison: Comparison, method: str, population: str) -> Floats:
    """Return the accuracy of each client of a population at its last evaluation, all seeds together."""
    found = [run.clients[population].score for run in comparison.counted(method) if population in run.clients]
    values = np.concatenate(found) if found else np.zeros(0)
    return values[np.isfinite(values)]


def _strip(axes: Axes, j: int, height: float, values: Floats, *, filled: bool) -> None:
    # Evenly spaced quantiles stand for the clients: a thousand dots would be a smear.
    count = min(len(values), DOTS)
    dots = np.quantile(values, (np.arange(count) + 0.5) / count)
    low, middle, high = np.quantile(values, [0.1, 0.5, 0.9])
    part = "participants" if filled else "unseen"
    (bar,) = axes.plot([low, high], [height, height], color=colour(j), lw=4.5, alpha=0.3, solid_capstyle="butt")
    tag(bar, j, f"bar-{part}")
    face = colour(j) if filled else "none"
    (points,) = axes.plot(dots, np.full(count, height), "o", ms=3.2, mfc=face, mec=colour(j), mew=0.6, alpha=0.75)
    tag(points, j, f"dots-{part}")
    (median,) = axes.plot([middle, middle], [height - 0.15, height + 0.15], color=look(j)["color"], lw=2)
    tag(median, j, f"median-{part}")


def _trained(comparison: Comparison) -> list[int]:
    return [
        j
        for j, method in enumerate(comparison.methods)
        if any(len(r.replies.chosen) for r in comparison.counted(method))
    ]


def names_of(comparison: Comparison) -> Sequence[str] | None:
    """Return what the clients are called, where they have names and all counted runs call them alike."""
    met = {tuple(run.partition.client_names or ()) for run in comparison.all_counted}
    return met.pop() or None if len(met) == 1 else None


def _id_ticks(axes: Axes, ids: Ints, axis: str, names: Sequence[str] | None, count: int = 6) -> None:
    count = len(ids) if names is not None and len(ids) <= ALL_NAMED else min(count, len(ids))
    places = np.unique(np.linspace(0, len(ids) - 1, count).round().astype(int))
    called = [str(ids[place]) if names is None else short(names[ids[place]], 14) for place in places]
    (axes.set_xticks if axis == "x" else axes.set_yticks)(places, called)
