"""Run a recipe: its numbers, the conclusions about its claims, and their files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedreach._util.errors import RunFolderError
from fedreach.engines.batches import checked_device
from fedreach.experiment.build import Builder
from fedreach.experiment.compare import compare_several
from fedreach.experiment.schema import Experiment
from fedreach.experiment.workers import ComparisonCallback, Resources
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import AdaptationRecord, Result, RoundRow
from papers import decisions
from papers.claims import judge_claims
from papers.curves import Points, mean_curves, run_curves
from papers.measured import TITLES, Measured, measure_run
from papers.recipe import Cell, Place, Recipe
from papers.record import SMOKE, make_record, write_record


def reproduce(
    recipe: Recipe,
    out: Path,
    *,
    workers: int | None = None,
    callbacks: Sequence[ComparisonCallback] = (),
    progress: decisions.Progress = lambda done, rounds: None,
) -> dict[str, Any]:
    """Run what a recipe needs and its folder lacks; write and return its record, see `papers.record.make_record`.

    Args:
        out: Its folder: rows, ``reproduced.json``, ``numbers.csv`` and ``claims.md``; of a recipe with training also
            the run folders of its comparison, or of several in ``cells/``.
        workers: As in `fedreach.experiment.compare.compare`.

    Raises:
        RunFolderError: If all runs failed, or the folder holds something else.
    """
    if recipe.about.kind == "decisions":
        experiment = recipe.at(recipe.values[0] if recipe.values else None)
        measured = decisions.decide(recipe, RunFolder(out), progress)
        failed, hours = {}, None
    else:
        cells, places = recipe.cells()
        experiment, base = cells[0].experiment, recipe.source.parent
        checked_device(experiment.engine.device)
        comparisons = [(cell.experiment, out / cell.folder) for cell in cells]
        callbacks = [DataFirst(comparisons, base), *callbacks]
        status = compare_several(comparisons, Resources(out=out, base=base, workers=workers, callbacks=callbacks))
        failed = {job.label: cause for job, cause in status.failed.items()}
        if not status.finished:
            label, cause = next(iter(failed.items()))
            raise RunFolderError(f"No run of {recipe.name} finished. {label}: {cause}")
        measured, hours = read_measured(recipe, cells, places, out)
    reason = SMOKE if recipe.scale == "smoke" else ""
    conclusions = judge_claims(recipe.about.claims, measured, recipe.about.instead, reason=reason)
    record = make_record(recipe, experiment, measured, conclusions, failed, hours)
    write_record(record, out)
    return record


@dataclass(frozen=True)
class DataFirst(ComparisonCallback):
    """Reads the data before the workers do, so that data that cannot be used end the command at once."""

    comparisons: Sequence[tuple[Experiment, Path]]
    base: Path

    def begin(self) -> None:
        names = set()
        for experiment, _ in self.comparisons:
            if (name := experiment.data.model_dump_json()) not in names:
                Builder(experiment, self.base).dataset()
                names.add(name)


def read_measured(
    recipe: Recipe, cells: Sequence[Cell], places: Mapping[str, Sequence[Place]], out: Path
) -> tuple[Measured, float]:
    """Return the quantities of the runs, see `papers.measured.measure_run`, and the hours that they took in all.

    Numbers are nan where a run did not finish.
    """
    sweep, seeds = recipe.about.sweep, tuple(cells[0].experiment.seeds)
    x = (0.0,) if sweep is None else tuple(value / sweep.unit for value in sweep.values)
    needed = {(place, seed) for line in places.values() for place in line for seed in seeds}
    paths = {(at, seed): out / cells[at.cell].folder / "runs" / at.method / f"seed-{seed}" for at, seed in needed}
    by_run = {key: _measure_run_folder(path, recipe.about.curves) for key, path in paths.items()}
    quantities = [name for name in TITLES if any(name in numbers for numbers, _, _ in by_run.values())]
    numbers = {
        quantity: np.array(
            [[[by_run[at, s][0].get(quantity, np.nan) for at in line] for s in seeds] for line in places.values()]
        )
        for quantity in quantities
    }
    hours = sum(seconds for _, seconds, _ in by_run.values()) / 3600
    curves = mean_curves({name: [[by_run[at, s][2] for at in line] for s in seeds] for name, line in places.items()}, x)
    return Measured(tuple(places), seeds, "" if sweep is None else sweep.label, x, numbers, curves), hours


def _measure_run_folder(path: Path, curves: Sequence[str]) -> tuple[dict[str, float], float, dict[str, Points]]:
    """Return the quantities of a run, the seconds that it took, and its curves; nothing of one that did not finish."""
    folder = RunFolder(path)
    result = folder.read(Result) if path.exists() else None
    if result is None or result.status != "finished":
        return {}, 0.0, {}
    adaptation = folder.read(AdaptationRecord)
    adapted = None if adaptation is None else adaptation.columns["last"]
    timing = folder.timing(result.rounds or 0)
    seconds = sum((row.train_seconds or 0.0) + (row.evaluate_seconds or 0.0) for row in timing)
    rows = folder.kept_rows(RoundRow.FILE)
    return measure_run(rows, adapted), seconds, run_curves(rows, curves)
