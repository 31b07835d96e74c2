"""A weighted mean of which the server sees two sums only."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import fedreach as fr
from fedreach._util.arrays import weighted_sum
from fedreach._util.errors import ComponentError, ConfigError
from fedreach._util.streams import generator
from fedreach.federation.federation import visible_reports
from fedreach.federation.labels import Exact
from fedreach.federation.round import conclude_round
from fedreach.federation.secure_aggregation import (
    LARGEST,
    FixedPoint,
    SecureAggregation,
    exact_sum,
    mask,
    mean_of,
    share,
    weighted_mean_of_shares,
)
from fedreach.federation.types import Cohort, Probe
from fedreach.federation.weighting import (
    ByDisagreement,
    ByEntropy,
    ByExamples,
    Clip,
    Equal,
    FunctionWeighting,
    Mix,
    Product,
)
from fedreach.testing.problems import tiny_simulation

from .small import D, federation, make_reports, make_view, start

checks = settings(deadline=None, derandomize=True)


def error_bound(raw, update):
    """Return how far each of the (d,) numbers of `weighted_mean_of_shares` may be from the true mean.

    Both sums are off by at most e = r 2^-(f + 1), so their quotient by e (1 + |mean|) / (sum_i raw_i - e). Rounding of
    the products, the sum and the quotient to 53 bits adds 2^-51 max_i |update_i|.
    """
    off = len(raw) * 2.0 ** -(FixedPoint(len(raw)).bits + 1)
    mean = np.abs(raw @ update.astype(np.float64) / raw.sum())
    return off * (1 + mean) / (raw.sum() - off) + 2.0**-51 * np.abs(update).max(axis=0)


def pad(low, high, count):
    return generator(11, f"mask {low}", round_=1, client=high).integers(0, 2**64, count, dtype=np.uint64)


def random_updates(r, d, seed=0, size=1.0):
    return (size * generator(seed, "updates").normal(size=(r, d))).astype(np.float32)


def test_masks_cancel_bit_for_bit():
    cohort, update = [3, 4, 8, 21, 22], random_updates(5, 200)
    code = FixedPoint(5)
    weights = np.array([10.0, 3.0, 0.0, 1e4, 0.5])
    shares = [share(w, row, code) for w, row in zip(weights, update, strict=True)]
    masked = [mask(words, client, cohort, pad) for words, client in zip(shares, cohort, strict=True)]
    plain_sum, masked_sum = np.sum(shares, axis=0, dtype=np.uint64), np.sum(masked, axis=0, dtype=np.uint64)
    assert masked_sum.tobytes() == plain_sum.tobytes()
    for words, other in zip(shares, masked, strict=True):
        assert (words != other).mean() > 0.99
    assert mean_of(masked_sum, code).tobytes() == weighted_mean_of_shares(weights, update).tobytes()


def test_a_masked_share_looks_uniform_whatever_is_in_it():
    def p_value(words):
        return stats.chisquare(np.bincount(words.view(np.uint8), minlength=256)).pvalue

    code = FixedPoint(2)
    for update in (np.zeros(20_000, np.float32), random_updates(1, 20_000)[0]):
        words = share(2.0, update, code)
        assert p_value(words) < 1e-100
        for client in (5, 9):  # the one adds, the other subtracts
            assert p_value(mask(words, client, [5, 9], pad)) > 1e-3


def test_what_is_in_a_masked_share_shifts_it_so_that_all_contents_are_as_likely():
    """A one-time pad: for each answer and each content there is exactly one mask."""
    code = FixedPoint(2)
    one, other = share(1.0, random_updates(1, 9)[0], code), share(1.0, random_updates(1, 9, seed=1)[0], code)
    difference = mask(one, 5, [5, 9], pad) - mask(other, 5, [5, 9], pad)
    assert difference.tobytes() == (one - other).tobytes()


def test_neither_the_order_of_the_cohort_nor_the_mask_of_a_share_matters_to_its_content():
    words = share(1.0, random_updates(1, 9)[0], FixedPoint(3))
    before = words.tobytes()
    assert mask(words, 4, [2, 4, 7], pad).tobytes() == mask(words, 4, [7, 2, 4], pad).tobytes()
    assert words.tobytes() == before  # what goes in stays as it is
    assert mask(words, 4, [4], pad).tobytes() == before  # nobody to share a mask with


@checks
@given(
    r=st.integers(1, 40),
    seed=st.integers(0, 999),
    size=st.sampled_from([1e-6, 1e-2, 1.0, 100.0]),
    heavy=st.sampled_from([1.0, 50.0, 1e4]),
)
def test_the_mean_is_the_weighted_mean_within_the_stated_bound(r, seed, size, heavy):
    update = random_updates(r, 7, seed, size)
    raw = heavy * generator(seed, "raw").random(r) + 0.01
    # True to a part in 10^18: long double where there is one, else the bound's own rounding term covers it.
    exact = raw.astype(np.longdouble) @ update.astype(np.longdouble) / raw.astype(np.longdouble).sum()
    off = np.abs(weighted_mean_of_shares(raw, update) - exact.astype(np.float64))
    assert (off <= error_bound(raw, update)).all()
    assert error_bound(raw, update).max() < 1e-6 * max(1, size)


@pytest.mark.parametrize("r", [1, 2, 3, 4, 5, 1000, 1024, 1025])
def test_the_largest_numbers_of_all_clients_do_not_overflow(r):
    code = FixedPoint(r)
    assert r * 2 ** (24 + code.bits) <= 2**62 < 2 * r * 2 ** (24 + code.bits) * 2
    for sign in (1, -1):
        words = code.encode(np.array([sign * LARGEST]))
        total = np.sum([words] * r, axis=0, dtype=np.uint64)
        assert code.decode(total)[0] == sign * r * LARGEST


@checks
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20).map(np.array), st.integers(1, 300))
def test_a_number_is_written_to_half_a_unit(numbers, r):
    code = FixedPoint(r)
    assert (np.abs(code.decode(code.encode(numbers)) - numbers) <= 2.0 ** -(code.bits + 1)).all()


@pytest.mark.parametrize("raw", [2.1 * LARGEST, np.inf, np.nan])
def test_what_does_not_fit_is_refused(raw):
    with pytest.raises(ComponentError, match=r"no number above 16777216; got .*local\.lr"):
        weighted_mean_of_shares(np.array([raw, 1.0]), random_updates(2, 3))
    with pytest.raises(ComponentError, match=r"no number above 16777216; got 3e\+07"):
        weighted_mean_of_shares(np.array([1e6, 1.0]), np.full((2, 3), 30, np.float32))


def test_weights_that_would_drown_in_rounding_are_refused():
    for raw in (np.zeros(2), np.full(2, 1e-4)):
        with pytest.raises(ComponentError, match="the mean raw weight must be at least 1/1024"):
            weighted_mean_of_shares(raw, random_updates(2, 3))


# ---------------------------------------------------------------------------------------------- in a federation


@pytest.mark.parametrize(
    "weighting",
    [
        ByExamples(),
        Equal(),
        ByEntropy(),
        ByEntropy(temperature=0.5),
        ByDisagreement(),
        Product((ByEntropy(), ByExamples(), ByDisagreement()), exponents=(1, 0.5, 1)),
    ],
    ids=repr,
)
def test_the_model_is_that_of_a_server_that_sees_the_weights(weighting):
    ids = np.array([0, 2, 5])
    reports = make_reports(ids, random_updates(3, D))
    reports = replace(reports, metrics={**reports.metrics, "disagreement": np.array([0.4, 2.0, 1.1])})
    models = []
    for statistics in ({}, {"label_statistics": SecureAggregation()}):
        chosen, view = replace(federation(weighting=weighting, cohort_size=3), **statistics), make_view()
        state, _ = conclude_round(chosen, start(chosen, view), view, Cohort(ids), reports)
        models.append(state.params)
    bound = error_bound(weighting.raw(reports.metrics), reports.update)
    step = np.spacing(np.abs(models[0]))  # of the model itself, in single precision
    assert (np.abs(models[0] - models[1]) <= bound + step).all()
    weights, _ = weighting.weights({}, reports)
    mean = weighted_mean_of_shares(weighting.raw(reports.metrics), reports.update)
    assert (np.abs(mean - weighted_sum(weights, reports.update)) <= 2 * bound).all()


@pytest.mark.parametrize(
    "weighting",
    [
        Mix((Equal(), ByEntropy())),
        Clip(ByEntropy(), max=0.5),
        FunctionWeighting(lambda reports: reports.metrics["loss"]),
        Product((Equal(), Mix((Equal(),)))),
    ],
    ids=lambda weighting: type(weighting).__name__,
)
def test_a_weighting_that_compares_clients_is_refused(weighting):
    with pytest.raises(ConfigError, match="each client must know its own weight"):
        replace(federation(weighting=weighting), label_statistics=SecureAggregation())


# --------------------------------------------------------------------------------------- what a policy may look at


@dataclass(frozen=True)
class Curious(fr.Selection):
    """Chooses everybody, and keeps whatever it is shown."""

    seen: list = field(default_factory=list)
    asks: str | None = None

    def init(self, view):
        self.seen.append(view)
        return {}

    def probe(self, state, view, k, rng):
        self.seen.append(view)
        return None if self.asks is None else Probe(view.ids, self.asks)

    def select(self, state, view, k, rng):
        self.seen.append(view)
        return Cohort(view.ids[:k])

    def observe(self, state, reports):
        self.seen.append(reports)
        return state


def changed(simulation, **parts):
    return replace(simulation, federation=replace(simulation.federation, **parts))


def under_a_sum(selection, weighting=None):
    weighting = weighting or Product((ByEntropy(), ByDisagreement()))
    return changed(
        tiny_simulation(), selection=selection, weighting=weighting, label_statistics=SecureAggregation(), cohort_size=3
    )


def test_a_policy_in_the_simulator_sees_no_more_than_a_real_server_would():
    policy = Curious(asks="loss")
    simulation = under_a_sum(policy)
    before = simulation.start()
    done = simulation.step(before)
    *views, reports = policy.seen
    assert len(views) == 3  # init, probe, select
    assert all(view.label_entropy is None and view.label_counts is None for view in views)
    assert not np.isnan(views[-1].loss).any()  # losses are told openly
    assert (reports.update.shape, set(reports.metrics)) == ((3, 0), {"num_examples", "loss", "steps"})
    asked = simulation.federation.local.steps_of(reports.metrics["num_examples"], reports.ids, 0, 1)
    np.testing.assert_array_equal(reports.metrics["steps"], asked)  # which the server knows, as it asks for them
    assert reports.label_counts is reports.note is reports.steps is None
    step = (done.state.params - before.params).astype(np.float64)
    np.testing.assert_allclose(reports.secure_mean, step, atol=1e-6)
    assert done.update.shape == (3, len(step))  # the simulator itself knows everything
    assert set(done.result.metrics) == {"loss", "disagreement"}


def test_a_policy_in_the_open_sees_what_it_always_saw():
    policy = Curious()
    simulation = changed(tiny_simulation(), selection=policy, weighting=ByEntropy(), cohort_size=3)
    done = simulation.step(simulation.start())
    *views, reports = policy.seen
    assert all(view.label_entropy is not None for view in views)
    assert reports.update.tobytes() == done.update.tobytes()


@dataclass(frozen=True)
class LooksAtUpdates(Curious):
    def observe(self, state, reports):
        return {"largest": np.abs(reports.update[:, 0])}


@dataclass(frozen=True)
class LooksAtEntropies(Curious):
    def select(self, state, view, k, rng):
        return Cohort(view.ids[view.label_entropy.argsort()[:k]])


@dataclass(frozen=True)
class LooksAtMeasurements(Curious):
    def observe(self, state, reports):
        return {"disagreement": reports.metrics["disagreement"]}


@pytest.mark.parametrize(
    ("policy", "error"),
    [(LooksAtUpdates, IndexError), (LooksAtEntropies, AttributeError), (LooksAtMeasurements, KeyError)],
)
def test_a_policy_that_looks_at_single_clients_without_saying_so_fails_in_the_simulator(policy, error):
    simulation = under_a_sum(policy())
    with pytest.raises(error):
        simulation.step(simulation.start())
    in_the_open = changed(simulation, label_statistics=Exact())
    assert len(in_the_open.step(in_the_open.start()).result.cohort) == 3


def test_a_probe_for_updates_is_refused_where_the_server_sees_sums_only():
    simulation = under_a_sum(Curious(asks="update"))
    with pytest.raises(
        ComponentError, match=r"Curious\.probe must ask for losses where SecureAggregation hides .*request for updates"
    ):
        simulation.step(simulation.start())


def test_a_policy_that_measures_single_clients_is_refused():
    measuring = type("Measuring", (Curious,), {"measures": ByDisagreement().measures})
    with pytest.raises(ConfigError, match="Measuring reads labels, updates or measurements of single clients"):
        under_a_sum(measuring())


def test_each_cluster_of_clients_gets_the_mean_of_its_own_sum():
    class Halves(Curious):
        def clusters(self, state):
            return np.array([0, 0, 1, 1])

    simulation = changed(under_a_sum(Halves(), ByExamples()), cohort_size=4)
    middle = simulation.step(simulation.start()).state
    done = simulation.step(middle)
    sizes = simulation.first_view.num_examples.astype(float)
    for model, mine in ((0, [0, 1]), (1, [2, 3])):
        mean = weighted_mean_of_shares(sizes[mine], done.update[mine])
        after = (middle.models[model] + mean).astype(np.float32)
        np.testing.assert_allclose(done.state.models[model], after, rtol=1e-6, atol=1e-7)


def test_exact_sums_hold_two_to_the_minus_64_beside_two_to_the_62_in_any_order():
    parts = [np.array([number, -number]) for number in (2.0**62, 2.0**-60, -(2.0**62), 3 * 2.0**-64, 0.1)]
    rounded = np.rint(np.ldexp(0.1, 64)) * 2.0**-64
    for order in ([0, 1, 2, 3, 4], [4, 3, 1, 0, 2]):
        total = exact_sum([parts[i] for i in order])
        assert total.tolist() == [rounded + 2.0**-60 + 3 * 2.0**-64, -(rounded + 2.0**-60 + 3 * 2.0**-64)]
    assert exact_sum([parts[1], parts[3]]).tolist() == [19 * 2.0**-64, -19 * 2.0**-64]


def test_the_encoding_depends_on_the_clients_that_were_asked_not_on_those_that_replied():
    """Clients encode before they know who replies; a mean of another encoding differs in its last bits."""
    one, update = replace(federation(), label_statistics=SecureAggregation()), random_updates(4, D, size=1e-4)
    reports = replace(make_reports([0, 1, 2, 3], update), lost={90: "silent", 91: "silent"})
    mean = visible_reports(one, reports).secure_mean
    raw = one.weighting.raw(reports.metrics)
    assert mean.tobytes() == weighted_mean_of_shares(raw, update, clients=6).tobytes()
    assert mean.tobytes() != weighted_mean_of_shares(raw, update).tobytes()
