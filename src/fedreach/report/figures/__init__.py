"""One function per figure, each from stored rows; `draw_figures` draws those that there are data for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedreach._util.processes import map_forked
from fedreach.report.analysis import POPULATION
from fedreach.report.figures import clients, curves
from fedreach.report.figures.style import inline_svg, save
from fedreach.report.overview import Analysis

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Picture:
    """A drawn figure with its texts."""

    name: str  # file name without ending
    title: str
    caption: str  # content, and what the band or bar is over
    svg: str  # SVG element for a page; empty in a paper
    files: tuple[Path, ...]


class FigureSpec(NamedTuple):
    """A figure to draw: its texts, and the function that draws it and returns None without data."""

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
    """Draw every figure that there are data for, in this order.

    Args:
        specs: Figures to draw, see `figure_specs`.
        folder: Folder for files of each figure in each of the `formats`; None writes none.
        formats: File formats, see `save`.
        processes: Number of processes that draw; None: as in `map_forked`.
        inline: Return each figure as an SVG element for a page.
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
    """Return every figure that may be drawn, the most important first."""
    comparison = analysis.comparison
    if not comparison.all_counted:
        return []
    where, score = POPULATION[comparison.primary].words, comparison.score
    called_score = score.words.capitalize()
    several = any(len(comparison.counted(method)) > 1 for method in comparison.methods)
    band = "Bands: ± sd over seeds." if several else "Bands: 95 % interval over clients."
    over_seeds = f" {band}" if several else ""
    means = f"Both are means over seeds at the same round.{over_seeds}" if several else band
    ring = "A ring: all seeds have reached the target, here on average."
    first = comparison.all_counted[0].partition
    shaded = "" if comparison.margin is None else " Shaded: the margin within which methods are as good as equal."
    bars = "Without a second seed there is no interval, and nothing is decided."
    if any(row.difference.low is not None for row in analysis.last):
        bars = (
            "Bars: intervals over seeds by the same correction as the table's p; a bar across 0 shows no clear "
            "difference."
        )
    gap = f"Participants' held-out {score.words} minus that of unseen clients"
    if score.lower_is_better:
        gap = f"Unseen clients' {score.words} minus that of participants' held-out data"
    specs = [
        FigureSpec(
            "differences",
            f"Who is better than {comparison.baseline}?",
            f"Difference on {where}, seed by seed. {bars}{shaded}",
            lambda: curves.differences(analysis),
        ),
        FigureSpec(
            "adaptation",
            "How many inputs does adaptation need?",
            "What clients gain in accuracy over the model as it is; 0 is no gain. Each estimates its class shares from "
            "so many of its inputs and is scored on the others, right of the dotted line on these very inputs."
            + " Bars: intervals over seeds, corrected for the number of methods."
            * several,
            lambda: clients.gain_by_inputs(analysis),
        ),
        FigureSpec(
            "accuracy",
            f"{called_score} over the rounds",
            f"Mean over clients. {band} The first fifth of the rounds may lie below the frame.",
            lambda: curves.accuracy(comparison),
        ),
        FigureSpec(
            "gap",
            "The participation gap",
            f"{gap}, of the same model. {band}",
            lambda: curves.gap(comparison),
        ),
        FigureSpec(
            "distribution",
            "Client by client",
            "Each dot stands for an equal share of the clients, all seeds together. The spread here is over "
            "clients, not over seeds.",
            lambda: clients.distribution(comparison),
        ),
        FigureSpec(
            "cost",
            "What the accuracy costs" if score.percent else "What a small error costs",
            f"{band} {ring}",
            lambda: curves.accuracy(comparison, "megabytes"),
        ),
        FigureSpec(
            "accuracy_seconds",
            f"{called_score} in the time it takes",
            f"{means} The radio and the processors are simulated. {ring}",
            lambda: curves.accuracy(comparison, "seconds"),
        ),
        FigureSpec(
            "accuracy_joules",
            f"{called_score} for the energy it takes",
            f"{means} The energy is that of sending and computing. {ring}",
            lambda: curves.accuracy(comparison, "joules"),
        ),
        FigureSpec(
            "spending",
            "Time and energy over the rounds",
            f"Simulated, of all rounds so far, probes included.{over_seeds}",
            lambda: curves.spending(comparison),
        ),
        FigureSpec(
            "round_time",
            "Where a round's time goes",
            "Means over chosen clients, rounds and seeds: a client computes, sends, and waits for the slowest. "
            "To the right: the mean round's simulated time and energy.",
            lambda: clients.round_times(comparison),
        ),
        FigureSpec(
            "chosen",
            "Who was chosen",
            "Share of the rounds in which each participant was in the cohort, all seeds together. Dashed: the mean.",
            lambda: clients.selection_shares(comparison),
        ),
        FigureSpec(
            "weights",
            "Whose report counted",
            "Mean weight of each participant's report in stretches of rounds; a round without its report counts 0.",
            lambda: clients.weights(comparison),
        ),
        FigureSpec(
            "theory",
            "What the bounds look at",
            f"Means over stretches of rounds.{over_seeds} Dashed: all "
            "participants, each counting the same (entropy) or by examples (gap).",
            lambda: curves.theory(analysis),
        ),
        FigureSpec(
            "partition",
            "Who holds what",
            f"Classes of each client's examples, seed {comparison.all_counted[0].seed}.",
            lambda: clients.partition_heatmap(
                first.label_counts, first.participants, first.unseen, first.client_names, first.class_names
            ),
        ),
    ]
    return specs if first.label_counts.shape[1] else specs[:-1]  # no partition of classes without classes
