"""One recipe, from its file to its numbers, verdicts and files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedreach.config.sections import Experiment
from fedreach.engines.samples import checked_device
from fedreach.errors import RunFolderError
from fedreach.experiments.build import Builder
from fedreach.experiments.compare import compare
from fedreach.experiments.jobs import ComparisonCallback
from fedreach.reproduce import decisions, record
from fedreach.reproduce.claims import verdicts
from fedreach.reproduce.measured import Measured
from fedreach.reproduce.recipe import Recipe
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import Result, RoundRow


def reproduce(
    recipe: Recipe,
    out: Path,
    *,
    workers: int | None = None,
    callbacks: Sequence[ComparisonCallback] = (),
    progress: decisions.Progress = lambda done, rounds: None,
) -> dict[str, Any]:
    """Run what a recipe needs and is not in its folder yet; write and return its record, see `record.record`.

    Args:
        out: Its folder: rows, ``reproduced.json``, ``numbers.csv`` and ``claims.md``; of a recipe with training also
            the run folders of its comparison.
        workers: As in `fedreach.experiments.compare.compare`.

    Raises:
        RunFolderError: If all runs failed, or the folder holds something else.
    """
    if recipe.about.kind == "decisions":
        experiment = recipe.at(recipe.values[0] if recipe.values else None)
        measured = decisions.decide(recipe, RunFolder(out), progress)
        failed = {}
    else:
        experiment, names = recipe.compared()
        base = recipe.source.parent

        class DataFirst(ComparisonCallback):
            def begin(self) -> None:  # here too, so that data that cannot be used ends it at once
                checked_device(experiment.engine.device)
                Builder(experiment, base).dataset()

        status = compare(experiment, out=out, base=base, workers=workers, callbacks=[DataFirst(), *callbacks])
        failed = {job.label: cause for job, cause in status.failed.items()}
        if not status.finished:
            label, cause = next(iter(failed.items()))
            raise RunFolderError(f"No run of {recipe.name} finished. {label}: {cause}")
        measured = reached(recipe, experiment, names, out)
    found = list(verdicts(recipe.about.claims, measured, recipe.about.instead))
    made = record.record(recipe, experiment, measured, found, failed)
    record.write(made, out)
    return made


def reached(recipe: Recipe, experiment: Experiment, names: dict[str, tuple[str, ...]], out: Path) -> Measured:
    """Return what the runs of a comparison reached at the last evaluation; nan where a run did not finish.

    Accuracy is that of the test set, as in the papers. The experiment has a method for each value of the sweep, of
    these names, see `Recipe.compared`.
    """
    sweep, seeds = recipe.about.sweep, tuple(experiment.seeds)
    x = (0.0,) if sweep is None else tuple(value / sweep.unit for value in sweep.values)
    found = {
        (each, seed): _of_run(out / "runs" / each / f"seed-{seed}")
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


def _of_run(path: Path) -> dict[str, Any]:
    folder = RunFolder(path)
    result = folder.read(Result) if path.exists() else None
    if result is None or result.status != "finished":
        return {}
    rows = [row for row in folder.kept_rows(RoundRow.FILE) if row.get("test_accuracy") is not None]
    accuracy = np.array([row["test_accuracy"] for row in rows])
    late = accuracy[len(accuracy) // 2 :]  # where the steep start is over
    swing = float(abs(np.diff(late)).mean()) if len(late) > 1 else np.nan
    last: dict[str, Any] = {key: rows[-1][key] for key in ("seconds_total", "joules_total") if key in rows[-1]}
    return {"accuracy": float(accuracy[-1]), "swing": swing, **last}
