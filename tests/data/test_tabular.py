"""Tables of any library, and files of them."""

import sys

import numpy as np
import pandas as pd
import pytest

from fedreach.data.tabular import Words, numbered, read, read_file, values_of
from fedreach.errors import RELATIVE, ConfigError, DataError


class Series:
    """A column as polars has it."""

    def __init__(self, values):
        self.values = values

    def to_numpy(self):
        return np.array(self.values, object) if None in self.values else np.array(self.values)


class Frame:
    """A table as polars has it: names in `columns`, a column by its name."""

    def __init__(self, columns):
        self.held = columns
        self.columns = list(columns)

    def __getitem__(self, name):
        return Series(self.held[name])


COLUMNS = {"age": [30, None, 50.5], "ward": ["b", "a", None], "ok": [True, False, True]}


@pytest.mark.parametrize("make", [dict, Frame, pd.DataFrame, lambda c: pd.DataFrame(c).convert_dtypes()])
def test_a_table_of_any_library_is_read_alike(make):
    found = read(make(COLUMNS))
    assert list(found) == ["age", "ward", "ok"]
    np.testing.assert_array_equal(found["age"], [30, np.nan, 50.5])
    assert found["ward"].levels == ("a", "b")
    assert found["ward"].codes.tolist() == [1, 0, -1]
    np.testing.assert_array_equal(found["ok"], [1, 0, 1])


def test_a_pandas_category_is_words():
    assert values_of("w", pd.Series(["x", "y", "x"], dtype="category")).codes.tolist() == [0, 1, 0]


def test_numbers_among_words_are_words():
    found = values_of("w", [12, "12", "unknown", None, " "])
    assert found == Words(("12", "unknown"), found.codes)
    assert found.codes.tolist() == [0, 0, 1, -1, -1]


def test_what_is_no_table_is_refused():
    with pytest.raises(ConfigError, match=r"table must have named columns.*got ndarray"):
        read(np.zeros((3, 2)))


def test_infinite_numbers_are_refused_with_column_and_row():
    with pytest.raises(DataError, match="column 'age' holds 1 infinite numbers, the first in row 2"):
        read({"age": [1.0, 2.0, np.inf]})


def test_a_missing_client_is_refused():
    with pytest.raises(DataError, match="client is missing in 2 rows, the first is row 1"):
        numbered("client", ["a", None, float("nan")])


def test_whole_floats_are_whole_numbers():
    # pandas makes floats of whole numbers where one was missing once.
    codes, names = numbered("client", np.array([10.0, 9.0, 10.0]))
    assert (codes.tolist(), names) == ([1, 0, 1], ("9", "10"))
    assert numbered("label", [0.5, 1.0])[1] == ("0.5", "1.0")
    assert numbered("label", [True, False])[1] == ("False", "True")


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_csv_file_is_read_without_pandas(tmp_path, separator, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    text = "hospital,age,ward,room\nnorth,30,heart,1\nsouth,,NA,2\n\neast,50.5, ,3\n".replace(",", separator)
    (tmp_path / "p.csv").write_text(text, encoding="utf-8-sig")
    found = read_file(tmp_path / "p.csv")
    assert found["hospital"].tolist() == ["north", "south", "east"]
    np.testing.assert_array_equal(found["age"], [30, np.nan, 50.5])
    assert found["ward"].tolist() == ["heart", None, None]
    assert found["room"].dtype == np.int64


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n", "at least one row"),
        ("a,b\n1,2\n\n3\n", "line 4: 2 cells are needed; got 1"),
        ("a,a\n1,2\n", "each column needs a name of its own"),
    ],
)
def test_a_damaged_csv_file_is_refused(tmp_path, text, message):
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        read_file(tmp_path / "p.csv")


def test_other_files_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"must be a .csv or a .parquet file; got '.xlsx'"):
        read_file("p.xlsx")
    (tmp_path / "p.csv").write_bytes(b"a,b\n\xff,1\n")
    for path in (tmp_path / "p.csv", tmp_path / ("p" * 300 + ".csv")):  # a name that no file may have
        with pytest.raises(DataError, match="must be a table in UTF-8 text"):
            read_file(path)


@pytest.mark.parametrize(
    ("name", "others", "advice"),
    [
        ("patient.csv", 0, " Did you mean 'patients.csv'?"),
        ("patient.csv", 30, " Did you mean 'patients.csv'?"),
        ("visit.parquet", 0, " Did you mean 'visits.parquet'?"),
        ("zzz.csv", 0, " Known: 'patients.csv', 'visits.parquet'."),
        ("zzz.csv", 30, ""),  # too many to name them
        ("folder/patients.csv", 0, ""),
    ],
)
def test_of_a_file_that_is_missing_the_nearest_is_named(tmp_path, name, others, advice):
    for there in ("patients.csv", "visits.parquet", "visit.parquet.gz", *(f"{i:032x}.csv" for i in range(others))):
        (tmp_path / there).touch()
    with pytest.raises(DataError) as caught:
        read_file(tmp_path / name)
    assert str(caught.value) == f"There is no file {tmp_path / name}.{advice} {RELATIVE}"


def test_parquet_says_what_is_missing(tmp_path, monkeypatch):
    (tmp_path / "p.parquet").touch()
    for module in ("pyarrow", "pyarrow.parquet", "polars", "pandas"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(DataError, match="pip install pyarrow"):
        read_file(tmp_path / "p.parquet")
