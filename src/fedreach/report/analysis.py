"""Analysis of a comparison: summaries of methods, planned tests and leaders."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any, Literal

import numpy as np

from fedreach._util.arrays import Ints
from fedreach.evaluation.scores import ACCURACY, MAE, MainScore
from fedreach.evaluation.statistics import PairedTest, Spread, run_paired_tests, spread
from fedreach.report.numbers import RunData, RunSet
from fedreach.runs.schema import BaselinesRecord

# ---- The numbers of a method, each declared once


@dataclass(frozen=True)
class Quantity:
    """A number of a method, with the name, words and unit that tables, CSV, JSON, page and figures use.

    Columns and units refer to accuracy. If models are compared by another score, this score replaces accuracy.

    `unit` is "%" (a fraction shown in percent), "points" (a difference of fractions), "MB", "clients", "seconds" or
    "joules" (in the unit that fits the whole column), or empty. `words` is the name of the quantity in a sentence.
    """

    name: str  # in summaries and records
    column: str  # of the stored rounds
    head: str  # of its column in tables
    unit: str = ""
    words: str = ""
    scale: float = 1.0  # stored value of one unit
    main: int = 0  # rank among the columns of the main table, 1 first; 0: not among them

    def column_by(self, score: MainScore) -> str:
        """Return the column to read if models are compared by this score."""
        return self.column.replace(ACCURACY.name, score.name)

    @property
    def is_radio(self) -> bool:
        """Whether the quantity is available only for runs with simulated radio."""
        return self.unit in ("seconds", "joules")


QUANTITIES = {
    quantity.name: quantity
    for quantity in (
        Quantity("round", "round", "rounds"),
        Quantity("participants", "participant_accuracy", "participants", "%", "participants' held-out data", main=3),
        Quantity("unseen", "unseen_accuracy", "unseen clients", "%", "unseen clients", main=1),
        Quantity("test", "test_accuracy", "test set", "%", "the test set"),
        Quantity("gap", "participation_gap", "participation gap", "points"),
        Quantity("participants_worst_decile", "participant_accuracy_worst_decile", "worst 10%, participants", "%"),
        Quantity("unseen_worst_decile", "unseen_accuracy_worst_decile", "worst 10%, unseen", "%"),
        Quantity("megabytes", "bytes_total", "sent", "MB", "communication", 1e6, main=8),  # 10^6 bytes, both ways
        # Simulated, of all rounds so far, probes included.
        Quantity("seconds", "seconds_total", "time", "seconds", "simulated time", main=6),
        Quantity("joules", "joules_total", "energy", "joules", "energy", main=7),
    )
}
METRIC_QUANTITIES = {
    quantity.name: quantity
    for quantity in (
        Quantity("participants", "participant_{}", "participants", main=2),
        Quantity("unseen", "unseen_{}", "unseen clients", main=1),
        Quantity("test", "test_{}", "test set", main=4),
        Quantity("participants_worst_decile", "participant_{}_worst_decile", "worst 10%, participants"),
        Quantity("unseen_worst_decile", "unseen_{}_worst_decile", "worst 10%, unseen", main=3),
        Quantity("participants_pooled", "participant_{}_pooled", "pooled, participants"),
        Quantity("unseen_pooled", "unseen_{}_pooled", "pooled, unseen", main=5),
        Quantity("participants_left_out", "participant_{}_undefined", "undefined, participants", "clients"),
        Quantity("unseen_left_out", "unseen_{}_undefined", "undefined, unseen", "clients", main=6),
    )
}
"""Quantities of an additional metric, whose name replaces `{}`."""

TARGET_COSTS = ("round", "megabytes", "seconds", "joules")  # costs of reaching the target accuracy
RADIO = tuple(quantity for quantity in QUANTITIES.values() if quantity.is_radio)
POPULATION = {
    quantity.column_by(score): quantity
    for score in (ACCURACY, MAE)
    for quantity in QUANTITIES.values()
    if quantity.column.endswith(f"_{ACCURACY.name}")
}
"""Quantities, accuracies or errors, by which methods can be compared; the keys are columns."""


# ---- The evaluated rounds that a number is read from

When = Literal["last", "best"]


def rows_of(run: RunData, when: When, last_rounds: int = 1) -> Ints:
    """Return the rows of the last `last_rounds` evaluated rounds, or of the best round on participants' held-out loss.

    The choice of the best round is fair, because it depends neither on the test set nor on unseen clients.
    """
    evaluated = run.evaluated
    if when == "last":
        return evaluated[-last_rounds:]
    losses = run.column("participant_loss")
    if run.best_round is None:
        with_loss = evaluated[np.isfinite(losses[evaluated])]
        return with_loss[[np.argmin(losses[with_loss])]] if len(with_loss) else evaluated[-1:]
    return evaluated[[np.argmin(np.abs(run.rounds["round"][evaluated] - run.best_round))]]


def mean_of(run: RunData, column: str, when: When, last_rounds: int = 1) -> float:
    """Return the mean of a column over `rows_of`; nan if a row has no number."""
    return float(run.column(column)[rows_of(run, when, last_rounds)].mean())


def target_row(run: RunData, comparison: RunSet) -> int | None:
    """Return the first row whose primary accuracy reaches the target; None if no row does."""
    if comparison.target_accuracy is None:
        return None
    rows = np.flatnonzero(comparison.score.reached(run.column(comparison.primary), comparison.target_accuracy))
    return int(rows[0]) if len(rows) else None


# ---- Additional metrics

METRIC_COLUMN = re.compile(
    r"(participant|unseen|test)_(?!(accuracy|mae)(_|$)|loss$)(?P<name>[a-z][a-z0-9_]*?)(_worst_decile|_pooled|_undefined)?"
)
"""Pattern of the columns of additional metrics (see `fedreach.evaluation.evaluator`)."""


@dataclass(frozen=True)
class MetricSummary:
    """Scores of one method for one metric."""

    method: str
    metric: str
    at: Mapping[str, Spread]  # each of `METRIC_QUANTITIES` -> over seeds


def metrics_of(comparison: RunSet) -> tuple[str, ...]:
    """Return the names of the metrics of all counted runs, in the order of their rows."""
    columns = (column for run in comparison.all_counted for column in run.rounds)
    return tuple(dict.fromkeys(match["name"] for column in columns if (match := METRIC_COLUMN.fullmatch(column))))


def summarize_metrics(comparison: RunSet, when: When = "last") -> tuple[MetricSummary, ...]:
    """Return a row for each metric and method, ordered by metric; `when` is as in `summarize`."""

    def over_seeds(method: str, metric: str, quantity: Quantity) -> Spread:
        column, last = quantity.column.format(metric), comparison.plan.last_rounds
        value = _left_out if quantity.unit == "clients" else mean_of
        return spread([value(run, column, when, last) for run in comparison.counted(method)])

    return tuple(
        MetricSummary(
            method, metric, {name: over_seeds(method, metric, quantity) for name, quantity in METRIC_QUANTITIES.items()}
        )
        for metric in metrics_of(comparison)
        for method in comparison.methods
    )


def _left_out(run: RunData, column: str, when: When, last_rounds: int) -> float:
    """Return for how many clients a metric is undefined; 0 if only the metric is stored."""
    rows = rows_of(run, when, last_rounds)
    undefined, defined = run.column(column)[rows], run.column(column.removesuffix("_undefined"))[rows]
    return float(np.where(np.isfinite(undefined), undefined, np.where(np.isfinite(defined), 0.0, np.nan)).mean())


# ---- Planned comparisons, paired by seed and tested as one family

SEEDS_ADDED = "seeds were added after the first result, which no correction can compensate"


@dataclass(frozen=True)
class Difference:
    """One method minus another, in the primary score."""

    first: str
    second: str
    judged: PairedTest


def planned_differences(comparison: RunSet, when: When) -> tuple[Difference, ...]:
    """Return all planned differences, at the last rounds or at the best round."""
    pairs = comparison.plan.pairs(comparison.methods, comparison.baseline)
    formed = [differences_by_seed(comparison, *pair, when) for pair in pairs]
    judged = judge_all(comparison, [by_seed for by_seed, _ in formed], lower_is_better=comparison.score.lower_is_better)
    return tuple(
        Difference(*pair, PairedTest(0, None, note=reason) if reason else judgement)
        for pair, (_, reason), judgement in zip(pairs, formed, judged, strict=True)
    )


def differences_by_seed(
    comparison: RunSet, first: str, second: str, when: When, *, of: Collection[int] | None = None
) -> tuple[dict[int, float], str]:
    """Return first minus second for each seed in `of` (default: all), and the reason if no pair can be formed."""
    value = _primary_value(comparison, when)
    minuend, subtrahend = (_values(comparison, method, value) for method in (first, second))
    by_seed = _differences(minuend, subtrahend)
    if of is not None:
        by_seed = {seed: difference for seed, difference in by_seed.items() if seed in of}
    if by_seed:
        return by_seed, ""
    second_name = "the baseline" if second == comparison.baseline else second
    shared = minuend.keys() & subtrahend.keys()
    return {}, f"not the same clients as {second_name}" if shared else f"no seed in common with {second_name}"


Values = Mapping[int, tuple[str, float]]  # seed -> hash of the federation, and a number


def _primary_value(comparison: RunSet, when: When) -> Callable[[RunData], float]:
    name, last = comparison.primary, comparison.plan.last_rounds
    return lambda run: mean_of(run, name, when, last)


def _values(comparison: RunSet, method: str, value: Callable[[RunData], float]) -> Values:
    return {run.seed: (run.partition.hash, value(run)) for run in comparison.counted(method)}


def _differences(first: Values, second: Values) -> dict[int, float]:
    """Return first minus second by seed; runs form a pair only if their clients are the same."""
    return {
        seed: number - second[seed][1]
        for seed, (clients, number) in first.items()
        if seed in second and second[seed][0] == clients
    }


def judge_all(
    comparison: RunSet,
    family: Sequence[Mapping[int, float]],
    *,
    within_margin: bool = True,
    lower_is_better: bool = False,
) -> tuple[PairedTest, ...]:
    """Test a family of differences according to the comparison's plan.

    If seeds were added after results were visible, no conclusion is drawn, because optional stopping finds a
    significant difference sooner or later.
    """
    plan = comparison.plan
    judged = run_paired_tests(
        family,
        correction=plan.correction,
        margin=comparison.margin if within_margin else None,
        pilot=comparison.pilot,
        lower_is_better=lower_is_better,
        test=plan.test,
    )
    undecided: dict[str, Any] = {
        "conclusion": "inconclusive",
        "seeds_needed": None,
        "seeds_needed_high": None,
        "deciding": (),
        "note": SEEDS_ADDED,
    }
    undecided = undecided if comparison.looks else {}
    return tuple(replace(test, **undecided) if test.conclusion else test for test in judged)


def no_conclusion_reason(comparison: RunSet) -> str:
    """Return the reason why no conclusion is drawn."""
    return f"{SEEDS_ADDED} ({', then '.join(map(str, (*comparison.looks, len(comparison.seeds))))})"


SHARED_BY_SEEDS = {  # option -> what all seeds share if it is set
    ("population", "seed"): "clients",
    ("partition", "seed"): "partition",
    ("model", "seed"): "initial model",
}


def seeds_scope(config: Mapping[str, Any]) -> str:
    """Describe what differs between seeds, based on the experiment's options.

    Example:
        >>> seeds_scope({"population": {"seed": 3}})
        'All seeds share the same clients (population.seed = 3). The intervals do not account for other clients.'
        >>> seeds_scope({"partition": {"name": "natural", "seed": 0}, "population": {"participants": ["north"]}})
        'All seeds share the same partition and participants (partition.seed = 0, population.participants lists ...'
    """
    shared = {}
    for path, words in SHARED_BY_SEEDS.items():
        table = config.get(path[0])
        if isinstance(table, Mapping) and table.get("seed") is not None:
            shared[words] = f"{'.'.join(path)} = {table['seed']}"
    population, partition, model = (config.get(key) or {} for key in ("population", "partition", "model"))
    if "clients" not in shared and isinstance(partition, Mapping) and partition.get("name") == "natural":
        shared = {"partition": "natural", **shared}
    if "clients" not in shared and isinstance(population, Mapping) and isinstance(population.get("participants"), list):
        shared = {**shared, "participants": "population.participants lists them"}
    if isinstance(model, Mapping) and model.get("keep_weights"):
        shared["initial model"] = "model.keep_weights = true"
    if not shared:
        return "Each seed draws a new partition, participants, initial model and batches."
    shared_text = f"{join_words([*shared])} ({', '.join(shared.values())})"
    alternatives = " or ".join(word + "s" * (not word.endswith("s")) for word in shared)
    return f"All seeds share the same {shared_text}. The intervals do not account for other {alternatives}."


def join_words(words: Sequence[str]) -> str:
    """Return words joined by commas and "and"."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


# ---- Methods that lead, printed in bold
# The best method is chosen by the same numbers that are tested, and some method always leads by chance. The family is
# therefore all pairs, not the comparisons of the best method with the others.


@dataclass(frozen=True)
class Leaders:
    """Methods that are each better than all methods outside the group, without a conclusion within the group.

    Often there are no leaders. The second method may be neither worse than the first nor better than the third.
    """

    methods: tuple[str, ...]
    pairs: tuple[Difference, ...]  # all, the one with the better mean first

    @property
    def tested(self) -> int:
        """Number of tested pairs, for which p-values are adjusted."""
        return sum(pair.judged.p is not None for pair in self.pairs)


NO_LEADERS = Leaders((), ())


def leaders(comparison: RunSet, when: When) -> Leaders:
    """Return the methods that lead in the primary score."""
    value = _primary_value(comparison, when)
    return leaders_by(comparison, comparison.methods, value, lower_is_better=comparison.score.lower_is_better)


def leaders_by(
    comparison: RunSet, methods: Sequence[str], value: Callable[[RunData], float], *, lower_is_better: bool
) -> Leaders:
    """Return the methods that lead in a number that `value` computes for each run.

    The runs of a pair have the same seed and clients. All pairs are tested as one family according to the comparison's
    plan.
    """
    values = {method: _values(comparison, method, value) for method in methods}
    means = {m: float(np.mean([number for _, number in by_seed.values()])) for m, by_seed in values.items() if by_seed}
    ranked = sorted(
        (m for m in means if np.isfinite(means[m])), key=lambda m: means[m] if lower_is_better else -means[m]
    )
    pairs = list(combinations(ranked, 2))
    pair_differences = [_differences(values[first], values[second]) for first, second in pairs]
    judged = judge_all(comparison, pair_differences, lower_is_better=lower_is_better)
    better = {pair for pair, judgement in zip(pairs, judged, strict=True) if judgement.conclusion == "better"}
    leading: tuple[str, ...] = ()
    for size in range(1, len(ranked)):
        among, over = combinations(ranked[:size], 2), product(ranked[:size], ranked[size:])
        if better.issuperset(over) and better.isdisjoint(among):
            leading = tuple(ranked[:size])
    return Leaders(leading, tuple(Difference(*pair, judgement) for pair, judgement in zip(pairs, judged, strict=True)))


# ---- Summary of each method

PROBABILITIES = {"auroc": "auroc", "log_loss": "loss"}
"""Scores for two classes: name in summaries and records -> end of the stored column."""
UNTESTED = PairedTest(0, None)


@dataclass(frozen=True)
class MethodSummary:
    """Numbers of one method. Accuracies and gaps are fractions or errors. Spreads are over seeds unless noted."""

    method: str
    seeds: int  # runs that count
    seeds_planned: int
    at: Mapping[str, Spread]  # each of `QUANTITIES` and of `probabilities`
    gap_over_clients: tuple[float, float] | None  # 95% CI over clients, limits averaged over seeds
    to_target: Mapping[str, Spread]  # each of `TARGET_COSTS`, over the seeds that reached it
    is_baseline: bool = False
    reached: int = 0  # seeds that reached the target accuracy
    difference: PairedTest = UNTESTED  # primary accuracy minus the baseline's, seed by seed


def summarize(comparison: RunSet, contrasts: Sequence[Difference], when: When = "last") -> tuple[MethodSummary, ...]:
    """Return one row per method, in the order of the comparison.

    Args:
        contrasts: Planned differences at the same rounds.
        when: ``"last"``: the last evaluated round, or the mean over the last `last_rounds` rounds of the plan.
            ``"best"``: the best round of each run according to participants' held-out loss.
    """
    to_baseline = {contrast.first: contrast.judged for contrast in contrasts if contrast.second == comparison.baseline}
    return tuple(_summarize_method(comparison, method, when, to_baseline) for method in comparison.methods)


def _summarize_method(
    comparison: RunSet, method: str, when: When, to_baseline: Mapping[str, PairedTest]
) -> MethodSummary:
    runs, last = comparison.counted(method), comparison.plan.last_rounds
    planned = sum(run.method == method for run in comparison.runs) + sum(m == method for m, _ in comparison.absent)
    hits = [(run, hit) for run in runs if (hit := target_row(run, comparison)) is not None]
    limits = [[mean_of(run, f"participation_gap_{side}", when, last) for side in ("low", "high")] for run in runs]
    none = PairedTest(0, None, note="the baseline" if method == comparison.baseline else "not a planned comparison")
    scores = {name: [_value(run, of, comparison.score, when, last) for run in runs] for name, of in QUANTITIES.items()}
    scores |= {name: [mean_of(run, end, when, last) for run in runs] for name, end in probabilities(comparison).items()}
    return MethodSummary(
        method=method,
        is_baseline=method == comparison.baseline,
        seeds=len(runs),
        seeds_planned=planned,
        at={name: spread(values) for name, values in scores.items()},
        gap_over_clients=_mean_limits(limits),
        reached=len(hits),
        to_target={
            name: spread([run.column(QUANTITIES[name].column)[row] / QUANTITIES[name].scale for run, row in hits])
            for name in TARGET_COSTS
        },
        difference=to_baseline.get(method, none),
    )


def _mean_limits(limits: Sequence[Sequence[float]]) -> tuple[float, float] | None:
    """Return the mean lower and upper limit of intervals; None without any, or if one has none."""
    low, high = np.mean(limits, axis=0) if limits else (np.nan, np.nan)
    return (float(low), float(high)) if np.isfinite([low, high]).all() else None


def _value(run: RunData, quantity: Quantity, score: MainScore, when: When, last_rounds: int) -> float:
    """Return a quantity at the rounds of `when`; one that adds up over rounds, at the last of them."""
    if quantity.unit in ("%", "points"):
        return mean_of(run, quantity.column_by(score), when, last_rounds)
    return float(run.column(quantity.column)[rows_of(run, when, last_rounds)[-1]]) / quantity.scale


def probabilities(comparison: RunSet) -> dict[str, str]:
    """Return the columns that score probabilities of two classes, on the primary population."""
    two = any(run.partition.num_classes == 2 for run in comparison.all_counted)
    where = comparison.primary.partition("_")[0]
    return {name: f"{where}_{ending}" for name, ending in PROBABILITIES.items()} if two else {}


def primary_of(row: MethodSummary, comparison: RunSet) -> Spread:
    """Return the primary score of a method."""
    return row.at[POPULATION[comparison.primary].name]


# ---- Baselines: majority class or mean target, and one pooled linear model

TITLES = {
    ("majority", True): "majority class",
    ("mean", False): "mean of the targets",
    ("pooled", True): "pooled logistic regression",
    ("pooled", False): "pooled ridge regression",
}
"""(Baseline, whether targets are classes) -> name of the baseline in tables."""


def baselines_of(comparison: RunSet) -> tuple[BaselinesRecord, ...]:
    """Return the baselines of each federation, which are the same for all of its runs."""
    by_federation = {
        (run.partition.hash, str(run.baselines.columns)): run.baselines
        for run in comparison.all_counted
        if run.baselines is not None
    }
    return tuple(by_federation.values())


def baseline_title(name: str, comparison: RunSet) -> str:
    """Return the name of a baseline in tables."""
    return TITLES[name, comparison.score.percent]


def summarize_baselines(comparison: RunSet) -> tuple[MethodSummary, ...]:
    """Return a row for each baseline, summarized over federations: one per seed, or one that all seeds share."""
    records = baselines_of(comparison)
    names = dict.fromkeys(name for record in records for name in record.columns)
    scores = {quantity.name: quantity.column_by(comparison.score) for quantity in QUANTITIES.values()}
    scores |= probabilities(comparison)
    summaries = []
    for name in names:
        columns = [record.columns[name] for record in records if name in record.columns]
        limits = [[of.get(f"participation_gap_{side}", np.nan) for side in ("low", "high")] for of in columns]
        summaries.append(
            MethodSummary(
                method=baseline_title(name, comparison),
                seeds=len(columns),
                seeds_planned=len(columns),
                at={score: spread([of.get(column, np.nan) for of in columns]) for score, column in scores.items()},
                gap_over_clients=_mean_limits(limits),
                to_target=dict.fromkeys(TARGET_COSTS, spread([])),
            )
        )
    return tuple(summaries)
