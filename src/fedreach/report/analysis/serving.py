"""How unseen clients are served: four rungs, what the rule changes, and the participation gap taken apart.

With G(r) = participants - unseen clients under rung r for both groups:
G(plain) = [G(plain) - G(true prior)] (priors) + G(true prior) (representation).
Estimation = true prior - served, of unseen clients, stands beside it; and so does the trivial control, the majority
class of a client's true labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedreach.evidence.judgement import Judgement
from fedreach.evidence.spread import Spread, spread
from fedreach.report.analysis.contrasts import judge_all
from fedreach.report.analysis.leaders import NOBODY, Leaders, leaders_by
from fedreach.report.values import Comparison, Run

RUNGS = {
    "plain": "plain",
    "calibrated": "calibrated",
    "served": "served",
    "online": "online",
    "true_prior": "true prior, needs labels",
}
"""Rung -> what it is called."""
SCORES = ("accuracy", "accuracy_worst_decile", "loss", "calibration_error")
CHANGES = ("loss", "calibration_error")
"""Scores of which served - plain is tested beside accuracy: with two classes a prior may change nothing else."""
UNJUDGED = Judgement(0, None)
Gap = Mapping[str, Spread]


@dataclass(frozen=True)
class ServedSummary:
    """How a method's rule serves unseen clients (participants, where all take part) by the last model."""

    method: str
    rule: str
    needs_labels: bool  # of those that are served: the rule is a reference that nobody could deploy
    population: str  # "unseen" or "id"
    at: Mapping[tuple[str, str], Spread]  # (rung, one of `SCORES`) -> over seeds
    gain: Judgement  # served - plain accuracy, seed by seed; the methods that are served are one family
    change: Mapping[str, Judgement]  # one of `CHANGES` -> likewise, each score a family; below 0 is better
    gain_with: Mapping[int, Judgement]  # inputs -> likewise, accuracy on the other inputs
    worse: Spread  # share of clients whose accuracy is lower served than plain
    harmed: Spread  # share of clients that lose more than `HARM_POINTS` of accuracy; not measured in older folders
    worst_change: Spread  # of the client that loses most, as a fraction
    worst_inputs: Spread  # its number of inputs
    expected: tuple[Spread, Spread, Spread]  # gain that participants had, and its 95% interval; not all rules ask them
    decided: Mapping[str, Spread]  # "adapted", "repaired" -> clients
    gap: Gap  # "gap", "priors", "representation", "estimation"; empty without both populations
    majority: Spread  # accuracy of the majority class of each client's true labels
    kilobytes: Mapping[str, Spread]  # "up" and "down" of one participant, "state" handed out with the model
    spent: Mapping[str, Spread]  # "seconds" and "joules" of fitting, simulated; of none where there is no radio


def summarize_serving(comparison: Comparison) -> tuple[ServedSummary, ...]:
    """Return a summary of each method that has a serving rule, in the comparison's order."""
    served = {method: [run for run in comparison.counted(method) if run.serving] for method in comparison.methods}
    found = [_summary(method, runs) for method, runs in served.items() if runs]
    inputs = sorted({n for row in found for n in row.gain_with})
    gains = _family(comparison, found, "accuracy")
    changes = {score: _family(comparison, found, score, margin=False) for score in CHANGES}
    with_inputs = {n: _family(comparison, found, "accuracy", inputs=f"_{n}") for n in inputs}
    return tuple(
        replace(
            row,
            gain=gains[j],
            change={score: judged[j] for score, judged in changes.items()},
            gain_with={n: with_inputs[n][j] for n in row.gain_with},
        )
        for j, row in enumerate(found)
    )


def served_leaders(comparison: Comparison, rows: Sequence[ServedSummary]) -> Leaders:
    """Return which methods lead by the accuracy of clients as they are served, of rules that need no labels."""
    methods = [row.method for row in rows if not row.needs_labels]
    if len(methods) < 2:
        return NOBODY
    column = f"{rows[0].population}_served_accuracy"

    def served(run: Run) -> float:
        return run.serving.columns["last"].get(column, np.nan) if run.serving else np.nan

    return leaders_by(comparison, methods, served, lower_is_better=False)


def _family(
    comparison: Comparison, rows: Sequence[ServedSummary], score: str, *, inputs: str = "", margin: bool = True
) -> tuple[Judgement, ...]:
    """Return served minus plain of each method, judged beside those of the others."""
    found = []
    for row in rows:
        served, plain = (f"{row.population}_{rung}{inputs}_{score}" for rung in ("served", "plain"))
        runs = ((run.seed, run.serving.columns["last"]) for run in comparison.counted(row.method) if run.serving)
        found.append({seed: columns.get(served, np.nan) - columns.get(plain, np.nan) for seed, columns in runs})
    return judge_all(comparison, found, within_margin=margin, lower_is_better=score in CHANGES)


def _summary(method: str, runs: Sequence[Run]) -> ServedSummary:
    records = [run.serving for run in runs if run.serving is not None]
    columns = [record.columns["last"] for record in records]
    name = "unseen" if "unseen_plain_accuracy" in columns[0] else "id"

    def over(column: str) -> Spread:
        return spread([found.get(column, np.nan) for found in columns])

    inputs = sorted({int(key.split("_")[2]) for key in columns[0] if key.startswith(f"{name}_served_") and _count(key)})
    return ServedSummary(
        method=method,
        rule=records[0].rule,
        needs_labels=records[0].needs_labels,
        population=name,
        at={(rung, score): over(f"{name}_{rung}_{score}") for rung in RUNGS for score in SCORES},
        gain=UNJUDGED,
        change={},
        gain_with=dict.fromkeys(inputs, UNJUDGED),
        worse=over(f"{name}_worse"),
        harmed=over(f"{name}_harmed"),
        worst_change=over(f"{name}_worst_change"),
        worst_inputs=over(f"{name}_worst_inputs"),
        expected=(over("expected_gain"), over("expected_gain_low"), over("expected_gain_high")),
        decided={what: over(f"{name}_{what}") for what in ("adapted", "repaired") if f"{name}_{what}" in columns[0]},
        gap=_gap(columns),
        majority=spread([_majority(run, name) for run in runs]),
        kilobytes={
            part: spread([getattr(record, f"bytes_{part}") / 1000 for record in records])
            for part in ("up", "down", "state")
        },
        spent={
            "seconds": spread([np.nan if record.seconds is None else record.seconds for record in records]),
            "joules": spread([np.nan if record.joules is None else record.joules for record in records]),
        },
    )


def _count(column: str) -> bool:
    return column.split("_")[2].isdigit()


def _gap(columns: Sequence[Mapping[str, float]]) -> Gap:
    needed = [f"{name}_{rung}_accuracy" for name in ("id", "unseen") for rung in ("plain", "true_prior")]
    if not all(key in found for found in columns for key in needed):
        return {}
    plain, true = (
        np.array([found[f"id_{rung}_accuracy"] - found[f"unseen_{rung}_accuracy"] for found in columns])
        for rung in ("plain", "true_prior")
    )
    unseen = [found["unseen_true_prior_accuracy"] - found["unseen_served_accuracy"] for found in columns]
    parts = {"gap": plain, "priors": plain - true, "representation": true, "estimation": unseen}
    return {part: spread(values) for part, values in parts.items()}


def _majority(run: Run, name: str) -> float:
    """Return the mean over clients of the share of their most frequent class."""
    partition = run.partition
    counts = partition.label_counts[partition.unseen if name == "unseen" else partition.participants]
    counts = counts[counts.sum(axis=1) > 0]
    return float((counts.max(axis=1) / counts.sum(axis=1)).mean()) if counts.size else np.nan
