"""Entropies and risks in which rare outcomes count more."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedreach._util.divergence import kl_divergence
from fedreach._util.streams import generator
from fedreach.data.assignment import label_entropy
from fedreach.federation.bounds import cross_entropy, joint_risk, self_information_risk

# algorithms.md, section 2.5
P = np.array([[0.5, 0.25, 0.25], [0.1, 0.6, 0.3]])
LOSS = np.array([0.2, 1.0, 0.5])

checks = settings(deadline=None, derandomize=True)


@st.composite
def sources(draw, least=1, most=4):
    """Distributions of some clients over some outcomes, sparse and dense ones, and a loss of each outcome."""
    n, c = draw(st.integers(least, most)), draw(st.integers(2, 4))
    rng = generator(draw(st.integers(0, 9999)), "test")
    p = rng.dirichlet(np.full(c, draw(st.sampled_from([0.02, 0.3, 1.0, 20.0]))), n)
    p[p < 1e-12] = 0
    return p / p.sum(axis=1, keepdims=True), rng.random(c)


def test_risks_and_entropies_are_the_golden_ones():
    np.testing.assert_allclose(self_information_risk(P, LOSS), [0.5891751035, 0.5331429968], atol=1e-10)
    np.testing.assert_allclose(label_entropy(P), [1.0397207708, 0.8979457249], atol=1e-10)
    assert cross_entropy(P, P)[0, 1] == pytest.approx(1.5799921535, abs=1e-10)
    assert joint_risk(P, LOSS) == pytest.approx(1.1747136565, abs=1e-10)


def enumerated(p, loss, weights):
    """Definition 2, outcome by outcome."""
    total = 0.0
    for outcome in product(range(p.shape[1]), repeat=len(p)):
        chance = np.prod(p[range(len(p)), outcome])
        if chance > 0:
            total += chance * (weights @ loss[list(outcome)]) * np.log(1 / chance)
    return total


@checks
@given(sources())
def test_the_joint_risk_is_the_sum_over_all_combinations_of_outcomes(drawn):
    p, loss = drawn
    equal, other = np.full(len(p), 1 / len(p)), generator(0, "test").dirichlet(np.ones(len(p)))
    assert joint_risk(p, loss) == pytest.approx(enumerated(p, loss, equal), abs=1e-12)
    assert joint_risk(p, loss, other) == pytest.approx(enumerated(p, loss, other), abs=1e-12)
    assert joint_risk(p[:1], loss) == pytest.approx(self_information_risk(p, loss)[0])


@checks
@given(sources())
def test_a_loss_of_one_everywhere_makes_the_risk_the_entropy(drawn):
    p, loss = drawn
    np.testing.assert_allclose(self_information_risk(p, np.ones_like(loss)), label_entropy(p), atol=1e-12)
    assert joint_risk(p, np.ones_like(loss)) == pytest.approx(label_entropy(p).sum(), abs=1e-12)


@checks
@given(sources(), sources())
def test_cross_entropy_is_entropy_and_divergence_together(one, other):
    p, q = one[0], other[0]
    c = min(p.shape[1], q.shape[1])
    p, q = p[:, :c] + 1e-15, q[:, :c]
    p, q = p / p.sum(axis=1, keepdims=True), (q + 1e-9) / (q + 1e-9).sum(axis=1, keepdims=True)
    expected = label_entropy(p)[:, None] + kl_divergence(p[:, None], q[None])
    np.testing.assert_allclose(cross_entropy(p, q), expected, atol=1e-9)


def test_cross_entropy_is_infinite_only_where_an_outcome_is_lacking():
    p = np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    assert cross_entropy(p, p).tolist() == [[np.log(2), np.inf], [np.log(2), 0.0]]


def test_distributions_have_the_entropy_of_the_counts_they_come_from():
    counts = np.array([[10, 0, 0, 0], [5, 5, 0, 0], [1, 2, 3, 4], [25, 25, 25, 25]])
    mix = counts / counts.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(label_entropy(mix), label_entropy(counts), atol=1e-15)
    np.testing.assert_allclose(label_entropy(0.01 * mix), label_entropy(counts), atol=1e-15)
