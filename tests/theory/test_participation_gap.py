"""Bounds on how far a model may be off for those who never train, held against risks that are known exactly."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedreach._util.streams import generator
from fedreach.data.assignment import label_entropy
from fedreach.federation.bounds import (
    cross_entropy,
    gap_of_cohort,
    gap_of_weights,
    in_distribution_gap,
    joint_risk,
    sampling_error,
    self_information_risk,
    shift,
)

checks = settings(deadline=None, derandomize=True)


@st.composite
def federations(draw):
    """Distributions of n clients, which of them participate, which are chosen, weights of the former, and a loss."""
    n, c = draw(st.integers(1, 6)), draw(st.integers(2, 4))
    rng = generator(draw(st.integers(0, 9999)), "test")
    p = rng.dirichlet(np.full(c, draw(st.sampled_from([0.1, 1.0, 20.0]))), n)
    p[p < 1e-12] = 0
    p /= p.sum(axis=1, keepdims=True)
    participants = np.sort(rng.permutation(n)[: rng.integers(1, n + 1)])
    cohort = np.sort(rng.permutation(participants)[: rng.integers(1, len(participants) + 1)])
    bound = draw(st.sampled_from([0.5, 1.0, 3.0]))
    return p, participants, cohort, rng.dirichlet(np.ones(len(participants))), bound * rng.random(c), bound


@checks
@given(federations())
def test_the_gap_of_lemma_2_stays_below_its_bound_which_is_loose(drawn):
    p, participants, _, weights, loss, bound = drawn
    gap = abs(joint_risk(p, loss) - weights @ self_information_risk(p[participants], loss))
    stated = gap_of_weights(p, participants, weights, np.ones(len(participants)), bound=bound).participation
    everybody = label_entropy(p).sum()
    assert gap <= bound * everybody + 1e-12 <= stated + 2e-12
    assert stated >= 2 * bound * everybody - 1e-12


@checks
@given(federations())
def test_the_gap_of_theorem_3_stays_below_its_bound(drawn):
    p, *_, loss, bound = drawn
    weights = generator(1, "test").dirichlet(np.ones(len(p)))
    gap = abs(joint_risk(p, loss, weights) - weights @ self_information_risk(p, loss))
    assert gap <= in_distribution_gap(p, weights, bound) + 1e-12


def test_the_bound_of_theorem_3_is_reached_by_a_loss_that_is_always_largest():
    p, weights = np.array([[0.5, 0.5], [0.9, 0.1]]), np.array([0.3, 0.7])
    loss = np.array([2.0, 2.0])
    gap = joint_risk(p, loss, weights) - weights @ self_information_risk(p, loss)
    assert gap == pytest.approx(in_distribution_gap(p, weights, 2.0))


@checks
@given(federations())
def test_corollary_1_and_theorem_4_follow_for_equal_weights(drawn):
    p, *_, bound = drawn
    n, c = p.shape
    found = in_distribution_gap(p, np.full(n, 1 / n), bound)
    assert found <= bound * (n - 1) * np.log(c) + 1e-12
    assert found / n <= bound * label_entropy(p).mean() + 1e-12
    copies = np.tile(p, (1000, 1))
    rate = in_distribution_gap(copies, np.full(1000 * n, 1 / (1000 * n)), bound) / (1000 * n)
    assert rate == pytest.approx(bound * label_entropy(p).mean(), rel=2e-3, abs=1e-12)


@checks
@given(federations())
def test_the_gap_of_theorem_2_stays_below_its_bound_and_cross_entropies_only_raise_it(drawn):
    p, participants, cohort, _, loss, bound = drawn
    gap = abs(joint_risk(p, loss) - self_information_risk(p[cohort], loss).mean())
    tight, relaxed = (
        gap_of_cohort(p, participants, cohort, np.ones(len(cohort)), relaxed=relaxed, bound=bound).participation
        for relaxed in (False, True)
    )
    assert gap <= tight + 1e-12
    assert tight <= relaxed + 1e-12
    r, k = len(participants), len(cohort)
    entropy = label_entropy(p)  # the line of appendix A.2 before any relaxation
    line = (3 - 2 * r / len(p)) * entropy.sum() + 2 * (1 - k / r) * entropy[participants].sum() - entropy[cohort].mean()
    assert tight == pytest.approx(bound * line, abs=1e-9)


def test_the_relaxed_bound_takes_the_nearest_other_participant():
    p = np.array([[0.5, 0.3, 0.2], [0.4, 0.4, 0.2], [0.1, 0.1, 0.8], [0.2, 0.3, 0.5]])
    h, matrix = label_entropy(p), cross_entropy(p, p)
    participants, cohort = np.array([0, 1, 2]), np.array([2])
    left_out = matrix[0, 1] + matrix[1, 0]  # of clients 0 and 1, each the other's nearest; client 3 never takes part
    expected = (3 - 6 / 4) * h.sum() + (2 - 2 / 3 - 1) * h[:3].sum() + left_out
    found = gap_of_cohort(p, participants, cohort, np.array([9]), relaxed=True).participation
    assert found == pytest.approx(expected)


def test_the_best_cohort_has_the_largest_entropies():
    p = generator(3, "test").dirichlet(np.ones(4), 6)
    everybody, sizes = np.arange(6), np.array([10, 10])
    pairs = [np.array([i, j]) for i in range(6) for j in range(i)]
    best = min(pairs, key=lambda pair: gap_of_cohort(p, everybody, pair, sizes).participation)
    assert set(best) == set(np.argsort(label_entropy(p))[-2:])


@checks
@given(federations(), st.integers(2, 5), st.integers(0, 999))
def test_minimising_the_plain_risk_costs_at_most_the_shift(drawn, models, seed):
    """A class of a few models, and so many examples that the plain risk is known."""
    p, participants, _, weights, loss, bound = drawn
    losses = bound * generator(seed, "test").random((models, len(loss))) ** 3
    mine = p[participants]
    plain = [weights @ (mine @ row) for row in losses]
    weighted = [weights @ self_information_risk(mine, row) for row in losses]
    assert weighted[int(np.argmin(plain))] - min(weighted) <= shift(mine, weights, bound) + 1e-12


def test_the_shift_is_measured_in_nats():
    fair = np.array([[0.5, 0.5]])
    assert shift(fair, np.ones(1), bound=2.0) == pytest.approx(2 * (1 - np.log(2)))  # in bits it would be 0


def test_lemma_3_does_not_hold_as_printed():
    """One client, one outcome of probability 1/2 and a hundred rare ones; two models, each wrong on half of it all."""
    p = np.array([[0.5] + [0.005] * 100])
    rare, common = np.array([0.0] + [0.99] * 100), np.array([1.0] + [0.0] * 100)
    assert p @ rare < p @ common  # so the first one minimises the plain risk
    cost = self_information_risk(p, rare)[0] - self_information_risk(p, common)[0]
    printed = 2 * (p**2).sum()
    assert printed == pytest.approx(0.505)
    assert cost == pytest.approx(0.495 * np.log(200) - 0.5 * np.log(2))  # 2.28
    assert printed < cost <= shift(p, np.ones(1))


def test_few_effective_examples_make_the_sampling_error_large():
    sizes = np.array([30, 10])
    options = {"bound": 1.0, "complexity": 0.7, "delta": 0.1}
    by_size = sampling_error(sizes / 40, sizes, **options)
    assert by_size == pytest.approx((0.7 + 2 * np.sqrt(np.log(20) / 2)) / np.sqrt(40))
    for share in (0.0, 0.5, 0.7, 0.8, 1.0):
        assert sampling_error(np.array([share, 1 - share]), sizes, **options) > by_size
    alone = sampling_error(np.array([0.0, 1.0]), sizes, **options)
    assert alone == pytest.approx(sampling_error(np.ones(1), sizes[1:], **options))
    assert sampling_error(sizes / 40, 4 * sizes, **options) == pytest.approx(by_size / 2)


def test_a_mean_over_weighted_clients_deviates_no_more_often_than_delta():
    """One model, so complexity 0: each of the two events that share delta allows half of the second summand."""
    rng, delta = generator(0, "test"), 0.2
    weights, sizes, p = np.array([0.9, 0.1]), np.array([10, 90]), 0.5
    draws = rng.binomial(sizes, p, (4000, 2)) / sizes @ weights - p
    half = sampling_error(weights, sizes, bound=1.0, complexity=0.0, delta=delta) / 2
    assert (draws > half).mean() <= delta / 2
    printed = np.sqrt(np.log(2 / delta) / (2 * sizes.sum()))  # Lemma 4 with all examples: too small for these weights
    assert (draws > printed).mean() > delta / 2


def test_terms_have_their_units_and_add_up():
    p, sizes = np.array([[0.5, 0.5], [0.9, 0.1]]), np.array([10, 20])
    weights, rows = np.array([0.5, 0.5]), np.arange(2)
    one = gap_of_weights(p, rows, weights, sizes, drift=0.3)
    three = gap_of_weights(p, rows, weights, sizes, drift=0.3, bound=3.0)
    assert three[1:] == pytest.approx([3 * term for term in one[1:]])
    assert one.overfitting == three.overfitting == pytest.approx(0.3 * label_entropy(p).sum())
    assert one.total == pytest.approx(one.overfitting + one.participation + one.shift + one.sampling)
    chosen = gap_of_cohort(p, rows, rows, sizes, drift=0.3)
    assert (chosen.overfitting, chosen.shift, chosen.sampling) == (one.overfitting, one.shift, one.sampling)
