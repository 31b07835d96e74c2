"""Clients with a table each agree on what one table of all their rows becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedreach._util.errors import ConfigError, DataError
from fedreach.data.federated import FederatedData
from fedreach.data.table_agreement import LocalTable, TableAgreement, TableOptions, agreement, sum_of

NAMES = ("ash", "birch", "cedar", "dogwood")


def options(**given: Any) -> TableOptions:
    said = {"label": "ill", "targets": (), "client": "site", "columns": {}, "held_out": 0.2, "seed": 0}
    return TableOptions(**{**said, **given})


def agreed(tables: Mapping[int, LocalTable], participants: Sequence[int], asked: TableOptions) -> TableAgreement:
    """Return what clients agree on, by messages within this process."""
    steps = agreement(asked, participants)
    question = next(steps)
    while True:
        who = tables if question.step == "columns" else participants
        answers = {client: tables[client].answer(question) for client in who}
        sums = sum_of(question, [answers[client].sums for client in participants])
        try:
            question = steps.send(({client: each.told for client, each in answers.items()}, sums))
        except StopIteration as end:
            return end.value


def hospitals(seed: int = 0, rows: int = 30) -> pd.DataFrame:
    rng, n = np.random.default_rng(seed), rows * len(NAMES)
    return pd.DataFrame(
        {
            "site": np.repeat(NAMES, rows),
            "age": rng.normal(60, 20, n).round(1),
            "ward": rng.choice(["1", "2", "A"], n),
            "seen": pd.Series(pd.to_datetime("2024-01-01") + pd.to_timedelta(rng.integers(0, 900, n), "D")),
            "smoker": rng.random(n) < 0.3,
            "dose": np.where(rng.random(n) < 0.2, None, rng.integers(0, 5, n).astype(object)),
            "note": [f"note {i}" for i in range(n)],
            "same": 1,
            "row_id": range(n),
            "ill": rng.choice(["no", "yes", "maybe"], n),
        }
    )


def joined(frame: pd.DataFrame, participants: Sequence[int], **given: Any) -> FederatedData:
    who = [NAMES[client] for client in participants]
    asked = {} if "target" in given else {"label": "ill"}
    return FederatedData.from_frame(frame, client="site", participants=who, **asked, **given)


def of_clients(frame: pd.DataFrame, asked: TableOptions) -> dict[int, LocalTable]:
    parts = {client: frame[frame["site"] == name].reset_index(drop=True) for client, name in enumerate(NAMES)}
    return {client: LocalTable(part, asked, NAMES[client]) for client, part in parts.items()}


def same(frame: pd.DataFrame, participants: Sequence[int], asked: TableOptions, **given: Any) -> None:
    """Compare with one table of all rows: the schema, but for cells that it quotes, and inputs and labels in bits."""
    whole, tables = joined(frame, participants, **given), of_clients(frame, asked)
    found = agreed(tables, participants, asked)
    ours, theirs = found.to_json()["columns"], whole.dataset.preparation.to_json()
    for mine, other in zip(ours, theirs, strict=True):
        assert {**mine, "odd": ""} == {**other, "odd": ""}
    for client, table in tables.items():
        dataset, train, held = table.dataset(found)
        for own, index in ((train, whole.train[client]), (held, whole.held_out[client])):
            assert sorted(map(bytes, dataset.train_x[own])) == sorted(map(bytes, whole.dataset.train_x[index]))
            assert sorted(map(bytes, dataset.train_y[own])) == sorted(map(bytes, whole.dataset.train_y[index]))
        assert dataset.target_scale == whole.dataset.target_scale
    assert TableAgreement.of_json(found.to_json()) == found


def test_the_schema_and_the_inputs_are_those_of_the_joined_table_in_bits() -> None:
    same(hospitals(), [0, 1, 3], options())


def test_what_is_said_of_columns_counts_for_all_clients() -> None:
    said = {"drop": ["note"], "category": ["dose"], "missing": ["A"]}
    same(hospitals(), [0, 2], options(columns=said), columns=said)


def numbers(**given: Any) -> TableOptions:
    return options(label=None, targets=("price", "days"), **given)


def priced(seed: int = 0) -> pd.DataFrame:
    """Sums of these prices depend on the order in which they are added up."""
    rng, frame = np.random.default_rng(seed), hospitals(seed)
    n = len(frame)
    return frame.assign(price=rng.lognormal(5, 4, n).round(2), days=rng.integers(0, 40, n))


@pytest.mark.parametrize("seed", range(5))
def test_the_scale_of_numbers_to_predict_is_that_of_the_joined_table_in_bits(seed: int) -> None:
    same(priced(seed), [0, 1, 2, 3], numbers(), target=["price", "days"])


def test_rows_without_a_number_to_predict_are_left_out() -> None:
    frame = priced()
    frame["price"] = frame["price"].astype(object)
    frame.loc[[0, 7, 40, 41, 100], "price"] = [None, "", "NA", None, None]
    same(frame, [0, 1], numbers(), target=["price", "days"])


def test_a_client_without_the_target_is_named_with_its_column() -> None:
    with pytest.raises(ConfigError, match=r"client 'ash': .*unknown column 'days'"):
        LocalTable(hospitals().query("site == 'ash'").assign(price=1.5), numbers(), "ash")


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        (["a lot"] * 30, "column 'price' must contain numbers as a target"),
        ([1.5] * 29 + ["a lot"], "column 'price' must contain only numbers; got other values in 1 rows"),
        ([None] * 30, "at least one row must have values in 'price'"),
        ([1e300] * 30, "column .price. must be finite, .*got 30 infinite numbers"),
    ],
)
def test_a_client_whose_target_holds_no_numbers_is_named_with_its_column(cells: list[Any], why: str) -> None:
    frame = hospitals().query("site == 'ash'").assign(price=cells, days=1)
    with pytest.raises(DataError, match=rf"client 'ash': .*{why}"):
        LocalTable(frame, numbers(), "ash")


def test_a_target_that_is_the_same_for_all_participants_is_refused_as_in_a_simulation() -> None:
    frame = priced()
    frame.loc[frame["site"] != "dogwood", "days"] = 7
    with pytest.raises(DataError) as ours:
        agreed(of_clients(frame, numbers()), [0, 1], numbers())
    with pytest.raises(
        DataError, match="target 'days' must vary between the participants' 48 training rows; got 7"
    ) as theirs:
        joined(frame, [0, 1], target=["price", "days"])
    assert str(ours.value) == str(theirs.value)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_columns_become_the_same_as_in_the_joined_table(data: st.DataObject) -> None:
    n = 24
    cell = st.one_of(
        st.floats(-1e6, 1e6, allow_nan=False),
        st.integers(-5, 5),
        st.sampled_from(["a", "b", "?", "true", "false", "1", "2.5", "2024-01-31", "12,5", ""]),
        st.none(),
    )
    kinds = [
        st.lists(cell, min_size=n, max_size=n),
        st.lists(st.sampled_from(["x", "y", None]), min_size=n, max_size=n),
    ]
    kinds += [st.lists(st.floats(0, 9), min_size=n, max_size=n), st.lists(st.booleans(), min_size=n, max_size=n)]
    columns = {f"c{i}": data.draw(st.one_of(kinds)) for i in range(data.draw(st.integers(1, 4)))}
    frame = pd.DataFrame({"site": NAMES * 6, **columns, "sure": [i / 2 for i in range(n)], "ill": ["no", "yes"] * 12})
    asked, participants = options(), [0, 1, 2]
    whole = joined(frame, participants)
    found = agreed(of_clients(frame, asked), participants, asked)
    mine, other = (
        [{**each, "odd": "", "why": ""} for each in made.to_json()]
        for made in (found.preparation, whole.dataset.preparation)
    )
    assert mine == other


def test_a_column_that_a_client_does_not_have_is_missing_in_its_rows() -> None:
    frame, asked = hospitals(), options()
    tables = of_clients(frame, asked)
    tables[1] = LocalTable(tables[1].source.drop(columns="age"), asked, "birch")
    found = agreed(tables, [0, 1], asked)
    column = next(each for each in found.preparation.columns if each.name == "age")
    assert column.missing == 24
    dataset, _, _ = tables[1].dataset(found)
    place = found.preparation.feature_names.index("age is missing")
    assert (dataset.train_x[:, place] == 1).all()


def test_a_column_that_only_an_unseen_client_has_is_no_input() -> None:
    frame, asked = hospitals(), options()
    tables = of_clients(frame, asked)
    tables[3] = LocalTable(tables[3].source.assign(rare=1.5), asked, "dogwood")
    assert "rare" not in [each.name for each in agreed(tables, [0, 1], asked).preparation.columns]


def test_a_class_that_only_an_unseen_client_has_is_one() -> None:
    frame, asked = hospitals(), options()
    frame.loc[frame["site"] == "dogwood", "ill"] = "rarely"
    found = agreed(of_clients(frame, asked), [0, 1], asked)
    assert found.classes == ("maybe", "no", "rarely", "yes")


def test_rows_of_a_class_that_came_after_the_agreement_are_left_out() -> None:
    frame, asked = hospitals(), options()
    tables = of_clients(frame, asked)
    found = agreed(tables, [0, 1], asked)
    late = tables[3].source.copy()
    late.loc[:4, "ill"] = "new"
    dataset, train, held = LocalTable(late, asked, "dogwood").dataset(found)
    assert len(dataset.train_y) == len(train) + len(held) == 25


def test_the_same_table_in_another_order_gives_the_same_answers() -> None:
    frame, asked = hospitals(), options()
    tables = of_clients(frame, asked)
    shuffled = {
        client: LocalTable(table.source.sample(frac=1, random_state=1), asked, table.name)
        for client, table in tables.items()
    }
    one, other = agreed(tables, [0, 1], asked), agreed(shuffled, [0, 1], asked)
    assert one == other
    assert tables[0].dataset(one)[0].sha256 == shuffled[0].dataset(other)[0].sha256


def test_a_table_of_several_clients_is_refused() -> None:
    with pytest.raises(DataError, match="must be 'all'; got 'ash'"):
        LocalTable(hospitals(), options(), "all")


def test_an_option_that_names_a_column_of_nobody_is_refused() -> None:
    asked = options(columns={"drop": ["nto"]})
    with pytest.raises(ConfigError, match="unknown column 'nto'"):
        agreed(of_clients(hospitals(), asked), [0, 1], asked)
