"""A run folder keeps rows and checkpoint in step, and notices when somebody else changed them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedreach._util.errors import RunFolderError
from fedreach._util.files import UNFINISHED, FileDigest, signed
from fedreach._util.row_store import RowFile
from fedreach.runs.folder import ROW_FILES, RunFolder
from fedreach.runs.schema import CHECKPOINT, FORMAT, Timing

ARRAYS = {
    "params": np.arange(5, dtype=np.float32),
    "one": np.array(3.5),
    "none": np.empty((0, 2)),
    "flags": np.array([True, False]),
}


def test_tensors_come_back_bit_for_bit(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_tensors(CHECKPOINT, ARRAYS, {"round": 3, "best_loss": 0.1, "run": "", "files": {}})
    found = folder.read_tensors(CHECKPOINT)
    assert found is not None
    arrays, record = found
    assert (record["round"], record["best_loss"]) == (3, 0.1)
    assert arrays.keys() == ARRAYS.keys()
    for key, value in ARRAYS.items():
        assert arrays[key].dtype == value.dtype
        np.testing.assert_array_equal(arrays[key], value)
    assert folder.read_tensors("b.safetensors") is None


def test_any_changed_byte_of_a_checkpoint_is_noticed(tmp_path: Path) -> None:
    folder, path = RunFolder(tmp_path), tmp_path / CHECKPOINT
    folder.write_tensors(CHECKPOINT, ARRAYS, {"round": 3, "run": "", "files": {}})
    whole = path.read_bytes()
    for position in range(len(whole)):
        changed = bytearray(whole)
        changed[position] ^= 1
        path.write_bytes(changed)
        try:
            found = folder.read_tensors(CHECKPOINT)
        except RunFolderError:
            continue
        assert found is not None  # a space in the header: nothing that counts was changed
        assert found[1]["round"] == 3
        assert all(np.array_equal(found[0][key], ARRAYS[key]) for key in ARRAYS)


def test_a_number_that_is_not_finite_is_null(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.append_json(
        "rounds.jsonl", {"round": 1, "loss": float("nan"), "weights": [float("inf"), 0.5], "a": {"b": -np.inf}}
    )
    assert folder.rows("rounds.jsonl") == [{"round": 1, "loss": None, "weights": [None, 0.5], "a": {"b": None}}]


def test_rewinding_cuts_rows_and_timing_to_the_round(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    files = folder.list_files(ROW_FILES)
    for number in range(5):
        folder.append_json("rounds.jsonl", {"round": number})
        folder.append(Timing(round=number, train_seconds=0.1 / (number + 3)).checked(""))
        if number == 2:
            files = folder.list_files(ROW_FILES)
    with (tmp_path / "timing.jsonl").open("a") as file:
        file.write('{"round": 1')  # cut off
    folder.rewind(files, 2)
    assert [row["round"] for row in folder.rows("rounds.jsonl")] == [0, 1, 2]
    assert [row["round"] for row in folder.rows("timing.jsonl")] == [0, 1, 2]
    with pytest.raises(RunFolderError, match=r"rounds\.jsonl was altered"):  # 3 rows of 13
        folder.rewind({"rounds.jsonl": FileDigest(50, "")}, 2)


def test_rows_go_on_after_a_rewinding_and_from_another_folder_object(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for number in range(5):
        folder.append_json("rounds.jsonl", {"round": number})
        folder.append(Timing(round=number).checked(""))
        if number == 1:
            files = folder.list_files(ROW_FILES)
        assert RunFolder(tmp_path).rows("rounds.jsonl")[-1] == {"round": number}  # nothing waits in this process
    assert folder.list_files(ROW_FILES) == RunFolder(tmp_path).list_files(ROW_FILES)
    assert sizes(folder) == {"rounds.jsonl": 65, "clients.jsonl": 0}  # 5 rows of 13
    folder.rewind(files, 1)
    for writer in (folder, RunFolder(tmp_path)):
        for name in ("rounds.jsonl", "timing.jsonl"):
            writer.append_json(name, {"round": 7})
    for name in ("rounds.jsonl", "timing.jsonl"):
        assert [row["round"] for row in folder.rows(name)] == [0, 1, 7, 7]
    assert sizes(RunFolder(tmp_path)) == {"rounds.jsonl": 52, "clients.jsonl": 0}


def sizes(folder: RunFolder) -> dict[str, int]:
    return {name: listed.size for name, listed in folder.list_files(ROW_FILES).items()}


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are counted where Linux lists them")
def test_no_file_stays_open_when_the_lock_ends(tmp_path: Path) -> None:
    folder, before = RunFolder(tmp_path), len(list(Path("/proc/self/fd").iterdir()))
    with folder.locked():
        folder.append_json("rounds.jsonl", {"round": 0})
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    folder.append_json("rounds.jsonl", {"round": 1})
    del folder
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_json_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_json("run.json", {"a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        folder.write_json("run.json", {"a": float("nan")})
    there = json.loads((tmp_path / "run.json").read_text())
    assert there == signed("run.json", {"format": FORMAT, "a": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def linked(path: Path) -> None:
    path.symlink_to(path.with_name("elsewhere"))


def links_back(path: Path) -> None:
    path.with_name("elsewhere").write_text('{"format": 2}\n')
    linked(path)


@pytest.mark.parametrize(
    ("make", "kind"), [(links_back, "a link"), (linked, "a link"), (os.mkfifo, "a pipe"), (os.mkdir, "a folder")]
)
def test_links_are_not_followed_and_pipes_not_waited_for(
    tmp_path: Path, make: Callable[[Path], None], kind: str
) -> None:
    tries: dict[str, Callable[[RunFolder], object]] = {
        ".lock": lambda folder: folder.locked().__enter__(),
        "run.json": lambda folder: folder.read_json("run.json"),
        "clients.jsonl": lambda folder: folder.rows("clients.jsonl"),
        "rounds.jsonl": lambda folder: folder.append_json("rounds.jsonl", {}),
        "timing.jsonl": lambda folder: folder.rewind({}, 1),
        "last.safetensors": lambda folder: folder.read_tensors("last.safetensors"),
        "memory.rows": lambda folder: RowFile(folder.path / "memory.rows", 4, occupied=[0]),
    }
    for name, attempt in tries.items():
        path = tmp_path / name.strip(".") / name
        path.parent.mkdir()
        make(path)
        with pytest.raises(RunFolderError, match=rf"{name} must be a regular file; got {kind}\."):
            attempt(RunFolder(path.parent))
        if path.with_name("elsewhere").exists():
            assert path.with_name("elsewhere").read_text() == '{"format": 2}\n'


def test_what_others_left_in_a_folder_stays_and_what_was_half_written_goes(tmp_path: Path) -> None:
    others = (".notes.2024", ".x.json.123", "memory.rows.bak", ".lock.1")
    for name in others:
        (tmp_path / name).write_text("mine")
    folder = RunFolder(tmp_path)
    (tmp_path / f".killed.json.1{UNFINISHED}").write_text("{")
    assert list(tmp_path.glob(f".killed*{UNFINISHED}"))
    with folder.locked():
        assert not list(tmp_path.glob(f"*{UNFINISHED}"))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*others, ".lock"])


def test_files_are_for_those_whom_the_users_umask_lets_in(tmp_path: Path) -> None:
    folder, before = RunFolder(tmp_path / "run"), os.umask(0o027)
    try:
        with folder.locked():
            folder.agree_on("engine.json", {"name": "native"})
            folder.write_json("run.json", {})
            folder.append_json("rounds.jsonl", {"round": 0})
            folder.write_tensors("last.safetensors", ARRAYS, {"round": 3})
            RowFile(folder.path / "memory.rows", 4)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in folder.path.iterdir()} == {0o640}
    assert folder.path.stat().st_mode & 0o777 == 0o750
