"""A round of a tiny federation, as a user meets it: what rounds, evaluations and the start cost.

    python benchmarks/small_rounds.py            # prints a table
    python benchmarks/small_rounds.py --write    # also puts it into docs/benchmarks.md

The digits over 50 clients, 10 of them a round, MLP 64-32-10, one epoch, batch 16: rows and checkpoints are written as
in any run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
HEADING = "## A round of a tiny federation"
OPTIONS = {
    "rounds": 200,
    "method.cohort": 10,
    "population.participants": 50,
    "local.epochs": 1,
    "local.batch_size": 16,
    "evaluation.every": 10,
}


def seconds(command: list[str]) -> float:
    """Return how long a command takes."""
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


def measure(repeats: int) -> dict[str, list[float]]:
    """Return what -> seconds, one for each repeat."""
    found: dict[str, list[float]] = {}
    python = [sys.executable, "-c"]
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "fedreach.cli", "run", "--out", folder, "--quiet"]
            for key, value in OPTIONS.items():
                command += ["--set", f"{key}={value}"]
            whole = seconds(command)
            rows = [json.loads(line) for line in Path(folder, "timing.jsonl").read_text().splitlines()]
        for what, key in (("a round without evaluation", "train_seconds"), ("an evaluation", "evaluate_seconds")):
            found.setdefault(what, []).append(statistics.median(row[key] for row in rows if key in row))
        found.setdefault(f"the whole command, {OPTIONS['rounds']} rounds", []).append(whole)
        found.setdefault("`import fedreach`", []).append(seconds([*python, "import fedreach"]))
        found.setdefault("`import fedreach.engines` (loads torch)", []).append(
            seconds([*python, "import fedreach.engines"])
        )
        found.setdefault("`import torch` alone", []).append(seconds([*python, "import torch"]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    arguments = parser.parse_args()
    lines = ["| what | seconds, median (range) |", "| --- | ---: |"]
    for what, values in measure(arguments.repeats).items():
        lines.append(f"| {what} | {statistics.median(values):.4f} ({min(values):.4f} to {max(values):.4f}) |")
    table = "\n".join(lines)
    print(table)
    if arguments.write:
        before = PAGE.read_text(encoding="utf-8").split(HEADING)[0].rstrip()
        about = (
            "The digits over 50 clients, 10 a round, MLP 64-32-10, one epoch, batch 16, by `python\n"
            f"benchmarks/small_rounds.py --write`: medians of {arguments.repeats} runs, rows and checkpoints included."
        )
        PAGE.write_text(f"{before}\n\n{HEADING}\n\n{about}\n\n{table}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
