"""The radio of a federation: drawn from its ranges, the same for all methods, refused with the reason."""

from dataclasses import replace

import numpy as np
import pytest

from fedreach._util.errors import ConfigError
from fedreach.wireless.radio import RADIOS, PaperRadio, Radio, path_gain


def state(radio, round_=1, n=400, seed=0):
    return radio.state(
        radio.devices(n, seed),
        seed=seed,
        round_=round_,
        ids=np.arange(n),
        num_examples=np.full(n, 100),
        bits_per_example=6272.0,
        passes=np.full(n, 10.0),
        report_bits=1_421_632,
    )


def test_devices_are_drawn_from_their_ranges_and_kept_for_the_run():
    radio = Radio()
    devices = radio.devices(500, seed=3)
    for values, (low, high) in (
        (devices.distance_meters, radio.distance_meters),
        (10 * np.log10(devices.power_watts) + 30, radio.power_dbm),
        (devices.max_hertz, radio.max_hertz),
        (devices.cycles_per_bit, radio.cycles_per_bit),
    ):
        assert low <= values.min() < low + 0.05 * (high - low)
        assert high >= values.max() > high - 0.05 * (high - low)
    again = radio.devices(500, seed=3)
    assert all((a == b).all() for a, b in zip(devices, again, strict=True))
    assert not (devices.max_hertz == radio.devices(500, seed=4).max_hertz).any()


def test_fading_is_drawn_anew_each_round_with_its_mean():
    radio = Radio(mean_gain=2.0)
    devices = radio.devices(20_000, seed=0)
    path = path_gain(devices.distance_meters, radio.carrier_hertz, radio.path_loss_exponent)
    fading = radio.gains(devices, 0, 1) / path
    # Five standard errors: mean and deviation of an exponential variable are both its mean.
    assert abs(fading.mean() - 2) < 5 * 2 / np.sqrt(20_000)
    assert abs((fading > 2).mean() - np.exp(-1)) < 5 * np.sqrt(0.25 / 20_000)
    assert not (radio.gains(devices, 0, 2) == radio.gains(devices, 0, 1)).any()
    assert (radio.gains(devices, 0, 1) == radio.gains(devices, 0, 1)).all()
    still = replace(radio, fading="none")
    assert (still.gains(devices, 0, 1) == still.gains(devices, 0, 2)).all()
    np.testing.assert_allclose(still.gains(devices, 0, 1), 2 * path, rtol=1e-15)


def test_what_a_round_needs_follows_from_data_model_and_device():
    radio, n = Radio(), 50
    now, devices = state(radio, n=n), radio.devices(n, 0)
    problem = now.problem()
    np.testing.assert_allclose(problem.upload_seconds, 1_421_632 / now.bits_per_second)
    np.testing.assert_allclose(problem.cycles, 10 * 100 * 6272 * devices.cycles_per_bit)
    fewer = now.problem(bits=32, passes=np.full(n, 1 / 3))
    np.testing.assert_allclose(fewer.upload_seconds, problem.upload_seconds * 32 / 1_421_632)
    np.testing.assert_allclose(fewer.cycles, problem.cycles / 30)
    literal = state(replace(radio, bits_per_example=1.0), n=n).problem()
    np.testing.assert_allclose(literal.cycles * 6272, problem.cycles)


def test_the_defaults_are_sane_and_the_papers_frequencies_are_not():
    """Section 5.1 of the specification: with MHz a round takes a minute and microjoules, with GHz milliseconds."""
    now, slow = state(Radio()).problem(), state(PaperRadio()).problem()
    assert 0.05 < np.median(now.upload_seconds) < 0.15
    assert np.median(now.cycles / now.max_hertz) < 0.05
    assert np.median(slow.cycles / slow.max_hertz) > 5
    assert np.median(slow.capacitance * slow.cycles * slow.max_hertz**2) < 1e-5
    assert {"gigahertz": Radio, "paper": PaperRadio} == RADIOS


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bandwidth_hertz": 0.0}, r"Radio\.bandwidth_hertz must be positive; got 0\.0"),
        ({"bandwidth_hertz": np.inf}, r"bandwidth_hertz must be positive and finite; got inf"),
        ({"carrier_hertz": np.nan}, r"carrier_hertz must be positive; got nan"),
        ({"max_hertz": (0.0, 1e9)}, r"max_hertz: both limits must be at least 100000; got 0"),
        ({"max_hertz": (2.0, 5.0)}, "max_hertz: both limits must be .*The unit is hertz, for example"),
        ({"max_hertz": (5e9, 2e9)}, "max_hertz must be a range"),
        ({"power_dbm": (20.0, np.nan)}, r"power_dbm must be a range \[low, high\]"),
        ({"power_dbm": (20.0, 200.0)}, r"power_dbm: both limits must be in \(-100, 100\); got 200"),
        ({"distance_meters": (-1.0, 5.0)}, "distance_meters: both limits must be positive; got -1"),
        ({"distance_meters": 225.0}, "distance_meters must be a range"),
        ({"noise_dbm_per_hertz": 4e-21}, r"noise_dbm_per_hertz must be in \(-300, 0\).*Thermal noise is -174"),
        ({"path_loss_exponent": 0.0}, r"path_loss_exponent must be in \[1, 10\)"),
        ({"energy_weight": -1.0}, "energy_weight must be not negative; got -1"),
        ({"time_weight": 0.0}, "time_weight must be positive; got 0"),
        ({"fading": "rayleig"}, r"fading must be 'rayleigh' or 'none'; got 'rayleig'\. Did you mean 'rayleigh'"),
    ],
)
def test_what_cannot_be_is_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        Radio(**options)
