"""What a comparison was asked before its results could be seen, and what may still be changed then."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedreach.config.sections import Experiment
from fedreach.errors import ANOTHER_FOLDER, RunFolderError
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import ComparisonRecord, Result, RoundRow

DECLARE = f"What is asked is said before results can be seen: choose {ANOTHER_FOLDER}."


def check_declared(
    experiment: Experiment, stored: ComparisonRecord | None, out: Path, *, add_seeds: bool
) -> Sequence[int]:
    """Return the numbers of seeds before seeds were added, if they were; refuse what only results could have suggested.

    Before there is a result everything may be changed. Then the questions are what they were, and no seed is left out:
    to stop where a difference happens to be large, or to go on until it is, finds differences that are not there.
    Methods come or go; where some come and others go it is another comparison, whose report is not written over. One
    with the same methods has other runs, which are recognised.
    """
    if stored is None:
        return ()
    looks = tuple(stored.looks or ())
    if not has_results(stored, out):
        return looks
    others = {method: places for method, places in stored.runs.items() if method not in experiment.methods}
    gone = [method for method, places in others.items() if any(_has_ended_well(out / p) for p in places.values())]
    if gone and (new := [method for method in experiment.methods if method not in stored.methods]):
        raise RunFolderError(
            f"{out} has results of another comparison, with {', '.join(gone)} and without {', '.join(new)}. "
            f"Choose {ANOTHER_FOLDER}, or give this experiment a `name` of its own."
        )
    asked = vars(experiment.plan)
    changed = [key for key in asked if stored.statistics.get(key) != asked[key]]
    if changed:
        there = stored.statistics
        said = "; ".join(f"statistics.{key}: {there.get(key)!r} there, {asked[key]!r} now" for key in changed)
        raise RunFolderError(f"{out} has results, and was asked something else before. {said}. {DECLARE}")
    pilot = experiment.plan.detect_points is not None
    before, now = list(stored.pilot or []) if pilot else list(stored.seeds), list(experiment.seeds)
    if pilot and before != now:
        raise RunFolderError(f"{out} has results of a pilot with the seeds {before}; got {now}. {DECLARE}")
    if left_out := sorted({*before} - {*now}):
        raise RunFolderError(
            f"{out} has results, and {len(before)} seeds were declared; now {len(left_out)} of them would be left out. "
            f"A comparison is not ended early: name all {len(before)}, or choose {ANOTHER_FOLDER}."
        )
    if len(now) == len(before):
        return looks
    if not add_seeds:
        raise RunFolderError(
            f"{out} has results of {len(before)} seeds; now {len(now)} are asked for. Seeds added once results "
            "can be seen make p-values too small. With --detect (in Python, detect_points), in a new folder, the "
            "number follows from the spread; --add-seeds (in Python, add_seeds) adds them all the same, and the report "
            "gives no verdict then."
        )
    return (*looks, len(before))


def has_results(stored: ComparisonRecord, out: Path) -> bool:
    """Say whether a run of a comparison has ended."""
    return any((out / place / Result.FILE).exists() for places in stored.runs.values() for place in places.values())


def lengths_seen(experiment: Experiment, stored: ComparisonRecord | None, out: Path) -> Sequence[int]:
    """Return after how many rounds results could be seen before the runs of a comparison were made longer."""
    if stored is None:
        return ()
    before, lengths = stored.config.get("rounds"), tuple(stored.lengths or ())
    begun = any((out / place / RoundRow.FILE).exists() for of in stored.runs.values() for place in of.values())
    return (*lengths, before) if begun and isinstance(before, int) and before < experiment.rounds else lengths


def _has_ended_well(folder: Path) -> bool:
    result = RunFolder(folder).read(Result)
    return result is not None and result.status == "finished"
