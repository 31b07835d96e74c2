"""The privacy of clients: published epsilons, what a client changes, the noise, and what is rejected."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from torch import nn

from fedreach._util.errors import ConfigError
from fedreach.engines.engine import TorchEngine
from fedreach.engines.models.networks import build
from fedreach.engines.protocols import Task
from fedreach.engines.sequential import Sequential
from fedreach.federation.accounting import Setting, epsilon_of, guarantee, noise_for, seed_of
from fedreach.federation.adaptation.label_shift import LabelShift
from fedreach.federation.aggregation import Mean
from fedreach.federation.differential_privacy import DPFTRL, DPFedAvg, tree_noise, tree_sensitivity
from fedreach.federation.federation import Federation
from fedreach.federation.labels import SecureAggregation
from fedreach.federation.participation import Bernoulli
from fedreach.federation.round import plan_round, refers_to_length
from fedreach.federation.selection import Full, LeastOften, Oort, Poisson, PowerOfChoice, Uniform
from fedreach.federation.server import FedDF, Safari
from fedreach.federation.solvers import Scaffold
from fedreach.federation.state import initial_state
from fedreach.federation.types import ClientResults, ServerView
from fedreach.federation.weighting import ByExamples, Equal
from fedreach.runs.simulation import Simulation
from fedreach.testing.problems import tiny_data, tiny_federation

DELTA = 1e-5
RULE = DPFedAvg(clip=0.5, delta=DELTA, noise_multiplier=1.0)


def poisson(n: int, cohort_size: int, rounds: int, accountant: str = "rdp") -> Setting:
    return Setting("poisson", n, cohort_size, rounds, rounds, tree=False, accountant=accountant)


def tree(rounds: int, participations: int) -> Setting:
    return Setting("least_often", 10_000, 10, rounds, participations, tree=True, accountant="rdp")


def private(rule=RULE, selection=None, **changes) -> Federation:
    selection = selection or (LeastOften(5) if isinstance(rule, DPFTRL) else Poisson())
    return replace(tiny_federation(), aggregation=rule, selection=selection, weighting=Equal(), **changes)


def normalized(sample_shape, num_classes):
    return nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))


def simulation(federation: Federation, rounds: int = 10, model="linear", **options) -> Simulation:
    data = tiny_data()
    task = Task.of(build(model, (2,), 2, seed=0), data, federation)
    return Simulation(federation, data, TorchEngine(Sequential, task), rounds=rounds, **options)


# ---- Published numbers


@pytest.mark.parametrize(
    ("setting", "noise", "delta", "published"),
    [
        # TensorFlow Privacy, privacy/analysis/compute_dp_sgd_privacy_test.py, Test0 and Test1
        (poisson(60_000, 150, 6_000), 1.3, 1e-5, 0.7242234026109595),
        (poisson(100_000, 100, 30_000), 1.0, 1e-7, 1.4154988495444842),
        # The same file, "statement ... with_pld": its noise multiplier of 2 is divided by 2 for microbatches
        (poisson(10_000, 64, 782, "pld"), 1.0, 1e-6, 1.199),
    ],
)
def test_published_epsilons_of_poisson_sampling_are_reproduced(setting, noise, delta, published):
    assert epsilon_of(setting, noise, delta) == pytest.approx(published, rel=5e-4)


def test_the_epsilon_of_the_moments_accountant_is_reproduced():
    # Abadi et al., CCS 2016, section 3.2: q = 0.01, sigma = 4, 10,000 steps and delta = 1e-5 give epsilon 1.26
    setting = poisson(100, 1, 10_000)
    accountant = setting.new_accountant("rdp").compose(setting.event(4.0))
    by_tail_bound = accountant.rdp + math.log(1e5) / (np.array(accountant.orders) - 1)
    assert by_tail_bound.min() == pytest.approx(1.26, abs=0.005)
    assert epsilon_of(setting, 4.0, 1e-5) < 1.26  # by a newer conversion


@pytest.mark.parametrize(("noise", "published"), [(1.13, 19.74), (8.83, 2.04)])
def test_published_epsilons_of_dp_ftrl_are_reproduced(noise, published):
    # Kairouz et al., ICML 2021, StackOverflow: 1,600 rounds, one participation, delta = 1e-6; the conversion is
    # epsilon = rho + 2 sqrt(rho ln(1/delta))
    rho = (tree_sensitivity(1600, 1) / noise) ** 2 / 2
    assert rho + 2 * math.sqrt(rho * math.log(1e6)) == pytest.approx(published, abs=0.006)
    assert epsilon_of(tree(1600, 1), noise, 1e-6) < published  # by a newer conversion


# The central-DP settings of pfl-research (github.com/apple/pfl-research, folder benchmarks), all with epsilon 2:
# participants, cohort size of the noise, rounds, delta, and the noise multiplier of pfl 0.6.0's PLDPrivacyAccountant.
PFL_SETTINGS = {
    # image_classification: README.md ("CIFAR10 IID central DP"), configs/baseline.yaml, pytorch/train.py (population)
    "cifar10": (1_000_000, 1000, 3000, 1e-6, 0.6327629089355469),
    "stackoverflow": (1_000_000, 5000, 2000, 1e-6, 0.8638858795166016),  # lm/configs/baseline.yaml
    # flair/configs/baseline.yaml; delta and population are the defaults of utils/argument_parsing.py
    "flair": (10_000_000, 5000, 5000, 1e-5, 0.5454540252685547),
}


@pytest.mark.parametrize("name", PFL_SETTINGS)
def test_the_published_epsilon_of_the_settings_of_pfl_is_reproduced(name):
    n, cohort_size, rounds, delta, noise = PFL_SETTINGS[name]
    assert epsilon_of(poisson(n, cohort_size, rounds, "pld"), noise, delta) == pytest.approx(2, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("name", PFL_SETTINGS)
def test_the_noise_for_the_settings_of_pfl_is_that_of_its_accountant(name):
    n, cohort_size, rounds, delta, noise = PFL_SETTINGS[name]
    assert noise_for(poisson(n, cohort_size, rounds, "pld"), 2.0, delta) == pytest.approx(noise, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("name", PFL_SETTINGS)
def test_the_stored_noise_of_the_settings_of_pfl_is_what_pfl_computes(name):
    privacy = pytest.importorskip("pfl.privacy")
    n, cohort_size, rounds, delta, noise = PFL_SETTINGS[name]
    accountant = privacy.PLDPrivacyAccountant(rounds, cohort_size / n, "gaussian", epsilon=2.0, delta=delta)
    assert accountant.noise_parameter == pytest.approx(noise, rel=0.002)  # pfl's tolerance is 0.001


def delta_between(p, q, epsilon: float) -> float:
    """Return the smallest delta of two densities on the line."""
    x = np.linspace(-60, 60, 600_001)
    return float(np.trapezoid(np.maximum(p(x) - np.exp(epsilon) * q(x), 0), x))


def normal(sigma: float, *parts: tuple[float, float]):
    return lambda x: sum(share * stats.norm.pdf(x, mean, sigma) for share, mean in parts)


def test_one_round_of_poisson_sampling_agrees_with_an_integral():
    epsilon, with_client = epsilon_of(poisson(10, 3, 1, "pld"), 1.5, DELTA), normal(1.5, (0.7, 0), (0.3, 1))
    deltas = (
        delta_between(with_client, normal(1.5, (1, 0)), epsilon),
        delta_between(normal(1.5, (1, 0)), with_client, epsilon),
    )
    assert max(deltas) == pytest.approx(DELTA, rel=0.01)


@pytest.mark.parametrize("cohort_size", [3, 10])
def test_a_replaced_client_changes_the_sum_by_twice_the_clipping_norm(cohort_size):
    setting = Setting("uniform", 10, cohort_size, 1, 1, tree=False, accountant="rdp")
    q = cohort_size / 10
    before, after = normal(1.5, (1 - q, 0), (q, 1)), normal(1.5, (1 - q, 0), (q, -1))
    assert delta_between(before, after, epsilon_of(setting, 1.5, DELTA)) <= DELTA
    without_factor = epsilon_of(setting, 3.0, DELTA)  # what dp-accounting gives if the norm is taken for the change
    assert q < 1 or delta_between(before, after, without_factor) > 100 * DELTA


@pytest.mark.parametrize(
    "setting",
    [
        poisson(1000, 50, 100, "pld"),
        tree(100, 3),
        Setting("full", 10, 10, 50, 50, tree=False, accountant="pld"),
        Setting("least_often", 100, 10, 50, 5, tree=False, accountant="pld"),
    ],
    ids=lambda setting: f"{setting.sampling} {setting.tree}",
)
def test_the_noise_for_a_budget_spends_it_and_no_more(setting):
    assert 0.99 * 2 < epsilon_of(setting, noise_for(setting, 2.0, DELTA), DELTA) <= 2


def test_the_sensitivity_of_the_tree_is_that_of_the_worst_rounds():
    for rounds, participations, gap in ((4, 2, 1), (7, 3, 1), (8, 8, 1), (6, 1, 1), (8, 3, 2), (9, 3, 4)):
        levels = [
            [range(begin, begin + 2**level) for begin in range(0, rounds - 2**level + 1, 2**level)]
            for level in range(rounds.bit_length())
        ]
        worst = 0
        for chosen in range(2**rounds):
            rounds_of = {t for t in range(rounds) if chosen >> t & 1}
            apart = np.diff(sorted(rounds_of)).min(initial=rounds)
            if len(rounds_of) <= participations and apart >= gap:
                squares = sum(len(rounds_of.intersection(node)) ** 2 for level in levels for node in level)
                worst = max(worst, squares)
        bound = tree_sensitivity(rounds, participations, gap) ** 2
        assert 0.75 * bound <= worst <= bound + 1e-9


# ---- What a client changes


def sum_of(rule, update, seed=0):
    """Return the sum behind a rule's mean, with the same noise for the same seed."""
    state = {"cohort_size": np.array([1]), "noise_multiplier": np.array([1.0])}
    result, after = rule.combine(state, np.full(len(update), 0.1), update, np.random.default_rng(seed))
    return result, after


@pytest.mark.parametrize("rule", [RULE, DPFTRL(clip=0.5, delta=DELTA, noise_multiplier=1.0)])
@pytest.mark.parametrize("length", [1e-3, 0.5, 30.0, 1e30])
def test_a_client_changes_the_sum_by_at_most_the_clipping_norm(rule, length):
    rng = np.random.default_rng(1)
    update = rng.standard_normal((9, 40)).astype(np.float32)
    update[4] *= length / np.linalg.norm(update[4])
    with_client, without = sum_of(rule, update)[0], sum_of(rule, np.delete(update, 4, axis=0))[0]
    change = float(np.linalg.norm(with_client - without))
    assert change == pytest.approx(min(length, 0.5), rel=1e-6)
    assert sum_of(rule, update[:0])[0].shape == (40,)  # also without any client


def test_a_client_changes_the_count_of_adaptive_clipping_by_a_half():
    rule = replace(RULE, quantile=0.5, clip_rate=1.0, count_noise=5.0)
    update = np.ones((3, 4), np.float32)
    for other in (update, 0 * update):
        clips = [sum_of(rule, rows)[1]["clip"][0] for rows in (np.concatenate([update, other[:1]]), update)]
        assert abs(math.log(clips[0] / clips[1])) == pytest.approx(0.5)


def test_the_aggregator_uses_the_length_of_the_complete_update():
    update = np.full((1, 100_000), 1.0, np.float32)  # more numbers than a block
    quiet = replace(RULE, noise_multiplier=1e-9)
    assert np.linalg.norm(quiet.combine({}, np.ones(1), update, np.random.default_rng(0))[0]) == pytest.approx(0.5)


# ---- The noise


def check_noise(rule, noise: float, cohort_size: int) -> None:
    """Assert that the mean without updates has this noise: 20,000 numbers, five standard errors."""
    state = {"noise_multiplier": np.array([1.0]), "cohort_size": np.array([cohort_size])}
    result, _ = rule.combine(state, np.empty(0), np.empty((0, 20_000), np.float32), np.random.default_rng(0))
    assert np.std(result) == pytest.approx(noise * rule.clip / cohort_size, rel=5 / math.sqrt(2 * 20_000))
    assert abs(result.mean()) < 5 * noise * rule.clip / cohort_size / math.sqrt(20_000)


def test_the_mean_has_the_noise_that_the_accounting_assumes():
    check_noise(RULE, 1.0, 10)
    check_noise(replace(RULE, quantile=0.5, count_noise=0.6), (1 - 1.2**-2) ** -0.5, 10)


class HalfNoise(DPFedAvg):
    def _noise_multiplier(self, state):
        return super()._noise_multiplier(state) / 2


def test_half_of_the_noise_is_noticed():
    with pytest.raises(AssertionError):
        check_noise(HalfNoise(clip=0.5, delta=DELTA, noise_multiplier=1.0), 1.0, 10)


def audited_epsilon(rule, delta: float, trials: int = 3000) -> float:
    """Return a lower bound, with 99.8% confidence, of the epsilon of one round, by an attack with a planted update."""
    scores = {}
    for name, update in (("without", np.empty((0, 1), np.float32)), ("with", np.full((1, 1), 9.0, np.float32))):
        state = {"cohort_size": np.array([1]), "noise_multiplier": np.array([1.0])}
        rng = np.random.default_rng(len(name))
        scores[name] = np.sort([rule.combine(state, np.ones(len(update)), update, rng)[0][0] for _ in range(trials)])
    threshold = np.quantile(scores["without"], 0.99)
    false, true = (int((scores[name] > threshold).sum()) for name in ("without", "with"))
    most_false = stats.beta.ppf(0.999, false + 1, trials - false)
    least_true = stats.beta.ppf(0.001, true, trials - true + 1)
    return math.log(max((least_true - delta) / most_false, 1e-9))


def test_an_attack_on_one_round_stays_below_epsilon_and_finds_half_of_the_noise():
    rule = DPFedAvg(clip=1.0, delta=0.05, noise_multiplier=1.0)
    claimed = epsilon_of(Setting("full", 1, 1, 1, 1, tree=False, accountant="pld"), 1.0, 0.05)
    assert audited_epsilon(rule, 0.05) < claimed
    assert audited_epsilon(HalfNoise(clip=1.0, delta=0.05, noise_multiplier=1.0), 0.05) > 1.5 * claimed


def test_the_noise_of_a_sum_of_rounds_is_that_of_the_nodes_of_the_tree():
    total = np.zeros(20_000)
    for t in range(1, 14):
        total += tree_noise(5, t, len(total))
        nodes = t.bit_count()
        assert np.var(total) == pytest.approx(nodes, rel=5 * math.sqrt(2 / len(total)))
    state, results = {"cohort_size": np.array([2]), "noise_multiplier": np.array([3.0])}, []
    for number in range(3):  # state and key are kept from round to round
        answer = DPFTRL(clip=2.0, delta=DELTA, epsilon=1.0).combine(
            state, np.empty(0), np.empty((0, 20_000), np.float32), np.random.default_rng(number)
        )
        results.append(answer[0])
        state = answer[1]
    assert np.std(sum(results)) == pytest.approx(math.sqrt(2) * 3 * 2 / 2, rel=0.05)
    assert np.std(sum(results[:2])) == pytest.approx(3 * 2 / 2, rel=0.05)


def test_the_clipping_norm_reaches_the_quantile_from_below_and_above():
    for start in (1e-3, 1e3):
        rule, rng = DPFedAvg(clip=start, delta=DELTA, noise_multiplier=1.0, quantile=0.8), np.random.default_rng(0)
        state = {"cohort_size": np.array([100]), "noise_multiplier": np.array([1.0])}
        for _ in range(300):
            lengths = rng.lognormal(1.0, 0.5, size=(rng.binomial(1000, 0.1), 1)).astype(np.float32)
            state = rule.combine(state, np.ones(len(lengths)), lengths, rng)[1]
        assert stats.lognorm.cdf(state["clip"][0], 0.5, scale=math.e) == pytest.approx(0.8, abs=0.07)


# ---- A round and a run


def test_a_round_without_clients_has_noise_but_no_loss():
    run = simulation(private(), participation=Bernoulli(act_prob=1e-9))
    state, result, _ = run.step(run.start())
    assert (result.cohort, result.weights, result.train_loss) == ((), (), None)
    assert np.std(state.models) > 0.1
    assert not np.array_equal(state.models, run.start().models)
    plain = simulation(tiny_federation(), participation=Bernoulli(act_prob=1e-9))
    assert np.array_equal(plain.step(plain.start())[0].models, plain.start().models)


def test_the_mean_is_divided_by_the_cohort_size_and_not_by_the_replies():
    quiet = replace(RULE, noise_multiplier=1e-9, clip=1e-3)
    run = simulation(private(quiet, Full()), participation=Bernoulli(1.0, reply_prob=0.5))
    state, result, update = run.step(run.start())
    assert 0 < len(result.cohort) < 4
    wanted = sum(u / np.linalg.norm(u) for u in update.astype(np.float64)) * 1e-3 / 4  # of four participants
    assert state.models[0] - run.start().models[0] == pytest.approx(wanted, abs=1e-7)


@pytest.mark.parametrize("rule", [RULE, DPFTRL(clip=0.5, delta=DELTA, noise_multiplier=1.0)])
def test_a_private_run_repeats_and_its_secret_runs_do_not(rule):
    run = simulation(private(rule))

    def models(state):
        for _ in range(4):
            state = run.step(state)[0]
        return state.models

    assert np.array_equal(models(run.start()), models(run.start()))
    secret = [initial_state(run.federation, run.engine.initial, run.first_view, secret=True) for _ in range(2)]
    assert not np.array_equal(models(secret[0]), models(secret[1]))
    assert not np.array_equal(models(secret[0]), models(run.start()))


def test_cohorts_on_real_clients_do_not_follow_from_the_seed():
    federation, view = private(cohort_size=50), ServerView.of(np.arange(100), np.full(100, 5))
    states = [
        initial_state(federation, np.zeros(3, np.float32), replace(view, rounds=9), secret=secret)
        for secret in (False, False, True, True)
    ]
    cohorts = [tuple(plan_round(federation, state, view).ids) for state in states]
    assert cohorts[0] == cohorts[1]
    assert len(set(cohorts)) == 3
    assert seed_of(federation, states[2].aggregation[0]) > 2**64


def test_poisson_cohorts_are_independent_draws_also_if_clients_are_offline():
    view = ServerView.of(np.arange(40), np.full(40, 5), available=np.arange(40) % 4 > 0)
    draws = [Poisson().select({}, view, 8, np.random.default_rng(seed)).ids for seed in range(2000)]
    counts = np.bincount(np.concatenate(draws), minlength=40)
    assert (counts[::4] == 0).all()
    assert np.abs(counts[view.available] / 2000 - 8 / 40).max() < 5 * math.sqrt(0.2 * 0.8 / 2000)
    sizes = np.array([len(ids) for ids in draws])
    assert sizes.var() == pytest.approx(30 * 0.2 * 0.8, rel=0.2)


def test_no_client_participates_more_often_than_the_limit():
    policy, view = LeastOften(2, min_gap=2), ServerView.of(np.arange(7), np.full(7, 5))
    state, counts = policy.init(view), np.zeros(7, int)
    before: set[int] = set()
    for number in range(1, 7):
        cohort = policy.select(state, replace(view, round=number), 3, np.random.default_rng(number))
        replies = ClientResults(cohort.ids, np.empty((len(cohort.ids), 0), np.float32), {}, round=number)
        state = policy.observe(state, replies)
        counts[cohort.ids] += 1
        assert not before & {*cohort.ids.tolist()}  # two rounds apart
        before = {*cohort.ids.tolist()}
        assert counts.tolist() == state["participations"].tolist()
    assert counts.max() == 2
    assert "within the limits" in cohort.remark


def test_a_lost_reply_counts_as_a_participation() -> None:
    run = simulation(private(selection=LeastOften(5)), participation=Bernoulli(1.0, reply_prob=0.5))
    state, lost = run.start(), 0
    for number in range(1, 5):
        state, result, _ = run.step(state)
        lost += len(result.lost)
        assert state.selection["participations"].sum() == 2 * number
    assert lost > 0


def test_the_guarantee_names_its_assumptions():
    run = simulation(private(replace(RULE, epsilon=3.0, noise_multiplier=None)))
    stated = guarantee(run.federation, 4, 10)
    assert (stated.participants, stated.cohort_size, stated.rounds, stated.sampling) == (4, 2, 10, "poisson")
    assert 2.97 < stated.epsilon <= 3
    assert "one client is added or removed (10 rounds, each of 4 clients with probability 2/4;" in stated.statement
    assert "Losses, scores and the choice of the best round are not covered." in stated.statement
    assert run.start().aggregation[0]["noise_multiplier"] == stated.noise_multiplier
    assert "replaced by zeros" in guarantee(private(selection=LeastOften(2)), 4, 4).statement
    assert "one client is replaced" in guarantee(private(selection=Uniform()), 4, 2).statement


def test_a_run_with_a_budget_is_not_extended():
    assert "spreads its epsilon" in refers_to_length(private(replace(RULE, epsilon=3.0, noise_multiplier=None)), 10)
    assert refers_to_length(private(), 10) == ""  # more rounds spend more, which the result states


# ---- What the accounting does not cover


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weighting": ByExamples()}, "ByExamples weighs clients. Use weighting = 'equal'"),
        ({"selection": PowerOfChoice()}, "PowerOfChoice may select clients by their data"),
        ({"selection": Oort()}, "Oort may select clients by their data"),
        ({"selection": LeastOften()}, "Set selection.max_participations"),
        ({"solver": Scaffold()}, "Scaffold keeps sums of unclipped updates"),
        ({"server": FedDF()}, "FedDF reads labels, updates or measurements of single clients"),
        ({"adaptation": LabelShift()}, "LabelShift is fitted to sums over participants that have no bound"),
        (
            {"server": Safari(), "aggregation": DPFTRL(clip=1.0, delta=DELTA, epsilon=1.0), "selection": LeastOften(5)},
            "Safari trains without clients in some rounds",
        ),
        (
            {"label_statistics": SecureAggregation(), "aggregation": replace(RULE, quantile=0.5)},
            "secure aggregation hides which updates are clipped",
        ),
        (
            {
                "label_statistics": SecureAggregation(),
                "aggregation": DPFTRL(clip=1.0, delta=DELTA, epsilon=1.0),
                "selection": LeastOften(5),
            },
            "only the server can add the noise of a tree",
        ),
        ({"aggregation": HalfNoise(clip=1.0, delta=DELTA, epsilon=1.0)}, "its noise is unknown to the accounting"),
        ({"aggregation": DPFTRL(clip=1.0, delta=DELTA, epsilon=1.0)}, "a client may participate in every round"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_components_outside_the_accounting_are_rejected(changes, message):
    with pytest.raises(ConfigError, match=message):
        replace(private(), **changes)
    if "aggregation" not in changes and changes.get("selection") != LeastOften():
        replace(private(), aggregation=Mean(), **({"weighting": ByExamples()} | changes))  # fine without privacy


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"federation": private(), "model": normalized}, "needs a model without buffers"),
        ({"federation": private(selection=Uniform()), "participation": Bernoulli(0.5)}, "always available"),
        ({"federation": private(selection=LeastOften(4))}, "max_participations must be at least 5 for 10 rounds"),
        ({"federation": private(selection=LeastOften(5, min_gap=3))}, "min_gap must be at most 2"),
        ({"federation": private(replace(RULE, quantile=0.5))}, "count_noise must be above noise_multiplier / 2"),
    ],
    ids=["buffers", "availability", "participations", "gap", "count_noise"],
)
def test_runs_outside_the_accounting_are_rejected_before_the_first_round(arguments, message):
    with pytest.raises(ConfigError, match=message):
        simulation(**arguments)


@pytest.mark.parametrize(("epsilon", "noise"), [(None, None), (1.0, 1.0)])
def test_a_budget_and_a_noise_multiplier_exclude_each_other(epsilon, noise):
    with pytest.raises(ConfigError, match="either `epsilon` or `noise_multiplier`"):
        DPFedAvg(clip=1.0, delta=DELTA, epsilon=epsilon, noise_multiplier=noise)


def test_without_the_package_a_private_run_is_rejected(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    epsilon_of.cache_clear()
    with pytest.raises(ConfigError, match=r"pip install 'fedreach\[private\]'"):
        simulation(private())
