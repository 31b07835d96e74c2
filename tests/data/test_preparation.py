"""How a table becomes inputs: against scikit-learn on the participants' rows, put together."""

import json

import numpy as np
import pytest
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from fedreach._util.errors import ConfigError, DataError
from fedreach._util.streams import generator
from fedreach.data.cells import Cells, ColumnRules, Reading, Words, cells_by_name
from fedreach.data.preparation import InputColumn, Preparation
from fedreach.data.table_source import read_table

ROWS = 90


def read(table):
    return cells_by_name(read_table(table))


@pytest.fixture
def table():
    rng = generator(0, "table")
    number = np.where(rng.random(ROWS) < 0.2, np.nan, rng.normal(2020, 3, ROWS))
    return {
        "year": number,
        "dose": rng.exponential(size=ROWS),
        "ward": [list("abc")[i] for i in rng.integers(3, size=ROWS)],
    }


CLIENTS = [np.arange(0, 30), np.arange(30, 37), np.arange(40, 70)]  # the others take no part


def test_it_is_what_scikit_learn_makes_of_the_participants_rows(table):
    made, mine = Preparation.of(read(table), CLIENTS), np.concatenate(CLIENTS)
    numbers = np.column_stack([table["year"], table["dose"]])
    scaled = (
        SimpleImputer(strategy="constant", fill_value=0.0)
        .fit(np.zeros((1, 2)))
        .transform(StandardScaler().fit(numbers[mine]).transform(numbers))
    )
    words = np.array(table["ward"])[:, None]
    hot = OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(words[mine]).transform(words)
    gone = np.isnan(table["year"])[:, None]
    expected = np.hstack([scaled[:, :1], gone, scaled[:, 1:], hot])
    assert made.feature_names == ("year", "year is missing", "dose", "ward = a", "ward = b", "ward = c")
    np.testing.assert_allclose(made.inputs(table), expected, rtol=0, atol=1e-5)


def test_whoever_has_no_value_of_a_column_leaves_the_others_their_mean(table):
    # A hospital that never measured something: sums over nothing are 0, not nan.
    table["year"][CLIENTS[0]] = np.nan
    made = Preparation.of(read(table), CLIENTS)
    there = table["year"][np.concatenate(CLIENTS[1:])]
    assert made.columns[0].mean == pytest.approx(np.nanmean(there), rel=1e-12)
    assert made.columns[0].sd == pytest.approx(np.nanstd(there), rel=1e-9)


def test_a_large_offset_costs_no_digits():
    stamps = {"seconds": 1.6e9 + np.tile([-1.0, 1.0], 20)}
    assert Preparation.of(read(stamps), [np.arange(40)]).columns[0].sd == 1.0


def test_a_category_that_no_participant_has_is_none_of_theirs():
    made = Preparation.of(read({"ward": ["a", "b", "c"]}), [np.array([0, 1])])
    np.testing.assert_array_equal(made.inputs({"ward": ["c", "b", None]}), [[0, 0], [0, 1], [0, 0]])


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([3, 3, 3, 9], "all participants have the same value"),
        ([0.1, 0.1, 0.1, 9], "all participants have the same value"),
        (["a", "a", "a", "b"], "all participants have the same value"),
        ([None, None, None, 2.0], "no participant has a value"),
        ([None, None, None, "a"], "no participant has a value"),
        (np.array(["2020-01-01"] * 4, "datetime64[D]"), "all participants have the same value"),
        ([[1, 2]] * 4, "not numbers, words or dates"),
    ],
)
def test_a_column_that_says_nothing_is_left_out_and_that_is_told(values, why):
    made = Preparation.of(read({"age": [1, 2, 3, 4], "it": values}), [np.array([0, 1]), np.array([2])])
    assert str(made.columns[1]) == f"it: left out, {why}"
    assert made.inputs({"age": [1, 2, 3, 4]}).shape == (4, 1)  # nor is it asked for


def test_texts_that_are_rather_names_are_left_out():
    names = {"age": [i / 2 for i in range(30)], "patient": [f"p{i}" for i in range(30)]}
    made = Preparation.of(read(names), [np.arange(30)])
    assert made.columns[1].why == "30 different texts in 30 rows are probably ids"


def test_a_table_of_nothing_is_refused_with_what_was_found():
    with pytest.raises(
        DataError, match="The table must have a column that can be an input; got:\nx  left out  all participants have"
    ):
        Preparation.of(read({"x": [1, 1]}), [np.arange(2)])


def test_it_is_stored_as_json_and_back(table):
    made = Preparation.of(read(table), CLIENTS)
    again = Preparation.of_json(json.loads(json.dumps(made.to_json())))
    assert again == made
    assert again.inputs(table).tobytes() == made.inputs(table).tobytes()


def test_other_columns_than_those_it_was_made_for_are_refused(table):
    made = Preparation.of(read(table), CLIENTS)
    with pytest.raises(ConfigError, match=r"missing column 'ward'. Did you mean 'wards'"):
        made.inputs({"year": [1.0], "dose": [1.0], "wards": ["a"]})
    with pytest.raises(DataError, match="column 'ward' must contain words"):
        made.inputs({"year": [1.0], "dose": [1.0], "ward": [[1, 2]]})
    with pytest.raises(DataError, match="column 'dose' must contain numbers"):
        made.inputs({"year": [1.0], "dose": ["much"], "ward": ["a"]})
    with pytest.raises(DataError, match=r"the same length; 'year' has 1 rows, 'ward' has 2\."):
        made.inputs({"year": [1.0], "dose": [1.0], "ward": ["a", "b"]})


def test_an_unknown_word_before_a_missing_one():
    made = InputColumn("ward", "category", missing=1, categories=("a", "b"))
    inputs = np.zeros((3, 3), np.float32)
    made.write(made.raw(Cells(np.full(3, np.nan), Words(("b", "z"), np.array([0, 1, -1])))), inputs)
    np.testing.assert_array_equal(inputs, [[0, 1, 0], [0, 0, 0], [0, 0, 1]])


# ------------------------------------------------------------------------------------------------ what a column is


def column(values, clients=None):
    rows = [np.arange(len(values))] if clients is None else clients
    (found,) = Preparation.of(
        {"it": cells_by_name(read_table({"it": values}))["it"], "age": ages(len(values))}, rows
    ).columns[:1]
    return found


def ages(n):
    return Cells(np.arange(n) / 2)


def test_nine_cells_in_ten_that_are_numbers_make_numbers_and_the_others_are_told():
    found = column([*map(str, range(18)), "?", "<5"])
    assert (found.kind, found.missing) == ("number", 2)
    assert found.odd == "2 values are not of this kind: the first is '?', row 18"
    assert "2 missing (2 values are not of this kind: the first is '?', row 18)" in str(found)
    assert found.raw(cells_by_name(read_table({"it": ["3", "12,5", ""]}))["it"]).tolist()[:1] == [3.0]
    assert np.isnan(found.raw(cells_by_name(read_table({"it": ["3", "12,5", ""]}))["it"])[1:]).all()
    assert column([*map(str, range(16)), "a", "b", "a", "b"]).kind == "category"


def test_what_a_column_is_follows_from_participants_rows_only():
    values = [*map(str, range(10)), *("x", "y") * 20]
    assert column(values, [np.arange(10)]).kind == "number"
    assert column(values).kind == "category"
    booleans = ["True", "False"] * 5 + ["maybe"] * 5
    assert column(booleans, [np.arange(10)]).kind == "boolean"


def test_truth_values_are_one_input_whatever_they_look_like():
    for values in ([True, False, True, None], ["True", "False", "True", ""], ["true", "false", "TRUE", None]):
        found = column(values)
        assert (found.kind, found.missing, found.mean) == ("boolean", 1, pytest.approx(2 / 3))
        assert str(found) == "it: boolean, 66.7% true, 1 missing"


def test_dates_are_days():
    days = ["2024-02-28", "2024-03-01", "2024-02-29", None]
    for values in (days, np.array(["2024-02-28", "2024-03-01", "2024-02-29", "NaT"], "datetime64[s]")):
        found = column(values)
        assert (found.kind, found.missing) == ("date", 1)
        assert found.sd == pytest.approx(np.sqrt(2 / 3))
        assert str(found) == "it: date, 2024-02-29 ± 0.8165 days, 1 missing"


def test_where_odd_cells_stood_in_the_file_is_told_after_rows_were_sorted():
    table = {"it": ["9", "?", *map(str, range(30))], "age": list(range(32))}
    cells = read(table)
    order = np.arange(32)[::-1]
    turned = {name: each.at(order) for name, each in cells.items()}
    made = Preparation.of(turned, [np.arange(32)], order)
    assert made.columns[0].odd.endswith("the first is '?', row 1")


def test_decimal_commas_are_no_categories():
    found = column([f"{i},5" for i in range(20)] + ["", "3"])
    assert (found.kind, found.why) == (
        "left out",
        "numbers such as '0,5' are ambiguous: set columns.decimal and remove thousands separators",
    )


def test_decimal_points_where_a_comma_was_said_are_told():
    table = {"it": [f"{i}.5" for i in range(20)] + ["3", "7"], "age": range(22)}
    cells = cells_by_name(read_table(table), rules=ColumnRules(reading=Reading(decimal=",")))
    found = Preparation.of(cells, [np.arange(22)]).columns[0]
    assert (found.kind, found.why) == (
        "left out",
        "numbers such as '0.5' are ambiguous: set columns.decimal and remove thousands separators",
    )


# ------------------------------------------------------------------------------------------------ columns of numbers
# that number the rows


def numbered(values, clients, name="patient_id"):
    rows = np.split(np.arange(len(values)), np.cumsum(clients)[:-1])
    return Preparation.of({name: Cells(np.asarray(values, float)), "age": ages(len(values))}, rows).columns[0]


@pytest.mark.parametrize(
    ("values", "clients"),
    [
        (np.arange(30), [30]),
        (np.arange(30), [10, 20]),
        (np.random.default_rng(0).permutation(100)[:40], [10, 10, 20]),  # of participants, who hold 40 of 100 rows
        ([*range(1001, 1016), *range(5001, 5016)], [15, 15]),  # each hospital has a range of its own
    ],
    ids=["an index", "of two clients", "shuffled", "with the hospital's number in front"],
)
def test_a_number_of_the_row_is_left_out(values, clients):
    assert numbered(values, clients).kind == "left out"


@pytest.mark.parametrize(
    ("values", "clients"),
    [
        ([*range(1990, 2005)] * 2, [15, 15]),  # a year, again at each client
        (np.random.default_rng(0).integers(0, 10**6, 30), [15, 15]),  # an income
        ([*range(14), 5, *range(14, 29)], [15, 15]),  # an age, twice at a client
        (np.arange(30) / 2, [15, 15]),
        (np.arange(19), [19]),  # too few to tell
    ],
    ids=["years", "incomes", "ages", "halves", "few"],
)
def test_a_number_that_says_something_is_kept(values, clients):
    found = numbered(values, clients)
    assert (found.kind, found.odd) == ("number", "")


@pytest.mark.parametrize("name", ["id", "patientID", "Row", "rownames", "case no", "Order", "PID", "subject.id"])
def test_what_is_called_like_a_number_of_rows_is_left_out(name):
    assert numbered(np.arange(30), [30], name).kind == "left out"


@pytest.mark.parametrize("name", ["years", "paid", "humid", "x1", "disorder", "know"])
def test_what_is_not_is_kept_and_told(name):
    found = numbered(np.arange(30), [30], name)
    assert (found.kind, found.odd) == ("number", "probably a row number; drop it if it is one")


def test_a_number_of_the_row_is_kept_where_it_is_said_to_be_a_number():
    table = {"id": Cells(np.arange(30.0)), "age": ages(30)}
    assert Preparation.of(table, [np.arange(30)], kinds={"id": "number"}).columns[0].kind == "number"
    (left, _) = Preparation.of(table, [np.arange(30)]).columns
    assert "columns.number" in left.why
