"""Rates, seconds and joules: numbers worked out beforehand, and what must follow from the formulas."""

import numpy as np
import pytest

from fedreach.wireless import problem
from fedreach.wireless.radio import bits_per_second, path_gain, watts


def test_the_golden_client_of_the_specification():
    # Specification section 5.1: 225 m, gamma 2.7, 2.4 GHz, 2 MHz, 23 dBm, |h|^2 = 1, a quarter of the band, LeNet.
    theta, power, noise = path_gain(225.0, 2.4e9, 2.7), watts(23.0), watts(-174.0)
    assert theta == pytest.approx(4.4106997912e-11, rel=1e-10)
    assert power == pytest.approx(0.1995262315, rel=1e-9)
    assert noise == pytest.approx(3.9810717055e-21, rel=1e-10)
    rate = bits_per_second(2e6, noise, theta, power)
    assert rate == pytest.approx(2.0223036189e7, rel=1e-10)
    client = problem.AllocationProblem([1_421_632 / rate], [power], [1e8], [1e9], [1])
    sent = problem.Allocation.of(client, slice(None), np.array([0.25]), np.array([1e9]))
    assert sent.upload_seconds[0] == pytest.approx(0.2811906158, rel=1e-9)
    assert sent.upload_joules[0] == pytest.approx(0.0561049039, rel=1e-8)


def test_computing_takes_cycles_over_frequency_and_its_energy_grows_with_the_square():
    # Section 5.1, a client of Fashion-MNIST: 10 passes over 750 images of 6272 bits at 5 cycles a bit, with 3.5 GHz.
    cycles = problem.training_cycles(10, 750, 6272, 5)
    assert problem.compute_seconds(cycles, 3.5e9) == pytest.approx(0.0672, rel=1e-12)
    assert problem.compute_joules(1e-27, cycles, 3.5e9) == pytest.approx(2.8812, rel=1e-12)
    assert problem.compute_joules(1e-27, cycles, 7e9) == pytest.approx(4 * 2.8812, rel=1e-12)


def test_no_cycles_take_no_time_at_any_frequency():
    assert problem.compute_seconds(np.array([0.0, 0.0, 6.0]), np.array([0.0, 1e9, 2.0])).tolist() == [0, 0, 3]


def test_the_rate_grows_with_gain_and_power_and_with_the_band_less_than_in_proportion():
    noise = watts(-174.0)
    rate = bits_per_second(2e6, noise, 4e-11, 0.2)
    assert bits_per_second(2e6, noise, 8e-11, 0.2) > rate
    assert bits_per_second(2e6, noise, 4e-11, 0.4) == bits_per_second(2e6, noise, 8e-11, 0.2)
    assert rate < bits_per_second(4e6, noise, 4e-11, 0.2) < 2 * rate
