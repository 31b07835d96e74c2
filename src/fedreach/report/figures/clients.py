"""Figures about clients: how often they are selected, their weights, their accuracy and their time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from fedreach._util.arrays import Floats, Ints
from fedreach.evaluation.statistics import PairedTest
from fedreach.report.analysis import POPULATION
from fedreach.report.figures.style import (
    GRID,
    INK,
    METHOD,
    MUTED,
    SINGLE_PANEL,
    Legend,
    heading,
    heat_colormap,
    in_percent,
    line_style,
    method_color,
    name_rows,
    new_figure,
    shorten,
    strip_name,
    style,
    tag,
    with_style,
)
from fedreach.report.numbers import RunData, RunSet, number, unit_of
from fedreach.report.overview import Analysis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# ---- Selection, weights and accuracy of single clients

BINS = 30  # columns of the weight heat map
DOTS = 60  # quantiles drawn per strip
ALL_NAMED = 8  # participants up to which each has its name at the axis


def participants_of(comparison: RunSet) -> Ints:
    """Return the increasing ids of all clients that participate in a counted run."""
    return np.unique(np.concatenate([run.partition.participants for run in comparison.all_counted]))


def chosen_shares(comparison: RunSet, method: str) -> Floats:
    """Return the share of rounds of all seeds in which each participant was selected; nan without rounds."""
    ids = participants_of(comparison)
    chosen, offered = np.zeros(len(ids)), np.zeros(len(ids))
    for run in comparison.counted(method):
        chosen += np.bincount(np.searchsorted(ids, run.replies.chosen), minlength=len(ids))
        offered[np.searchsorted(ids, run.partition.participants)] += max(run.last_round, 0)
    return np.asarray(np.divide(chosen, offered, out=np.full(len(ids), np.nan), where=offered > 0))


def mean_weights(comparison: RunSet, method: str) -> tuple[Floats, Floats]:
    """Return each participant's mean weight in intervals of rounds; the weight is 0 in rounds without its reply.

    Returns:
        The (b + 1,) edges of the intervals, and the (n, b) weights of n participants.
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


@with_style
def selection_shares(comparison: RunSet) -> Figure | None:
    """Draw how often each participant was selected, in one strip per method; None if no round was trained."""
    drawn = _trained_methods(comparison)
    if not drawn:
        return None
    ids = participants_of(comparison)
    figure, panels = _strips(comparison, drawn, 0.62, 0.75)
    for axes, j in zip(panels, drawn, strict=True):
        shares = chosen_shares(comparison, comparison.methods[j])
        bars = axes.stairs(np.nan_to_num(shares), np.arange(len(ids) + 1) - 0.5, fill=True, color=method_color(j), lw=0)
        tag(bars, j, "bars")
        axes.axhline(float(np.nanmean(shares)), color=MUTED, linewidth=0.8, linestyle=(0, (3, 2)))
        axes.grid(axis="x", visible=False)
        in_percent(axes)
    panels[0].set_xlim(-0.5, len(ids) - 0.5)
    panels[0].set_ylim(bottom=0)
    panels[0].locator_params(axis="y", nbins=2)
    panels[-1].set_xlabel(_name_participants(panels[-1], comparison, ids, "x", 6))
    figure.supylabel("selected in % of rounds", fontsize=style().size, color=style().muted)
    return figure


@with_style
def weights(comparison: RunSet) -> Figure | None:
    """Draw the weights of participants over rounds, a heat map per method; None if no method has known weights.

    With secure aggregation on Flower, weights are unknown, because each client knows only its own weight.
    """
    runs = {j: comparison.counted(comparison.methods[j]) for j in _trained_methods(comparison)}
    drawn = [j for j, counted in runs.items() if all(np.isfinite(run.replies.weight).all() for run in counted)]
    if not drawn:
        return None
    ids = participants_of(comparison)
    maps = {j: mean_weights(comparison, comparison.methods[j]) for j in drawn}
    # A few very large weights would leave all others white, so the scale ends at the 99.5% quantile.
    top = float(np.quantile(np.concatenate([heat.ravel() for _, heat in maps.values()]), 0.995)) or 1.0
    figure, panels = _strips(comparison, drawn, 0.8, 1.0)
    image: Any = None
    for axes, j in zip(panels, drawn, strict=True):
        edges, heat = maps[j]
        image = _heat_map(axes, heat, top, extent=(0, edges[-1], len(ids) - 0.5, -0.5))
        tag(image, j, "heat")
    label = _name_participants(panels[-1], comparison, ids, "y", 3)
    panels[-1].set_xlabel("round")
    figure.supylabel(label, fontsize=style().size, color=style().muted)
    _heat_bar(figure, panels, image, "mean weight of the client, %", pad=0.01, extend="max")
    return figure


@with_style
def distribution(comparison: RunSet) -> Figure | None:
    """Draw the distribution of clients' accuracies at the last evaluation; None if no client was evaluated."""
    from matplotlib.lines import Line2D

    drawn = [j for j, m in enumerate(comparison.methods) if len(client_accuracies(comparison, m, "participants"))]
    if not drawn:
        return None
    figure = new_figure(0.95 + 0.44 * len(drawn))
    axes = figure.subplots()
    has_unseen = False
    for place, j in enumerate(drawn):
        for offset, population in ((-0.18, "participants"), (0.18, "unseen")):
            values = client_accuracies(comparison, comparison.methods[j], population)
            if len(values):
                has_unseen |= population == "unseen"
                _strip(axes, j, place + offset, values, filled=population == "participants")
    name_rows(axes, [comparison.methods[j] for j in drawn])
    score = comparison.score
    axes.set_xlabel(f"{score.words} of one client{', %' * score.percent}")
    if score.percent:
        axes.set_xlim(right=1.0)
        in_percent(axes, "x")
    handles = [Line2D([], [], ls="", marker="o", ms=4, color=MUTED, label="participants")]
    if has_unseen:
        handles.append(Line2D([], [], ls="", marker="o", ms=4, mfc="none", mec=MUTED, label="unseen clients"))
    handles.append(Line2D([], [], ls="-", lw=2.5, color=MUTED, alpha=0.6, label="middle 80%"))
    figure.legend(handles=handles, loc="outside upper left", ncols=3)
    return figure


def client_accuracies(comparison: RunSet, method: str, population: str) -> Floats:
    """Return the accuracy of each client of a population at the last evaluation, for all seeds together."""
    scores = [run.clients[population].score for run in comparison.counted(method) if population in run.clients]
    values = np.concatenate(scores) if scores else np.zeros(0)
    return values[np.isfinite(values)]


def _strip(axes: Axes, j: int, height: float, values: Floats, *, filled: bool) -> None:
    # Evenly spaced quantiles represent the clients, as thousands of dots would overlap.
    count = min(len(values), DOTS)
    dots = np.quantile(values, (np.arange(count) + 0.5) / count)
    low, middle, high = np.quantile(values, [0.1, 0.5, 0.9])
    part = "participants" if filled else "unseen"
    (bar,) = axes.plot([low, high], [height, height], color=method_color(j), lw=4.5, alpha=0.3, solid_capstyle="butt")
    tag(bar, j, f"bar-{part}")
    face = method_color(j) if filled else "none"
    (points,) = axes.plot(dots, np.full(count, height), "o", ms=3.2, mfc=face, mec=method_color(j), mew=0.6, alpha=0.75)
    tag(points, j, f"dots-{part}")
    (median,) = axes.plot([middle, middle], [height - 0.15, height + 0.15], color=line_style(j)["color"], lw=2)
    tag(median, j, f"median-{part}")


def _trained_methods(comparison: RunSet) -> list[int]:
    return [
        j
        for j, method in enumerate(comparison.methods)
        if any(len(r.replies.chosen) for r in comparison.counted(method))
    ]


def names_of(comparison: RunSet) -> Sequence[str] | None:
    """Return the names of the clients if they are the same in all counted runs, else None."""
    met = {tuple(run.partition.client_names or ()) for run in comparison.all_counted}
    return met.pop() or None if len(met) == 1 else None


def _name_participants(axes: Axes, comparison: RunSet, ids: Ints, axis: str, count: int) -> str:
    """Label some ticks with participants' names, or with their ids; return what they are."""
    names = names_of(comparison)
    count = len(ids) if names is not None and len(ids) <= ALL_NAMED else min(count, len(ids))
    places = np.unique(np.linspace(0, len(ids) - 1, count).round().astype(int))
    labels = [str(ids[place]) if names is None else shorten(names[ids[place]], 14) for place in places]
    (axes.set_xticks if axis == "x" else axes.set_yticks)(places, labels)
    return "participant's id" if names is None else "participant"


def _strips(comparison: RunSet, drawn: Sequence[int], tall: float, margin: float) -> tuple[Figure, list[Axes]]:
    """Return a figure with a strip for each of the methods at these positions."""
    figure = new_figure(margin + max(tall * len(drawn), 1.4))
    panels = list(figure.subplots(len(drawn), 1, sharex=True, sharey=True, squeeze=False)[:, 0])
    for axes, j in zip(panels, drawn, strict=True):
        axes.set_title(strip_name(comparison.methods[j]))
    return figure, panels


def _heat_map(axes: Axes, values: Floats, top: float, **options: Any) -> Any:
    axes.grid(visible=False)
    return axes.imshow(values, cmap=heat_colormap(), vmin=0, vmax=top, aspect="auto", interpolation="none", **options)


def _heat_bar(figure: Figure, panels: Sequence[Axes], image: Any, label: str, **options: Any) -> None:
    bar = figure.colorbar(image, ax=list(panels), location="top", shrink=0.6, aspect=30, **options)
    bar.set_label(label, fontsize=style().smaller)
    in_percent(bar.ax, "x")
    bar.outline.set_visible(False)


# ---- Partition: examples and classes of each client

LABELLED = 30  # clients up to which each column or row shows its name
NARROWEST = 0.24  # least share of the width of a group, so that its heading fits
WIDTH = 60  # letters of names that fit side by side


@with_style
def partition_heatmap(
    label_counts: ArrayLike,
    participants: ArrayLike,
    unseen: ArrayLike,
    client_names: Sequence[str] | None = None,
    class_names: Sequence[str] | None = None,
) -> Figure:
    """Draw each client's label distribution, with the client's number of examples above.

    Clients form two groups, participants and unseen clients. Each group is sorted by most frequent class, so that label
    skew appears as a diagonal. Color is the share n_ic / n_i of class c among client i's examples.

    Args:
        label_counts: Examples per client and class, shape (n, c).
        participants: Ids of the clients that train.
        unseen: Ids of the clients that never train, possibly none.
        client_names: Names of the n clients. None: ids.
        class_names: Names of the c classes. None: numbers.

    Example:
        >>> figure = partition_heatmap([[5, 0], [1, 3], [0, 2]], participants=[0, 1], unseen=[2])
        >>> [axes.get_title(loc="left") for axes in figure.axes[:2]]
        ['2 participants', '1 unseen']
    """
    counts = np.asarray(label_counts, dtype=np.int64)
    groups = [("participants", order_by_class(counts, participants)), ("unseen", order_by_class(counts, unseen))]
    groups = [(name, ids) for name, ids in groups if len(ids)]
    total = sum(len(ids) for _, ids in groups)
    widths = [max(len(ids) / total, NARROWEST) for _, ids in groups]
    tall = min(max(0.19 * counts.shape[1], 1.3), 2.4)
    figure = new_figure(1.75 + tall)
    panels = figure.subplots(
        2, len(groups), squeeze=False, sharex="col", sharey="row", width_ratios=widths, height_ratios=[0.55, tall]
    )
    shares = counts / np.maximum(counts.sum(1), 1)[:, None]
    image: Any = None
    for column, (name, ids) in enumerate(groups):
        sizes, heat = panels[:, column]
        examples = counts[ids].sum(1)
        sizes.stairs(examples, np.arange(len(ids) + 1) - 0.5, fill=True, color=MUTED, lw=0)
        sizes.set_title(f"{len(ids)} {name}")
        sizes.grid(axis="x", visible=False)
        sizes.set_ylim(bottom=0)
        sizes.locator_params(axis="y", nbins=2)
        sizes.tick_params(axis="x", length=0, labelbottom=False)
        image = _heat_map(heat, shares[ids].T, shares.max() or 1)
        heat.set_xticks(range(len(ids)) if total <= LABELLED else [])
        if total <= LABELLED:
            labels = [str(i) if client_names is None else shorten(client_names[i], 12) for i in ids]
            upright = total > 14 or (client_names is not None and sum(map(len, labels)) > WIDTH)
            heat.set_xticklabels(labels, rotation=90 if upright else 0, fontsize=style().smallest)
        if class_names is not None and len(class_names) <= LABELLED:
            heat.set_yticks(range(len(class_names)), [shorten(name, 16) for name in class_names])
        else:
            heat.locator_params(axis="y", nbins=min(counts.shape[1], 10), integer=True)
    panels[0, 0].set_ylabel("examples")
    panels[1, 0].set_ylabel("class")
    figure.supxlabel("clients, ordered by their most frequent class", fontsize=style().size, color=style().muted)
    _heat_bar(figure, list(panels.ravel()), image, "share of the client's examples, %", pad=0.02)
    return figure


def order_by_class(counts: Ints, ids: ArrayLike) -> Ints:
    """Return `ids` ordered by most frequent class, then by that class's share (largest first), then by id."""
    chosen = np.sort(np.asarray(ids, dtype=np.int64))
    class_counts = counts[chosen]
    share = class_counts.max(1, initial=0) / np.maximum(class_counts.sum(1), 1)
    main = class_counts.argmax(1) if class_counts.size else np.zeros(len(chosen), dtype=np.int64)
    return chosen[np.lexsort((chosen, -share, main))]


# ---- Gain of adaptation by number of inputs

APART = 0.07
"""Distance between the markers of two methods, relative to the distance between numbers of inputs."""


@with_style
def gain_by_inputs(analysis: Analysis) -> Figure | None:
    """Draw the gain of adaptation against a client's number of inputs; None if no method adapts by inputs.

    The figure does not include rules that need labels.

    “All” is drawn separately, because clients then adapt to the same inputs that they predict. Otherwise, they adapt to
    other inputs.
    """
    position = {method: j for j, method in enumerate(analysis.comparison.methods)}
    rows = [row for row in analysis.adaptation if row.gain_with and row.gain.mean is not None and not row.needs_labels]
    if not rows:
        return None
    numbers = sorted({n for row in rows for n in row.gain_with})
    legend = Legend.of(analysis.comparison.methods, [position[row.method] for row in rows])
    figure = new_figure(2.8 + legend.height)
    axes = figure.subplots()
    for place, row in enumerate(rows):
        shift = APART * (place - (len(rows) - 1) / 2)
        gains = [(x + shift, row.gain_with[n]) for x, n in enumerate(numbers) if n in row.gain_with]
        _draw_gains(axes, position[row.method], gains, "some")
        _draw_gains(axes, position[row.method], [(len(numbers) + shift, row.gain)], "all")
    axes.axhline(0, color=INK, linewidth=0.9)
    axes.axvline(len(numbers) - 0.5, color=MUTED, linewidth=0.7, linestyle=(0, (2, 2)))
    axes.set_xticks(range(len(numbers) + 1), [*map(str, numbers), "all"])
    axes.set_xlim(-0.5, len(numbers) + 0.5)
    axes.grid(axis="x", visible=False)
    axes.set_xlabel("unlabeled inputs of the client")
    where = POPULATION["unseen_accuracy" if rows[0].population == "unseen" else "participant_accuracy"].words
    heading(axes, f"Adapted minus unadapted on {where}, points", SINGLE_PANEL)
    in_percent(axes, "y")
    legend.draw(figure)
    return figure


def _draw_gains(axes: Axes, j: int, gains: list[tuple[float, PairedTest]], part: str) -> None:
    """Draw the gains of the method at position j, each with its interval over seeds."""
    measured = [(x, gain, gain.estimate) for x, gain in gains if gain.estimate is not None]
    (line,) = axes.plot([x for x, _, _ in measured], [middle for _, _, middle in measured], **line_style(j))
    tag(line, j, f"mean-{part}")
    for place, (x, gain, _) in enumerate(measured):
        if gain.low is not None and gain.high is not None:
            (bar,) = axes.plot([x, x], [gain.low, gain.high], color=line_style(j)["color"], lw=1.4)
            tag(bar, j, f"interval-{part}-{place}")


# ---- Parts of a round's simulated time

# In the order of a round. All parts have the method's color and differ by their filling.
FILLS: dict[str, dict[str, Any]] = {
    "probe": {"fill": False, "linewidth": 0.9},
    "computing": {"alpha": 1.0, "linewidth": 0},
    "sending": {"alpha": 0.5, "linewidth": 0},
    "waiting": {"alpha": 0.15, "linewidth": 0},
}
LEAST_VISIBLE_SHARE = 5e-3  # share of a round below which a part is too thin to draw, or a rounding error


def round_time(runs: Sequence[RunData]) -> dict[str, float] | None:
    """Return seconds, joules and the seconds of each part of the mean round over seeds; None without a radio.

    A selected client computes, sends, and then waits for the slowest client. Each part is a mean over the clients of a
    round, so that the parts of a round add up to its seconds.
    """
    means = [mean for run in runs if (mean := _round_time_of_run(run))]
    if not means or len(means) < len(runs):
        return None
    return {name: float(np.mean([mean[name] for mean in means])) for name in means[0]}


def _round_time_of_run(run: RunData) -> dict[str, float]:
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
    """Return the share of a part in the time of the round; 0 if it is too small to draw."""
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

COMPUTE, UPLOAD = METHOD[0], METHOD[1]


@with_style
def allocation(clients: Sequence[Mapping[str, Any]], seconds: float) -> Figure:
    """Draw a row for each client of the cohort, sorted by decreasing share of bandwidth.

    Args:
        clients: Rows as in the list ``clients`` of `fedreach allocate --json`: client, share, hertz, max_hertz,
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
