"""What a reproduction found: a record, and that as files and for the terminal."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedreach.config.sections import Experiment
from fedreach.runs.describe import package_revision
from fedreach.tables import csv_text, markdown_lines
from papers.claims import UNITLESS, ClaimVerdict
from papers.measured import WORDS, Floats, Measured, difference, unit, written
from papers.recipe import Printed, Recipe

ALWAYS = ("accuracy", "served", "seconds", "joules", "cost", "seconds_total", "joules_total", "cost_total")
"""Quantities that are shown whoever asks; others are where a statement, or a number of the paper, is about them."""
OPEN = "What the paper leaves open or is at odds with itself about, and what is done here:"
CUT = "What is smaller here than in the paper:"
SHOWN = 7  # columns of numbers; of more values, so many are shown


def record(
    recipe: Recipe,
    experiment: Experiment,
    measured: Measured,
    verdicts: Sequence[ClaimVerdict],
    failed: Mapping[str, str],
    hours: float | None,
) -> dict[str, Any]:
    """Return all that was found, as JSON has it: numbers by quantity and method, (seeds, values), nan as None.

    Args:
        hours: Of training and evaluation, of all runs one after the other; None where nothing was trained.
    """
    from fedreach import __version__

    return {
        "recipe": recipe.name,
        "title": recipe.about.title,
        "reference": recipe.about.reference,
        "kind": recipe.about.kind,
        "scale": recipe.scale,
        "data": experiment.data.name,
        "stand_in": recipe.stands_in,
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
        "paper": [said.model_dump() for said in recipe.about.paper],
        "claims": [
            {
                "says": v.claim.says,
                "control": v.claim.control,
                "instead": v.instead,
                "quantity": v.claim.quantity,
                "test": v.claim.test,
                "outcome": v.outcome,
                "what": v.what,
                "mean": v.mean,
                "low": v.low,
                "high": v.high,
                "detectable": v.detectable,
                "reason": v.reason,
                "see": v.claim.see,
            }
            for v in verdicts
        ],
        "failed": dict(failed),
    }


def told(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the quantities that tables and figures show, with their titles."""
    asked = {each["quantity"] for each in (*record["claims"], *record["paper"])}
    return {key: words for key, words in WORDS.items() if key in asked or key in ALWAYS}


def write(record: Mapping[str, Any], out: Path) -> None:
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
    lines = [f"## {record['recipe']}: {record['title']}", "", f"{record['reference']}. {setting(record)}", ""]
    return "\n".join([*lines, *body(record)])


def body(record: Mapping[str, Any], link: Callable[[str], str] = str) -> list[str]:
    """Return the lines of claims, numbers and choices.

    Args:
        link: What the name of another recipe is written as.
    """
    lines = []
    if record["claims"]:
        lines += _markdown(CLAIMS, [claim_cells(claim, link) for claim in record["claims"]])
    for title, header, rows in tables(record):
        lines += [f"**{title}**", "", *_markdown(header, rows)]
    for heading, said in ((OPEN, record["choices"]), (CUT, record["cut"])):
        if said:
            lines += [heading, "", *(f"- {each}" for each in said), ""]
    return lines


def setting(record: Mapping[str, Any]) -> str:
    """Return data, scale, rounds and seeds in a sentence, and what failed."""
    seeds = len(record["seeds"])
    said = f"{record['data']}, scale {record['scale']}: {record['rounds']} rounds, {seeds} seed{'s' * (seeds != 1)}."
    if record["stand_in"]:
        said += f" {record['stand_in']}"
    if record["scale"] == "smoke":
        said += " This shows that it runs; the numbers mean little."
    return said + "".join(f" FAILED: {label}: {cause}" for label, cause in record["failed"].items())


CLAIMS = ("the paper says", "here", "difference [95 %]", "least seen")
"""Columns of `claim_cells`; the last is the least difference that these seeds find in four of five studies."""


def claim_cells(claim: Mapping[str, Any], link: Callable[[str], str] = str) -> list[str]:
    """Return what the paper says, what can be said of it here, what decides it, and what could have been seen."""
    says = f"... with {claim['instead']}" if claim["instead"] else claim["says"]
    says = f"(control) {says}" if claim["control"] else says
    if claim["reason"]:
        return [says, f"not testable: {claim['reason']}", "", ""]
    plain = claim["test"] in UNITLESS

    def number(value: float) -> str:
        return f"{value:+.3g}" if plain else difference(claim["quantity"], value)

    units = "" if plain else f" {unit(claim['quantity'])}".rstrip()
    interval = "" if claim["low"] is None else f" [{number(claim['low'])}, {number(claim['high'])}]"
    seen = "" if claim["detectable"] is None else number(claim["detectable"]).removeprefix("+") + units
    here = "; see ".join([claim["outcome"], *([", ".join(map(link, see(claim)))] if see(claim) else [])])
    return [says, here, f"{claim['what']}: {number(claim['mean'])}{interval}{units}", seen]


def see(claim: Mapping[str, Any]) -> list[str]:
    """Return the recipes that ask where a statement holds which does not hold here."""
    return claim["see"] if claim["outcome"] in ("contradicted", "not reproduced") else []


def tables(record: Mapping[str, Any]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Yield (title, header, rows) of means over seeds: a table a quantity along the axis, else one for all.

    What the paper prints stands below, or beside, the numbers here.
    """
    x, methods = record["x"], record["methods"]
    values = {
        quantity: {m: np.array(rows, dtype=np.float64) for m, rows in by_method.items()}
        for quantity, by_method in record["numbers"].items()
        if quantity in told(record)
    }
    values = {q: found for q, found in values.items() if any(np.isfinite(rows).any() for rows in found.values())}
    if not record["axis"]:
        columns: list[tuple[str, list[str]]] = []
        for quantity, found in values.items():
            columns.append((WORDS[quantity], [_number(quantity, found[m][:, 0]) for m in methods]))
            for said in _printed(record, quantity):
                if said["over"]:
                    more = [_over(said, quantity, found, m, 0) for m in methods]
                    columns.append((f"{WORDS[quantity].partition(',')[0]} over {said['over']}", more))
                columns.append((said["where"], [_of_paper(said["numbers"].get(m), 0) for m in methods]))
        header = ["method", *(title for title, _ in columns)]
        yield "Means over seeds, ± sd", header, [[m, *(c[i] for _, c in columns)] for i, m in enumerate(methods)]
        return
    shown = sorted({round(i) for i in np.linspace(0, len(x) - 1, min(SHOWN, len(x)))})
    header = [record["axis"], *(f"{x[i]:g}" for i in shown)]
    for quantity, found in values.items():
        rows = [[m, *(_number(quantity, found[m][:, i]) for i in shown)] for m in methods]
        for said in _printed(record, quantity):
            axis = said.get("at") or x
            places = [axis.index(x[i]) if x[i] in axis else None for i in shown]
            for m, numbers in ((m, said["numbers"][m]) for m in methods if m in said["numbers"]):
                if said["over"]:
                    rows.append([f"{m} over {said['over']}", *(_over(said, quantity, found, m, i) for i in shown)])
                rows.append([f"{m}, {said['where']}", *(_of_paper(numbers, i) for i in places)])
        yield WORDS[quantity], header, rows


def _printed(record: Mapping[str, Any], quantity: str) -> list[Mapping[str, Any]]:
    return [said for said in record["paper"] if said["quantity"] == quantity]


def _over(said: Mapping[str, Any], quantity: str, found: Mapping[str, Floats], line: str, place: int) -> str:
    """Return what a line has more than the one that the paper subtracts."""
    if line not in said["numbers"]:
        return "-"
    return _number(quantity, (found[line] - found[Printed.model_validate(said).below(line)])[:, place], sign=True)


def _number(quantity: str, over_seeds: Floats, *, sign: bool = False) -> str:
    if not np.isfinite(over_seeds).all():
        return "-"
    mean = float(over_seeds.mean())
    shown = difference(quantity, mean) if sign else written(quantity, mean).partition(" ")[0]
    if len(over_seeds) < 2:
        return shown
    return f"{shown} ± {difference(quantity, float(over_seeds.std(ddof=1))).removeprefix('+')}"


def _of_paper(numbers: float | Sequence[float | None] | None, place: int | None) -> str:
    number = (None if place is None else numbers[place]) if isinstance(numbers, Sequence) else numbers
    return "-" if number is None else f"{number:g}"


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    header, *rows = ([cell.replace("|", "\\|") for cell in cells] for cells in (header, *rows))
    return [*markdown_lines(header, rows), ""]


def _plain(rows: Floats) -> list[list[float | None]]:
    return [[float(f"{v:.12g}") if np.isfinite(v) else None for v in row] for row in rows]
