"""Whether a model has learned anything: its accuracy beside that of always giving the same answer."""

from collections.abc import Mapping
from statistics import fmean

import numpy as np

from fedreach.report.values import Comparison
from fedreach.runs.schema import FederationRecord

ODDS = 3.0
"""Of being right, against those of the same answer to everything: below, a model has hardly learned. With ten classes
of the same size that is 25 %, with a hundred 2.9 %, with two 75 %."""


def chance(federation: FederationRecord) -> float | None:
    """Return the accuracy of always naming one class, the best one for it, as a mean over participants.

    None where participants did not tell their labels.
    """
    counts = federation.label_counts[federation.participants]
    counts = counts[counts.sum(axis=1) > 0]
    if not counts.size:
        return None
    shares = counts / counts.sum(axis=1, keepdims=True)
    return float(shares.mean(axis=0).max())


def hardly_learned(accuracy: float, chance: float) -> bool:
    """Say whether the odds of being right are less than `ODDS` times those of always naming one class.

    Example:
        >>> hardly_learned(0.22, chance=0.1), hardly_learned(0.5, chance=0.1), hardly_learned(1.0, chance=1.0)
        (True, False, False)
    """
    return accuracy * (1 - chance) < ODDS * chance * (1 - accuracy)


def advice(found: Mapping[str, tuple[float, float]]) -> str:
    """Return what to tell of models that have hardly learned, and what to try; empty where all of them have learned.

    Args:
        found: Name, or ``""`` where there is one -> accuracy on participants' held-out data, and `chance`.
    """
    near = {name: both for name, both in found.items() if hardly_learned(*both)}
    if not near:
        return ""
    who = ", ".join(f"{name} {100 * accuracy:.1f} %".strip() for name, (accuracy, _) in near.items())
    same = sum(chance for _, chance in near.values()) / len(near)
    return (
        f"Near chance: {who} on participants' held-out data, where always naming one class gives {100 * same:.1f} %. "
        "Try more rounds, more local.epochs or a smaller local.batch_size, and other values of local.rate."
    )


def near_chance(comparison: Comparison) -> str:
    """Return what to tell of methods that end near chance, in the mean over seeds; empty where none does."""
    found: dict[str, tuple[float, float]] = {}
    for method in comparison.methods:
        runs = comparison.counted(method)
        chances = [one for run in runs if (one := chance(run.partition)) is not None]
        if chances:
            known = [column[~np.isnan(column)] for column in (run.column("id_accuracy") for run in runs)]
            if last := [column[-1] for column in known if len(column)]:  # else nobody holds anything out
                found[method] = fmean(last), fmean(chances)
    return advice(found)
