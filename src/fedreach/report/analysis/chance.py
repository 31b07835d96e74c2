"""Whether a model has learned anything: its accuracy beside that of always giving the same answer."""

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean

import numpy as np

from fedreach.arrays import Floats
from fedreach.evidence.scores import MAE
from fedreach.report.values import Comparison
from fedreach.runs.schema import FederationRecord

NO_BETTER = 0.999
"""Of the squared error of the mean: above, a model is no better; a constant may be better by what the mean is off."""
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


def no_better_than_mean(found: Mapping[str, tuple[float, float, FederationRecord]]) -> str:
    """Return what to tell of models that predict numbers no better than the participants' mean; empty where all do.

    A model that says the same of everybody is one of them: no constant has a smaller squared error than the mean.

    Args:
        found: Name, or ``""`` where there is one -> mean absolute error and loss on participants' held-out data, and
            of whom.
    """
    told = []
    for name, (mae, loss, federation) in found.items():
        mean = federation.mean_scores or {}
        if mean and not loss < NO_BETTER * mean["id_loss"]:
            off = f"{MAE.number(mae)} off on average ({MAE.number(mean['id_mae'])} by the mean)"
            told.append(f"{name}{': ' * bool(name)}{off}, squared error {loss / mean['id_loss']:.3g} times the mean's")
    if not told:
        return ""
    return (
        f"No better than predicting the participants' mean for all, on their held-out data: {'; '.join(told)}. "
        "Try more rounds, more local.epochs, other values of local.rate, or another column."
    )


def near_chance(comparison: Comparison) -> str:
    """Return what to tell of methods that end near chance, in the mean over seeds; empty where none does."""
    found: dict[str, tuple[float, float]] = {}
    numbers: dict[str, tuple[float, float, FederationRecord]] = {}
    for method in comparison.methods:
        runs = comparison.counted(method)
        chances = [one for run in runs if (one := chance(run.partition)) is not None]
        if chances:
            last = [run.column("id_accuracy") for run in runs]
            found[method] = fmean(column[~np.isnan(column)][-1] for column in last), fmean(chances)
        if runs and runs[0].partition.mean_scores:
            ends = [(_last(run.column("id_mae")), _last(run.column("id_loss")), run.partition) for run in runs]
            mean = [each.partition.mean_scores or {} for each in runs]
            record = replace(
                runs[0].partition, mean_scores={key: fmean(one[key] for one in mean) for key in ("id_mae", "id_loss")}
            )
            numbers[method] = fmean(end[0] for end in ends), fmean(end[1] for end in ends), record
    return advice(found) or no_better_than_mean(numbers)


def _last(column: Floats) -> float:
    return float(column[~np.isnan(column)][-1])
