"""Who holds what: how many examples and which classes each client has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from fedreach.arrays import Ints
from fedreach.report.figures.names import short
from fedreach.report.figures.style import MUTED, heat_colours, in_percent, new_figure, style, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELLED = 30  # up to this many clients each column bears its id
NARROWEST = 0.24  # share of the width that a small group gets, so that its heading fits
WIDTH = 60  # letters of names that stand side by side


@styled
def partition_heatmap(
    label_counts: ArrayLike,
    participants: ArrayLike,
    unseen: ArrayLike,
    client_names: Sequence[str] | None = None,
    class_names: Sequence[str] | None = None,
) -> Figure:
    """Draw each client's mix of classes, with its number of examples above.

    Clients stand in two groups, participants and unseen clients, each ordered by most frequent class, so that
    label skew shows as a diagonal. Colour is the share n_ic / n_i of class c among client i's examples.

    Args:
        label_counts: Examples per client and class, shape (n, c).
        participants: Ids of the clients that train.
        unseen: Ids of those that never do; may be empty.
        client_names: What the n clients are called; None: by their ids.
        class_names: What the c classes are called; None: by their numbers.

    Example:
        >>> figure = partition_heatmap([[5, 0], [1, 3], [0, 2]], participants=[0, 1], unseen=[2])
        >>> [axes.get_title(loc="left") for axes in figure.axes[:2]]
        ['2 participants', '1 unseen']
    """
    counts = np.asarray(label_counts, dtype=np.int64)
    groups = [("participants", ordered(counts, participants)), ("unseen", ordered(counts, unseen))]
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
        held = counts[ids].sum(1)
        sizes.stairs(held, np.arange(len(ids) + 1) - 0.5, fill=True, color=MUTED, lw=0)
        sizes.set_title(f"{len(ids)} {name}")
        sizes.grid(axis="x", visible=False)
        sizes.set_ylim(bottom=0)
        sizes.locator_params(axis="y", nbins=2)
        sizes.tick_params(axis="x", length=0, labelbottom=False)
        image = heat.imshow(
            shares[ids].T, cmap=heat_colours(), vmin=0, vmax=shares.max() or 1, aspect="auto", interpolation="none"
        )
        heat.grid(visible=False)
        heat.set_xticks(range(len(ids)) if total <= LABELLED else [])
        if total <= LABELLED:
            called = [str(i) if client_names is None else short(client_names[i], 12) for i in ids]
            upright = total > 14 or (client_names is not None and sum(map(len, called)) > WIDTH)
            heat.set_xticklabels(called, rotation=90 if upright else 0, fontsize=style().smallest)
        if class_names is not None and len(class_names) <= LABELLED:
            heat.set_yticks(range(len(class_names)), [short(name, 16) for name in class_names])
        else:
            heat.locator_params(axis="y", nbins=min(counts.shape[1], 10), integer=True)
    panels[0, 0].set_ylabel("examples")
    panels[1, 0].set_ylabel("class")
    figure.supxlabel("clients, ordered by their most frequent class", fontsize=style().size, color=style().muted)
    bar = figure.colorbar(image, ax=list(panels.ravel()), location="top", shrink=0.6, aspect=30, pad=0.02)
    bar.set_label("share of the client's examples, %", fontsize=style().smaller)
    in_percent(bar.ax, "x")
    bar.outline.set_visible(False)
    return figure


def ordered(counts: Ints, ids: ArrayLike) -> Ints:
    """Return `ids` ordered by most frequent class, then by that class's share (largest first), then by id."""
    chosen = np.sort(np.asarray(ids, dtype=np.int64))
    held = counts[chosen]
    share = held.max(1, initial=0) / np.maximum(held.sum(1), 1)
    main = held.argmax(1) if held.size else np.zeros(len(chosen), dtype=np.int64)
    return chosen[np.lexsort((chosen, -share, main))]
