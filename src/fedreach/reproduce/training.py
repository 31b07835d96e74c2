"""A recipe with training: one comparison, and the numbers of its runs."""

from pathlib import Path
from typing import Any

import numpy as np

from fedreach.config.sections import Experiment
from fedreach.reproduce.measured import Measured
from fedreach.reproduce.recipe import Recipe
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import Result, RoundRow


def measured(recipe: Recipe, experiment: Experiment, names: dict[str, tuple[str, ...]], out: Path) -> Measured:
    """Return what the runs of a comparison reached at the last evaluation; nan where a run did not finish.

    Accuracy is that of the test set, as in the papers. The experiment has a method for each value of the sweep, of
    these names, see `Recipe.compared`.
    """
    sweep, seeds = recipe.about.sweep, tuple(experiment.seeds)
    x = (0.0,) if sweep is None else tuple(value / sweep.unit for value in sweep.values)
    found = {
        (each, seed): _reached(out / "runs" / each / f"seed-{seed}")
        for each in experiment.methods
        for seed in experiment.seeds
    }
    numbers = {
        quantity: np.array(
            [[[found[each, seed].get(quantity, np.nan) for each in names[m]] for seed in seeds] for m in names]
        )
        for quantity in ("accuracy", "swing", "seconds_total", "joules_total")
    }
    return Measured(tuple(names), seeds, "" if sweep is None else sweep.label, x, numbers)


def _reached(path: Path) -> dict[str, Any]:
    folder = RunFolder(path)
    result = folder.read(Result) if path.exists() else None
    if result is None or result.status != "finished":
        return {}
    rows = [row for row in folder.rows(RoundRow.FILE) if row.get("test_accuracy") is not None]
    accuracy = np.array([row["test_accuracy"] for row in rows])
    late = accuracy[len(accuracy) // 2 :]  # where the steep start is over
    swing = float(abs(np.diff(late)).mean()) if len(late) > 1 else np.nan
    last: dict[str, Any] = {key: rows[-1][key] for key in ("seconds_total", "joules_total") if key in rows[-1]}
    return {"accuracy": float(accuracy[-1]), "swing": swing, **last}
