"""The reference that is told the class shares."""

import numpy as np
import pytest

from fedreach._util.errors import ConfigError
from fedreach.federation.adaptation.fitting import fit
from fedreach.federation.adaptation.label_shift import LabelShift
from fedreach.federation.adaptation.methods import OraclePrior
from fedreach.federation.base import Adaptation
from fedreach.federation.types import Outputs

from .worlds import participants


@pytest.mark.parametrize("kind", ["bias", "temperature", "none"])
def test_it_is_label_shift_that_is_told_the_shares(kind):
    asked, rule, other = participants(np.random.default_rng(0)), OraclePrior(kind), LabelShift(calibration=kind)
    state, its = fit(rule, asked).state, fit(other, asked).state
    assert all(state[name].tolist() == its[name].tolist() for name in ("a", "b", "base"))
    prior, outputs = np.array([0.7, 0.1, 0.1, 0.1]), asked[0].outputs
    told = rule.predict(state, rule.with_prior(state, prior), outputs)
    assert told.tolist() == other.predict(its, other.with_prior(its, prior), outputs).tolist()
    unaware = rule.predict(state, rule.start(state), outputs)
    assert unaware.tolist() == other.predict(its, other.start(its), outputs).tolist()


def test_inputs_teach_it_nothing():
    rule = OraclePrior()
    state = fit(rule, participants(np.random.default_rng(0))).state
    client = rule.with_prior(state, np.array([0.7, 0.1, 0.1, 0.1]))
    assert rule.update(state, client, Outputs(np.ones((3, 4)))) is client


def test_it_says_what_it_is():
    assert isinstance(OraclePrior(), Adaptation)
    assert OraclePrior().knows_prior
    with pytest.raises(ConfigError, match="calibration"):
        OraclePrior(calibration="biased")
