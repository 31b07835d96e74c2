"""Findings of a comparison in sentences, and the facts about its runs."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedreach.evaluation.scores import MainScore
from fedreach.evaluation.statistics import PairedTest
from fedreach.report.analysis import (
    POPULATION,
    QUANTITIES,
    MethodSummary,
    no_conclusion_reason,
    primary_of,
    seeds_scope,
)
from fedreach.report.concerns import concerns
from fedreach.report.numbers import Run, RunSet, interval, nats, number, p_text, points
from fedreach.report.overview import Analysis
from fedreach.report.radio import cheapest_methods, target_sentences

# ---- Facts about the runs

Pairs = tuple[tuple[str, str], ...]


def gather_facts(comparison: RunSet) -> dict[str, Any]:
    """Return settings, data, software and status of the runs, as templates/page.html lists them.

    Every value that differs between runs is listed.
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
    }


def _refusals(run: Run) -> list[tuple[str, str, str]]:
    """Return the clients or nodes with rejected replies, the rounds, and the first reason of each."""
    refusals: dict[str, list[tuple[int, str]]] = {}
    for round_number, who, why in run.refused:
        refusals.setdefault(who, []).append((round_number, why))
    return [(who, describe_rounds([round_number for round_number, _ in of]), of[0][1]) for who, of in refusals.items()]


def describe_rounds(rounds: Sequence[int]) -> str:
    """Return rounds in words: up to four by number, more as a count and a range.

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
        first.setdefault(run.method, settings)
    keys = list(dict.fromkeys(key for settings in first.values() for key in settings))
    same = [key for key in keys if len({settings.get(key) for settings in first.values()}) == 1]
    any_method = next(iter(first.values()), {})
    method_settings = tuple(
        (method, tuple((key, settings[key]) for key in settings if key not in same))
        for method, settings in first.items()
    )
    return tuple((key, any_method[key]) for key in same), method_settings if len(first) > 1 else ()


def _partition(runs: tuple[Run, ...]) -> Pairs:
    partitions = list({run.partition.hash: run.partition for run in runs}.values())
    if not partitions:
        return ()
    first = partitions[0]
    facts = {
        "clients": f"{len(first.participants)} participants, {len(first.unseen)} unseen",
        "examples per client": f"{first.sizes.min()} to {first.sizes.max()}, median {np.median(first.sizes):g}",
        "classes": str(first.label_counts.shape[1] or ("not told" if first.targets is None else "none: numbers")),
        **flatten(first.statistics),
        **flatten(first.noise or {}, "noise."),
        **flatten({**first.shift, "clients": len(first.shift["clients"])} if first.shift else {}, "shift."),
        "federation hash": " | ".join(partition.hash[:16] for partition in partitions),
    }
    return tuple(facts.items())


def _columns(runs: tuple[Run, ...]) -> tuple[tuple[str, str, str], ...]:
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


@dataclass(frozen=True)
class Card:
    """One number with its meaning."""

    label: str
    value: str
    unit: str
    detail: str


@dataclass(frozen=True)
class Findings:
    """A headline, the sentences that qualify it, and its main numbers."""

    headline: str
    sentences: tuple[str, ...]
    cards: tuple[Card, ...]
    qualifying: tuple[str, ...] = ()  # the sentences without which the headline would claim too much

    @property
    def further(self) -> tuple[str, ...]:
        """The sentences that do not qualify the headline."""
        return tuple(sentence for sentence in self.sentences if sentence not in self.qualifying)


def find(analysis: Analysis) -> Findings:
    """Return the findings of a comparison at the last round.

    A method is called better than another only if the conclusion of `run_paired_tests` is "better". Else the sentence
    reports that they are equivalent, or how many seeds would decide.
    """
    comparison, rows = analysis.comparison, analysis.judged()
    if not rows:
        return Findings("No run has a result yet", ("Report again after the first evaluated round.",), ())
    best = best_of(comparison, rows)
    headline = _headline(comparison, best, rows)
    if comparison.provisional:
        headline = f"So far: {headline}"
    several, concerned, left_out = _several_sentence(comparison), concerns(comparison), _runs_left_out(comparison)
    compared, adapted = _comparison_sentences(analysis, best, rows), _adaptation_sentence(analysis)
    sentences = [
        several,
        *concerned,
        *compared,
        _power_sentence(comparison, [contrast.judged for contrast in analysis.contrasts["last"]]),
        _gap_sentence(comparison.score, best, rows),
        adapted,
        *target_sentences(comparison, rows),
        left_out,
    ]
    qualifying = [several, *concerned, *compared, adapted, left_out]
    return Findings(
        headline, tuple(filter(None, sentences)), _cards(comparison, best, rows), tuple(filter(None, qualifying))
    )


def _adaptation_sentence(analysis: Analysis) -> str:
    """Return a sentence on the method with the highest adapted accuracy; rules that need labels are excluded."""
    rows = [row for row in analysis.adaptation if not row.needs_labels and row.gain.mean is not None]
    if not rows:
        return ""
    best = max(rows, key=lambda row: row.at["adapted", "accuracy"].mean or 0.0)
    plain, adapted = (100 * (best.at[mode, "accuracy"].mean or 0.0) for mode in ("unadapted", "adapted"))
    gain = f"{points(best.gain.mean or 0.0, sign=True)} points{interval(best.gain.low, best.gain.high, sign=True)}"
    sure = "" if best.gain.p_corrected is None else f", {_p(best.gain)} corrected"
    whom = "Unseen clients" if best.population == "unseen" else "Participants"
    loss = best.change["loss"]
    also = "" if loss.mean is None else f" Their log loss changes by {nats(loss)} nats."
    return (
        f"{whom} that are adapted by their own inputs, without labels, reach {adapted:.1f} % with {best.method} "
        f"instead of {plain:.1f} % ({gain}{sure}).{also}"
    )


def best_of(comparison: RunSet, rows: Sequence[MethodSummary]) -> MethodSummary:
    """Return the row with the best primary score, the baseline's on a tie; `rows` must all have one."""
    return max(rows, key=lambda row: (_rank(row, comparison), row.is_baseline))


def _rank(row: MethodSummary, comparison: RunSet) -> float:
    return comparison.score.rank(primary_of(row, comparison).mean or 0.0)


def _headline(comparison: RunSet, best: MethodSummary, rows: list[MethodSummary]) -> str:
    where = POPULATION[comparison.primary].words
    score = comparison.score
    value = score.shown(primary_of(best, comparison).mean or 0.0)
    value = value if score.percent else f"a {score.words} of {value}"
    if len(comparison.methods) == 1:
        return f"{best.method} reaches {value} on {where}"
    if not any(row.is_baseline for row in rows):
        return f"{best.method} leads on {where} with {value}; {comparison.baseline}, the baseline, has no result"
    if len(rows) == 1:
        return f"{best.method} reaches {value} on {where}; no other method has a result"
    if best.is_baseline:
        return f"No method does better on {where} than {best.method}, the baseline, with {value}"
    over = "below" if score.lower_is_better else "above"
    if best.difference.conclusion == "better":
        lead = points(abs(best.difference.mean or 0), by=score)
        base = next(row for row in rows if row.is_baseline)
        fewer = best.difference.count < max(best.seeds, base.seeds)
        pairs = " on the seeds that both finished" if fewer else ""
        return f"{best.method} is best on {where}: {value}, {lead}{score.points} {over} {comparison.baseline}{pairs}"
    if best.difference.conclusion == "equivalent":
        margin = f"within ± {comparison.plan.margin_points:g} points"
        return f"{best.method} is ahead on {where} with {value}, and equivalent to {comparison.baseline} {margin}"
    return f"{best.method} is ahead on {where} with {value}, but not clearly {over} {comparison.baseline}"


def _p(judged: PairedTest) -> str:
    text = p_text(judged.p_corrected)
    return f"p {text}" if text.startswith("<") else f"p = {text}"


def _several_sentence(comparison: RunSet) -> str:
    """Return a sentence on the options in which several comparisons on one page differ."""
    if not comparison.labels:
        return ""
    options = "; ".join(f"{key} ({' | '.join(values)})" for key, values in comparison.differs[:MAX_OPTIONS])
    more = f" and {len(comparison.differs) - MAX_OPTIONS} more options" if len(comparison.differs) > MAX_OPTIONS else ""
    what = f"They differ in {options}{more}." if options else "They differ in no option but methods and seeds."
    return f"These are {len(comparison.labels)} comparisons: {', '.join(comparison.labels)}. {what}"


def _comparison_sentences(analysis: Analysis, best: MethodSummary, rows: list[MethodSummary]) -> list[str]:
    comparison = analysis.comparison
    family = [contrast.judged for contrast in analysis.contrasts["last"]]
    tests = sum(judged.p is not None for judged in family)
    if len(rows) == 1:
        return []
    if not any(judged.mean is not None for judged in family):
        return ["No difference could be formed: no two runs share seed and clients."]
    if not tests:
        notes = dict.fromkeys(judged.note for judged in family if judged.note)
        return [f"Differences were not tested ({'; '.join(notes)}): with more seeds they can be."]
    sentences = [_difference_sentence(comparison, best, tests)] if not best.is_baseline else []
    sentences.append(_conclusion_sentence(analysis))
    if comparison.looks:
        sentences.append(f"There is no conclusion: {no_conclusion_reason(comparison)}.")
    if comparison.lengths:
        before = ", then ".join(map(str, comparison.lengths))
        sentences.append(
            f"Results after {before} rounds could be seen before the runs were made longer: who looks after several "
            "lengths has several chances to find a difference, and p allows for one."
        )
    return sentences


def _difference_sentence(comparison: RunSet, best: MethodSummary, tests: int) -> str:
    difference = best.difference
    if difference.mean is None:
        return f"A difference to {comparison.baseline} cannot be formed: {difference.note}."
    by = comparison.score
    text = f"Its difference to {comparison.baseline} is {points(difference.mean, sign=True, by=by)}{by.points}"
    if difference.p is None:
        return f"{text}. That was not tested ({difference.note})."
    correction = f", both corrected for {tests} comparisons" if tests > 1 else ""
    return (
        f"{text}{interval(difference.low, difference.high, sign=True, by=by)} over {difference.count} seeds, "
        f"{_p(difference)}{correction}."
    )


def _conclusion_sentence(analysis: Analysis) -> str:
    """Return the sentences that list the methods by conclusion."""
    comparison = analysis.comparison
    simple = comparison.plan.contrasts == "baseline"
    named: dict[str, list[str]] = {}
    for contrast in analysis.contrasts["last"]:
        if contrast.judged.conclusion:
            name = contrast.first if simple else f"{contrast.first} against {contrast.second}"
            named.setdefault(contrast.judged.conclusion, []).append(name)
    margin = f"within ± {comparison.plan.margin_points:g} points to"
    links = {"better": "than", "worse": "than", "equivalent": margin, "inconclusive": "against"}
    parts = [
        f"{conclusion.capitalize()}{f' {link} {comparison.baseline}' * simple}: {', '.join(named[conclusion])}."
        for conclusion, link in links.items()
        if conclusion in named
    ]
    return " ".join(parts)


def _power_sentence(comparison: RunSet, family: Sequence[PairedTest]) -> str:
    """Return the sentence on minimum detectable differences, and on the seeds that would decide the rest."""
    detectable = [judged.mde for judged in family if judged.mde is not None]
    if not detectable:
        return ""
    seeds = max(judged.count for judged in family)
    by = comparison.score
    low, high = points(min(detectable), by=by), points(max(detectable), by=by)
    span = f"{low}{by.points}" if low == high else f"{low} to {high}{by.points}, by the pair,"
    needed = [judged.seeds_needed for judged in family if judged.seeds_needed is not None]
    more = f" About {number(max(needed))} seeds would decide every pair as it stands." if needed else ""
    draws = seeds_scope(comparison.config)
    return f"These {seeds} seeds find a true difference of {span} in four of five comparisons.{more} {draws}"


def _gap_sentence(by: MainScore, best: MethodSummary, rows: list[MethodSummary]) -> str:
    if best.at["gap"].mean is None:
        return "No client was kept unseen, so there is no participation gap." if best.at["unseen"].count == 0 else ""
    limits, over = _gap_limits(best)
    text = f"Its participation gap is {points(best.at['gap'].mean, by=by)}{by.points}{interval(*limits, by=by)}"
    text += f", 95 % over {over}" if limits[0] is not None else ""
    if limits[0] is not None and limits[1] is not None and limits[0] <= 0 <= limits[1]:
        text += ", so it may be none"
    base = next((row for row in rows if row.is_baseline and row is not best and row.at["gap"].mean is not None), None)
    return text + (f"; {base.method}'s is {points(base.at['gap'].mean or 0, by=by)}." if base else ".")


def _gap_limits(row: MethodSummary) -> tuple[tuple[float | None, float | None], str]:
    if row.at["gap"].low is not None:
        return (row.at["gap"].low, row.at["gap"].high), "seeds"
    return (row.gap_over_clients or (None, None)), "clients"


def _runs_left_out(comparison: RunSet) -> str:
    planned = len(comparison.runs) + len(comparison.absent)
    finished = sum(run.status == "finished" for run in comparison.runs)
    if finished == planned:
        return ""
    if comparison.provisional:
        return (
            f"No run of {planned} has finished: numbers are from each one's last evaluated round, and compare "
            "badly where these rounds differ."
        )
    return f"{planned - finished} of {planned} runs did not finish and are not counted; they are listed below."


def _cards(comparison: RunSet, best: MethodSummary, rows: list[MethodSummary]) -> tuple[Card, ...]:
    reached, by = primary_of(best, comparison), comparison.score
    spread = f"± {by.number(reached.sd)} sd over {reached.count} seeds" if reached.sd is not None else "one seed"
    unit, difference = by.unit.strip(), by.points.strip()
    first = "Best on" if len(comparison.methods) > 1 else "On"
    cards = [
        Card(
            f"{first} {POPULATION[comparison.primary].words}",
            by.number(reached.mean or 0.0),
            unit,
            f"{best.method}, {spread}",
        )
    ]
    if best.at["gap"].mean is not None:
        limits, over = _gap_limits(best)
        detail = f"{interval(*limits, by=by).strip()} 95 % over {over}" if limits[0] is not None else "no interval"
        cards.append(Card("Its participation gap", points(best.at["gap"].mean, by=by), difference, detail))
    if best.difference.mean is not None:
        tested = f"{_p(best.difference)} corrected" if best.difference.p is not None else best.difference.note
        value = points(best.difference.mean, sign=True, by=by)
        cards.append(Card(f"Against {comparison.baseline}", value, difference, tested))
    if best.at["unseen_worst_decile"].mean is not None:
        value = by.number(best.at["unseen_worst_decile"].mean)
        cards.append(
            Card("Its worst tenth of unseen clients", value, unit, f"mean {by.words.removeprefix('mean ')} over them")
        )
    for cheapest in cheapest_methods(rows):
        value, unit = cheapest.text.split(" ")
        words = QUANTITIES[cheapest.quantity].words
        name = words if len(comparison.methods) == 1 else f"least {words}"
        label = f"{name.capitalize()} to {100 * (comparison.target_accuracy or 0):g} %"
        cards.append(Card(label, value, unit, " and ".join(cheapest.methods)))
    return tuple(cards)
