"""Privacy with secure aggregation: clients clip and add noise, and the server adds the noise of those that left."""

from __future__ import annotations

import itertools
import math
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fedreach._util.errors import ComponentError, ConfigError
from fedreach.federation import federation as federations
from fedreach.federation.accounting import Setting, epsilon_of, guarantee, setting_of, spent
from fedreach.federation.attacks import Attackers, LabelFlip, SignFlip
from fedreach.federation.differential_privacy import SECURE_NOISE, DPFedAvg
from fedreach.federation.federation import Federation, visible_reports
from fedreach.federation.labels import SecureAggregation
from fedreach.federation.participation import Bernoulli
from fedreach.federation.round import conclude_round
from fedreach.federation.selection import Full, LeastOften, Poisson, Uniform
from fedreach.federation.state import initial_state
from fedreach.federation.types import ClientResults, Cohort, ServerView
from fedreach.federation.weighting import Equal
from fedreach.runs.simulation import Simulation
from fedreach.testing.problems import tiny_federation, tiny_simulation

DELTA = 1e-5
RULE = DPFedAvg(clip=0.5, delta=DELTA, noise_multiplier=2.0)
QUIET = replace(RULE, noise_multiplier=SECURE_NOISE[0])
MANY = 20_000  # numbers in a model, for its noise


def secure(rule: DPFedAvg = RULE, selection=None, **changes) -> Federation:
    changes = {"label_statistics": SecureAggregation(), **changes}
    selection = selection or Full()
    return replace(tiny_federation(), aggregation=rule, selection=selection, weighting=Equal(), **changes)


def simulation(federation: Federation, **options) -> Simulation:
    return replace(tiny_simulation(), federation=federation, **options)


# ---- The sum of rounded noise


def distance_to_rounded_gaussian(sd: float, clients: int) -> float:
    """Return the total variation between the sum of rounded normals and round(their sum + uniforms), both exact."""
    whole = np.arange(-60, 61)
    one = np.diff(stats.norm.cdf(np.arange(-60.5, 61), scale=sd))
    total = one
    for _ in range(clients - 1):
        total = np.convolve(total, one)
    places, weights = np.polynomial.legendre.leggauss(40)
    mixed = np.zeros(len(whole))
    for nodes in itertools.product(range(40), repeat=clients - 1):
        moved = whole - places[list(nodes)].sum() / 2
        scale = sd * math.sqrt(clients)
        mixed += np.prod(weights[list(nodes)] / 2) * (
            stats.norm.cdf(moved + 0.5, scale=scale) - stats.norm.cdf(moved - 0.5, scale=scale)
        )
    middle = len(total) // 2
    return float(np.abs(total[middle - 60 : middle + 61] - mixed).sum() / 2)


@pytest.mark.parametrize("clients", [2, 3])
def test_a_sum_of_rounded_noise_is_a_rounded_gaussian_with_uniform_noise(clients: int) -> None:
    assert distance_to_rounded_gaussian(1.5, clients) < 4 * clients * math.exp(-(1.5**2) * math.pi**2 / 2)
    assert distance_to_rounded_gaussian(2.0, clients) < 1e-7
    assert distance_to_rounded_gaussian(0.3, clients) > 1e-3  # too little noise for the argument


def test_each_client_has_at_least_a_hundred_units_of_noise_and_the_largest_sum_fits() -> None:
    for clip in (1e-30, 0.5, 0.99, 1.0, 1e20):
        rule, most = replace(RULE, clip=clip), 2**20  # clients
        assert SECURE_NOISE[0] * clip / rule.unit / math.sqrt(most) > 100
        assert most * 2**31 * (1 + 40 * SECURE_NOISE[1] / math.sqrt(most)) < 2**62
        assert 2**30 <= clip / rule.unit < 2**31


# ---- What a client sends


class Silence:
    """A generator without noise."""

    def standard_normal(self, d: int) -> np.ndarray:
        return np.zeros(d)


def share_of(update: np.ndarray, rule: DPFedAvg = RULE, clients: int = 10, rng=None) -> np.ndarray:
    """Return the numbers in a client's words."""
    words = rule.noisy_share({}, update, clients, rng or Silence())
    return words.view(np.int64) * rule.unit


@pytest.mark.parametrize("d", [1, 40, 100_000])
@pytest.mark.parametrize("length", [0, 1e-3, 0.5, 0.5000001, 30.0, 1e30])
def test_the_update_that_a_client_sends_is_never_longer_than_the_clipping_norm(length: float, d: int) -> None:
    update = np.random.default_rng(d).standard_normal(d).astype(np.float32)
    update *= np.float32(length / np.linalg.norm(update))
    words = RULE.noisy_share({}, update, 10, Silence()).view(np.int64)
    squares = sum(int(number) ** 2 for number in words)  # without rounding
    assert math.sqrt(squares) * RULE.unit <= 0.5
    assert np.linalg.norm(share_of(update)) == pytest.approx(min(length, 0.5), rel=1e-5)


def test_a_client_adds_its_part_of_the_noise_after_it_clips() -> None:
    loud = replace(RULE, noise_multiplier=50.0)
    share = share_of(np.full(MANY, 9, np.float32), loud, 10, np.random.default_rng(0))
    assert share.std() == pytest.approx(50 * 0.5 / math.sqrt(10), rel=5 / math.sqrt(2 * MANY))


def test_an_update_that_is_not_finite_is_not_sent() -> None:
    with pytest.raises(ComponentError, match="an update must be finite"):
        share_of(np.array([1, np.nan], np.float32))


# ---- What the server sees, and the models


def reports_of(update: np.ndarray, asked: int) -> ClientResults:
    """Return the results of the first of the asked clients, the others left."""
    r = len(update)
    metrics = {"num_examples": np.ones(r), "loss": np.ones(r)}
    return ClientResults(np.arange(r), update, metrics, lost=dict.fromkeys(range(r, asked), "left"), round=1)


def noise_of_round(replied: int, asked: int) -> tuple[float, float]:
    """Return the noise of the sum and of the model in a round of zeros, in units of the clipping norm."""
    federation = secure(selection=Poisson(), cohort_size=50)
    view = replace(ServerView.of(np.arange(500), np.ones(500, np.int64)), rounds=1)
    state, reports = (
        initial_state(federation, np.zeros(MANY, np.float32), view),
        reports_of(np.zeros((replied, MANY), np.float32), asked),
    )
    mean = visible_reports(federation, reports, state.aggregation[0]).secure_mean
    after = conclude_round(federation, state, view, Cohort(np.arange(asked)), reports)[0]
    assert abs(after.models.mean()) < 5 * after.models.std() / math.sqrt(MANY)
    return tuple(0.0 if noise is None else float(noise.std()) * 50 / RULE.clip for noise in (mean, after.models))


def check_noise() -> None:
    """Assert what the accounting assumes: 20,000 numbers, five standard errors."""
    tolerance, z = 5 / math.sqrt(2 * MANY), 2.0
    for asked, replied in ((10, 10), (10, 9), (10, 7), (3, 3), (40, 27)):
        sum_noise, model_noise = noise_of_round(replied, asked)
        needed = SecureAggregation().needed_replies(asked)
        assert replied >= needed
        assert sum_noise == pytest.approx(z * math.sqrt(replied / asked), rel=tolerance)
        assert sum_noise > z * math.sqrt(needed / asked) * (1 - tolerance)  # of the guarantee against the server
        assert model_noise == pytest.approx(z, rel=tolerance)  # whoever left
    for asked in (0, 1, 10):  # nobody was asked, or the sum is lost
        assert noise_of_round(0, asked) == (0.0, pytest.approx(z, rel=tolerance))


def test_the_sum_has_the_noise_of_those_that_replied_and_the_models_always_have_the_same() -> None:
    check_noise()


def part_by_n(rule, state, update, clients, rng, right=DPFedAvg.noisy_share):
    return right(rule, state, update, clients**2, rng)


def noise_before_clipping(rule, state, update, clients, rng):
    noise = rule._noise_multiplier(state) * rule.clip / math.sqrt(clients) * rng.standard_normal(len(update))
    return DPFedAvg.__dict__["right_share"](rule, state, (update + noise).astype(np.float32), clients, Silence())


def of_the_replies(rule, state, total, replied, clients, right=DPFedAvg.mean_of_shares):
    return right(rule, {**state, "cohort_size": np.array([replied])}, total, replied, clients)


FAULTS = {
    "part of the noise is 1/n": ("noisy_share", part_by_n),
    "clips after the noise": ("noisy_share", noise_before_clipping),
    "divides by the replies": ("mean_of_shares", of_the_replies),
    "adds nothing for clients that left": ("missing_noise", lambda rule, state, replied, clients, d, rng: np.zeros(d)),
    "one noise for all clients": ("", lambda federation, round_, client: np.random.default_rng(round_)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_noise_is_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, wrong = FAULTS[fault]
    monkeypatch.setattr(DPFedAvg, "right_share", DPFedAvg.noisy_share, raising=False)
    monkeypatch.setattr(*((DPFedAvg, name, wrong) if name else (federations, "simulated_noise", wrong)))
    with pytest.raises(AssertionError):
        check_noise()


def test_the_sum_is_divided_by_the_expected_cohort_size() -> None:
    federation = secure(QUIET, Poisson(), cohort_size=50)
    view = replace(ServerView.of(np.arange(500), np.ones(500, np.int64)), rounds=1)
    state = initial_state(federation, np.zeros(4, np.float32), view)
    reports = reports_of(np.full((8, 4), 9, np.float32), 10)
    after, _ = conclude_round(federation, state, view, Cohort(np.arange(10)), reports)
    assert after.models[0] == pytest.approx(np.full(4, 8 * 0.5 / 2 / 50), rel=1e-3)


def test_a_sum_that_valid_shares_cannot_have_is_refused() -> None:
    with pytest.raises(ComponentError, match="The sum of secure aggregation is invalid"):
        RULE.mean_of_shares({}, np.array([2**62], np.uint64), 10, 10)


# ---- A run


def test_a_lost_round_has_noise_and_each_request_counts_as_a_participation() -> None:
    run = simulation(secure(), participation=Bernoulli(1.0, reply_prob=0.5), rounds=5)
    state, lost = run.start(), 0
    for number in range(1, 6):
        before, (state, result, _) = state.models, run.step(state)
        assert not np.array_equal(before, state.models)
        lost += not result.cohort
        assert state.aggregation[0]["participations"].tolist() == [number] * 4
    assert lost > 0


def test_a_run_repeats_and_clients_and_rounds_have_different_noise() -> None:
    run = simulation(secure())
    first, second = (run.step(run.start())[0] for _ in range(2))
    assert np.array_equal(first.models, second.models)
    draws = [federations.simulated_noise(run.federation, *place).random() for place in ((1, 0), (1, 1), (2, 0))]
    assert len({*draws}) == 3


# ---- The guarantees


@pytest.mark.parametrize(
    "selection", [Poisson(), Full(), LeastOften(5), Uniform()], ids=lambda value: type(value).__name__
)
def test_the_models_have_the_epsilon_that_they_have_without_secure_aggregation(selection) -> None:
    rule = replace(RULE, accountant="rdp")
    ours, central = (
        guarantee(secure(rule, selection, cohort_size=100, **changes), 1000, 20)
        for changes in ({}, {"label_statistics": tiny_federation().label_statistics})
    )
    assert ours.epsilon == pytest.approx(central.epsilon, rel=1e-9)
    assert central.server is None
    by_zeros = "one client is replaced" if isinstance(selection, Uniform) else "replaced by zeros"
    assert by_zeros in ours.neighbors


def test_against_the_server_sampling_hides_nothing_and_only_noise_of_needed_replies_counts() -> None:
    federation = secure(RULE, Poisson(), cohort_size=100)
    planned, reached = guarantee(federation, 1000, 50).server, guarantee(federation, 1000, 50, None, 7).server
    assert planned is not None
    assert reached is not None
    assert (planned.participations, reached.participations) == (50, 7)
    least = 2 * math.sqrt(667 / 1000)
    assert planned.noise_multiplier == pytest.approx(least, rel=1e-3)
    once = Setting("full", 1, 1, 7, 7, tree=False, accountant="pld")
    assert reached.epsilon == pytest.approx(epsilon_of(once, reached.noise_multiplier, DELTA))
    assert reached.epsilon < planned.epsilon
    limited = guarantee(secure(selection=LeastOften(5), cohort_size=100), 1000, 50).server
    assert limited is not None
    assert limited.participations == 5


def test_a_run_reports_both_guarantees_with_the_participations_that_it_had() -> None:
    run = simulation(secure(selection=LeastOften(8), cohort_size=3))
    state = run.start()
    for _ in range(2):
        state = run.step(state)[0]
    record = spent(run.federation, state.aggregation[0], 4, 2)
    assert record is not None
    assert record["server"]["participations"] == state.aggregation[0]["participations"].max() == 2
    assert record["epsilon"] < record["server"]["epsilon"]
    statement = record["statement"]
    assert (
        f"The sums that the server sees are (ε = {math.ceil(1000 * record['server']['epsilon']) / 1000:g})" in statement
    )
    assert "at most 2 rounds of a client; noise 1.732 x clip). No client reveals its noise." in statement
    assert "Losses, scores, replies and the choice of the best round are not covered." in statement
    assert "No single client decides" not in statement
    assert "No single client decides" in guarantee(secure(selection=Poisson(), cohort_size=100), 1000, 9).statement


def test_the_probability_that_a_client_decides_whether_there_is_a_sum_is_part_of_delta() -> None:
    n, q, exact = 5, 2 / 5, 0.0
    for others in itertools.product((False, True), repeat=n - 1):  # the client is drawn, and one other client
        exact += q * math.prod(q if drawn else 1 - q for drawn in others) * (sum(others) == 1)
    setting = setting_of(secure(selection=Poisson(), cohort_size=2), n, 3)
    assert setting.revealing == pytest.approx(3 * exact)
    with pytest.raises(ConfigError, match="a client decides whether a sum has two clients"):
        guarantee(secure(selection=Poisson(), cohort_size=2), n, 3)
    small = secure(selection=Poisson(), cohort_size=20)
    assert 0 < setting_of(small, 1000, 50).revealing < DELTA / 10
    central = replace(small, label_statistics=tiny_federation().label_statistics)
    assert 1 < guarantee(small, 1000, 50).epsilon / guarantee(central, 1000, 50).epsilon < 1.01


# ---- What is rejected


@pytest.mark.parametrize("noise", [SECURE_NOISE[0] / 2, 2 * SECURE_NOISE[1]])
def test_noise_outside_the_range_of_whole_numbers_is_rejected(noise: float) -> None:
    with pytest.raises(ConfigError, match=r"the noise multiplier of DPFedAvg must be from 0\.0001 to 10000"):
        simulation(secure(replace(RULE, noise_multiplier=noise)))


def test_attacks_on_updates_are_rejected_because_they_would_skip_the_clipping() -> None:
    clients, expected = np.array([1]), pytest.raises(ConfigError, match="a malicious client would not")
    for attack, outcome in ((SignFlip(), expected), (LabelFlip(), nullcontext())):
        with outcome:
            Attackers(attack, clients, 0).check(secure())
