"""Who never takes part and what that costs, by the theorems of SAFARI on learning: limits and what grows with what."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedreach._util.errors import ConfigError
from fedreach.federation.convergence import excess_allowed, generalization_rate, least_relation, worst_case_error

checks = settings(deadline=None, derandomize=True)


def test_the_error_that_cannot_be_ruled_out_falls_to_zero_with_those_left_out() -> None:
    errors = [worst_case_error(m, 20) for m in range(1, 21)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] == 0
    assert errors[9] == 1 / 16  # half of the clients: (1 - 1/2) / 8


@checks
@given(st.floats(1, 50), st.integers(60, 1000), st.integers(0, 10**6), st.floats(0, 1), st.floats(0, 2))
def test_more_data_and_closer_distributions_lower_the_rate(
    d: float, server: int, client: int, noise: float, relation: float
) -> None:
    rate = generalization_rate(d, server, client, noise=noise, relation=relation)
    assert generalization_rate(d, server, client + 1000, noise=noise, relation=relation) <= rate
    assert generalization_rate(d, server, client, noise=noise, relation=relation + 0.1) < rate
    single = (d / (server + client)) ** (1 / (2 - noise))
    assert generalization_rate(d, server, client, noise=noise, relation=1) == pytest.approx(2 * single, rel=1e-12)


@checks
@given(st.floats(1, 50), st.integers(60, 1000), st.integers(1, 10**6), st.floats(0, 1))
def test_at_the_least_relation_the_two_rates_are_equal(d: float, server: int, client: int, noise: float) -> None:
    beta = least_relation(d, server, client)
    assert 0 < beta < 1
    alone = (d / server) ** (1 / (2 - noise))
    assert (d / (server + client)) ** (beta / (2 - noise)) == pytest.approx(alone, rel=1e-9)


def test_certainty_costs_a_logarithm() -> None:
    assert excess_allowed(10, 1000, 1e-6) - excess_allowed(10, 1000, 1e-3) == pytest.approx(math.log(1000) / 1000)
    assert excess_allowed(10, 10**7, 0.05) < excess_allowed(10, 10**4, 0.05)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: worst_case_error(11, 10), r"participants must be in \[1, 10\]; got 11"),
        (lambda: excess_allowed(10, 100, 1.0), r"delta must be in \(0, 1\)"),
        (lambda: least_relation(100, 100, 5), r"vc_dimension must be in \(0, 100\); got 100"),
        (lambda: generalization_rate(1, 0, 5, noise=1, relation=1), r"server_examples must be in"),
    ],
)
def test_what_is_out_of_range_is_refused(call: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        call()
