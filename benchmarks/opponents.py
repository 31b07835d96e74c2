"""Every selection against uniform selection at equal communication, for unseen clients, unadapted and adapted.

    fedreach compare benchmarks/opponents.toml --formats none --out runs/opponents     # two hours on two cores
    python benchmarks/opponents.py runs/opponents --write                              # writes its record

A difference is between runs of one seed, with the same clients. All differences of the table are one family.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

import page
from adapted import signed
from fedreach.evaluation.statistics import PairedTest, run_paired_tests, spread
from fedreach.report.numbers import RunData, RunSet
from fedreach.report.read import read
from tables import table

WAYS = {"none": "unseen_unadapted_accuracy", "label_shift": "unseen_adapted_accuracy"}
EXAMPLES = 20 * 50  # of a client that trains, or answers a probe for updates, in a round
HEAD = [
    "selection",
    "rounds",
    "MB",
    "examples, 10⁶",
    *(f"{column}, {way}" for way in WAYS for column in ("unseen % ± sd", "to uniform, points", "conclusion (~ seeds)")),
    "gain by adaptation, points",
]


class Reached(NamedTuple):
    """What the runs of one method came to, seed by seed."""

    spent: Mapping[str, float]  # means over seeds
    accuracy: Mapping[str, Mapping[int, float]]  # way of adaptation -> seed -> mean over unseen clients


def reached(runs: Sequence[RunData], parameters: int) -> Reached:
    """Return what the finished runs of a method spent and reached.

    Who trains sends one update, in a round or in a probe; all else that is sent is small. So the bytes that went up say
    how many clients trained.
    """
    sent = [float(run.column("bytes_up").sum()) for run in runs]
    spent = {
        "rounds": np.mean([run.last_round for run in runs]),
        "megabytes": np.mean([run.column("bytes_total")[-1] for run in runs]) / 1e6,
        "examples": np.mean(sent) / (4 * parameters) * EXAMPLES / 1e6,
    }
    adapted = {run.seed: run.adaptation.columns["last"] for run in runs if run.adaptation is not None}
    accuracy = {way: {seed: columns[name] for seed, columns in adapted.items()} for way, name in WAYS.items()}
    return Reached({name: float(value) for name, value in spent.items()}, accuracy)


def parameters_of(run: RunData) -> int:
    """Return how many numbers a model has: in round 1 each of the cohort was sent one model and nothing else."""
    cohort = int((run.replies.chosen_round == 1).sum())
    return round(float(run.column("bytes_down")[1]) / cohort / 4)


def minus(first: Mapping[int, float], second: Mapping[int, float]) -> dict[int, float]:
    """Return the difference of each seed that both have."""
    return {seed: value - second[seed] for seed, value in first.items() if seed in second}


def lines(comparison: RunSet) -> tuple[list[list[str]], tuple[float, float], int]:
    """Return a line for each method, the range of what could have been seen, and the number of seeds."""
    parameters = parameters_of(comparison.counted(comparison.baseline)[0])
    found = {method: reached(comparison.counted(method), parameters) for method in comparison.methods}
    base, others = found[comparison.baseline], [m for m in comparison.methods if m != comparison.baseline]
    pairs = [(method, way) for method in others for way in WAYS]
    gains = [minus(each.accuracy["label_shift"], each.accuracy["none"]) for each in found.values()]
    differences = [minus(found[method].accuracy[way], base.accuracy[way]) for method, way in pairs]
    judged = run_paired_tests([*differences, *gains], margin=comparison.plan.margin)
    of = dict(zip(pairs, judged, strict=False))
    gain = dict(zip(found, judged[len(pairs) :], strict=True))
    seen = [each.mde for each in of.values() if each.mde is not None]
    told = []
    for method, each in sorted(found.items(), key=lambda item: -np.mean([*item[1].accuracy["label_shift"].values()])):
        cells = [f"`{method}`", f"{each.spent['rounds']:.0f}", f"{each.spent['megabytes']:.0f}"]
        cells.append(f"{each.spent['examples']:.2f}")
        for way, by_seed in each.accuracy.items():
            mean = spread(list(by_seed.values()))
            assert mean.mean is not None
            deviation = 0.0 if mean.sd is None else mean.sd
            cells.append(f"{100 * mean.mean:.1f} ± {100 * deviation:.1f}")
            cells += ["-", "-"] if method == comparison.baseline else told_of(of[method, way])
        told.append([*cells, told_of(gain[method])[0]])
    return told, (100 * min(seen), 100 * max(seen)), min(len(each) for each in differences)


def told_of(judged: PairedTest) -> list[str]:
    """Return a difference with its interval, and the conclusion."""
    if judged.estimate is None or judged.low is None or judged.high is None:
        return ["-", "-"]
    points, low, high = (signed(100 * value) for value in (judged.estimate, judged.low, judged.high))
    more = "" if judged.seeds_needed is None else f" (~{judged.seeds_needed})"
    return [f"{points} [{low}, {high}]", f"{judged.conclusion}{more}"]


def section(comparison: RunSet) -> str:
    """Return the part of the page."""
    told, (least, most), seeds = lines(comparison)
    limits = (
        f"{seeds} paired seeds. MDE (80% power) of a difference from uniform: {least:.1f} to {most:.1f} points, "
        "depending on the method. Equivalent: within 2 points."
    )
    return f"{table(HEAD, told, 1)}\n\n{limits}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the comparison")
    parser.add_argument("--write", action="store_true", help="put the table into docs/records/opponents.md")
    arguments = parser.parse_args()
    found = section(read([arguments.folder]))
    print(found)
    if arguments.write:
        page.put("opponents", found)


if __name__ == "__main__":
    main()
