"""What the server adds to the weighted mean."""

import numpy as np
import pytest

from fedreach._util.errors import ConfigError
from fedreach.federation.server import Average


def test_momentum_sums_a_constant_update_as_a_geometric_series():
    # v_t = u + m v_{t-1}, v_0 = 0, so v_t = u (1 - m^t) / (1 - m); x_t = x_0 + rate * (v_1 + ... + v_t).
    step, u, m, rate = Average(lr=0.5, momentum=0.9), np.array([1.0, -2.0]), 0.9, 0.5
    params, state = np.zeros(2, np.float32), {}
    total = np.zeros(2)
    for t in range(1, 11):
        params, state = step.apply(params, state, u)
        velocity = u * (1 - m**t) / (1 - m)
        total += rate * velocity
        np.testing.assert_allclose(state["velocity"], velocity, rtol=1e-12)
    np.testing.assert_allclose(params, total, rtol=1e-6)  # ten float32 roundings


def test_without_momentum_nothing_is_remembered():
    params, state = Average().apply(np.ones(2, np.float32), {}, np.array([1.0, 2.0]))
    assert params.tolist() == [2.0, 3.0]
    assert params.dtype == np.float32
    assert state == {}


def test_the_arguments_are_not_written_to():
    params, update = np.ones(2, np.float32), np.ones(2)
    velocity = np.full(2, 3.0)
    for array in (params, update, velocity):
        array.setflags(write=False)
    _, state = Average(momentum=0.5).apply(params, {"velocity": velocity}, update)
    assert state["velocity"].tolist() == [2.5, 2.5]


@pytest.mark.parametrize(
    ("option", "value"),
    [("lr", 0.0), ("lr", -1.0), ("lr", np.inf), ("lr", np.nan), ("momentum", 1.0), ("momentum", -0.1)],
)
def test_an_option_outside_its_range_is_refused_by_name(option, value):
    with pytest.raises(ConfigError, match=rf"Average\.{option} must be .*got {value}"):
        Average(**{option: value})
