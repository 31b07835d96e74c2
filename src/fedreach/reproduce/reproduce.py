"""One recipe, from its file to its numbers, verdicts and files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedreach.engines.samples import checked_device
from fedreach.errors import RunFolderError
from fedreach.experiments.build import Builder
from fedreach.experiments.compare import compare
from fedreach.experiments.jobs import ComparisonCallback
from fedreach.reproduce import decisions, record, training
from fedreach.reproduce.claims import verdicts
from fedreach.reproduce.recipe import Recipe
from fedreach.runs.folder import RunFolder


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
        measured = training.measured(recipe, experiment, names, out)
    found = list(verdicts(recipe.about.claims, measured, recipe.about.instead))
    made = record.record(recipe, experiment, measured, found, failed)
    record.write(made, out)
    return made
