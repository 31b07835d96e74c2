"""What a client measures of how far the bounds on its loss disagree."""

from dataclasses import replace

import numpy as np
import pytest

from fedreach._util.errors import ConfigError
from fedreach._util.streams import generator
from fedreach.federation.base import Measurement
from fedreach.federation.measurements import Disagreement
from fedreach.federation.types import LocalOutputs
from fedreach.federation.weighting import ByDisagreement
from fedreach.testing.problems import tiny_simulation


def outputs_of(logits, labels):
    logits, labels = np.asarray(logits, np.float32), np.asarray(labels)
    logits.setflags(write=False)
    labels.setflags(write=False)
    return LocalOutputs(logits, labels)


def errors(share, m=100):
    """Logits of which this share is wrong."""
    wrong = np.arange(m) < share * m
    return outputs_of(np.stack([~wrong, wrong], axis=1), np.zeros(m, np.int64))


def measured(outputs, **options):
    return Disagreement(**options).measure(outputs, generator(0, "measure"))


def test_it_is_a_measurement():
    assert isinstance(Disagreement(), Measurement)
    assert (Disagreement().name, Disagreement().wants_before) == ("disagreement", False)


def test_before_training_the_broadcast_model_is_measured_and_its_clients_are_weighed():
    """Fig. 1 of the paper estimates, then trains; Algorithm 1 trains first. Weights are those of the smaller total."""
    local, broadcast = errors(0.3), errors(0.1)
    both = LocalOutputs(local.logits, local.labels, before=broadcast.logits)
    assert measured(both) == measured(local)
    assert measured(both, when="before") == measured(broadcast) != measured(local)
    (asked,) = ByDisagreement(when="before").measures
    assert asked == Disagreement(when="before")
    assert asked.wants_before
    simulation = tiny_simulation()
    simulation = replace(simulation, federation=replace(simulation.federation, weighting=ByDisagreement(when="before")))
    done = simulation.step(simulation.start())
    ids, start = np.array(done.result.cohort), simulation.start().params
    parts = [simulation.data.train[client] for client in ids]
    outputs = [simulation.engine.logits(start, "train", part) for part in parts]
    labels = [simulation.data.labels[part] for part in parts]
    eta = [measured(outputs_of(z, y)) for z, y in zip(outputs, labels, strict=True)]
    np.testing.assert_allclose(done.result.weights, 1 / np.array(eta) / (1 / np.array(eta)).sum(), rtol=1e-5)


def test_errors_of_a_tenth_give_the_golden_total_but_for_the_divisor_of_the_variance():
    """design/golden.json, "robust_weights", has .1 * .9; with many examples m - 1 is m."""
    expected = [0.3039467199999999, 1.323346028089211, 1.815689204666272, 2.7735110729657877]
    for share, eta in zip([0, 0.05, 0.1, 0.3], expected, strict=True):
        assert measured(errors(share, 100_000), loss="zero_one") == pytest.approx(eta, rel=1e-5)


def test_always_wrong_looks_like_always_right_with_errors_but_not_with_divergences():
    """The trap of measuring before training; see the docstring."""
    assert measured(errors(0.2), loss="zero_one") == pytest.approx(measured(errors(0.8), loss="zero_one"))
    assert measured(errors(0.2)) < measured(errors(0.8))


def test_a_client_that_is_fitted_better_disagrees_less():
    logits, labels = generator(1, "test").normal(size=(50, 4)), np.arange(50) % 4
    right = np.eye(4)[labels]
    totals = [measured(outputs_of(logits + margin * right, labels)) for margin in (0, 2, 4, 8, 16)]
    assert totals == sorted(totals, reverse=True)
    least = sum(d**2 * (2 - d**2) for d in 0.02 * np.arange(1, 11))
    assert measured(outputs_of(1e4 * right, labels)) == pytest.approx(least)


def test_a_larger_radius_and_a_finer_step_sum_over_more_distances():
    outputs = errors(0.3)
    parts = [measured(outputs, radius=0.1 * i, step=0.1 * i) for i in (1, 2, 3)]
    assert measured(outputs, radius=0.3, step=0.1) == pytest.approx(sum(parts))


def test_allowing_for_few_examples_matters_less_with_many():
    def widened(m):
        return measured(errors(0.1, m), confidence=0.01) / measured(errors(0.1, m))

    assert 1 < widened(1_000_000) < 1.1 < widened(100) < widened(10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "jds"}, r"Disagreement\.loss must be 'jsd' or 'zero_one'; got 'jds'\. Did you mean 'jsd'\?"),
        ({"radius": 0.0}, r"Disagreement\.radius must be in \(0, 1\]; got 0\.0"),
        ({"radius": 1.5}, r"Disagreement\.radius must be in \(0, 1\]; got 1\.5"),
        ({"radius": np.nan}, r"Disagreement\.radius must be in \(0, 1\]"),
        ({"step": 0}, r"Disagreement\.step must be in \(0, 0\.2\]; got 0"),
        ({"step": 0.21}, r"Disagreement\.step must be in \(0, 0\.2\]; got 0\.21"),
        ({"confidence": 1.0}, r"Disagreement\.confidence must be in \(0, 1\)"),
    ],
)
def test_an_option_out_of_range_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Disagreement(**options)
