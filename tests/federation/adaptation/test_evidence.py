"""The evidence against "no shift", each input judged by what came before it."""

import numpy as np
import pytest

from fedreach.federation.adaptation import inference as online
from fedreach.federation.adaptation.base import weights

from .worlds import C, draw, exact_logits, means_of

BASE = np.array([0.4, 0.3, 0.2, 0.1])


def some_u(seed=0, m=40, prior=(0.05, 0.05, 0.1, 0.8)):
    rng = np.random.default_rng(seed)
    x, _ = draw(rng, m, np.array(prior), means_of())
    return exact_logits(x, means_of(), np.ones(C))


def test_without_shift_it_is_rarely_ever_large():  # law 8, Ville: at most 1 in 20 ever reaches 20
    highest = np.array([online.evidence_path(some_u(s, 60, BASE), BASE, 2.0).log_w.max() for s in range(600)])
    assert (highest >= np.log(20)).mean() <= 0.05
    assert (highest >= np.log(4)).mean() <= 0.25


def test_without_shift_its_mean_is_one():
    """W_1 = 1, and E W_2 = 1 exactly: over inputs that take finitely many values."""
    likelihoods = np.array([[0.7, 0.2, 0.1, 0.1], [0.2, 0.7, 0.1, 0.2], [0.1, 0.1, 0.8, 0.7]])  # of 3 inputs by class
    chance = likelihoods @ BASE
    mean = 0.0
    for i in range(3):
        for j in range(3):
            known = online.evidence_path(np.log(likelihoods[[i, j]]), BASE, 0.7)
            mean += chance[i] * chance[j] * np.exp(known.log_w[-1, 0])
    assert mean == pytest.approx(1, abs=1e-12)


def test_under_a_shift_it_grows():
    log_w = online.evidence_path(some_u(0, 200), BASE, 2.0).log_w
    assert log_w[0] == log_w[1] == 0
    assert log_w[200] > log_w[50] + 10 > 20


def test_inputs_that_say_nothing_are_no_evidence():  # law 6
    np.testing.assert_allclose(online.evidence_path(np.full((30, C), 5.0), BASE, 2.0).log_w, 0, atol=1e-12)


def test_classes_renamed_change_nothing_but_the_order_of_inputs_does():  # checks 5 and 7
    u, order = some_u(), np.array([2, 0, 3, 1])
    known, renamed = online.evidence_path(u, BASE, 2.0), online.evidence_path(u[:, order], BASE[order], 2.0)
    np.testing.assert_allclose(renamed.log_w, known.log_w, atol=1e-12)
    np.testing.assert_allclose(renamed.counts, known.counts[:, :, order], atol=1e-12)
    assert abs(online.evidence_path(u[::-1], BASE, 2.0).log_w[-1] - known.log_w[-1]) > 1e-3


def test_no_input_is_judged_by_a_later_one():
    u, other = some_u(0), some_u(1)
    whole = online.evidence_path(u, BASE, 2.0)
    changed = online.evidence_path(np.concatenate([u[:20], other[20:]]), BASE, 2.0)
    assert whole.log_w[:21].tolist() == changed.log_w[:21].tolist()
    assert whole.counts[:21].tolist() == changed.counts[:21].tolist()


@pytest.mark.parametrize("half_life", [np.inf, 6.0])
def test_it_goes_on_where_it_stopped(half_life):
    u = some_u()
    half = online.evidence_path(u[:17], BASE, 2.0, half_lives=(half_life,))
    gone_on = online.evidence_path(u[17:], BASE, 2.0, (half_life,), half.log_w[-1], half.counts[-1])
    whole = online.evidence_path(u, BASE, 2.0, half_lives=(half_life,))
    assert gone_on.log_w[-1].tolist() == whole.log_w[-1].tolist()
    assert gone_on.counts[-1].tolist() == whole.counts[-1].tolist()


def test_an_input_counts_half_after_its_half_life():
    """Inputs that leave no doubt: 8 of one class, then 4 of another, with a half-life of 4."""
    u = np.where(np.eye(C)[[0] * 8 + [3] * 4], 0.0, -500.0)
    counts = online.evidence_path(u, BASE, 2.0, half_lives=(4.0,)).counts
    one = sum(2 ** (-j / 4) for j in range(8))
    np.testing.assert_allclose(counts[8, 0], [one, 0, 0, 0], atol=1e-12)
    np.testing.assert_allclose(counts[12, 0], [one / 2, 0, 0, sum(2 ** (-j / 4) for j in range(4))], atol=1e-12)


def test_who_forgets_follows_shares_that_change_and_whoever_does_not_lags_behind():
    u = np.concatenate([some_u(0, 300), some_u(1, 60, (0.8, 0.1, 0.05, 0.05))])
    forgetting, keeping = (
        online.prequential_prior(online.evidence_path(u, BASE, 2.0, half_lives=(life,)).counts, BASE, 2.0)
        for life in (20.0, np.inf)
    )
    assert forgetting[300].argmax() == keeping[300].argmax() == 3
    assert forgetting[-1].argmax() == 0
    assert keeping[-1].argmax() == 3


def test_forgetting_keeps_the_guarantee():  # W is a martingale whatever is predicted from what came before
    highest = np.array(
        [online.evidence_path(some_u(s, 60, BASE), BASE, 2.0, half_lives=(5.0,)).log_w.max() for s in range(600)]
    )
    assert (highest >= np.log(20)).mean() <= 0.05


def test_a_constant_an_input_changes_nothing():
    """u is known up to a constant a row; one of thousands must not drown the other inputs."""
    rng = np.random.default_rng(1)
    us = [some_u(seed, m, BASE) for seed, m in enumerate([9, 4])]
    moved = [u + rng.uniform(-5000, 5000, (len(u), 1)) for u in us]
    for one, other in zip(us, moved, strict=True):
        plain, shifted = (online.evidence_path(u, BASE, 1.2) for u in (one, other))
        np.testing.assert_allclose(plain.log_w, shifted.log_w, rtol=1e-9, atol=1e-9)


def test_the_weight_is_the_posterior_probability_of_a_shift():
    log_w = np.array([-3.0, 0.0, 0.1, 5.0])
    np.testing.assert_allclose(weights(log_w, 9.0), 1 / (1 + 9 / np.exp(log_w)), rtol=1e-14)
    assert weights(np.array([-1e5, 1e5]), 9.0).tolist() == [0, 1]
    assert weights(np.array([-1e5, 0.0, 1e5]), 0.0).tolist() == [1, 1, 1]


def test_logits_far_apart_overflow_nothing():
    known = online.evidence_path(1e6 * np.random.default_rng(0).standard_normal((50, C)), BASE, 1e-6)
    assert np.isfinite(known.log_w).all()
    assert known.counts[-1].sum() == pytest.approx(50)
