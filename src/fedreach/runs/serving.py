"""Serving at the end of a run: the rule is fitted on the participants for the last and the best model, and written.

Nothing of the training depends on it. So methods that differ in `serving` alone are trained once, and a rule that is
added later trains nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedreach.arrays import AnyArray, Float32s, Ints
from fedreach.data.federated import FederatedData
from fedreach.evaluation.serving import ServesModels
from fedreach.federation.serving import trust
from fedreach.federation.serving.fit import Fitted
from fedreach.federation.traits import Traits
from fedreach.models.flat import Layout
from fedreach.runs.baselines import Baselines
from fedreach.runs.callbacks import Callback, told
from fedreach.runs.folder import BEST, CONSTANTS, LAST, REFIT, SERVING, RunFolder
from fedreach.runs.identity import OtherExperimentError, finished
from fedreach.runs.models import read_models
from fedreach.runs.recorder import Recorder
from fedreach.runs.schema import (
    CHECKPOINT,
    ClientLine,
    FederationRecord,
    Result,
    RoundRow,
    RunRecord,
    ServedLine,
    ServingRecord,
    Timing,
)
from fedreach.storage.files import sealed_text

POPULATIONS = {"id": "participants", "unseen": "unseen clients", "test": "test set"}
SHOWN = {"plain": "plain", "calibrated": "calibrated", "served": "served", "true_prior": "true prior, needs labels"}
"""Rung -> what it is called where a run ends."""
MODELS = ("last", "best")
EXPECTED = ("expected_gain", "expected_gain_low", "expected_gain_high")


def serve_models(folder: RunFolder, layout: Layout, evaluator: ServesModels) -> None:
    """Fit, score and write how clients are served by the last and the best model of a folder.

    Args:
        folder: Of the run; its models are written.
        layout: Of the model.
        evaluator: Who fits and serves.
    """
    folder.remove(ServingRecord.FILE, ServedLine.FILE, SERVING)
    federation = folder.read(FederationRecord)
    names = None if federation is None else federation.client_names
    columns: dict[str, Mapping[str, float]] = {}
    rounds: dict[str, int] = {}
    tensors: dict[str, AnyArray] = {}
    costs: dict[str, Any] = {}
    left: dict[str, Mapping[str, int]] = {}
    for name in MODELS:
        found = _models(folder, name, layout)
        if found is None:  # nobody holds data out, so no model is the best
            continue
        rounds[name], vectors, clusters = found
        # By the best model, clients are served with all their inputs only.
        scores, lines, fitted = evaluator.evaluate(vectors, clusters, rounds[name], whole=name == "last")
        columns[name] = scores | _expected(fitted, clusters)
        for line in lines:
            called = None if names is None else [names[client] for client in line["ids"]]
            folder.append(ServedLine(model=name, round=rounds[name], **line, names=called))
        for number, one in enumerate(fitted):
            head = f"{name}/{number}" if len(fitted) > 1 else name
            tensors |= {f"{head}/{key}": np.asarray(value) for key, value in one.state.items()}
        if gone := {str(client): number for one in fitted for client, number in one.left.items()}:
            left[name] = gone
        if name == "last":
            costs = _costs(fitted)
    rule, needs_labels = repr(evaluator.rule), Traits.of(evaluator.rule).needs_labels
    folder.write_tensors(SERVING, tensors, {"rule": rule})
    folder.write(
        ServingRecord(
            rule=rule,
            needs_labels=needs_labels,
            rounds=rounds,
            columns=columns,
            left=left or None,
            **costs,
        )
    )


def served_table(folder: RunFolder) -> list[str]:
    """Return lines for the terminal: mean accuracy by the last model, rung by rung, and what serving gains.

    They are empty where a run has no serving rule.
    """
    record = folder.read(ServingRecord)
    if record is None:
        return []
    columns = record.columns["last"]
    there = {name: title for name, title in POPULATIONS.items() if f"{name}_plain_accuracy" in columns}

    def line(title: str, values: Sequence[str]) -> str:
        return f"{title:<26}" + "".join(f"{value:>16}" for value in values)

    needs = ", a reference that needs labels" if record.needs_labels else ""
    lines = [f"accuracy in %, served by {record.rule}{needs}", line("", [*there.values()])]
    for rung, title in SHOWN.items():
        found = [columns.get(f"{name}_{rung}_accuracy") for name in there]
        if None not in found:
            lines.append(line(title, [f"{100 * value:.1f}" for value in found if value is not None]))
    if "expected_gain" in columns:
        numbers = [100 * columns[name] for name in EXPECTED]
        support = "{:+.1f} points [{:+.1f}, {:+.1f}]".format(*numbers) if any(numbers) else "off, no class changes"
        lines.append(f"expected by participants: {support}")
    gains = [columns[f"{name}_served_accuracy"] - columns[f"{name}_plain_accuracy"] for name in there]
    return [*lines, line("served - plain", [f"{100 * gain:+.1f}" for gain in gains])]


def _expected(fitted: Sequence[Fitted], clusters: Ints) -> dict[str, float]:
    """Return what participants expect of the rule, as a fraction, where they were asked: a mean over clusters."""
    gains = [trust.expected_gain(one.state) for one in fitted]
    if any(gain is None for gain in gains):
        return {}
    shares = np.bincount(clusters, minlength=len(fitted)) / len(clusters)
    mean = shares @ np.stack([gain for gain in gains if gain is not None]) / 100
    return {name: round(float(value), 9) for name, value in zip(EXPECTED, mean, strict=True)}


def _costs(fitted: Sequence[Fitted]) -> dict[str, Any]:
    """Return what fitting cost one participant: of several models the most bytes, and the time of all."""
    costs: dict[str, Any] = {
        "bytes_state": max(sum(np.asarray(value).nbytes for value in one.state.values()) for one in fitted)
    }
    costs |= {key: max(getattr(one, key) for one in fitted) for key in ("exchanges", "bytes_up", "bytes_down")}
    # Rules of several models are fitted one after the other.
    for key, spent in (("seconds", [one.seconds for one in fitted]), ("joules", [one.joules for one in fitted])):
        costs[key] = None if None in spent else sum(value for value in spent if value is not None)
    return costs


def _models(folder: RunFolder, name: str, layout: Layout) -> tuple[int, Float32s, Ints] | None:
    """Return a round, its (m, d) models and the (n,) model of each participant; None where there are none."""
    stored = read_models(folder, name, layout)
    if stored is None:
        return None
    row = next(row for row in folder.records(RoundRow) if row.round == stored.round)
    federation = folder.read(FederationRecord)
    assert federation is not None  # it was written before the first round
    clusters = np.array(row.clusters or [0] * len(federation.participants), np.int64)
    return stored.round, stored.vectors[: int(clusters.max()) + 1], clusters


def take_training(recorder: Recorder, twin: RunFolder, run: RunRecord, identity: Mapping[str, Any]) -> Result | None:
    """Copy the training of a finished run that differs in name and serving alone; None where there is no such run.

    Args:
        recorder: Of the folder where to.
        twin: Where from.
        run: What is to be run there.
        identity: Of that run.

    Raises:
        RunFolderError: If what was trained was altered.
    """
    folder, stored = recorder.folder, twin.read(RunRecord)
    if stored is None or (folder.path / CHECKPOINT).exists():
        return None
    alike = {**identity, "method": stored.method, "config": _served_as(identity["config"], stored.config)}
    try:
        result = finished(twin, alike)
    except OtherExperimentError:
        return None
    federation, checkpoint = twin.read(FederationRecord), twin.read_tensors(CHECKPOINT)
    if result is None or result.rounds is None or federation is None or checkpoint is None:
        return None
    recorder.describe(run, federation)
    folder.remove(RoundRow.FILE, ClientLine.FILE, Timing.FILE)
    for name, seal in twin.vouched().items():
        if name in (RoundRow.FILE, ClientLine.FILE):
            folder.append_lines(name, sealed_text(twin.path / name, seal).splitlines())
    folder.append(*(row.checked(folder.run) for row in twin.timing(result.rounds)))
    for name in (LAST, BEST, REFIT, CONSTANTS):
        if (model := twin.read_tensors(name)) is not None:
            folder.write_tensors(name, *model)
    folder.sync()
    # Last, as whoever finds it needs no training any more.
    tensors, record = checkpoint
    folder.write_tensors(CHECKPOINT, tensors, {**record, "run": folder.run, "seals": folder.seals()})
    return result


def finish_served(
    recorder: Recorder,
    evaluator: ServesModels,
    result: Result,
    callbacks: Sequence[Callback],
    data: FederatedData,
    baselines: Baselines | None = None,
) -> Result:
    """Serve clients by a training that was taken from another run, and write that this one ended like that one.

    Args:
        recorder: Of its folder, which holds the training.
        evaluator: Who fits and serves.
        result: Of the other run.
        callbacks: Are told of beginning and end.
        data: The federation.
        baselines: Are written in the end; None: none.
    """
    folder = recorder.folder
    with told(callbacks, folder.required(RunRecord), data, "trained as another run", folder.path):
        serve_models(folder, recorder.layout, evaluator)
        if baselines is not None:
            baselines.write(folder)
        result = recorder.end(result)
        for callback in callbacks:
            callback.end(result)
    return result


def _served_as(config: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the serving rule of another one."""
    return {**config, "method": {**config["method"], "serving": other["method"]["serving"]}}
