"""The tables of `natural.py`, from its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import t

from fedreach._util.arrays import Floats
from harm_tables import detectable, signed
from tables import table

INPUTS = ("5", "20", "all")
LABELS = (1, 5, 10, 20, 50)
Rows = Sequence[Mapping[str, Any]]
Cells = dict[tuple[str, str, int], Floats]


def cells(rows: Rows, kind: str, rule: str, number: str = "accuracy") -> Cells:
    """Return what a rule changes in each cell, (table, model, place of the number of inputs or labels) -> (seeds,)."""
    found: dict[tuple[str, str, int], list[float]] = {}
    for row in rows:
        for place, changes in enumerate(row[kind][rule]):
            if changes is not None:
                found.setdefault((row["table"], row["model"], place), []).append(changes[number])
    return {cell: np.array(values) for cell, values in found.items()}


def p_value(values: Floats) -> float:
    """Return the two-sided p of a t test of a mean against 0; 1 where all values are 0."""
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.inf
    if error <= 1e-12:
        return 1.0 if abs(values.mean()) <= 1e-9 else 0.0
    return float(2 * t.sf(abs(values.mean()) / error, len(values) - 1))


def holm(p_values: Sequence[float]) -> Floats:
    """Return p values with Holm's correction.

    Example:
        >>> holm([0.01, 0.04, 0.03]).round(2).tolist()
        [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    steps = np.asarray(p_values)[order] * np.arange(len(p_values), 0, -1)
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return corrected


def of_rules(rows: Rows) -> str:
    """Return a line a rule: what it does to all cells."""
    lines = []
    ours = cells(rows, "inputs", "label_shift")
    for rule in rows[0]["inputs"]:
        found, loss = cells(rows, "inputs", rule), cells(rows, "inputs", rule, "loss")
        means = {cell: values.mean() for cell, values in found.items()}
        worst = min(means, key=lambda cell: means[cell])
        against = holm([p_value(values) for values in found.values()])
        beside = holm([p_value(ours[cell] - values) for cell, values in found.items()])
        better = [ours[cell].mean() - mean for cell, mean in means.items()]
        lines.append(
            [
                rule,
                signed(float(np.mean(list(means.values())))),
                f"{sum(mean < -0.5 for mean in means.values())} of {len(means)}",
                f"{sum(p < 0.05 and mean < 0 for p, mean in zip(against, means.values(), strict=True))} / "
                f"{sum(p < 0.05 and mean > 0 for p, mean in zip(against, means.values(), strict=True))}",
                f"{signed(means[worst])} ({worst[0]}, {worst[1]}, {INPUTS[worst[2]]})",
                signed(min(values.min() for values in cells(rows, "inputs", rule, "worst").values())),
                f"{np.mean([v.mean() for v in cells(rows, 'inputs', rule, 'harmed').values()]):.1f}",
                f"{np.mean([values.mean() for values in loss.values()]):+.3f}".replace("-", "−"),
                "-"
                if rule == "label_shift"
                else f"{sum(p < 0.05 and d > 0 for p, d in zip(beside, better, strict=True))} / "
                f"{sum(p < 0.05 and d < 0 for p, d in zip(beside, better, strict=True))}",
            ]
        )
    head = [
        "rule", "mean change, points", "cells below −0.5", "decided worse / better than unadapted", "worst cell",
        "worst client of 100 inputs", "clients that lose > 5 points, %", "log loss", "label_shift better / worse",
    ]  # fmt: skip
    return table(head, lines, left=1)


def of_labels(rows: Rows) -> str:
    """Return a line for each way to use labels: means over cells, and the share of what the oracle prior adds."""
    lines = []
    oracle = cells(rows, "labels", "oracle prior")
    for way in rows[0]["labels"]:
        found, harmed = cells(rows, "labels", way), cells(rows, "labels", way, "harmed")
        line = [way]
        for place in range(len(LABELS)):
            here = [cell for cell in found if cell[2] == place]
            gain, bound = (float(np.mean([each[c].mean() for c in here])) for each in (found, oracle))
            line.append(
                f"{signed(gain)} ({100 * gain / bound:.0f}%)".replace("-", "−")
                if way != "oracle prior"
                else signed(gain)
            )
        below = sum(found[cell].mean() < -0.5 for cell in found if cell[2] == 0)
        lines.append([*line, str(below), f"{np.mean([values.mean() for values in harmed.values()]):.1f}"])
    head = ["learns from labels by", *(f"{m} label{'s' * (m > 1)}" for m in LABELS)]
    return table([*head, "cells below −0.5 with 1 label", "clients that lose > 5 points, %"], lines, left=1)


def of_tables(rows: Rows) -> str:
    """Return a line a table and model."""
    lines = []
    for name, model in dict.fromkeys((row["table"], row["model"]) for row in rows):
        own = [row for row in rows if (row["table"], row["model"]) == (name, model)]
        ours, before = (cells(own, "inputs", rule) for rule in ("label_shift", "before"))
        few, oracle = (cells(own, "labels", way) for way in ("few_shot", "oracle prior"))
        on = [row for row in own if row["strength"] > 0]

        def shown(found: Cells, places: Sequence[int], name: str = name, model: str = model) -> str:
            some = [found.get((name, model, place)) for place in places]
            return " / ".join("-" if values is None else signed(values.mean()) for values in some)

        lines.append(
            [
                f"{name}, {model}",
                f"{np.mean([row['unadapted'] for row in own]):.1f}",
                f"{len(on)} of {len(own)}",
                shown(ours, (0, 1, 2)),
                shown(before, (0, 1, 2)),
                shown(few, (0, 1, 3)),
                shown(oracle, (0, 1, 3)),
            ]
        )
    head = [
        "table, model", "unadapted %", "runs in which participants support inputs", "label_shift, 5 / 20 / all inputs",
        "before, 5 / 20 / all", "few_shot, 1 / 5 / 20 labels", "oracle prior, the same examples",
    ]  # fmt: skip
    return table(head, lines, left=1)


def text(rows: Rows) -> str:
    """Return the section of the page."""
    seeds = sorted({row["seed"] for row in rows})
    least = [detectable(values) for values in cells(rows, "inputs", "before").values()]
    return "\n".join(
        [
            "```text",
            f"python benchmarks/natural.py --seeds {len(seeds)} --write        # one core",
            "```",
            "",
            "Rules that learn from inputs, over all cells (a table, a model, 5, 20 or all inputs). Seeds "
            f"{seeds[0]} to {seeds[-1]}; p values are Holm-adjusted over the cells. MDE (80% power) in the median "
            f"cell, with the spread of *before*: {np.median(least):.1f} points.",
            "",
            of_rules(rows),
            "",
            "Rules that learn from labels, means over tables and models; in parentheses the share of the gain of the "
            "oracle prior on the same examples:",
            "",
            of_labels(rows),
            "",
            "Changes of accuracy in points, means over clients and seeds:",
            "",
            of_tables(rows),
        ]
    )
