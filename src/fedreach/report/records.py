"""Numbers of a comparison for other programs: dictionaries (JSON) and CSV."""

from typing import Any

from fedreach._util.tables import csv_text
from fedreach.evaluation.statistics import PairedTest, Spread
from fedreach.report.adaptation import HARM, AdaptationSummary
from fedreach.report.analysis import PROBABILITIES, QUANTITIES, RADIO, MethodSummary
from fedreach.report.concerns import concerns
from fedreach.report.overview import Analysis
from fedreach.report.tables import tuning_record

Number = float | None
JUDGED = ("mean", "typical", "low", "high", "count", "p", "p_corrected", "p_equivalent", "mde")
"""Fields of a `PairedTest`."""
SEEDS_NEEDED = ("seeds_needed", "seeds_needed_high")


def as_records(analysis: Analysis) -> list[dict[str, Any]]:
    """Return one flat dictionary of numbers per method.

    Accuracies, gaps and differences are fractions. None means that a number was not measured, was not reached or is
    undefined. Prefixes of keys:

    - ``best_``: numbers at the best round according to participants' held-out loss.
    - ``theory_``: terms of the papers' bounds (see `theory.terms`), means over the rounds.
    - ``adapted_``: adaptation of the last model to unseen clients, if a method has a rule. ``adapted_MODE_SCORE`` is a
      score in one prediction mode, ``adapted_SCORE_change`` a change of log loss or calibration error (negative is
      better). The gain, the parts of the gap and the cost of fitting follow.
    - ``seconds_``, ``joules_``: simulated costs, only with radio.
    - ``metric_NAME_``: additional metrics, such as ``metric_auroc_unseen_mean``; ``left_out`` counts the clients for
      which a metric is undefined.
    """
    return [_record(analysis, last, best) for last, best in zip(analysis.last, analysis.best, strict=True)]


def baseline_records(analysis: Analysis) -> list[dict[str, Any]]:
    """Return one flat dictionary of numbers per baseline, with the keys of methods that apply to it."""
    return [
        {
            "method": row.method,
            "seeds": row.seeds,
            **{key: value for key, value in _numbers(row).items() if value is not None and key != "difference_seeds"},
        }
        for row in analysis.baselines
    ]


def as_document(analysis: Analysis) -> dict[str, Any]:
    """Return all numbers: the plan under ``statistics``, the planned ``contrasts``, and the ``methods``.

    ``leaders`` are the methods that are better than all other methods (see `fedreach.report.analysis`).

    ``baselines`` are scores that a model must beat. ``findings`` are the warnings about a comparison.

    For several comparisons, the document also contains their names (``comparisons``) and the options that differ
    (``differs``). For tuned comparisons, it contains the chosen settings and their scores (``tuning``).
    """
    comparison = analysis.comparison
    document = {
        "statistics": plan_record(analysis),
        "contrasts": contrast_records(analysis),
        "leaders": {when: list(leaders.methods) for when, leaders in analysis.leaders.items()},
        "methods": as_records(analysis),
        "baselines": baseline_records(analysis),
        "findings": list(concerns(comparison)),
    }
    if comparison.labels:
        document["comparisons"] = list(comparison.labels)
        document["differs"] = {key: list(values) for key, values in comparison.differs}
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
        record |= {f"{quantity.name}_to_target": last.to_target[quantity.name].mean for quantity in RADIO}
        for prefix, row in (("", last), ("best_", best)):
            for quantity in RADIO:
                record |= _spread_record(prefix + quantity.column, row.at[quantity.name])
    for prefix, summaries in (("", analysis.metrics["last"]), ("best_", analysis.metrics["best"])):
        for summary in summaries:
            if summary.method == last.method:
                for name, over_seeds in summary.at.items():
                    record |= _spread_record(f"{prefix}metric_{summary.metric}_{name}", over_seeds)
    for name, spread in analysis.terms[last.method].items():
        record |= _spread_record(f"theory_{name}", spread)
    adapted = {row.method: _adaptation_record(row) for row in analysis.adaptation}
    every_key = dict.fromkeys(
        key for method_record in adapted.values() for key in method_record
    )  # prediction modes differ between rules
    return record | every_key | adapted.get(last.method, {})


EXPECTED_GAIN_KEYS = ("adapted_expected_gain", "adapted_expected_gain_low", "adapted_expected_gain_high")


def _adaptation_record(row: AdaptationSummary) -> dict[str, Any]:
    """Return the numbers of a method's adaptation of the last model to unseen clients."""
    record: dict[str, Any] = {
        "adapted_rule": row.rule,
        "adapted_needs_labels": row.needs_labels,
        **_judgement_record("adapted_gain_", row.gain),
        **{key: row.harm[what].mean for what, key in HARM.items()},
        **dict(zip(EXPECTED_GAIN_KEYS, (spread.mean for spread in row.expected), strict=True)),
    }
    for score, change in row.change.items():
        record |= _judgement_record(f"adapted_{score}_change_", change)
    for n, with_n in row.gain_with.items():
        record |= _judgement_record(f"adapted_gain_with_{n}_", with_n)
    record |= {f"adapted_{what}_clients": spread.mean for what, spread in row.decided.items()}
    for (mode, score), spread in row.at.items():
        record |= _spread_record(f"adapted_{mode}_{score}", spread)
    record |= {f"adapted_gap_{part}": spread.mean for part, spread in row.gap.items()}
    record |= {f"adapted_kilobytes_{part}": spread.mean for part, spread in row.kilobytes.items()}
    return record | {f"adapted_{name}": spread.mean for name, spread in row.spent.items() if spread.mean is not None}


def _numbers(row: MethodSummary) -> dict[str, Number]:
    numbers: dict[str, Number] = {"round": row.at["round"].mean}
    names = [name for name, quantity in QUANTITIES.items() if name != "round" and not quantity.is_radio]
    for name in (*names, *(name for name in PROBABILITIES if name in row.at)):
        numbers |= _spread_record(name, row.at[name])
    gap = row.at["gap"]
    low, high = row.gap_over_clients or (None, None)
    return numbers | {
        "gap_low_over_seeds": gap.low,
        "gap_high_over_seeds": gap.high,
        "gap_low_over_clients": low,
        "gap_high_over_clients": high,
        **_judgement_record("difference_", row.difference),
    }


def contrast_records(analysis: Analysis) -> list[dict[str, Any]]:
    """Return the planned differences, first minus second, at the last round and, with ``best_``, at the best round.

    Differences and limits are fractions. Limits and tests are those of the typical difference. `mde` is the minimum
    detectable effect at 80% power. `seeds_needed` is the approximate number of seeds needed for a conclusion, and
    `seeds_needed_high` is the upper limit of this number.
    """
    return [
        {
            "first": last.first,
            "second": last.second,
            **_judgement_record("difference_", last.judged),
            **_judgement_record("best_difference_", best.judged),
        }
        for last, best in zip(analysis.contrasts["last"], analysis.contrasts["best"], strict=True)
    ]


def plan_record(analysis: Analysis) -> dict[str, Any]:
    """Return the plan of the comparison with its seeds and, if it has a pilot, the seeds of the pilot."""
    comparison = analysis.comparison
    pilot = None if comparison.pilot is None else list(comparison.pilot)
    plan = {**vars(comparison.plan), "seeds": list(comparison.seeds), "pilot": pilot, "looks": list(comparison.looks)}
    return plan | {"lengths": list(comparison.lengths)}


def _judgement_record(prefix: str, judged: PairedTest) -> dict[str, Any]:
    record = {f"{prefix}{'seeds' if name == 'count' else name}": getattr(judged, name) for name in JUDGED}
    record[f"{prefix}conclusion"] = judged.conclusion or None
    return record | {f"{prefix}{name}": getattr(judged, name) for name in SEEDS_NEEDED}


def _spread_record(name: str, spread: Spread) -> dict[str, Number]:
    return {f"{name}_mean": spread.mean, f"{name}_sd_over_seeds": spread.sd}


def to_csv(analysis: Analysis) -> str:
    """Return the numbers as CSV, one row per method and then one per baseline; missing numbers are empty."""
    return csv_text([*as_records(analysis), *baseline_records(analysis)])
