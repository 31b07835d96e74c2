"""The evidence against "no shift", each input judged by what came before it."""

import numpy as np
import pytest

from fedreach.federation.serving import evidence

from .worlds import C, draw, exact_logits, means_of

BASE = np.array([0.4, 0.3, 0.2, 0.1])


def some_u(seed=0, m=40, prior=(0.05, 0.05, 0.1, 0.8)):
    rng = np.random.default_rng(seed)
    x, _ = draw(rng, m, np.array(prior), means_of())
    return exact_logits(x, means_of(), np.ones(C))


def test_without_shift_it_is_rarely_ever_large():  # law 8, Ville: at most 1 in 20 ever reaches 20
    highest = np.array([evidence.course(some_u(s, 60, BASE), BASE, 2.0).log_w.max() for s in range(600)])
    assert (highest >= np.log(20)).mean() <= 0.05
    assert (highest >= np.log(4)).mean() <= 0.25


def test_without_shift_its_mean_is_one():
    """W_1 = 1, and E W_2 = 1 exactly: over inputs that take finitely many values."""
    likelihoods = np.array([[0.7, 0.2, 0.1, 0.1], [0.2, 0.7, 0.1, 0.2], [0.1, 0.1, 0.8, 0.7]])  # of 3 inputs by class
    chance = likelihoods @ BASE
    mean = 0.0
    for i in range(3):
        for j in range(3):
            log_w, _ = evidence.prequential(np.log(likelihoods[[i, j]]), BASE, 0.7)
            mean += chance[i] * chance[j] * np.exp(log_w)
    assert mean == pytest.approx(1, abs=1e-12)


def test_under_a_shift_it_grows():
    log_w = evidence.course(some_u(0, 200), BASE, 2.0).log_w
    assert log_w[0] == log_w[1] == 0
    assert log_w[200] > log_w[50] + 10 > 20


def test_inputs_that_say_nothing_are_no_evidence():  # law 6
    np.testing.assert_allclose(evidence.course(np.full((30, C), 5.0), BASE, 2.0).log_w, 0, atol=1e-12)


def test_classes_renamed_change_nothing_but_the_order_of_inputs_does():  # laws 5 and 7
    u, order = some_u(), np.array([2, 0, 3, 1])
    log_w, counts = evidence.prequential(u, BASE, 2.0)
    renamed_w, renamed_counts = evidence.prequential(u[:, order], BASE[order], 2.0)
    assert renamed_w == pytest.approx(log_w, abs=1e-12)
    np.testing.assert_allclose(renamed_counts, counts[order], atol=1e-12)
    assert abs(evidence.prequential(u[::-1], BASE, 2.0)[0] - log_w) > 1e-3


def test_no_input_is_judged_by_a_later_one():
    u, other = some_u(0), some_u(1)
    whole = evidence.course(u, BASE, 2.0)
    changed = evidence.course(np.concatenate([u[:20], other[20:]]), BASE, 2.0)
    assert whole.log_w[:21].tolist() == changed.log_w[:21].tolist()
    assert whole.counts[:21].tolist() == changed.counts[:21].tolist()


@pytest.mark.parametrize("half_life", [np.inf, 6.0])
def test_it_goes_on_where_it_stopped(half_life):
    u = some_u()
    half = evidence.prequential(u[:17], BASE, 2.0, half_life=half_life)
    gone_on = evidence.prequential(u[17:], BASE, 2.0, *half, half_life)
    whole = evidence.prequential(u, BASE, 2.0, half_life=half_life)
    assert gone_on[0] == whole[0]
    assert gone_on[1].tolist() == whole[1].tolist()


def test_an_input_counts_half_after_its_half_life():
    """Inputs that leave no doubt: 8 of one class, then 4 of another, with a half-life of 4."""
    u = np.where(np.eye(C)[[0] * 8 + [3] * 4], 0.0, -500.0)
    counts = evidence.course(u, BASE, 2.0, half_life=4.0).counts
    one = sum(2 ** (-j / 4) for j in range(8))
    np.testing.assert_allclose(counts[8], [one, 0, 0, 0], atol=1e-12)
    np.testing.assert_allclose(counts[12], [one / 2, 0, 0, sum(2 ** (-j / 4) for j in range(4))], atol=1e-12)


def test_who_forgets_follows_shares_that_change_and_whoever_does_not_lags_behind():
    u = np.concatenate([some_u(0, 300), some_u(1, 60, (0.8, 0.1, 0.05, 0.05))])
    forgetting, keeping = (
        evidence.prequential_prior(evidence.course(u, BASE, 2.0, half_life=life).counts, BASE, 2.0)
        for life in (20.0, np.inf)
    )
    assert forgetting[300].argmax() == keeping[300].argmax() == 3
    assert forgetting[-1].argmax() == 0
    assert keeping[-1].argmax() == 3


def test_forgetting_keeps_the_guarantee():  # W is a martingale whatever is predicted from what came before
    highest = np.array([evidence.course(some_u(s, 60, BASE), BASE, 2.0, half_life=5.0).log_w.max() for s in range(600)])
    assert (highest >= np.log(20)).mean() <= 0.05


@pytest.mark.parametrize("half_life", [np.inf, 6.0])
@pytest.mark.parametrize("padded", [100, 2_000_000])
def test_many_clients_at_once_are_each_client_alone(padded, half_life, monkeypatch):
    monkeypatch.setattr(evidence, "PADDED_NUMBERS", padded)
    rng = np.random.default_rng(0)
    us = [some_u(seed, m, rng.dirichlet(np.full(C, 0.3))) for seed, m in enumerate([40, 0, 1, 7, 300, 41, 2, 2])]
    log_w, counts = rng.standard_normal(8), rng.uniform(0, 9, (8, C))
    many = evidence.prequential_many(us, BASE, 1.2, log_w, counts, half_life)
    each = zip(us, log_w, counts, strict=True)
    alone = [evidence.prequential(u, BASE, 1.2, float(w), n, half_life) for u, w, n in each]
    np.testing.assert_allclose(many[0], [w for w, _ in alone], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(many[1], [n for _, n in alone], rtol=1e-12, atol=1e-12)


def test_a_constant_an_input_changes_nothing_however_many_clients_there_are():
    """u is known up to a constant a row; one of thousands must not drown the other inputs."""
    rng = np.random.default_rng(1)
    us = [some_u(seed, m, BASE) for seed, m in enumerate([9, 4])]
    moved = [u + rng.uniform(-5000, 5000, (len(u), 1)) for u in us]
    begun = np.zeros(2), np.zeros((2, C))
    plain, shifted = (evidence.prequential_many(which, BASE, 1.2, *begun) for which in (us, moved))
    for one, other in zip(plain, shifted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


def test_the_weight_is_the_posterior_probability_of_a_shift():
    for log_w in (-3.0, 0.0, 0.1, 5.0):
        assert evidence.weight(log_w, 9.0) == pytest.approx(1 / (1 + 9 / np.exp(log_w)), rel=1e-14)
    assert [evidence.weight(w, 9.0) for w in (-1e5, 1e5)] == [0, 1]
    assert [evidence.weight(w, 0.0) for w in (-1e5, 0.0, 1e5)] == [1, 1, 1]


def test_logits_far_apart_overflow_nothing():
    log_w, counts = evidence.prequential(1e6 * np.random.default_rng(0).standard_normal((50, C)), BASE, 1e-6)
    assert np.isfinite(log_w)
    assert counts.sum() == pytest.approx(50)
