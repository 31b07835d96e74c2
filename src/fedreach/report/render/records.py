"""The comparison as plain numbers for other programs: dictionaries (JSON) and CSV."""

from __future__ import annotations

import csv
import io
from typing import Any

from fedreach.report.analysis.summary import MethodSummary, summarize
from fedreach.report.render.theory import theory_records
from fedreach.report.values import Comparison


def as_records(comparison: Comparison) -> list[dict[str, Any]]:
    """Return one flat dictionary of plain numbers per method.

    Accuracies, gaps and differences are fractions; ``best_`` marks the best round on participants' held-out
    loss; ``theory_`` are terms of the papers' bounds (see `theory.terms`), means over the rounds; None is what was not
    measured, not reached or cannot be said. With radio there are simulated ``seconds_`` and ``joules_`` as well.
    """
    records = []
    for last, best in zip(summarize(comparison, "last"), summarize(comparison, "best"), strict=True):
        record: dict[str, Any] = {
            "method": last.method,
            "baseline": last.is_baseline,
            "seeds": last.seeds,
            "seeds_planned": last.seeds_planned,
            "primary": comparison.primary,
            **_numbers(last),
            "target_accuracy": comparison.target_accuracy,
            "seeds_reached_target": last.reached if comparison.target_accuracy is not None else None,
            "rounds_to_target": last.rounds_to_target.mean,
            "megabytes_to_target": last.megabytes_to_target.mean,
            **{f"best_{key}": value for key, value in _numbers(best).items()},
            **(_radio(last, best) if comparison.radio else {}),
            **theory_records(comparison, last.method),
        }
        records.append(record)
    return records


def _numbers(row: MethodSummary) -> dict[str, float | None]:
    numbers: dict[str, float | None] = {"round": row.round.mean}
    for name, spread in (
        ("participants", row.participants),
        ("unseen", row.unseen),
        ("test", row.test),
        ("gap", row.gap),
        ("participants_worst_decile", row.participants_worst_decile),
        ("unseen_worst_decile", row.unseen_worst_decile),
        ("megabytes", row.megabytes),
    ):
        numbers |= {f"{name}_mean": spread.mean, f"{name}_sd_over_seeds": spread.sd}
    numbers |= {"gap_low_over_seeds": row.gap.low, "gap_high_over_seeds": row.gap.high}
    low, high = row.gap_over_clients or (None, None)
    numbers |= {"gap_low_over_clients": low, "gap_high_over_clients": high}
    difference = row.difference
    numbers |= {
        "difference_mean": difference.mean,
        "difference_low": difference.low,
        "difference_high": difference.high,
    }
    return numbers | {"difference_seeds": difference.count, "p": difference.p, "p_corrected": row.corrected_p}


def _radio(last: MethodSummary, best: MethodSummary) -> dict[str, float | None]:
    numbers = {"seconds_to_target": last.seconds_to_target.mean, "joules_to_target": last.joules_to_target.mean}
    for prefix, row in (("", last), ("best_", best)):
        for name, found in (("seconds_total", row.seconds), ("joules_total", row.joules)):
            numbers |= {f"{prefix}{name}_mean": found.mean, f"{prefix}{name}_sd_over_seeds": found.sd}
    return numbers


def to_csv(comparison: Comparison) -> str:
    """Return `as_records` as CSV: plain numbers, one row a method, empty where there is none."""
    records = as_records(comparison)
    out = io.StringIO()
    writer = csv.DictWriter(out, records[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: "" if value is None else value for key, value in record.items()} for record in records)
    return out.getvalue()
