"""The benchmark of natural clients: its other rules do what they are named for, and its tables count what they say."""

from __future__ import annotations

import numpy as np
import pytest

from fedreach.federation.adaptation.fitting import HeldOut
from fedreach.federation.types import Outputs

from .benchmarked import benchmarks

C, H = 3, 5
RNG = np.random.default_rng(0)
WEIGHT, BIAS = RNG.standard_normal((C, H)), np.zeros(C)


@pytest.fixture(scope="module")
def modules():
    with benchmarks("natural_rules", "natural_report") as found:
        yield found


def client(seed: int, shares: np.ndarray, n: int = 60) -> HeldOut:
    """Return examples whose features lie around the weights of their classes: label shift."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(C, n, p=shares)
    features = WEIGHT[labels] + rng.standard_normal((n, H))
    return HeldOut(Outputs(features @ WEIGHT.T, features), labels, np.bincount(labels, minlength=C).astype(float))


def participants() -> list[HeldOut]:
    return [client(seed, np.random.default_rng(seed).dirichlet(np.full(C, 0.3))) for seed in range(12)]


def test_each_rule_predicts_by_what_was_seen_and_not_by_what_is_asked(modules):
    rules, _ = modules
    head, shifted = rules.Head(WEIGHT, BIAS), client(100, np.array([0.9, 0.05, 0.05]))
    other, asked = client(101, np.array([0.05, 0.05, 0.9])), client(102, np.full(C, 1 / C)).outputs
    for name, make in rules.OTHERS.items():
        predict = make(participants(), head)
        log_p = predict(shifted.outputs, asked)
        assert np.allclose(np.exp(log_p).sum(axis=1), 1), name
        half = predict(shifted.outputs, asked.at(slice(10)))
        assert np.allclose(half, log_p[:10]), name
        assert not np.allclose(predict(other.outputs, asked), log_p), name


def test_under_label_shift_rules_that_estimate_the_prior_move_towards_it(modules):
    rules, _ = modules
    head, asked = rules.Head(WEIGHT, BIAS), client(102, np.full(C, 1 / C)).outputs
    for name in ("before", "design effect", "mixture"):
        predict = rules.OTHERS[name](participants(), head)
        means = [
            np.exp(predict(client(100, shares).outputs, asked)).mean(axis=0)
            for shares in (np.array([0.9, 0.05, 0.05]), np.array([0.05, 0.05, 0.9]))
        ]
        assert means[0][0] > means[1][0] + 0.1, name
        assert means[1][2] > means[0][2] + 0.1, name


def test_tents_slope_is_the_derivative_of_entropy(modules):
    rules, _ = modules
    logits, step = np.random.default_rng(1).standard_normal((4, C)), 1e-6

    def entropy(z):
        p = np.exp(z - np.log(np.exp(z).sum(axis=1, keepdims=True)))
        return -(p * np.log(p)).sum(axis=1)

    for c in range(C):
        by = step * np.eye(C)[c]
        expected = (entropy(logits + by) - entropy(logits - by)) / (2 * step)
        assert rules._entropy_slope(logits)[:, c] == pytest.approx(expected, abs=1e-7)


def test_tables_count_cells_that_lose_and_shares_of_what_the_oracle_adds(modules):
    _, report = modules

    def numbers(accuracy):
        return {"accuracy": accuracy, "loss": 0.0, "harmed": 10.0 * (accuracy < -5), "worst": accuracy, "clients": 4}

    rows = [
        {
            "table": "wards",
            "model": model,
            "seed": seed,
            "strength": 0.0,
            "expected": [0.0, 0.0, 0.0],
            "unadapted": 70.0,
            "inputs": {
                "label_shift": [numbers(0.0)] * 3,
                "before": [numbers(-8.0 - 0.1 * seed), numbers(1.0 + seed), None],
            },
            "labels": {"few_shot": [numbers(4.0)] * 5, "oracle prior": [numbers(8.0)] * 5},
        }
        for model in ("linear", "mlp")
        for seed in (0, 1, 2)
    ]
    text = report.text(rows)
    assert "| label_shift | 0.0 | 0 of 6 | 0 / 0 |" in text
    assert "| before | −3.0 | 2 of 4 | 2 / 0 | −8.1 (wards, linear, 5) | −8.2 | 5.0 |" in text
    assert "| few_shot | +4.0 (50%) |" in text
    assert "| wards, linear | 70.0 | 0 of 3 | 0.0 / 0.0 / 0.0 | −8.1 / +2.0 / - |" in text
