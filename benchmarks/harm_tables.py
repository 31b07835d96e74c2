"""The tables of harm, from the rows of `harm.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import t

from fedreach._util.arrays import Floats
from tables import table

RULES = ("guarded", "unguarded")
KINDS = ("label-shifted", "alike")
OF_LABELS = ("none", "permuted_labels 0.5", "one_class")
"""Under which inputs look as they do at the participants."""
LOST = 1.0  # points that a cell may lose


def cells(rows: Sequence[Mapping[str, Any]], rule: str) -> dict[tuple[str, str, str, int], Floats]:
    """Return what the rule gains in each cell, (data, kind, shift, inputs) -> (seeds,)."""
    found: dict[tuple[str, str, str, int], list[float]] = {}
    for row in rows:
        found.setdefault((row["data"], row["kind"], row["shift"], row["inputs"]), []).append(row[rule])
    return {cell: np.array(values) for cell, values in found.items()}


def numbers(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the numbers of inputs."""
    return sorted({row["inputs"] for row in rows})


def detectable(values: Floats) -> float:
    """Return the minimum detectable effect (80% power) of a paired t test over these seeds."""
    n = len(values)
    if n < 2:
        return float("nan")
    return float((t.ppf(0.975, n - 1) + t.ppf(0.8, n - 1)) * values.std(ddof=1) / np.sqrt(n))


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the goals: worst cell, cells that lose more than a point, and the share of the gain that is kept."""
    lines = []
    both = {rule: cells(rows, rule) for rule in RULES}
    for n in numbers(rows):
        for rule, found in both.items():
            here = {cell: values for cell, values in found.items() if cell[3] == n}
            worst = min(here, key=lambda cell: here[cell].mean())
            below = [cell for cell, values in here.items() if values.mean() < -LOST]
            single = np.concatenate(list(here.values()))
            gains = [
                (values.mean(), both["unguarded"][cell].mean())
                for cell, values in here.items()
                if cell[1:3] == ("label-shifted", "none")
            ]
            kept = " / ".join(f"{100 * own / without:.0f}" for own, without in gains)
            # Where inputs look different and classes differ, too.
            mixed = [v.mean() for c, v in here.items() if c[1] == "label-shifted" and c[2] not in OF_LABELS]
            lines.append(
                [
                    str(n),
                    rule,
                    f"{signed(here[worst].mean())} ({worst[0]}, {worst[1]}, {worst[2]})",
                    f"{len(below)} of {len(here)}",
                    f"{int((single < -LOST).sum())} of {len(single)}",
                    f"{signed(single.min())}",
                    kept,
                    signed(float(np.mean(mixed))),
                ]
            )
    head = [
        "inputs",
        "rule",
        "worst cell, points",
        "cells below −1",
        "single seeds below −1",
        "worst single seed",
        f"kept of the gain, % ({' / '.join(dict.fromkeys(row['data'] for row in rows))})",
        "mean gain, both shifts",
    ]
    return table(head, lines, left=3)


def missed(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the guarded cells that lose more than a point, with intervals over seeds."""
    lines = []
    for (name, kind, shift, n), values in cells(rows, "guarded").items():
        if values.mean() < -LOST:
            half = t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
            bounds = f"[{signed(values.mean() - half)}, {signed(values.mean() + half)}]"
            lines.append(f"{name}, {kind}, {shift}, {n} inputs: {signed(values.mean())} {bounds}")
    return "Guarded cells below −1, with 95% CI: " + ("; ".join(lines) or "none") + "."


def signed(value: float) -> str:
    """Return a number of points with its sign.

    Example:
        >>> signed(1.25), signed(-0.04), signed(-2.5)
        ('+1.2', '0.0', '−2.5')
    """
    text = f"{value:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")


def of_data(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    """Return one data set's cells, a line a shift."""
    both = {rule: cells(rows, rule) for rule in RULES}
    plain = cells(rows, "unadapted")
    lines = []
    for shift in dict.fromkeys(row["shift"] for row in rows):
        line = [shift]
        for kind in KINDS:
            there = [(name, kind, shift, n) for n in numbers(rows) if (name, kind, shift, n) in plain]
            line.append(f"{plain[there[-1]].mean():.1f}" if there else "-")
            line += [" / ".join(signed(both[rule][cell].mean()) for cell in there) or "-" for rule in RULES]
        lines.append(line)
    head = ["shift"]
    for kind in KINDS:
        head += [f"{kind}: unadapted %", "with safeguard, 5 / 20 / 200 inputs", "without"]
    return table(head, lines, left=1)


def text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the section of the page."""
    seeds = sorted({row["seed"] for row in rows})
    names = list(dict.fromkeys(row["data"] for row in rows))
    found = cells(rows, "guarded")
    spread = [values.std(ddof=1) for values in found.values() if len(values) > 1] or [float("nan")]
    least = [detectable(values) for values in found.values()]
    parts = [
        "```text",
        f"python benchmarks/harm.py --seeds {len(seeds)} --write        # one core",
        "```",
        "",
        summary(rows),
        "",
        f"Seeds {seeds[0]} to {seeds[-1]} ({len(seeds)}). A guarded cell's standard deviation over seeds is "
        f"{np.median(spread):.1f} points in the median and {np.max(spread):.1f} at most. MDE (80% power): "
        f"{np.median(least):.1f} points in the median cell and {np.max(least):.1f} in the noisiest.",
        "",
        missed(rows),
    ]
    for name in names:
        parts += ["", f"{name}, gain over the unadapted model in points:", "", of_data(rows, name)]
    return "\n".join(parts)
