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
    words = score.words.capitalize()
    unit, points = (", %", ", points") if score.percent else ("", "")
    several = any(len(comparison.counted(method)) > 1 for method in comparison.methods)
    spread = "± sd over seeds" if several else "95% CI over clients"
    band = f"Lines: mean over clients{' and seeds' * several}. Bands: {spread}."
    over_seeds = " Bands: ± sd over seeds." * several
    ring = " A ring marks the cost at which all seeds have reached the target, on average."
    ring *= comparison.target_accuracy is not None
    first = comparison.all_counted[0].partition
    bars = "One seed: no interval and no test."
    if any(row.difference.low is not None for row in analysis.last):
        bars = "Bars: 95% CI, adjusted as in the table. A bar that crosses 0 is no significant difference."
    shaded = "" if comparison.margin is None else " Shaded: equivalence margin."
    order = "participants minus unseen clients"
    if score.lower_is_better:
        order = "unseen clients minus participants"
    specs = [
        FigureSpec(
            "differences",
            f"Difference to {comparison.baseline} on {where}{points}",
            f"Dots: mean over seeds. {bars}{shaded}",
            lambda: curves.differences(analysis),
        ),
        FigureSpec(
            "adaptation",
            "Gain of adaptation by number of inputs, points",
            "Adapted minus unadapted accuracy of a client that has this many unlabeled inputs, scored on its other "
            "inputs. Right of the dotted line: adapted by all inputs and scored on the same inputs."
            + " Bars: 95% CI over seeds, adjusted for the number of methods."
            * several,
            lambda: clients.gain_by_inputs(analysis),
        ),
        FigureSpec(
            "accuracy",
            f"{words} over rounds{unit}",
            f"{band} The axis may cut off the first fifth of the rounds.",
            lambda: curves.accuracy(comparison),
        ),
        FigureSpec(
            "cost",
            f"{words} on {where} by communication{unit}",
            f"{band} Communication counts both directions and probes.{ring}",
            lambda: curves.accuracy(comparison, "megabytes"),
        ),
        FigureSpec(
            "accuracy_seconds",
            f"{words} by simulated time{unit}",
            f"{band} Radio and processors are simulated.{ring}",
            lambda: curves.accuracy(comparison, "seconds"),
        ),
        FigureSpec(
            "accuracy_joules",
            f"{words} by simulated energy{unit}",
            f"{band} Energy of the clients for sending and computing.{ring}",
            lambda: curves.accuracy(comparison, "joules"),
        ),
        FigureSpec(
            "gap",
            f"Participation gap over rounds{points}",
            f"{score.words.capitalize()} of {order}, by the same model. {band}",
            lambda: curves.gap(comparison),
        ),
        FigureSpec(
            "distribution",
            f"{words} of single clients{unit}",
            "Each dot is an equal share of the clients of all seeds. Filled: participants. Open: unseen clients.",
            lambda: clients.distribution(comparison),
        ),
        FigureSpec(
            "spending",
            "Simulated time and energy over rounds",
            f"Sum of all rounds so far, probes included.{over_seeds}",
            lambda: curves.spending(comparison),
        ),
        FigureSpec(
            "round_time",
            "Parts of a round's simulated time, %",
            "Mean over selected clients, rounds and seeds. A client computes, sends, and waits for the slowest client. "
            "Right: time and energy of the mean round.",
            lambda: clients.round_times(comparison),
        ),
        FigureSpec(
            "chosen",
            "Rounds in which each participant was selected, %",
            "All seeds together. Dashed line: mean over participants.",
            lambda: clients.selection_shares(comparison),
        ),
        FigureSpec(
            "weights",
            "Aggregation weight of each participant over rounds, %",
            "Mean over groups of rounds; 0 in rounds without its update.",
            lambda: clients.weights(comparison),
        ),
        FigureSpec(
            "theory",
            "Terms of the papers' bounds over rounds",
            f"Means over groups of rounds.{over_seeds} Dashed lines: all participants with equal weights (entropy) or "
            "weighted by examples (label gap).",
            lambda: curves.theory(analysis),
        ),
        FigureSpec(
            "partition",
            "Label distribution of each client, %",
            f"Examples by class, seed {comparison.all_counted[0].seed}. Gray bars: number of examples.",
            lambda: clients.partition_heatmap(
                first.label_counts, first.participants, first.unseen, first.client_names, first.class_names
            ),
        ),
    ]
    return specs if first.label_counts.shape[1] else specs[:-1]  # no partition of classes without classes
