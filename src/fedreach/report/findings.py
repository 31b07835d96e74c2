"""Findings of a comparison as sentences, and facts about its runs."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from fedreach._util.tables import count_noun
from fedreach.evaluation.scores import MainScore
from fedreach.evaluation.statistics import PairedTest
from fedreach.federation.disclosure import When
from fedreach.report.analysis import POPULATION, QUANTITIES, MethodSummary, join_words, primary_of, seeds_scope
from fedreach.report.concerns import concerns
from fedreach.report.numbers import RunData, RunSet, estimate, interval, number, p_text, points
from fedreach.report.overview import Analysis
from fedreach.report.radio import cheapest_methods, target_sentences
from fedreach.report.tables import join_sentences, star_sentence

# ---- Facts about the runs

Pairs = tuple[tuple[str, str], ...]
LEARNED = {"what": "data", "whose": "of", "when": "when", "form": "form", "limit": "limited by"}
"""Fields of `Disclosed.to_json` -> headings, as ``fedreach disclose`` prints them."""


def gather_facts(comparison: RunSet) -> dict[str, Any]:
    """Return the settings, data, software and status of the runs for templates/page.html.

    If a value differs between runs, all of its values are listed.
    """
    runs = comparison.runs
    shared, settings_of_method = _settings(comparison)
    unfinished = [
        (run.method, run.seed, run.status, str(run.last_round) if run.last_round >= 0 else "none", run.error or "")
        for run in runs
        if run.status != "finished"
    ]
    return {
        "data": _merge(
            # The scale of colors differs with the seed.
            {key: value for key, value in run.partition.dataset.items() if key not in ("mean", "std")}
            for run in runs
        ),
        "partition": _partition(runs),
        "columns": _columns(runs),  # of a table: name, kind, description
        "shared": shared,  # settings that all methods have in common
        "own": settings_of_method,  # method -> settings in which methods differ
        "software": _merge(dict(run.environment) | {f"git.{k}": v for k, v in run.git.items()} for run in runs),
        "seconds": [_seconds(comparison, method) for method in comparison.methods if comparison.counted(method)],
        "troubled": unfinished + [(method, seed, "never began", "none", "") for method, seed in comparison.absent],
        "refused": [(run.method, run.seed, *refusal) for run in runs for refusal in _refusals(run)],
        "runs": [(run.method, run.seed, run.status, run.path) for run in runs],
        "learned": _learned_data(comparison),
    }


def _learned_data(comparison: RunSet) -> dict[str, Any]:
    """Return the table of what the server learns: its header and a row for each kind of data, in the order of a run.

    The last column names the methods, if the server does not learn the same with all of them.
    """
    methods: dict[tuple[str, ...], dict[str, None]] = {}  # row -> methods
    for run in comparison.runs:
        for data in run.learned:
            methods.setdefault(tuple(data.get(key, "") for key in LEARNED), {})[run.method] = None
    order = {when: place for place, when in enumerate(get_args(When))}
    rows = sorted(methods, key=lambda row: order.get(row[2], len(order)))
    everywhere = dict.fromkeys(run.method for run in comparison.runs if run.learned)
    names = [_some_or_all(methods[row], everywhere) for row in rows]
    several = any(name != "all" for name in names)
    return {
        "header": (*LEARNED.values(), *["methods"] * several),
        "rows": [(*row, *[name] * several) for row, name in zip(rows, names, strict=True)],
        "sums": any(row[3].startswith("sum") for row in rows),
    }


def _some_or_all(names: Iterable[str], every: Iterable[str]) -> str:
    """Return names, or if they are most names, those that are missing.

    Example:
        >>> [_some_or_all(names, "abcd") for names in ("ab", "abc", "abcd")]
        ['a, b', 'all but d', 'all']
    """
    names, others = list(names), [name for name in every if name not in names]
    if len(others) < len(names):
        return f"all but {', '.join(others)}" if others else "all"
    return ", ".join(names)


def _refusals(run: RunData) -> list[tuple[str, str, str]]:
    """Return the clients or nodes with rejected replies, the rounds, and the first reason of each."""
    refusals: dict[str, list[tuple[int, str]]] = {}
    for round_number, who, why in run.refused:
        refusals.setdefault(who, []).append((round_number, why))
    return [(who, describe_rounds([round_number for round_number, _ in of]), of[0][1]) for who, of in refusals.items()]


def describe_rounds(rounds: Sequence[int]) -> str:
    """Return rounds as text: up to four by number, more as a count and a range.

    Example:
        >>> describe_rounds([0]), describe_rounds([2, 3]), describe_rounds([1, 2, 3, 5, 8])
        ('round 0', 'rounds 2, 3', '5 rounds from 1 to 8')
    """
    if len(rounds) > 4:
        return f"{len(rounds)} rounds from {rounds[0]} to {rounds[-1]}"
    return f"round{'s' * (len(rounds) > 1)} {', '.join(map(str, rounds))}"


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested settings as dotted keys and their values as JSON.

    Example:
        >>> flatten({"data": {"name": "digits"}, "cohort_size": 10})
        {'data.name': 'digits', 'cohort_size': '10'}
    """
    flat: dict[str, str] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return flat


def _merge(values: Iterable[Mapping[str, Any]]) -> Pairs:
    merged: dict[str, dict[str, None]] = {}
    for value in values:
        for key, text in flatten(value).items():
            merged.setdefault(key, {})[text] = None
    return tuple((key, " | ".join(texts)) for key, texts in merged.items())


def _settings(comparison: RunSet) -> tuple[Pairs, tuple[tuple[str, Pairs], ...]]:
    first: dict[str, dict[str, str]] = {}
    for run in comparison.runs:
        settings = flatten(run.config)
        settings.pop("seed", None)  # differs by design
        settings.pop("run.trackers", None)  # no number depends on trackers
        settings.pop("method.cohort_size.amounts", None)  # of the other method, for one seed
        first.setdefault(run.method, settings)
    keys = list(dict.fromkeys(key for settings in first.values() for key in settings))
    same = [key for key in keys if len({settings.get(key) for settings in first.values()}) == 1]
    any_method = next(iter(first.values()), {})
    method_settings = tuple(
        (method, tuple((key, settings[key]) for key in settings if key not in same))
        for method, settings in first.items()
    )
    return tuple((key, any_method[key]) for key in same), method_settings if len(first) > 1 else ()


def _partition(runs: tuple[RunData, ...]) -> Pairs:
    partitions = list({run.partition.hash: run.partition for run in runs}.values())
    if not partitions:
        return ()
    first = partitions[0]
    facts = {
        "clients": f"{count_noun(len(first.participants), 'participant')}, {len(first.unseen)} unseen",
        "examples per client": f"{first.sizes.min()} to {first.sizes.max()}, median {np.median(first.sizes):g}",
        "classes": str(first.label_counts.shape[1] or ("not reported" if first.targets is None else "none, numbers")),
        **flatten(first.statistics),
        **flatten(first.noise or {}, "noise."),
        **flatten({**first.shift, "clients": len(first.shift["clients"])} if first.shift else {}, "shift."),
        "federation hash": " | ".join(partition.hash[:16] for partition in partitions),
    }
    return tuple(facts.items())


def _columns(runs: tuple[RunData, ...]) -> tuple[tuple[str, str, str], ...]:
    """Return the columns of the first run's table; in other runs only their scale differs."""
    prepared = next((run.partition.preparation for run in runs), None)
    if not prepared:
        return ()
    from fedreach.data.preparation import InputColumn  # imported late: most comparisons need no tables

    return tuple((column.name, column.kind, column.about) for column in map(InputColumn.of_json, prepared))


def _seconds(comparison: RunSet, method: str) -> tuple[str, str, str]:
    def mean(column: str) -> str:
        timings = [run.timing[column] for run in comparison.counted(method) if column in run.timing]
        values = np.concatenate(timings) if timings else np.zeros(0)
        finite = values[np.isfinite(values)]
        return f"{finite.mean():.3g}" if len(finite) else "-"

    return method, mean("train_seconds"), mean("evaluate_seconds")


# ---- Findings, which claim no more than the tests allow

MAX_OPTIONS = 6  # options in a sentence
MAX_NAMES = 8  # methods or pairs in a sentence
MAX_CARDS = 4
SAME_COST = 0.005  # relative difference up to which two methods cost the same


@dataclass(frozen=True)
class Card:
    """A number with its label, unit and explanation."""

    label: str
    value: str
    unit: str
    detail: str


@dataclass(frozen=True)
class Findings:
    """A headline, findings as sentences, warnings about the numbers, and the main numbers."""

    headline: str
    bullets: tuple[str, ...]  # the most important first
    warnings: tuple[str, ...] = ()
    cards: tuple[Card, ...] = ()


def find(analysis: Analysis) -> Findings:
    """Return the findings of a comparison at the last round.

    A finding calls a method better than another method only if the conclusion of `run_paired_tests` is "better".
    """
    comparison, rows = analysis.comparison, analysis.judged()
    if not rows:
        return Findings("No run has a result yet", ("Write the report again after the first evaluated round.",))
    best = best_of(comparison, rows)
    headline = "So far: " * comparison.provisional + _headline(comparison, best, rows)
    bullets = [
        _comparison_sentence(analysis, rows),
        _gap_sentence(comparison.score, best) if len(comparison.methods) == 1 else "",
        *_privacy_sentences(comparison),
        _adaptation_sentence(analysis),
        _power_sentence(comparison, [contrast.judged for contrast in analysis.contrasts["last"]]),
        *target_sentences(comparison, rows),
    ]
    warnings = [
        _several_sentence(comparison),
        *concerns(comparison),
        *_test_warnings(analysis, rows),
        _runs_left_out(comparison),
    ]
    cards = _cards(analysis, best, rows)
    return Findings(headline, tuple(filter(None, bullets)), tuple(filter(None, warnings)), cards[:MAX_CARDS])


def _privacy_sentences(comparison: RunSet) -> list[str]:
    """Return the statements on differential privacy, with the method if there are several."""
    several = len(comparison.methods) > 1
    texts = [
        f"{run.method}: {run.privacy}" if several else run.privacy for run in comparison.all_counted if run.privacy
    ]
    return list(dict.fromkeys(texts))


def best_of(comparison: RunSet, rows: Sequence[MethodSummary]) -> MethodSummary:
    """Return the row with the best primary score, or on a tie the baseline's row; all `rows` must have a score."""
    rank = comparison.score.rank
    return max(rows, key=lambda row: (rank(primary_of(row, comparison).mean or 0.0), row.is_baseline))


def _headline(comparison: RunSet, best: MethodSummary, rows: Sequence[MethodSummary]) -> str:
    where, score = POPULATION[comparison.primary].words, comparison.score
    value = score.shown(primary_of(best, comparison).mean or 0.0)
    value = value if score.percent else f"{score.words} {value}"
    if len(comparison.methods) == 1:
        return f"{best.method} reaches {value} on {where}"
    if not any(row.is_baseline for row in rows):
        return f"{best.method} leads on {where} with {value}; the baseline {comparison.baseline} has no result"
    if len(rows) == 1:
        return f"{best.method} reaches {value} on {where}; no other method has a result"
    if best.is_baseline:
        return f"No method is better on {where} than the baseline {best.method} ({value})"
    if best.difference.conclusion == "better":
        lead = points(abs(best.difference.estimate or 0), by=score)
        over = "lower" if score.lower_is_better else "higher"
        base = next(row for row in rows if row.is_baseline)
        fewer = best.difference.count < max(best.seeds, base.seeds)
        pairs = " on the seeds that both finished" if fewer else ""
        cost = "".join(f", with {text}" for text in cost_words(best, base))
        return (
            f"{best.method} is best on {where}: {value}, {lead}{score.points} {over} than {comparison.baseline}{pairs}"
            f"{cost}"
        )
    first = f"{best.method} has the best mean on {where} ({value})"
    if best.difference.conclusion == "equivalent":
        return f"{first} and is equivalent to {comparison.baseline} within ±{comparison.plan.margin_points:g} points"
    return f"{first} but is not significantly better than {comparison.baseline}"


def cost_words(row: MethodSummary, base: MethodSummary) -> list[str]:
    """Return a text for each cost in which a method differs from the method `base`.

    Example:
        >>> from fedreach.evaluation.statistics import spread
        >>> of = {name: spread([]) for name in ("seconds", "joules")}
        >>> some, many = (MethodSummary("", 1, 1, of | {"megabytes": spread([mb])}, None, {}) for mb in (9.6, 14.4))
        >>> cost_words(many, some), cost_words(some, many), cost_words(some, some)
        (['50% more communication'], ['33% less communication'], [])
    """
    texts = []
    for name in ("megabytes", "seconds", "joules"):
        value, reference = row.at[name].mean, base.at[name].mean
        if value is not None and reference and abs(value / reference - 1) > SAME_COST:
            change = f"{abs(100 * (value / reference - 1)):.0f}% {'more' if value > reference else 'less'}"
            texts.append(f"{change} {QUANTITIES[name].words}")
    return texts


def _p(judged: PairedTest, several: bool = True) -> str:
    text = p_text(judged.p_corrected)
    return f"{'adjusted ' * several}p {text if text.startswith('<') else f'= {text}'}"


def _several_sentence(comparison: RunSet) -> str:
    """Return a sentence on the options in which several comparisons on one page differ."""
    if not comparison.labels:
        return ""
    options = "; ".join(f"{key} ({' | '.join(values)})" for key, values in comparison.differs[:MAX_OPTIONS])
    more = f" and {len(comparison.differs) - MAX_OPTIONS} more options" if len(comparison.differs) > MAX_OPTIONS else ""
    what = f"They differ in {options}{more}." if options else "They differ only in methods and seeds."
    return f"This report shows {len(comparison.labels)} comparisons: {', '.join(comparison.labels)}. {what}"


def _comparison_sentence(analysis: Analysis, rows: Sequence[MethodSummary]) -> str:
    """Return the sentences that list the methods, or the pairs, by conclusion; a better one with its cost."""
    comparison, row_of = analysis.comparison, {row.method: row for row in rows}
    groups: dict[tuple[str, str], list[str]] = {}
    unsure, mdes, counts = [], [], [0]
    for contrast in analysis.contrasts["last"]:
        first, second, conclusion = contrast.first, contrast.second, str(contrast.judged.conclusion)
        if conclusion == "worse" and second != comparison.baseline:
            first, second, conclusion = second, first, "better"
        if conclusion == "inconclusive":
            unsure.append(first if second == comparison.baseline else f"{first} vs. {second}")
            mdes.append(contrast.judged.mde or 0.0)
            counts.append(contrast.judged.count)
        elif conclusion:
            more = cost_words(row_of[first], row_of[second]) if conclusion == "better" else []
            groups.setdefault((conclusion, second), []).append(first + f" ({', '.join(more)})" * bool(more))
    ends = {"equivalent": f"equivalent to {{}} within ±{comparison.plan.margin_points:g} points"}
    sentences = []
    for (conclusion, second), names in sorted(groups.items(), key=lambda item: item[0][0]):
        end = ends.get(conclusion, f"{conclusion} than {{}}").format(second)
        sentences.append(f"{_list(names)} {'is' if len(names) == 1 else 'are'} {end}.")
    if unsure:
        mde = "" if comparison.looks else f" (MDE {_span(mdes, comparison.score)})"
        sentences.append(f"The results for {_list(unsure)} are inconclusive with {max(counts)} seeds{mde}.")
    return join_sentences(*sentences)


def _list(names: Sequence[str]) -> str:
    more = [f"{len(names) - MAX_NAMES} more"] if len(names) > MAX_NAMES + 1 else []
    return join_words([*names[: MAX_NAMES if more else None], *more])


def _span(values: Sequence[float], by: MainScore) -> str:
    """Return the range of differences with its unit."""
    low, high = points(min(values), by=by), points(max(values), by=by)
    return f"{low if low == high else f'{low} to {high}'}{by.points}"


def _test_warnings(analysis: Analysis, rows: Sequence[MethodSummary]) -> list[str]:
    """Return why differences were not tested, or do not count."""
    comparison = analysis.comparison
    family = [contrast.judged for contrast in analysis.contrasts["last"]]
    warnings = []
    if len(rows) > 1 and not any(judged.mean is not None for judged in family):
        warnings.append("The methods cannot be compared, because no two runs share a seed and clients.")
    elif any(judged.mean for judged in family) and not any(judged.p is not None for judged in family):
        notes = dict.fromkeys(judged.note for judged in family if judged.note)
        warnings.append(f"Differences were not tested ({'; '.join(notes)}). Run more seeds to test them.")
    if comparison.looks and family:
        warnings.append(star_sentence(comparison, family))
    warnings += [*_fragile_sentences(analysis)]
    if comparison.lengths and len(rows) > 1:
        before = ", then ".join(map(str, comparison.lengths))
        warnings.append(
            f"The results after {before} rounds were known before the runs were extended. The p-values do not account "
            "for this optional stopping."
        )
    return warnings


def _fragile_sentences(analysis: Analysis) -> Iterator[str]:
    """Yield a sentence on the conclusions that one seed decides, and one on differences that a few seeds change."""
    by, baseline = analysis.comparison.score, analysis.comparison.baseline
    decided, skewed = [], []
    for contrast in analysis.contrasts["last"]:
        judged = contrast.judged
        pair = contrast.first if contrast.second == baseline else f"{contrast.first} vs. {contrast.second}"
        if judged.deciding:
            seeds = judged.deciding
            which = f"seed {', '.join(map(str, seeds))}" if len(seeds) < 3 else f"any of {len(seeds)} seeds"
            decided.append(f"{pair} ({which})")
        if judged.is_skewed:
            mean, typical = (points(value or 0.0, sign=True, by=by) for value in (judged.mean, judged.typical))
            skewed.append(f"{pair} (mean {mean}, typical {typical})")
    if decided:
        yield f"One seed decides the conclusion on {_list(decided)}: without it, the result is inconclusive."
    if skewed:
        yield f"A few seeds move the mean difference out of the 95% CI of the typical difference: {_list(skewed)}."


def _adaptation_sentence(analysis: Analysis) -> str:
    """Return the sentences on the gain of adaptation; rules that need labels are excluded."""
    rows = [row for row in analysis.adaptation if not row.needs_labels and row.gain.mean is not None]
    if not rows:
        return ""
    several = sum(row.gain.p is not None for row in analysis.adaptation) > 1
    whose = "client" if rows[0].population == "unseen" else "participant"
    subject = f"Adaptation to a {whose}'s unlabeled inputs (“adapted”)"
    sentences: list[str] = []
    for conclusion in ("better", "worse", "equivalent", "inconclusive", ""):
        group = [row for row in rows if row.gain.conclusion == conclusion]
        if not group:
            continue
        names = [row.method for row in group]
        who = "every method" if 1 < len(group) == len(rows) else f"the method{'s' * (len(group) > 1)} {_list(names)}"
        by = f" with {who}" if len(analysis.comparison.methods) > 1 else ""
        gains = [row.gain.estimate or 0.0 for row in group]
        least_sure = max((row.gain for row in group), key=lambda gain: gain.p_corrected or 0.0)
        size = _round_span([abs(gain) for gain in gains]) if conclusion else _round_span(gains, "+")
        what = {
            "better": f"increases accuracy by {size}{by} ({_p(least_sure, several)})",
            "worse": f"decreases accuracy by {size}{by} ({_p(least_sure, several)})",
            "equivalent": f"changes accuracy by less than {analysis.comparison.plan.margin_points:g} points{by}",
            "inconclusive": f"has an inconclusive effect{by}",
            "": f"changes accuracy by {size}{by} (not tested)",
        }
        sentences.append(f"{'It' if sentences else subject} {what[conclusion]}.")
    if worse := [row.method for row in rows if row.change and row.change["loss"].conclusion == "worse"]:
        sentences.append(
            f"Log loss increases{f' with {_list(worse)}' if len(analysis.comparison.methods) > 1 else ''}."
        )
    return join_sentences(*sentences)


def _round_span(values: Sequence[float], sign: str = "") -> str:
    """Return a range of points, without decimals if it is wide; `sign` is "+" or empty."""
    places = 0 if min(map(abs, values)) >= 0.01 and max(values) - min(values) >= 0.01 else 1
    low, high = (f"{100 * value:{sign}.{places}f}".replace("-", "−") for value in (min(values), max(values)))
    return f"{low if low == high else f'{low} to {high}'} points"


def _power_sentence(comparison: RunSet, family: Sequence[PairedTest]) -> str:
    """Return the sentences on the minimum detectable effect, and on the seeds that would decide the rest."""
    detectable = [judged.mde for judged in family if judged.mde is not None]
    if not detectable:
        several = len({run.seed for run in comparison.all_counted}) > 1
        return seeds_scope(comparison.config) if several and len(comparison.methods) == 1 else ""
    seeds = max(judged.count for judged in family)
    needed = [judged.seeds_needed for judged in family if judged.seeds_needed is not None]
    more = ""
    if needed and comparison.plan.detect_points is None:  # with a pilot, the number of seeds is fixed
        limits = [judged.seeds_needed_high for judged in family if judged.seeds_needed is not None]
        largest = max((limit for limit in limits if limit is not None), default=None)
        limit = "without a limit" if largest is None or None in limits else f"at most {number(largest)}"
        more = (
            f" About {number(max(needed))} seeds decide all planned comparisons if the observed differences are the "
            f"true ones, and {limit} at the limits of the 95% CIs."
        )
    return (
        f"With {seeds} seeds, the smallest true difference detected with 80% power (MDE) is "
        f"{_span(detectable, comparison.score)}.{more} {seeds_scope(comparison.config)}"
    )


def _gap_sentence(by: MainScore, best: MethodSummary) -> str:
    if best.at["gap"].mean is None:
        return "Without unseen clients, there is no participation gap." if best.at["unseen"].count == 0 else ""
    limits, over = _gap_limits(best)
    text = f"The participation gap is {points(best.at['gap'].mean, by=by)}{by.points}{interval(*limits, by=by)}"
    if limits[0] is None or limits[1] is None:
        return f"{text}."
    return f"{text} (95% CI over {over}{', which includes 0' * (limits[0] <= 0 <= limits[1])})."


def _gap_limits(row: MethodSummary) -> tuple[tuple[float | None, float | None], str]:
    if row.at["gap"].low is not None:
        return (row.at["gap"].low, row.at["gap"].high), "seeds"
    return (row.gap_over_clients or (None, None)), "clients"


def _runs_left_out(comparison: RunSet) -> str:
    planned = len(comparison.runs) + len(comparison.absent)
    finished = sum(run.status == "finished" for run in comparison.runs)
    if finished == planned:
        return ""
    if comparison.provisional and planned == 1:
        return "The run has not finished. The numbers are from its last evaluated round."
    if comparison.provisional:
        return (
            f"None of the {planned} runs has finished. The numbers are from the last evaluated round of each run, and "
            "these rounds may differ."
        )
    are = "is" if planned - finished == 1 else "are"
    return f"{planned - finished} of {planned} runs did not finish and {are} not counted."


def _cards(analysis: Analysis, best: MethodSummary, rows: Sequence[MethodSummary]) -> tuple[Card, ...]:
    """Return the main numbers, the most important first."""
    comparison, by = analysis.comparison, analysis.comparison.score
    unit, difference = by.unit.strip(), by.points.strip()

    reached, first = primary_of(best, comparison), "Best on" if len(comparison.methods) > 1 else "On"
    spread = "one seed" if reached.sd is None else f"± {by.number(reached.sd)} sd over {reached.count} seeds"
    label = f"{first} {POPULATION[comparison.primary].words}"
    cards = [Card(label, by.number(reached.mean or 0.0), unit, f"{best.method}, {spread}")]
    if best.difference.estimate is not None:
        several = sum(contrast.judged.p is not None for contrast in analysis.contrasts["last"]) > 1
        tested = _p(best.difference, several) if best.difference.p is not None else best.difference.note
        value = points(best.difference.estimate, sign=True, by=by)
        cards.append(Card(f"{best.method} vs. {comparison.baseline}", value, difference, tested))
    for cheapest in cheapest_methods(rows):
        value, cost_unit = cheapest.text.split(" ")
        words = QUANTITIES[cheapest.quantity].words
        name = words if len(comparison.methods) == 1 else f"least {words}"
        label = f"{name.capitalize()} to {100 * (comparison.target_accuracy or 0):g}%"
        cards.append(Card(label, value, cost_unit, " and ".join(cheapest.methods)))
    free = [row for row in analysis.adaptation if not row.needs_labels and row.gain.mean is not None]
    if free:
        top = max(free, key=lambda row: row.at["adapted", "accuracy"].mean or 0.0)
        value = by.number(top.at["adapted", "accuracy"].mean or 0.0)
        gain = f"{top.method}, {estimate(top.gain).rstrip('*')} points"
        cards.append(Card("Best with adaptation, without labels", value, "%", gain))
    if best.at["gap"].mean is not None:
        limits, over = _gap_limits(best)
        detail = f"{interval(*limits, by=by).strip()} 95% CI over {over}" if limits[0] is not None else "no interval"
        value = points(best.at["gap"].mean, by=by)
        cards.append(Card(f"Participation gap of {best.method}", value, difference, detail))
    if best.at["unseen_worst_decile"].mean is not None:
        value = by.number(best.at["unseen_worst_decile"].mean)
        cards.append(Card("Worst 10% of unseen clients", value, unit, f"mean of {best.method} over these clients"))
    return tuple(cards)
