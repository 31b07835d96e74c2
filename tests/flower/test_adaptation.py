"""Adaptation on Flower: the simulator's files byte for byte, by sums and metrics, whoever leaves in the midst."""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Error, Message

from fedreach._util.errors import TrainingError
from fedreach.data.federated import FederatedData
from fedreach.data.splits import ClientIndex
from fedreach.evaluation.modes import AdaptationEvaluator, mode_names
from fedreach.experiment.run import run
from fedreach.flower.experiment import FlowerExperiment
from fedreach.runs.adaptation import adaptation_table, write_adaptation
from fedreach.runs.folder import ADAPTATION_FILE, BEST, LAST, RunFolder
from fedreach.runs.schema import CHECKPOINT, AdaptationRecord, AdaptedLine

from .in_process import Answering, InProcess
from .same import anew, rows_of

CLIENTS, PARTICIPANTS = 8, 5
FILES = (AdaptationRecord.FILE, AdaptedLine.FILE, ADAPTATION_FILE)
TINY = """
name = "tiny"
rounds = 2
[partition]
name = "dirichlet_by_class"
alpha = 0.3
clients = 8
[population]
participants = 5
[model]
name = "linear"
[local]
lr = 0.3
[method]
cohort_size = 3
adaptation = { name = "label_shift", guard = false }
[evaluation]
every = 1
local = false
inputs = [5, 40]
[engine]
name = "sequential"
"""
TEN = ("partition.clients=13", "population.participants=10", "partition.alpha=1.0")
GUARDED = "method.adaptation=label_shift"
SECURE = ("method.label_statistics=secure_aggregation", "method.weighting=entropy")
SPLITTING = 'method.selection={name="clustered", eps1=1000.0, eps2=0.0, thresholds="absolute", first_round=1}'
METHODS = {
    "guarded": (GUARDED, "model=mlp"),
    "confusion": ("method.adaptation=bbse", "partition.alpha=0.1"),
    "reference": ("method.adaptation=oracle_prior",),
    "few labels": ("method.adaptation=few_labels", "model=mlp"),
    "few labels of clusters": (
        'method.adaptation={name="few_labels", labels=60}',
        SPLITTING,
        "method.cohort_size=5",
        "rounds=3",
    ),
    "few shot": ('method.adaptation={name="few_shot", labels=12, strength=1.0}', "model=mlp"),
    "few shot as participants decide": ('method.adaptation={name="few_shot", labels=12}', "model=mlp", *TEN),
    "clusters": (SPLITTING, "method.cohort_size=5", "rounds=3"),
    "what the solver evaluates": ("method.solver=feddyn",),
    "two participants": ("population.participants=2", "method.cohort_size=2"),
    "one participant": ("population.participants=1", "method.cohort_size=1"),
    "secure aggregation": (GUARDED, *SECURE, *TEN),
    "batchnorm": ("method.adaptation=batchnorm", f"model={Path(__file__).with_name('normalised.py')}:net"),
}


@cache
def read(*overrides: str) -> FlowerExperiment:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tiny.toml"
        file.write_text(TINY, encoding="utf-8")
        return FlowerExperiment(file, overrides=overrides)


def setup_of(*overrides: str) -> FlowerExperiment:
    return anew(read(*overrides))


def adapt(
    folder: Path, *overrides: str, answering: Answering = lambda client, message, answer: answer(), timeout: float = 0.3
) -> InProcess:
    setup = setup_of(*overrides)
    grid = InProcess(setup.client_app(), range(setup.data.num_clients), answering=answering)
    setup.strategy(folder, timeout=timeout, patience=1).run(grid)
    return grid


def record_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / AdaptationRecord.FILE).read_text(encoding="utf-8"))


@pytest.mark.sampled(7)
@pytest.mark.parametrize("method", METHODS)
def test_flower_writes_the_bytes_of_the_simulator(method: str, tmp_path: Path) -> None:
    setup = setup_of(*METHODS[method])
    run(setup.experiment, seed=setup.seed, folder=tmp_path / "simulator", base=setup.base)
    adapt(tmp_path / "flower", *METHODS[method], timeout=5)
    for name in (*FILES, "last.safetensors", "best.safetensors"):
        assert (tmp_path / "flower" / name).read_bytes() == (tmp_path / "simulator" / name).read_bytes(), name
    columns = record_of(tmp_path / "flower")["columns"]["last"]
    assert ("participant_adapted_accuracy" in columns) == (method != "one participant")
    assert columns["unseen_adapted_5_accuracy" if method != "reference" else "unseen_adapted_accuracy"] > 0


def test_the_modes_that_the_server_expects_are_those_that_clients_are_scored_on(tmp_path: Path) -> None:
    adapt(tmp_path)
    for model, inputs, online in (("last", [5, 40], True), ("best", [], False)):
        base, more = mode_names(setup_of().simulation.federation.adaptation, inputs, online=online)
        lines = [line for line in lines_of(tmp_path) if line["model"] == model and line["population"] == "unseen"]
        assert [line["mode"] for line in lines] == [*base, *(mode for pair in more for mode in pair)]


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / AdaptedLine.FILE).read_text(encoding="utf-8").splitlines()]


# --------------------------------------------------------------------------------------------- who leaves in the midst


Spoil = Callable[[Message], "Message | None"]


def spoiling(number: int, spoilt: Mapping[int, Spoil]) -> Answering:
    """Let these clients spoil what they answer in one exchange of the first fit, and be as they were from then on."""
    left = dict(spoilt)

    def answering(client: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        asked = message.content.config_records.get("fedreach", {})
        return left.pop(client)(answer()) if asked.get("exchange") == number and client in left else answer()

    return answering


def fail(reply: Message) -> Message:
    reply.__dict__["_content"], reply.__dict__["_error"] = None, Error(code=2, reason="OSError: disk gone")
    return reply


def with_array(change: Callable[[np.ndarray], np.ndarray]) -> Spoil:
    def spoil(reply: Message) -> Message:
        record = reply.content["sums-0"]
        name = next(iter(record))
        record[name] = Array(change(record[name].numpy()))
        return reply

    return spoil


def renamed(reply: Message) -> Message:
    record = dict(reply.content["sums-0"])
    name = next(iter(record))
    reply.content["sums-0"] = ArrayRecord(
        {**{key: value for key, value in record.items() if key != name}, "x": record[name]}
    )
    return reply


def without_a_fit(reply: Message) -> Message:
    del reply.content["sums-0"]
    return reply


SPOILT: dict[str, tuple[Spoil, str]] = {
    "silent": (lambda reply: None, "no reply within 0.3 s"),
    "failed": (fail, "it failed: OSError: disk gone"),
    "not finite": (with_array(lambda values: values * np.nan), "is not finite"),
    "huge": (with_array(lambda values: values + 1e30), "contains numbers up to 1e+30"),
    "of another shape": (with_array(lambda values: values[:-1]), "but most clients"),
    "of another kind": (with_array(lambda values: values.astype(np.float32)), "must be float64"),
    "of another name": (renamed, "but most clients"),
    "without a fit": (without_a_fit, "it sent no arrays 'sums-0'"),
}


def adapted_without(setup: FlowerExperiment, leavers: set[int]) -> AdaptationEvaluator:
    """Return who adapts everybody as if some of the participants had never held out an example."""
    d, held_out = setup.data, setup.data.held_out
    sizes = np.array([0 if client in leavers else size for client, size in enumerate(held_out.sizes)])
    order = np.concatenate([held_out[client] for client in range(d.num_clients) if client not in leavers])
    data: FederatedData = replace(d, held_out=ClientIndex(order, np.concatenate([[0], np.cumsum(sizes)])))
    rule, inputs = setup.simulation.federation.adaptation, tuple(setup.experiment.evaluation.inputs)
    return AdaptationEvaluator(setup.simulation.engine, data, rule, None, inputs)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("exchange", [1, 2, 3])
def test_who_leaves_between_exchanges_is_in_no_sum_and_is_named(
    exchange: int, tmp_path: Path, heard: pytest.LogCaptureFixture
) -> None:
    leaver = int(setup_of().data.population.participants[1])
    adapt(tmp_path / "flower", answering=spoiling(exchange, {leaver: lambda reply: None}))
    assert record_of(tmp_path / "flower")["left"]["last"] == {str(leaver): exchange}
    assert f"Client {leaver} left in exchange {exchange}" in heard.text
    assert "no reply within 0.3 s" in heard.text
    check_fitted_by_those_that_stayed(tmp_path / "flower", tmp_path / "alone", {leaver})


def test_who_contributes_nonsense_is_in_no_sum_and_is_named(tmp_path: Path, heard: pytest.LogCaptureFixture) -> None:
    leavers = dict(zip(setup_of(*TEN).data.population.participants.tolist(), SPOILT.values(), strict=False))
    assert len(leavers) == len(SPOILT) < 9
    adapt(tmp_path / "flower", *TEN, answering=spoiling(2, {client: spoil for client, (spoil, _) in leavers.items()}))
    assert record_of(tmp_path / "flower")["left"]["last"] == {str(client): 2 for client in leavers}
    for client, (_, why) in leavers.items():
        assert re.search(f"Client {client} left in exchange 2.*: .*{re.escape(why)}", heard.text), why
    check_fitted_by_those_that_stayed(tmp_path / "flower", tmp_path / "alone", set(leavers), *TEN)


def check_fitted_by_those_that_stayed(folder: Path, alone: Path, leavers: set[int], *overrides: str) -> None:
    """Assert that the last model is adapted as if these had never held out an example, bit for bit."""
    setup, other = setup_of(*overrides), RunFolder(alone)
    alone.mkdir()
    for name in ("last.safetensors", "rounds.jsonl", "federation.json", "run.json", CHECKPOINT):
        (alone / name).write_bytes((folder / name).read_bytes())
    stored = other.read_tensors(CHECKPOINT)
    assert stored is not None
    arrays, record = stored
    del record["files"][BEST]  # only the last model is adapted
    record["files"][LAST] = other.digest(LAST)
    other.write_tensors(CHECKPOINT, arrays, record)
    write_adaptation(other, setup.simulation.engine.layout, adapted_without(setup, leavers))
    ours, theirs = RunFolder(folder).read_tensors(ADAPTATION_FILE), other.read_tensors(ADAPTATION_FILE)
    assert ours is not None
    assert theirs is not None
    for name, value in theirs[0].items():
        assert ours[0][name].tobytes() == value.tobytes(), name
    assert record_of(folder)["columns"]["last"] == record_of(alone)["columns"]["last"]
    assert [line for line in lines_of(folder) if line["model"] == "last"] == lines_of(alone)


def test_a_participant_that_goes_offline_is_not_waited_for(tmp_path: Path) -> None:
    setup = setup_of()
    leaver = int(setup.data.population.participants[0])
    grid = InProcess(setup.client_app(), range(CLIENTS))

    def leave(client: int, message: Message, answer: Callable[[], Message]) -> Message:
        if message.content.config_records.get("fedreach", {}).get("exchange") == 1:
            grid.absent.add(leaver)
        return answer()

    grid.answering = leave
    setup.strategy(tmp_path, timeout=60, patience=1).run(grid)
    assert record_of(tmp_path)["left"]["last"] == {str(leaver): 2}


@pytest.mark.slow
def test_if_nobody_is_left_the_run_says_so_and_goes_on_from_there(tmp_path: Path) -> None:
    adapt(tmp_path / "undisturbed")

    def fall_silent(client: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        second = message.content.config_records.get("fedreach", {}).get("exchange") == 2
        return None if second else answer()

    with pytest.raises(
        TrainingError, match=r"LabelShift cannot be fitted: 0 participants .* left during the fit\. Restart"
    ):
        adapt(tmp_path / "again", answering=fall_silent)
    result = json.loads((tmp_path / "again" / "result.json").read_text(encoding="utf-8"))
    assert result["status"] == "failed"
    grid = adapt(tmp_path / "again")
    assert not {"train", "evaluate"} & {kind for _, kind in grid.sent}
    for name in (*FILES, "last.safetensors", "result.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "undisturbed" / name).read_bytes(), name


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["query.adaptation", "evaluate.adaptation"])
def test_a_server_that_is_killed_while_it_serves_serves_again_and_trains_nothing(kind: str, tmp_path: Path) -> None:
    method = ("method.solver=scaffold",)  # whose memory goes as training ends
    adapt(tmp_path / "undisturbed", *method)

    class Killed(BaseException):
        """As a signal would: nothing that the run could take for a failure."""

    count = Counter[str]()

    def kill(client: int, message: Message, answer: Callable[[], Message]) -> Message:
        count[message.metadata.message_type] += 1
        if count[kind] == 7:
            raise Killed
        return answer()

    with pytest.raises(Killed):
        adapt(tmp_path / "again", *method, answering=kill)
    assert not (tmp_path / "again" / "result.json").exists()
    grid = adapt(tmp_path / "again", *method)
    assert "train" not in {kind for _, kind in grid.sent}
    for name in (*FILES, "last.safetensors", "rounds.jsonl", "result.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "undisturbed" / name).read_bytes(), name


# ------------------------------------------------------------------------------------------------------- at the end


def test_if_the_best_model_is_the_last_nobody_is_asked_again(tmp_path: Path) -> None:
    grid = adapt(tmp_path, "rounds=1")
    assert record_of(tmp_path)["rounds"] == {"last": 1, "best": 1}
    asked = Counter(client for client, kind in grid.sent if kind == "evaluate.adaptation")
    assert set(asked.values()) == {1}


def test_a_federation_without_a_rule_says_nothing_of_adaptation(tmp_path: Path) -> None:
    grid = adapt(tmp_path, "method.adaptation=none")
    assert not [kind for _, kind in grid.sent if kind.endswith("adaptation")]
    assert not any((tmp_path / name).exists() for name in FILES)
    assert adaptation_table(RunFolder(tmp_path)) == []


def test_a_run_ends_with_a_table_of_what_adaptation_gains(tmp_path: Path, heard: pytest.LogCaptureFixture) -> None:
    adapt(tmp_path)
    lines, columns = adaptation_table(RunFolder(tmp_path)), record_of(tmp_path)["columns"]["last"]
    assert [line.split("  ")[0].partition(": ")[0] for line in lines[2:]] == [
        "unadapted",
        "calibrated",
        "adapted",
        "oracle prior, needs labels",
        "expected by participants",
        "adapted - unadapted",
    ]
    assert lines[1].split("  ")[-1].strip() == "test set"
    gain = 100 * (columns["unseen_adapted_accuracy"] - columns["unseen_unadapted_accuracy"])
    assert f"{gain:+.1f}" in lines[-1]
    assert f"{100 * columns['expected_gain']:+.1f} points [" in lines[-2]
    for line in lines:
        assert line in heard.text
    assert len(rows_of(tmp_path)) == 3
