"""Functions that draw one figure each from stored rows; `draw_figures` draws all figures with data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedreach._util.processes import map_forked
from fedreach.report.analysis import POPULATION
from fedreach.report.figures import clients, curves
from fedreach.report.figures.style import inline_svg, save
from fedreach.report.numbers import CAPTIONS
from fedreach.report.overview import Analysis

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Picture:
    """A drawn figure with its title, caption and files."""

    name: str  # file name without ending
    title: str
    caption: str  # content, and what the band or bar is over
    svg: str  # SVG element for a page; empty in a paper
    files: tuple[Path, ...]


class FigureSpec(NamedTuple):
    """A figure to draw: its texts, and the function that draws it or, without data, returns None."""

    name: str
    title: str
    caption: str
    draw: Callable[[], Figure | None]


def draw_figures(
    specs: Sequence[FigureSpec],
    folder: Path | None = None,
    formats: Sequence[str] = (),
    processes: int | None = None,
    *,
    inline: bool = True,
) -> list[Picture]:
    """Draw all figures that have data, in this order.

    Args:
        specs: Figures to draw (see `figure_specs`).
        folder: Folder for the files of each figure in all `formats`. None: no files.
        formats: File formats (see `save`).
        processes: Number of processes that draw. None: the default of `map_forked`.
        inline: Also return each figure as an SVG element for a page.
    """
    import matplotlib.backends.backend_pdf
    import matplotlib.backends.backend_svg
    import matplotlib.figure  # noqa: F401  # before forking, so that each process has it

    def draw_picture(spec: FigureSpec) -> Picture | None:
        if (figure := spec.draw()) is None:
            return None
        svg = inline_svg(figure, spec.name, spec.title) if inline else ""
        files = save(figure, folder / spec.name, formats) if folder is not None else ()
        return Picture(spec.name, spec.title, spec.caption, svg, files)

    return [picture for picture in map_forked(draw_picture, specs, processes) if picture is not None]


def figure_specs(analysis: Analysis) -> list[FigureSpec]:
    """Return all figures that may be drawn, ordered by importance."""
    comparison = analysis.comparison
    if not comparison.all_counted:
        return []
    score, first = comparison.score, comparison.all_counted[0].partition
    several = any(len(comparison.counted(method)) > 1 for method in comparison.methods)
    order = ("participants", "unseen clients")[:: -1 if score.lower_is_better else 1]
    draws: dict[str, Callable[[], Figure | None]] = {
        "differences": lambda: curves.differences(analysis),
        "adaptation": lambda: clients.gain_by_inputs(analysis),
        "accuracy": lambda: curves.accuracy(comparison),
        "cost": lambda: curves.accuracy(comparison, "megabytes"),
        "accuracy_seconds": lambda: curves.accuracy(comparison, "seconds"),
        "accuracy_joules": lambda: curves.accuracy(comparison, "joules"),
        "gap": lambda: curves.gap(comparison),
        "distribution": lambda: clients.distribution(comparison),
        "spending": lambda: curves.spending(comparison),
        "round_time": lambda: clients.round_times(comparison),
        "chosen": lambda: clients.selection_shares(comparison),
        "weights": lambda: clients.weights(comparison),
        "theory": lambda: curves.theory(analysis),
    }
    if first.label_counts.shape[1]:  # a heat map of classes
        parts = (first.label_counts, first.participants, first.unseen, first.client_names, first.class_names)
        draws["partition"] = lambda: clients.partition_heatmap(*parts)
    tested = any(row.difference.low is not None for row in analysis.last)
    conditions = {
        "seeds": several,
        "gains": several,
        "one_seed": not several,
        "tested": tested,
        "untested": not tested,
        "margin": comparison.margin is not None,
        "target": comparison.target_accuracy is not None,
    }
    optional = {name: text * conditions[name] for name, text in CAPTIONS["optional"].items()}
    values = optional | {
        "score": score.words.capitalize(),
        "baseline": comparison.baseline,
        "where": POPULATION[comparison.primary].words,
        "order": " minus ".join(order),
        "seed": comparison.all_counted[0].seed,
        "percent": ", %" * score.percent,
        "points": ", points" * score.percent,
    }
    return [
        FigureSpec(name, CAPTIONS[name]["title"].format(**values), CAPTIONS[name]["caption"].format(**values), draw)
        for name, draw in draws.items()
    ]
