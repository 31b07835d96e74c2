"""BatchNorm statistics of a client's own inputs, and then its class shares."""

import numpy as np
import pytest

from fedreach._util.errors import ConfigError
from fedreach._util.streams import generator
from fedreach.deploy.adapter import Adapter
from fedreach.federation.adaptation.label_shift import LabelShift
from fedreach.federation.adaptation.methods import BatchNormRefresh
from fedreach.federation.types import Outputs
from fedreach.testing import check
from fedreach.testing.adaptation import adapted_fixture, client_after

STATE = {"a": np.ones(1), "b": np.zeros(2), "base": np.full(2, 0.5), "pseudo_counts": np.ones(1)}


@pytest.mark.slow
def test_it_keeps_all_laws():
    check(BatchNormRefresh())
    check(BatchNormRefresh(strength=0.5, calibration="temperature"))


def accuracy(rule, given, inputs, labels):
    state = given.fitted(rule).state
    outputs = given.outputs(rule, inputs)
    return float((rule.predict(state, client_after(rule, state, [outputs]), outputs).argmax(axis=1) == labels).mean())


def test_paler_inputs_of_other_classes_are_told_apart_again():
    given = adapted_fixture("3 classes", 3, (200, 200, 200), apart=1.5)
    rng = generator(0, "own classes")
    labels = rng.choice(3, 300, p=[0.2, 0.6, 0.2])
    usual = (given.model.means[labels] + rng.standard_normal((300, 6))).astype(np.float32)
    pale = (0.3 * usual + 2).astype(np.float32)
    refreshed, bare = BatchNormRefresh(), LabelShift(guard=False)
    assert accuracy(bare, given, usual, labels) > 0.9
    assert accuracy(bare, given, pale, labels) < 0.5
    assert accuracy(refreshed, given, pale, labels) > 0.9


def test_what_cannot_be_refreshed_is_refused_in_words():
    with pytest.raises(ConfigError, match=r"requires inputs, and a model with BatchNorm2d .* Use adaptation"):
        BatchNormRefresh().contribute({}, Outputs(np.zeros((1, 2))), np.zeros(1, np.int64), np.ones(2))
    with pytest.raises(ConfigError, match=r"requires inputs, and a model with BatchNorm"):
        Adapter(BatchNormRefresh(), STATE).fit(np.zeros((1, 2)))


@pytest.mark.parametrize(
    "options", [{"strength": -1.0}, {"odds": -1.0}, {"pseudo_counts": 0.0}, {"calibration": "most"}]
)
def test_an_option_outside_its_range_is_refused_by_the_rules_own_name(options):
    with pytest.raises(ConfigError, match=rf"BatchNormRefresh.*{next(iter(options))}"):
        BatchNormRefresh(**options)
