"""Adaptation after training, including training that was copied from another run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedreach._util.arrays import AnyArray, Float32s, Ints
from fedreach.engines.models.flat import Layout
from fedreach.evaluation.modes import AdaptationScorer
from fedreach.federation.adaptation import trust
from fedreach.federation.adaptation.fitting import FittedRule
from fedreach.runs.checkpoint import read_models
from fedreach.runs.folder import ADAPTATION_FILE, BEST, CONSTANTS, LAST, REFIT, RESUMED, ROW_FILES, RunFolder
from fedreach.runs.identity import OtherExperimentError, finished_result
from fedreach.runs.recorder import Recorder
from fedreach.runs.schema import (
    CHECKPOINT,
    AdaptationRecord,
    AdaptedLine,
    ClientLine,
    FederationRecord,
    RoundRow,
    RunRecord,
    Timing,
)

# ---- Adaptation at the end of a run
# The rule is fitted on the participants for the last and the best model, and written. Training does not depend on it:
# methods that differ only in `adaptation` train once, and a rule that is added later needs no training.

POPULATIONS = {"participant": "participants", "unseen": "unseen clients", "test": "test set"}
MODE_TITLES = {
    "unadapted": "unadapted",
    "calibrated": "calibrated",
    "adapted": "adapted",
    "oracle_prior": "oracle prior, needs labels",
}
"""Prediction mode -> its title in the table at the end of a run."""
MODELS = ("last", "best")
EXPECTED = ("expected_gain", "expected_gain_low", "expected_gain_high")


def write_adaptation(folder: RunFolder, layout: Layout, evaluator: AdaptationScorer) -> None:
    """Fit the rule and write the scores of adapted clients, for the last and the best model of a folder.

    Args:
        folder: Run folder that contains the models.
        layout: Layout of the model.
        evaluator: Evaluator that fits the rule and adapts models.
    """
    folder.remove(AdaptationRecord.FILE, AdaptedLine.FILE, ADAPTATION_FILE)
    federation = folder.read(FederationRecord)
    names = None if federation is None else federation.client_names
    columns: dict[str, Mapping[str, float]] = {}
    rounds: dict[str, int] = {}
    tensors: dict[str, AnyArray] = {}
    costs: dict[str, Any] = {}
    missed_exchanges: dict[str, Mapping[str, int]] = {}
    for name in MODELS if evaluator.noise is None else MODELS[:1]:  # the accounting covers one fit
        stored = _models(folder, name, layout)
        if stored is None:  # no best model without held-out data
            continue
        rounds[name], vectors, clusters = stored
        # The best model is adapted only with all inputs of a client.
        scores, lines, fitted = evaluator.evaluate(vectors, clusters, rounds[name], whole=name == "last")
        columns[name] = scores | _mean_expected_gain(fitted, clusters)
        for line in lines:
            client_names = None if names is None else [names[client] for client in line["ids"]]
            folder.append(AdaptedLine(model=name, round=rounds[name], **line, names=client_names))
        for number, rule_fit in enumerate(fitted):
            head = f"{name}/{number}" if len(fitted) > 1 else name
            tensors |= {f"{head}/{key}": np.asarray(value) for key, value in rule_fit.state.items()}
        if departed := {str(client): number for rule_fit in fitted for client, number in rule_fit.left.items()}:
            missed_exchanges[name] = departed
        if name == "last":
            costs = _costs(fitted)
    rule, needs_labels = repr(evaluator.rule), evaluator.rule.needs_labels
    folder.write_tensors(ADAPTATION_FILE, tensors, {"rule": rule})
    folder.write(
        AdaptationRecord(
            rule=rule,
            needs_labels=needs_labels,
            rounds=rounds,
            columns=columns,
            left=missed_exchanges or None,
            **costs,
        )
    )


def adaptation_table(folder: RunFolder) -> list[str]:
    """Return lines for the terminal: mean accuracy of the last model in each prediction mode, and gain by adaptation.

    For a run without an adaptation rule, the result is empty.
    """
    record = folder.read(AdaptationRecord)
    if record is None:
        return []
    columns = record.columns["last"]
    populations = {name: title for name, title in POPULATIONS.items() if f"{name}_unadapted_accuracy" in columns}

    def line(title: str, values: Sequence[str]) -> str:
        return f"{title:<26}" + "".join(f"{value:>16}" for value in values)

    needs = ", a reference that needs labels" if record.needs_labels else ""
    lines = [f"accuracy in %, adapted by {record.rule}{needs}", line("", [*populations.values()])]
    for mode, title in MODE_TITLES.items():
        accuracies = [columns.get(f"{name}_{mode}_accuracy") for name in populations]
        if None not in accuracies:
            lines.append(line(title, [f"{100 * value:.1f}" for value in accuracies if value is not None]))
    if "expected_gain" in columns:
        numbers = [100 * columns[name] for name in EXPECTED]
        support = "{:+.1f} points [{:+.1f}, {:+.1f}]".format(*numbers) if any(numbers) else "off, no class changes"
        lines.append(f"expected by participants: {support}")
    gains = [columns[f"{name}_adapted_accuracy"] - columns[f"{name}_unadapted_accuracy"] for name in populations]
    return [*lines, line("adapted - unadapted", [f"{100 * gain:+.1f}" for gain in gains])]


def _mean_expected_gain(fitted: Sequence[FittedRule], clusters: Ints) -> dict[str, float]:
    """Return the gain that participants expect of the rule, as a fraction: a mean over clusters."""
    gains = [trust.expected_gain(rule_fit.state) for rule_fit in fitted]
    if any(gain is None for gain in gains):
        return {}
    shares = np.bincount(clusters, minlength=len(fitted)) / len(clusters)
    mean = shares @ np.stack([gain for gain in gains if gain is not None]) / 100
    return {name: round(float(value), 9) for name, value in zip(EXPECTED, mean, strict=True)}


def _costs(fitted: Sequence[FittedRule]) -> dict[str, Any]:
    """Return the cost of fitting for one participant: the most bytes of any model, and the time of all models."""
    costs: dict[str, Any] = {
        "bytes_state": max(sum(np.asarray(value).nbytes for value in rule_fit.state.values()) for rule_fit in fitted)
    }
    for key in ("exchanges", "bytes_up", "bytes_down"):
        costs[key] = max(getattr(rule_fit, key) for rule_fit in fitted)
    for key in ("seconds", "joules"):  # rules of several models are fitted one after the other
        spent = [getattr(rule_fit, key) for rule_fit in fitted]
        costs[key] = None if None in spent else sum(spent)
    return costs


def _models(folder: RunFolder, name: str, layout: Layout) -> tuple[int, Float32s, Ints] | None:
    """Return a round, its (m, d) models and the (n,) model of each participant; None if the file is missing."""
    stored = read_models(folder, name, layout)
    if stored is None:
        return None
    row = next(row for row in folder.records(RoundRow) if row.round == stored.round)
    federation = folder.read(FederationRecord)
    assert federation is not None  # it was written before the first round
    clusters = np.array(row.clusters or [0] * len(federation.participants), np.int64)
    return stored.round, stored.vectors, clusters


def take_training(recorder: Recorder, twin: RunFolder, run: RunRecord, identity: Mapping[str, Any]) -> bool:
    """Copy the training of a finished run that differs only in name and adaptation; return whether there is one.

    The run then resumes after its last round.

    Args:
        recorder: Recorder of the target folder.
        twin: Folder of the finished run.
        run: Record of the new run.
        identity: Identity of the new run.

    Raises:
        RunFolderError: If files of the finished run were altered.
    """
    folder, stored = recorder.folder, twin.read(RunRecord)
    if stored is None or (folder.path / CHECKPOINT).exists():
        return False
    expected_identity = {
        **identity,
        "method": stored.method,
        "config": _with_rule_of(identity["config"], stored.config),
    }
    try:
        result = finished_result(twin, expected_identity)
    except OtherExperimentError:
        return False
    federation, checkpoint = twin.read(FederationRecord), twin.read_tensors(CHECKPOINT)
    if result is None or result.rounds is None or federation is None or checkpoint is None:
        return False
    recorder.describe(run, federation)
    folder.remove(RoundRow.FILE, ClientLine.FILE, Timing.FILE)
    for name in ROW_FILES:
        folder.append_lines(name, twin.kept_text(name).splitlines())
    folder.append(*(row.checked(folder.run) for row in twin.timing(result.rounds)))
    for name in (LAST, BEST, REFIT, CONSTANTS):
        if (model := twin.read_tensors(name)) is not None:
            tensors, record = model
            folder.write_tensors(name, tensors, {**record, "run": folder.run} if name == REFIT else record)
    folder.sync()
    # Last, because a folder with a checkpoint counts as trained.
    tensors, record = checkpoint
    folder.write_tensors(CHECKPOINT, tensors, {**record, "run": folder.run, "files": folder.list_files(RESUMED)})
    return True


def _with_rule_of(config: Mapping[str, Any], other_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the adaptation rule of another one."""
    return {**config, "method": {**config["method"], "adaptation": other_config["method"]["adaptation"]}}
