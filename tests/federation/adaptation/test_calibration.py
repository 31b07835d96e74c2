"""Calibration: a and b at the optimum of a penalised likelihood, from sums alone."""

import numpy as np
import pytest

from fedreach.federation.adaptation import calibration
from fedreach.federation.adaptation.base import log_softmax, source_prior

from .worlds import C, draw, exact_logits, means_of


def data(seed=0, m=400, scale=1.0, prior=(0.4, 0.3, 0.2, 0.1)):
    rng = np.random.default_rng(seed)
    x, labels = draw(rng, m, np.array(prior), means_of())
    return scale * exact_logits(x, means_of(), np.full(C, 1 / C)) + rng.standard_normal(C), labels


def fitted(logits, labels, *, bias=True, pull=1.0):
    z, search, evaluated = calibration.center_logits(logits), calibration.begin(logits.shape[1]), 0
    while not calibration.is_settled(search):
        sums = calibration.likelihood(z, labels, search["candidate"], bias=bias)
        search, evaluated = calibration.advance(search, sums, pull=pull), evaluated + 1
    return search["point"], evaluated


def objective(logits, labels, point):
    log_p = log_softmax(point[0] * calibration.center_logits(logits) + point[1:])
    return -log_p[np.arange(len(labels)), labels].sum() + (np.log(point[0]) ** 2 + point[1:] @ point[1:]) / 2


def test_derivatives_are_those_of_the_loss():
    logits, labels = data(m=30)
    point, tiny = np.array([0.7, 0.1, -0.2, 0.3, 0.5]), 1e-5
    of = lambda at: calibration.likelihood(calibration.center_logits(logits), labels, at)  # noqa: E731
    hessian = np.zeros((C + 1, C + 1))
    hessian[np.triu_indices(C + 1)] = of(point)["curvature"]
    for i, step in enumerate(tiny * np.eye(C + 1)):
        up, down = of(point + step), of(point - step)
        np.testing.assert_allclose((up["loss"] - down["loss"]) / (2 * tiny), of(point)["gradient"][i], atol=1e-6)
        rises = (up["gradient"] - down["gradient"]) / (2 * tiny)
        np.testing.assert_allclose(rises[i:], hessian[i, i:], atol=1e-6)


def test_with_temperature_alone_the_first_number_of_each_sum_is_sent():
    logits, labels = data(m=30)
    z, point = calibration.center_logits(logits), np.append(0.7, np.zeros(C))
    whole, alone = (calibration.likelihood(z, labels, point, bias=bias) for bias in (True, False))
    assert {name: values.size for name, values in alone.items()} == {"loss": 1, "gradient": 1, "curvature": 1}
    assert all(alone[name][0] == whole[name][0] for name in whole)


@pytest.mark.parametrize("seed", range(3))
def test_at_the_optimum_predictions_match_class_shares_but_for_the_pull(seed):  # law 1
    logits, labels = data(seed)
    point, _ = fitted(logits, labels)
    p = np.exp(log_softmax(point[0] * calibration.center_logits(logits) + point[1:]))
    np.testing.assert_allclose(p.sum(axis=0) - np.bincount(labels, minlength=C), -point[1:], atol=1e-5)
    for step in 1e-3 * np.random.default_rng(seed).standard_normal((20, C + 1)):
        assert objective(logits, labels, point + step) > objective(logits, labels, point)


def test_rescaled_logits_rescale_a():  # law 1
    logits, labels = data()
    (plain, _), (scaled, _) = fitted(logits, labels, pull=0.0), fitted(7 * logits, labels, pull=0.0)
    np.testing.assert_allclose(scaled * np.append(7, np.ones(C)), plain, atol=1e-6)


def test_a_shift_of_each_row_changes_nothing():  # law 1
    logits, labels = data()
    shifts = 100 * np.random.default_rng(1).standard_normal((len(logits), 1))
    np.testing.assert_allclose(fitted(logits + shifts, labels)[0], fitted(logits, labels)[0], atol=1e-9)


def test_classes_renamed_rename_b():  # law 5
    logits, labels = data()
    order = np.array([2, 0, 3, 1])
    (plain, _), (renamed, _) = fitted(logits, labels), fitted(logits[:, order], np.argsort(order)[labels])
    np.testing.assert_allclose(renamed, np.append(plain[0], plain[1:][order]), atol=1e-9)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("scale", [100.0, 10.0, 1.0, 0.1, 0.01])
def test_every_temperature_is_found_in_a_few_steps(scale, bias):
    logits, labels = data(m=300)
    point, evaluated = fitted(scale * logits, labels, bias=bias)
    assert 0.5 < point[0] * scale < 1.5
    assert evaluated <= 13


@pytest.mark.parametrize("logits", [np.eye(C) * 2, np.eye(C) * 1e6, np.zeros((C, C)), -np.eye(C)])
def test_data_without_an_optimum_of_its_own_gets_one_by_the_pull(logits):
    point, evaluated = fitted(np.tile(logits, (25, 1)), np.tile(np.arange(C), 25))
    assert np.isfinite(point).all()
    assert point[0] > 0
    assert evaluated <= calibration.MAX_STEPS


def test_the_objective_is_never_above_where_it_began():
    rng = np.random.default_rng(3)
    for _ in range(30):
        logits = rng.standard_normal((5, C)) * 10 ** rng.uniform(-2, 3)
        labels = rng.integers(0, C, 5)
        point, evaluated = fitted(logits, labels)
        assert objective(logits, labels, point) <= objective(logits, labels, np.append(1.0, np.zeros(C)))
        assert evaluated <= calibration.MAX_STEPS + 1


def test_no_logit_makes_a_sum_without_bound():
    z = calibration.center_logits(np.array([[3e38, -3e38, 0.0]], np.float32))
    assert z.dtype == np.float64
    assert z.tolist() == [[1e6, -1e6, 0.0]]


# Many classes: a by Newton's method, b by matching mean predictions


def gaussian(seed, c, m):
    """Classes with unequal shares, 20 numbers an input; logits three times too large and biased; (fit, test)."""
    rng = np.random.default_rng(seed)
    means, bias, prior = 0.7 * rng.standard_normal((c, 20)), 2 * rng.standard_normal(c), rng.dirichlet(np.full(c, 2))
    for size in (m, 10_000):
        x, labels = draw(rng, size, prior, means)
        yield 3 * exact_logits(x, means, np.full(c, 1 / c)) + bias, labels


def by_matching(logits, labels, target=None):
    z, base = (
        calibration.center_logits(logits),
        source_prior(np.bincount(labels, minlength=logits.shape[1]).astype(float)),
    )
    search = calibration.begin_matching(fitted(logits, labels, bias=False)[0])
    while not calibration.is_settled(search):
        sums = calibration.prediction_sums(z, search["candidate"])
        search = calibration.match_step(search, sums, base if target is None else target)
    p = calibration.prediction_sums(z, search["point"]) / len(z)
    return search["point"], float(np.abs(p - base).sum() / 2)


@pytest.mark.parametrize(("c", "m"), [(10, 400), (10, 4000), (120, 1200)])
def test_matching_is_near_newtons_method_and_far_from_temperature_alone(c, m):
    (logits, labels), (others, truth) = gaussian(4, c, m)
    points = [fitted(logits, labels, bias=False)[0], fitted(logits, labels)[0]]
    matched, off = by_matching(logits, labels)
    right = [(log_softmax(a * others + b).argmax(axis=1) == truth).mean() for a, *b in (*points, matched)]
    loss = [-log_softmax(a * others + b)[range(10_000), truth].mean() for a, *b in (*points, matched)]
    assert right[1] - right[0] > 0.02
    assert abs(right[2] - right[1]) < 0.008
    assert abs(loss[2] - loss[1]) < 0.15 * (loss[0] - loss[1])
    assert off < 0.05


def test_examples_that_say_nothing_are_matched_at_once():
    """p = softmax(b) for all, so that b = log base after the first round, and stays."""
    labels = np.repeat(np.arange(3), [5, 3, 2])
    point, off = by_matching(np.zeros((10, 3)), labels)
    expected = np.log(source_prior(np.array([5.0, 3.0, 2.0])))
    np.testing.assert_allclose(point[1:], expected - expected.mean(), atol=1e-12)
    assert off < 1e-12


def test_a_class_that_is_never_predicted_or_never_held_leaves_numbers():
    logits = np.tile([1e6, 0.0, -1e6], (4, 1))
    point, _ = by_matching(logits, np.array([0, 0, 1, 1]))
    assert np.isfinite(point).all()
