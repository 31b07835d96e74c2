"""Class priors: that of the source, how far clients lie apart, and a client's own."""

import numpy as np
import pytest

from fedreach.federation.adaptation import base as priors
from fedreach.federation.adaptation import inference
from fedreach.federation.adaptation.inference import infer_priors

from .worlds import C, draw, exact_logits, means_of

BASE = np.array([0.4, 0.3, 0.2, 0.1])


def some_u(seed=0, m=40, prior=(0.05, 0.05, 0.1, 0.8)):
    rng = np.random.default_rng(seed)
    x, _ = draw(rng, m, np.array(prior), means_of())
    return exact_logits(x, means_of(), np.ones(C))


def map_objective(u, prior, base, pseudo_counts):
    return np.log(np.exp(u) @ prior).sum() + pseudo_counts * base @ np.log(prior)


def test_pooled_participants_are_a_fixed_point():  # law 3
    log_p = np.log(np.random.default_rng(0).dirichlet(np.ones(C), 200))
    base = np.exp(log_p).mean(axis=0)
    np.testing.assert_allclose(priors.map_em(log_p - np.log(base), base, 0.0), base, atol=1e-12)


@pytest.mark.parametrize("pseudo_counts", [0.0, 0.5, 20.0])
def test_the_objective_never_falls(pseudo_counts, monkeypatch):  # law 4
    u, values = some_u(), []
    for steps in range(30):
        monkeypatch.setattr(priors, "MAX_ITERATIONS", steps)
        values.append(map_objective(u, priors.map_em(u, BASE, pseudo_counts), BASE, pseudo_counts))
    assert (np.diff(values) > -1e-10).all()
    assert values[-1] > values[0]


def test_the_mode_is_where_no_small_change_of_shares_helps():
    u = some_u(m=200)
    found = priors.map_em(u, BASE, 3.0)
    best = map_objective(u, found, BASE, 3.0)
    for change in 0.01 * np.random.default_rng(0).standard_normal((50, C)):
        near = found * np.exp(change)
        assert map_objective(u, near / near.sum(), BASE, 3.0) < best + 1e-6


def test_known_classes_are_counted():
    u = np.log(np.eye(C) + 1e-300)[[0, 0, 0, 1, 3]]
    np.testing.assert_allclose(priors.map_em(u, BASE, 2.0), (np.array([3, 1, 0, 1]) + 2 * BASE) / 7, atol=1e-12)


def test_classes_renamed_rename_shares_and_the_order_of_inputs_is_nothing():  # checks 5 and 7
    u, order = some_u(), np.array([2, 0, 3, 1])
    found = priors.map_em(u, BASE, 2.0)
    np.testing.assert_allclose(priors.map_em(u[:, order], BASE[order], 2.0), found[order], atol=1e-12)
    np.testing.assert_allclose(priors.map_em(u[::-1], BASE, 2.0), found, atol=1e-12)


def test_inputs_that_say_nothing_and_pseudo_counts_without_end_leave_the_base():  # law 6
    np.testing.assert_allclose(priors.map_em(np.full((9, C), 3.0), BASE, 0.0), BASE, atol=1e-12)
    np.testing.assert_allclose(priors.map_em(some_u(), BASE, 1e12), BASE, atol=1e-9)
    assert priors.map_em(np.zeros((0, C)), BASE, 0.0).tolist() == BASE.tolist()


def test_the_error_shrinks_with_the_root_of_the_number_of_inputs():  # law 9
    true = np.array([0.1, 0.2, 0.3, 0.4])
    errors = []
    for m in (100, 1600):
        found = [each.prior for each in infer_priors([some_u(seed, m, true) for seed in range(100)], BASE, 2.0)]
        errors.append(np.abs(np.array(found) - true).mean())
    assert 3 < errors[0] / errors[1] < 5.3  # the root of 16 is 4


@pytest.mark.parametrize("pseudo_counts", [0.01, 1.2])
def test_many_clients_at_once_are_each_client_alone(pseudo_counts):
    rng = np.random.default_rng(0)
    us = [some_u(seed, m, rng.dirichlet(np.full(C, 0.3))) for seed, m in enumerate([40, 0, 1, 7, 300, 41, 2, 2, 5000])]
    alone = [priors.map_em(u, BASE, pseudo_counts) for u in us]
    together = infer_priors(us, BASE, pseudo_counts)
    np.testing.assert_allclose([each.prior for each in together], alone, rtol=0, atol=1e-12)
    for u, found in zip(us, together, strict=True):
        (own,) = infer_priors([u], BASE, pseudo_counts)
        assert (own.prior.tolist(), own.log_evidence) == (found.prior.tolist(), found.log_evidence)


def test_a_chunk_of_clients_may_be_smaller_than_all_of_them(monkeypatch):
    us = [some_u(seed, m) for seed, m in enumerate([40, 1, 7, 20, 41, 2, 2])]
    whole = infer_priors(us, BASE, 1.0)
    monkeypatch.setattr(inference, "CACHED_NUMBERS", 100)
    monkeypatch.setattr(inference, "HELD_NUMBERS", 100)
    for one, other in zip(whole, infer_priors(us, BASE, 1.0), strict=True):
        assert (one.prior.tolist(), one.log_evidence) == (other.prior.tolist(), other.log_evidence)


def test_logits_far_apart_overflow_nothing():
    u = 1e6 * np.random.default_rng(0).standard_normal((20, C))
    for found in (priors.map_em(u, BASE, 1e-6), infer_priors([u, u[:3]], BASE, 1e-6)[0].prior):
        assert found.sum() == pytest.approx(1)
        assert (found > 0).all()


@pytest.mark.parametrize(("total", "least", "most"), [(1.2, 0.79, 1.6), (12.0, 7.9, 16.0), (np.inf, 1000, 1000)])
@pytest.mark.parametrize("seed", range(3))
def test_the_spread_of_clients_is_found(total, least, most, seed):  # law 10: 100 clients of 500 examples
    rng, c = np.random.default_rng(seed), 10
    shares = np.full((100, c), 1 / c) if total == np.inf else rng.dirichlet(np.full(c, total / c), 100)
    counts = np.array([rng.multinomial(500, share) for share in shares]).astype(np.float64)
    pooled = priors.training_shares(counts.sum(axis=0))
    found = priors.fit_spread(sum(priors.spread_likelihoods(one, pooled) for one in counts))
    assert least <= found * 1.0000001
    assert found <= most


def test_the_log_likelihoods_are_those_of_drawing_one_by_one():
    """Polya's urn: the chance of class c next is (A share_c + how often it came)/(A + how many came)."""
    shares, drawn = np.array([0.5, 0.3, 0.2]), [0, 0, 2, 0, 2]
    expected = np.zeros(len(priors.GRID))
    for i, a in enumerate(priors.GRID):
        urn = a * shares
        for y in drawn:
            expected[i] += np.log(urn[y] / urn.sum())
            urn[y] += 1
    found = priors.spread_likelihoods(np.bincount(drawn, minlength=3).astype(np.float64), shares)
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_without_examples_clients_are_taken_to_be_alike():
    assert priors.fit_spread(priors.spread_likelihoods(np.zeros(C), BASE)) == 1000
