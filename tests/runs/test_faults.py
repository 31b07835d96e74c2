"""Crashes at any moment and damaged folders: a run comes to the same end, or says which file is at fault."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedreach._util import files
from fedreach._util.errors import RunFolderError
from fedreach._util.files import Folder
from fedreach._util.row_store import RowFile
from fedreach.deploy.fitted_rule import read as read_rule
from fedreach.deploy.saved import load as load_model
from fedreach.report.read import read_run
from fedreach.runs.folder import RunFolder
from fedreach.runs.loop import Refit
from fedreach.runs.schema import FederationRecord

from ..benchmarked import benchmarks  # noqa: TID252 (tests are no package that has a name)


@pytest.fixture(scope="module")
def faults() -> Iterator[SimpleNamespace]:
    with benchmarks("small", "crash", "damage", folders=("faults",)) as (small, crash, damage):
        yield SimpleNamespace(small=small, crash=crash, damage=damage)


@pytest.fixture(scope="module")
def runs(faults: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs, and one that was stopped in its second round."""
    home = tmp_path_factory.mktemp("runs")
    faults.small.train(home / "finished")
    faults.small.train(home / "other", seed=1)
    faults.damage.begun(home / "begun")
    return home


# ------------------------------------------------------------------------------------------------------- crashes


def test_a_run_that_crashes_goes_on_to_the_same_bytes(faults: SimpleNamespace) -> None:
    for kind, counts in faults.crash.crash(every=30, shares=(0.5,)).items():
        assert counts.survived == counts.injected, (kind, counts.found)


@pytest.mark.slow
def test_a_run_that_crashes_at_any_moment_goes_on_to_the_same_bytes(faults: SimpleNamespace) -> None:
    for kind, counts in faults.crash.crash(twice=50).items():
        assert counts.injected >= 50
        assert counts.survived == counts.injected, (kind, counts.found)


@pytest.mark.slow
def test_a_run_that_crashes_while_it_trains_again_on_all_rows_goes_on_to_the_same_bytes(
    faults: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small, crash = faults.small, faults.crash
    toml = small.TOML.replace('adaptation = "bbse"', "").replace("= 4", "= 4\npopulation.refit = true", 1)
    monkeypatch.setattr(small, "TOML", toml)
    with monkeypatch.context() as patch:
        patch.setattr(Refit, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            small.train(tmp_path / "scored")
    shutil.copytree(tmp_path / "scored", tmp_path / "whole")
    with crash.watched(tmp_path / "whole" / "refit") as watch:
        small.train(tmp_path / "whole")
    draw = crash.random.Random(0)
    for moment in range(1, len(watch.done) + 1, 8):
        states = crash.killed(watch, moment, half=True), crash.power_cut(watch, moment, draw, 0.4)
        for number, state in enumerate(states):
            again = tmp_path / f"{moment}-{number}"
            shutil.copytree(tmp_path / "scored", again)
            state.written_to(again / "refit")
            small.train(again)
            assert small.content(again) == small.content(tmp_path / "whole")
            assert not (again / "refit").exists()


def interrupted(*of: object) -> None:
    raise KeyboardInterrupt


def nothing(*of: object) -> None:
    """Sync nothing."""


def put_unsynced(path: Path, content: files.Content) -> None:
    with files.open_unbuffered(path, "wb") as file:
        files.write(file, content)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of", "name", "instead"), [(RowFile, "sync", nothing), (Folder, "sync", nothing), (files, "put", put_unsynced)]
)
def test_a_sync_that_is_forgotten_is_found(
    faults: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, of: object, name: str, instead: object
) -> None:
    monkeypatch.setattr(of, name, instead)
    counts = faults.crash.crash(every=2, shares=(0.0, 0.5))
    assert counts["killed"].survived == counts["killed"].injected  # the system still writes it
    assert counts["power cut"].survived < counts["power cut"].injected


def test_a_power_cut_takes_what_was_not_synced_and_nothing_else(faults: SimpleNamespace, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with faults.crash.watched(folder) as watch:
        folder.mkdir()
        files.put(folder / "a", b"old")
        files.sync_folder(folder)
        with files.open_unbuffered(folder / "a", "ab") as file:
            files.write(file, b" and new")
        files.put(folder / "b", b"b")
    last = len(watch.done)
    for share, wanted in ((0.0, {"a": b"old"}), (1.0, {"a": b"old and new", "b": b"b"})):
        state = faults.crash.power_cut(watch, last, faults.crash.random.Random(0), share)
        assert {name: state.data[inode] for name, inode in state.names.items()} == wanted


# ------------------------------------------------------------------------------------------------------- damages


def test_what_is_damaged_is_refused_by_name_or_not_read(faults: SimpleNamespace) -> None:
    for kind, counts in faults.damage.damage(6, kinds=("finished", "begun")).items():
        assert (counts.lost, counts.wrong) == (0, 0), (kind, counts.found)
        assert counts.told


@pytest.mark.slow
def test_a_thousand_damages_are_refused_by_name_or_not_read(faults: SimpleNamespace) -> None:
    found = faults.damage.damage(340, seed=faults.damage.random.SystemRandom().randrange(2**32))
    assert sum(counts.injected for counts in found.values()) > 1000
    for kind, counts in found.items():
        assert (counts.lost, counts.wrong) == (0, 0), (kind, counts.found)


def read_all(folder: Path) -> None:
    """Read each file of a run folder as somebody does."""
    read_run(folder)
    list(RunFolder(folder).kept_rows("adapted.jsonl"))
    RunFolder(folder).read(FederationRecord)
    for which in ("last", "best"):
        load_model(folder, which)  # type: ignore[arg-type]
    read_rule(folder)


FINISHED = ["run.json", "federation.json", "rounds.jsonl", "clients.jsonl", "timing.jsonl", "adapted.jsonl"]
FINISHED += ["adaptation.json", "adaptation.safetensors", "last.safetensors", "best.safetensors", "result.json"]
BEGUN = ["run.json", "federation.json", "rounds.jsonl", "clients.jsonl", "timing.jsonl", "best.safetensors"]
BEGUN += ["checkpoint.safetensors", "memory.rows", "sent.rows", "selection.rows"]


@pytest.mark.parametrize("name", FINISHED)
def test_a_flipped_bit_of_a_finished_run_is_refused_by_its_files_name(runs: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(runs / "finished", tmp_path / "run")
    read_all(tmp_path / "run")
    flip(tmp_path / "run" / name)
    with pytest.raises(RunFolderError, match=name):
        read_all(tmp_path / "run")


@pytest.mark.parametrize("name", BEGUN)
def test_a_run_does_not_go_on_with_a_flipped_bit(
    faults: SimpleNamespace, runs: Path, tmp_path: Path, name: str
) -> None:
    shutil.copytree(runs / "begun", tmp_path / "run")
    flip(tmp_path / "run" / name)
    with pytest.raises(RunFolderError, match=name):
        faults.small.train(tmp_path / "run")


def flip(path: Path) -> None:
    """Flip a bit where something else is meant then: of a digit, or of what is no text; of each record of a table."""
    whole = bytearray(path.read_bytes())
    middle = len(whole) // 2
    text = next((at for at in range(middle, 0, -1) if chr(whole[at]).isdigit()), middle)
    for at in range(0, len(whole), 1000) if path.suffix == ".rows" else [text if "json" in path.suffix else middle]:
        whole[at] ^= 1
    path.write_bytes(whole)


@pytest.mark.parametrize("name", FINISHED)
def test_a_file_of_another_run_is_refused_by_its_name(runs: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(runs / "finished", tmp_path / "run")
    shutil.copyfile(runs / "other" / name, tmp_path / "run" / name)
    with pytest.raises(RunFolderError, match=rf"{name}|belong to different runs"):
        read_all(tmp_path / "run")


def test_another_file_of_the_run_is_not_taken_for_the_best_model(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "finished", tmp_path / "run")
    shutil.copyfile(tmp_path / "run" / "adaptation.safetensors", tmp_path / "run" / "best.safetensors")
    with pytest.raises(RunFolderError, match=r"best\.safetensors was altered"):
        load_model(tmp_path / "run", "best")


def test_of_a_run_under_way_only_what_its_checkpoint_vouches_for_is_read(runs: Path) -> None:
    """The folder holds rows of a third round, which somebody made up."""
    assert RunFolder(runs / "begun").rows("rounds.jsonl")[-1]["round"] == 3
    assert read_run(runs / "begun").last_round == 2
    assert [row["round"] for row in RunFolder(runs / "begun").kept_rows("rounds.jsonl")] == [0, 1, 2]


def test_a_run_that_went_on_leaves_no_rows_behind(faults: SimpleNamespace, runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "begun", tmp_path / "run")
    assert list((tmp_path / "run").glob("*.rows"))
    faults.small.train(tmp_path / "run")
    assert not list((tmp_path / "run").glob("*.rows"))
    assert faults.small.content(tmp_path / "run") == faults.small.content(runs / "finished")
