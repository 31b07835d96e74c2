"""How a table becomes inputs: against scikit-learn on the participants' rows, put together."""

import json

import numpy as np
import pytest
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from fedreach.data.preparation import InputColumn, Preparation
from fedreach.data.tabular import Words, read
from fedreach.errors import ConfigError, DataError
from fedreach.streams import generator

ROWS = 90


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
        ([3, 3, 3, 9], "it is the same for all who take part"),
        ([0.1, 0.1, 0.1, 9], "it is the same for all who take part"),
        (["a", "a", "a", "b"], "it is the same for all who take part"),
        ([None, None, None, 2.0], "no participant has a value"),
        ([None, None, None, "a"], "no participant has a value"),
        (np.array(["2020-01-01"] * 4, "datetime64[D]"), "it holds neither numbers nor words"),
        ([[1, 2]] * 4, "it holds neither numbers nor words"),
    ],
)
def test_a_column_that_says_nothing_is_left_out_and_that_is_told(values, why):
    made = Preparation.of(read({"age": [1, 2, 3, 4], "it": values}), [np.array([0, 1]), np.array([2])])
    assert str(made).splitlines()[1] == f"it: left out, {why}"
    assert made.inputs({"age": [1, 2, 3, 4]}).shape == (4, 1)  # nor is it asked for


def test_texts_that_are_rather_names_are_left_out():
    names = {"age": range(30), "patient": [f"p{i}" for i in range(30)]}
    made = Preparation.of(read(names), [np.arange(30)])
    assert made.columns[1].why == "30 different texts in 30 rows are rather names"


def test_a_table_of_nothing_is_refused_with_what_was_found():
    with pytest.raises(DataError, match="No column of the table can be an input:\nx: left out, it is the same"):
        Preparation.of(read({"x": [1, 1]}), [np.arange(2)])


def test_it_is_stored_as_json_and_back(table):
    made = Preparation.of(read(table), CLIENTS)
    again = Preparation.of_json(json.loads(json.dumps(made.to_json())))
    assert again == made
    assert again.inputs(table).tobytes() == made.inputs(table).tobytes()


def test_other_columns_than_those_it_was_made_for_are_refused(table):
    made = Preparation.of(read(table), CLIENTS)
    with pytest.raises(ConfigError, match=r"there is no column 'ward'. Did you mean 'wards'"):
        made.inputs({"year": [1.0], "dose": [1.0], "wards": ["a"]})
    with pytest.raises(DataError, match="column 'ward' must hold words"):
        made.inputs({"year": [1.0], "dose": [1.0], "ward": [1]})
    with pytest.raises(DataError, match="column 'dose' must hold numbers"):
        made.inputs({"year": [1.0], "dose": ["much"], "ward": ["a"]})
    with pytest.raises(DataError, match=r"as long; 'year' has 1 rows and 'ward' has 2\. Leave cells empty"):
        made.inputs({"year": [1.0], "dose": [1.0], "ward": ["a", "b"]})


def test_an_unknown_word_before_a_missing_one():
    made = InputColumn("ward", "category", missing=1, categories=("a", "b"))
    inputs = np.zeros((3, 3), np.float32)
    made.write(made.raw(Words(("b", "z"), np.array([0, 1, -1]))), inputs)
    np.testing.assert_array_equal(inputs, [[0, 1, 0], [0, 0, 0], [0, 0, 1]])
