"""Changes of the test accuracy from round to round at the end of `niid_bench.toml`: its runs, continued.

    python benchmarks/niid_swing.py runs/niid_bench --write      # six more rounds of two methods: four minutes

For methods whose only state is the model. The table is in docs/records/niid_bench.md.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedreach.experiment.build import Builder
from fedreach.experiment.load import load
from fedreach.report.numbers import RunData
from fedreach.report.read import read
from fedreach.runs.checkpoint import read_models
from fedreach.runs.folder import RunFolder
from page import RECORDS, put
from tables import table

HERE = Path(__file__).parent
METHODS = ("fedavg", "fednova")


def went_on(run: RunData, folder: Path, more: int) -> list[float]:
    """Return the accuracy on the test set after the last round of a run, and after each of some more."""
    source = HERE / "niid_bench.toml"
    builder = Builder(load(source).resolved(run.method), source.parent)
    data = builder.federated(builder.dataset(), run.seed)
    simulation = builder.simulation(data, run.seed, threads=2)
    test = np.arange(len(data.dataset.test_y))
    stored = read_models(RunFolder(folder), "last", simulation.engine.layout)
    assert stored is not None  # a finished run has one
    state, found = replace(simulation.start(), round=stored.round, models=stored.vectors), []
    for left in range(more, -1, -1):
        right, _ = simulation.engine.predict(state.params, "test", test)
        found.append(float(right.mean()))
        check(run, found[0])
        if left:
            state = simulation.step(state).state
    return found


def check(run: RunData, scored: float) -> None:
    """Refuse a model that is scored otherwise than the rows of its run say."""
    ended = run.column("test_accuracy")[-1]
    if abs(scored - ended) > 5e-4:
        raise ValueError(f"{run.method} ended at {ended:.4f} by its rows, and its model is scored {scored:.4f}.")


def line(method: str, found: list[float]) -> list[str]:
    """Return a line of the table."""
    steps = 100 * np.abs(np.diff(found))
    percent = [f"{100 * each:.1f}" for each in found]
    return [f"`{method}`", " ".join(percent), f"{steps.mean():.1f}", f"{steps.max():.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="the comparison, or single runs of it")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--write", action="store_true", help="put the table into docs/records/niid_bench.md")
    arguments = parser.parse_args()
    told = []
    for folder in arguments.folders:
        for run in read([folder]).runs:
            if run.method in METHODS and run.status == "finished":
                where = folder / run.path if (folder / run.path).is_dir() else folder
                told.append(line(run.method, went_on(run, where, arguments.rounds)))
    head = ["method", "after the last round and each of those after it %", "mean step points", "largest"]
    text = f"{table(head, told, 2)}\n\nOne seed."
    print(text)
    if arguments.write:
        put("niid_swing", text, RECORDS / "niid_bench.md")


if __name__ == "__main__":
    main()
