"""What a reproduction found: a record, and that as files and for the terminal."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedreach.arrays import Floats
from fedreach.config.sections import Experiment
from fedreach.reproduce.claims import ClaimVerdict
from fedreach.reproduce.measured import WORDS, Measured, written
from fedreach.reproduce.recipe import Recipe
from fedreach.tables import csv_text, markdown_lines

DRAWN = {key: words for key, words in WORDS.items() if key != "swing"}
"""Quantities that a figure has panels of, with their titles."""
OPEN = "What the paper leaves open or is at odds with itself about, and what is done here:"
SHOWN = 7  # columns of numbers; of more values, so many are shown


def record(
    recipe: Recipe,
    experiment: Experiment,
    measured: Measured,
    verdicts: Sequence[ClaimVerdict],
    failed: Mapping[str, str],
) -> dict[str, Any]:
    """Return all that was found, as JSON has it: numbers by quantity and method, (seeds, values), nan as None."""
    return {
        "recipe": recipe.name,
        "title": recipe.about.title,
        "reference": recipe.about.reference,
        "kind": recipe.about.kind,
        "scale": recipe.scale,
        "rounds": experiment.rounds,
        "seeds": list(measured.seeds),
        "choices": recipe.about.choices,
        "axis": measured.label,
        "x": list(measured.x),
        "methods": list(measured.methods),
        "numbers": {
            quantity: {m: _plain(row) for m, row in zip(measured.methods, rows, strict=True)}
            for quantity, rows in measured.numbers.items()
        },
        "claims": [
            {
                "says": v.claim.says,
                "instead": v.instead,
                "quantity": v.claim.quantity,
                "test": v.claim.test,
                "holds": v.holds,
                "here": v.here,
                "seeds_holding": v.seeds_holding,
                "seeds": v.seeds,
            }
            for v in verdicts
        ],
        "failed": dict(failed),
    }


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
    if record["claims"]:
        lines += _markdown(["the paper says", "here", "numbers"], [claim_cells(claim) for claim in record["claims"]])
    for title, header, rows in tables(record):
        lines += [f"**{title}**", "", *_markdown(header, rows)]
    if record["choices"]:
        lines += [OPEN, "", *(f"- {choice}" for choice in record["choices"]), ""]
    return "\n".join(lines)


def setting(record: Mapping[str, Any]) -> str:
    """Return scale, rounds and seeds in a sentence, and what failed."""
    seeds = len(record["seeds"])
    said = f"Scale {record['scale']}: {record['rounds']} rounds, {seeds} seed{'s' * (seeds != 1)}."
    if record["scale"] == "smoke":
        said += " This shows that it runs; the numbers mean little."
    return said + "".join(f" FAILED: {label}: {cause}" for label, cause in record["failed"].items())


def claim_cells(claim: Mapping[str, Any]) -> list[str]:
    """Return what the paper says, whether it holds here, and the numbers."""
    holds = {True: "holds", False: "does not hold", None: "cannot be said"}[claim["holds"]]
    if claim["holds"] is not None and claim["seeds"] > 1:
        holds += f" ({claim['seeds_holding']} of {claim['seeds']} seeds)"
    return [f"... with {claim['instead']}" if claim["instead"] else claim["says"], holds, claim["here"]]


def tables(record: Mapping[str, Any]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Yield (title, header, rows) of means over seeds: a table a quantity along the axis, else one for all."""
    x, methods = record["x"], record["methods"]
    values = {
        quantity: {m: np.array(rows, dtype=np.float64) for m, rows in by_method.items()}
        for quantity, by_method in record["numbers"].items()
    }
    values = {q: found for q, found in values.items() if any(np.isfinite(rows).any() for rows in found.values())}
    if not record["axis"]:
        header = ["method", *(WORDS[quantity] for quantity in values)]
        yield "Means over seeds", header, [[m, *(_number(q, values[q][m][:, 0]) for q in values)] for m in methods]
        return
    shown = sorted({round(i) for i in np.linspace(0, len(x) - 1, min(SHOWN, len(x)))})
    header = [record["axis"], *(f"{x[i]:g}" for i in shown)]
    for quantity, found in values.items():
        yield WORDS[quantity], header, [[m, *(_number(quantity, found[m][:, i]) for i in shown)] for m in methods]


def _number(quantity: str, over_seeds: Floats) -> str:
    if not np.isfinite(over_seeds).all():
        return "-"
    return written(quantity, float(over_seeds.mean())).partition(" ")[0]


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    header, *rows = ([cell.replace("|", "\\|") for cell in cells] for cells in (header, *rows))
    return [*markdown_lines(header, rows), ""]


def _plain(rows: Floats) -> list[list[float | None]]:
    return [[float(f"{v:.12g}") if np.isfinite(v) else None for v in row] for row in rows]
