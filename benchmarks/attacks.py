"""Robust aggregators against malicious clients: accuracy on unseen clients, adapted and not, minus that of honest runs.

    python benchmarks/attacks.py --seeds 3                         # printed only
    python benchmarks/attacks.py --seeds 20 --write                # docs/records/attacks.md
    python benchmarks/attacks.py --seeds 20 --write --data cifar10 # reads FEDREACH_DATA

Ten participants train in each round; one or three of them are malicious. Each cell is a run of ``fedreach compare``
with `attacks.toml`, kept in --out; an interrupted benchmark resumes. Intervals are 95% t intervals of paired
differences over seeds, to the mean of honest clients with the same seed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import t

from page import RECORDS, put
from tables import table

ATTACKS: Mapping[str, str] = {
    "none": "",
    "sign flip": '{name = "sign_flip"}',
    "sign flip x 10": '{name = "sign_flip", strength = 10}',
    "ALIE": '{name = "alie"}',
    "inner product": '{name = "inner_product"}',
    "Gaussian noise": '{name = "gaussian_noise"}',
    "label flip": '{name = "label_flip"}',
    "model replacement": '{name = "model_replacement"}',
    "replay": '{name = "replay"}',
}
MIXED = 'mixing = "nearest_neighbors"'
RULES: Mapping[str, str] = {
    "mean": '{name = "mean"}',
    "median": '{name = "median", share = SHARE}',
    "multi_krum": '{name = "multi_krum", share = SHARE}',
    "multi_krum, mixed": f'{{name = "multi_krum", share = SHARE, {MIXED}}}',
    "trimmed_mean, mixed": f'{{name = "trimmed_mean", share = SHARE, {MIXED}}}',
    "geometric_median, mixed": f'{{name = "geometric_median", share = SHARE, {MIXED}}}',
    "centered_clipping, mixed": f'{{name = "centered_clipping", share = SHARE, {MIXED}}}',
}
RECOMMENDED = "geometric_median, mixed"


class Case(NamedTuple):
    """A data set with the cells of its tables."""

    options: tuple[str, ...] = ()
    rules: tuple[str, ...] = tuple(rule for rule in RULES if rule != "multi_krum, mixed")
    attacks: tuple[str, ...] = (*ATTACKS,)
    shares: tuple[float, ...] = (0.1, 0.3)
    honest_only: tuple[str, ...] = ()  # rules that are not attacked


CIFAR = (
    'data = {name = "cifar10"}',
    'partition = {name = "dirichlet_by_class", clients = 400, alpha = 1.0}',
    'model = {name = "lenet"}',
    "local.lr = 0.05",
    "rounds = 60",
    "evaluation.every = 60",
    "evaluation.examples_per_client = 40",
)
CASES: Mapping[str, Case] = {
    "digits": Case(),
    "digits, 150 rounds": Case(
        ("rounds = 150", "evaluation.every = 150"),
        ("mean", "multi_krum, mixed", "trimmed_mean, mixed", RECOMMENDED),
        ("none", "sign flip", "ALIE", "inner product"),
        (0.3,),
    ),
    "cifar10": Case(CIFAR, ("mean", RECOMMENDED), honest_only=("mean",)),
}


class Scores(NamedTuple):
    """Accuracies on unseen clients, by method and then by seed."""

    unadapted: dict[str, dict[int, float]]
    adapted: dict[str, dict[int, float]]


def measured(data: str, attack: str, share: float, seeds: range, out: Path) -> Scores:
    """Run one cell, or resume it, and return its scores."""
    case, folder = CASES[data], out / data / f"{attack}, {share:g}".replace(" ", "_")
    rules = [rule for rule in case.rules if attack == "none" or rule not in case.honest_only]
    names = {rule: rule.replace(", ", "_") for rule in rules}
    methods = ", ".join(f"{name} = {{aggregation = {RULES[rule]}}}" for rule, name in names.items())
    options = [*case.options, f"methods = {{{methods.replace('SHARE', f'{share:g}')}}}", f"seeds = {[*seeds]}"]
    options.append(f'baseline = "{names[rules[0]]}"')
    if ATTACKS[attack]:
        options.append(f"attack = {ATTACKS[attack][:-1]}, share = {share:g}}}")
    sets = [argument for option in options for argument in ("--set", option.replace(" = ", "=", 1))]
    source = Path(__file__).with_name("attacks.toml")
    command = [sys.executable, "-m", "fedreach", "compare", str(source), *sets, "--out", str(folder), "--quiet"]
    subprocess.run([*command, "--workers", "1"], check=True, stdout=subprocess.DEVNULL)
    scores = Scores({}, {})
    for rule, name in names.items():
        for seed in seeds:
            file = folder / "runs" / name / f"seed-{seed}" / "adaptation.json"
            columns = json.loads(file.read_text(encoding="utf-8"))["columns"]["last"]
            scores.unadapted.setdefault(rule, {})[seed] = columns["unseen_unadapted_accuracy"]
            scores.adapted.setdefault(rule, {})[seed] = columns["unseen_adapted_accuracy"]
    return scores


def difference(scores: Mapping[int, float], honest: Mapping[int, float]) -> tuple[float, float]:
    """Return the mean difference in points, and half the width of its 95% interval.

    Example:
        >>> [round(value, 2) for value in difference({0: 0.5, 1: 0.6}, {0: 0.5, 1: 0.5})]
        [5.0, 63.53]
    """
    points = 100 * np.array([scores[seed] - honest[seed] for seed in honest])
    if len(points) < 2:
        return float(points.mean()), math.nan
    return float(points.mean()), float(t.ppf(0.975, len(points) - 1) * points.std(ddof=1) / math.sqrt(len(points)))


def cell(scores: Mapping[int, float] | None, honest: Mapping[int, float]) -> str:
    """Return a difference with its interval; a dash if the cell was not run."""
    if scores is None:
        return "–"
    mean, half = difference(scores, honest)
    return f"{mean:+.1f} ± {half:.1f}".replace("-", "−")


def text(data: str, cells: Mapping[tuple[str, float], Scores], seeds: range) -> str:
    """Return the section of the record about one data set."""
    case, parts = CASES[data], []
    for share in case.shares:
        honest = cells["none", share]
        reference = {"unadapted": honest.unadapted["mean"], "adapted": honest.adapted["mean"]}
        values = [float(np.mean([*scores.values()])) for scores in reference.values()]
        intro = (
            f"{data}, {round(10 * share)} of 10 participants malicious. Honest mean: {100 * values[0]:.1f}% unadapted, "
            f"{100 * values[1]:.1f}% adapted. Cells: points above it, unadapted / adapted, ± half of the 95% interval."
        )
        lines = [
            [
                attack,
                *(
                    f"{cell(scores.unadapted.get(rule), reference['unadapted'])} / "
                    f"{cell(scores.adapted.get(rule), reference['adapted'])}"
                    for rule in case.rules
                ),
            ]
            for attack in case.attacks
            for scores in [cells[attack, share]]
        ]
        parts.append(f"{intro}\n\n{table(['attack', *case.rules], lines, left=1)}")
    program = f'python benchmarks/attacks.py --seeds {len(seeds)} --write --data "{data}"'
    return f"```text\n{program}\n```\n\n" + "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="how many; default: %(default)s")
    parser.add_argument("--first", type=int, default=0, help="first seed; default: %(default)s")
    parser.add_argument("--data", choices=[*CASES], default="digits", help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("runs/attacks"), help="default: %(default)s")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/records/attacks.md")
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    cells = {
        (attack, share): measured(arguments.data, attack, share, seeds, arguments.out)
        for attack in CASES[arguments.data].attacks
        for share in CASES[arguments.data].shares
    }
    section = text(arguments.data, cells, seeds)
    print(section)
    if arguments.write:
        put(arguments.data, section, RECORDS / "attacks.md")


if __name__ == "__main__":
    main()
