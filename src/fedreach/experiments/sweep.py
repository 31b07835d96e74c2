"""A comparison at each setting of ``[sweep]``, all of them by the same workers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedreach.config.cells import cells
from fedreach.config.sections import Experiment
from fedreach.config.sweep import folders
from fedreach.errors import ANOTHER_FOLDER, ConfigError, RunFolderError
from fedreach.experiments.compare import compare_several
from fedreach.experiments.executors.base import Executor
from fedreach.experiments.jobs import ComparisonCallback, ComparisonStatus
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import ComparisonRecord, SweepRecord

FOLDER = "cells"


def sweep(
    experiment: Experiment,
    *,
    out: Path,
    base: Path,
    workers: int | None = None,
    executor: Executor | None = None,
    callbacks: Sequence[ComparisonCallback] = (),
    add_seeds: bool = False,
    redo: Sequence[str] = (),
) -> ComparisonStatus:
    """Compare at each setting of the experiment's ``[sweep]``; the same call goes on, and settings may be added.

    Each setting is a comparison in a folder of its own, ``cells/SETTING``, byte for byte the one that `compare` makes
    of the experiment with that setting.

    Args:
        experiment: With methods and settings.
        out: Folder of the sweep.

    The others, and what is returned and raised, are those of `fedreach.experiments.compare.compare`.
    """
    if experiment.sweep is None:
        raise ConfigError("There is nothing to sweep: the experiment has no [sweep] table.")
    found = cells(experiment, base)
    places = folders([cell.setting for cell in found], Path(FOLDER))
    record = SweepRecord(
        name=experiment.name,
        keys=list(experiment.sweep.values),
        settings=[dict(cell.setting) for cell in found],
        cells=[place.as_posix() for place in places],
        samples=experiment.sweep.samples,
        config=experiment.model_dump(mode="json"),
    )
    folder = RunFolder(out)
    with folder.locked():
        stored = folder.read(SweepRecord)
        if (out / ComparisonRecord.FILE).exists() or (stored is not None and [*stored.keys] != record.keys):
            what = "one comparison" if stored is None else f"a sweep over {', '.join(stored.keys)}"
            raise RunFolderError(f"{out} holds {what}; now {', '.join(record.keys)} is swept. Choose {ANOTHER_FOLDER}.")
        folder.write(record)
        return compare_several(
            [(cell.experiment, out / place) for cell, place in zip(found, places, strict=True)],
            out=out,
            base=base,
            workers=workers,
            executor=executor,
            callbacks=callbacks,
            add_seeds=add_seeds,
            redo=redo,
        )
