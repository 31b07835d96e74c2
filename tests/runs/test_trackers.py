"""Trackers are told of the whole run, once, however often it is interrupted; and no run takes notice of them."""

from __future__ import annotations

import importlib.util
import json
import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fedreach as fr
from fedreach.experiment.compare import compare
from fedreach.experiment.extend import extend_run
from fedreach.experiment.load import load
from fedreach.experiment.run import run
from fedreach.report.write import write_report
from fedreach.runs.callbacks import Callback
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import ComparisonRecord, Result, RoundRow, RunRecord, Timing
from fedreach.runs.trackers import numbers, tag_of

from ..conftest import TINY, Command, Refused, Start, exact, rows, wait_until  # noqa: TID252
from ..experiments.inline import Inline  # noqa: TID252

OWN = """\
import json
import fedreach as fr


class Notes(fr.Callback):
    "Writes down what it is told, and fails where it is to."

    def __init__(self, fails: str = "", leaves: bool = False):
        self.fails, self.error = fails, SystemExit if leaves else RuntimeError

    def note(self, method, *what):
        with self.path.open("a") as file:
            file.write(json.dumps([method, *what]) + "\\n")
        if method == self.fails:
            raise self.error(f"no room in {method}")

    def begin(self, run, data, engine, folder):
        self.path = folder / "notes.txt"
        self.path.unlink(missing_ok=True)
        run.config["rounds"] = 99
        self.note("begin", run.method, run.seed, len(run.id))

    def round(self, row, timing, lost):
        row.evaluated["participant_loss"], row.weights[:] = -1.0, [2.0]
        self.note("round", row.round, timing.train_seconds is not None)

    def end(self, result):
        self.note("end", result.status)

    def close(self, error):
        self.note("close", type(error).__name__)
"""
WHOLE = [["begin", "run", 0, 32], *(["round", n, n > 0] for n in range(5)), ["end", "finished"], ["close", "NoneType"]]


@pytest.fixture(autouse=True)
def own(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tracker of one's own; and no store but that of the test."""
    (home / "own.py").write_text(OWN, encoding="utf-8")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)  # mlflow.db
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of the tiny run, on which nobody looks."""
    home = tmp_path_factory.mktemp("plain")
    (home / "tiny.toml").write_text(TINY, encoding="utf-8")
    return exact(go(home, "x"))


def notes(folder: Path) -> list[Any]:
    return rows(folder, "notes.txt")


def go(home: Path, out: str, *trackers: Any, callbacks: Sequence[Callback] = (), **warned: Any) -> Path:
    """Run the tiny experiment, with these trackers, in this process."""
    experiment = load(home / "tiny.toml", [f"run.trackers={said(trackers)}"]).resolved()
    run(experiment, seed=0, folder=home / out, base=home, callbacks=callbacks, **warned)
    return home / out


def said(trackers: Sequence[Any]) -> str:
    tables = [
        each if isinstance(each, str) else ", ".join(f"{k} = {json.dumps(v)}" for k, v in each.items())
        for each in trackers
    ]
    return f"[{', '.join(json.dumps(t) if '=' not in t else '{' + t + '}' for t in tables)}]"


def rounds_of(folder: Path, column: str = "bytes_total") -> list[int]:
    """Return the rounds of which an event file holds this number."""
    return sorted(scalars(folder).get(tag_of(column), ()))


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    """Return what TensorBoard's own reader finds: tag -> step -> value; a step that is there twice is refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tensorboard's own imports
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    (file,) = folder.glob("events.out.tfevents.*")
    events = EventAccumulator(str(file), size_guidance={"scalars": 0})
    events.Reload()
    found = {}
    for tag in events.Tags()["scalars"]:
        steps = events.Scalars(tag)
        found[tag] = {each.step: each.value for each in steps}
        assert len(steps) == len(found[tag])
        assert [each.wall_time for each in steps] == sorted(each.wall_time for each in steps)
    return found


def expected(folder: Path) -> dict[int, dict[str, float]]:
    """Return round -> numbers, as the rows of a run have them."""
    store = RunFolder(folder)
    stored = list(store.records(RoundRow))
    timings = {timing.round: timing for timing in store.timing(stored[-1].round)}
    return {row.round: numbers(row, timings[row.round]) for row in stored}


def check_records(folder: Path) -> None:
    """Refuse an event file that holds anything but each number of each round, once."""
    wanted, told = expected(folder), scalars(folder)
    assert {tag: {n: pytest.approx(v, rel=1e-6) for n, v in steps.items()} for tag, steps in told.items()} == {
        tag_of(key): {n: of[key] for n, of in wanted.items() if key in of}
        for key in {k for of in wanted.values() for k in of}
    }


class Stops(Callback):
    """Interrupts a run after a round."""

    def __init__(self, after: int) -> None:
        self.after = after

    def round(self, row: RoundRow, timing: Timing, lost: Mapping[int, str]) -> None:
        if row.round == self.after:
            raise KeyboardInterrupt


# ------------------------------------------------------------------------------------------------- what is written


def test_event_files_hold_all_numbers_of_all_rounds_and_the_run_stays_the_same(fedreach: Command, home: Path) -> None:
    assert fedreach("run", "tiny.toml", "--out", "plain", "-q").exit_code == 0
    assert fedreach("run", "tiny.toml", "--out", "x", "--track", "tensorboard", "-q").exit_code == 0
    check_records(home / "x")
    numbers_of_last = expected(home / "x")[4]
    assert set(numbers_of_last) >= {"train_loss", "unseen_accuracy", "test_accuracy", "train_seconds"}
    assert exact(home / "x") == exact(home / "plain")
    records = [json.loads((home / out / "run.json").read_text()) for out in ("x", "plain")]
    assert [record["config"]["run"].pop("trackers") for record in records] == [
        [{"name": "tensorboard"}],
        [],
    ]
    assert records[0].pop("sha256") != records[1].pop("sha256")
    assert records[0] == records[1]


def test_a_page_does_not_say_who_looked_on(home: Path) -> None:
    compare(load(home / "tiny.toml", ["seeds=[0]"]), out=home / "a" / "x", base=home, executor=Inline())
    shutil.copytree(home / "a", home / "b")
    for folder in [home / "b" / "x", *(home / "b" / "x" / "runs").glob("*/*")]:
        shape: Any = ComparisonRecord if folder.name == "x" else RunRecord
        record = RunFolder(folder).required(shape)
        table = {**record.config["run"], "trackers": [{"name": "tensorboard"}]}
        RunFolder(folder).write(replace(record, config={**record.config, "run": table}))
    pages = [write_report([home / each / "x"], home / each / "x", formats=None).page.read_bytes() for each in "ab"]
    assert pages[0] == pages[1]


# --------------------------------------------------------------------------------------------------- one's own


def test_ones_own_is_told_of_the_whole_run(home: Path) -> None:
    folder = go(home, "x", "own.py:Notes")
    assert notes(folder) == WHOLE
    (home / "own.py").write_text(OWN.replace("no room", "no more room"), encoding="utf-8")
    assert go(home, "x", "own.py:Notes") == folder  # neither part of the run, nor told again of what has finished
    assert notes(folder) == WHOLE


@pytest.mark.parametrize("method", ["begin", "round", "end", "close"])
@pytest.mark.parametrize("leaves", [False, True])
def test_one_that_fails_is_told_of_once_and_left_out_and_the_run_is_the_same(
    home: Path, plain: dict[str, bytes], method: str, leaves: bool
) -> None:
    told: list[tuple[str, str]] = []
    bad = {"name": "own.py:Notes", "fails": method, "leaves": leaves}
    folder = go(home, "x", bad, "tensorboard", warn=lambda *said: told.append(said))
    assert exact(folder) == plain
    (warning,) = told
    assert warning[0] == "own.py:Notes"
    kind = "SystemExit" if leaves else "RuntimeError"
    assert f"tracker 'own.py:Notes' failed in `{method}`: {kind}: no room in {method} (own.py, line 15)." in warning[1]
    assert f"`fedreach report {folder} --track own.py:Notes` to send the complete run to the tracker." in warning[1]
    called = [line[0] for line in notes(folder)]
    assert called.count(method) == 1  # and no more after it than that it is closed
    assert called[called.index(method) :] == [method, "close"][: 1 + (method != "close")]
    assert rounds_of(folder) == [0, 1, 2, 3, 4]  # the others are told on


def test_an_interrupted_and_a_failed_run_close_their_trackers(home: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        go(home, "x", "own.py:Notes", callbacks=[Stops(2)])
    assert notes(home / "x")[-1] == ["close", "KeyboardInterrupt"]
    (home / "bad.py").write_text("def bad(reports):\n    raise ValueError('no weights')\n", encoding="utf-8")
    toml = (home / "tiny.toml").read_text().replace("[method]", "[method]\nweighting = 'bad.py:bad'")
    (home / "tiny.toml").write_text(toml, encoding="utf-8")
    with pytest.raises(fr.FedReachError, match="no weights"):
        go(home, "failed", "own.py:Notes")
    assert notes(home / "failed") == [WHOLE[0], WHOLE[1], ["close", "ValueError"]]


def test_rounds_that_cannot_be_read_any_more_are_a_trackers_affair(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(self: RunFolder, name: str) -> Any:
        raise fr.FedReachError("rounds.jsonl cannot be read")

    told: list[str] = []
    monkeypatch.setattr(RunFolder, "kept_text", unreadable)
    go(home, "x", "own.py:Notes", warn=lambda name, text: told.append(text))
    monkeypatch.undo()
    assert [text.partition(":")[0] for text in told] == ["tracker 'own.py"]
    assert "rounds.jsonl cannot be read" in told[0]


# ------------------------------------------------------------------------------------------------- before it runs


def test_what_cannot_be_had_is_refused_before_anything_is_run(
    refused: Refused, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in ("run", "compare"):
        said = refused(2, command, "tiny.toml", "--out", "x", "--track", "tensorbord")
        assert "unknown tracker 'tensorbord'. Did you mean 'tensorboard'?" in said
        assert "file not found" in refused(2, command, "tiny.toml", "--out", "x", "--track", "gone.py:Mine")
    options = ["--out", "x", "--set", "run.trackers=[{name='mlflow', url='x'}]"]
    assert "tracker 'mlflow' has no such option. Did you mean 'uri'?" in refused(2, "run", "tiny.toml", *options)
    (home / "bare.py").write_text("class Bare:\n    def round(self, row, timing, lost): ...\n")
    said = refused(2, "run", "tiny.toml", "--out", "x", "--track", "bare.py:Bare")
    assert "must be an instance of a subclass of fedreach.Callback; got Bare." in said
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: None if name in ("mlflow", "tensorboard") else real(name, *more),
    )
    for name in ("mlflow", "tensorboard"):
        said = refused(2, "run", "tiny.toml", "--out", "x", "--track", name)
        assert "is not installed. Run: pip install 'fedreach[tracking]'." in said
    assert not (home / "x").exists()


# -------------------------------------------------------------------------------------------------- going on


def test_a_run_that_goes_on_leaves_one_record_whoever_looked_on_before(home: Path, plain: dict[str, bytes]) -> None:
    each = (home / "tiny.toml").read_text() + "\n[run]\ncheckpoint_seconds = 0\n"  # a round stands there as it is told
    (home / "tiny.toml").write_text(each, encoding="utf-8")
    with pytest.raises(KeyboardInterrupt):
        go(home, "x", "tensorboard", callbacks=[Stops(1)])
    with pytest.raises(KeyboardInterrupt):
        go(home, "x", "tensorboard", callbacks=[Stops(3)])
    folder = go(home, "x", "tensorboard", "own.py:Notes")
    check_records(folder)
    assert notes(folder) == WHOLE
    assert exact(folder) == plain


def test_an_extended_run_has_the_record_of_a_longer_one(home: Path) -> None:
    """Also of its last round, whose evaluation is taken back."""
    toml = (home / "tiny.toml").read_text().replace("every = 2", "every = 3")
    upward = "[method]\nserver = { name = 'average', lr = 20.0 }"  # the last model is not the best, which would stay
    (home / "tiny.toml").write_text(toml.replace("[method]", upward), encoding="utf-8")
    folder = go(home, "x", "tensorboard")
    extend_run(folder, 7, base=home, trackers=["tensorboard"])
    assert rounds_of(folder, "participant_accuracy") == [0, 3, 6, 7]
    check_records(folder)
    with pytest.raises(fr.FedReachError, match="unknown tracker 'tensorbord'"):
        extend_run(folder, 9, base=home, trackers=["tensorbord"])
    assert RunFolder(folder).required(Result).rounds == 7


def test_a_tracker_is_told_later_of_what_was_run_before(fedreach: Command, refused: Refused, home: Path) -> None:
    compare(load(home / "tiny.toml", ["seeds=[0]"]), out=home / "x", base=home, executor=Inline())
    again = fedreach("report", "x", "--formats", "none", "--track", "tensorboard")
    assert again.exit_code == 0, again.output
    for method in ("uniform", "entropy"):
        check_records(home / "x" / "runs" / method / "seed-0")
    before = {path: path.read_bytes() for path in (home / "x").rglob("events.*")}
    assert fedreach("report", "x", "--formats", "none", "--track", "tensorboard").exit_code == 0
    assert before == {
        path: path.read_bytes() for path in (home / "x").rglob("events.*")
    }  # the same rows, the same bytes
    (home / "own.py").write_text(OWN.replace('fails: str = ""', 'fails: str = "end"'), encoding="utf-8")
    said = refused(1, "report", "x", "--formats", "none", "--track", "own.py:Notes")
    assert said.count("failed in `end`: RuntimeError: no room in end") == 1


# ------------------------------------------------------------------------------------------- many, and from Python


def test_runs_that_take_a_training_are_told_of_as_any_other_and_failures_once(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = "{name='own.py:Notes', fails='round'}"
    adaptation = "methods={a={}, b={adaptation='oracle_prior'}}"
    experiment = load(
        home / "tiny.toml", ["baseline='a'", f"run.trackers=['tensorboard', {bad}]", adaptation, "seeds=[0]"]
    )
    status = compare(experiment, out=home / "x", base=home, executor=Inline())
    assert not status.failed
    for method in "ab":
        assert rounds_of(home / "x" / "runs" / method / "seed-0") == [0, 1, 2, 3, 4]
    assert capsys.readouterr().err.count("tracker 'own.py:Notes' failed") == 1


def test_runs_that_tune_are_not_tracked(home: Path) -> None:
    tuned = [
        "run.trackers=['tensorboard']",
        "tune={'local.lr'=[0.1, 0.3]}",
        "methods={a={}}",
        "baseline='a'",
        "seeds=[0]",
    ]
    assert not compare(load(home / "tiny.toml", tuned), out=home / "x", base=home, executor=Inline()).failed
    assert [path.relative_to(home / "x").parts[0] for path in (home / "x").rglob("events.*")] == ["runs"]


class Seen(fr.Callback):
    def __init__(self) -> None:
        self.rounds: list[int] = []

    def round(self, row: RoundRow, timing: Timing, lost: Mapping[int, str]) -> None:
        self.rounds.append(row.round)


def test_python_hands_over_names_classes_and_objects(home: Path) -> None:
    data = fr.load("digits").partition("dirichlet_by_class", clients=12, alpha=0.5, participants=6)
    seen = Seen()
    loop = fr.run(data, rounds=3, cohort_size=3, model="linear", out="x", trackers=[seen, "tensorboard"])
    next(loop)
    loop.close()
    more = Seen()
    assert (
        len(
            list(
                fr.run(data, rounds=3, cohort_size=3, model="linear", out="x", trackers=[more, {"name": "tensorboard"}])
            )
        )
        == 3
    )
    assert (seen.rounds, more.rounds) == ([0, 1], [0, 1, 2, 3])
    assert rounds_of(home / "x") == [0, 1, 2, 3]


# ------------------------------------------------------------------------------------------------------ MLflow


def of_mlflow(home: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow import MlflowClient

        return MlflowClient()


def check_mlflow(client: Any, folder: Path, number: str) -> Any:
    """Refuse a run of MLflow that holds anything but each number of each round, once; return it."""
    found = client.get_run(number)
    wanted = expected(folder)
    keys = {key for of in wanted.values() for key in of}
    assert set(found.data.metrics) == keys
    for key in keys:
        history = client.get_metric_history(number, key)
        values = {n: of[key] for n, of in wanted.items() if key in of}
        assert sorted(each.step for each in history) == list(values)
        if not key.endswith("_seconds"):  # of a round that was run again it keeps those of the first time
            assert {each.step: each.value for each in history} == values
    return found


@pytest.mark.slow
def test_mlflow_has_settings_rounds_tags_and_models_and_goes_on_where_the_run_does(
    home: Path, plain: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(home / "mlruns"))  # files: making a database takes seconds
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    (home / "tiny.toml").write_text((home / "tiny.toml").read_text() + "\n[run]\ncheckpoint_seconds = 60\n")
    with pytest.raises(KeyboardInterrupt):
        go(home, "x", "mlflow", callbacks=[Stops(3)])
    note = json.loads((home / "x" / "mlflow.json").read_text())
    client = of_mlflow(home)
    assert client.get_run(note["run"]).info.status == "KILLED"
    # As if the process had been killed before the checkpoint: rounds come again that MLflow has already.
    cut_back(home, "x")
    folder = go(home, "x", "mlflow")
    found = check_mlflow(client, folder, note["run"])
    assert (found.info.status, found.info.run_name) == ("FINISHED", "run seed 0")
    assert [found.data.params[key] for key in ("local.lr", "partition.clients", "method.selection.name", "seed")] == [
        "0.1",
        "12",
        "uniform",
        "0",
    ]
    assert "run.trackers" not in found.data.params
    record = RunFolder(folder).required(RunRecord)
    tags = {"fedreach.run": record.id, "fedreach.method": "run", "fedreach.seed": "0"}
    assert tags.items() <= found.data.tags.items()
    assert {each.path for each in client.list_artifacts(note["run"])} >= {
        "last.safetensors",
        "best.safetensors",
        "result.json",
    }
    assert exact(folder) == plain
    (experiment,) = [each for each in client.search_experiments() if each.name == "tiny"]
    assert len(client.search_runs([experiment.experiment_id])) == 1


def cut_back(home: Path, out: str) -> None:
    """Have a run stand at round 1, as its checkpoint had it then."""
    shutil.rmtree(home / "earlier", ignore_errors=True)
    with pytest.raises(KeyboardInterrupt):
        go(home, "earlier", callbacks=[Stops(1)])
    for name in ("rounds.jsonl", "clients.jsonl", "timing.jsonl", "checkpoint.safetensors", "best.safetensors"):
        shutil.copy(home / "earlier" / name, home / out / name)


@pytest.mark.slow
def test_a_server_that_is_away_stops_nothing(
    home: Path, plain: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    told: list[str] = []
    folder = go(home, "x", {"name": "mlflow", "uri": "http://127.0.0.1:9"}, warn=lambda name, text: told.append(text))
    assert exact(folder) == plain
    (text,) = told
    assert text.startswith("tracker 'mlflow' failed in `begin`: MlflowException: API request to http://127.0.0.1:9")


# --------------------------------------------------------------------------------------------- slow: real processes


SLOW_POLICY = """\
import time

def slow(view, k, rng):
    time.sleep(0.05)
    return rng.choice(view.ids, size=k, replace=False)
"""


@pytest.mark.slow
def test_a_run_that_is_killed_leaves_one_record_in_each(fedreach: Command, start: Start, home: Path) -> None:
    (home / "slow.py").write_text(SLOW_POLICY, encoding="utf-8")
    chosen = ["rounds=60", "method.selection=slow.py:slow", "run.checkpoint_seconds=0.5"]
    command = ["run", "tiny.toml", "--out", "x", "-q", *(word for each in chosen for word in ("--set", each))]
    for name in ("tensorboard", "mlflow"):
        command += ["--track", name]
    for after in (12, 30):
        killed = start(*command)
        wait_until(lambda after=after: (home / "x" / "rounds.jsonl").exists() and len(rows(home / "x")) > after)
        killed.kill()
        killed.wait()
    done = fedreach(*command)
    assert done.exit_code == 0, done.output
    assert "warning" not in done.output
    check_records(home / "x")
    note = json.loads((home / "x" / "mlflow.json").read_text())
    check_mlflow(of_mlflow(home), home / "x", note["run"])


@pytest.mark.slow
def test_a_comparison_by_workers_is_tracked_and_a_failing_tracker_told_of_once(start: Start, home: Path) -> None:
    command = ["compare", "tiny.toml", "--out", "x", "--formats", "none", "--workers", "2"]
    process = start(*command, "--track", "tensorboard", "--track", "mlflow", "--track", "own.py:Failing")
    (home / "own.py").write_text(
        OWN + "\n\nclass Failing(Notes):\n    def __init__(self):\n        super().__init__('round')\n"
    )
    _, said = process.communicate()
    assert process.returncode == 0, said
    assert said.count("warning: ") == said.count("tracker 'own.py:Failing' failed") == 1
    client = of_mlflow(home)
    for folder in (home / "x").glob("runs/*/*"):
        check_records(folder)
        check_mlflow(client, folder, json.loads((folder / "mlflow.json").read_text())["run"])
    (experiment,) = [each for each in client.search_experiments() if each.name == "tiny"]
    assert len(client.search_runs([experiment.experiment_id])) == 4
