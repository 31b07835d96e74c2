"""Baselines against hand computations and scikit-learn; of unseen clients nothing is read to fit them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

from fedreach.data.datasets import from_arrays
from fedreach.data.federated import FederatedData
from fedreach.data.sets import load
from fedreach.data.splits import ClientIndex
from fedreach.evaluation import baselines
from fedreach.evaluation.baselines import (
    Baseline,
    inputs_of,
    majority,
    mean_target,
    pooled_logistic,
    pooled_ridge,
    score_baselines,
    training_rows,
)
from fedreach.evaluation.metrics import AUROC, BalancedAccuracy

from .test_evaluator import make_data

EVERY = {majority: "classes", pooled_logistic: "classes", mean_target: "numbers", pooled_ridge: "numbers"}


def hospitals(targets: str = "classes", rows: int = 120) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    age, dose = rng.normal(50, 15, rows), rng.normal(0, 1, rows)
    score = 0.05 * (age - 50) + dose + rng.normal(0, 1, rows)
    return pd.DataFrame(
        {
            "hospital": rng.choice([*"abcd"], rows),
            "age": age,
            "dose": dose,
            "ward": rng.choice(["heart", "lung"], rows),
            "y": np.where(score > 0.5, "ill", "well") if targets == "classes" else score,
        }
    )


def federated(table: pd.DataFrame) -> FederatedData:
    label = {"target": "y"} if pd.api.types.is_numeric_dtype(table["y"]) else {"label": "y"}
    return FederatedData.from_frame(table, client="hospital", participants=["a", "b"], **label)


def people(data: FederatedData) -> dict[str, list[np.ndarray]]:
    """Return the rows that clients of each population are scored on."""
    held_out = [data.held_out[int(client)] for client in data.population.participants]
    unseen = [np.concatenate([data.train[int(c)], data.held_out[int(c)]]) for c in data.population.unseen]
    return {"participant": [rows for rows in held_out if len(rows)], "unseen": unseen}


def same(one: Baseline, other: Baseline) -> bool:
    return one.bias.tobytes() == other.bias.tobytes() and (
        (one.weights is None and other.weights is None) or one.weights.tobytes() == other.weights.tobytes()
    )


def test_the_majority_class_is_scored_as_counted_by_hand():
    data = make_data(noise=True)  # participants train on wrong labels, and are scored on right ones
    counts = np.bincount(data.labels[training_rows(data)], minlength=4)
    log_p = np.log((counts + 1) / (counts.sum() + 4))
    columns = score_baselines(data)[0]["majority"].columns
    for name, clients in people(data).items():
        labels = [data.dataset.train_y[rows] for rows in clients]
        right = np.mean([(own == counts.argmax()).mean() for own in labels])
        assert columns[f"{name}_accuracy"] == pytest.approx(right, abs=1e-9)
        assert columns[f"{name}_loss"] == pytest.approx(np.mean([-log_p[own].mean() for own in labels]), abs=1e-6)
    assert columns["test_accuracy"] == pytest.approx((data.dataset.test_y == counts.argmax()).mean())


def test_the_mean_of_the_targets_is_scored_as_by_hand():
    data = federated(hospitals("numbers"))
    y = data.dataset.train_y[:, 0].astype(np.float64)
    mean = y[training_rows(data)].mean()
    columns = score_baselines(data)[0]["mean"].columns
    for name, clients in people(data).items():
        errors = [np.abs(y[rows] - mean) for rows in clients]
        assert columns[f"{name}_mae"] == pytest.approx(np.mean([each.mean() for each in errors]), rel=1e-6)
        squares = [((each / data.dataset.target_scale.sd) ** 2).mean() for each in errors]  # as models are trained
        assert columns[f"{name}_loss"] == pytest.approx(np.mean(squares), rel=1e-6)


def test_with_as_many_of_each_class_the_pooled_model_is_scikit_learns():
    """Shares that are equal pull as 0 does: scikit-learn's C = 1, whose intercept is that of a column of ones."""
    rng = np.random.default_rng(1)
    y = np.arange(90) % 3
    x = rng.standard_normal((90, 4)).astype(np.float32) + y[:, None]
    data = FederatedData.from_clients({"a": (x, y)}, participants=["a"])
    found = pooled_logistic(replace(data, train=ClientIndex(np.arange(90), np.array([0, 90]))))
    z = (x - x.mean(axis=0, dtype=np.float64)) / x.std(axis=0, dtype=np.float64)
    oracle = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-10, max_iter=10_000)
    oracle.fit(np.column_stack([z, np.ones(90)]), y)
    assert found.weights is not None
    np.testing.assert_allclose(found.weights.T, oracle.coef_[:, :-1], atol=1e-5)
    np.testing.assert_allclose(found.bias - found.bias.mean(), oracle.coef_[:, -1], atol=1e-5)


@pytest.mark.parametrize("name", ["digits", "breast_cancer"])
def test_the_pooled_model_predicts_as_scikit_learns_default(name):
    data = FederatedData.from_spec(load(name).partition("dirichlet_by_class", clients=20, alpha=1.0))
    rows, index = training_rows(data), np.arange(len(data.dataset.test_y))
    found = pooled_logistic(data)
    x, x_test = (inputs_of(data.dataset, x, found.scale) for x in (data.dataset.train_x[rows], data.dataset.test_x))
    oracle = LogisticRegression(max_iter=5000).fit(x, data.labels[rows])
    said = found.outputs("test", index).argmax(axis=1)
    assert (said == oracle.predict(x_test)).mean() > 0.98
    accuracy = score_baselines(data)[0]["pooled"].columns["test_accuracy"]
    assert accuracy == pytest.approx((said == data.dataset.test_y).mean())
    assert accuracy > 0.85


def test_the_pooled_ridge_is_scikit_learns():
    data = federated(hospitals("numbers"))
    rows = training_rows(data)
    oracle = Ridge(alpha=1.0).fit(data.dataset.train_x[rows].astype(np.float64), data.dataset.train_y[rows])
    found = pooled_ridge(data)
    np.testing.assert_allclose(found.weights, oracle.coef_.reshape(1, -1).T, rtol=1e-6)
    np.testing.assert_allclose(found.bias, oracle.intercept_, rtol=1e-6)


@pytest.mark.parametrize("make", EVERY)
def test_of_unseen_clients_and_held_out_rows_nothing_is_read_to_fit(make):
    data = federated(hospitals(EVERY[make]))
    d, rows = data.dataset, np.concatenate([data.train[0], data.train[1]])
    others = np.setdiff1d(np.arange(len(d.train_y)), rows)
    x, y, labels = d.train_x.copy(), d.train_y.copy(), data.labels.copy()
    x[others], y[others], labels[others] = np.nan, 1, 1
    changed = replace(data, dataset=replace(d, train_x=x, train_y=y), labels=labels)
    assert same(make(data), make(changed))
    x[rows[0]] += 1
    y[rows] = 1 - y[rows]
    assert not same(make(data), make(replace(changed, labels=y)))  # what is read does change it


@pytest.mark.parametrize("targets", ["classes", "numbers"])
def test_the_order_of_rows_changes_no_bit(targets):
    table = hospitals(targets)
    one, other = (score_baselines(federated(each)) for each in (table, table.sample(frac=1, random_state=1)))
    assert {name: (found.columns, found.clients) for name, found in one[0].items()} == {
        name: (found.columns, found.clients) for name, found in other[0].items()
    }


def test_no_bit_of_a_client_depends_on_who_else_is_scored():
    data = FederatedData.from_spec(load("digits").partition("iid", clients=20))
    found, index = pooled_logistic(data), np.arange(700)
    together = found.outputs("true", index)
    assert together[123:130].tobytes() == found.outputs("true", index[123:130]).tobytes()
    assert all(together[[j]].tobytes() == found.outputs("true", index[[j]]).tobytes() for j in range(50))


def test_clients_are_scored_with_as_many_rows_as_models_are():
    data = federated(hospitals())
    few = score_baselines(data, examples_per_client=3)[0]["pooled"]
    assert few.columns != score_baselines(data)[0]["pooled"].columns
    first = people(data)["unseen"][0][:3]
    right = pooled_logistic(data).predict(np.zeros(1, np.float32), "true", first)[0]
    assert few.clients["unseen"]["accuracy"][0] == pytest.approx(right.mean(), abs=1e-6)


def test_features_on_very_different_scales_are_put_on_one():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 3)).astype(np.float32)
    y = (x.sum(axis=1) > 0).astype(np.int64)
    columns = []
    for factors in ([1, 1, 1], [1, 1024, 2**-10]):
        parts = {
            name: (x[rows] * np.float32(factors), y[rows])
            for name, rows in zip("ab", np.split(np.arange(200), 2), strict=True)
        }
        data = FederatedData.from_clients(parts, participants=["a"])
        columns.append(score_baselines(data)[0]["pooled"].columns)
    assert columns[0] == pytest.approx(columns[1], abs=1e-5)
    assert columns[0]["unseen_accuracy"] > 0.9


def test_what_is_too_large_or_no_row_of_numbers_is_left_out_with_a_word(monkeypatch):
    tokens = from_arrays(np.zeros((8, 5), np.int64), [0, 1] * 4, kind="tokens")
    data = FederatedData.from_spec(tokens.partition("iid", clients=2, participants=1))
    found, why = score_baselines(data)
    assert ([*found], why) == (["majority"], "the inputs are tokens")
    data = federated(hospitals())
    rows = len(training_rows(data))
    monkeypatch.setattr(baselines, "LARGEST", rows * 4 * 2 - 1)
    found, why = score_baselines(data)
    assert [*found] == ["majority"]
    assert why == f"{rows} training rows x 4 inputs x 2 outputs would take more than a few seconds"
    monkeypatch.setattr(baselines, "LARGEST", rows * 4 * 2)
    assert score_baselines(data)[1] == ""


def test_of_metrics_auroc_alone_is_of_baselines_too():
    columns = score_baselines(federated(hospitals()), None, [AUROC(), BalancedAccuracy()])[0]
    assert columns["majority"].columns["unseen_auroc"] == 0.5
    assert columns["pooled"].columns["unseen_auroc"] > 0.7
    assert not any("balanced" in name for name in columns["pooled"].columns)


def test_a_class_that_no_participant_has_costs_a_finite_loss():
    x, clients = np.random.default_rng(0).standard_normal((9, 2)), {}
    clients = {"a": (x, np.array([0, 1] * 4 + [0])), "b": (x, np.array([2] * 9))}
    found, _ = score_baselines(FederatedData.from_clients(clients, participants=["a"]))
    assert all(np.isfinite([*scored.columns.values()]).all() for scored in found.values())
    assert found["majority"].columns["unseen_accuracy"] == 0


def test_losses_of_numbers_are_on_the_scale_that_models_are_trained_on():
    """The mean has the variance for its squared error: 1 on the scale, on the rows that the scale is of."""
    rng = np.random.default_rng(0)
    table = {"town": [f"t{i % 4}" for i in range(80)], "size": rng.random(80), "price": rng.normal(1e5, 2e4, 80)}
    data = FederatedData.from_frame(table, client="town", target="price", participants=["t0", "t1"])
    columns = score_baselines(data)[0]["mean"].columns
    assert columns["train_mae"] > 1000
    assert 0.2 < columns["participant_loss"] < 5
