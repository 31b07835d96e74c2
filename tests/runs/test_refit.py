"""Training once more on all rows: which model comes out, what stays as it was, and what interrupts it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import TINY, Command, Refused

import fedreach as fr
from fedreach._util.errors import RunFolderError
from fedreach.data.splits import ClientIndex
from fedreach.deploy.saved import load as load_model
from fedreach.engines.models.flat import Layout
from fedreach.experiment.build import Builder
from fedreach.experiment.load import load
from fedreach.experiment.schema import Experiment
from fedreach.report.read import read
from fedreach.runs.checkpoint import read_models
from fedreach.runs.folder import RunFolder
from fedreach.runs.simulation import Simulation, simulate

REFIT = ("--set", "population.refit=true")
SCORED = ("rounds.jsonl", "clients.jsonl", "last.safetensors", "best.safetensors", "federation.json", "baselines.json")
"""What is told of the model that did not see held-out rows."""
FINE = {"run", "files", "sha256"}
BEST = 5
"""The best of six rounds, by held-out rows, of the experiment below."""


def settings(**more: Any) -> list[str]:
    """Return options of a run that overfits, so that the best round is not the last one."""
    chosen = {"rounds": 6, "evaluation.every": 1, "local.lr": 2.0, "engine.name": "sequential"} | more
    return [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]


@pytest.fixture
def run(fedreach: Command, home: Path) -> Callable[..., Path]:
    """Run the experiment into a folder, which is returned."""

    def called(out: str, *more: str, method: str = "uniform") -> Path:
        result = fedreach("run", "tiny.toml", *settings(), *more, "--method", method, "--out", out, "--quiet")
        assert result.exit_code == 0, result.output
        return home / out

    return called


def result_of(folder: Path) -> dict[str, Any]:
    return {key: value for key, value in json.loads((folder / "result.json").read_text()).items() if key not in FINE}


def by_hand(experiment: Experiment, rounds: int) -> tuple[Layout, np.ndarray]:
    """Return the model after so many rounds in which participants train on held-out rows, too."""
    builder = Builder(experiment, Path())
    data = builder.federated(builder.dataset(), 0)
    theirs = set(data.population.participants.tolist())
    rows = [
        np.concatenate([data.train[client], data.held_out[client]]) if client in theirs else data.train[client]
        for client in range(data.num_clients)
    ]
    held = [data.held_out[client][: 0 if client in theirs else None] for client in range(data.num_clients)]
    everything = replace(
        data,
        train=ClientIndex.of_sizes(np.concatenate(rows), np.array([len(each) for each in rows])),
        held_out=ClientIndex.of_sizes(np.concatenate(held), np.array([len(each) for each in held])),
    )
    simulation = simulate(
        everything, "linear", builder.federation(0), rounds=experiment.rounds, engine="sequential"
    )  # fmt: skip
    state = simulation.start()
    for _ in range(rounds):
        state = simulation.step(state).state
    return simulation.engine.layout, state.models


# ----------------------------------------------------------------------------------------------- the model


def test_the_refitted_model_is_that_of_a_run_by_hand_with_held_out_rows_among_those_trained_on(
    run: Callable[..., Path], home: Path
) -> None:
    folder = run("a", *REFIT)
    result = result_of(folder)
    assert (result["rounds"], result["best_round"], result["refit"]["rounds"]) == (6, BEST, BEST)
    resolved = load(home / "tiny.toml", [*settings()[1::2], REFIT[1]]).resolved("uniform")
    layout, models = by_hand(resolved, BEST)
    stored = read_models(RunFolder(folder), "refit", layout)
    assert stored is not None
    assert stored.round == BEST
    np.testing.assert_array_equal(stored.vectors, models)
    for other in ("best", "last"):
        before = read_models(RunFolder(folder), other, layout)
        assert before is not None
        assert not np.array_equal(before.vectors, models)


def test_with_patience_it_trains_for_as_many_rounds_as_the_best_one_took(run: Callable[..., Path]) -> None:
    result = result_of(run("a", *REFIT, "--set", "evaluation.patience=2", "--set", "rounds=30"))
    assert 0 < result["best_round"] < result["rounds"] < 30
    assert result["refit"]["rounds"] == result["best_round"]


def test_scores_and_scored_models_have_the_same_bits_with_and_without_it(run: Callable[..., Path]) -> None:
    plain, again = run("plain"), run("again", *REFIT)
    for name in SCORED:
        assert (plain / name).read_bytes() == (again / name).read_bytes(), name
    assert not (plain / "refit.safetensors").exists()
    assert (again / "refit.safetensors").exists()
    assert not (again / "refit").exists()
    told = result_of(again)
    assert told.pop("refit")["bytes_total"] > 0
    assert told == result_of(plain)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("engine", ["sequential", "vmap"])
def test_the_number_of_threads_changes_no_bit_of_it(run: Callable[..., Path], engine: str) -> None:
    chosen = [*REFIT, "--set", f"engine.name={engine}"]
    one, two = (run(f"{threads}", *chosen, "--set", f"engine.threads={threads}") for threads in (1, 2))
    assert (one / "refit.safetensors").read_bytes() != b""
    for name in ("refit.safetensors", "result.json"):
        assert (one / name).read_bytes() == (two / name).read_bytes()


@pytest.mark.slow
def test_the_number_of_workers_changes_no_bit_of_it(fedreach: Command, home: Path) -> None:
    for workers in (1, 2):
        done = fedreach(
            "compare", "tiny.toml", *settings(), *REFIT, "--formats", "none", "--workers", workers, "--out", workers
        )  # fmt: skip
        assert done.exit_code == 0, done.output
    for method in ("uniform", "entropy"):
        one, two = (home / out / "runs" / method / "seed-1" for out in ("1", "2"))
        for name in ("refit.safetensors", "result.json"):
            assert (one / name).read_bytes() == (two / name).read_bytes()


@pytest.mark.slow
def test_methods_that_differ_in_adaptation_alone_share_it(fedreach: Command, home: Path) -> None:
    more = '\n[methods.few]\nadaptation = { name = "few_labels", labels = 5 }\n'
    (home / "tiny.toml").write_text(TINY + more, encoding="utf-8")
    done = fedreach(
        "compare", "tiny.toml", *settings(), *REFIT, "--set", "seeds=[0]", "--formats", "none", "--out", "o"
    )
    assert done.exit_code == 0, done.output
    few, uniform = (home / "o" / "runs" / method / "seed-0" for method in ("few", "uniform"))
    ours, theirs = (RunFolder(each).read_tensors("refit.safetensors") for each in (few, uniform))
    assert ours is not None
    assert theirs is not None
    assert {key: value.tolist() for key, value in ours[0].items()} == {
        key: value.tolist() for key, value in theirs[0].items()
    }
    assert result_of(few)["refit"] == result_of(uniform)["refit"]


# ------------------------------------------------------------------------------------------- what interrupts it

DYING = """
import os, signal
from fedreach.runs.simulation import Simulation

step, count = Simulation.step, 0


def dying(simulation, state):
    global count
    count += simulation.memory_file is not None and simulation.memory_file.parent.name == "refit"
    if count == {round}:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(simulation, state)


Simulation.step = dying
"""
SCAFFOLD = ("--set", "method.solver=scaffold", "--set", "run.checkpoint_seconds=0")


@pytest.mark.slow
@pytest.mark.parametrize("round_", [*(pytest.param(each, marks=pytest.mark.slow) for each in (1, 3)), BEST])
def test_killed_while_it_trains_again_it_goes_on_to_the_same_bytes(
    run: Callable[..., Path], home: Path, round_: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run("whole", *REFIT, *SCAFFOLD)
    command = ["run", "tiny.toml", *settings(), *REFIT, *SCAFFOLD, "--method", "uniform", "--out", "killed"]
    code = f"{DYING.format(round=round_)}\nfrom fedreach.cli import main\nmain()"
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, check=False, cwd=home)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (home / "killed" / "result.json").exists()
    kept = json.loads((home / "killed" / "refit" / "run.json").read_text())
    assert kept["id"] == json.loads((home / "killed" / "run.json").read_text())["id"]
    assert len((home / "killed" / "refit" / "rounds.jsonl").read_text().splitlines()) == round_
    rounds: list[int] = []
    step = Simulation.step
    monkeypatch.setattr(Simulation, "step", lambda self, state: rounds.append(state.round) or step(self, state))
    again = run("killed", *REFIT, *SCAFFOLD)
    assert rounds == [*range(round_ - 1, BEST)]  # none twice
    names = {path.name for path in whole.glob("[!.]*")}
    assert names == {path.name for path in again.glob("[!.]*")}
    for name in names - {"timing.jsonl", "run.json"}:
        assert (whole / name).read_bytes() == (again / name).read_bytes(), name


def test_killed_once_the_model_is_written_nothing_is_trained_again(
    run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run("a", *REFIT)
    before = (folder / "result.json").read_bytes()
    (folder / "result.json").unlink()
    monkeypatch.setattr(Simulation, "step", None)  # it would be called
    assert (run("a", *REFIT) / "result.json").read_bytes() == before


def test_what_another_run_left_of_it_is_not_gone_on_with(run: Callable[..., Path], home: Path) -> None:
    whole = run("a", *REFIT)
    run("b", *REFIT, "--set", "local.lr=0.3", "--set", "rounds=3")  # fewer: it could be gone on with
    left = home / "c" / "refit"
    left.mkdir(parents=True)
    for path in (home / "b").glob("[!.]*"):
        (left / path.name).write_bytes(path.read_bytes())
    assert (run("c", *REFIT) / "refit.safetensors").read_bytes() == (whole / "refit.safetensors").read_bytes()


# ------------------------------------------------------------------------------------------- what it is used for


def test_load_predict_and_export_take_the_refitted_model_unless_another_is_named(
    run: Callable[..., Path], home: Path, fedreach: Command
) -> None:
    folder, digits = run("a", *REFIT), fr.load("digits")
    images = digits.test_x[:50]
    refitted, best = load_model(folder), load_model(folder, "best")
    assert (refitted.origin.which, refitted.origin.round) == ("refit", BEST)
    assert not np.array_equal(refitted.logits(images), best.logits(images))
    np.savez(home / "new.npz", x=images, y=digits.test_y[:50])
    found = fedreach("predict", "a", "new.npz", "--json")
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["model"] == "refit"
    told = fedreach("export", "a", "--to", "safetensors", "--out", "model")
    assert told.exit_code == 0, told.output
    assert f"model trained again on all rows ({BEST} rounds)" in told.output
    np.testing.assert_array_equal(load_model(home / "model").logits(images), refitted.logits(images))


def test_a_run_without_it_has_no_refitted_model_and_says_what_to_do(run: Callable[..., Path]) -> None:
    folder = run("a")
    assert load_model(folder).origin.which == "last"
    with pytest.raises(RunFolderError, match=r"run with population\.refit = true"):
        load_model(folder, "refit")


def test_run_page_and_report_say_that_scores_are_of_the_model_before(fedreach: Command, home: Path) -> None:
    line = f"The exported model was trained on all rows for {BEST} rounds; the scores are from the model before this"
    done = fedreach("run", "tiny.toml", *settings(), *REFIT, "--method", "uniform", "--out", "a")
    assert done.exit_code == 0, done.output
    assert line in " ".join(done.stdout.split())
    assert "the exported model trains again on all rows" in done.stderr  # before the first round
    assert [run.refit_rounds for run in read([home / "a"]).runs] == [BEST]
    shown = fedreach("report", "a", "--formats", "none", "--out", "page")
    assert shown.exit_code == 0, shown.output
    assert line in (home / "page" / "report" / "index.html").read_text(encoding="utf-8")
    plain = fedreach("run", "tiny.toml", *settings(), "--method", "uniform", "--out", "b")
    assert "all rows" not in plain.output


def test_in_python_it_is_asked_for_where_held_out_is(tmp_path: Path) -> None:
    data = fr.load("digits").partition("dirichlet_by_class", clients=10, alpha=0.5, participants=4)
    loop = fr.run(data, model="linear", rounds=2, cohort_size=2, population={"refit": True}, out=tmp_path)
    assert len(list(loop)) == 2
    assert loop.model().origin.which == "refit"


# --------------------------------------------------------------------------------------------------- what is refused


def test_a_rule_that_is_fitted_by_held_out_rows_is_refused_before_the_first_round(refused: Refused, home: Path) -> None:
    said = refused(2, "run", "tiny.toml", *REFIT, "--set", "method.adaptation=label_shift", "--out", "o")
    assert "population.refit trains on held-out examples, to which adaptation LabelShift is fitted" in said
    assert not (home / "o" / "rounds.jsonl").exists()


def test_in_a_comparison_the_method_with_such_a_rule_is_named(refused: Refused, home: Path) -> None:
    (home / "tiny.toml").write_text(TINY + '\n[methods.ours]\nadaptation = "bbse"\n', encoding="utf-8")
    assert "methods.ours: population.refit trains on held-out" in refused(
        2, "compare", "tiny.toml", *REFIT, "--out", "o"
    )


def test_where_nobody_holds_anything_out_it_is_refused_before_the_first_round(refused: Refused, home: Path) -> None:
    rows = "".join(f"{client},{row},{'yes' if row % 2 else 'no'}\n" for row, client in enumerate("abcdef"))
    (home / "one.csv").write_text(f"who,age,ill\n{rows}")
    chosen = ["data.name=one.csv", "data.client=who", "data.label=ill", "partition={name='natural'}"]
    words = [word for each in chosen for word in ("--set", each)]
    said = refused(2, "run", "tiny.toml", *words, "--set", "population.participants=5", *REFIT, "--out", "o")
    assert "population.refit needs held-out examples of participants; got none" in said
    assert not (home / "o" / "rounds.jsonl").exists()


@pytest.mark.slow
def test_runs_that_only_try_a_setting_do_not_train_again(fedreach: Command, home: Path) -> None:
    tune = '\n[tune]\n"local.lr" = [0.1, 0.2]\n'
    (home / "tiny.toml").write_text(TINY + tune, encoding="utf-8")
    done = fedreach("compare", "tiny.toml", *REFIT, "--set", "seeds=[0]", "--formats", "none", "--out", "o")
    assert done.exit_code == 0, done.output
    tried = [*(home / "o" / "tuning").rglob("result.json")]
    assert tried
    assert not any("refit" in json.loads(path.read_text()) for path in tried)
    assert all("refit" in json.loads(path.read_text()) for path in (home / "o" / "runs").rglob("result.json"))
