"""One function per figure, each from stored rows; `draw_figures` draws those that there are data for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedreach._util.processes import map_forked
from fedreach.report.analysis import POPULATION, primary_of
from fedreach.report.figures import clients, curves
from fedreach.report.figures.clients import partition_heatmap
from fedreach.report.figures.costs import accuracy_against, round_times, spending
from fedreach.report.figures.style import inline_svg, save
from fedreach.report.figures.sweeps import theory
from fedreach.report.numbers import percent, points, with_unit
from fedreach.report.overview import Analysis

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Picture:
    """A drawn figure with its texts."""

    name: str  # file name without ending
    title: str
    caption: str  # content, and what the band or bar is over
    description: str  # alternative text for screen readers
    svg: str  # SVG element for a page
    files: tuple[Path, ...]


class FigureSpec(NamedTuple):
    """A figure to draw: its texts, and the function that draws it and returns None without data."""

    name: str
    title: str
    caption: str
    description: str
    draw: Callable[[], Figure | None]
    on_page: str = ""  # addition to the caption on the page


def draw_figures(
    specs: Sequence[FigureSpec], folder: Path | None = None, formats: Sequence[str] = (), processes: int | None = None
) -> list[Picture]:
    """Draw every figure that there are data for, in this order.

    Args:
        specs: Figures to draw, see `figure_specs`.
        folder: Folder for files of each figure in each of the `formats`; None writes none.
        formats: File formats, see `save`.
        processes: Number of processes that draw; None: as in `map_forked`.
    """
    import matplotlib.backends.backend_svg
    import matplotlib.figure  # noqa: F401  # before forking, so that each process has it

    def draw_picture(picture: FigureSpec) -> Picture | None:
        name, title, caption, description, draw, on_page = picture
        if (figure := draw()) is None:
            return None
        svg = inline_svg(figure, name, title, description)
        files = save(figure, folder / name, formats) if folder is not None else ()
        return Picture(name, title, f"{caption}{on_page}", description, svg, files)

    return [picture for picture in map_forked(draw_picture, specs, processes) if picture is not None]


def figure_specs(analysis: Analysis) -> list[FigureSpec]:
    """Return every figure that may be drawn, the most important first."""
    comparison = analysis.comparison
    if not comparison.all_counted:
        return []
    where = POPULATION[comparison.primary].words
    several = any(len(comparison.counted(method)) > 1 for method in comparison.methods)
    band = "Bands: ± sd over seeds." if several else "Bands: 95 % interval over clients."
    means = f"Both are means over seeds at the same round. {band}" if several else band
    ring = "A ring: all seeds have reached the target, here on average."
    over_seeds = " Bands: ± sd over seeds." if several else ""
    first = comparison.all_counted[0].partition
    participant_label = "id" if clients.names_of(comparison) is None else "name"
    final = _final(analysis)
    score = comparison.score
    called_score = score.words.capitalize()
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
    return [
        FigureSpec(
            "differences",
            f"Who is better than {comparison.baseline}?",
            f"Difference on {where}, seed by seed. {bars}{shaded}",
            "Each method's difference to the baseline, as in the table's column `difference`.",
            lambda: curves.differences(analysis),
        ),
        FigureSpec(
            "adaptation",
            "How many inputs does adaptation need?",
            "What clients gain in accuracy over the model as it is; 0 is no gain. Each estimates its class shares from "
            "so many of its inputs and is scored on the others, right of the dotted line on these very inputs."
            + " Bars: intervals over seeds, corrected for the number of methods."
            * several,
            "Gain of adaptation against the number of inputs without labels, as in the table of how clients are "
            "adapted.",
            lambda: clients.gain_by_inputs(analysis),
        ),
        FigureSpec(
            "accuracy",
            f"{called_score} over the rounds",
            f"Mean over clients. {band} The first fifth of the rounds may lie below the frame.",
            final,
            lambda: curves.accuracy(comparison),
        ),
        FigureSpec(
            "gap",
            "The participation gap",
            f"{gap}, of the same model. {band}",
            "One line per method over the rounds. At the end: " + _gaps(analysis),
            lambda: curves.gap(comparison),
        ),
        FigureSpec(
            "distribution",
            "Client by client",
            "Each dot stands for an equal share of the clients, all seeds together. The spread here is over "
            "clients, not over seeds.",
            f"For each method the {score.words} of single clients, participants above unseen clients, with median and "
            "the middle 80 per cent.",
            lambda: clients.distribution(comparison),
        ),
        FigureSpec(
            "cost",
            "What the accuracy costs" if score.percent else "What a small error costs",
            f"{band} {ring}",
            f"{called_score} against megabytes sent, one line per method. " + final,
            lambda: curves.cost(comparison),
        ),
        FigureSpec(
            "accuracy_seconds",
            f"{called_score} in the time it takes",
            f"{means} The radio and the processors are simulated. {ring}",
            f"{called_score} against simulated seconds, one line per method. " + final,
            lambda: accuracy_against(comparison, "seconds"),
        ),
        FigureSpec(
            "accuracy_joules",
            f"{called_score} for the energy it takes",
            f"{means} The energy is that of sending and computing. {ring}",
            f"{called_score} against simulated joules, one line per method. " + final,
            lambda: accuracy_against(comparison, "joules"),
        ),
        FigureSpec(
            "spending",
            "Time and energy over the rounds",
            f"Simulated, of all rounds so far, probes included.{over_seeds}",
            "One line per method over the rounds, for time and for energy. In total: " + _totals(analysis),
            lambda: spending(comparison),
        ),
        FigureSpec(
            "round_time",
            "Where a round's time goes",
            "Means over chosen clients, rounds and seeds: a client computes, sends, and waits for the slowest. "
            "To the right: the mean round's simulated time and energy.",
            "One bar per method, split by the parts of a round.",
            lambda: round_times(comparison),
        ),
        FigureSpec(
            "chosen",
            "Who was chosen",
            "Share of the rounds in which each participant was in the cohort, all seeds together. Dashed: the mean.",
            f"One strip of bars per method, participants by {participant_label}.",
            lambda: clients.selection_shares(comparison),
        ),
        FigureSpec(
            "weights",
            "Whose report counted",
            "Mean weight of each participant's report in stretches of rounds; a round without its report counts 0.",
            f"One heat map per method, rounds from left to right, participants by {participant_label}.",
            lambda: clients.weights(comparison),
        ),
        FigureSpec(
            "theory",
            "What the bounds look at",
            f"Means over stretches of rounds.{over_seeds} Dashed: all "
            "participants, each counting the same (entropy) or by examples (gap).",
            "One panel per term of the papers' bounds, one line per method over the rounds; the means are in the table "
            "of that name.",
            lambda: theory(analysis),
            on_page=" What each term means is told below.",
        ),
        FigureSpec(
            "partition",
            "Who holds what",
            f"Classes of each client's examples, seed {comparison.all_counted[0].seed}.",
            f"{len(first.participants)} participants and {len(first.unseen)} unseen clients, "
            f"{int(first.sizes.sum())} examples of {first.label_counts.shape[1]} classes.",
            lambda: (
                partition_heatmap(
                    first.label_counts, first.participants, first.unseen, first.client_names, first.class_names
                )
                if first.label_counts.shape[1]
                else None
            ),
        ),
    ]


def _totals(analysis: Analysis) -> str:
    spent = ((row.method, row.at["seconds"].mean, row.at["joules"].mean) for row in analysis.last)
    parts = [
        f"{method} {with_unit('seconds', seconds)} and {with_unit('joules', joules)}"
        for method, seconds, joules in spent
        if seconds is not None and joules is not None
    ]
    return ", ".join(parts) + "."


def _final(analysis: Analysis) -> str:
    comparison = analysis.comparison
    by = comparison.score
    parts = [f"{row.method} {percent(primary_of(row, comparison), by)}{by.unit}" for row in analysis.last if row.seeds]
    return f"At the last round on {POPULATION[comparison.primary].words}: {', '.join(parts)}."


def _gaps(analysis: Analysis) -> str:
    gaps = ((row.method, row.at["gap"].mean) for row in analysis.last)
    by = analysis.comparison.score
    return ", ".join(f"{method} {points(gap, by=by)}{by.points}" for method, gap in gaps if gap is not None) + "."
