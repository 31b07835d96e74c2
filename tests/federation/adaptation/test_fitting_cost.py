"""Seconds and joules of fitting an adaptation rule, worked out once more by hand."""

from dataclasses import replace

import numpy as np
import pytest

from fedreach._util.errors import ConfigError
from fedreach.federation.costs import fitting_cost
from fedreach.testing.problems import tiny_federation
from fedreach.wireless.radio import Radio
from fedreach.wireless.rules import EqualShares

IDS, BITS = np.array([2, 5, 9]), 512.0
RADIO = Radio(energy_weight=0.0)  # joules are free, so that each client computes at its highest frequency
FEDERATION = replace(tiny_federation(seed=3), radio=RADIO, allocation=EqualShares())
DEVICES = RADIO.devices(3, seed=3)


def cost(held_out, sent, round_=7, federation=FEDERATION):
    return fitting_cost(
        federation,
        DEVICES,
        ids=IDS,
        held_out=np.array(held_out),
        sent=sent,
        round_=round_,
        bits_per_example=BITS,
    )


def rates(round_):
    """Return R = B log2(1 + gain P/(B N0)) of the whole band."""
    noise = RADIO.bandwidth_hertz * 10 ** ((RADIO.noise_dbm_per_hertz - 30) / 10)
    gains = RADIO.gains(DEVICES, seed=3, round_=round_)
    return RADIO.bandwidth_hertz * np.log2(1 + gains * DEVICES.power_watts / noise)


def test_one_exchange_is_what_a_hand_computes():
    """All answer: each has a third of the band, and passes its held-out examples through the model once."""
    m = np.array([12, 40, 5])
    sending = 8 * 1000 / (rates(8) / 3)
    cycles = m * BITS * DEVICES.cycles_per_bit / 3
    computing = cycles / DEVICES.max_hertz
    joules = DEVICES.power_watts * sending + RADIO.capacitance * cycles * DEVICES.max_hertz**2
    found = cost(m, [1000])
    assert found.seconds == pytest.approx((sending + computing).max(), rel=1e-12)
    assert found.joules == pytest.approx(joules.sum(), rel=1e-12)


def test_later_exchanges_only_send_and_each_has_channels_of_its_own():
    seconds = [(8 * size / (rates(round_) / 3)).max() for size, round_ in ((500, 9), (200, 10))]
    joules = [(8 * size / (rates(round_) / 3) * DEVICES.power_watts).sum() for size, round_ in ((500, 9), (200, 10))]
    first, whole = cost([12, 40, 5], [1000]), cost([12, 40, 5], [1000, 500, 200])
    assert whole.seconds - first.seconds == pytest.approx(sum(seconds), rel=1e-9)
    assert whole.joules - first.joules == pytest.approx(sum(joules), rel=1e-9)


def test_who_holds_nothing_out_is_not_asked_and_leaves_its_share_to_others():
    found = cost([12, 0, 5], [1000])
    m, asked = np.array([12, 5]), np.array([0, 2])
    sending = 8 * 1000 / (rates(8)[asked] / 2)
    computing = m * BITS * DEVICES.cycles_per_bit[asked] / 3 / DEVICES.max_hertz[asked]
    assert found.seconds == pytest.approx((sending + computing).max(), rel=1e-12)


def test_without_exchanges_nothing_is_spent():
    assert cost([12, 40, 5], []) == (0.0, 0.0)


def test_a_rule_of_allocation_is_followed():
    """The exact one minimises what `EqualShares` does not, so that with a price of joules it costs less."""
    priced = replace(FEDERATION, radio=Radio(energy_weight=1.0))
    equal, exact = (
        cost([12, 40, 5], [1000], federation=replace(priced, allocation=rule)) for rule in (EqualShares(), None)
    )
    assert sum(exact) < sum(equal)


def test_without_a_radio_nothing_can_be_said():
    with pytest.raises(ConfigError, match=r"fitting_cost requires a federation with a radio"):
        cost([1, 1, 1], [8], federation=tiny_federation())
