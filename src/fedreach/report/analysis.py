"""Analysis of a comparison: methods, planned tests, leaders."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any, Literal

import numpy as np

from fedreach._util.arrays import Ints
from fedreach.evaluation.scores import ACCURACY, MAE, MainScore
from fedreach.evaluation.statistics import Judgement, Spread, judge, spread
from fedreach.report.numbers import Comparison, Run
from fedreach.runs.schema import BaselinesRecord

# --- The numbers of a method, each declared once: where it is read, what it is called, and how it is shown

WIDE = 150  # width of a terminal from which a column is shown that is not needed at first sight


@dataclass(frozen=True)
class Quantity:
    """One number of a method; tables, CSV, JSON, page and figures take name, words and unit from here.

    Columns and units are those of accuracy; where models are judged by another score, it stands in its place.

    `unit` is "%" (a fraction told in per cent), "points" (a difference of fractions), "MB", "clients", "seconds" or
    "joules" (in the unit that fits the whole column), or nothing. `words` stand for it in a sentence.
    """

    name: str  # in summaries and records
    column: str  # of the stored rounds
    head: str  # of its column in tables
    unit: str = ""
    words: str = ""
    scale: float = 1.0  # what the rows hold of it to make one
    from_width: int = WIDE  # of the terminal, at which its column is shown

    def column_by(self, score: MainScore) -> str:
        """Return its column where models are judged by this score."""
        return self.column.replace(ACCURACY.name, score.name)

    @property
    def is_radio(self) -> bool:
        """Whether it is known of simulated radio only."""
        return self.unit in ("seconds", "joules")


QUANTITIES = {
    quantity.name: quantity
    for quantity in (
        Quantity("round", "round", "rounds"),
        Quantity("participants", "id_accuracy", "participants", "%", "participants' held-out data", from_width=100),
        Quantity("unseen", "unseen_accuracy", "unseen clients", "%", "unseen clients", from_width=0),
        Quantity("test", "test_accuracy", "test set", "%", "the test set"),
        Quantity("gap", "participation_gap", "gap", "points", from_width=0),
        Quantity("participants_worst_decile", "id_accuracy_worst_decile", "worst decile, participants", "%"),
        Quantity("unseen_worst_decile", "unseen_accuracy_worst_decile", "worst decile, unseen", "%"),
        Quantity("megabytes", "bytes_total", "sent", "MB", scale=1e6),  # 10^6 bytes, down and up, probes included
        # Simulated, of all rounds so far, probes included.
        Quantity("seconds", "seconds_total", "time", "seconds", "simulated time", 1.0, 130),
        Quantity("joules", "joules_total", "energy", "joules", "energy", 1.0, 130),
    )
}
FURTHER = {
    quantity.name: quantity
    for quantity in (
        Quantity("participants", "id_{}", "participants", from_width=0),
        Quantity("unseen", "unseen_{}", "unseen clients", from_width=0),
        Quantity("test", "test_{}", "test set", from_width=110),
        Quantity("participants_worst_decile", "id_{}_worst_decile", "worst decile, participants", from_width=130),
        Quantity("unseen_worst_decile", "unseen_{}_worst_decile", "worst decile, unseen", from_width=100),
        Quantity("participants_pooled", "id_{}_pooled", "pooled, participants", from_width=130),
        Quantity("unseen_pooled", "unseen_{}_pooled", "pooled, unseen", from_width=100),
        Quantity("participants_left_out", "id_{}_undefined", "left out, participants", "clients", from_width=120),
        Quantity("unseen_left_out", "unseen_{}_undefined", "left out, unseen", "clients", from_width=90),
    )
}
"""Those of a metric beside accuracy and loss; its name stands in the column."""

SPENT = ("round", "megabytes", "seconds", "joules")  # what it may take to reach the target accuracy
RADIO = tuple(quantity for quantity in QUANTITIES.values() if quantity.is_radio)
POPULATION = {
    quantity.column_by(score): quantity
    for score in (ACCURACY, MAE)
    for quantity in QUANTITIES.values()
    if quantity.column.endswith(f"_{ACCURACY.name}")
}
"""What a comparison may be judged by, by its column: accuracies, or errors."""


# -------------------- Which of a run's evaluated rounds a number is of

When = Literal["last", "best"]


def rows_of(run: Run, when: When, last_rounds: int = 1) -> Ints:
    """Return the last evaluated rounds' rows, so many, or that of the best round on participants' held-out loss.

    The latter is a fair choice: neither the test set nor unseen clients have a say in it.
    """
    evaluated = run.evaluated
    if when == "last":
        return evaluated[-last_rounds:]
    losses = run.column("id_loss")
    if run.best_round is None:
        known = evaluated[np.isfinite(losses[evaluated])]
        return known[[np.argmin(losses[known])]] if len(known) else evaluated[-1:]
    return evaluated[[np.argmin(np.abs(run.rounds["round"][evaluated] - run.best_round))]]


def mean_of(run: Run, column: str, when: When, last_rounds: int = 1) -> float:
    """Return the mean of a column over `rows_of`; nan where one of them has no number."""
    return float(run.column(column)[rows_of(run, when, last_rounds)].mean())


def target_row(run: Run, comparison: Comparison) -> int | None:
    """Return the first row whose primary accuracy is the target or more; None if there is none."""
    if comparison.target_accuracy is None:
        return None
    rows = np.flatnonzero(comparison.score.reached(run.column(comparison.primary), comparison.target_accuracy))
    return int(rows[0]) if len(rows) else None


# -------------------- Metrics beside accuracy and loss, where an experiment asked for any: what each method reached

COLUMN = re.compile(
    r"(id|unseen|test)_(?!(accuracy|mae)(_|$)|loss$)(?P<name>[a-z][a-z0-9_]*?)(_worst_decile|_pooled|_undefined)?"
)
"""Of such a metric, whose name does not end as columns do; see `fedreach.evaluation.evaluator.Evaluator`."""


@dataclass(frozen=True)
class MetricSummary:
    """What one method reached in one metric."""

    method: str
    metric: str
    at: Mapping[str, Spread]  # each of `FURTHER` -> over seeds


def metrics_of(comparison: Comparison) -> tuple[str, ...]:
    """Return the names of the metrics that any counted run has, in the order in which its rows do."""
    columns = (column for run in comparison.all_counted for column in run.rounds)
    return tuple(dict.fromkeys(found["name"] for column in columns if (found := COLUMN.fullmatch(column))))


def has_named_metrics(comparison: Comparison) -> bool:
    """Say whether anybody named a metric; AUROC of two classes is there without, and stands in the main table."""
    configs = (run.config.get("evaluation", {}).get("metrics", ()) for run in comparison.all_counted)
    named = {metric["name"] for metrics in configs for metric in metrics}
    return any(metric != "auroc" or metric in named for metric in metrics_of(comparison))


def summarize_metrics(comparison: Comparison, when: When = "last") -> tuple[MetricSummary, ...]:
    """Return a row for each metric and method, metric by metric; `when` is as in `summarize`."""

    def over_seeds(method: str, metric: str, quantity: Quantity) -> Spread:
        column, last = quantity.column.format(metric), comparison.plan.last_rounds
        value = _left_out if quantity.unit == "clients" else mean_of
        return spread([value(run, column, when, last) for run in comparison.counted(method)])

    return tuple(
        MetricSummary(method, metric, {name: over_seeds(method, metric, each) for name, each in FURTHER.items()})
        for metric in metrics_of(comparison)
        for method in comparison.methods
    )


def _left_out(run: Run, column: str, when: When, last_rounds: int) -> float:
    """Return for how many clients a metric is undefined: none where this is not written, but the metric is."""
    rows = rows_of(run, when, last_rounds)
    undefined, defined = run.column(column)[rows], run.column(column.removesuffix("_undefined"))[rows]
    return float(np.where(np.isfinite(undefined), undefined, np.where(np.isfinite(defined), 0.0, np.nan)).mean())


# -------------------- The declared differences between methods, seed by seed, judged as one family

LOOKED = "seeds were added after results could be seen, which no correction makes good"


@dataclass(frozen=True)
class Difference:
    """One method minus another, on what methods are judged by."""

    first: str
    second: str
    judged: Judgement


def contrasts(comparison: Comparison, when: When) -> tuple[Difference, ...]:
    """Return every difference of the comparison's plan, at the last rounds or the best one."""
    pairs = comparison.plan.pairs(comparison.methods, comparison.baseline)
    found = [differences(comparison, first, second, when) for first, second in pairs]
    formed = [{} if isinstance(each, str) else each for each in found]
    judged = judge_all(comparison, formed, lower_is_better=comparison.score.lower_is_better)
    return tuple(
        Difference(*pair, Judgement(0, None, note=each) if isinstance(each, str) else judgement)
        for pair, each, judgement in zip(pairs, found, judged, strict=True)
    )


def differences(
    comparison: Comparison, first: str, second: str, when: When, *, of: Collection[int] | None = None
) -> dict[int, float] | str:
    """Return first minus second by seed, of the seeds `of` or all; or why no pair can be formed."""
    name, last = comparison.primary, comparison.plan.last_rounds
    others = {run.seed: run for run in comparison.counted(second)}
    runs = [run for run in comparison.counted(first) if of is None or run.seed in of]
    pairs = [(run, others[run.seed]) for run in runs if run.seed in others]
    # Only runs on the same clients are a pair.
    same = [(a, b) for a, b in pairs if a.partition.hash == b.partition.hash]
    if not same:
        other = "the baseline" if second == comparison.baseline else second
        return f"other clients than {other}'s" if pairs else f"no seed in common with {other}"
    return {a.seed: mean_of(a, name, when, last) - mean_of(b, name, when, last) for a, b in same}


def judge_all(
    comparison: Comparison,
    found: Sequence[Mapping[int, float]],
    *,
    within_margin: bool = True,
    lower_is_better: bool = False,
) -> tuple[Judgement, ...]:
    """Judge a family of differences as the comparison's plan says.

    Where seeds were added after results could be seen there is no verdict: who goes on until a difference is
    significant will find one.
    """
    plan = comparison.plan
    judged = judge(
        found,
        correction=plan.correction,
        margin=comparison.margin if within_margin else None,
        pilot=comparison.pilot,
        lower_is_better=lower_is_better,
    )
    if not comparison.looks:
        return judged
    return tuple(
        replace(each, verdict="not decided", seeds_needed=None, note=LOOKED) if each.verdict else each
        for each in judged
    )


def looked(comparison: Comparison) -> str:
    """Return why there is no verdict."""
    return f"{LOOKED} ({', then '.join(map(str, (*comparison.looks, len(comparison.seeds))))})"


PINNED = {  # option -> what all seeds share where it is set
    ("population", "seed"): "clients",
    ("partition", "seed"): "partition",
    ("model", "seed"): "initial model",
}


def what_seeds_draw(config: Mapping[str, Any]) -> str:
    """Return what an interval over seeds is over, from the experiment's options.

    Example:
        >>> what_seeds_draw({"population": {"seed": 3}})
        'All seeds share the same clients (population.seed = 3): intervals say nothing of others.'
        >>> what_seeds_draw({"partition": {"name": "natural", "seed": 0}, "population": {"participants": ["north"]}})
        'All seeds share the same partition and participants (partition.seed = 0, they are named): intervals say ...'
    """
    shared = {}
    for path, words in PINNED.items():
        table = config.get(path[0])
        if isinstance(table, Mapping) and table.get("seed") is not None:
            shared[words] = f"{'.'.join(path)} = {table['seed']}"
    population, partition, model = (config.get(key) or {} for key in ("population", "partition", "model"))
    if "clients" not in shared and isinstance(partition, Mapping) and partition.get("name") == "natural":
        shared = {"partition": "natural", **shared}
    if "clients" not in shared and isinstance(population, Mapping) and isinstance(population.get("participants"), list):
        shared = {**shared, "participants": "they are named"}
    if isinstance(model, Mapping) and model.get("keep_weights"):
        shared["initial model"] = "its weights are kept"
    if not shared:
        return "Every seed draws partition, participants, initial model and batches anew."
    said = f"{_joined([*shared])} ({', '.join(shared.values())})"
    return f"All seeds share the same {said}: intervals say nothing of others."


def _joined(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


# -------------------- Which methods lead, where that is decided: what a table may print in bold
# Which method is best is read off the same numbers that are tested, so that the comparisons of this best one with the
# others are no family of their own: some method always leads by chance. All pairs are the family.


@dataclass(frozen=True)
class Leaders:
    """The methods each of which is better than all others but these, between whom nothing is decided; perhaps none.

    Often it is none: the second is not decided to be worse than the first, and not better than the third.
    """

    methods: tuple[str, ...]
    pairs: tuple[Difference, ...]  # all, the one with the better mean first

    @property
    def tested(self) -> int:
        """How many pairs could be tested, and were corrected for."""
        return sum(pair.judged.p is not None for pair in self.pairs)


NOBODY = Leaders((), ())


def leaders(comparison: Comparison, when: When) -> Leaders:
    """Return who leads on what methods are judged by."""
    name, last = comparison.primary, comparison.plan.last_rounds
    return leaders_by(
        comparison,
        comparison.methods,
        lambda run: mean_of(run, name, when, last),
        lower_is_better=comparison.score.lower_is_better,
    )


def leaders_by(
    comparison: Comparison, methods: Sequence[str], value: Callable[[Run], float], *, lower_is_better: bool
) -> Leaders:
    """Return who of some methods leads, by a number of each run.

    Pairs are formed seed by seed, on the same clients, and judged as the comparison's plan says, all together.
    """
    values = {
        method: {run.seed: (run.partition.hash, value(run)) for run in comparison.counted(method)} for method in methods
    }
    means = {m: float(np.mean([number for _, number in found.values()])) for m, found in values.items() if found}
    ranked = sorted(
        (m for m in means if np.isfinite(means[m])), key=lambda m: means[m] if lower_is_better else -means[m]
    )
    pairs = list(combinations(ranked, 2))
    found = [_differences(values[first], values[second]) for first, second in pairs]
    judged = judge_all(comparison, found, lower_is_better=lower_is_better)
    better = {pair for pair, each in zip(pairs, judged, strict=True) if each.verdict == "better"}
    leading: tuple[str, ...] = ()
    for many in range(1, len(ranked)):
        among, over = combinations(ranked[:many], 2), product(ranked[:many], ranked[many:])
        if better.issuperset(over) and better.isdisjoint(among):
            leading = tuple(ranked[:many])
    return Leaders(leading, tuple(Difference(*pair, each) for pair, each in zip(pairs, judged, strict=True)))


def _differences(first: dict[int, tuple[str, float]], second: dict[int, tuple[str, float]]) -> dict[int, float]:
    return {
        seed: number - second[seed][1]
        for seed, (clients, number) in first.items()
        if seed in second and second[seed][0] == clients
    }


# --- One row of numbers per method, at the last round or at the best round on participants' held-out loss

PROBABILITIES = {"auroc": "auroc", "log_loss": "loss"}
"""Of two classes: name in summaries and records -> end of the stored column."""


@dataclass(frozen=True)
class MethodSummary:
    """What one method reached. Accuracies and gaps are fractions, or errors; spreads are over seeds unless said."""

    method: str
    is_baseline: bool
    seeds: int  # runs the numbers are from
    seeds_planned: int
    at: Mapping[str, Spread]  # each of `QUANTITIES` and of `probabilities`
    gap_over_clients: tuple[float, float] | None  # 95 % interval over clients, limits averaged over seeds
    reached: int  # seeds that reached the target accuracy
    to_target: Mapping[str, Spread]  # each of `SPENT`, over the seeds that reached it
    difference: Judgement  # primary accuracy minus the baseline's, seed by seed


def summarize(
    comparison: Comparison, contrasts: Sequence[Difference], when: When = "last"
) -> tuple[MethodSummary, ...]:
    """Return one row per method, in the comparison's order.

    Args:
        contrasts: Of the comparison, at the same rounds.
        when: ``"last"``: at the last evaluated round, or the mean of so many as the plan says. ``"best"``: at each
            run's best round on participants' held-out loss.
    """
    to_baseline = {each.first: each.judged for each in contrasts if each.second == comparison.baseline}
    return tuple(_summarize_method(comparison, method, when, to_baseline) for method in comparison.methods)


def _summarize_method(
    comparison: Comparison, method: str, when: When, to_baseline: Mapping[str, Judgement]
) -> MethodSummary:
    runs, last = comparison.counted(method), comparison.plan.last_rounds
    planned = sum(run.method == method for run in comparison.runs) + sum(m == method for m, _ in comparison.absent)
    hits = [(run, hit) for run in runs if (hit := target_row(run, comparison)) is not None]
    limits = [[mean_of(run, f"participation_gap_{side}", when, last) for side in ("low", "high")] for run in runs]
    low, high = np.mean(limits, axis=0) if limits else (np.nan, np.nan)
    none = Judgement(0, None, note="the baseline" if method == comparison.baseline else "not among the contrasts")
    return MethodSummary(
        method=method,
        is_baseline=method == comparison.baseline,
        seeds=len(runs),
        seeds_planned=planned,
        at={
            name: spread([_value(run, quantity, comparison.score, when, last) for run in runs])
            for name, quantity in QUANTITIES.items()
        }
        | {
            name: spread([mean_of(run, column, when, last) for run in runs])
            for name, column in probabilities(comparison).items()
        },
        gap_over_clients=(float(low), float(high)) if np.isfinite([low, high]).all() else None,
        reached=len(hits),
        to_target={name: _spent(hits, QUANTITIES[name]) for name in SPENT},
        difference=to_baseline.get(method, none),
    )


def _value(run: Run, quantity: Quantity, score: MainScore, when: When, last_rounds: int) -> float:
    """Return a quantity at the rounds that are looked at; what adds up over the rounds, at the last of them."""
    if quantity.unit in ("%", "points"):
        return mean_of(run, quantity.column_by(score), when, last_rounds)
    return float(run.column(quantity.column)[rows_of(run, when, last_rounds)[-1]]) / quantity.scale


def _spent(hits: Sequence[tuple[Run, int]], quantity: Quantity) -> Spread:
    return spread([run.column(quantity.column)[row] / quantity.scale for run, row in hits])


def probabilities(comparison: Comparison) -> dict[str, str]:
    """Return the columns that say how good probabilities of two classes are, on whom methods are judged by."""
    two = any(run.partition.num_classes == 2 for run in comparison.all_counted)
    where = comparison.primary.partition("_")[0]
    return {name: f"{where}_{ending}" for name, ending in PROBABILITIES.items()} if two else {}


def primary_of(row: MethodSummary, comparison: Comparison) -> Spread:
    """Return the accuracy that methods are judged by."""
    return row.at[POPULATION[comparison.primary].name]


# --- Baselines as rows beside those of methods: the majority class or the mean target, and one pooled linear model

TITLES = {
    ("majority", True): "majority class",
    ("mean", False): "mean of the targets",
    ("pooled", True): "pooled logistic regression",
    ("pooled", False): "pooled ridge regression",
}
"""Name of a baseline, and whether targets are classes -> what it is called."""


def baselines_of(comparison: Comparison) -> tuple[BaselinesRecord, ...]:
    """Return the baselines of each federation, which the runs of all methods on it share."""
    found = {
        (run.partition.hash, str(run.baselines.columns)): run.baselines
        for run in comparison.all_counted
        if run.baselines is not None
    }
    return tuple(found.values())


def title(name: str, comparison: Comparison) -> str:
    """Return what a baseline is called."""
    return TITLES[name, comparison.score.percent]


def summarize_baselines(comparison: Comparison) -> tuple[MethodSummary, ...]:
    """Return a row for each baseline, over federations: as many as seeds, or one where all seeds share it."""
    records = baselines_of(comparison)
    names = dict.fromkeys(name for record in records for name in record.columns)
    return tuple(
        _summary(comparison, name, [record.columns[name] for record in records if name in record.columns])
        for name in names
    )


def _summary(comparison: Comparison, name: str, found: list[Mapping[str, float]]) -> MethodSummary:
    def over(column: str) -> list[float]:
        return [columns.get(column, np.nan) for columns in found]

    scores = {each.name: each.column_by(comparison.score) for each in QUANTITIES.values()}
    low, high = (float(np.mean(over(f"participation_gap_{side}"))) for side in ("low", "high"))
    return MethodSummary(
        method=title(name, comparison),
        is_baseline=False,
        seeds=len(found),
        seeds_planned=len(found),
        at={quantity: spread(over(column)) for quantity, column in scores.items()}
        | {quantity: spread(over(column)) for quantity, column in probabilities(comparison).items()},
        gap_over_clients=(low, high) if np.isfinite([low, high]).all() else None,
        reached=0,
        to_target={quantity: spread([]) for quantity in SPENT},
        difference=Judgement(0, None),
    )
