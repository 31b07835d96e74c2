"""Results of FedReach against published ones: one experiment file per table.

fedreach compare benchmarks/niid_bench.toml --formats none       # the file states its duration
python benchmarks/outside.py niid_bench runs/niid_bench --write  # its table; several folders are read as one
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

import page
from adapted import signed
from fedreach.evaluation.statistics import PairedTest, spread
from fedreach.report.analysis import mean_of, planned_differences, rows_of, target_row
from fedreach.report.numbers import RunData, RunSet
from fedreach.report.read import read
from tables import table

RECORDS = {"niid_bench": "niid_bench.md", "niid_scaffold": "niid_bench.md", "hics_cell": "hics.md"}
"""Experiment -> file in `docs/records` that has its table."""
PUBLISHED: Mapping[str, Mapping[str, float]] = {  # experiment -> method -> % of the test set
    "niid_bench": {"fedavg": 81.0, "scaffold": 10.0, "fedprox": 78.8, "fednova": 70.5},  # its README, Fashion-MNIST, 2
    "niid_scaffold": {},
    "hics_cell": {},
}
SHOWN = 5  # evaluations, of which the lowest and the highest are told: how much a single round says


def lines(comparison: RunSet, published: Mapping[str, float]) -> list[list[str]]:
    """Return the head of the table, and a line for each method that has a run which finished or failed."""
    base, last = comparison.baseline, comparison.plan.last_rounds
    judged = {difference.first: difference.judged for difference in planned_differences(comparison, "last")}
    head = ["method", "FedReach, test set, % ± sd", f"lowest to highest of the last {SHOWN} evaluations, %"]
    head += [f"to `{base}`, points [95% CI]", "MDE, points", "conclusion (~ seeds)"]
    if published:
        head[1:1] = ["published %", f"published to `{base}`"]
    if comparison.target_accuracy is not None:
        head.append(f"rounds to {100 * comparison.target_accuracy:g}%")
    told = [head]
    for method in comparison.methods:
        runs = comparison.counted(method)
        broken = [run for run in comparison.runs if run.method == method and run.status == "failed"]
        if not runs and not broken:
            continue
        row = [f"`{method}`"]
        if published:
            row.append(f"{published[method]:.1f}" if method in published else "-")
            known = method in published and method != base
            row.append(signed(published[method] - published[base]) if known else "-")
        if not runs:
            row.append("; ".join(_ended(run, comparison.primary) for run in broken))
            told.append(row + ["-"] * (len(head) - len(row)))
            continue
        row.append(_mean(100 * np.array([mean_of(run, comparison.primary, "last", last) for run in runs])))
        seen = 100 * np.array([run.column(comparison.primary)[rows_of(run, "last", SHOWN)] for run in runs])
        row.append(f"{seen.min():.1f} to {seen.max():.1f}")
        row += ["baseline", "-", "-"] if method == base else _judged(judged[method])
        if comparison.target_accuracy is not None:
            found = [(run, target_row(run, comparison)) for run in runs]
            row.append(_rounds([None if at is None else int(run.rounds["round"][at]) for run, at in found]))
        told.append(row)
    return told


def _ended(run: RunData, column: str) -> str:
    """Return how a run that failed was scored last, and when it failed."""
    at = rows_of(run, "last")[-1]
    scored = f"{100 * run.column(column)[at]:.1f} in round {run.rounds['round'][at]:.0f}"
    return f"{scored}, failed in round {run.last_round + 1}"


def _mean(percent: Sequence[float] | np.ndarray) -> str:
    found = spread(percent)
    assert found.mean is not None
    return f"{found.mean:.1f}" if found.sd is None else f"{found.mean:.1f} ± {found.sd:.1f}"


def _judged(judged: PairedTest) -> list[str]:
    """Return the difference with its interval, what could have been seen, and the conclusion."""
    if judged.estimate is None:
        return [judged.note, "-", "-"]
    points = signed(100 * judged.estimate)
    if judged.low is None or judged.high is None:
        return [points, "-", "one seed"]
    more = "" if judged.seeds_needed is None else f" (~{judged.seeds_needed})"
    seen = "-" if judged.mde is None else f"{100 * judged.mde:.1f}"
    return [f"{points} [{signed(100 * judged.low)}, {signed(100 * judged.high)}]", seen, f"{judged.conclusion}{more}"]


def _rounds(rounds: Sequence[int | None]) -> str:
    """Return the median of those that came there, and how many did."""
    there = [each for each in rounds if each is not None]
    if not there:
        return f"none of {len(rounds)} seeds"
    few = "" if len(there) == len(rounds) else f" ({len(there)} of {len(rounds)} seeds)"
    return f"{np.median(there):.0f}{few}"


def section(comparison: RunSet, published: Mapping[str, float]) -> str:
    """Return the part of the page."""
    head, *rows = lines(comparison, published)
    counts = {len(comparison.counted(method)) for method in comparison.methods} - {0}
    seeds = f"{min(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    last = comparison.plan.last_rounds
    when = "the last round" if last == 1 else f"the last {last} evaluated rounds, in the mean"
    several = "s" if max(counts) > 1 else ""
    told = {row[0] for row in rows}
    missing = [f"`{method}`" for method in comparison.methods if f"`{method}`" not in told]
    left = f" Not run to the end: {', '.join(missing)}." if missing else ""
    failed = {str(run.error).partition(". ")[0] for run in comparison.runs if run.status == "failed"}
    why = "".join(f" What failed said: {error}." for error in sorted(failed))
    return f"{table(head, rows, 1)}\n\nOf {when}; {seeds} seed{several}.{left}{why}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=sorted(PUBLISHED))
    parser.add_argument("folders", nargs="+", type=Path, help="of the comparison")
    parser.add_argument("--write", action="store_true", help="put the table into its record in docs/records")
    arguments = parser.parse_args()
    found = section(read(arguments.folders), PUBLISHED[arguments.experiment])
    print(found)
    if arguments.write:
        page.put(arguments.experiment, found, page.RECORDS / RECORDS[arguments.experiment])


if __name__ == "__main__":
    main()
