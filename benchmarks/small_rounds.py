"""Time of rounds, evaluations and the start of the command for a tiny federation.

    python benchmarks/small_rounds.py            # prints two tables
    python benchmarks/small_rounds.py --write    # also puts them into docs/records/small_rounds.md

The digits over 50 clients, 10 per round, MLP 64-32-10, one epoch, batch 16; rows and checkpoints are written as in any
run. The second table shows how much of a round is training, in long runs with few evaluations.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fedreach.data.federated import FederatedData
from fedreach.engines.engine import TorchEngine
from fedreach.evaluation.evaluator import Evaluator
from fedreach.experiment.load import load
from fedreach.experiment.run import run
from fedreach.runs.callbacks import Callback
from fedreach.runs.schema import RunRecord
from page import put

OPTIONS = {
    "rounds": 200,
    "method.cohort_size": 10,
    "population.participants": 50,
    "local.epochs": 1,
    "local.batch_size": 16,
    "evaluation.every": 10,
}
LONG = OPTIONS | {"evaluation.every": 100, "evaluation.examples_per_client": 10}
LONG_RUNS: dict[str, dict[str, Any]] = {
    "MLP 64-32-10, batch 16": {},
    "linear, batch 32": {"model": "linear", "local.batch_size": 32},
    "linear, one step a client": {"model": "linear", "local.batch_size": 2000},
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
            command = [sys.executable, "-m", "fedreach", "run", "--out", folder, "--quiet"]
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


class Begun(Callback):
    """Notes when the first round begins, and forgets what was spent before: an engine's trial trains, too."""

    def __init__(self, times: list[float], spent: dict[str, float]) -> None:
        self.times, self.spent = times, spent

    def begin(self, run: RunRecord, data: FederatedData | None, engine: str, folder: Path) -> None:
        self.spent.clear()
        self.times.append(time.perf_counter())


def shares(rounds: int, options: dict[str, Any]) -> dict[str, float]:
    """Return the microseconds of a round of a long run, what of them goes where, and the share of training.

    The run is all from the first round to ``result.json``, training is `TorchEngine.train`, batch order included. What
    evaluations take, single clients' local models included, is told apart from everything else.
    """
    spent: dict[str, float] = defaultdict(float)

    def timed(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            result = function(*arguments, **named)
            spent[what] += time.perf_counter() - began
            return result

        return call

    experiment = load(None, [f"{key}={value}" for key, value in (LONG | options | {"rounds": rounds}).items()])
    began: list[float] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(TorchEngine, "train", timed("training", TorchEngine.train)),
        patch.object(Evaluator, "evaluate", timed("evaluation", Evaluator.evaluate)),
        patch.object(Evaluator, "evaluate_local", timed("evaluation", Evaluator.evaluate_local)),
    ):
        run(
            experiment.resolved(),
            seed=0,
            folder=Path(folder),
            base=Path.cwd(),
            callbacks=[Begun(began, spent)],
        )
        whole = time.perf_counter() - began[0]
    rest = whole - spent["training"] - spent["evaluation"]
    parts = {"a round, us": whole, "training": spent["training"], "evaluation": spent["evaluation"], "all else": rest}
    found = {name: 1e6 * part / rounds for name, part in parts.items()}
    return found | {"in training, %": 100 * spent["training"] / whole}


def long_runs(rounds: int, repeats: int) -> str:
    """Return the table of long runs."""
    lines: list[str] = []
    for name, options in LONG_RUNS.items():
        found = [shares(rounds, options) for _ in range(repeats)]
        columns = {key: [one[key] for one in found] for key in found[0]}
        if not lines:
            lines = [f"| {rounds} rounds | {' | '.join(columns)} |", "| --- |" + " ---: |" * len(columns)]
        cells = (f"{statistics.median(v):.0f} ({min(v):.0f} to {max(v):.0f})" for v in columns.values())
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=2000, help="of a long run; default: %(default)s")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/records/small_rounds.md")
    arguments = parser.parse_args()
    lines = ["| what | seconds, median (range) |", "| --- | ---: |"]
    for what, values in measure(arguments.repeats).items():
        lines.append(f"| {what} | {statistics.median(values):.4f} ({min(values):.4f} to {max(values):.4f}) |")
    table = "\n".join(lines)
    longer = long_runs(arguments.rounds, arguments.repeats)
    print(f"{table}\n\n{longer}")
    if arguments.write:
        about = (
            "The digits over 50 clients, 10 a round, MLP 64-32-10, one epoch, batch 16, by `python\n"
            f"benchmarks/small_rounds.py --write`: medians of {arguments.repeats} runs, rows and checkpoints included."
        )
        about_long = (
            "Long runs on all cores, evaluated every 100 rounds on at most 10 samples a client: microseconds a round,\n"
            "those of training, of evaluating and of all else, and which share of the run was training."
        )
        put("small_rounds", "\n\n".join([about, table, about_long, longer]))


if __name__ == "__main__":
    main()
