"""The loop runs what it is handed, from Python as from a file, and tells callbacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedreach._util.arrays import Float32s, Ints
from fedreach._util.errors import RunFolderError, TrainingError
from fedreach.data.federated import FederatedData
from fedreach.evaluation.evaluator import Evaluator
from fedreach.report.read import read_run
from fedreach.runs import loop
from fedreach.runs.budget import Budget
from fedreach.runs.callbacks import Callback
from fedreach.runs.folder import RESUMED, RunFolder
from fedreach.runs.loop import RunSpec, consume, each_round
from fedreach.runs.recorder import Recorder, note_failure
from fedreach.runs.schema import FederationRecord, Result, RoundRow, RunRecord, Timing
from fedreach.testing.problems import tiny_simulation
from fedreach.wireless.radio import Radio

from ..report.made_up import listed  # noqa: TID252

RUN = RunRecord(method="tiny", seed=0, config={}, code={}, environment={}, git=None)


def go_on(path: Path, *callbacks: Callback, **options: Any) -> Result:
    simulation = replace(tiny_simulation(), rounds=options.pop("rounds", 4))
    simulation = replace(simulation, federation=replace(simulation.federation, radio=options.pop("radio", None)))
    recorder = Recorder(RunFolder(path), simulation.federation, simulation.engine.layout)
    evaluator = Evaluator(simulation.engine, simulation.data)
    path.mkdir(exist_ok=True)
    spec = RunSpec(
        record=RUN,
        simulation=simulation,
        evaluator=evaluator,
        callbacks=callbacks,
        engine="as told",
        **{"every": 2, **options},
    )
    return consume(each_round(spec, recorder))


class Diary(Callback):
    """Notes what it is told."""

    def __init__(self, fails_at: str = "") -> None:
        self.told: list[str] = []
        self.fails_at = fails_at

    def note(self, line: str) -> None:
        self.told.append(line)
        if line == self.fails_at:
            raise RuntimeError(f"no room for {line!r}")

    def begin(self, run: RunRecord, data: FederatedData | None, engine: str, folder: Path) -> None:
        assert data is not None
        assert folder.name == "run"
        self.note(f"begin {run.method}, {data.num_clients} clients, {engine}")

    def round(self, row: RoundRow, timing: Timing, lost: Mapping[int, str]) -> None:
        assert timing.round == row.round
        assert (timing.evaluate_seconds is not None) == bool(row.evaluated)
        self.note(f"round {row.round}{' evaluated' * bool(row.evaluated)}")

    def end(self, result: Result) -> None:
        self.note(f"end {result.status}")

    def close(self, error: BaseException | None) -> None:
        self.note(f"close {error}")


def test_callbacks_are_told_of_the_beginning_of_each_round_and_of_the_end(tmp_path: Path) -> None:
    one, other = Diary(), Diary()
    result = go_on(tmp_path / "run", one, other)
    rounds = ["round 1", "round 2 evaluated", "round 3", "round 4 evaluated"]
    assert one.told[1:] == other.told[1:] == [*rounds, "end finished", "close None"]
    assert one.told[0].startswith("begin tiny, ")
    assert one.told[0].endswith("clients, as told")
    assert (result.status, result.rounds) == ("finished", 4)


def test_a_run_from_python_is_read_like_any_other(tmp_path: Path) -> None:
    result = go_on(tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert (run.method, run.status, run.last_round, run.best_round) == ("tiny", "finished", 4, result.best_round)


def test_the_cohorts_accuracy_is_that_of_the_new_model_on_its_clients_held_out_data(tmp_path: Path) -> None:
    go_on(tmp_path / "run", every=1)
    rows = list(RunFolder(tmp_path / "run").records(RoundRow))
    simulation = tiny_simulation()
    state = replace(simulation, rounds=4).start()
    assert "cohort_accuracy" not in rows[0].evaluated
    for row in rows[1:]:
        state = replace(simulation, rounds=4).step(state).state
        held = [simulation.data.held_out[client] for client in row.cohort]
        right = [simulation.engine.predict(state.params, "true", index)[0].mean() for index in held]
        assert row.evaluated["cohort_accuracy"] == pytest.approx(np.mean(right), abs=1e-6)
    differs = [row.evaluated["cohort_accuracy"] != row.evaluated["participant_accuracy"] for row in rows[1:]]
    assert any(differs)


class Disagreeing(Evaluator):
    """Finds another round best on participants' held-out data, on the test set and on unseen clients."""

    def evaluate(
        self, models: Float32s, round_: int, clusters: Ints | None = None
    ) -> tuple[dict[str, float], list[dict[str, Any]]]:
        columns, lines = super().evaluate(models, round_, clusters)
        for whose, best in {"participant": 2, "test": 3, "unseen": 4}.items():
            columns |= {f"{whose}_loss": 1.0 + (round_ != best), f"{whose}_accuracy": 0.5 - 0.1 * (round_ != best)}
        return columns, lines


def test_participants_held_out_data_alone_say_which_round_is_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "Evaluator", Disagreeing)
    result = go_on(tmp_path / "run", every=1)
    assert (result.rounds, result.best_round) == (4, 2)
    best = RunFolder(tmp_path / "run").read_tensors("best.safetensors")
    assert best is not None
    assert best[1]["round"] == 2


def test_what_a_callback_raises_ends_the_run_which_goes_on_from_there(tmp_path: Path) -> None:
    first, again = Diary("round 3"), Diary()
    with pytest.raises(RuntimeError, match="no room for 'round 3'"):
        go_on(tmp_path / "run", first)
    assert first.told[-2:] == ["round 3", "close no room for 'round 3'"]
    go_on(tmp_path / "run", again)
    assert again.told[1:] == ["round 4 evaluated", "end finished", "close None"]  # round 3 stands in the checkpoint
    go_on(tmp_path / "whole")
    for name in ("rounds.jsonl", "clients.jsonl", "last.safetensors", "checkpoint.safetensors", "result.json"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_simulated_seconds_and_joules_add_up_over_an_interruption(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        go_on(tmp_path / "run", Diary("round 3"), radio=Radio())
    go_on(tmp_path / "run", radio=Radio())
    found = RunFolder(tmp_path / "run").rows("rounds.jsonl")
    assert [row["round"] for row in found] == [0, 1, 2, 3, 4]
    for key in ("seconds", "joules"):
        assert found[3][key] > 0
        assert [row[f"{key}_total"] for row in found] == pytest.approx(np.cumsum([row[key] for row in found]))


@pytest.mark.parametrize("name", ["rounds.jsonl", "clients.jsonl", "timing.jsonl"])
@pytest.mark.parametrize("seconds", [0.0, 60.0])  # each round's rows at once, or all in the end
def test_rows_whose_writing_is_interrupted_are_written_once(
    name: str, seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on(tmp_path / "whole")
    whole, stopped = RunFolder.append_json, []

    def append(self: RunFolder, file: str, *found: Mapping[str, Any]) -> None:
        whole(self, file, *found)
        if file == name and found[-1]["round"] >= 2 and not stopped:
            stopped.append(file)
            raise KeyboardInterrupt

    monkeypatch.setattr(loop, "ROWS_SECONDS", seconds)
    monkeypatch.setattr(RunFolder, "append_json", append)
    with pytest.raises(KeyboardInterrupt):
        go_on(tmp_path / "run")
    assert stopped == [name]
    go_on(tmp_path / "run")
    for file in ("rounds.jsonl", "clients.jsonl", "last.safetensors", "checkpoint.safetensors", "result.json"):
        assert (tmp_path / "run" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    assert [row["round"] for row in RunFolder(tmp_path / "run").rows("timing.jsonl")] == [0, 1, 2, 3, 4]


def test_a_checkpoint_holds_the_rows_of_its_round_and_of_no_later_one(tmp_path: Path) -> None:
    """Also where rows still wait: a run that stops between two rounds leaves no row without its round."""
    with pytest.raises(RuntimeError):
        go_on(tmp_path / "run", Diary("round 3"))
    folder = RunFolder(tmp_path / "run")
    found = folder.read_tensors("checkpoint.safetensors")
    assert found is not None
    assert found[1]["round"] == 3
    assert found[1]["files"] == {name: [*listed] for name, listed in folder.list_files(RESUMED).items()}
    assert [row["round"] for row in folder.rows("rounds.jsonl")] == [0, 1, 2, 3]


def test_a_run_that_had_finished_is_not_made_to_have_failed(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError) as error:
        go_on(tmp_path / "run", Diary("end finished"))
    folder = RunFolder(tmp_path / "run")
    note_failure(folder, error.value)
    assert folder.read(Result) is not None
    assert read_run(tmp_path / "run").status == "finished"


def test_a_run_is_not_gone_on_with_on_another_federation(tmp_path: Path) -> None:
    go_on(tmp_path / "run", rounds=1)
    folder = RunFolder(tmp_path / "run")
    record = folder.read(FederationRecord)
    assert record is not None
    folder.write(replace(record, hash="of other data"))
    listed(folder.path)
    with pytest.raises(RunFolderError, match="belongs to another federation"):
        go_on(tmp_path / "run", rounds=2)
    assert len(folder.rows(RoundRow.FILE)) == 2  # nothing is written


def test_patience_ends_a_run(tmp_path: Path) -> None:
    assert go_on(tmp_path / "run", rounds=40, every=1, patience=1).rounds < 40  # type: ignore[operator]


def test_a_budget_ends_a_run_with_the_round_that_reaches_it(tmp_path: Path) -> None:
    """Whatever of it is reached first; that round is evaluated, as the last always is."""
    go_on(tmp_path / "all", rounds=9, every=4)
    rows = RunFolder(tmp_path / "all").rows(RoundRow.FILE)
    sent = [row["bytes_total"] / 1e6 for row in rows]
    for i, megabytes in enumerate((sent[5], sent[5] + 1e-6, 1e-9), start=1):
        path, end = tmp_path / str(i), {1: 5, 2: 6, 3: 1}[i]
        assert go_on(path, rounds=9, every=4, budget=Budget(megabytes)).rounds == end
        spent = RunFolder(path).rows(RoundRow.FILE)
        assert spent[:-1] == rows[:end]
        assert spent[-1]["bytes_total"] == rows[end]["bytes_total"]
        assert "participant_accuracy" in spent[-1]
    assert go_on(tmp_path / "seconds", budget=Budget(seconds=1.0)).rounds == 4  # there is no radio: none passes


def test_a_run_that_goes_on_has_spent_what_it_spent_before(tmp_path: Path) -> None:
    go_on(tmp_path / "run", rounds=3)
    sent = RunFolder(tmp_path / "run").rows(RoundRow.FILE)[-1]["bytes_total"]
    assert go_on(tmp_path / "run", rounds=9, budget=Budget(1.5 * sent / 1e6)).rounds == 5
    assert go_on(tmp_path / "run", rounds=9, budget=Budget(sent / 1e6)).rounds == 5


def test_a_model_that_is_not_finite_ends_a_run_that_goes_on_without_failing_clients(tmp_path: Path) -> None:
    simulation = tiny_simulation()
    recorder = Recorder(RunFolder(tmp_path), simulation.federation, simulation.engine.layout, stop_if_diverged=False)
    snapshot, row = recorder.begin(simulation.start())
    timing, evaluated = Timing(round=0), ({"participant_loss": 1.0, "test_loss": np.inf}, [])
    recorder.close(snapshot, row, timing, evaluated)  # the model is finite: others may train it
    models = snapshot.state.models.copy()
    models[0, -1] = np.nan
    with pytest.raises(TrainingError, match=r"The model diverged: test_loss is not finite .* local\.clip_norm\.$"):
        recorder.close(replace(snapshot, state=replace(snapshot.state, models=models)), row, timing, evaluated)


def test_rounds_without_clients_are_no_lost_ones(tmp_path: Path) -> None:
    """Of a server that trains itself, or where nobody could be reached; one client was lost among them."""
    simulation = tiny_simulation()
    recorder = Recorder(RunFolder(tmp_path), simulation.federation, simulation.engine.layout)
    snapshot, row = recorder.begin(simulation.start())
    cohorts, losses = [(), (0, 1), (), (), (), ()], [(), (), (), (4,), (), ()]
    rows = [replace(row, round=i, cohort=c, lost=x) for i, (c, x) in enumerate(zip(cohorts, losses, strict=True))]
    assert recorder.finish(replace(snapshot, rows=tuple(rows))).status == "finished"
    rows[2] = replace(rows[2], lost=(1, 4))
    rows[5] = replace(rows[5], lost=(2,))
    (tmp_path / RoundRow.FILE).unlink()
    with pytest.raises(TrainingError, match=r"in the last 4 of 5 rounds: all 4 were lost or not finite"):
        recorder.finish(replace(snapshot, rows=tuple(rows)))
