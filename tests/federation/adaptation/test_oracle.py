"""The library's `label_shift` against the same rule written a second time, on a model that was really trained."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from fedreach._util.streams import generator
from fedreach.data.federated import federate
from fedreach.data.partition import PARTITIONS
from fedreach.data.sets import load
from fedreach.federation.adaptation import base as priors
from fedreach.federation.adaptation import inference as evidence
from fedreach.federation.adaptation.base import weights
from fedreach.federation.adaptation.fitting import HeldOut, fit
from fedreach.federation.adaptation.inference import infer_priors
from fedreach.federation.adaptation.label_shift import LabelShift
from fedreach.federation.federation import Federation
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.selection.random import Uniform
from fedreach.federation.server import Average
from fedreach.federation.solvers import FedAvg
from fedreach.federation.types import Outputs
from fedreach.federation.weighting import ByExamples
from fedreach.runs.simulation import simulate

from . import oracle

ROUNDS = 20


@cache
def digits():
    """Return participants' (logits, labels, training counts) and the logits of some unseen clients.

    50 clients between whom each class is divided by Dirichlet(.1), of whom 20 take part; FedAvg with an MLP.
    """
    dataset = load("digits")
    partition = PARTITIONS["dirichlet_by_class"](dataset.train_y, 50, generator(0, "partition"), alpha=0.1)
    data = federate(dataset, partition, participants=20)
    parts = Uniform(), ByExamples(), FedAvg(), LocalSGD(lr=0.1, batch_size=16), Average()
    federation = Federation(*parts, cohort_size=10, seed=0)
    options = {"hidden": [32]}
    simulation = simulate(data, "mlp", federation, rounds=ROUNDS, model_options=options, engine="sequential")
    state = simulation.start()
    for _ in range(ROUNDS):
        state = simulation.step(state).state
    counts = data.label_counts().astype(np.float64)

    def logits(*ranges):
        return simulation.engine.logits(state.params, "true", np.concatenate(ranges)).astype(np.float64)

    participants = [
        (logits(data.held_out[i]), dataset.train_y[data.held_out[i]], counts[i])
        for i in data.population.participants
        if len(data.held_out[i])
    ]
    unseen = [logits(data.train[i], data.held_out[i]) for i in data.population.unseen]
    return participants, sorted(unseen, key=len)[2::6]


@cache
def expected():
    """Return (a, b, base, A) as the oracle fits them."""
    return oracle.fitted(digits()[0])


@cache
def state():
    """Return what the library fits."""
    return fit(LabelShift(), [HeldOut(Outputs(z), y, counts) for z, y, counts in digits()[0]]).state


def known():
    """Return the library's a, b, base and A, so that what follows from them is compared without how they were found."""
    return float(state()["a"][0]), state()["b"], state()["base"], float(state()["pseudo_counts"][0])


CLIENTS = range(5)

# ------------------------------------------------------------------------------------------------- the oracle itself


def test_its_gradient_is_that_of_its_objective():
    rng = generator(0, "gradient")
    z, y = rng.standard_normal((6, 3)), rng.integers(0, 3, 6)
    x = np.array([1.7, 0.3, -0.2, 0.5])
    numerical = approx_fprime(x, lambda x: oracle.objective(x[0], x[1:], z, y), 1e-7)
    np.testing.assert_allclose(oracle.gradient(x[0], x[1:], z, y), numerical, atol=1e-5)


def test_two_inputs_by_hand():
    """u = log (3, 1) twice, base even, A = 2. Input 1 is judged by base: W_1 = 1, r_1 = (3/4, 1/4).

    pi^(1) = (1 + 3/4, 1 + 1/4)/3 = (7/12, 5/12). W_2 = (7/12 * 3 + 5/12)/(1/2 * 3 + 1/2) = 13/12.
    """
    even = np.full(2, 0.5)
    logits = np.log([[3.0, 1.0], [3.0, 1.0]]) + np.log(even)
    log_w, pi = oracle.evidence(logits, 1.0, np.zeros(2), even, 2.0)
    np.testing.assert_allclose(np.exp(log_w), [1, 1, 13 / 12])
    np.testing.assert_allclose(pi[:2], [[1 / 2, 1 / 2], [7 / 12, 5 / 12]])


@pytest.mark.slow
def test_without_shift_the_evidence_seldom_gets_far():
    """Ville: with exact likelihoods, P(sup W >= 20) <= .05. 200 clients drawn from base: 2 standard errors are .031."""
    rng = generator(0, "Ville")
    base, likelihood = np.array([0.5, 0.3, 0.2]), rng.dirichlet(np.ones(6), size=3)  # p(x|y) of six possible inputs
    far = 0
    for _ in range(200):
        x = rng.choice(6, 30, p=base @ likelihood)
        logits = np.log(likelihood[:, x].T * base)
        far += oracle.evidence(logits, 1.0, np.zeros(3), base, 2.0)[0].max() >= np.log(20)
    assert far / 200 <= 0.05 + 0.031


# ------------------------------------------------------------------------------------------------------ what is fitted


def test_the_model_is_trained_and_not_calibrated():
    """Otherwise the comparison would say little."""
    participants, _ = digits()
    right = np.concatenate([z.argmax(axis=1) == y for z, y, _ in participants])
    a, b, _, A = expected()
    assert len(participants) > 10
    assert 0.5 < right.mean() < 1
    assert abs(np.log(a)) > 0.02
    assert np.abs(b).max() > 0.1
    assert 0.1 < A < 1000


def test_calibration_finds_the_optimum():
    a, b, _, _ = expected()
    np.testing.assert_allclose(state()["a"], [a], rtol=1e-5)
    np.testing.assert_allclose(state()["b"], b, rtol=1e-5, atol=1e-5 * np.abs(b).max())


def test_source_prior_and_spread_are_those_of_the_oracle():
    _, _, base, A = expected()
    np.testing.assert_allclose(state()["base"], base, rtol=1e-12)
    np.testing.assert_allclose(state()["pseudo_counts"], [A], rtol=1e-9)
    shares = priors.training_shares(sum(counts for _, _, counts in digits()[0]))
    found = sum(priors.spread_likelihoods(counts, shares) for _, _, counts in digits()[0])
    other = oracle.spread_likelihoods([counts for _, _, counts in digits()[0]])
    np.testing.assert_allclose(found - found[0], np.array(other) - other[0], atol=1e-7)


def both_fits(m, c, scale):
    """Return (a, b) of the oracle and of the library, for one participant with made-up logits."""
    rng = generator(m, "odd logits")
    labels = rng.integers(0, c, m)
    z = scale * (rng.standard_normal((m, c)) + 1.5 * np.eye(c)[labels] + rng.standard_normal(c))
    found = fit(LabelShift(), [HeldOut(Outputs(z), labels, np.bincount(labels, minlength=c) * 1.0)]).state
    return oracle.calibrate(z, labels), (found["a"][0], found["b"])


@pytest.mark.parametrize(("m", "c", "scale"), [(1, 3, 1.0), (5, 2, 1.0), (60, 3, 60.0), (40, 5, 0.02), (40, 4, 100.0)])
def test_calibration_of_few_and_of_odd_logits(m, c, scale):
    """One example, five, temperatures of 1/60, 50 and 1/100.

    For a > 1 the library replaces the curvature of (log a)^2 by a larger one, so that its last steps are shorter than
    Newton's and the loss falls by less than 1e-8 a little before the optimum: to within 3e-5 with five examples.
    """
    (a, b), (found_a, found_b) = both_fits(m, c, scale)
    np.testing.assert_allclose(found_a, a, rtol=1e-4)
    np.testing.assert_allclose(found_b, b, rtol=1e-4, atol=1e-4 * np.abs(b).max())


@pytest.mark.parametrize("scale", [300.0, 3000.0])
def test_calibration_of_logits_far_beyond_a_thousand(scale):
    """A model with a temperature of 200 has such logits; clipped at 1000, a were 2 % and 250 % too large."""
    (a, _), (found_a, _) = both_fits(400, 10, scale)
    np.testing.assert_allclose(found_a, a, rtol=1e-5)


# ----------------------------------------------------------------------------------------------------- who is adapted


@pytest.mark.parametrize("i", CLIENTS)
def test_priors_of_the_same_fit_are_the_same(i):
    z = digits()[1][i]
    a, b, base, A = known()
    u = oracle.log_ratios(z, a, b, base)
    np.testing.assert_allclose(priors.map_em(u, base, A), oracle.map_em(z, a, b, base, A), rtol=0, atol=1e-9)


@pytest.mark.parametrize("i", CLIENTS)
def test_evidence_is_the_same_input_by_input(i):
    z = digits()[1][i]
    a, b, base, A = known()
    u = oracle.log_ratios(z, a, b, base)
    log_w, pi = oracle.evidence(z, a, b, base, A)
    found = evidence.evidence_path(u, base, A)
    np.testing.assert_allclose(found.log_w[:, 0], log_w, rtol=0, atol=1e-9)
    np.testing.assert_allclose((A * base + found.counts[-1, 0]) / (A + len(z)), pi[-1], rtol=0, atol=1e-12)
    np.testing.assert_allclose(weights(log_w, 9.0), [oracle.weight(one) for one in log_w], rtol=1e-12)


@pytest.mark.parametrize("i", CLIENTS)
@pytest.mark.parametrize(("correlation", "amplification"), [(0.0, math.inf), (0.1, math.inf), (0.0, 1.1), (1.0, 3.0)])
@pytest.mark.sampled(4)
def test_what_a_client_learns_from_a_batch_is_the_same(i, correlation, amplification):
    z = digits()[1][i]
    a, b, base, A = known()
    u = oracle.log_ratios(z - z.mean(axis=1, keepdims=True), a, b, base)
    (found,) = infer_priors([u], base, A, correlation, amplification)
    prior, log_w = oracle.learned(u, base, A, correlation, amplification)
    np.testing.assert_allclose(found.prior, prior, rtol=0, atol=1e-8)
    np.testing.assert_allclose(found.log_evidence, log_w, rtol=0, atol=1e-8)


@pytest.mark.parametrize("i", CLIENTS)
def test_predictions_of_the_same_fit_are_the_same(i):
    z = digits()[1][i]
    rule, fitted = LabelShift(strength=1.0, amplification=math.inf), known()
    client = rule.update(state(), rule.start(state()), Outputs(z))
    np.testing.assert_allclose(rule.predict(state(), client, Outputs(z)), oracle.adapted(z, *fitted), rtol=0, atol=1e-8)
    online, _ = rule.predict_online(state(), rule.start(state()), Outputs(z))
    np.testing.assert_allclose(online, oracle.adapted_online(z, *fitted), rtol=0, atol=1e-8)
    start = rule.predict(state(), rule.start(state()), Outputs(z))
    np.testing.assert_allclose(start, oracle.calibrated(z, *fitted[:2]), rtol=0, atol=1e-9)


def test_predictions_from_the_logits_on_are_the_same():
    """Each fits by itself; what they tell a client's classes by differs by no more than the fits do."""
    rule = LabelShift(strength=1.0, amplification=math.inf)
    for z in digits()[1]:
        client = rule.update(state(), rule.start(state()), Outputs(z))
        found = np.exp(rule.predict(state(), client, Outputs(z)))
        np.testing.assert_allclose(found, np.exp(oracle.adapted(z, *expected())), rtol=0, atol=1e-4)
