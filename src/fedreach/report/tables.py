"""Tables of a comparison as text cells, with their notes and captions."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fedreach.evaluation.scores import ACCURACY, MAE, MainScore
from fedreach.evaluation.statistics import LEVEL, PairedTest, Spread, spread
from fedreach.report.analysis import (
    METRIC_QUANTITIES,
    POPULATION,
    QUANTITIES,
    WIDE,
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

CORRECTIONS = {"holm": "by Holm's steps", "max_t": "by the largest t of all"}


def join_sentences(*sentences: str) -> str:
    """Return the sentences that are not empty, joined by spaces."""
    return " ".join(filter(None, sentences))


def seeds_sentence(comparison: RunSet) -> str:
    """Return a sentence on the number of seeds."""
    counts = [len(runs) for method in comparison.methods if (runs := comparison.counted(method))]
    if not counts:
        return "No run has a result yet."
    low, high, planned = min(counts), max(counts), len(comparison.seeds)
    text = f"{low} to {high} seeds a method" if low < high else f"{high} seed{'s' * (high != 1)}"
    planned_text = f", of {planned} planned" if low < planned else ""
    return f"{text[0].upper()}{text[1:]}{planned_text}{': no run has finished' * comparison.provisional}."


def intervals_sentence(comparison: RunSet, family: Sequence[PairedTest]) -> str:
    """Return a sentence on the level of the intervals of a family of differences; empty if none was tested."""
    tests = sum(judged.p is not None for judged in family)
    level = f"{100 * (1 - LEVEL):g}"
    if tests > 1 and comparison.plan.correction == "holm":
        level += f" to {100 * (1 - LEVEL / tests):.4g} %, the level at which Holm's step tests each of {tests}"
    else:
        level += f" %{f' for all {tests} together' * (tests > 1)}"
    return f"Intervals of differences: over seeds, at {level}." if tests else ""


def bold_sentence(comparison: RunSet, leaders: Leaders, where: str) -> str:
    """Return a sentence on the meaning of bold in a table, or why no cell is bold; empty if no pair was tested."""
    if not leaders.tested:
        return ""
    corrected = f", corrected {CORRECTIONS[comparison.plan.correction]}" if leaders.tested > 1 else ""
    tests = f"paired t tests of {f'all {leaders.tested} pairs' if leaders.tested > 1 else 'the pair'}{corrected}"
    if not leaders.methods:
        return f"Nothing is bold: no method's lead over all others {where} is decided ({tests})."
    if len(leaders.methods) == 1:
        return f"Bold: better than every other method {where} ({tests})."
    return f"Bold: each better than all others {where}, and nothing is decided between those in bold ({tests})."


def refit_sentence(rounds: Sequence[int]) -> str:
    """Return a sentence on models that were refitted on all rows, with their numbers of rounds; empty if none was.

    Example:
        >>> refit_sentence([12])
        'The model was trained again on all rows, 12 rounds; scores are of the model before.'
        >>> refit_sentence([12, 5, 9])
        'Models were trained again on all rows, 5 to 12 rounds; scores are of the models before.'
    """
    if not rounds:
        return ""
    low, high = min(rounds), max(rounds)
    rounds_text = f"{high} round{'s' * (high != 1)}" if low == high else f"{low} to {high} rounds"
    if len(rounds) == 1:
        return f"The model was trained again on all rows, {rounds_text}; scores are of the model before."
    return f"Models were trained again on all rows, {rounds_text}; scores are of the models before."


def provenance_sentence(comparison: RunSet) -> str:
    """Return a sentence on the software and the commit that the runs are from.

    The commit is that of the checkout with the experiment file; "changed" marks a checkout with uncommitted changes.
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

NOT_DECIDED = "Inconclusive: in brackets about how many seeds would, if the true difference were the one seen."
VERDICT_UNIT = "(~ seeds)"  # seeds that would decide


@dataclass(frozen=True)
class Table:
    """A table of text cells."""

    caption: str
    header: tuple[str, ...]
    units: tuple[str, ...]  # below each header: the unit, and what the spread is over
    rows: tuple[tuple[str, ...], ...]
    from_width: tuple[int, ...]  # terminal width from which a column is shown, if it fits
    note: str
    name: str = "table"  # for labels
    stated: str = ""  # sentences for a caption in a paper, in addition to the note
    bold: frozenset[tuple[int, int]] = frozenset()  # (row, column) of bold cells, in a paper


S = TypeVar("S")
NOTHING = spread([])


@dataclass(frozen=True)
class Column(Generic[S]):
    """A column of a table, and the text of its cell in the row of a summary."""

    head: str
    unit: str
    text: Callable[[S], str]
    from_width: int = WIDE


def table_of(
    columns: Sequence[Column[S]],
    summaries: Sequence[S],
    *,
    bold: Callable[[S, str], bool] = lambda summary, head: False,
    **texts: str,
) -> Table:
    """Return a table with a row for each summary, without empty columns.

    Args:
        columns: Columns, of which the first names the rows.
        summaries: What each row shows.
        bold: Whether the cell of a summary below a header is bold in a paper.
        **texts: Caption, note, name and further fields of the table.
    """
    cells = [[column.text(summary) for column in columns] for summary in summaries]
    filled_columns = [j for j in range(len(columns)) if j == 0 or any(row[j] != ABSENT for row in cells)]
    header = tuple(columns[j].head for j in filled_columns)
    return Table(
        header=header,
        units=tuple(columns[j].unit for j in filled_columns),
        rows=tuple(tuple(row[j] for j in filled_columns) for row in cells),
        from_width=tuple(columns[j].from_width for j in filled_columns),
        bold=frozenset((i, j) for i, row in enumerate(summaries) for j, head in enumerate(header) if bold(row, head)),
        **texts,
    )


def tabulate(analysis: Analysis, when: When = "last") -> Table:
    """Return the table of all methods, one row each, without empty columns.

    The numbers are from the ``"last"`` evaluated round, or from the ``"best"`` one on participants' held-out loss.
    """
    rows = analysis.rows(when)
    comparison, leading = analysis.comparison, analysis.leaders[when]
    judged = QUANTITIES[POPULATION[comparison.primary].name].head
    return table_of(
        _columns(comparison, rows),
        (*rows, *analysis.baselines),
        bold=lambda row, head: head == judged and row.method in leading.methods,
        caption=caption(comparison, when),
        note=join_sentences(_note(comparison, rows), _baselines_note(analysis)),
        name=when,
        stated=join_sentences(
            intervals_sentence(comparison, [row.difference for row in rows]),
            bold_sentence(comparison, leading, f"on {POPULATION[comparison.primary].words}"),
        ),
    )


def caption(comparison: RunSet, when: When) -> str:
    """Return the rounds that the numbers are from, in words."""
    if when == "best":
        return "At the best round on participants' held-out loss"
    last = comparison.plan.last_rounds
    return "At the last round" if last == 1 else f"Mean over the last {last} evaluated rounds"


def tabulate_contrasts(analysis: Analysis, when: When = "last") -> Table | None:
    """Return the table of planned differences; None if there are none, or the rows of methods show them."""
    comparison, contrasts = analysis.comparison, analysis.contrasts[when]
    by = comparison.score
    if comparison.plan.contrasts == "baseline" or not contrasts:  # a single method has no pair
        return None

    family = [contrast.judged for contrast in contrasts]

    def pair(contrast: Difference) -> str:
        return f"{contrast.first} − {contrast.second}"

    reasons = [f" {pair(contrast)}: {contrast.judged.note}." for contrast in contrasts if contrast.judged.note]
    return table_of(
        [
            Column("first − second", "", pair, 0),
            Column("difference", f"{by.points} [seeds]".strip(), lambda contrast: estimate(contrast.judged, by), 0),
            Column("p", "corrected", lambda contrast: p_text(contrast.judged.p_corrected), 0),
            Column("mde", by.points.strip(), lambda contrast: detectable(contrast.judged, by), 110),
            Column("conclusion", VERDICT_UNIT, lambda contrast: conclusion(contrast.judged), 0),
        ],
        contrasts,
        caption=f"Differences on {POPULATION[comparison.primary].words}. {caption(comparison, when)}",
        note=f"Same seeds and clients{family_note(comparison, family)}{''.join(reasons)}",
        name="contrasts",
        stated=intervals_sentence(comparison, family),
    )


def family_note(comparison: RunSet, family: Sequence[PairedTest]) -> str:
    """Return the end of a sentence on a family of differences, which describes how they were tested."""
    tests = [judged for judged in family if judged.p is not None]
    if not tests:
        return "."
    plan, several = comparison.plan, len(tests) > 1
    corrected = f", corrected for {len(tests)} {CORRECTIONS[plan.correction]}" if several else ""
    pilot = "" if comparison.pilot is None else f" The spread is that of the pilot of {len(comparison.pilot)} seeds."
    judged = (
        f", paired t test over seeds, interval and p{corrected}: p < 0.05 where the interval excludes 0.{pilot} "
        "Detectable: a true difference so large is found in four of five such comparisons."
    )
    if comparison.looks:
        return f"{judged} No conclusion: {no_conclusion_reason(comparison)}."
    if comparison.margin is None:
        return f"{judged} {NOT_DECIDED}"
    return f"{judged} Equivalent: within ± {plan.margin_points:g} points by two one-sided tests. {NOT_DECIDED}"


def _columns(comparison: RunSet, rows: Sequence[MethodSummary]) -> list[Column[MethodSummary]]:
    over_seeds = _gap_over_seeds(rows)
    by = comparison.score
    unit, change = by.unit.strip() or by.name, by.points.strip()
    share = f"{unit} ± sd" if any(row.at["participants"].sd is not None for row in rows) else unit

    def accuracy(name: str) -> Column[MethodSummary]:
        quantity = QUANTITIES[name]
        width = 0 if quantity.column_by(by) == comparison.primary else quantity.from_width
        return Column(quantity.head, share, lambda row: percent(row.at[name], by), width)

    def mean(name: str) -> Column[MethodSummary]:
        quantity = QUANTITIES[name]
        unit, cell = costs(quantity.unit, lambda row: row.at[name], rows)
        return Column(quantity.head, unit, cell, quantity.from_width)

    def to_target(name: str, from_width: int) -> Column[MethodSummary]:
        unit, cell = costs(QUANTITIES[name].unit, lambda row: row.to_target[name], rows)

        def text(row: MethodSummary) -> str:
            is_partial = row.reached < row.seeds and row.to_target[name].mean is not None
            return cell(row) + f" ({row.reached} of {row.seeds})" * is_partial

        target = f"to {100 * (comparison.target_accuracy or 0):g} %"
        return Column(target, unit or QUANTITIES[name].head, text, from_width)

    def probability(name: str, head: str, unit: str, from_width: int) -> Column[MethodSummary]:
        return Column(head, unit, lambda row: plus_minus(row.at.get(name, NOTHING), 3), from_width)

    def difference(row: MethodSummary) -> str:
        return "baseline" if row.is_baseline and len(rows) > 1 else estimate(row.difference, by)

    gap_over = f"{change} [{'seeds' if over_seeds else 'clients'}]".strip()
    return [
        Column("method", "", lambda row: row.method, 0),
        *map(accuracy, ("participants", "unseen", "test")),
        probability("auroc", "AUROC", "", 90),
        probability("log_loss", "log loss", "nats", 110),
        Column(QUANTITIES["gap"].head, gap_over, lambda row: _gap(row, over_seeds, by), 0),
        Column("difference", f"{change} [seeds]".strip(), difference, 0),
        Column("p", "corrected", lambda row: p_text(row.difference.p_corrected), 0),
        Column("mde", change, lambda row: detectable(row.difference, by), 140),
        Column("conclusion", VERDICT_UNIT, lambda row: conclusion(row.difference), 90),
        *map(mean, ("seconds", "joules")),
        to_target("seconds", 110),
        to_target("joules", 110),
        *map(accuracy, ("unseen_worst_decile", "participants_worst_decile")),
        Column("seeds", "finished", lambda row: f"{row.seeds}/{row.seeds_planned}"),
        *map(mean, ("megabytes", "round")),
        to_target("round", WIDE),
        to_target("megabytes", WIDE),
    ]


def costs(unit: str, cost: Callable[[S], Spread], summaries: Sequence[S]) -> tuple[str, Callable[[S], str]]:
    """Return the unit of a column of costs, and the text of its cells: one unit, so that numbers can be compared."""
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
    primary = POPULATION[comparison.primary].words
    score = comparison.score
    parts = [f"{score.words.capitalize()}: mean over clients{', ± sd over seeds' * any(r.seeds > 1 for r in rows)}."]
    if any(row.at["gap"].mean is not None for row in rows):
        over = "over seeds (Student t)" if _gap_over_seeds(rows) else "over clients (Student t)"
        first, second = ("participants", "unseen clients")[:: -1 if score.lower_is_better else 1]
        parts.append(f"Gap: {first} minus {second}, 95 % interval {over}.")
    if any(row.difference.mean is not None for row in rows):
        judged = family_note(comparison, [row.difference for row in rows])
        parts.append(f"Difference: to {comparison.baseline}, on {primary}, same seeds{judged}")
    if any(row.seeds > 1 for row in rows):
        parts.append(seeds_scope(comparison.config))
    if any(row.seeds == 1 for row in rows):
        parts.append("One seed: no spread over seeds, no test.")
    reasons = [(row.method, row.difference.note) for row in rows if not row.is_baseline]
    reasons += [
        (row.method, row.at[name].note)
        for row in rows
        for name in ("participants", "unseen", "test", "gap")
        if "have no number" in row.at[name].note
    ]
    parts += [
        f"{method}: {reason}." for method, reason in dict.fromkeys(reasons) if reason and "one seed" not in reason
    ]
    if comparison.radio:
        parts.append("Time and energy: simulated, of sending and computing, probes included;")
        parts.append(f"{_allocations(comparison)}.")
    if comparison.target_accuracy is not None:
        parts.append(
            f"To {100 * comparison.target_accuracy:g} %: on {primary}; mean over the seeds that reached it "
            "(how many, if not all); - if none did."
        )
    parts.append(refit_sentence([run.refit_rounds for run in comparison.all_counted if run.refit_rounds is not None]))
    return join_sentences(*parts)


def _baselines_note(analysis: Analysis) -> str:
    """Return sentences on the baselines, and on the clients that AUROC averages over."""
    comparison, note = analysis.comparison, ""
    if analysis.baselines:
        names = [row.method for row in analysis.baselines]
        note = f"{names[0].capitalize()}: of the participants' training rows."
        if len(names) > 1:
            note += f" {names[1].capitalize()}: on all of these rows, which no federation has in one place."
    reasons = dict.fromkeys(record.left_out for record in baselines_of(comparison) if record.left_out)
    note += "".join(f" No pooled linear model: {reason}." for reason in reasons)
    return join_sentences(note, probabilities_note(comparison))


def probabilities_note(comparison: RunSet) -> str:
    """Return a sentence on the population of AUROC and log loss; empty if targets are not two classes."""
    if not probabilities(comparison):
        return ""
    where = comparison.primary.partition("_")[0]
    text = f"AUROC and log loss: on {POPULATION[comparison.primary].words}"
    people, column = {"participant": "participants", "unseen": "unseen"}.get(where, ""), f"{where}_auroc_undefined"
    runs = [run for run in comparison.all_counted if people in run.clients and column in run.rounds]
    if not runs:
        return f"{text}."
    undefined, total = (
        fmean(counts)
        for counts in zip(*((run.column(column)[-1], len(run.clients[people].ids)) for run in runs), strict=True)
    )
    clients = f"{number(total - undefined)} of {number(total)}" + " on average" * (len(runs) > 1)
    return f"{text}; AUROC is a mean over the clients that hold both classes, {clients}."


def _allocations(comparison: RunSet) -> str:
    """Return in words how each method allocates the bandwidth: by its rule, by its policy, or exactly."""
    methods_by_rule: dict[str, list[str]] = {}
    for run in comparison.runs:
        rule = run.config.get("method", {}).get("allocation")
        name = str(rule.get("name")) if isinstance(rule, Mapping) else ""
        if run.method not in methods_by_rule.setdefault(name, []):
            methods_by_rule[name].append(run.method)
    rules_text = "; ".join(f"{name} for {', '.join(methods)}" for name, methods in methods_by_rule.items() if name)
    if not methods_by_rule.get(""):
        return f"bandwidth and CPU frequencies: {rules_text}"
    first = "bandwidth and CPU frequencies as the policy allocates them, or else at the least cost"
    return f"{first}; but {rules_text}" if rules_text else first


def _gap(row: MethodSummary, over_seeds: bool, by: MainScore) -> str:
    gap = row.at["gap"]
    if gap.mean is None:
        return ABSENT
    limits = (gap.low, gap.high) if over_seeds else (row.gap_over_clients or (None, None))
    return points(gap.mean, by=by) + interval(*limits, by=by)


# ---- Additional metrics


def tabulate_metrics(analysis: Analysis, when: When = "last") -> Table | None:
    """Return the table of additional metrics, one row per metric and method; None if no experiment has any."""
    rows = analysis.metrics[when]
    if not rows:
        return None
    when_text = caption(analysis.comparison, when)
    places = {row.metric: _places([other_row for other_row in rows if other_row.metric == row.metric]) for row in rows}
    several = any(row.at[name].sd is not None for row in rows for name in METRIC_QUANTITIES)
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for name, value in row.at.items():
            if "have no number" in value.note:
                reasons.setdefault((row.metric, f"{METRIC_QUANTITIES[name].head}: {value.note}"), []).append(row.method)

    def column(quantity: Quantity) -> Column[MetricSummary]:
        unit = quantity.unit or ("mean ± sd" if several else "")
        return Column(quantity.head, unit, lambda row: _cell(row, quantity, places[row.metric]), quantity.from_width)

    return table_of(
        [
            Column("method", "", lambda row: row.method, 0),
            Column("metric", "", lambda row: row.metric, 0),
            *(column(of) for of in METRIC_QUANTITIES.values() if any(_is_informative(row, of) for row in rows)),
        ],
        rows,
        caption=f"Further metrics, {when_text[0].lower()}{when_text[1:]}",
        note=f"Mean over the clients for which the metric is defined{', ± sd over seeds' if several else ''}; left "
        "out: how many it is not defined for, as AUROC for a client with one class. Worst decile: the tenth of the "
        "clients that does worst. Pooled: of all samples together, so that large clients count more."
        + "".join(f" {metric} of {', '.join(methods)}, {reason}." for (metric, reason), methods in reasons.items()),
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
            Column("method", "", str, 0),
            Column("chosen", "(seeds)", chosen, 0),
            Column("reached on validation data", f"{by.unit} ± sd over seeds".strip(), reached, 90),
            Column("runs to choose", "beside those compared", lambda method: str(tuning.runs.get(method, 0)), 0),
            *[Column("at an end of what was tried", "(seeds)", lambda method: _edges(tuning, method), 110)]
            * any(_edges(tuning, method) for method in comparison.methods),
        ],
        comparison.methods,
        caption="Which settings were chosen",
        note=_tuning_note(tuning, by.words),
        name="tuning",
    )


def _tuning_note(tuning: TuningRecord, score: str) -> str:
    setting_count, drawn = len(tuning.settings), "" if tuning.samples is None else ", drawn at random"
    return (
        f"Each method, with each seed, was given that of {setting_count} settings{drawn} with the best mean {score} "
        f"over participants on {100 * tuning.validation:g} % of what each trains on, after {tuning.rounds} rounds "
        "without these samples. The runs that are compared then train on them, too. Held-out data, unseen clients and "
        "the test set were no part of the data of these runs, and no number passed from one seed to another. Settings "
        "that make no difference to a method were not tried for it."
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
    """Return the tuned settings and their scores for other programs."""
    return {key: value for key, value in tuning.to_json().items() if key != "settings"} | {
        "settings": [dict(setting) for setting in tuning.settings]
    }
