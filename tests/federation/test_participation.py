"""Who can be reached."""

import numpy as np
import pytest

from fedreach._util.errors import ConfigError
from fedreach._util.streams import generator
from fedreach.federation.participation import Always, Bernoulli


def test_always_and_bernoulli_with_probability_one_reach_everybody():
    assert Always().available(5, generator(0, "t")).all()
    assert Bernoulli(1.0).available(1000, generator(0, "t")).all()


def test_bernoulli_reaches_each_participant_with_its_probability_independently():
    rounds, n = 4000, 3
    reached = np.array([Bernoulli(0.3).available(n, generator(0, "t", r)) for r in range(rounds)])
    error = np.sqrt(0.3 * 0.7 / rounds)
    assert (abs(reached.mean(axis=0) - 0.3) < 4.5 * error).all()
    both = (reached[:, 0] & reached[:, 1]).mean()
    assert abs(both - 0.09) < 4.5 * np.sqrt(0.09 * 0.91 / rounds)


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1, np.nan])
def test_a_probability_outside_its_range_is_refused(share):
    with pytest.raises(ConfigError, match=r"Bernoulli\.act_prob must be in \(0, 1\]"):
        Bernoulli(share)
