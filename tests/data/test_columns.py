"""What is said of a table's columns: kinds, dropped ones, words for missing values and the decimal mark."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedreach._util.errors import ConfigError, DataError
from fedreach.data.cells import ColumnRules, Reading, cells_of
from fedreach.data.federated import FederatedData
from fedreach.data.own import of_frame
from fedreach.data.preparation import Preparation
from fedreach.data.samples import SampleFormat
from fedreach.data.stored import digest, open_stored, store
from fedreach.data.table_source import as_arrow

N = 240
NAMES = ["hospital", "ill", "age", "code", "ward"]
TAKEN = {"hospital": "client", "ill": "label"}


def table(**columns: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "hospital": ["north", "south", "east"] * (N // 3),
        "ill": rng.choice(["no", "yes"], N).tolist(),
        "age": rng.integers(20, 90, N).tolist(),
        "code": rng.permutation(np.arange(N) % 150).tolist(),
        **columns,
    }


def made(rows: Any = None, **columns: Any) -> FederatedData:
    rows = table() if rows is None else rows
    return FederatedData.from_frame(rows, client="hospital", label="ill", participants=2, columns=columns)


def column(data: FederatedData, name: str) -> Any:
    assert data.schema is not None
    return next(each for each in data.schema.columns if each.name == name)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"drop": ["wrad"]}, "columns.drop: unknown column 'wrad'. Did you mean 'ward'?"),
        (
            {"drop": ["age"], "number": "age"},
            "columns.number: 'age' is already in columns.drop. Remove one of the two",
        ),
        ({"drop": ["age", "age"]}, "columns.drop: 'age' is already in columns.drop"),
        ({"number": ["hospital"]}, "columns.number: 'hospital' is already the client. Remove one of the two entries."),
        ({"category": ["ill"]}, "columns.category: 'ill' is already the label"),
        ({"dorp": ["age"]}, "columns.dorp: unknown key. Did you mean 'drop'?"),
        ({"decimal": ";"}, 'columns.decimal: must be "." or ","; got \';\'.'),
        ({"missing": [None]}, "columns.missing: must be a list of texts or numbers; got None in the list."),
        ({"missing": [float("nan")]}, "got nan in the list."),
        ({"missing": [True]}, "columns.missing: must be a list of texts or numbers; got True in the list."),
        ({"drop": 3.5j}, "columns.drop: must be a list of columns; got 3.5j."),
        ({"drop": [3]}, "columns.drop: must be a list of columns; got 3 in the list."),
        (["age"], "columns: must be a table with the keys drop, category"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_key(given: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ColumnRules.of(given, NAMES, TAKEN)
    assert message in str(caught.value)


def test_a_category_that_is_said_keeps_all_its_categories() -> None:
    assert column(made(), "code").kind == "number"
    found = column(made(category=["code"]), "code")
    assert found.kind == "category"
    assert len(found.categories) > 100
    texts = table(code=[f"p{code}" for code in table()["code"]])
    assert column(made(texts), "code").kind == "left out"  # rather names
    assert len(column(made(texts, category="code"), "code").categories) > 100


def test_categories_of_numbers_are_the_same_from_any_type() -> None:
    wanted = made(category=["code"])
    for values in (
        np.array(table()["code"], float),
        [f"{code}.0" for code in table()["code"]],
        [*map(str, table()["code"])],
        pd.Categorical(table()["code"]),
        pd.array(table()["code"], "Int64"),
    ):
        found = made(table(code=values), category=["code"])
        assert found.digest() == wanted.digest()
        assert found.schema == wanted.schema


def test_a_number_that_is_said_is_one_although_most_cells_are_none() -> None:
    mixed = [str(age) if i % 4 == 0 else "unknown" for i, age in enumerate(table()["age"])]
    assert column(made(table(age=mixed)), "age").kind == "category"
    found = column(made(table(age=mixed), number=["age"]), "age")
    assert found.kind == "number"
    assert found.missing > 50
    assert "values are not of this kind: the first is 'unknown', row " in found.odd


def test_truth_may_be_said_as_yes_and_no_or_1_and_0() -> None:
    truth = [i % 3 == 0 for i in range(N)]
    for values in (
        truth,
        ["Yes" if t else "no" for t in truth],
        [float(t) for t in truth],
        ["1" if t else "0" for t in truth],
    ):
        found = made(table(age=values), boolean=["age"])
        assert column(found, "age").kind == "boolean"
        assert found.digest() == made(table(age=truth)).digest()
    nines = [9 if i < 30 else int(t) for i, t in enumerate(truth)]
    assert (
        "values are not of this kind: the first is '9', row "
        in column(made(table(age=nines), boolean=["age"]), "age").odd
    )


def test_dates_that_are_said_count_the_others_as_missing() -> None:
    days = [f"2024-01-{i % 28 + 1:02}" if i % 2 else "soon" for i in range(N)]
    found = column(made(table(age=days), date=["age"]), "age")
    assert (found.kind, found.missing > 50) == ("date", True)


@pytest.mark.parametrize("kind", ["number", "date", "boolean"])
def test_a_kind_that_no_cell_is_of_is_refused(kind: str) -> None:
    words = table(age=["heart", "lung"] * (N // 2))
    with pytest.raises(DataError, match=r"'age' must contain .*, but no participant has such a value; .*, row "):
        made(words, **{kind: ["age"]})


@pytest.mark.parametrize(
    ("values", "missing", "gone"),
    [
        (["1", "?", "3"], ["?"], [False, True, False]),
        ([1, -9, 3], [-9], [False, True, False]),
        ([1.0, -9.0, 3.0], ["-9"], [False, True, False]),
        ([1.0, -9.0, 3.0], np.array([-9]), [False, True, False]),
        (["1", "-9.0", "-90"], [-9], [False, True, False]),
        (["a", "unknown", "Unknown"], ["unknown"], [False, True, False]),
        (["a", "None", "b"], [], [False, True, False]),
        (["2024-01-05", "1900-01-01", "2024-01-06"], ["1900-01-01"], [False, True, False]),
        (np.array(["2024-01-05", "1900-01-01"], "datetime64[s]"), ["1900-01-01"], [False, True]),
        (["2024-01-05 10:00:00", "1900-01-01 00:00:00"], ["1900-01-01"], [False, True]),
        (["1.5", "inf"], ["inf"], [False, True]),
        ([True, False], ["False"], [False, True]),
    ],
)
def test_words_that_say_nothing(values: Any, missing: list[Any], gone: list[bool]) -> None:
    reading = ColumnRules.of({"missing": missing}, ["x"], {}).reading
    for as_words in (False, True):
        found = cells_of("x", as_arrow(values), reading=reading, as_words=as_words)
        assert found is not None
        held = ~np.isnan(found.numbers)
        held = held if found.words is None else held | (found.words.codes >= 0)
        assert (~held).tolist() == gone
        assert found.words is None or set(found.words.codes[found.words.codes >= 0]) == set(
            range(len(found.words.levels))
        )


def test_missing_words_hold_for_clients_and_labels_too() -> None:
    for name in ("hospital", "ill"):
        rows = table()
        rows[name][5] = "?"
        assert "?" in {"hospital": made(rows).client_names, "ill": made(rows).class_names}[name]
        found = made(rows, missing=["?"])
        assert "?" not in [*(found.client_names or ()), *(found.class_names or ())]
        (column,) = [each for each in found.schema.columns if each.name == name]
        assert column.odd == "1 row without a value is left out (first: row 5)"


def test_with_a_decimal_comma_a_point_is_none() -> None:
    cells = cells_of("x", as_arrow(["12,5", "3", "1.234,5", "12.5", "-,5", "1,5e2"]), reading=Reading(decimal=","))
    assert cells is not None
    np.testing.assert_array_equal(cells.numbers, [12.5, 3, np.nan, np.nan, -0.5, 150])
    commas = table(age=[f"{age},5" for age in table()["age"]])
    points = table(age=[age + 0.5 for age in table()["age"]])
    assert column(made(commas), "age").why.startswith("numbers such as ")
    assert made(commas, decimal=",").digest() == made(points).digest()
    thousands = table(age=[f"1.{age}0,5" for age in table()["age"]])
    assert column(made(thousands, decimal=","), "age").kind == "left out"  # and told, not taken for categories


def test_a_dropped_column_is_no_input_and_stays_in_the_schema() -> None:
    data = made(drop=["code"])
    assert data.dataset.train_x.shape[1] == 1
    assert str(data.schema).splitlines()[-1] == "code      dropped  listed in columns.drop"
    rows = {name: values for name, values in table().items() if name != "code"}
    assert data.digest() == made(rows).digest() != made().digest()


def test_what_is_said_belongs_to_the_data_that_are_stored(tmp_path: Any) -> None:
    said: list[dict[str, Any]] = [{}, {"drop": ["code"]}, {"category": ["code"]}, {"missing": ["?"]}, {"decimal": ","}]
    own = [of_frame(table(), "hospital", "ill", "t", columns=each) for each in said]
    assert len({digest(each) for each in own}) == len({store(each, tmp_path) for each in own}) == len(said)
    for each in own:
        again = open_stored(store(each, tmp_path))
        rows = [np.arange(100)]
        assert again.prepare(rows).preparation == each.prepare(rows).preparation  # type: ignore[union-attr]
        assert digest(again) == digest(each)


def test_the_schema_goes_through_json_and_into_exports_whole() -> None:
    rows = table(age=["?" if i == 7 else str(age) for i, age in enumerate(table()["age"])], same=["a"] * N)
    schema = made(rows, drop=["code"], missing=["-9"]).schema
    assert schema is not None
    assert Preparation.of_json(json.loads(json.dumps(schema.to_json()))) == schema
    form = SampleFormat("t", "features", (2,), preparation=schema)
    again = SampleFormat.of_json("t", json.loads(json.dumps(form.to_json()))).preparation
    assert again is not None
    assert list(map(str, again.columns)) == list(map(str, schema.columns))
    assert (again.used, again.client, again.labels) == (schema.used, schema.client, schema.labels)
    assert again.reading == Reading(("-9",), ".")


def test_of_many_columns_those_with_something_to_tell_are_shown() -> None:
    rng = np.random.default_rng(1)
    wide = {f"x{i}": rng.normal(size=N) for i in range(40)}
    schema = made(table(**wide, same=["a"] * N)).schema
    assert schema is not None
    lines = schema.lines(20)
    assert len(lines) == 20
    assert lines[-2].startswith("same")
    assert [line.split()[0] for line in lines[:4]] == ["hospital", "ill", "age", "code"]
    assert lines[-1] == "and 26 more columns: 26 number"
    assert len(str(schema).splitlines()) == 45
