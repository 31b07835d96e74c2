"""Analysis and tables of adaptation in the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fedreach.evaluation.scores import HARM_POINTS
from fedreach.evaluation.statistics import PairedTest, Spread, spread
from fedreach.report.analysis import NO_LEADERS, UNTESTED, Leaders, judge_all, leaders_by
from fedreach.report.numbers import (
    ABSENT,
    CAPTIONS,
    RunData,
    RunSet,
    conclusion,
    detectable,
    estimate,
    interval,
    nats,
    p_text,
    percent,
    plus_minus,
    points,
)
from fedreach.report.tables import (
    NAMES,
    SEEDS_NEEDED,
    Column,
    Table,
    adjusted_unit,
    bold_sentence,
    costs,
    join_sentences,
    spread_text,
    star_sentence,
    table_of,
    tests_sentence,
)

if TYPE_CHECKING:
    from fedreach.report.overview import Analysis


# ---- Numbers of adaptation, by prediction mode
# Participation gap under mode r, participants minus unseen clients, both predicted under r: G(r).
# G(unadapted) = [G(unadapted) - G(oracle prior)] (priors) + G(oracle prior) (representation).
# Estimation is the accuracy of unseen clients under the oracle prior minus their adapted accuracy.
# The control is the majority class of a client's true labels.

PREDICTION_MODES = {
    "unadapted": "unadapted",
    "calibrated": "calibrated",
    "adapted": "adapted",
    "online": "online",
    "oracle_prior": "oracle prior",
}
"""Prediction mode -> its name in tables."""
SCORES = ("accuracy", "accuracy_worst_decile", "loss", "calibration_error")
TESTED_CHANGES = ("loss", "calibration_error")
"""Scores whose change is tested in addition to accuracy; with two classes, a prior may change only these."""
HARM = {
    "worse": "adapted_worse_share",  # of clients whose accuracy falls by adaptation
    "harmed": "adapted_harmed_share",  # of clients that lose more than `HARM_POINTS`; not measured in older folders
    "worst_change": "adapted_worst_change",  # of the client that loses most, as a fraction
    "worst_inputs": "adapted_worst_inputs",  # its number of inputs
}
"""Measure of harm to single clients -> its name in records."""
Gap = Mapping[str, Spread]


@dataclass(frozen=True)
class AdaptationSummary:
    """Effect of a method's adaptation rule on unseen clients, or, if all clients train, on participants."""

    method: str
    rule: str
    needs_labels: bool  # of the adapted clients: the rule is a reference that cannot be deployed
    population: str  # "unseen" or "participant"
    at: Mapping[tuple[str, str], Spread]  # (prediction mode, one of `SCORES`) -> over seeds
    gain: PairedTest  # adapted minus unadapted accuracy, paired by seed; all methods with a rule are one family
    change: Mapping[str, PairedTest]  # one of `TESTED_CHANGES` -> likewise, one family per score; negative is better
    gain_with: Mapping[int, PairedTest]  # inputs -> likewise, accuracy on the other inputs
    harm: Mapping[str, Spread]  # each of `HARM`
    expected: tuple[Spread, Spread, Spread]  # gain on participants and its 95% CI; not every rule measures it
    decided: Mapping[str, Spread]  # "adapted", "repaired" -> clients
    gap: Gap  # "gap", "priors", "representation", "estimation"; empty without both populations
    majority: Spread  # accuracy of the majority class of each client's true labels
    kilobytes: Mapping[str, Spread]  # "up" and "down" of one participant, "state" sent with the model
    spent: Mapping[str, Spread]  # simulated "seconds" and "joules" of fitting; empty spreads without radio


def summarize_adaptation(comparison: RunSet) -> tuple[AdaptationSummary, ...]:
    """Return a summary of each method that has an adaptation rule, in the comparison's order."""
    adapted = {method: [run for run in comparison.counted(method) if run.adaptation] for method in comparison.methods}
    summaries = [_summary(method, runs) for method, runs in adapted.items() if runs]
    inputs = sorted({n for row in summaries for n in row.gain_with})
    gains = _family(comparison, summaries, "accuracy")
    changes = {score: _family(comparison, summaries, score, margin=False) for score in TESTED_CHANGES}
    with_inputs = {n: _family(comparison, summaries, "accuracy", inputs=f"_{n}") for n in inputs}
    return tuple(
        replace(
            row,
            gain=gains[j],
            change={score: judged[j] for score, judged in changes.items()},
            gain_with={n: with_inputs[n][j] for n in row.gain_with},
        )
        for j, row in enumerate(summaries)
    )


def adapted_leaders(comparison: RunSet, rows: Sequence[AdaptationSummary]) -> Leaders:
    """Return the methods that lead in adapted accuracy, among methods whose rules need no labels."""
    methods = [row.method for row in rows if not row.needs_labels]
    if len(methods) < 2:
        return NO_LEADERS
    column = f"{rows[0].population}_adapted_accuracy"

    def adapted_accuracy(run: RunData) -> float:
        return run.adaptation.columns["last"].get(column, np.nan) if run.adaptation else np.nan

    return leaders_by(comparison, methods, adapted_accuracy, lower_is_better=False)


def _family(
    comparison: RunSet, rows: Sequence[AdaptationSummary], score: str, *, inputs: str = "", margin: bool = True
) -> tuple[PairedTest, ...]:
    """Return the adapted minus the unadapted score of each method, tested as one family."""
    differences = []
    for row in rows:
        adapted, plain = (f"{row.population}_{mode}{inputs}_{score}" for mode in ("adapted", "unadapted"))
        runs = ((run.seed, run.adaptation.columns["last"]) for run in comparison.counted(row.method) if run.adaptation)
        differences.append({seed: columns.get(adapted, np.nan) - columns.get(plain, np.nan) for seed, columns in runs})
    return judge_all(comparison, differences, within_margin=margin, lower_is_better=score in TESTED_CHANGES)


def _summary(method: str, runs: Sequence[RunData]) -> AdaptationSummary:
    records = [run.adaptation for run in runs if run.adaptation is not None]
    columns = [record.columns["last"] for record in records]
    name = "unseen" if "unseen_unadapted_accuracy" in columns[0] else "participant"

    def over(column: str) -> Spread:
        return spread([scores.get(column, np.nan) for scores in columns])

    parts = [key.split("_")[2] for key in columns[0] if key.startswith(f"{name}_adapted_")]
    inputs = sorted({int(part) for part in parts if part.isdigit()})
    return AdaptationSummary(
        method=method,
        rule=records[0].rule,
        needs_labels=records[0].needs_labels,
        population=name,
        at={(mode, score): over(f"{name}_{mode}_{score}") for mode in PREDICTION_MODES for score in SCORES},
        gain=UNTESTED,
        change={},
        gain_with=dict.fromkeys(inputs, UNTESTED),
        harm={what: over(f"{name}_{what}") for what in HARM},
        expected=(over("expected_gain"), over("expected_gain_low"), over("expected_gain_high")),
        decided={what: over(f"{name}_{what}") for what in ("adapted", "repaired") if f"{name}_{what}" in columns[0]},
        gap=_gap_of(columns),
        majority=spread([_majority(run, name) for run in runs]),
        kilobytes={
            part: spread([getattr(record, f"bytes_{part}") / 1000 for record in records])
            for part in ("up", "down", "state")
        },
        spent={name: spread([getattr(record, name) for record in records]) for name in ("seconds", "joules")},
    )


def _gap_of(columns: Sequence[Mapping[str, float]]) -> Gap:
    needed = [f"{name}_{mode}_accuracy" for name in ("participant", "unseen") for mode in ("unadapted", "oracle_prior")]
    if not all(key in scores for scores in columns for key in needed):
        return {}
    plain, true = (
        np.array([scores[f"participant_{mode}_accuracy"] - scores[f"unseen_{mode}_accuracy"] for scores in columns])
        for mode in ("unadapted", "oracle_prior")
    )
    unseen = [scores["unseen_oracle_prior_accuracy"] - scores["unseen_adapted_accuracy"] for scores in columns]
    parts = {"gap": plain, "priors": plain - true, "representation": true, "estimation": unseen}
    return {part: spread(values) for part, values in parts.items()}


def _majority(run: RunData, name: str) -> float:
    """Return the mean over clients of the share of their most frequent class."""
    partition = run.partition
    counts = partition.label_counts[partition.unseen if name == "unseen" else partition.participants]
    counts = counts[counts.sum(axis=1) > 0]
    return float((counts.max(axis=1) / counts.sum(axis=1)).mean()) if counts.size else np.nan


# ---- Tables of adaptation

POPULATION_WORDS = {"unseen": "unseen clients", "participant": "participants"}
Cell = Callable[[AdaptationSummary], str]


def tabulate_adaptation(analysis: Analysis) -> list[Table]:
    """Return the tables of prediction modes, probabilities and the gap; empty if no method has a rule."""
    rows = analysis.adaptation
    if not rows:
        return []
    gaps = [_gap_table(analysis)] if any(row.gap for row in rows) else []
    return [_modes(analysis), _probabilities(analysis), *gaps]


METHOD_COLUMN: Column[AdaptationSummary] = Column("method", "", lambda row: row.method)
NEEDS: Column[AdaptationSummary] = Column("needs", "", lambda row: "labels" if row.needs_labels else ABSENT, NAMES)


def _score(mode: str, score: str) -> Cell:
    return lambda row: plus_minus(row.at[mode, score], 3) if score == "loss" else percent(row.at[mode, score])


def _gain_with(inputs: int) -> Cell:
    return lambda row: estimate(row.gain_with.get(inputs))


def _spent(name: str) -> Callable[[AdaptationSummary], Spread]:
    return lambda row: row.spent[name]


def _modes(analysis: Analysis) -> Table:
    rows, comparison = analysis.adaptation, analysis.comparison
    family = [row.gain for row in rows]
    inputs = sorted({n for row in rows for n in row.gain_with})
    spent = {
        "time to fit": costs("seconds", _spent("seconds"), rows),
        "energy to fit": costs("joules", _spent("joules"), rows),
    }

    def mode(name: str, rank: int = 0, unit: str = "") -> Column[AdaptationSummary]:
        return Column(PREDICTION_MODES[name], unit, _score(name, "accuracy"), rank)

    where = POPULATION_WORDS[rows[0].population]
    return table_of(
        [
            METHOD_COLUMN,
            NEEDS,
            Column("rule", "", lambda row: row.rule.partition("(")[0]),
            *(mode(name, rank) for rank, name in enumerate(("unadapted", "adapted"), 1)),
            Column("gain, points", adjusted_unit(comparison, family), lambda row: estimate(row.gain), 3),
            mode("oracle_prior", 4, "(needs labels)"),
            *map(mode, ("calibrated", "online")),
            Column("expected gain, points", "[95% CI]", _expected_gain),
            Column("p", "adjusted", lambda row: p_text(row.gain.p_corrected)),
            Column("MDE", "points", lambda row: detectable(row.gain)),
            Column("conclusion", SEEDS_NEEDED, lambda row: conclusion(row.gain)),
            *(Column(f"gain with {n} inputs", "points", _gain_with(n)) for n in inputs),
            Column("worst 10%, unadapted", "", _score("unadapted", "accuracy_worst_decile")),
            Column("worst 10%, adapted", "", _score("adapted", "accuracy_worst_decile")),
            Column(f"clients that lose > {HARM_POINTS} points", "%", lambda row: percent(row.harm["harmed"])),
            Column("worst client", "points (inputs)", _worst_client),
            Column("adapted clients", "", lambda row: _mean_count(row.decided.get("adapted"))),
            Column("intensity-corrected clients", "", lambda row: _mean_count(row.decided.get("repaired"))),
            Column("sent to fit", "kB per participant", lambda row: plus_minus(row.kilobytes["up"], 1)),
            Column("sent with the model", "kB", lambda row: plus_minus(row.kilobytes["state"], 1)),
            *(Column(head, unit, cell) for head, (unit, cell) in spent.items()),
        ],
        rows,
        bold=lambda row, head: head == PREDICTION_MODES["adapted"] and row.method in analysis.adapted_leaders.methods,
        caption=f"Accuracy on {where} before and after adaptation, % ({spread_text(comparison)})",
        note=join_sentences(
            star_sentence(comparison, family),
            "Rules marked “labels” learn from some labels of the clients. Examples with these labels are not scored."
            * any(row.needs_labels for row in rows),
        ),
        details=CAPTIONS["adaptation"]["table"].format(harm=HARM_POINTS, tests=tests_sentence(comparison, family)),
        name="adaptation",
        stated=bold_sentence(comparison, analysis.adapted_leaders, "after adaptation without labels"),
    )


def _probabilities(analysis: Analysis) -> Table:
    rows, comparison = analysis.adaptation, analysis.comparison
    loss, calibration = ([row.change[score] for row in rows] for score in TESTED_CHANGES)

    def scores(name: str, score: str, unit: str) -> Iterator[Column[AdaptationSummary]]:
        ranks = {"unadapted": 1, "adapted": 2} if score == "loss" else {}
        for mode in ("unadapted", "calibrated", "adapted", "oracle_prior"):
            yield Column(f"{name}, {PREDICTION_MODES[mode]}", unit, _score(mode, score), ranks.get(mode, 0))

    return table_of(
        [
            METHOD_COLUMN,
            NEEDS,
            *scores("log loss", "loss", "nats"),
            Column("log loss change, nats", adjusted_unit(comparison, loss), lambda row: nats(row.change["loss"]), 3),
            Column("p of log loss", "adjusted", lambda row: p_text(row.change["loss"].p_corrected)),
            *scores("calibration error", "calibration_error", "%"),
            Column(
                "calibration change, points",
                adjusted_unit(comparison, calibration),
                lambda row: estimate(row.change["calibration_error"]),
                4,
            ),
            Column("p of calibration", "adjusted", lambda row: p_text(row.change["calibration_error"].p_corrected)),
        ],
        rows,
        caption=f"Log loss and calibration error on {POPULATION_WORDS[rows[0].population]} before and after "
        f"adaptation ({spread_text(comparison)})",
        note=join_sentences("Lower is better.", star_sentence(comparison, loss)),
        details=CAPTIONS["probabilities"]["table"],
        name="probabilities",
    )


def _gap_table(analysis: Analysis) -> Table:
    def part(name: str, head: str, rank: int) -> Column[AdaptationSummary]:
        return Column(head, "points", lambda row: _mean_points(row.gap.get(name)), rank)

    return table_of(
        [
            METHOD_COLUMN,
            part("gap", "participation gap", 1),
            part("priors", "label distribution", 2),
            part("representation", "rest", 3),
            part("estimation", "estimation error", 4),
            Column("majority class", "%", lambda row: percent(row.majority), 5),
        ],
        analysis.adaptation,
        caption="Parts of the participation gap of the unadapted model, points (mean over seeds)",
        note=CAPTIONS["gap"]["table"],
        name="gap",
    )


def _mean_points(change: Spread | None) -> str:
    return ABSENT if change is None or change.mean is None else points(change.mean, sign=True)


def _expected_gain(row: AdaptationSummary) -> str:
    """Return the gain that participants measured, if the rule measures it."""
    mean, low, high = (spread.mean for spread in row.expected)
    if mean is None:
        return ABSENT
    return "off" if mean == low == high == 0 else points(mean, sign=True) + interval(low, high, sign=True)


def _worst_client(row: AdaptationSummary) -> str:
    """Return the change of the client that loses most, and its number of inputs if that was stored."""
    inputs = row.harm["worst_inputs"].mean
    return _mean_points(row.harm["worst_change"]) + ("" if inputs is None else f" ({inputs:.0f})")


def _mean_count(count: Spread | None) -> str:
    return ABSENT if count is None or count.mean is None else f"{count.mean:.1f}"
