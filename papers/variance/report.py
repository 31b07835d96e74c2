"""What a design says as tables, sentences, a JSON document and files. Standard deviations are in percentage points."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedreach._util.tables import markdown_lines
from fedreach.report.analysis import POPULATION
from fedreach.report.figures.style import FORMATS, check_formats, save
from fedreach.report.numbers import interval, points
from fedreach.report.write import explain_write_errors
from papers.variance.components import Variance
from papers.variance.decomposition import FEDERATION, MEANS, TWICE, Decomposition, Part, Way, decompose
from papers.variance.design import DesignRecord
from papers.variance.figure import components
from papers.variance.read import read_results

Cells = tuple[list[str], list[list[str]]]
"""A header and rows."""

MIN_FREEDOM = 5  # degrees of freedom below which the text warns


def title(decomposition: Decomposition) -> str:
    """Return the title."""
    results = decomposition.results
    baseline, second = results.methods
    return f"{results.name}: where the spread of {second} − {baseline} on {POPULATION[results.column].words} comes from"


def design(decomposition: Decomposition) -> str:
    """Return the sentence about the numbers of draws."""
    a, b, c, d = draws = decomposition.results.draws
    return (
        f"{a} partitions, {b} draws of participants within each, {c} initial models within these, {d} draws of batches "
        f"(and choices) within those: {2 * math.prod(draws)} runs."
    )


def parts_table(decomposition: Decomposition) -> Cells:
    """Return the standard deviation that each part brings in, with its 95% interval and degrees of freedom."""
    baseline, second = decomposition.results.methods
    header = ["drawn anew", "df", baseline, second, f"{second} − {baseline}"]
    rows = [_row(part, part.name) for part in decomposition.parts]
    rows.append(_row(decomposition.total, "all of them: one seed"))
    rows += [_row(part, f"in {' and '.join(part.within)}: {part.name}") for part in decomposition.included]
    return header, rows


def _row(part: Part, name: str) -> list[str]:
    return [name, f"{part.difference.freedom:.0f}", *map(spread, part.of)]


def spread(variance: Variance) -> str:
    """Return a standard deviation with its interval; in brackets alone where the estimate is below 0.

    Example:
        >>> spread(Variance(0.0004, 0.0001, 0.0016, 9)), spread(Variance(-0.0001, 0.0, 0.0001, 9))
        ('2.00 [1.00, 4.00]', '0 [0.00, 1.00]')
    """
    return f"{sd(variance.value) if variance.value > 0 else '0'} [{sd(variance.low)}, {sd(variance.high)}]"


def sd(variance: float) -> str:
    """Return the root of a variance in points."""
    return f"{100 * math.sqrt(max(variance, 0.0)):.2f}"


def ways_table(decomposition: Decomposition) -> Cells:
    """Return the standard deviation of the mean difference by how the comparison is run."""
    n = decomposition.results.seeds
    header = ["how it is run", "one seed", f"mean of {n} seeds", f"mean of {2 * n}"]
    rows = []
    for way in decomposition.ways:
        one_seed = spread(way.one_seed) if not way.fixed else sd(way.variance(1))
        star = " *" if way.pinned else ""
        rows.append([way.name + star, one_seed, sd(way.variance(n)), sd(way.variance(2 * n))])
    return header, rows


PINNED = (
    "* About itself: distance of the mean over seeds from the true difference with the fixed draws, which is another "
    "question. About others: distance from the mean over all possible draws."
)


def sentences(decomposition: Decomposition) -> list[str]:
    """Return the conclusions that the degrees of freedom of the tables allow."""
    results, nested = decomposition.results, decomposition.difference
    baseline, second = results.methods
    low, high = nested.of_mean()
    where = POPULATION[results.column].words
    lines = [
        f"{second} − {baseline} on {where} at the last evaluated round: {points(nested.mean, sign=True)} points"
        f"{interval(low, high, sign=True)}, by the spread between {results.draws[0]} partitions."
    ]
    total = decomposition.total.difference
    if total.cut == 0:
        return [*lines, "The difference is the same in all runs: there is no spread to be explained."]
    lines.append(
        f"One seed's difference has a standard deviation of {spread(total)} points ({total.freedom:.0f} degrees of "
        f"freedom). {_shares_sentence(decomposition)}"
    )
    lines += _significance(decomposition)
    lines += [_included_sentence(part, decomposition) for part in decomposition.included]
    lines.append(_lower_sentence(decomposition))
    lines.append(_pinned_sentence(decomposition))
    if results.draws[0] - 1 < MIN_FREEDOM:
        lines.append(f"With {results.draws[0]} partitions their component is hardly known: read its interval.")
    return lines


def _shares_sentence(decomposition: Decomposition) -> str:
    """Return what the components have of their sum, the largest first."""
    total = sum(part.difference.cut for part in decomposition.parts)
    ordered = sorted(decomposition.parts, key=lambda part: -part.difference.cut)
    shares = ", ".join(f"{part.name} {100 * part.difference.cut / total:.0f}%" for part in ordered)
    return f"Its variance: {shares}; the intervals say how sure that is."


def _significance(decomposition: Decomposition) -> list[str]:
    significant = [part.name for part in decomposition.parts if part.difference.is_significant]
    uncertain = [
        f"{part.name} (at most {sd(part.difference.high)})"
        for part in decomposition.parts
        if not part.difference.is_significant
    ]
    lines = [f"More than 0 by their 95% intervals: {', '.join(significant)}."] if significant else []
    return lines + ([f"Not significantly above 0 with this many draws: {', '.join(uncertain)}."] if uncertain else [])


def _included_sentence(part: Part, decomposition: Decomposition) -> str:
    total = sum(component.difference.cut for component in decomposition.parts if component.name in part.within)
    much = "as much as" if part.difference.cut >= total else "a part of what"
    where = " and ".join(part.within)
    return f"{part.name[0].upper()}{part.name[1:]}: {spread(part.difference)} points, {much} {where} bring in."


def _lower_sentence(decomposition: Decomposition) -> str:
    n = decomposition.results.seeds
    (now, *_) = decomposition.ways
    lines = [f"The mean of {n} seeds is known to {sd(now.variance(n))} points (standard deviation), as it is"]
    if (way := decomposition.way(TWICE)) is not None:
        lines.append(
            f"to about {sd(way.variance(n))} with twice the unseen clients ({2 * decomposition.results.unseen:g})"
        )
    if (way := decomposition.way(MEANS)) is not None:
        lines.append(f"to {sd(way.variance(n))} {way.name}")
    lines.append(f"to {sd(now.variance(2 * n))} with twice the seeds, each drawing everything anew")
    low, high = (math.sqrt(end / now.one_seed.value) for end in (now.one_seed.low, now.one_seed.high))
    return "; ".join(lines) + f". These are estimates; the first is known to a factor of {low:.2f} to {high:.2f}."


def _pinned_sentence(decomposition: Decomposition) -> str:
    n = decomposition.results.seeds
    itself, elsewhere = (_find_way(decomposition, f"{FEDERATION}: about {whom}") for whom in ("itself", "others"))
    return (
        f"With one federation pinned, {n} seeds estimate its own difference to {sd(itself.variance(n))} points. That "
        f"is another question: they estimate the difference over federations to about {sd(elsewhere.variance(n))}, "
        f"and no number of seeds estimates it to less than about {sd(elsewhere.fixed)}."
    )


def _find_way(decomposition: Decomposition, name: str) -> Way:
    (way,) = [way for way in decomposition.ways if way.name == name]
    return way


def to_markdown(decomposition: Decomposition) -> str:
    """Return the decomposition as Markdown."""
    return "\n".join(
        [
            f"**{_escape(title(decomposition))}**",
            "",
            _escape(design(decomposition)) + " Standard deviations in points, with 95% intervals cut off at 0.",
            "",
            *_lines(parts_table(decomposition)),
            "",
            "Standard deviation of the mean difference, in points:",
            "",
            *_lines(ways_table(decomposition)),
            "",
            _escape(PINNED),
            "",
            *(f"- {_escape(sentence)}" for sentence in sentences(decomposition)),
            "",
        ]
    )


def _lines(cells: Cells) -> list[str]:
    header, rows = cells
    return markdown_lines([_escape(cell) for cell in header], [[_escape(c) for c in row] for row in rows], right=True)


def _escape(text: str) -> str:
    return "".join("\\" + letter if letter in "\\|*_`<" else letter for letter in text)


def as_record(decomposition: Decomposition) -> dict[str, Any]:
    """Return the decomposition as JSON has it: variances as squared fractions."""
    results, nested = decomposition.results, decomposition.difference
    low, high = nested.of_mean()
    names = (*results.methods, "difference")
    return {
        "name": results.name,
        "methods": list(results.methods),
        "draws": list(results.draws),
        "judged_by": results.column,
        "rounds": list(results.rounds),
        "seeds": results.seeds,
        "mean_difference": {"mean": nested.mean, "low": low, "high": high, "freedom": int(nested.freedom[0])},
        "components": _parts(decomposition.parts, names),
        "one_seed": dict(zip(names, map(asdict, decomposition.total.of), strict=True)),
        "included": _parts(decomposition.included, names),
        "ways": [
            {
                "name": way.name,
                "one_seed": asdict(way.one_seed),
                "fixed": way.fixed,
                "another_question": way.pinned,
                "sd_of_mean": {str(n): math.sqrt(way.variance(n)) for n in (results.seeds, 2 * results.seeds)},
            }
            for way in decomposition.ways
        ],
        "sentences": sentences(decomposition),
    }


def _parts(parts: Sequence[Part], names: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {"name": part.name, "within": list(part.within), **dict(zip(names, map(asdict, part.of), strict=True))}
        for part in parts
    ]


@dataclass(frozen=True)
class VariancePaths:
    """The files of a decomposition."""

    tables: tuple[Path, ...]
    figures: tuple[Path, ...]
    decomposition: Decomposition


def write_variance(
    folder: Path, design: DesignRecord, *, formats: Sequence[str] | None = FORMATS, out: Path | None = None
) -> VariancePaths:
    """Write tables and the figure into ``report/``; the same runs give the same bytes.

    Args:
        folder: That the design's runs lie in.
        design: Its record.
        formats: Of the figure, any of ``"svg"``, ``"png"``, ``"pdf"``; None or empty draws none.
        out: Where ``report/`` is made; None: in `folder`.

    Raises:
        ConfigError: If a format is unknown.
        RunFolderError: If a run is missing, cannot be read, or is not the one that the design says.
    """
    check_formats(formats or ())
    decomposition = decompose(read_results(folder, design))
    report = (out or folder) / "report"
    with explain_write_errors(report):
        (report / "figures").mkdir(parents=True, exist_ok=True)
        texts = {
            "variance.md": to_markdown(decomposition),
            "variance.json": json.dumps(as_record(decomposition), indent=1, ensure_ascii=False) + "\n",
        }
        for name, text in texts.items():
            (report / name).write_text(text, encoding="utf-8", newline="\n")
        figures = save(components(decomposition), report / "figures" / "variance", formats) if formats else ()
    return VariancePaths(tuple(report / name for name in texts), figures, decomposition)
