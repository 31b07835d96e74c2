"""The record of a recipe, as JSON, CSV, Markdown and tables."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedreach._util.tables import csv_text, markdown_lines
from fedreach.experiment.schema import Experiment
from fedreach.runs.describe import package_revision
from papers.claims import UNITLESS, Conclusion, judge_claims
from papers.measured import TITLES, Floats, Measured, format_difference, format_value, unit_of
from papers.recipe import Printed, Recipe

ALWAYS = ("accuracy", "adapted", "seconds", "joules", "cost", "seconds_total", "joules_total", "cost_total")
"""Quantities that are always shown; others are if a claim or a printed number is about them."""
OPEN = "Choices where the paper is silent or contradicts itself:"
CUT = "Smaller than in the paper:"
SMOKE = "the scale smoke only shows that it runs"
SHOWN = 7  # values of the axis in a table, at most


def make_record(
    recipe: Recipe,
    experiment: Experiment,
    measured: Measured,
    conclusions: Sequence[Conclusion],
    failed: Mapping[str, str],
    hours: float | None,
) -> dict[str, Any]:
    """Return the record: numbers by quantity and method are (seeds, values), with nan as None.

    Args:
        hours: Training and evaluation of all runs one after the other; None if nothing was trained.
    """
    from fedreach import __version__

    return {
        "recipe": recipe.name,
        "title": recipe.about.title,
        "reference": recipe.about.reference,
        "kind": recipe.about.kind,
        "scale": recipe.scale,
        "data": experiment.data.name,
        "stand_in": recipe.stand_in_note,
        "rounds": experiment.rounds,
        "seeds": list(measured.seeds),
        "hours": None if hours is None else round(hours, 3),
        "version": __version__,
        "commit": package_revision(),
        "choices": recipe.about.choices,
        "cut": recipe.about.cut,
        "axis": measured.label,
        "x": list(measured.x),
        "methods": list(measured.methods),
        "numbers": {
            quantity: {m: _plain(row) for m, row in zip(measured.methods, rows, strict=True)}
            for quantity, rows in measured.numbers.items()
        },
        "curves": measured.curves,
        "paper": [printed.model_dump() for printed in recipe.about.paper],
        "claims": [claim_record(conclusion) for conclusion in conclusions],
        "failed": dict(failed),
    }


def claim_record(conclusion: Conclusion) -> dict[str, Any]:
    """Return a claim and its conclusion as JSON values."""
    claim = {key: getattr(conclusion.claim, key) for key in ("says", "control", "quantity", "test", "see")}
    names = ("instead", "outcome", "what", "mean", "low", "high", "mde", "reason", "p", "without", "again", "repeats")
    return claim | {name: getattr(conclusion, name) for name in names}


def judged_again(record: Mapping[str, Any], recipe: Recipe) -> dict[str, Any]:
    """Return a stored record with the sentences and claims of its recipe, judged by the stored numbers."""
    about, methods = recipe.about, record["methods"]
    numbers = {q: np.array([rows[m] for m in methods], np.float64) for q, rows in record["numbers"].items()}
    measured = Measured(tuple(methods), tuple(record["seeds"]), record["axis"], tuple(record["x"]), numbers)
    reason = SMOKE if recipe.scale == "smoke" else ""
    claims = [claim_record(c) for c in judge_claims(about.claims, measured, about.instead, reason=reason)]
    return {**record, "title": about.title, "choices": about.choices, "cut": about.cut, "claims": claims}


def shown_titles(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the quantities that tables and figures show, with their titles."""
    needed = {entry["quantity"] for entry in (*record["claims"], *record["paper"])}
    return {quantity: title for quantity, title in TITLES.items() if quantity in needed or quantity in ALWAYS}


def write_record(record: Mapping[str, Any], out: Path) -> None:
    """Write ``reproduced.json``, ``numbers.csv`` and ``claims.md``."""
    texts = {
        "reproduced.json": json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n",
        "numbers.csv": to_csv(record),
        "claims.md": to_markdown(record),
    }
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8", newline="\n")


def to_csv(record: Mapping[str, Any]) -> str:
    """Return the numbers, a line for each method, seed and value."""
    numbers = record["numbers"]
    return csv_text(
        [
            {"method": method, "seed": seed, record["axis"] or "value": f"{x:g}"}
            | {quantity: _cell(numbers[quantity][method][s][v]) for quantity in numbers}
            for method in record["methods"]
            for s, seed in enumerate(record["seeds"])
            for v, x in enumerate(record["x"])
        ]
    )


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.9g}"


def to_markdown(record: Mapping[str, Any]) -> str:
    """Return claims and numbers as GitHub-flavoured Markdown."""
    lines = [f"## {record['recipe']}: {record['title']}", "", f"{record['reference']}. {describe_setting(record)}", ""]
    return "\n".join([*lines, *body(record)])


def body(record: Mapping[str, Any], link: Callable[[str], str] = str) -> list[str]:
    """Return the lines of claims, numbers and choices.

    Args:
        link: Function that formats the name of another recipe.
    """
    lines = []
    if record["claims"]:
        lines += _markdown_table(CLAIM_COLUMNS, [claim_cells(claim, link) for claim in record["claims"]])
    for title, header, rows in tables(record):
        lines += [f"**{title}**", "", *_markdown_table(header, rows)]
    for heading, sentences in ((OPEN, record["choices"]), (CUT, record["cut"])):
        if sentences:
            lines += [heading, "", *(f"- {sentence}" for sentence in sentences), ""]
    return lines


def describe_setting(record: Mapping[str, Any]) -> str:
    """Return data, scale, rounds and seeds in a sentence, and which runs failed."""
    seeds = len(record["seeds"])
    text = f"{record['data']}, scale {record['scale']}: {record['rounds']} rounds, {seeds} seed{'s' * (seeds != 1)}."
    if record["stand_in"]:
        text += f" {record['stand_in']}"
    if record["scale"] == "smoke":
        text += " This shows that it runs; the numbers mean little."
    return text + "".join(f" FAILED: {label}: {cause}" for label, cause in record["failed"].items())


CLAIM_COLUMNS = ("claim", "conclusion", "difference [95% CI]", "MDE", "chance again")
"""Columns of `claim_cells`; MDE: smallest true difference detected with 80% power."""


def claim_cells(claim: Mapping[str, Any], link: Callable[[str], str] = str) -> list[str]:
    """Return the cells of a claim: the paper's words, conclusion, deciding difference, MDE, chance to be reproduced."""
    says = f"... with {claim['instead']}" if claim["instead"] else claim["says"]
    says = f"(control experiment) {says}" if claim["control"] else says
    if claim["reason"]:
        return [says, f"not testable: {claim['reason']}", "", "", ""]
    plain = claim["test"] in UNITLESS

    def number(value: float) -> str:
        return f"{value:+.3g}" if plain else format_difference(claim["quantity"], value)

    units = "" if plain else f" {unit_of(claim['quantity'])}".rstrip()
    interval = "" if claim["low"] is None else f" [{number(claim['low'])}, {number(claim['high'])}]"
    mde = "" if claim["mde"] is None else number(claim["mde"]).removeprefix("+") + units
    see = ", ".join(map(link, control_experiments(claim)))
    conclusion = claim["outcome"] + (
        "; counted with another claim" if claim["repeats"] and not claim["instead"] else ""
    )
    conclusion += f"; see {see}" if see else ""
    return [says, conclusion, f"{claim['what']}: {number(claim['mean'])}{interval}{units}", mde, chance(claim)]


def chance(claim: Mapping[str, Any]) -> str:
    """Return the chance that new seeds reproduce a reproduced claim again, in percent; empty for other claims."""
    if claim["outcome"] != "reproduced":
        return ""
    return "> 99%" if claim["again"] > 0.99 else f"{100 * claim['again']:.0f}%"


def control_experiments(claim: Mapping[str, Any]) -> list[str]:
    """Return the recipes that ask when a claim holds that does not hold here."""
    return [] if claim["outcome"] in ("reproduced", "not testable") else claim["see"]


def tables(record: Mapping[str, Any]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Yield (title, header, rows) of means over seeds: a table per quantity along the axis, else one for all.

    The numbers that the paper prints are in rows below, or columns next to, the numbers here.
    """
    x, methods = record["x"], record["methods"]
    values = {
        quantity: {m: np.array(rows, dtype=np.float64) for m, rows in by_method.items()}
        for quantity, by_method in record["numbers"].items()
        if quantity in shown_titles(record)
    }
    values = {q: by_method for q, by_method in values.items() if any(np.isfinite(r).any() for r in by_method.values())}
    if not record["axis"]:
        columns: list[tuple[str, list[str]]] = []
        for quantity, by_method in values.items():
            columns.append((TITLES[quantity], [_number(quantity, by_method[m][:, 0]) for m in methods]))
            for printed in _paper_numbers(record, quantity):
                if printed["over"]:
                    gains = [_over(printed, quantity, by_method, m, 0) for m in methods]
                    columns.append((f"{TITLES[quantity].partition(',')[0]} over {printed['over']}", gains))
                columns.append((printed["where"], [_of_paper(printed["numbers"].get(m), 0) for m in methods]))
        header = ["method", *(title for title, _ in columns)]
        yield "Means over seeds, ± sd", header, [[m, *(c[i] for _, c in columns)] for i, m in enumerate(methods)]
        return
    places_shown = sorted({round(i) for i in np.linspace(0, len(x) - 1, min(SHOWN, len(x)))})
    header = [record["axis"], *(f"{x[i]:g}" for i in places_shown)]
    for quantity, by_method in values.items():
        rows = [[m, *(_number(quantity, by_method[m][:, i]) for i in places_shown)] for m in methods]
        for printed in _paper_numbers(record, quantity):
            axis = printed.get("at") or x
            places = [axis.index(x[i]) if x[i] in axis else None for i in places_shown]
            for m, numbers in ((m, printed["numbers"][m]) for m in methods if m in printed["numbers"]):
                if printed["over"]:
                    rows.append(
                        [
                            f"{m} over {printed['over']}",
                            *(_over(printed, quantity, by_method, m, i) for i in places_shown),
                        ]
                    )
                rows.append([f"{m}, {printed['where']}", *(_of_paper(numbers, i) for i in places)])
        yield TITLES[quantity], header, rows


def _paper_numbers(record: Mapping[str, Any], quantity: str) -> list[Mapping[str, Any]]:
    return [printed for printed in record["paper"] if printed["quantity"] == quantity]


def _over(printed: Mapping[str, Any], quantity: str, by_method: Mapping[str, Floats], line: str, place: int) -> str:
    """Return the gain of a line over the one that the paper subtracts."""
    if line not in printed["numbers"]:
        return "-"
    return _number(
        quantity,
        (by_method[line] - by_method[Printed.model_validate(printed).baseline_line(line)])[:, place],
        sign=True,
    )


def _number(quantity: str, over_seeds: Floats, *, sign: bool = False) -> str:
    if not np.isfinite(over_seeds).all():
        return "-"
    mean = float(over_seeds.mean())
    shown = (
        format_difference(quantity, mean) if sign else format_value(quantity, mean).partition(" ")[0].removesuffix("%")
    )
    if len(over_seeds) < 2:
        return shown
    return f"{shown} ± {format_difference(quantity, float(over_seeds.std(ddof=1))).removeprefix('+')}"


def _of_paper(numbers: float | Sequence[float | None] | None, place: int | None) -> str:
    number = (None if place is None else numbers[place]) if isinstance(numbers, Sequence) else numbers
    return "-" if number is None else f"{number:g}"


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    header, *rows = ([cell.replace("|", "\\|") for cell in cells] for cells in (header, *rows))
    return [*markdown_lines(header, rows), ""]


def _plain(rows: Floats) -> list[list[float | None]]:
    return [[float(f"{v:.12g}") if np.isfinite(v) else None for v in row] for row in rows]
