"""How many seeds a comparison needs, from the runs of its pilot."""

from __future__ import annotations

from pathlib import Path

from fedreach.errors import RunFolderError
from fedreach.evidence.stein import plan_seeds
from fedreach.report.analysis.contrasts import differences
from fedreach.report.load import no_collection, read


@no_collection()
def seeds_to_detect(out: Path) -> tuple[int, str]:
    """Return how many seeds find the comparison's `detect_points` in each of its contrasts, and why in words.

    It follows from the pilot's runs alone, so that it is the same whenever it is asked.

    Raises:
        RunFolderError: If `out` holds no comparison with a pilot that is finished.
    """
    comparison = read([out])
    plan, pilot = comparison.plan, comparison.pilot
    if plan.detect_points is None or pilot is None:
        raise RunFolderError(f"{out} holds no comparison with a pilot. Start one with `fedreach compare --detect 2.0`.")
    pairs = plan.pairs(comparison.methods, comparison.baseline)
    found = [differences(comparison, *pair, "last", of=pilot) for pair in pairs]
    paired = [{} if isinstance(each, str) else each for each in found]
    needed = plan_seeds(paired, plan.detect_points / 100, correction=plan.correction)
    known = {pair: number for pair, number in zip(pairs, needed, strict=True) if number is not None}
    wanted = max(known.values(), default=len(pilot))
    number = min(wanted, plan.most_seeds)
    said = ", ".join(f"{first} - {second} {seeds}" for (first, second), seeds in known.items()) or "none"
    less = f"; no more than {number} are run" if number < wanted else ""
    return number, (
        f"Pilot of {len(pilot)} seeds: to find {plan.detect_points:g} points with power 0.8, seeds: {said}. "
        f"So {wanted} in all{less}."
    )
