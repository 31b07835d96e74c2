"""How far the test set's accuracy swings from round to round at the end of `niid_bench.toml`: its runs, gone on with.

    python benchmarks/niid_swing.py runs/niid_bench --write      # eight more rounds of two methods: four minutes

For methods whose state is the model alone. A table in docs/outside.md.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from fedreach.arrays import Float32s
from fedreach.config.load import load
from fedreach.experiments.build import Builder
from fedreach.report.load import read
from fedreach.report.values import Run
from outside import PAGE
from page import put
from tables import table

HERE = Path(__file__).parent
METHODS = ("fedavg", "fednova")


def flat(path: Path) -> Float32s:
    """Return (p,) the numbers of a stored model, layer by layer, weights before biases."""
    stored = load_file(path)
    names = sorted(stored, key=lambda name: (int(name.partition(".")[0]), name.endswith("bias")))
    return np.concatenate([stored[name].ravel() for name in names]).astype(np.float32)


def went_on(run: Run, folder: Path, more: int) -> list[float]:
    """Return the accuracy on the test set after the last round of a run, and after each of some more."""
    source = HERE / "niid_bench.toml"
    builder = Builder(load(source).resolved(run.method), source.parent)
    data = builder.federated(builder.dataset(), run.seed)
    simulation = builder.simulation(data, run.seed)
    test = np.arange(len(data.dataset.test_y))
    state = replace(simulation.start(), round=run.last_round, models=flat(folder / "last.safetensors")[None])
    found = []
    for left in range(more, -1, -1):
        right, _ = simulation.engine.predict(state.params, "test", test)
        found.append(float(right.mean()))
        if left:
            state = simulation.step(state).state
    return found


def line(run: Run, found: list[float]) -> list[str]:
    """Return a line of the table; what is stored of the last round must be what is scored here."""
    stored = run.column("test_accuracy")[-1]
    if abs(found[0] - stored) > 5e-4:
        raise ValueError(f"{run.method} ended at {stored:.4f} by its rows, and its model is scored {found[0]:.4f}.")
    steps = np.abs(np.diff(found))
    percent = [f"{100 * each:.1f}" for each in found]
    return [f"`{run.method}`", " ".join(percent), f"{100 * steps.mean():.1f}", f"{100 * steps.max():.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="the comparison, or single runs of it")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--write", action="store_true", help="put the table into docs/outside.md")
    arguments = parser.parse_args()
    told = []
    for folder in arguments.folders:
        for run in read([folder]).runs:
            if run.method in METHODS and run.status == "finished":
                where = folder / run.path if (folder / run.path).is_dir() else folder
                told.append(line(run, went_on(run, where, arguments.rounds)))
    head = ["method", "after the last round and each of those after it %", "mean step points", "largest"]
    text = f"{table(head, told, 2)}\n\nOne seed."
    print(text)
    if arguments.write:
        put("niid_swing", text, PAGE)


if __name__ == "__main__":
    main()
