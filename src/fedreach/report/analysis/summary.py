"""One row of numbers per method, at the last round or at the best round on participants' held-out loss."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedreach.report.analysis.statistics import Paired, Spread, holm, paired, spread
from fedreach.report.values import Comparison, Run

When = Literal["last", "best"]
POPULATION = {
    "unseen_accuracy": "unseen clients",
    "test_accuracy": "the test set",
    "id_accuracy": "participants' held-out data",
}


@dataclass(frozen=True)
class MethodSummary:
    """What one method reached. Accuracies and gaps are fractions; spreads are over seeds unless named otherwise."""

    method: str
    is_baseline: bool
    seeds: int  # runs the numbers are from
    seeds_planned: int
    round: Spread
    participants: Spread
    unseen: Spread
    test: Spread
    gap: Spread
    gap_over_clients: tuple[float, float] | None  # 95 % bootstrap over clients, limits averaged over seeds
    participants_worst_decile: Spread
    unseen_worst_decile: Spread
    megabytes: Spread  # 10^6 bytes, down and up, probes included
    seconds: Spread  # simulated, of all rounds so far, probes included; not measured without radio, as joules
    joules: Spread
    reached: int  # seeds that reached the target accuracy
    rounds_to_target: Spread  # over the seeds that reached it
    megabytes_to_target: Spread
    seconds_to_target: Spread
    joules_to_target: Spread
    difference: Paired  # primary accuracy minus the baseline's, seed by seed
    corrected_p: float | None  # Holm, over the methods compared with the baseline


def summarize(comparison: Comparison, when: When = "last") -> tuple[MethodSummary, ...]:
    """Return one row per method, in the comparison's order.

    Args:
        comparison: What `read` returns.
        when: ``"last"``: at the last evaluated round. ``"best"``: at each run's best round on participants'
            held-out loss, which is a fair choice: neither the test set nor unseen clients have a say in it.
    """
    rows = [_summarize_method(comparison, method, when) for method in comparison.methods]
    corrected = holm([row.difference.p for row in rows])
    return tuple(replace(row, corrected_p=p) for row, p in zip(rows, corrected, strict=True))


def _summarize_method(comparison: Comparison, method: str, when: When) -> MethodSummary:
    runs = comparison.counted(method)
    planned = sum(run.method == method for run in comparison.runs) + sum(m == method for m, _ in comparison.absent)

    def at(name: str) -> Spread:
        return spread([run.column(name)[row_of(run, when)] for run in runs])

    hits = [(run, hit) for run in runs if (hit := target_row(run, comparison)) is not None]
    limits = [[run.column(f"participation_gap_{side}")[row_of(run, when)] for side in ("low", "high")] for run in runs]
    over_clients = np.mean(limits, axis=0) if limits else np.full(2, np.nan)
    return MethodSummary(
        method=method,
        is_baseline=method == comparison.baseline,
        seeds=len(runs),
        seeds_planned=planned,
        round=at("round"),
        participants=at("id_accuracy"),
        unseen=at("unseen_accuracy"),
        test=at("test_accuracy"),
        gap=at("participation_gap"),
        gap_over_clients=(
            (float(over_clients[0]), float(over_clients[1])) if np.isfinite(over_clients).all() else None
        ),
        participants_worst_decile=at("id_accuracy_worst_decile"),
        unseen_worst_decile=at("unseen_accuracy_worst_decile"),
        megabytes=spread([run.column("bytes_total")[row_of(run, when)] / 1e6 for run in runs]),
        seconds=at("seconds_total"),
        joules=at("joules_total"),
        reached=len(hits),
        rounds_to_target=spread([run.rounds["round"][hit] for run, hit in hits]),
        megabytes_to_target=spread([run.column("bytes_total")[hit] / 1e6 for run, hit in hits]),
        seconds_to_target=spread([run.column("seconds_total")[hit] for run, hit in hits]),
        joules_to_target=spread([run.column("joules_total")[hit] for run, hit in hits]),
        difference=_difference(comparison, method, when),
        corrected_p=None,
    )


def primary_of(row: MethodSummary, comparison: Comparison) -> Spread:
    """Return the accuracy that methods are judged by."""
    return {"unseen_accuracy": row.unseen, "test_accuracy": row.test}.get(comparison.primary, row.participants)


def row_of(run: Run, when: When) -> int:
    """Return the row of the last evaluated round, or of the best round on participants' held-out loss."""
    evaluated = np.flatnonzero(np.isfinite(run.column("id_accuracy")))
    if when == "last":
        return int(evaluated[-1])
    losses = run.column("id_loss")
    if run.best_round is None:
        known = evaluated[np.isfinite(losses[evaluated])]
        return int(known[np.argmin(losses[known])]) if len(known) else int(evaluated[-1])
    return int(evaluated[np.argmin(np.abs(run.rounds["round"][evaluated] - run.best_round))])


def target_row(run: Run, comparison: Comparison) -> int | None:
    """Return the first row whose primary accuracy is the target or more; None if there is none."""
    if comparison.target_accuracy is None:
        return None
    rows = np.flatnonzero(run.column(comparison.primary) >= comparison.target_accuracy)
    return int(rows[0]) if len(rows) else None


def _difference(comparison: Comparison, method: str, when: When) -> Paired:
    if method == comparison.baseline:
        return Paired(0, None, None, None, None, "the baseline")
    base = {run.seed: run for run in comparison.counted(comparison.baseline)}
    pairs = [(run, base[run.seed]) for run in comparison.counted(method) if run.seed in base]
    # Only runs on the same clients are a pair.
    same = [(run, other) for run, other in pairs if run.partition.hash == other.partition.hash]
    if not same:
        reason = "other clients than the baseline's" if pairs else "no seed in common with the baseline"
        return Paired(0, None, None, None, None, reason)
    name = comparison.primary
    return paired([a.column(name)[row_of(a, when)] - b.column(name)[row_of(b, when)] for a, b in same])
