"""Adaptation rules under differential privacy: what a client changes, the noise, and the epsilon of both fits."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from fedreach._util.errors import ComponentError, ConfigError
from fedreach.federation.accounting import guarantee, private_state, spent, sum_noise
from fedreach.federation.adaptation.fitting import HeldOut, SumNoise, fit
from fedreach.federation.adaptation.label_shift import LabelShift
from fedreach.federation.adaptation.methods import BBSE, RLLS, OraclePrior
from fedreach.federation.differential_privacy import DPFTRL, DPFedAvg
from fedreach.federation.federation import Federation
from fedreach.federation.labels import SecureAggregation
from fedreach.federation.round import refers_to_length
from fedreach.federation.selection import Full, LeastOften, Poisson, Uniform
from fedreach.federation.types import NO_STATE, Outputs
from fedreach.federation.weighting import Equal
from fedreach.testing.problems import tiny_federation

DELTA = 1e-5
BOUNDED = LabelShift(calibration="none", strength=1.0, pseudo_counts=1.0, guard=False)
RULES = [BBSE(), BBSE(hard=True), RLLS(), BOUNDED, OraclePrior(calibration="none")]
NOISY = DPFedAvg(clip=0.5, delta=DELTA, noise_multiplier=1.5, adaptation_noise=3.0)
BUDGET = DPFedAvg(clip=0.5, delta=DELTA, epsilon=4.0)


def private(rule=NOISY, selection=None, adaptation=None, **changes) -> Federation:
    changes |= {"aggregation": rule, "selection": selection or Poisson(), "weighting": Equal()}
    return replace(tiny_federation(), adaptation=adaptation or BBSE(), **changes)


def participant(rng: np.random.Generator, classes: int = 3) -> HeldOut:
    """Return a participant with 1 to 40 examples and logits of any size, whose labels may be of one class."""
    m = int(rng.integers(1, 41))
    logits = rng.standard_normal((m, classes)) * 10 ** rng.uniform(-3, 6)
    labels = rng.integers(classes, size=m) if rng.random() < 0.5 else np.full(m, rng.integers(classes))
    return HeldOut(Outputs(logits.astype(np.float32)), labels, np.ones(classes))


def vector(sums) -> np.ndarray:
    return np.concatenate([values.ravel() for values in sums.values()])


# ---- What a client changes


def check_change(noise: SumNoise, answers, examples) -> float:
    """Assert that no participant changes the sums by more than the bound; return the largest change."""
    changes = []
    for i in range(len(answers)):
        others = [j for j in range(len(answers)) if j != i]
        without = noise.sums([answers[j] for j in others], [examples[j] for j in others])
        changes.append(float(np.linalg.norm(vector(noise.sums(answers, examples)) - vector(without))))
    assert max(changes) <= math.sqrt(len(answers[0])) * (1 + 1e-9)
    return max(changes)


def lies(rng: np.random.Generator):
    """Return contributions of any size, as a participant could send them, and numbers of examples."""
    sizes = 10 ** rng.uniform(-3, 300, size=6)
    answers = [{"confusion": size * rng.standard_normal((3, 3)), "held_out": np.full(3, size)} for size in sizes]
    return answers, rng.integers(1, 40, size=6).tolist()


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_no_participant_changes_the_sums_by_more_than_the_bound(rule):
    largest, noise = 0.0, SumNoise(0.5, seed=3)
    for seed in range(30):
        rng = np.random.default_rng(seed)
        people = [participant(rng) for _ in range(6)]
        answers = [rule.contribute(NO_STATE, *person) for person in people]
        largest = max(largest, check_change(noise, answers, [len(person.labels) for person in people]))
        check_change(noise, *lies(rng))
    arrays = len(rule.contribute(NO_STATE, *people[0]))
    assert largest == pytest.approx(math.sqrt(arrays), rel=1e-6)  # the bound is not too large


class WithoutClipping(SumNoise):
    def sums(self, answers, examples):
        noise = super().sums([{name: 0 * values for name, values in answers[0].items()}], [1])
        pairs = [*zip(answers, examples, strict=True)]
        return {name: noise[name] + sum(answer[name] / m for answer, m in pairs) for name in noise}


def test_sums_without_clipping_are_noticed():
    with pytest.raises(AssertionError):
        check_change(WithoutClipping(0.5, seed=3), [{"held_out": np.array([0.0, 1.1 * m])} for m in (5, 9)], [5, 9])


def test_honest_sums_are_means_over_examples_of_each_participant():
    rng = np.random.default_rng(0)
    people = [participant(rng) for _ in range(5)]
    state = fit(BBSE(), people, noise=SumNoise(1e-12, seed=0)).state
    means = [BBSE().contribute(NO_STATE, *person)["confusion"] / len(person.labels) for person in people]
    assert np.allclose(state["confusion"], sum(means) / 5)
    assert state["n"] == pytest.approx(5)


# ---- The noise


def check_noise(noise: SumNoise) -> None:
    """Assert that each sum has this noise, independently: 20,000 numbers each, five standard errors."""
    answers = [{"confusion": np.zeros((100, 200)), "held_out": np.zeros(20_000)}]
    confusion, held_out = noise.sums(answers, [5]).values()
    for values in (confusion, held_out):
        assert np.std(values) == pytest.approx(noise.multiplier * math.sqrt(2), rel=5 / math.sqrt(2 * 20_000))
        assert abs(values.mean()) < 5 * noise.multiplier * math.sqrt(2 / 20_000)
    assert abs(np.corrcoef(confusion.ravel(), held_out)[0, 1]) < 5 / math.sqrt(20_000)


def test_each_sum_has_the_noise_that_the_accounting_assumes():
    check_noise(SumNoise(3.0, seed=1))
    check_noise(SumNoise(0.7, seed=2))


class NoisyConfusion(SumNoise):
    def sums(self, answers, examples):
        exact = sum(answer["held_out"] for answer in answers)
        return {**super().sums(answers, examples), "held_out": exact}


def test_noise_on_one_of_two_sums_is_noticed():
    with pytest.raises(AssertionError):
        check_noise(NoisyConfusion(3.0, seed=1))


def test_the_noise_of_a_run_is_that_of_its_state_and_secret():
    federation = private(BUDGET)
    state = private_state(federation, 40, 10, secret=True)
    noise = sum_noise(federation, state)
    assert noise.multiplier == state["adaptation_noise"][0] == guarantee(federation, 40, 10).adaptation_noise
    assert noise.seed == int.from_bytes(state["secret"].tobytes())
    assert sum_noise(replace(federation, adaptation=tiny_federation().adaptation), state) is None


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_noise_far_above_the_sums_still_gives_a_class_prior(rule):
    people = [participant(np.random.default_rng(seed)) for seed in range(2)]
    for seed in range(40):
        state = fit(rule, people, noise=SumNoise(1e3, seed)).state
        assert (state["base"] > 0).all()
        assert state["base"].sum() == pytest.approx(1)
        client = rule.update(state, rule.start(state), people[0].outputs)
        assert np.isfinite(rule.predict(state, client, people[0].outputs)).all()


# ---- The epsilon of training and fit


def composed(accountant, training, fit_noise: float) -> float:
    return accountant.compose(training).compose(dp.GaussianDpEvent(fit_noise)).get_epsilon(DELTA)


def check_total(total: float) -> None:
    """Assert the epsilon of 40 rounds with 2 of 50 clients, and of the fit, as dp-accounting composes both."""
    poisson = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(2 / 50, dp.GaussianDpEvent(1.5)), 40)
    assert total == pytest.approx(composed(PLDAccountant(value_discretization_interval=1e-3), poisson, 3.0), rel=1e-3)


def test_epsilon_is_that_of_training_and_fit():
    stated = guarantee(private(), 50, 40)
    check_total(stated.epsilon)
    assert stated.statement.startswith("The models with the adaptation rule are (ε = ")
    assert "noise 1.5 x clip, for the rule 3 x bound; PLD)" in stated.statement
    plain = guarantee(replace(private(), adaptation=tiny_federation().adaptation), 50, 40)
    assert plain.epsilon < stated.epsilon
    assert (plain.adaptation_noise, stated.adaptation_noise) == (None, 3.0)
    assert plain.statement.startswith("The models are")


def test_an_epsilon_without_the_fit_is_noticed():
    with pytest.raises(AssertionError):
        check_total(guarantee(replace(private(), adaptation=tiny_federation().adaptation), 50, 40).epsilon)


def test_a_replaced_client_changes_the_fit_by_twice_the_bound():
    orders = [*range(2, 33), 40, 48, 64, 96, 128]
    training = dp.SampledWithoutReplacementDpEvent(50, 2, dp.GaussianDpEvent(0.75))
    accountant = RdpAccountant(orders, dp.NeighboringRelation.REPLACE_ONE)
    stated = guarantee(private(selection=Uniform()), 50, 40).epsilon
    assert stated == pytest.approx(composed(accountant, dp.SelfComposedDpEvent(training, 40), 3.0 / 2))


def test_a_tree_and_the_fit_are_two_gaussian_mechanisms():
    rule = DPFTRL(clip=1.0, delta=DELTA, noise_multiplier=5.0, adaptation_noise=3.0, accountant="rdp")
    # 3 levels for 4 rounds and one participation: the sensitivity is sqrt(3)
    both = dp.GaussianDpEvent(1 / math.sqrt(3 / 5.0**2 + 1 / 3.0**2))
    stated = guarantee(private(rule, LeastOften(1)), 50, 4)
    assert stated.epsilon == pytest.approx(
        RdpAccountant([*range(2, 33), 40, 48, 64, 96, 128]).compose(both).get_epsilon(DELTA)
    )
    assert "if what one client sends is replaced by zeros" in stated.statement


@pytest.mark.parametrize("selection", [Poisson(), Uniform(), Full(), LeastOften(10)], ids=repr)
def test_a_budget_covers_training_and_a_fit_that_alone_spends_a_quarter(selection):
    stated = guarantee(private(BUDGET, selection), 50, 40)
    assert 0.99 * 4 < stated.epsilon <= 4
    change = 2 if isinstance(selection, Uniform) else 1
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    alone = accountant.compose(dp.GaussianDpEvent(stated.adaptation_noise / change)).get_epsilon(DELTA)
    assert 0.99 < alone <= 1 + 1e-6
    plain = replace(private(BUDGET, selection), adaptation=tiny_federation().adaptation)
    ratio = stated.noise_multiplier / guarantee(plain, 50, 40).noise_multiplier
    assert 1.01 < ratio < 1.08  # what the fit costs in training


def test_the_result_has_the_noise_of_the_run_and_not_of_a_new_plan():
    state = {"noise_multiplier": np.array([1.5]), "cohort_size": np.array([2]), "adaptation_noise": np.array([3.0])}
    record = spent(private(BUDGET), state, 50, 40)
    assert (record["noise_multiplier"], record["adaptation_noise"]) == (1.5, 3.0)
    check_total(record["epsilon"])


# ---- What is rejected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adaptation": LabelShift()}, "LabelShift is fitted to sums over participants that have no bound"),
        *(
            ({"adaptation": replace(BOUNDED, **option)}, "that have no bound")
            for option in (
                {"guard": True},
                {"strength": "fitted"},
                {"calibration": "bias"},
                {"pseudo_counts": "fitted"},
            )
        ),
        ({"rule": replace(NOISY, adaptation_noise=None)}, "Set aggregation.adaptation_noise"),
        ({"label_statistics": SecureAggregation()}, "the server cannot clip the"),
    ],
    ids=repr,
)
def test_fits_outside_the_accounting_are_rejected(changes, message):
    with pytest.raises(ConfigError, match=message):
        private(**changes)


def test_the_noise_of_the_fit_follows_from_a_budget():
    with pytest.raises(ConfigError, match="adaptation_noise is computed from `epsilon`"):
        replace(BUDGET, adaptation_noise=3.0)


def test_a_run_is_not_extended_because_its_rule_would_be_fitted_twice():
    assert "accounts for one fit" in refers_to_length(private(), 10)


@dataclass(frozen=True)
class Twice(BBSE):
    def query(self, state):
        return None if "twice" in state else NO_STATE

    def fold(self, state, sums):
        return {**super().fold(state, sums), **({"twice": np.ones(1)} if state else {})}


def test_a_rule_with_a_second_exchange_is_rejected_before_a_second_sum():
    people = [participant(np.random.default_rng(seed)) for seed in range(3)]
    assert fit(Twice(), people).exchanges == 2
    with pytest.raises(ComponentError, match="Twice needs more than 1 exchange"):
        fit(Twice(), people, noise=SumNoise(1.0, seed=0))
