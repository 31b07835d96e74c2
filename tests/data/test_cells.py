"""What stands in a cell, and texts that name clients and classes."""

import numpy as np
import pyarrow as pa
import pytest

from fedreach._util.errors import DataError
from fedreach.data.cells import cells_of, days_of, index_names, named_rows, row_order, targets


def test_numbers_by_what_a_cell_says_and_nothing_else():
    texts = ["1", "-2.5", "1e3", ".5", "007", "1_1", "0x1", "12,5", "", "NA", " 3 ", "True"]
    found = cells_of("x", pa.array(texts))
    expected = [1, -2.5, 1000, 0.5, 7, *[np.nan] * 5, 3, np.nan]
    np.testing.assert_array_equal(found.numbers, expected)
    assert [code < 0 for code in found.words.codes.tolist()] == [text in ("", "NA") for text in texts]
    assert cells_of("x", pa.array(["1", "2.5", ""])).words is None
    assert cells_of("x", pa.array(["1", "01"]), as_words=True).words.levels == ("01", "1")


def test_a_narrow_number_is_the_one_that_a_file_would_hold():
    assert cells_of("x", pa.array(np.array([0.1, 2.5e-8], np.float32))).numbers.tolist() == [0.1, 2.5e-8]
    assert cells_of("x", pa.array([-0.0])).numbers.tobytes() == np.zeros(1).tobytes()


@pytest.mark.parametrize("column", [pa.array([1.0, 2.0, np.inf]), pa.array(["1", "2", "-Infinity"])])
def test_infinite_numbers_are_refused_with_column_and_row(column):
    with pytest.raises(DataError, match=r"column 'age' must be finite, .*got 1 infinite numbers, the first in row 2"):
        cells_of("age", column)


@pytest.mark.parametrize("column", [pa.array([1.0, 2.0, -1e39]), pa.array(["1", "2", "1e400"])])
def test_numbers_that_float32_has_not_are_infinite(column):
    with pytest.raises(DataError, match=r"at most 3.4e\+38; got 1 infinite numbers, the first in row 2"):
        cells_of("age", column)


def test_a_code_that_looks_like_an_infinite_number_is_a_word():
    cells = cells_of("code", pa.array(["7e61", "12e345", "ab", "inf"]))
    assert np.isnan(cells.numbers).all()
    assert cells.words.levels == ("12e345", "7e61", "ab", "inf")
    assert cells_of("code", pa.array(["1", "1e400"]), as_words=True).words.levels == ("1", "1e400")


def test_times_of_a_zone_are_told_in_utc_and_midnights_are_days():
    texts = ["2024-01-31 00:30:00+01:00", "2024-01-31T00:30:00Z", "2024-02-30"]
    assert cells_of("t", pa.array(texts)).words.levels == ("2024-01-30T23:30:00Z", "2024-01-31T00:30:00Z", "2024-02-30")
    days = ["2024-01-31T00:00:00.000000", "2024-02-01 00:00:00", None]
    assert cells_of("t", pa.array(days)).words.levels == ("2024-01-31", "2024-02-01")
    assert np.isnan(days_of(["2024-02-30", "31.1.2024", "x"])).all()


def test_names_stay_texts_and_whole_numbers_stand_by_size():
    assert index_names("site", named_rows("site", pa.array(["10", "9", "10"])))[1] == ("9", "10")
    assert index_names("site", named_rows("site", pa.array(["010", "10", "0010"])))[1] == ("0010", "010", "10")
    assert index_names("label", named_rows("label", pa.array([0.5, 1.0])))[1] == ("0.5", "1.0")
    assert named_rows("label", pa.array([1.0, None, 2.0])) == ["1", None, "2"]  # as pandas makes them
    assert named_rows("label", pa.array([True, False])) == named_rows("label", pa.array(["True", "False"]))
    assert named_rows("label", pa.array(["True", "true"])) == ["True", "true"]
    big = ["89490200001234567890", "89490200001234567891"]
    assert named_rows("sim", pa.array(big)) == big
    with pytest.raises(DataError, match="client must not be empty; got 2 empty cells, the first in row 1"):
        index_names("client", named_rows("client", pa.array(["a", None, " "])))
    with pytest.raises(DataError, match="client must contain names or numbers; got lists"):
        named_rows("client", pa.array([[], []], pa.list_(pa.null())))


def test_targets_are_numbers_and_the_row_of_one_that_is_none_is_told():
    with pytest.raises(
        DataError, match="column 'cost' must contain only numbers; got other values in 1 rows, first in row 1"
    ):
        targets({"cost": pa.array(["1", "?", "3"])}, ["cost"])
    with pytest.raises(
        DataError, match="column 'cost' must contain only numbers; got other values in 1 rows, first in row 1"
    ):
        targets({"cost": pa.array(["1", "", "3"])}, ["cost"])
    with pytest.raises(DataError, match=r"column 'cost' must contain numbers as a target\. For classes, use label"):
        targets({"cost": pa.array(["a", "b", "a"])}, ["cost"])


def test_rows_are_sorted_by_content_whatever_order_they_came_in():
    rng = np.random.default_rng(0)
    owners, labels = rng.integers(0, 3, 200), rng.integers(0, 2, 200)
    columns = {
        "few": cells_of("few", pa.array(rng.integers(0, 3, 200).astype(float), from_pandas=True)),
        "words": cells_of("words", pa.array(rng.choice(["a", "b", ""], 200))),
        "number": cells_of("number", pa.array(rng.normal(size=200))),
    }
    order = row_order(owners, labels, columns)
    turn = rng.permutation(200)
    again = row_order(owners[turn], labels[turn], {name: each.at(turn) for name, each in columns.items()})
    np.testing.assert_array_equal(turn[again], order)
