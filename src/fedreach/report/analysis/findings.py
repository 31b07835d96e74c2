"""What was found, in words that claim no more than the numbers allow."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedreach.report.analysis.analysis import Analysis
from fedreach.report.analysis.quantities import POPULATION, QUANTITIES
from fedreach.report.analysis.summary import MethodSummary, primary_of
from fedreach.report.analysis.targets import leasts, target_sentences
from fedreach.report.numbers import interval, nats, p_text, percent, points
from fedreach.report.values import Comparison

LEVEL = 0.05


@dataclass(frozen=True)
class Card:
    """One number with its meaning."""

    label: str
    value: str
    unit: str
    detail: str


@dataclass(frozen=True)
class Findings:
    """A headline, the sentences that qualify it, and the numbers behind it."""

    headline: str
    sentences: tuple[str, ...]
    cards: tuple[Card, ...]


def find(analysis: Analysis) -> Findings:
    """Return what the comparison shows at the last round.

    A method is called better than the baseline only if the paired t test says so after Holm's correction at
    the 5 % level; else the wording says that the seeds cannot tell them apart, or that there are too few.
    """
    comparison, rows = analysis.comparison, analysis.judged()
    if not rows:
        return Findings("No run has a result yet", ("Report again after the first evaluated round.",), ())
    best = best_of(comparison, rows)
    headline = _headline(comparison, best, rows)
    if comparison.provisional:
        headline = f"So far: {headline}"
    sentences = [
        _comparison_sentence(comparison, best, rows),
        _gap_sentence(best, rows),
        _serving_sentence(analysis),
        _runner_up(comparison, best, rows),
        *target_sentences(comparison, rows),
        _runs_left_out(comparison),
    ]
    return Findings(headline, tuple(s for s in sentences if s), _cards(comparison, best, rows))


def _serving_sentence(analysis: Analysis) -> str:
    """Return what serving is worth to whom it is worth most; references that need labels do not count."""
    rows = [row for row in analysis.serving if not row.needs_labels and row.gain.mean is not None]
    if not rows:
        return ""
    best = max(rows, key=lambda row: row.at["served", "accuracy"].mean or 0.0)
    plain, served = (100 * (best.at[rung, "accuracy"].mean or 0.0) for rung in ("plain", "served"))
    gain = f"{points(best.gain.mean or 0.0, sign=True)} points{interval(best.gain.low, best.gain.high, sign=True)}"
    p = p_text(best.corrected_p)
    sure = "" if best.corrected_p is None else f", p {p} corrected" if p.startswith("<") else f", p = {p} corrected"
    whom = "Unseen clients" if best.population == "unseen" else "Participants"
    loss = best.change["loss"]
    also = "" if loss.mean is None else f" Their log loss changes by {nats(loss)} nats."
    return (
        f"{whom} that are served by their own inputs, without labels, reach {served:.1f} % with {best.method} instead "
        f"of {plain:.1f} % ({gain}{sure}).{also}"
    )


def best_of(comparison: Comparison, rows: Sequence[MethodSummary]) -> MethodSummary:
    """Return the row with the highest primary accuracy, the baseline's on a tie; `rows` must all have one."""
    return max(rows, key=lambda row: (primary_of(row, comparison).mean, row.is_baseline))


def _headline(comparison: Comparison, best: MethodSummary, rows: list[MethodSummary]) -> str:
    where = POPULATION[comparison.primary].words
    value = f"{100 * (primary_of(best, comparison).mean or 0):.1f} %"
    if len(comparison.methods) == 1:
        return f"{best.method} reaches {value} on {where}"
    if not any(row.is_baseline for row in rows):
        return f"{best.method} leads on {where} with {value}; {comparison.baseline}, the baseline, has no result"
    if len(rows) == 1:
        return f"{best.method} reaches {value} on {where}; no other method has a result"
    if best.is_baseline:
        return f"No method does better on {where} than {best.method}, the baseline, with {value}"
    if is_significant(best) and (best.difference.mean or 0) > 0:
        lead = points(best.difference.mean or 0)
        base = next(row for row in rows if row.is_baseline)
        fewer = best.difference.count < max(best.seeds, base.seeds)
        pairs = " on the seeds that both finished" if fewer else ""
        return f"{best.method} serves {where} best: {value}, {lead} points above {comparison.baseline}{pairs}"
    return f"{best.method} is ahead on {where} with {value}, but not clearly above {comparison.baseline}"


def _p(row: MethodSummary) -> str:
    text = p_text(row.corrected_p)
    return f"p {text}" if text.startswith("<") else f"p = {text}"


def is_significant(row: MethodSummary) -> bool:
    """Whether the difference to the baseline holds at the 5 % level after Holm's correction."""
    return row.corrected_p is not None and row.corrected_p < LEVEL


def _comparison_sentence(comparison: Comparison, best: MethodSummary, rows: list[MethodSummary]) -> str:
    others = [row for row in rows if row.difference.mean is not None]
    tests = sum(row.difference.p is not None for row in others)
    if not others:
        unpaired = "No difference to the baseline could be formed: no run shares seed and clients with it."
        return unpaired if len(rows) > 1 else ""
    if best.is_baseline:
        worse = [row.method for row in others if is_significant(row)]
        if not tests:
            return f"Whether the others are worse cannot be said: {others[0].difference.note}."
        if not worse:
            return f"No difference to it is significant after Holm's correction for {tests}: they may be as good."
        return f"Significantly below it after Holm's correction for {tests}: {', '.join(worse)}."
    difference = best.difference
    if difference.mean is None:
        return f"A difference to {comparison.baseline} cannot be formed: {difference.note}."
    text = f"Its difference to {comparison.baseline} is {points(difference.mean, sign=True)} points"
    if difference.p is None:
        return f"{text}. That was not tested ({difference.note}): with more seeds it can be."
    verdict = "significant" if is_significant(best) else "not significant"
    return (
        f"{text}{interval(difference.low, difference.high, sign=True)}, 95 % over {difference.count} seeds; "
        f"{verdict} at the 5 % level ({_p(best)} after Holm's correction for {tests}).{_also_above(best, others)}"
    )


def _also_above(best: MethodSummary, others: list[MethodSummary]) -> str:
    above = [r.method for r in others if r is not best and is_significant(r) and (r.difference.mean or 0) > 0]
    return f" Significantly above the baseline as well: {', '.join(above)}." if above else ""


def _gap_sentence(best: MethodSummary, rows: list[MethodSummary]) -> str:
    if best.at["gap"].mean is None:
        return "No client was kept unseen, so there is no participation gap." if best.at["unseen"].count == 0 else ""
    limits, over = _gap_limits(best)
    text = f"Its participation gap is {points(best.at['gap'].mean)} points{interval(*limits)}"
    text += f", 95 % over {over}" if limits[0] is not None else ""
    if limits[0] is not None and limits[1] is not None and limits[0] <= 0 <= limits[1]:
        text += ", so it may be none"
    base = next((row for row in rows if row.is_baseline and row is not best and row.at["gap"].mean is not None), None)
    return text + (f"; {base.method}'s is {points(base.at['gap'].mean or 0)}." if base else ".")


def _gap_limits(row: MethodSummary) -> tuple[tuple[float | None, float | None], str]:
    if row.at["gap"].low is not None:
        return (row.at["gap"].low, row.at["gap"].high), "seeds"
    return (row.gap_over_clients or (None, None)), "clients"


def _runner_up(comparison: Comparison, best: MethodSummary, rows: list[MethodSummary]) -> str:
    others = [row for row in rows if row is not best and not row.is_baseline]
    if not others:
        return ""
    second = max(others, key=lambda row: primary_of(row, comparison).mean or 0)
    value = percent(primary_of(second, comparison))
    return f"Next comes {second.method} with {value} %; the two were not tested against each other."


def _runs_left_out(comparison: Comparison) -> str:
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


def _cards(comparison: Comparison, best: MethodSummary, rows: list[MethodSummary]) -> tuple[Card, ...]:
    accuracy = primary_of(best, comparison)
    spread = f"± {100 * accuracy.sd:.1f} sd over {accuracy.count} seeds" if accuracy.sd is not None else "one seed"
    first = "Best on" if len(comparison.methods) > 1 else "On"
    cards = [
        Card(
            f"{first} {POPULATION[comparison.primary].words}",
            f"{100 * (accuracy.mean or 0):.1f}",
            "%",
            f"{best.method}, {spread}",
        )
    ]
    if best.at["gap"].mean is not None:
        limits, over = _gap_limits(best)
        detail = f"{interval(*limits).strip()} 95 % over {over}" if limits[0] is not None else "no interval"
        cards.append(Card("Its participation gap", points(best.at["gap"].mean), "points", detail))
    if best.difference.mean is not None:
        tested = f"{_p(best)} corrected" if best.corrected_p is not None else best.difference.note
        value = points(best.difference.mean, sign=True)
        cards.append(Card(f"Against {comparison.baseline}", value, "points", tested))
    if best.at["unseen_worst_decile"].mean is not None:
        value = f"{100 * best.at['unseen_worst_decile'].mean:.1f}"
        cards.append(Card("Its worst tenth of unseen clients", value, "%", "mean accuracy over them"))
    for least in leasts(rows):
        value, unit = least.text.split(" ")
        words = QUANTITIES[least.quantity].words
        name = words if len(comparison.methods) == 1 else f"least {words}"
        label = f"{name.capitalize()} to {100 * (comparison.target_accuracy or 0):g} %"
        cards.append(Card(label, value, unit, " and ".join(least.methods)))
    return tuple(cards)
