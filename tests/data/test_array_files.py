"""Arrays in files: whatever is damaged is told."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedreach._util.errors import DataError
from fedreach.data.checks import UnreadableError, read_npy, read_npz
from fedreach.data.datasets import from_npz
from fedreach.data.stored import from_folder, open_stored


def saved(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=True)
    return out.getvalue()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    "array", [np.arange(6.0).reshape(2, 3), np.array(3), np.zeros((0, 4), ">i4"), np.array(["a", "bc"])]
)
def test_arrays_come_back_as_they_were_saved(array: np.ndarray, order: str, tmp_path: Path) -> None:
    array = np.asarray(array, order=order)  # type: ignore[call-overload]
    (tmp_path / "a.npy").write_bytes(saved(array))
    with (tmp_path / "a.npz").open("w+b") as file:
        np.savez_compressed(file, a=array)
        found = [read_npy(tmp_path / "a.npy"), read_npz(file)["a"]]
    if array.size:
        found.append(read_npy(tmp_path / "a.npy", "r"))
    for each in found:
        np.testing.assert_array_equal(each, array)
        assert each.dtype == array.dtype


WHOLE = saved(np.arange(24.0).reshape(4, 6))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "."),
        (b"PK", "magic"),
        (WHOLE[:-1], "."),
        (WHOLE + b"x", "is longer than its header specifies"),
        (WHOLE.replace(b"(4, 6)", b"(9, 9)"), "."),
        (WHOLE.replace(b"(4, 6), }", b"(-4,-6),}"), "."),
        (WHOLE.replace(b"(4, 6), }", b"(4, 6\0\0\0\0"), "."),
        (WHOLE.replace(b"NUMPY\x01", b"NUMPY\x07"), "version"),
        (saved(np.array([None, {}], object)), "(?i)object"),
    ],
)
def test_a_damaged_array_is_told(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(content)
    for mode in (None, "r"):
        with pytest.raises(UnreadableError, match=message):
            read_npy(tmp_path / "x.npy", mode)  # type: ignore[arg-type]
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", content)
        archive.writestr("y.npy", saved(np.arange(4) % 2))
    with pytest.raises(DataError, match=r"must be a readable \.npz file without Python objects"):
        from_npz(tmp_path / "x.npz")
    (tmp_path / "y.npy").write_bytes(saved(np.arange(4) % 2))
    (tmp_path / "x.npz").unlink()
    with pytest.raises(DataError, match=r"must be a complete \.npy file without Python objects"):
        from_folder(tmp_path)


def test_a_single_value_is_no_samples(tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(saved(np.ones((4, 6), np.float32)))
    (tmp_path / "y.npy").write_bytes(saved(np.array(1)))
    with pytest.raises(DataError, match="must be an array with one entry per example; got a single value"):
        from_folder(tmp_path)


@pytest.mark.parametrize("name", ["dataset.json", "own.json"])
def test_a_note_that_is_nested_too_deeply_is_told(name: str, tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(saved(np.ones((4, 6), np.float32)))
    (tmp_path / "y.npy").write_bytes(saved(np.arange(4) % 2))
    (tmp_path / name).write_text("[" * 10**5)
    with pytest.raises(DataError, match=name):
        from_folder(tmp_path) if name == "dataset.json" else open_stored(tmp_path / name)


def test_an_archive_behind_something_else_is_no_file_of_arrays() -> None:
    """Though zipfile finds it: numpy does not, and whoever put something there did not mean to."""
    file = io.BytesIO()
    np.savez(file, a=np.arange(3))
    with pytest.raises(UnreadableError, match=r"is not an \.npz file"):
        read_npz(io.BytesIO(b"\t\xe1" + file.getvalue()))
