"""The bound of CSRA: where the printed one fails, that the right one holds, and how both behave."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedreach._util.divergence import kl_divergence
from fedreach._util.errors import ConfigError
from fedreach.federation.convergence import divergence_loss, generalization_bound, printed_bound, printed_drift

checks = settings(deadline=None, derandomize=True)

WHOLE = np.array([0.5, 0.3, 0.2])
LABELS = np.array([[0.2, 0.3, 0.5], [0.5, 0.3, 0.2], [0.4, 0.4, 0.2]])
SIZES = np.array([30, 50, 20])


@st.composite
def federations(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return labels (k, c), the whole (c,), sizes (k,) and a loss per class (c,) in [0, 1]."""
    rng = np.random.Generator(np.random.Philox(draw(st.integers(0, 2**32))))
    k, c = draw(st.integers(1, 5)), draw(st.integers(2, 6))
    alpha = draw(st.sampled_from([0.1, 1.0, 30.0]))
    return rng.dirichlet([alpha] * c, k), rng.dirichlet([alpha] * c), rng.integers(1, 200, k), rng.random(c)


def test_the_printed_terms_are_no_bound_for_one_coin() -> None:
    """p_k fair, p_g = 0.6 : 0.4, loss 1 on the first side: l - l_bar = 0.1, whatever the number of examples."""
    fair, whole = np.array([[0.5, 0.5]]), np.array([0.6, 0.4])
    off = float((whole - fair[0]) @ [1, 0])
    assert off == pytest.approx(0.1)
    many = [10**9]
    assert printed_bound(fair, whole, many).divergence < 0.0205 < off
    assert generalization_bound(fair, whole, many).divergence == pytest.approx(0.10034, abs=1e-5)  # sqrt(KL / 2)


@checks
@given(federations())
def test_the_divergence_bounds_how_far_any_loss_is_off(case: Any) -> None:
    """l - l_bar <= c TV(mixture, whole) <= mean of c TV <= mean of Pinsker's root, for every loss in [0, c]."""
    labels, whole, sizes, loss = case
    shares = sizes / sizes.sum()
    c = 3.0
    off = float(c * loss @ (whole - shares @ labels))
    mixture = c * np.abs(whole - shares @ labels).sum() / 2
    alone = c * float(shares @ np.abs(whole - labels).sum(axis=1)) / 2
    bound = generalization_bound(labels, whole, sizes, loss_bound=c).divergence
    assert off <= mixture + 1e-9
    assert mixture <= alone + 1e-9
    assert alone <= bound + 1e-9
    assert bound <= c * (1 + 1e-12)


def test_the_bound_holds_for_a_learner_of_known_stability() -> None:
    """The learner is the share v of class 1 among all d examples; its loss |y - v| moves by at most 1 / d with one.

    So beta = 1 / d. In 400 repetitions the bound may fail in 5 %, and fails in none.
    """
    rng = np.random.Generator(np.random.Philox(0))
    labels, sizes, whole = np.array([[0.3, 0.7], [0.6, 0.4]]), np.array([60, 40]), np.array([0.5, 0.5])
    d = int(sizes.sum())
    bound = generalization_bound(labels, whole, sizes, stability=1 / d, delta=0.05).total
    assert bound < 1
    worst = -np.inf
    for _ in range(400):
        ones = rng.binomial(sizes, labels[:, 1])
        vote = ones.sum() / d
        seen = (ones.sum() * (1 - vote) + (d - ones.sum()) * vote) / d
        everybody = whole[1] * (1 - vote) + whole[0] * vote
        worst = max(worst, everybody - seen)
    assert 0 < worst <= bound


def test_a_client_without_a_class_costs_the_whole_loss_bound_and_no_more() -> None:
    bound = generalization_bound([[1.0, 0.0]], [0.5, 0.5], [10], loss_bound=4.0)
    assert bound.divergence == 4.0
    assert printed_bound([[1.0, 0.0]], [0.5, 0.5], [10]).divergence == np.inf


def test_clients_like_the_whole_leave_only_what_examples_cost() -> None:
    bound = generalization_bound([WHOLE, WHOLE], WHOLE, [50, 50])
    assert bound.divergence == 0
    assert bound.sampling == pytest.approx(math.sqrt(math.log(40) / 200), rel=1e-12)


@checks
@given(federations(), st.floats(0.1, 50))
def test_another_unit_of_the_loss_scales_the_bound_but_not_the_printed_one(case: Any, t: float) -> None:
    labels, whole, sizes, _ = case
    one = generalization_bound(labels, whole, sizes, loss_bound=1, stability=0.01)
    scaled = generalization_bound(labels, whole, sizes, loss_bound=t, stability=0.01 * t)
    np.testing.assert_allclose(scaled, [t * term for term in one], rtol=1e-9, atol=1e-12)


def test_the_printed_divergence_ignores_the_unit_of_the_loss() -> None:
    one, ten = (printed_bound(LABELS, WHOLE, SIZES, loss_bound=c).divergence for c in (1.0, 10.0))
    assert ten < 10 * one


@checks
@given(federations(), st.integers(0, 99))
def test_the_order_of_clients_and_classes_changes_nothing(case: Any, seed: int) -> None:
    labels, whole, sizes, _ = case
    rng = np.random.Generator(np.random.Philox(seed))
    k, c = rng.permutation(len(sizes)), rng.permutation(len(whole))
    for bound in (generalization_bound, printed_bound):
        before = bound(labels, whole, sizes)
        np.testing.assert_allclose(bound(labels[k][:, c], whole[c], sizes[k]), before, rtol=1e-9, atol=1e-12)


def test_more_examples_and_less_certainty_tighten_it() -> None:
    few, many = (generalization_bound(LABELS, WHOLE, SIZES * factor).total for factor in (1, 100))
    assert many < few
    sure, unsure = (generalization_bound(LABELS, WHOLE, SIZES, delta=delta).total for delta in (0.01, 0.2))
    assert unsure < sure


def test_sigma_d_is_largest_for_equal_sizes_and_smallest_for_one_client() -> None:
    """The printed "sigma_d^2": sum_k sqrt(d_k) / d is sqrt(K / d) for equal sizes, 1 / sqrt(d) for one client."""
    root = math.sqrt(math.log(4 / 0.05) / 2)
    equal = printed_bound([WHOLE] * 4, WHOLE, [25] * 4).sampling / root
    uneven = printed_bound([WHOLE] * 4, WHOLE, [85, 5, 5, 5]).sampling / root
    one = printed_bound([WHOLE], WHOLE, [100]).sampling / root
    assert (equal, one) == pytest.approx((math.sqrt(4 / 100), 0.1), rel=1e-12)
    assert one < uneven < equal


@checks
@given(federations())
def test_one_inequality_for_all_examples_is_tighter_than_one_per_client(case: Any) -> None:
    labels, whole, sizes, _ = case
    assert generalization_bound(labels, whole, sizes).sampling <= printed_bound(labels, whole, sizes).sampling


def test_the_divergence_runs_from_everybody_to_the_client() -> None:
    """KL((.5, .3, .2) || (.2, .3, .5)) = .2748872196, design/algorithms.md, section 5.2."""
    printed = printed_bound(LABELS[:1], [0.5, 0.3, 0.2], [10**9]).divergence
    assert printed == pytest.approx(0.2748872196, abs=1e-9)
    skew = np.array([[0.7, 0.2, 0.1]])
    assert printed_bound(skew, WHOLE, [10**9]).divergence == pytest.approx(float(kl_divergence(WHOLE, skew[0])))
    assert abs(float(kl_divergence(WHOLE, skew[0])) - float(kl_divergence(skew[0], WHOLE))) > 1e-3


def test_pinskers_root_never_exceeds_the_loss_bound() -> None:
    kl = np.array([0.0, 1e-4, 0.5, 2.0, 7.0, np.inf])
    np.testing.assert_allclose(divergence_loss(kl, 2.0), 2 * np.minimum(np.sqrt(kl / 2), 1))


def test_the_drift_is_the_root_of_the_lemmas_square() -> None:
    # S = 2 (5 - 1) (2 * .01 / 5 * .5 + .01 * .1 / 25) = .01632, and 2 * 3 * sqrt(S)
    drift = printed_drift([0.1], [0.5], epochs=5, smoothness=1, lipschitz=3, noise=0.1)
    assert drift == pytest.approx(6 * math.sqrt(0.01632), rel=1e-12)
    # in units: a parameter measured in other units, w -> s w, leaves the drift as it is
    s = 5.0
    other = printed_drift([0.1 * s**2], [0.5], epochs=5, smoothness=1 / s**2, lipschitz=3 / s, noise=0.1 / s**2)
    assert other == pytest.approx(drift, rel=1e-12)


def test_the_lemma_says_that_one_local_epoch_moves_nothing() -> None:
    assert printed_drift([0.1] * 9, [0.5] * 9, epochs=1, smoothness=1, lipschitz=3, noise=0.1) == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sizes": [30, 0, 20]}, "sizes must be the positive numbers"),
        ({"delta": 0}, r"delta must be in \(0, 1\)"),
        ({"loss_bound": 0}, r"loss_bound must be in \(0, inf\)"),
        ({"stability": -1}, "stability must be in"),
    ],
)
def test_what_is_out_of_range_is_refused(options: dict[str, Any], said: str) -> None:
    for bound in (generalization_bound, printed_bound):
        with pytest.raises(ConfigError, match=said):
            bound(**{"labels": LABELS, "pooled": WHOLE, "sizes": SIZES} | options)  # type: ignore[arg-type]
