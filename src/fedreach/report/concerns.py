"""Warnings about a comparison."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np

from fedreach._util.arrays import Floats
from fedreach.evaluation.statistics import spread
from fedreach.report.analysis import POPULATION, baseline_title, baselines_of, mean_of
from fedreach.report.numbers import RunData, RunSet
from fedreach.runs.schema import FederationRecord

# ---- Models that have hardly learned

ODDS = 3.0
"""Minimum ratio of the odds of correct predictions to the odds of always predicting one class.

With a smaller ratio, a model has "hardly learned". The limit is an accuracy of 25% for ten classes of equal size, 2.9%
for a hundred, and 75% for two.
"""


def chance_accuracy(federation: FederationRecord) -> float | None:
    """Return the mean accuracy over participants of always predicting the most frequent class.

    The result is None if participants did not report their labels.
    """
    counts = federation.label_counts[federation.participants]
    counts = counts[counts.sum(axis=1) > 0]
    if not counts.size:
        return None
    shares = counts / counts.sum(axis=1, keepdims=True)
    return float(shares.mean(axis=0).max())


def hardly_learned(accuracy: float, chance: float) -> bool:
    """Return whether the odds of correct predictions are less than `ODDS` times those of always predicting one class.

    Example:
        >>> hardly_learned(0.22, chance=0.1), hardly_learned(0.5, chance=0.1), hardly_learned(1.0, chance=1.0)
        (True, False, False)
    """
    return accuracy * (1 - chance) < ODDS * chance * (1 - accuracy)


def near_chance_advice(accuracies: Mapping[str, tuple[float, float]], advice: str = "") -> str:
    """Describe models that have hardly learned, and what to try; empty if all models have learned.

    Args:
        accuracies: Name (``""`` for a single model) -> accuracy on participants' held-out data, and `chance_accuracy`.
        advice: What to try. Default: more training, or another learning rate.
    """
    near = {name: pair for name, pair in accuracies.items() if hardly_learned(*pair)}
    if not near:
        return ""
    who = ", ".join(f"{name} {100 * accuracy:.1f}%".strip() for name, (accuracy, _) in near.items())
    same = sum(chance for _, chance in near.values()) / len(near)
    return f"Near chance: {who} on participants' held-out data; predicting a single class gives {100 * same:.1f}%. " + (
        advice or "Try more rounds, more local.epochs, a smaller local.batch_size or another local.lr."
    )


def attack_advice(comparison: RunSet) -> str:
    """Return a sentence on the malicious clients of the runs, which replaces other advice; empty without an attack."""
    attack = next((run.config["attack"] for run in comparison.all_counted if run.config.get("attack")), None)
    if attack is None:
        return ""
    return (
        f"{attack.get('share', 0):.0%} of the participants are malicious (attack {attack['name']}) and can be the "
        "reason. Try another method.aggregation, or run without [attack]."
    )


def near_chance(comparison: RunSet) -> str:
    """Describe methods whose final mean over seeds is close to chance; empty if no method is."""
    accuracies: dict[str, tuple[float, float]] = {}
    for method in comparison.methods:
        runs = comparison.counted(method)
        chances = [chance_level for run in runs if (chance_level := chance_accuracy(run.partition)) is not None]
        if chances:
            measured = [column[~np.isnan(column)] for column in (run.column("participant_accuracy") for run in runs)]
            if last := [column[-1] for column in measured if len(column)]:  # empty if no client holds data out
                accuracies[method] = fmean(last), fmean(chances)
    return near_chance_advice(accuracies, attack_advice(comparison))


# ---- Models that a baseline beats, and columns that give the label away

CLEAR_FRACTION = 0.02
CLEAR_SHARE = 0.1
"""A method is clearly worse than the pooled model by 2 points of accuracy or 10% of its error, if the CI agrees."""
POPULATIONS = ("participant", "unseen", "test", "train")
CLIENT_POPULATIONS = {"participant": "participants", "unseen": "unseen"}
"""Prefix of columns -> name of the population in lines about single clients."""


ADVICE = {
    True: "It overfits, because it is better on its training data. Try fewer rounds or local.weight_decay",
    False: "Try more rounds, more local.epochs or another local.lr",
    None: "Try another local.lr, another number of rounds or local.weight_decay",
}
"""Whether a method overfits -> advice."""
MAX_NAMED = 3  # methods that a sentence names with their scores


@dataclass(frozen=True)
class Shortfall:
    """A method with worse scores than a baseline."""

    method: str
    value: float
    baseline: float
    overfits: bool | None  # whether it beats the baseline on its training rows; None: these were not scored
    decided: bool  # whether the paired 95% CI over the clients of all seeds excludes 0


def concerns(comparison: RunSet) -> tuple[str, ...]:
    """Return a sentence for each concern, with its number and advice.

    - A method does worse than the majority class or the mean of the targets, on the primary population or on
      participants' held-out data. It is "worse" if the paired 95% CI over the clients of all seeds excludes 0, else
      "no better".
    - A method is clearly worse than the pooled linear model: by 2 points, or 10% of the error, and the CI agrees.
    - A method has hardly learned. FedReach checks this only without a pooled linear model.
    - Methods have the same numbers in every round of every seed, although their settings differ.
    - A column reveals the label (see `fedreach.evaluation.baselines`).
    """
    pooled = any("pooled" in record.columns for record in baselines_of(comparison))
    near = [] if pooled else [near_chance(comparison)]
    sentences = (*_below_baselines(comparison), *near, *_identical_methods(comparison), *_leaking_columns(comparison))
    return tuple(filter(None, sentences))


def _below_baselines(comparison: RunSet) -> Iterable[str]:
    """Yield sentences on methods that a baseline beats; each method is in at most one sentence."""
    reported: set[str] = set()
    simple, clear = ("majority", "mean"), ("pooled",)
    for names, column in ((simple, comparison.primary), (clear, comparison.primary), (simple, comparison.seen)):
        for name in names:
            below = [
                shortfall for shortfall in _shortfalls(comparison, name, column) if shortfall.method not in reported
            ]
            below = [shortfall for shortfall in below if names == simple or _is_clear(comparison, shortfall)]
            reported |= {shortfall.method for shortfall in below}
            for overfits, decided in product((None, False, True), (False, True)):
                what = f"{'Worse' if decided else 'Not better'} than no model"
                what = what if names == simple else "Clearly worse than a linear model"
                if alike := [
                    shortfall for shortfall in below if (shortfall.overfits, shortfall.decided) == (overfits, decided)
                ]:
                    yield _shortfall_sentence(comparison, alike, name, column, what)


def _shortfall_sentence(comparison: RunSet, shortfalls: list[Shortfall], name: str, column: str, what: str) -> str:
    score = comparison.score
    named = len(comparison.methods) > 1
    values = sorted(each.value for each in shortfalls)
    who = ", ".join(f"{each.method if named else ''} {score.shown(each.value)}".strip() for each in shortfalls)
    if len(shortfalls) > MAX_NAMED:
        who = f"{len(shortfalls)} methods, {score.number(values[0])} to {score.shown(values[-1])}"
    linear = all(run.config.get("model", {}).get("name") == "linear" for run in comparison.all_counted)
    model = "" if linear else ", or model = 'linear'"
    advice = attack_advice(comparison) or f"{ADVICE[shortfalls[0].overfits]}{model}."
    return (
        f"{what}: {who} on {POPULATION[column].words} ({baseline_title(name, comparison)}: "
        f"{score.shown(fmean(shortfall.baseline for shortfall in shortfalls))}). {advice}"
    )


def _shortfalls(comparison: RunSet, name: str, column: str) -> list[Shortfall]:
    """Return the methods whose mean over seeds is worse than that of a baseline on the same federations."""
    shortfalls, rank = [], comparison.score.rank
    for method in comparison.methods:
        value, baseline = _paired_means(comparison, method, name, column)
        if rank(value) < rank(baseline):
            train, baseline_train = _paired_means(comparison, method, name, f"train_{comparison.score.name}")
            decided = _is_decided(comparison, method, name, column)
            overfits = rank(train) > rank(baseline_train) if np.isfinite(train) else None
            shortfalls.append(Shortfall(method, value, baseline, overfits, decided))
    return shortfalls


def _paired_means(comparison: RunSet, method: str, name: str, column: str) -> tuple[float, float]:
    """Return the means of a method and a baseline in a column over the same seeds; nan without any."""
    pairs = [
        (mean_of(run, column, "last", comparison.plan.last_rounds), run.baselines.columns[name][column])
        for run in comparison.counted(method)
        if run.baselines is not None and column in run.baselines.columns.get(name, {})
    ]
    value, baseline = (fmean(numbers) for numbers in zip(*pairs, strict=True)) if pairs else (np.nan, np.nan)
    return value, baseline


def _is_clear(comparison: RunSet, shortfall: Shortfall) -> bool:
    threshold = CLEAR_FRACTION if comparison.score.percent else CLEAR_SHARE * shortfall.baseline
    return shortfall.decided and abs(shortfall.value - shortfall.baseline) > threshold


def _is_decided(comparison: RunSet, method: str, name: str, column: str) -> bool:
    """Return whether the 95% CI over the clients of all seeds shows that a method is worse than a baseline."""
    people = CLIENT_POPULATIONS.get(column.partition("_")[0])
    if people is None:  # the test set, which does not belong to clients
        return True
    lacks = [_score_gaps(run, people, name, comparison) for run in comparison.counted(method)]
    low = spread(np.concatenate([*lacks, np.empty(0)])).low
    return low is not None and low > 0


def _score_gaps(run: RunData, people: str, name: str, comparison: RunSet) -> Floats:
    """Return how much worse each client's score is than a baseline's."""
    scores = run.clients.get(people)
    lines: Mapping[str, Sequence[Any]] = {}
    if run.baselines is not None:
        lines = run.baselines.clients.get(name, {}).get(people, {})
    if scores is None or lines.get("ids") != scores.ids.tolist():
        return np.empty(0)
    score = comparison.score
    return np.asarray(score.gap(np.array(lines[score.name]), scores.score))


def _identical_methods(comparison: RunSet) -> Iterable[str]:
    """Yield sentences on methods with identical numbers, and the reason if it is known."""
    alike: dict[Any, list[str]] = {}
    for method in comparison.methods:
        runs = comparison.counted(method)
        numbers = [(run.seed, *(run.column(f"{people}_loss").tobytes() for people in POPULATIONS)) for run in runs]
        if numbers and any(np.isfinite(run.column(comparison.primary)[1:]).any() for run in runs):
            alike.setdefault(tuple(numbers), []).append(method)
    for methods in alike.values():
        settings = {method: _training_settings(comparison.counted(method)[0]) for method in methods}
        different = [
            method for k, method in enumerate(methods) if settings[method] not in [settings[m] for m in methods[:k]]
        ]
        if len(different) > 1:
            trained = [run for method in different for run in comparison.counted(method)]
            sizes = [(run.config["method"]["cohort_size"], len(run.partition.participants)) for run in trained]
            all_train = all(isinstance(size, int) and size >= participants for size, participants in sizes)
            why = ", because all participants train in every round. Lower method.cohort_size"
            yield f"{', '.join(different)} have identical numbers in every round{why if all_train else ''}."


def _training_settings(run: RunData) -> Any:
    """Return the settings that a method trains with, which do not include its adaptation."""
    parts = {key: value for key, value in run.config.get("method", {}).items() if key != "adaptation"}
    return parts, run.config.get("local")


def _leaking_columns(comparison: RunSet) -> Iterable[str]:
    """Yield a sentence on all columns that give the label away with any seed."""
    leaks: dict[str, tuple[str, float]] = {}
    for record in baselines_of(comparison):
        for leak in record.leaks:
            leaks.setdefault(leak["column"], (leak["measure"], leak["value"]))
    if leaks:
        several = len(leaks) > 1
        what = "target" if not comparison.score.percent else "label"
        columns_text = ", ".join(f"{column!r} ({measure} {value:.3f})" for column, (measure, value) in leaks.items())
        yield (
            f"{'Each of these columns' if several else 'One column'} alone predicts the {what}: {columns_text}, on "
            f"participants' training rows. If {'their values are' if several else 'its value is'} known only after the "
            f"{what}, remove {'them' if several else 'it'} from the data and rerun."
        )
