"""What may be wrong with a comparison, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np

from fedreach._util.arrays import Floats
from fedreach.evaluation.statistics import spread
from fedreach.report.analysis import POPULATION, baselines_of, mean_of, title
from fedreach.report.numbers import Comparison, Run
from fedreach.runs.schema import FederationRecord

# -------------------- Whether a model has learned anything: its accuracy beside that of always giving the same answer

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


# -------------------- What must not be overlooked: models that a baseline beats, and columns that give the label away

CLEAR_POINTS = 0.02
CLEAR_SHARE = 0.1
"""A method is clearly worse than the pooled model by 2 points of accuracy or 10% of its error, if clients agree."""
POPULATIONS = ("id", "unseen", "test", "train")
PEOPLE = {"id": "participants", "unseen": "unseen"}
"""Prefix of columns -> population in lines about single clients."""


ADVICE = {
    True: "It is better on the rows that it trains on: try fewer rounds, local.weight_decay",
    False: "Try more rounds, more local.epochs, other values of local.rate",
    None: "Try other values of local.rate, more or fewer rounds, local.weight_decay (evaluation.training = true says "
    "whether it overfits)",
}
"""By whether a method overfits."""


@dataclass(frozen=True)
class Beaten:
    """A method that a baseline beats."""

    method: str
    value: float
    baseline: float
    overfits: bool | None  # it is better than the baseline on the rows that it trains on; None: these were not scored
    decided: bool  # all of a paired 95% interval over the clients of all seeds says so


def concerns(comparison: Comparison) -> tuple[str, ...]:
    """Return a sentence for each concern, with its number and what to do.

    - A method is below the majority class, or the mean of the targets, on those whom methods are judged by or on
      participants' held-out data: "worse" where all of a paired 95% interval over the clients of all seeds says so,
      else "no better".
    - It is clearly below the pooled linear model: by 2 points, or a tenth of the error, and the interval says so.
    - It has hardly learned, see `fedreach.report.concerns`, where there is no pooled model to tell.
    - Methods have the same numbers in every round of every seed, though they are not trained by the same words.
    - A column gives the label away, see `fedreach.evaluation.baselines`.
    """
    pooled = any("pooled" in record.columns for record in baselines_of(comparison))
    near = [] if pooled else [near_chance(comparison)]
    return tuple(filter(None, (*_below(comparison), *near, *_same(comparison), *_leaks(comparison))))


def _below(comparison: Comparison) -> Iterable[str]:
    """Yield which methods a baseline beats; each method is in one sentence at most."""
    told: set[str] = set()
    simple, clear = ("majority", "mean"), ("pooled",)
    for names, column in ((simple, comparison.primary), (clear, comparison.primary), (simple, comparison.seen)):
        for name in names:
            beaten = [each for each in _beaten(comparison, name, column) if each.method not in told]
            beaten = [each for each in beaten if names == simple or _is_clear(comparison, each)]
            told |= {each.method for each in beaten}
            for overfits, decided in product((None, False, True), (False, True)):
                if alike := [each for each in beaten if (each.overfits, each.decided) == (overfits, decided)]:
                    no_model = f"{'Worse' if decided else 'No better'} than no model"
                    what = no_model if names == simple else "Clearly worse than a linear model"
                    yield _said(comparison, alike, name, column, what)


def _said(comparison: Comparison, beaten: list[Beaten], name: str, column: str, what: str) -> str:
    score = comparison.score
    named = len(comparison.methods) > 1
    who = ", ".join(f"{each.method} {score.shown(each.value)}" if named else score.shown(each.value) for each in beaten)
    linear = all(run.config.get("model", {}).get("name") == "linear" for run in comparison.all_counted)
    model = "" if linear else ", or model = 'linear'"
    advice = ADVICE[beaten[0].overfits]
    return (
        f"{what}: {who} on {POPULATION[column].words}, where the {title(name, comparison)} has "
        f"{score.shown(fmean(each.baseline for each in beaten))}. {advice}{model}."
    )


def _beaten(comparison: Comparison, name: str, column: str) -> list[Beaten]:
    """Return the methods that do worse than a baseline on the same federations, in the mean over seeds."""
    found, rank = [], comparison.score.rank
    for method in comparison.methods:
        own, other = _both(comparison, method, name, column)
        if rank(own) < rank(other):
            train, its = _both(comparison, method, name, f"train_{comparison.score.name}")
            decided = _is_decided(comparison, method, name, column)
            overfits = rank(train) > rank(its) if np.isfinite(train) else None
            found.append(Beaten(method, own, other, overfits, decided))
    return found


def _both(comparison: Comparison, method: str, name: str, column: str) -> tuple[float, float]:
    """Return what a method and a baseline have in a column, in the mean over the same seeds; nan without any."""
    pairs = [
        (mean_of(run, column, "last", comparison.plan.last_rounds), run.baselines.columns[name][column])
        for run in comparison.counted(method)
        if run.baselines is not None and column in run.baselines.columns.get(name, {})
    ]
    own, other = (fmean(numbers) for numbers in zip(*pairs, strict=True)) if pairs else (np.nan, np.nan)
    return own, other


def _is_clear(comparison: Comparison, beaten: Beaten) -> bool:
    least = CLEAR_POINTS if comparison.score.percent else CLEAR_SHARE * beaten.baseline
    return beaten.decided and abs(beaten.value - beaten.baseline) > least


def _is_decided(comparison: Comparison, method: str, name: str, column: str) -> bool:
    """Return whether the clients of all seeds say that a method is worse than a baseline."""
    people = PEOPLE.get(column.partition("_")[0])
    if people is None:  # the test set, which is no sample of clients
        return True
    lacks = [_lacks(run, people, name, comparison) for run in comparison.counted(method)]
    low = spread(np.concatenate([*lacks, np.empty(0)])).low
    return low is not None and low > 0


def _lacks(run: Run, people: str, name: str, comparison: Comparison) -> Floats:
    """Return by how much each client's score is worse than a baseline's."""
    scores = run.clients.get(people)
    lines: Mapping[str, Sequence[Any]] = {}
    if run.baselines is not None:
        lines = run.baselines.clients.get(name, {}).get(people, {})
    if scores is None or lines.get("ids") != scores.ids.tolist():
        return np.empty(0)
    score = comparison.score
    return np.asarray(score.gap(np.array(lines[score.name]), scores.score))


def _same(comparison: Comparison) -> Iterable[str]:
    """Yield which methods cannot be told apart, and why where that is known."""
    alike: dict[Any, list[str]] = {}
    for method in comparison.methods:
        runs = comparison.counted(method)
        numbers = [(run.seed, *(run.column(f"{people}_loss").tobytes() for people in POPULATIONS)) for run in runs]
        if numbers and any(np.isfinite(run.column(comparison.primary)[1:]).any() for run in runs):
            alike.setdefault(tuple(numbers), []).append(method)
    for methods in alike.values():
        told = {method: _training(comparison.counted(method)[0]) for method in methods}
        different = [method for k, method in enumerate(methods) if told[method] not in [told[m] for m in methods[:k]]]
        if len(different) > 1:
            trained = [run for method in different for run in comparison.counted(method)]
            all_train = all(run.config["method"]["cohort"] >= len(run.partition.participants) for run in trained)
            why = ": all participants train in every round, so there is nobody to select. Lower method.cohort"
            yield f"The same numbers in every round: {', '.join(different)}{why if all_train else ''}."


def _training(run: Run) -> Any:
    """Return what an experiment says of how a method trains, which serving is no part of."""
    parts = {key: value for key, value in run.config.get("method", {}).items() if key != "serving"}
    return parts, run.config.get("local")


def _leaks(comparison: Comparison) -> Iterable[str]:
    """Yield a sentence for all columns that give the label away with any seed."""
    found: dict[str, tuple[str, float]] = {}
    for record in baselines_of(comparison):
        for leak in record.leaks:
            found.setdefault(leak["column"], (leak["measure"], leak["value"]))
    if found:
        many = len(found) > 1
        what = "target" if not comparison.score.percent else "label"
        said = ", ".join(f"{column!r} ({measure} {value:.3f})" for column, (measure, value) in found.items())
        yield (
            f"The {what} is given away by {'each of these columns' if many else 'one column'} alone, on participants' "
            f"training rows: {said}. If what {'they hold' if many else 'it holds'} is known only once the {what} is, "
            f"remove {'them' if many else 'it'} from the data and run again."
        )
