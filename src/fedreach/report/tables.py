"""Tables of a comparison as text cells, with their notes and captions."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fedreach._util.tables import count_noun
from fedreach.evaluation.scores import ACCURACY, MAE, MainScore
from fedreach.evaluation.statistics import LEVEL, PairedTest, Spread, spread
from fedreach.report.analysis import (
    METRIC_QUANTITIES,
    POPULATION,
    QUANTITIES,
    TARGET_COSTS,
    Difference,
    Leaders,
    MethodSummary,
    MetricSummary,
    Quantity,
    When,
    baselines_of,
    no_conclusion_reason,
    probabilities,
    seeds_scope,
)
from fedreach.report.numbers import (
    ABSENT,
    CAPTIONS,
    RunSet,
    Unit,
    conclusion,
    detectable,
    estimate,
    interval,
    number,
    p_text,
    percent,
    plus_minus,
    points,
    unit_of,
)
from fedreach.runs.schema import TuningRecord

if TYPE_CHECKING:
    from fedreach.report.overview import Analysis


# ---- Sentences for notes and captions

ADJUSTMENTS = {"holm": "Holm", "max_t": "max-t"}


def join_sentences(*sentences: str) -> str:
    """Return the sentences that are not empty, joined by spaces."""
    return " ".join(filter(None, sentences))


def seeds_text(comparison: RunSet) -> str:
    """Return the number of seeds of the methods, such as "20 seeds" or "4 to 5 seeds"."""
    counts = [len(runs) for method in comparison.methods if (runs := comparison.counted(method))] or [0]
    low, high = min(counts), max(counts)
    return f"{low} to {high} seeds" if low < high else count_noun(high, "seed")


def seeds_sentence(comparison: RunSet) -> str:
    """Return a sentence on the number of seeds."""
    if not comparison.all_counted:
        return "No run has a result yet."
    planned = len(comparison.seeds)
    low = min(len(runs) for method in comparison.methods if (runs := comparison.counted(method)))
    planned_text = f" of {planned} planned" if low < planned else ""
    return f"{seeds_text(comparison).capitalize()}{planned_text}{'; no run has finished' * comparison.provisional}."


TESTS = {"ranks": "signed-rank test", "t": "paired t-test"}
ASSUMPTIONS = {
    ("ranks", "ranks"): "about the typical difference",
    ("ranks", "t"): "assumes no strong skew",
    ("t", "t"): "assumes normal differences",
}
"""Test of the plan, and the test of a difference -> what a conclusion is about, or what it assumes."""


def test_words(comparison: RunSet, family: Sequence[PairedTest]) -> str:
    """Return the tests of a family of differences and their assumptions."""
    used = [name for name in TESTS if any(judged.test == name for judged in family)]
    return " or ".join(f"{TESTS[name]} over seeds, {ASSUMPTIONS[comparison.plan.test, name]}" for name in used)


def star_sentence(comparison: RunSet, family: Sequence[PairedTest]) -> str:
    """Return a sentence on the star of significant differences; empty if no difference was tested."""
    tests = sum(judged.p is not None for judged in family)
    if not tests:
        return ""
    if comparison.looks:
        return f"No conclusion: {no_conclusion_reason(comparison)}."
    if tests == 1:
        return f"* p < 0.05 ({test_words(comparison, family)})."
    return f"* adjusted p < 0.05 ({test_words(comparison, family)}; {tests} comparisons)."


def significance_sentence(comparison: RunSet, family: Sequence[PairedTest]) -> str:
    """Return `star_sentence`, or, if no difference of a table with one family is significant, a sentence on this."""
    sentence = star_sentence(comparison, family)
    has_star = any(judged.conclusion in ("better", "worse") for judged in family)
    return sentence if has_star or not sentence.startswith("*") else f"No difference has {sentence.removeprefix('* ')}"


def adjusted_unit(comparison: RunSet, family: Sequence[PairedTest]) -> str:
    """Return the description of the brackets in a column of differences."""
    several = sum(judged.p is not None for judged in family) > 1
    return f"[95% CI{f', {ADJUSTMENTS[comparison.plan.correction]}-adj.' * several}]"


def tests_sentence(comparison: RunSet, family: Sequence[PairedTest]) -> str:
    """Return sentences on how a family of differences was tested; empty if no difference was tested."""
    tests = sum(judged.p is not None for judged in family)
    if not tests:
        return ""
    plan, adjusted = comparison.plan, ""
    if tests > 1:
        adjusted = f" CI and p are adjusted for {tests} comparisons ({ADJUSTMENTS[plan.correction]})."
        if plan.correction == "holm":
            adjusted += f" Each CI has the level of its Holm step, at most {100 * (1 - LEVEL / tests):.4g}%."
    seeds = max(judged.count for judged in family)
    typical = ""
    if any(judged.test == "ranks" for judged in family):
        typical = " Typical difference: pseudo-median over seeds."
    typical += f" {seeds} seeds can miss a collapse that occurs in {100 * (1 - LEVEL ** (1 / seeds)):.0f}% of runs."
    margin = "" if comparison.margin is None else f" Equivalent: within ±{plan.margin_points:g} points (TOST)."
    return (
        "Differences are between runs with the same seed and clients "
        f"({test_words(comparison, family)}).{adjusted}{typical} MDE: smallest true difference detected with 80% "
        f"power.{margin} Inconclusive: in parentheses, the seeds needed if the observed difference is the true one, "
        "and their number at the limits of the 95% CIs."
    )


def bold_sentence(comparison: RunSet, leaders: Leaders, where: str) -> str:
    """Return a sentence on the meaning of bold in a table, or why no cell is bold; empty if no pair was tested."""
    if not leaders.tested:
        return ""
    adjusted = f", {ADJUSTMENTS[comparison.plan.correction]}-adjusted" if leaders.tested > 1 else ""
    name = test_words(comparison, [pair.judged for pair in leaders.pairs])
    tests = f"{f'all {leaders.tested} pairs' if leaders.tested > 1 else 'the pair'}, {name}{adjusted}"
    if not leaders.methods:
        return f"No method is bold, because no method is significantly better than all other methods {where} ({tests})."
    if len(leaders.methods) == 1:
        return f"Bold: significantly better than every other method {where} ({tests})."
    return (
        f"Bold: significantly better {where} than every method that is not bold. Differences between bold methods are "
        f"inconclusive ({tests})."
    )


def refit_sentence(rounds: Sequence[int]) -> str:
    """Return a sentence on refitted models with their numbers of rounds; empty if no model was refitted.

    Example:
        >>> refit_sentence([12])
        'The exported model was trained on all rows for 12 rounds; the scores are from the model before this training.'
        >>> refit_sentence([12, 5, 9])
        'The exported models were trained on all rows for 5 to 12 rounds; the scores are from the models before ...'
    """
    if not rounds:
        return ""
    low, high = min(rounds), max(rounds)
    rounds_text = count_noun(high, "round") if low == high else f"{low} to {high} rounds"
    models = "model was" if len(rounds) == 1 else "models were"
    before = "model" if len(rounds) == 1 else "models"
    return (
        f"The exported {models} trained on all rows for {rounds_text}; the scores are from the {before} before this "
        "training."
    )


def provenance_sentence(comparison: RunSet) -> str:
    """Return a sentence on the software and the commit with which the runs were computed.

    The commit is the commit of the checkout with the experiment file. "changed" marks uncommitted changes.
    """
    versions = {str(run.environment.get("fedreach", "")) for run in comparison.runs} - {""}
    commits = {
        f"{str(run.git['revision'])[:12]}{', changed' if run.git.get('changed') else ''}"
        for run in comparison.runs
        if run.git and run.git.get("revision")
    }
    at = f", commit {' and '.join(sorted(commits))}" if commits else ""
    return f"Made by fedreach report (FedReach {' and '.join(sorted(versions))}{at})."


# ---- The comparison table, written by `formats` and `latex`

MAX_NUMERIC = 6  # numeric columns of the main view of a table
NAMES = -1  # rank of a column that names the rows, in addition to the first one


@dataclass(frozen=True)
class Table:
    """A table of text cells."""

    caption: str  # what is measured, on whom, unit, spread
    header: tuple[str, ...]
    units: tuple[str, ...]  # below each header
    rows: tuple[tuple[str, ...], ...]
    main: tuple[int, ...]  # columns of the main view; the others are folded
    note: str  # at most two lines
    name: str = "table"  # for labels
    details: str = ""  # how the numbers were computed, for files and a paper
    stated: str = ""  # sentences for a caption in a paper only
    bold: frozenset[tuple[int, int]] = frozenset()  # (row, column) of bold cells, in a paper


S = TypeVar("S")
NOTHING = spread([])


@dataclass(frozen=True)
class Column(Generic[S]):
    """A column of a table, and the text of its cell in the row of a summary."""

    head: str
    unit: str
    text: Callable[[S], str]
    main: int = 0  # rank among the columns of the main view, 1 first; 0: not among them; `NAMES`


def table_of(
    columns: Sequence[Column[S]],
    summaries: Sequence[S],
    *,
    bold: Callable[[S, str], bool] = lambda summary, head: False,
    **texts: str,
) -> Table:
    """Return a table with a row for each summary, without empty columns.

    Args:
        columns: Columns. The first column contains the names of the rows.
        summaries: Summaries, one for each row.
        bold: Function that returns whether the cell of a summary below a header is bold in a paper.
        **texts: Caption, note, name and further fields of the table.
    """
    cells = [[column.text(summary) for column in columns] for summary in summaries]
    filled = [j for j in range(len(columns)) if j == 0 or any(row[j] != ABSENT for row in cells)]
    columns_kept = [columns[j] for j in filled]
    header = tuple(column.head for column in columns_kept)
    ranked = sorted((column.main, j) for j, column in enumerate(columns_kept) if j and column.main > 0)[:MAX_NUMERIC]
    names = [j for j, column in enumerate(columns_kept) if j == 0 or column.main == NAMES]
    return Table(
        header=header,
        units=tuple(column.unit for column in columns_kept),
        rows=tuple(tuple(row[j] for j in filled) for row in cells),
        main=tuple(sorted([*names, *(j for _, j in ranked)])),
        bold=frozenset((i, j) for i, row in enumerate(summaries) for j, head in enumerate(header) if bold(row, head)),
        **texts,
    )


def tabulate(analysis: Analysis, when: When = "last") -> Table:
    """Return the table of all methods, one row each, without empty columns.

    The numbers are from the ``"last"`` evaluated round, or from the ``"best"`` round by participants' held-out loss.
    """
    rows = analysis.rows(when)
    comparison, leading = analysis.comparison, analysis.leaders[when]
    judged = QUANTITIES[POPULATION[comparison.primary].name].head
    family = [row.difference for row in rows]
    return table_of(
        _columns(analysis, rows, when),
        (*rows, *analysis.baselines),
        bold=lambda row, head: head == judged and row.method in leading.methods,
        caption=caption(comparison, when),
        note=_note(comparison, rows),
        name=when,
        details=join_sentences(tests_sentence(comparison, family), _details(analysis, rows)),
        stated=bold_sentence(comparison, leading, f"on {POPULATION[comparison.primary].words}"),
    )


def caption(comparison: RunSet, when: When) -> str:
    """Return the title of the table of all methods, with score, population, unit and spread."""
    score = comparison.score
    where = "participants"
    if comparison.primary != comparison.seen:
        where += f" and {POPULATION[comparison.primary].words}"
    unit = ", %" if score.percent else ""
    return f"{score.words.capitalize()} on {where}{unit} ({spread_text(comparison)}){round_text(comparison, when)}"


def spread_text(comparison: RunSet) -> str:
    """Return the text on what the means and spreads of a table are computed over."""
    several = any(len(comparison.counted(method)) > 1 for method in comparison.methods)
    return f"mean ± sd over {seeds_text(comparison)}" if several else "mean over clients, one seed"


def round_text(comparison: RunSet, when: When) -> str:
    """Return the end of a title that describes the rounds of the numbers; empty for the last evaluated round."""
    if when == "best":
        return ", in the best round"
    last = comparison.plan.last_rounds
    return "" if last == 1 else f", mean of the last {last} evaluated rounds"


def tabulate_contrasts(analysis: Analysis, when: When = "last") -> Table | None:
    """Return the table of planned differences; None if it would be empty, or if the rows of methods show them."""
    comparison, contrasts = analysis.comparison, analysis.contrasts[when]
    by = comparison.score
    if comparison.plan.contrasts == "baseline" or not contrasts:  # a single method has no pair
        return None

    family = [contrast.judged for contrast in contrasts]

    def pair(contrast: Difference) -> str:
        return f"{contrast.first} − {contrast.second}"

    reasons = [f"{pair(contrast)}: {contrast.judged.note}." for contrast in contrasts if contrast.judged.note]
    unit = f",{by.points}" if by.points else ""
    return table_of(
        [
            Column("comparison", "", pair),
            Column("difference", adjusted_unit(comparison, family), lambda contrast: estimate(contrast.judged, by), 1),
            Column("p", "adjusted", lambda contrast: p_text(contrast.judged.p_corrected), 2),
            Column("MDE", by.points.strip(), lambda contrast: detectable(contrast.judged, by), 3),
            Column("conclusion", SEEDS_NEEDED, lambda contrast: conclusion(contrast.judged), 4),
        ],
        contrasts,
        caption=f"Planned differences in {by.words} on {POPULATION[comparison.primary].words}{unit}"
        f"{round_text(comparison, when)}",
        note=join_sentences(significance_sentence(comparison, family), *reasons),
        name="contrasts",
        details=tests_sentence(comparison, family),
    )


SEEDS_NEEDED = "(seeds needed)"
LONG_BASELINE = 16  # letters of the baseline's name above which a heading says "baseline"


def _columns(analysis: Analysis, rows: Sequence[MethodSummary], when: When) -> list[Column[MethodSummary]]:
    comparison, by = analysis.comparison, analysis.comparison.score
    over_seeds, change = _gap_over_seeds(rows), by.points.strip()
    adapted = {row.method: row for row in analysis.adaptation} if when == "last" else {}

    def accuracy(name: str) -> Column[MethodSummary]:
        quantity = QUANTITIES[name]
        unit = "(held-out)" if name == "participants" else ""
        rank = quantity.main or int(quantity.column_by(by) == comparison.primary)
        return Column(quantity.head, unit, lambda row: percent(row.at[name], by), rank)

    def mean(name: str) -> Column[MethodSummary]:
        quantity = QUANTITIES[name]
        unit, cell = costs(quantity.unit, lambda row: row.at[name], rows)
        return Column(quantity.head, "" if unit == quantity.head else unit, cell, quantity.main)

    def to_target(name: str) -> Column[MethodSummary]:
        unit, cell = costs(QUANTITIES[name].unit, lambda row: row.to_target[name], rows)

        def text(row: MethodSummary) -> str:
            is_partial = row.reached < row.seeds and row.to_target[name].mean is not None
            return cell(row) + f" ({row.reached} of {row.seeds})" * is_partial

        head = QUANTITIES[name].head
        return Column(f"{head} to {100 * (comparison.target_accuracy or 0):g}%", "" if unit == head else unit, text, 0)

    def difference(row: MethodSummary) -> str:
        return "baseline" if row.is_baseline and len(rows) > 1 else estimate(row.difference, by)

    def adapted_accuracy(row: MethodSummary) -> str:
        return percent(adapted[row.method].at["adapted", "accuracy"]) if row.method in adapted else ABSENT

    name = comparison.baseline if len(comparison.baseline) <= LONG_BASELINE else "baseline"
    adjusted = adjusted_unit(comparison, [row.difference for row in rows])
    people = "participants" if any(row.population == "participant" for row in adapted.values()) else "unseen"
    return [
        Column("method", "", lambda row: row.method),
        *map(accuracy, ("participants", "unseen", "test")),
        Column(f"vs. {name}{f', {change}' if change else ''}", adjusted, difference, 2),
        Column(f"{people}, adapted", "", adapted_accuracy, 4),
        Column("AUROC", "", lambda row: plus_minus(row.at.get("auroc", NOTHING), 3), 5),
        Column("log loss", "nats", lambda row: plus_minus(row.at.get("log_loss", NOTHING), 3)),
        Column(
            QUANTITIES["gap"].head,
            f"{change} [95% CI, {'seeds' if over_seeds else 'clients'}]".strip(),
            lambda row: _gap(row, over_seeds, by),
            int(len(rows) == 1) * 2,
        ),
        Column("p", "adjusted", lambda row: p_text(row.difference.p_corrected)),
        Column("MDE", change, lambda row: detectable(row.difference, by)),
        Column("conclusion", SEEDS_NEEDED, lambda row: conclusion(row.difference)),
        *map(mean, ("seconds", "joules", "megabytes", "round")),
        *map(to_target, TARGET_COSTS),
        *map(accuracy, ("unseen_worst_decile", "participants_worst_decile")),
        Column("seeds", "finished", lambda row: f"{row.seeds}/{row.seeds_planned}"),
    ]


def costs(unit: str, cost: Callable[[S], Spread], summaries: Sequence[S]) -> tuple[str, Callable[[S], str]]:
    """Return the unit of a column of costs, and the text of its cells in this common unit."""
    means = [cost(summary).mean for summary in summaries]
    shown_unit = unit_of(unit, means) if unit in ("seconds", "joules") else Unit(unit)

    def text(summary: S) -> str:
        mean = cost(summary).mean
        return number(None if mean is None else mean / shown_unit.size)

    return shown_unit.name, text


def _gap_over_seeds(rows: Sequence[MethodSummary]) -> bool:
    # A single seed has an interval over clients only.
    return all(row.at["gap"].low is not None for row in rows if row.seeds)


def _note(comparison: RunSet, rows: Sequence[MethodSummary]) -> str:
    """Return what the main view must say: the star, and what is missing and why."""
    reasons = [(row.difference.note, row.method) for row in rows if not row.is_baseline]
    reasons += [
        (row.at[name].note, row.method)
        for row in rows
        for name in ("participants", "unseen", "test", "gap")
        if row.at[name].partly_missing
    ]
    methods_by_reason: dict[str, dict[str, None]] = {}
    for reason, method in reasons:
        if reason and "one seed" not in reason:
            methods_by_reason.setdefault(reason, {})[method] = None
    no_pooled = [record.left_out for record in baselines_of(comparison) if record.left_out][:1]  # alike for all seeds
    return join_sentences(
        significance_sentence(comparison, [row.difference for row in rows]),
        "With one seed, there is no spread over seeds and no test." * any(row.seeds == 1 for row in rows),
        *(f"{', '.join(methods)}: {reason}." for reason, methods in methods_by_reason.items()),
        *(f"No pooled linear model: {reason}." for reason in no_pooled),
        probabilities_note(comparison),
        refit_sentence([run.refit_rounds for run in comparison.all_counted if run.refit_rounds is not None]),
    )


def _details(analysis: Analysis, rows: Sequence[MethodSummary]) -> str:
    """Return how the columns were computed."""
    comparison = analysis.comparison
    parts = []
    if any(row.at["gap"].mean is not None for row in rows):
        first, second = ("participants", "unseen clients")[:: -1 if comparison.score.lower_is_better else 1]
        parts.append(f"Participation gap: {first} minus {second}.")
    if any(row.seeds > 1 for row in rows):
        parts.append(seeds_scope(comparison.config))
    if comparison.radio:
        parts.append(f"Time and energy are simulated and include probes; {allocations(comparison)}.")
    if comparison.target_accuracy is not None:
        parts.append(
            f"To {100 * comparison.target_accuracy:g}%: first round with this score on "
            f"{POPULATION[comparison.primary].words}, as a mean over the seeds that reached it (with the number of "
            "these seeds if some did not)."
        )
    if analysis.baselines:
        names = [row.method for row in analysis.baselines]
        parts.append(f"{names[0].capitalize()}: computed from the participants' training rows.")
        if len(names) > 1:
            parts.append(f"{names[1].capitalize()}: trained on all of these rows in one place, unlike in a federation.")
    return join_sentences(*parts)


def probabilities_note(comparison: RunSet) -> str:
    """Return a sentence on the population of AUROC and log loss; empty if targets are not two classes."""
    if not probabilities(comparison):
        return ""
    where = comparison.primary.partition("_")[0]
    text = f"AUROC and log loss are from {POPULATION[comparison.primary].words}"
    people, column = {"participant": "participants", "unseen": "unseen"}.get(where, ""), f"{where}_auroc_undefined"
    runs = [run for run in comparison.all_counted if people in run.clients and column in run.rounds]
    if not runs:
        return f"{text}."
    undefined, total = (
        fmean(counts)
        for counts in zip(*((run.column(column)[-1], len(run.clients[people].ids)) for run in runs), strict=True)
    )
    clients = f"{number(total - undefined)} of {number(total)}" + " on average" * (len(runs) > 1)
    return f"{text}; AUROC is the mean over clients with both classes ({clients})."


def allocations(comparison: RunSet) -> str:
    """Return a text on how each method allocates bandwidth: by its rule, by its policy, or exactly."""
    methods_by_rule: dict[str, list[str]] = {}
    for run in comparison.runs:
        rule = run.config.get("method", {}).get("allocation")
        name = str(rule.get("name")) if isinstance(rule, Mapping) else ""
        if run.method not in methods_by_rule.setdefault(name, []):
            methods_by_rule[name].append(run.method)
    rules_text = "; ".join(f"{name} for {', '.join(methods)}" for name, methods in methods_by_rule.items() if name)
    if not methods_by_rule.get(""):
        return f"bandwidth and CPU frequencies are allocated by {rules_text}"
    first = "bandwidth and CPU frequencies are allocated by the policy, or otherwise at the least cost"
    return f"{first}, but {rules_text}" if rules_text else first


def _gap(row: MethodSummary, over_seeds: bool, by: MainScore) -> str:
    gap = row.at["gap"]
    if gap.mean is None:
        return ABSENT
    limits = (gap.low, gap.high) if over_seeds else (row.gap_over_clients or (None, None))
    return points(gap.mean, by=by) + interval(*limits, by=by)


# ---- Additional metrics


def tabulate_metrics(analysis: Analysis, when: When = "last") -> Table | None:
    """Return the table of additional metrics, one row per metric and method; None without such metrics."""
    rows = analysis.metrics[when]
    if not rows:
        return None
    places = {row.metric: _places([other_row for other_row in rows if other_row.metric == row.metric]) for row in rows}
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for name, value in row.at.items():
            if value.partly_missing:
                reasons.setdefault((row.metric, f"{METRIC_QUANTITIES[name].head}: {value.note}"), []).append(row.method)

    def column(quantity: Quantity) -> Column[MetricSummary]:
        return Column(quantity.head, quantity.unit, lambda row: _cell(row, quantity, places[row.metric]), quantity.main)

    comparison = analysis.comparison
    return table_of(
        [
            Column("method", "", lambda row: row.method),
            Column("metric", "", lambda row: row.metric, NAMES),
            *(column(of) for of in METRIC_QUANTITIES.values() if any(_is_informative(row, of) for row in rows)),
        ],
        rows,
        caption=f"Other metrics ({spread_text(comparison)}){round_text(comparison, when)}",
        note=join_sentences(
            "Undefined: number of clients without a value, such as AUROC for clients with one class.",
            *(f"{metric} of {', '.join(methods)}, {reason}." for (metric, reason), methods in reasons.items()),
        ),
        details="Worst 10%: mean over the 10% of clients with the worst values. Pooled: score over all examples.",
        name="metrics",
    )


def _places(rows: Sequence[MetricSummary]) -> int:
    """Return the digits after the point of a metric: three, or more for small and fewer for large numbers."""
    means = [
        row.at[name].mean for row in rows for name, quantity in METRIC_QUANTITIES.items() if quantity.unit != "clients"
    ]
    largest = max((abs(mean) for mean in means if mean), default=1.0)
    power = math.floor(math.log10(largest))
    return 3 if -2 <= power <= 0 else min(max(2 - power, 0), 9)


def _is_informative(row: MetricSummary, quantity: Quantity) -> bool:
    """Return whether a quantity is worth a column; a count of 0 clients left out is not."""
    mean = row.at[quantity.name].mean
    return mean is not None and (quantity.unit != "clients" or mean > 0)


def _cell(row: MetricSummary, quantity: Quantity, places: int) -> str:
    spread = row.at[quantity.name]
    if quantity.unit == "clients":
        return ABSENT if spread.mean is None else number(spread.mean)
    return plus_minus(spread, places)


# ---- Tuned settings


def setting_text(setting: Mapping[str, Any]) -> str:
    """Return a setting as `key = value` pairs.

    Example:
        >>> setting_text({"local.lr": 0.1, "method.server": "adam"})
        'local.lr = 0.1, method.server = adam'
    """
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in setting.items()}
    return ", ".join(f"{key} = {value}" for key, value in texts.items())


def tabulate_tuning(comparison: RunSet) -> Table | None:
    """Return the table of tuned settings, one row per method; None without tuning."""
    tuning = comparison.tuning
    if tuning is None:
        return None
    by, settings = MAE if tuning.score == MAE.name else ACCURACY, tuning.settings

    def chosen(method: str) -> str:
        scores = tuning.scores.get(method, {}).values()
        tried = sum(any(by_place[place] is not None for by_place in scores) for place in range(len(settings)))
        places = tuning.chosen.get(method, {}).values()
        return _most_frequent_first([setting_text(settings[place]) for place in places]) if tried > 1 else "not tuned"

    def reached(method: str) -> str:
        scores = tuning.scores.get(method, {})
        values = [scores[seed][place] for seed, place in tuning.chosen.get(method, {}).items()]
        return percent(spread([value for value in values if value is not None]), by=by)

    return table_of(
        [
            Column("method", "", str),
            Column("chosen setting", "(seeds)", chosen, 1),
            Column(f"validation {by.words}", f"{by.unit} ± sd over seeds".strip(), reached, 2),
            Column("extra runs", "", lambda method: str(tuning.runs.get(method, 0)), 3),
            *[Column("at the end of the range", "(seeds)", lambda method: _edges(tuning, method), 4)]
            * any(_edges(tuning, method) for method in comparison.methods),
        ],
        comparison.methods,
        caption="Tuned settings by method",
        note=_tuning_note(tuning, by.words),
        name="tuning",
        details=CAPTIONS["tuning"]["table"],
    )


def _tuning_note(tuning: TuningRecord, score: str) -> str:
    setting_count, drawn = len(tuning.settings), "" if tuning.samples is None else " random"
    return (
        f"For each method and seed, FedReach chose the best of {setting_count}{drawn} settings by the mean {score} on "
        f"{100 * tuning.validation:g}% of participants' training data, after {count_noun(tuning.rounds, 'round')} of "
        "training on the other data."
    )


def _most_frequent_first(words: list[str]) -> str:
    """Return the chosen settings, the most frequent first, with their numbers of seeds if these differ."""
    counts = Counter(words).most_common()
    return "; ".join(word if len(counts) == 1 else f"{word} ({count})" for word, count in counts)


def _edges(tuning: TuningRecord, method: str) -> str:
    """Return the options chosen at an end of their range, beyond which better values may exist."""
    edge_counts: Counter[str] = Counter()
    for key in tuning.settings[0]:
        values = {setting[key] for setting in tuning.settings if isinstance(setting[key], int | float)}
        if len(values) > 2 and tuning.samples is None:
            chosen = [tuning.settings[place][key] for place in tuning.chosen.get(method, {}).values()]
            edge_counts[key] = sum(value in (min(values), max(values)) for value in chosen)
    return ", ".join(f"{key} ({count})" for key, count in edge_counts.items() if count)


def tuning_record(tuning: TuningRecord) -> dict[str, Any]:
    """Return the tuned settings and their scores as a dictionary for other programs."""
    return {key: value for key, value in tuning.to_json().items() if key != "settings"} | {
        "settings": [dict(setting) for setting in tuning.settings]
    }
