"""Bounds of SAFARI: golden numbers, limits that the paper names, and what grows with what."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedreach._util.errors import ConfigError
from fedreach.federation.convergence import convergence_bound, largest_server_lr, largest_share, speedup_settings

checks = settings(deadline=None, derandomize=True)
positive = st.floats(1e-3, 1e3)

SETTING: dict[str, Any] = {
    "excess": 2.0,
    "rounds": 500,
    "server_lr": 0.004,
    "share": 0.7,
    "smoothness": 3.0,
    "noise": 1.5,
    "dissimilarity": 0.4,
    "cohort_size": 5,
    "local_steps": 8,
}


# ----------------------------------------------------------------------------------------------- q_max


def test_the_largest_share_is_the_golden_one() -> None:
    # design/algorithms.md, section 4
    golden = {"smoothness": 1, "server_lr": 0.1}
    assert largest_share(1, 1, **golden) == pytest.approx(0.1836734694, abs=1e-10)
    assert largest_share(1, 1, 2, local_steps=3, **golden) == pytest.approx(0.1942446043, abs=1e-10)


def test_like_clients_may_train_always_and_boundlessly_unlike_ones_never() -> None:
    """The two extremes that the paper names: FedAvg and SGD on the server."""
    assert largest_share(0, 1, smoothness=1, server_lr=0.1) == 1
    assert largest_share(math.inf, 1, smoothness=1, server_lr=0.1) == 0
    assert largest_share(1e12, 1, smoothness=1, server_lr=0.1) < 1e-11


def test_near_a_stationary_point_unlike_clients_may_no_longer_train() -> None:
    assert largest_share(1, 0, smoothness=1, server_lr=0.1) == 0
    assert largest_share(1, 1e-9, smoothness=1, server_lr=0.1) == pytest.approx(0.9e-9 / 4, rel=1e-6)


@checks
@given(positive, positive, st.floats(0, 1e3), positive, st.floats(0.01, 0.24), st.integers(1, 50))
def test_at_the_largest_share_harm_and_gain_are_equal(
    dissimilarity: float, server: float, client: float, smoothness: float, step: float, steps: int
) -> None:
    options: dict[str, Any] = {"smoothness": smoothness, "server_lr": step / smoothness, "local_steps": steps}
    q = largest_share(dissimilarity, server, client, **options)
    harm = 4 * dissimilarity - 4 * client * (1 / (2 * steps**2) - 2 * step / steps**2)
    assert 0 <= q <= 1
    if q < 1:
        assert q * harm == pytest.approx((1 - q) * (1 - step) * server, rel=1e-9)
    # step < 1/4, so that a larger client gradient helps
    assert largest_share(2 * dissimilarity, server, client, **options) <= q
    assert largest_share(dissimilarity, 2 * server, client, **options) >= q
    assert largest_share(dissimilarity, server, 2 * client, **options) >= q
    # only ratios of squared gradients count, and only the product of lr and smoothness
    assert largest_share(9 * dissimilarity, 9 * server, 9 * client, **options) == pytest.approx(q, rel=1e-9)
    options |= {"smoothness": 7 * smoothness, "server_lr": options["server_lr"] / 7}
    assert largest_share(dissimilarity, server, client, **options) == pytest.approx(q, rel=1e-9)


# ----------------------------------------------------------------------------------------------- Theorem 4


def test_without_client_rounds_it_is_the_bound_of_sgd() -> None:
    bound = convergence_bound(**SETTING | {"share": 0.0, "dissimilarity": 1e9})
    eta = SETTING["server_lr"]
    assert bound.total == pytest.approx(2 * 2.0 / (500 * eta) + 3.0 * eta * 1.5, rel=1e-12)
    assert bound.drift == bound.client_noise == 0


def test_with_client_rounds_only_the_server_adds_no_noise() -> None:
    assert convergence_bound(**SETTING | {"share": 1.0}).server_noise == 0


def test_every_summand_is_the_printed_one() -> None:
    eta, K, m = 0.004, 8, 5
    expected = (
        2 * 2.0 / (500 * eta),
        3.0 * eta * 0.3 * 1.5,
        80 * 0.7 * 9.0 * eta**2 / K * (1.5 + 6 * K * 0.4),
        8 * 3.0 * 0.7 * eta / (m * K) * 1.5,
    )
    assert tuple(convergence_bound(**SETTING)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "larger", "grows"),
    [
        ("excess", 3.0, True),
        ("noise", 2.0, True),
        ("dissimilarity", 0.5, True),
        ("smoothness", 4.0, True),
        ("rounds", 600, False),
        ("cohort_size", 6, False),
    ],
)
def test_the_bound_grows_with_what_makes_training_harder(name: str, larger: float, grows: bool) -> None:
    before, after = convergence_bound(**SETTING).total, convergence_bound(**SETTING | {name: larger}).total
    assert (after > before) is grows


def test_a_loss_in_another_unit_scales_the_bound_by_its_square() -> None:
    """F -> t F: gradients x t, so sigma^2 and sigma_G^2 x t^2, L x t, and the same steps need eta / t."""
    t = 7.0
    factors = {"excess": t, "smoothness": t, "server_lr": 1 / t, "noise": t**2, "dissimilarity": t**2}
    scaled = {name: SETTING[name] * factor for name, factor in factors.items()}
    bound, other = convergence_bound(**SETTING), convergence_bound(**SETTING | scaled)
    assert tuple(other) == pytest.approx([t**2 * term for term in bound], rel=1e-12)


def test_the_corollary_gives_linear_speedup_once_rounds_outnumber_the_cube_of_the_work() -> None:
    m, K, noise, L, excess = 4, 5, 1.5, 2.0, 3.0
    limit = 2 * excess + L * noise + 8 * L * noise  # of sqrt(m K R) times the bound, from the four summands
    previous = math.inf
    for rounds in (10**6, 10**8, 10**10):
        lr, share = speedup_settings(rounds, m, K)
        bound = convergence_bound(
            excess, rounds=rounds, server_lr=lr, share=share, smoothness=L, noise=noise, dissimilarity=0.3,
            cohort_size=m, local_steps=K,
        )  # fmt: skip
        ratio = bound.total * math.sqrt(m * K * rounds) / limit
        assert 0.95 - 1 / (m * K) < ratio < previous
        previous = ratio
    assert previous == pytest.approx(1, abs=0.05)


def test_a_constant_share_does_not_give_the_speedup() -> None:
    """q = 1/2 is Omega(1 - 1 / (m K)), but the server's noise then stays sqrt(m K) times too large for each client."""
    m, K, rounds = 50, 20, 10**12
    lr, share = speedup_settings(rounds, m, K)
    options = SETTING | {"rounds": rounds, "server_lr": lr, "cohort_size": m, "local_steps": K}
    meant, asked = (convergence_bound(**options | {"share": q}) for q in (share, 0.5))
    assert asked.server_noise == pytest.approx(0.5 * m * K * meant.server_noise, rel=1e-9)


def test_the_server_lr_of_the_corollary_is_allowed_from_1920_rounds_per_step_on() -> None:
    m, K = 3, 7
    lr, _ = speedup_settings(1920 * m * K, m, K)
    assert lr == pytest.approx(largest_server_lr(1.0), rel=1e-12)


def test_a_rate_beyond_the_theorem_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"server_lr must be at most .*0\.0076.*got 0\.1.*not cover larger"):
        convergence_bound(**SETTING | {"server_lr": 0.1})


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: largest_share(-1, 1, smoothness=1, server_lr=0.1), "dissimilarity must be in"),
        (lambda: largest_share(1, 1, smoothness=1, server_lr=1), r"server_lr \* smoothness must be in \(0, 1\)"),
        (lambda: convergence_bound(**SETTING | {"share": 1.2}), r"share must be in \[0, 1\]; got 1.2"),
        (lambda: convergence_bound(**SETTING | {"noise": math.nan}), "noise must be in"),
    ],
)
def test_what_is_out_of_range_is_refused(call: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        call()
