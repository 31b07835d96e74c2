"""The comparison as plain numbers for other programs: dictionaries (JSON) and CSV."""

from typing import Any

from fedreach._util.tables import csv_text
from fedreach.evaluation.statistics import Judgement, Spread
from fedreach.report.adaptation import ServedSummary
from fedreach.report.analysis import PROBABILITIES, QUANTITIES, RADIO, MethodSummary
from fedreach.report.concerns import concerns
from fedreach.report.overview import Analysis
from fedreach.report.tables import tuning_record

Number = float | None


def as_records(analysis: Analysis) -> list[dict[str, Any]]:
    """Return one flat dictionary of plain numbers per method.

    Accuracies, gaps and differences are fractions; ``best_`` marks the best round on participants' held-out
    loss; ``theory_`` are terms of the papers' bounds (see `theory.terms`), means over the rounds; None is what was not
    measured, not reached or cannot be said. ``served_`` says how unseen clients are served by the last model, where a
    method has a serving rule: ``served_RUNG_SCORE``, the gain over plain, what changes in log loss and calibration
    error (``served_SCORE_change``, below 0 is better), the gap taken apart, and what fitting cost.
    With radio there are simulated ``seconds_`` and ``joules_`` as well. Metrics beside accuracy and loss are
    ``metric_NAME_``, and the same words: ``metric_auroc_unseen_mean``; ``left_out`` is how many clients each is not
    defined for.
    """
    return [_record(analysis, last, best) for last, best in zip(analysis.last, analysis.best, strict=True)]


def baseline_records(analysis: Analysis) -> list[dict[str, Any]]:
    """Return one flat dictionary of plain numbers per baseline, with those of the keys of methods that it has."""
    return [
        {
            "method": row.method,
            "seeds": row.seeds,
            **{key: value for key, value in _numbers(row).items() if value is not None and key != "difference_seeds"},
        }
        for row in analysis.baselines
    ]


def as_document(analysis: Analysis) -> dict[str, Any]:
    """Return all numbers: the plan under ``statistics``, the ``contrasts`` it names, and the ``methods``.

    ``leaders`` are the methods that are better than every other one, see `fedreach.report.analysis`.

    ``baselines`` are what a model must beat, and ``findings`` the sentences that must not be overlooked.

    Of several comparisons also their names, and under ``differs`` what each says of the options that differ; where
    settings were chosen, ``tuning`` says which, and by what.
    """
    comparison = analysis.comparison
    document = {
        "statistics": plan_record(analysis),
        "contrasts": contrast_records(analysis),
        "leaders": {when: list(found.methods) for when, found in analysis.leaders.items()},
        "methods": as_records(analysis),
        "baselines": baseline_records(analysis),
        "findings": list(concerns(comparison)),
    }
    if comparison.labels:
        document["comparisons"] = list(comparison.labels)
        document["differs"] = {key: list(said) for key, said in comparison.differs}
    if comparison.tuning is not None:
        document["tuning"] = tuning_record(comparison.tuning)
    return document


def _record(analysis: Analysis, last: MethodSummary, best: MethodSummary) -> dict[str, Any]:
    target = analysis.comparison.target_accuracy
    record: dict[str, Any] = {
        "method": last.method,
        "baseline": last.is_baseline,
        "seeds": last.seeds,
        "seeds_planned": last.seeds_planned,
        "primary": analysis.comparison.primary,
        **_numbers(last),
        "target_accuracy": target,
        "seeds_reached_target": last.reached if target is not None else None,
        "rounds_to_target": last.to_target["round"].mean,
        "megabytes_to_target": last.to_target["megabytes"].mean,
        **{f"best_{key}": value for key, value in _numbers(best).items()},
    }
    if analysis.comparison.radio:
        record |= {f"{each.name}_to_target": last.to_target[each.name].mean for each in RADIO}
        for prefix, row in (("", last), ("best_", best)):
            for each in RADIO:
                record |= _spread(prefix + each.column, row.at[each.name])
    for prefix, further in (("", analysis.metrics["last"]), ("best_", analysis.metrics["best"])):
        for own in further:
            if own.method == last.method:
                for name, over_seeds in own.at.items():
                    record |= _spread(f"{prefix}metric_{own.metric}_{name}", over_seeds)
    for name, spread in analysis.terms[last.method].items():
        record |= _spread(f"theory_{name}", spread)
    served = {row.method: _served(row) for row in analysis.serving}
    every_key = dict.fromkeys(key for found in served.values() for key in found)  # rules have not all the same rungs
    return record | every_key | served.get(last.method, {})


EXPECTED = ("served_expected_gain", "served_expected_gain_low", "served_expected_gain_high")


def _served(row: ServedSummary) -> dict[str, Any]:
    """Return how a method's rule serves unseen clients by the last model."""
    record: dict[str, Any] = {
        "served_rule": row.rule,
        "served_needs_labels": row.needs_labels,
        **_judged("served_gain_", row.gain),
        "served_worse_share": row.worse.mean,
        "served_harmed_share": row.harmed.mean,
        "served_worst_change": row.worst_change.mean,
        "served_worst_inputs": row.worst_inputs.mean,
        **dict(zip(EXPECTED, (spread.mean for spread in row.expected), strict=True)),
    }
    for score, change in row.change.items():
        record |= _judged(f"served_{score}_change_", change)
    for n, with_n in row.gain_with.items():
        record |= _judged(f"served_gain_with_{n}_", with_n)
    record |= {f"served_{what}_clients": spread.mean for what, spread in row.decided.items()}
    for (rung, score), spread in row.at.items():
        record |= _spread(f"served_{rung}_{score}", spread)
    record |= {f"served_gap_{part}": spread.mean for part, spread in row.gap.items()}
    record |= {f"served_kilobytes_{part}": spread.mean for part, spread in row.kilobytes.items()}
    return record | {f"served_{name}": spread.mean for name, spread in row.spent.items() if spread.mean is not None}


def _numbers(row: MethodSummary) -> dict[str, Number]:
    numbers: dict[str, Number] = {"round": row.at["round"].mean}
    for name, quantity in QUANTITIES.items():
        if name != "round" and not quantity.is_radio:
            numbers |= _spread(name, row.at[name])
    for name in PROBABILITIES:
        if name in row.at:
            numbers |= _spread(name, row.at[name])
    gap = row.at["gap"]
    low, high = row.gap_over_clients or (None, None)
    return numbers | {
        "gap_low_over_seeds": gap.low,
        "gap_high_over_seeds": gap.high,
        "gap_low_over_clients": low,
        "gap_high_over_clients": high,
        **_judged("difference_", row.difference),
    }


def contrast_records(analysis: Analysis) -> list[dict[str, Any]]:
    """Return the differences that the plan names, first minus second, at the last round and as ``best_`` at the best.

    Differences and limits are fractions; `detectable` is the least difference that would have been found with power
    0.8, `seeds_needed` about how many seeds would decide.
    """
    return [
        {
            "first": last.first,
            "second": last.second,
            **_judged("difference_", last.judged),
            **_judged("best_difference_", best.judged),
        }
        for last, best in zip(analysis.contrasts["last"], analysis.contrasts["best"], strict=True)
    ]


def plan_record(analysis: Analysis) -> dict[str, Any]:
    """Return what the comparison was asked, with the seeds of the pilot where a pilot gave their number."""
    comparison = analysis.comparison
    pilot = None if comparison.pilot is None else list(comparison.pilot)
    said = {**vars(comparison.plan), "seeds": list(comparison.seeds), "pilot": pilot, "looks": list(comparison.looks)}
    return said | {"lengths": list(comparison.lengths)}


def _judged(prefix: str, judged: Judgement) -> dict[str, Any]:
    return {
        f"{prefix}mean": judged.mean,
        f"{prefix}low": judged.low,
        f"{prefix}high": judged.high,
        f"{prefix}seeds": judged.count,
        f"{prefix}p": judged.p,
        f"{prefix}p_corrected": judged.p_corrected,
        f"{prefix}p_equivalent": judged.p_equivalent,
        f"{prefix}detectable": judged.detectable,
        f"{prefix}verdict": judged.verdict or None,
        f"{prefix}seeds_needed": judged.seeds_needed,
    }


def _spread(name: str, spread: Spread) -> dict[str, Number]:
    return {f"{name}_mean": spread.mean, f"{name}_sd_over_seeds": spread.sd}


def to_csv(analysis: Analysis) -> str:
    """Return plain numbers as CSV, one row a method and below them one a baseline, empty where there is none."""
    return csv_text([*as_records(analysis), *baseline_records(analysis)])
