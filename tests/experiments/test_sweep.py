"""A sweep is its comparisons; a setting is chosen by what nobody is scored on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import Command, Refused, Start, wait_until

from fedreach._util.errors import RunFolderError
from fedreach.data import validation
from fedreach.data.federated import FederatedData
from fedreach.experiment import build
from fedreach.experiment.build import Builder
from fedreach.experiment.compare import compare
from fedreach.experiment.load import load
from fedreach.experiment.workers import ComparisonStatus
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import ComparisonRecord, RoundRow, RunRecord, SweepRecord, TuningRecord

from .inline import Inline
from .test_extend import files

FEW = ["rounds=2", "engine.name=sequential"]
ALPHAS = 'sweep={"partition.alpha"=[0.3, 5.0]}'
RATES = 'tune={"local.lr"=[0.01, 0.3]}'


def swept(home: Path, out: str, *options: str, **more: Any) -> ComparisonStatus:
    """Sweep in this process."""
    experiment = load(home / "tiny.toml", [*FEW, *options])
    return compare(experiment, out=home / out, base=home, executor=Inline(), **more)


def compared(home: Path, out: str, *options: str, **more: Any) -> ComparisonStatus:
    experiment = load(home / "tiny.toml", [*FEW, *options])
    return compare(experiment, out=home / out, base=home, executor=Inline(), **more)


def everything(out: Path) -> dict[str, bytes]:
    """Return all files of a comparison but timing and its report."""
    found = {path.parent for path in out.rglob("*.json") if "report" not in path.parts}
    return {
        (folder / name).relative_to(out).as_posix(): content
        for folder in found
        for name, content in files_of(folder).items()
    }


def files_of(folder: Path) -> dict[str, bytes]:
    plain = [path for path in folder.iterdir() if path.is_file() and path.name[0] != "."]
    return {path.name: path.read_bytes() for path in plain if path.name != "timing.jsonl"}


@pytest.mark.slow
def test_a_cell_is_the_comparison_with_that_setting_and_one_value_is_the_plain_comparison(home: Path) -> None:
    status = swept(home, "s", ALPHAS, RATES)
    assert (len(status.finished), status.failed) == (8, {})
    for alpha in ("0.3", "5.0"):
        compared(home, alpha, f"partition.alpha={alpha}", RATES)
        assert everything(home / "s" / "cells" / f"partition.alpha={alpha}") == everything(home / alpha)
    swept(home, "one", 'sweep={"partition.alpha"=[0.5]}', 'tune={"local.lr"=[0.1]}')
    compared(home, "unadapted")
    cell, plain = home / "one" / "cells" / "partition.alpha=0.5", home / "unadapted"
    runs = [path.relative_to(plain) for path in plain.glob("runs/*/*")]
    assert len(runs) == 4
    assert all(files(cell / path) == files(plain / path) for path in runs)


def test_settings_are_added_and_what_is_done_is_not_done_again(home: Path) -> None:
    swept(home, "s", 'sweep={"local.epochs"=[1]}')
    status = swept(home, "s", 'sweep={"local.epochs"=[1, 2]}')
    assert (status.skipped, len(status.finished)) == (4, 8)
    with pytest.raises(RunFolderError, match=r"contains a sweep over local\.epochs; got a sweep over local\.lr"):
        swept(home, "s", 'sweep={"local.lr"=[0.1]}')
    compared(home, "unadapted")
    with pytest.raises(RunFolderError, match=r"contains one comparison; got a sweep over local\.lr"):
        swept(home, "unadapted", 'sweep={"local.lr"=[0.1]}')
    with pytest.raises(RunFolderError, match="contains a sweep, whose comparisons are in"):
        compared(home, "s")
    assert RunFolder(home / "s").required(SweepRecord).settings == [{"local.epochs": 1}, {"local.epochs": 2}]


# -------------------------------------------------------------------------------------------------------- tuning


def chosen_rates(out: Path) -> dict[str, float]:
    """Return the local learning rate of each run that is compared."""
    paths = sorted(out.glob("runs/*/*"))
    return {f"{p.parent.name} {p.name}": RunFolder(p).required(RunRecord).config["local"]["lr"] for p in paths}


def test_each_method_is_given_what_is_best_on_validation_data(home: Path) -> None:
    compared(home, "x", 'tune={"local.lr"=[0.0001, 0.3]}', "rounds=4")
    record = RunFolder(home / "x").required(TuningRecord)
    assert set(chosen_rates(home / "x").values()) == {0.3}
    assert record.runs == {"uniform": 4, "entropy": 4}
    for method, by_seed in record.scores.items():
        for seed, scores in by_seed.items():
            places = [f"local.lr={rate}" for rate in ("0.0001", "0.3")]
            rows = [
                [*RunFolder(home / "x" / "tuning" / method / f"seed-{seed}" / place).records(RoundRow)][-1].evaluated
                for place in places
            ]
            assert scores == [row["participant_accuracy"] for row in rows]
            assert record.chosen[method][seed] == int(np.argmax(scores))


def test_a_setting_that_makes_no_difference_to_a_method_is_not_tried_for_it(home: Path) -> None:
    options = ['methods={a={},b={solver={name="fedprox",mu=0.1}}}', "baseline=a", "seeds=[0]"]
    compared(home, "x", *options, 'tune={"methods.b.solver.mu"=[0.01, 1.0]}')
    record = RunFolder(home / "x").required(TuningRecord)
    assert record.runs == {"a": 0, "b": 2}
    assert not (home / "x" / "tuning" / "a").exists()


def test_training_that_diverges_is_the_worst_setting_and_is_not_tried_again(home: Path) -> None:
    options = ['tune={"local.lr"=[3e38, 0.1]}', "seeds=[0]"]
    assert not compared(home, "x", *options).failed
    record = RunFolder(home / "x").required(TuningRecord)
    assert record.scores["uniform"]["0"][0] is None
    assert set(chosen_rates(home / "x").values()) == {0.1}
    result = home / "x" / "tuning" / "uniform" / "seed-0" / "local.lr=3e+38" / "result.json"
    before = result.stat().st_mtime_ns
    assert compared(home, "x", *options).skipped == 2
    assert result.stat().st_mtime_ns == before
    status = compared(home, "y", 'tune={"local.lr"=[2e38, 3e38]}', "seeds=[0]")
    assert {why.partition(":")[0] for why in status.failed.values()} == {"no setting could be chosen"}
    assert "diverged with all 2 settings" in next(iter(status.failed.values()))


def tuned(home: Path, out: str, monkeypatch: pytest.MonkeyPatch, kept: Sequence[str]) -> bytes:
    """Tune on data in which all labels are others but those of `kept` parts; return the bytes of what was tried."""
    experiment = load(home / "tiny.toml", [*FEW, "seeds=[0]", RATES])
    builder = Builder(experiment.resolved("uniform"), home)
    data = builder.federated(builder.dataset(), 0)
    who = data.population
    parts = {
        "training": [data.train[client] for client in who.participants],
        "held out": [data.held_out[client] for client in who.participants],
        "unseen": [part[client] for part in (data.train, data.held_out) for client in who.unseen],
    }
    others = [place for name, places in parts.items() if name not in kept for place in places]
    changed = np.concatenate([*others, np.empty(0, np.int64)])
    real = validation.for_validation

    def relabel(data: FederatedData, share: float, seed: int) -> FederatedData:
        """Who holds what stays: it was decided by the true labels."""
        rng, d = np.random.default_rng(1), data.dataset
        train_y, labels, test_y = d.train_y.copy(), data.labels.copy(), d.test_y
        train_y[changed] = labels[changed] = rng.permutation(train_y[changed])
        if "test" not in kept:
            test_y = rng.permutation(test_y)
        return real(replace(data, dataset=replace(d, train_y=train_y, test_y=test_y), labels=labels), share, seed)

    monkeypatch.setattr(build, "for_validation", relabel)
    compare(experiment, out=home / out, base=home, executor=Inline())
    names = ("rounds.jsonl", "clients.jsonl", "last.safetensors")
    return b"".join((p / n).read_bytes() for p in sorted((home / out).glob("tuning/*/*/*")) for n in names)


def test_tuning_never_sees_held_out_data_unseen_clients_or_the_test_set(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was tried has the same bits whatever labels these have; and others once those of participants' change."""
    as_it_is = tuned(home, "a", monkeypatch, ["training", "held out", "unseen", "test"])
    assert tuned(home, "b", monkeypatch, ["training"]) == as_it_is
    assert tuned(home, "c", monkeypatch, ["held out", "unseen", "test"]) != as_it_is


def test_a_run_that_tries_a_setting_has_nothing_else_to_look_at(home: Path) -> None:
    compared(home, "x", RATES, "seeds=[0]")
    places = sorted((home / "x").glob("tuning/*/*/*"))
    assert len(places) == 4
    for place in places:
        columns = {key for row in RunFolder(place).records(RoundRow) for key in row.evaluated}
        assert {key.partition("_")[0] for key in columns} == {"participant", "cohort"}  # participants of the round


def test_what_is_kept_for_validation_is_trained_on_in_the_end(home: Path) -> None:
    experiment = load(home / "tiny.toml", FEW).resolved("uniform")
    builder = Builder(experiment, home)
    whole = builder.federated(builder.dataset(), 0)
    population = experiment.population.model_copy(update={"validation": 0.25})
    tried = replace(builder, experiment=experiment.model_copy(update={"population": population}))
    part = tried.federated(tried.dataset(), 0)
    for client in whole.population.participants:
        kept, validation, all_ = ({*some[client].tolist()} for some in (part.train, part.held_out, whole.train))
        assert kept | validation == all_
        assert not kept & validation
        assert len(validation) == max(1, round(0.25 * len(all_)))
    assert part.taken_by_server().sum() == 0
    assert part.population.unseen.tolist() == []


def test_settings_are_judged_by_the_labels_that_participants_see(home: Path) -> None:
    """Where labels are noisy, nobody could tune on the true ones."""
    experiment = load(home / "tiny.toml", [*FEW, "noise={name='symmetric',rate=0.5}"]).resolved("uniform")
    population = experiment.population.model_copy(update={"validation": 0.25})
    builder = Builder(experiment.model_copy(update={"population": population}), home)
    data = builder.federated(builder.dataset(), 0)
    assert (data.dataset.train_y == data.labels).all()


# ----------------------------------------------------------------------------------------------------- the command


@pytest.mark.slow
def test_the_command_sweeps_reports_and_says_it_to_machines(fedreach: Command, refused: Refused, home: Path) -> None:
    sets = [word for option in (*FEW, ALPHAS, RATES, "seeds=[0]") for word in ("--set", option)]
    done = fedreach("compare", "tiny.toml", *sets, "--out", "s", "--json", "--formats", "svg")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert said["sweep"]["keys"] == ["partition.alpha"]
    assert [cell["setting"] for cell in said["cells"]] == [{"partition.alpha": 0.3}, {"partition.alpha": 5.0}]
    assert said["cells"][0]["tuning"]["runs"] == {"uniform": 2, "entropy": 2}
    assert {Path(path).name for path in said["files"]} >= {"sweep.svg", "table.csv"}
    page = (home / "s" / "report" / "index.html").read_text()
    assert 'href="../cells/partition.alpha=0.3/report/index.html"' in page
    assert (home / "s" / "cells" / "partition.alpha=0.3" / "report" / "index.html").exists()
    again = fedreach("report", "s", "--formats", "none")
    assert again.exit_code == 0
    assert "partition.alpha = 5.0" in again.stdout
    assert "Tuned settings by method" in fedreach("report", "s", "--formats", "none", "--verbose").stdout
    assert "Extend each of its comparisons" in refused(2, "extend", "s", "--rounds", "9")


@pytest.mark.slow
def test_a_sweep_that_is_killed_goes_on_to_the_same_bytes(fedreach: Command, start: Start, home: Path) -> None:
    sets = [word for option in (*FEW, "rounds=40", ALPHAS, RATES) for word in ("--set", option)]
    assert fedreach("compare", "tiny.toml", *sets, "--out", "whole", "--formats", "none", "-q").exit_code == 0
    command = ["compare", "tiny.toml", *sets, "--out", "x", "--formats", "none", "-q"]
    for pattern in ("cells/*/tuning/*/*/*/rounds.jsonl", "cells/*/runs/*/*/rounds.jsonl"):
        killed = start(*command)
        wait_until(lambda: len([*(home / "x").glob(pattern)]) > 1)  # noqa: B023 (waited for at once)
        killed.kill()
        killed.wait()
    assert fedreach(*command).exit_code == 0
    assert everything(home / "x") == everything(home / "whole")


def test_settings_of_one_comparison_say_so_in_its_record(home: Path) -> None:
    compared(home, "x", RATES, "seeds=[0]")
    assert RunFolder(home / "x").required(ComparisonRecord).config["tune"]["local.lr"] == [0.01, 0.3]
