"""Rows of a file: which columns are inputs, whose a row is, and what its label is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedreach._util.errors import DataError
from fedreach.data.preparation import InputColumn, Preparation
from fedreach.data.samples import SampleFormat
from fedreach.deploy.predictions import Rows, read_rows

IMAGES = SampleFormat("pictures", "image", (1, 2, 2), (0.5,), (0.5,))
TOKENS = SampleFormat("words", "tokens", (3,))
TABLE = SampleFormat(
    "wards",
    "features",
    (3,),
    preparation=Preparation((InputColumn("y", "number"), InputColumn("ward", "category", categories=("a", "b")))),
)
PIXELS = {"a": [0, 1], "b": [2, 3], "c": [4, 255], "d": [6, 7]}


def rows(
    path: Path, expected: SampleFormat, client: str | None = None, label: str | None = None, **options: Any
) -> Rows:
    said = {"client_column": None, "label_columns": [], "classes": ["no", "yes"], "targets": None, **options}
    outputs = said["targets"] or len(said["classes"])
    return read_rows(path, {**expected.to_json(), "name": expected.name, "outputs": outputs, **said}, client, label)


def csv_of(folder: Path, **columns: Any) -> Path:
    pd.DataFrame(columns).to_csv(folder / "rows.csv", index=False)
    return folder / "rows.csv"


def test_columns_beside_client_and_label_are_the_numbers_of_a_sample(tmp_path: Path) -> None:
    found = rows(csv_of(tmp_path, client=["n", "s"], **PIXELS, label=["yes", "no"]), IMAGES)
    assert found.samples.tolist() == [[[[0, 2], [4, 6]]], [[[1, 3], [255, 7]]]]
    assert found.samples.dtype == np.uint8
    assert found.clients == ("n", "s")
    assert found.labels is not None
    assert found.labels.tolist() == [1, 0]


def test_a_table_of_parquet_and_arrays_read_alike(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    table = pd.DataFrame({"y": [1.5, np.nan], "ward": ["b", "c"], "client": [7, 8], "label": ["yes", None]})
    table.to_parquet(tmp_path / "rows.parquet")
    table.to_csv(tmp_path / "rows.csv", index=False)
    np.savez(tmp_path / "rows.npz", y=[1.5, np.nan], ward=["b", "c"], client=[7, 8], label=["yes", ""])
    for name in ("rows.parquet", "rows.csv", "rows.npz"):
        found = rows(tmp_path / name, TABLE)
        np.testing.assert_array_equal(found.samples, [[1.5, 1.0], [np.nan, -1.0]])
        assert found.clients == ("7", "8")
        assert found.labels is not None
        assert found.labels.tolist() == [1, -1]
        assert len(found.notes) == 2


def test_a_column_that_is_an_input_is_no_label(tmp_path: Path) -> None:
    assert rows(csv_of(tmp_path, y=[1, 0], ward=["a", "b"]), TABLE, classes=("0", "1")).labels is None


def test_columns_that_were_dropped_or_left_out_are_known(tmp_path: Path) -> None:
    others = (InputColumn("insurer", "dropped"), InputColumn("country", "left out"), InputColumn("site", "client"))
    expected = SampleFormat("t", "features", (1,), preparation=Preparation((*others, InputColumn("age", "number"))))
    known = {"age": [1, 2], "insurer": ["A", "B"], "country": ["x", "y"], "site": ["n", "s"]}
    assert rows(csv_of(tmp_path, **known), expected, client_column="site").notes == ()
    found = rows(csv_of(tmp_path, **known, u=[1, 2], v=[1, 2], w=[1, 2], x=[1, 2]), expected, client_column="site")
    assert found.notes == ("columns 'u', 'v', 'w' and 1 more are not in the training data and not used",)


@pytest.mark.parametrize(
    ("values", "note"),
    [
        ([50, 60, 40, 45], None),
        (
            [50, 60, 40, 251],
            "far from the participants' values in 1 row, such as 251 in row 3; participants have 50",
        ),
        (
            [50, 60, 40, 249.9, -151],
            "far from the participants' values in 1 row, such as -151 in row 4; participants",
        ),
        (
            [101, 102, 103, 50],
            "half of the values are far from the participants' values, with median 101.5; participants have",
        ),
        ([101, 102], None),  # too few to have a middle
    ],
)
def test_values_are_far_by_the_mean_and_deviation_of_participants(
    tmp_path: Path, values: list[float], note: str | None
) -> None:
    age = InputColumn("age", "number", mean=50.0, sd=10.0)
    found = rows(csv_of(tmp_path, age=values), SampleFormat("t", "features", (1,), preparation=Preparation((age,))))
    assert [each.startswith(f"age: {note}") for each in found.notes] == [True] * (note is not None)


def test_words_for_missing_values_and_the_decimal_comma_hold_for_new_rows(tmp_path: Path) -> None:
    said: dict[str, Any] = {"empty": ("?", "-9"), "decimal": ","}
    columns = InputColumn("site", "client", **said), InputColumn("age", "number", missing=1, **said)
    expected = SampleFormat("t", "features", (2,), preparation=Preparation(columns))
    path = csv_of(tmp_path, site=["n", "n", "s"], age=["12,5", "-9", "?"], label=["yes", "?", "no"])
    found = rows(path, expected, client_column="site")
    np.testing.assert_array_equal(found.samples, [[12.5], [np.nan], [np.nan]])
    assert found.labels is not None
    assert (found.labels.tolist(), found.notes) == ([1, -1, 0], ())


def test_numbers_that_are_predicted_come_from_columns_or_from_one_array(tmp_path: Path) -> None:
    several = {"classes": None, "targets": 2, "label_columns": ["u", "v"]}
    found = rows(csv_of(tmp_path, **PIXELS, u=[1.0, None], v=[2.0, 3.0]), IMAGES, **several)
    np.testing.assert_array_equal(found.labels, [[1.0, 2.0], [np.nan, 3.0]])
    np.savez(tmp_path / "rows.npz", x=np.zeros((2, 2, 2), np.uint8), y=[[1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_array_equal(
        rows(tmp_path / "rows.npz", IMAGES, classes=None, targets=2).labels, [[1.0, 2.0], [3.0, 4.0]]
    )
    np.savez(tmp_path / "rows.npz", x=np.zeros((2, 2, 2), np.uint8), y=np.zeros((2, 3)))
    with pytest.raises(DataError, match="predicts 2 numbers"):
        rows(tmp_path / "rows.npz", IMAGES, classes=None, targets=2)


@pytest.mark.parametrize(
    ("expected", "columns", "said"),
    [
        (IMAGES, {**PIXELS, "e": [1, 2]}, "4 columns in addition to client and label; got 5"),
        (IMAGES, {**PIXELS, "b": [0.5, 1]}, "whole numbers (0 to 255); got other numbers in 1 rows, first in row 0"),
        (IMAGES, {**PIXELS, "b": [1, 256]}, "first in row 1"),
        (IMAGES, {**PIXELS, "b": [1, None]}, "column 'b' is empty in row 1"),
        (IMAGES, {**PIXELS, "b": ["u", "v"]}, "column 'b' must contain numbers"),
        (TOKENS, {"a": [1, -1], "b": [1, 1], "c": [1, 1]}, "whole numbers (at least 0)"),
        (TABLE, {"y": ["u", "v"], "ward": ["a", "b"]}, "column 'y' must contain numbers"),
        (TABLE, {"y": [1, 2], "ward": ["a", "b"], "client": ["n", None]}, "'client' is empty in 1 rows"),
    ],
)
def test_what_cannot_be_predicted_is_refused(
    expected: SampleFormat, columns: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError) as caught:
        rows(csv_of(tmp_path, **columns), expected)
    assert said in str(caught.value)


def test_arrays_must_be_as_long_as_the_samples(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=np.zeros((2, 2, 2), np.uint8), client=["n"])
    with pytest.raises(DataError, match="'client' must have a value for each of the 2 rows; got 1"):
        rows(tmp_path / "rows.npz", IMAGES)
    np.savez(tmp_path / "rows.npz", xs=np.zeros((2, 2, 2), np.uint8))
    with pytest.raises(DataError, match="array 'x' not found"):
        rows(tmp_path / "rows.npz", IMAGES)
    (tmp_path / "rows.npz").write_bytes(b"PK no archive")
    with pytest.raises(DataError, match=r"must be a readable \.npz file"):
        rows(tmp_path / "rows.npz", IMAGES)
