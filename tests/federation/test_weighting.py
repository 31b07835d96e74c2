"""How much each report counts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedreach._util.errors import ComponentError, ConfigError
from fedreach.data.assignment import label_entropy
from fedreach.federation.measurements import Disagreement
from fedreach.federation.types import ClientResults
from fedreach.federation.weighting import (
    WEIGHTINGS,
    ByDisagreement,
    ByDraws,
    ByEntropy,
    ByExamples,
    Clip,
    Equal,
    FedAU,
    FedNova,
    FunctionWeighting,
    Mix,
    OwnWeight,
    Product,
)

# counts and what they give: design/golden.json, "entropy_weights"
COUNTS = np.array([[10, 0, 0, 0], [5, 5, 0, 0], [1, 2, 3, 4], [25, 25, 25, 25]])
ENTROPY = [0.0, 0.6931471805599453, 1.2798542258336676, 1.3862943611198906]
ALPHA = [0.09437420752442753, 0.18874841504885506, 0.33938054732900735, 0.3774968300977101]

EVERY = [
    ByExamples(),
    Equal(),
    ByEntropy(),
    ByEntropy(temperature=0.3),
    ByDisagreement(),
    ByDraws(),
    FedAU(),
    FedNova(),
    FedNova(ByEntropy()),
    Product((ByEntropy(), ByExamples())),
    Product((ByDisagreement(), Equal(), ByEntropy()), exponents=(2, 7, 0.5)),
    Mix((ByEntropy(), ByExamples(), ByDisagreement()), shares=(1, 0, 2.5)),
    Clip(ByExamples(), max=0.3),
    Clip(Product((ByEntropy(temperature=0.1), ByDisagreement())), times_equal=1.5),
]
every = pytest.mark.parametrize("weighting", EVERY, ids=repr)

histograms = st.integers(2, 6).flatmap(
    lambda c: arrays(np.int64, st.tuples(st.integers(1, 6), st.just(c)), elements=st.integers(0, 50)).map(
        lambda counts: counts + (counts.sum(axis=1, keepdims=True) == 0)
    )
)
checks = settings(deadline=None, derandomize=True)


def make_reports(counts):
    metrics = {
        "num_examples": counts.sum(axis=1).astype(np.float64),
        "loss": np.linspace(0.1, 2.0, len(counts)),
        "label_entropy": label_entropy(counts),
        "disagreement": 0.3 + np.square(counts / counts.sum(axis=1, keepdims=True)).max(axis=1),  # the client's own
        "steps": 1.0 + (counts > 0).sum(axis=1),  # likewise
    }
    reports = ClientResults(np.arange(len(counts)), np.ones((len(counts), 3), np.float32), metrics, counts)
    for array in (reports.ids, reports.update, counts, *metrics.values()):
        array.setflags(write=False)
    return reports


def weights_of(weighting, counts):
    return weighting.weights({}, make_reports(counts))[0]


def test_every_weighting_there_is_is_held_to_the_laws():
    assert {type(weighting) for weighting in EVERY} == set(WEIGHTINGS.values())


def test_entropies_and_their_weights_are_the_golden_ones():
    np.testing.assert_allclose(label_entropy(COUNTS), ENTROPY, rtol=0, atol=1e-12)
    np.testing.assert_allclose(weights_of(ByEntropy(), COUNTS), ALPHA, rtol=1e-12)


def test_a_uniform_client_counts_c_times_as_much_as_one_of_a_single_class():
    counts = np.array([[7] * 10, [70] + [0] * 9])
    a, b = weights_of(ByEntropy(), counts)
    assert a / b == pytest.approx(10, rel=1e-12)


@checks
@given(histograms)
def test_no_entropy_weight_is_more_than_c_times_another(counts):
    weights = weights_of(ByEntropy(), counts)
    assert weights.max() / weights.min() <= counts.shape[1] * (1 + 1e-12)


@every
@checks
@given(counts=histograms, seed=st.integers(0, 99))
def test_weights_form_a_simplex_and_follow_the_clients(weighting, counts, seed):
    weights = weights_of(weighting, counts)
    assert (weights >= 0).all()
    assert weights.sum() == pytest.approx(1, rel=1e-12)
    order = np.random.Generator(np.random.Philox(seed)).permutation(len(counts))
    np.testing.assert_allclose(weights_of(weighting, counts[order]), weights[order], rtol=1e-12)


@every
@checks
@given(counts=histograms, factor=st.integers(1, 9))
def test_more_of_the_same_everywhere_changes_no_weight(weighting, counts, factor):
    before, after = (weights_of(weighting, c) for c in (counts, factor * counts))
    np.testing.assert_allclose(after, before, rtol=1e-11)


@every
@pytest.mark.parametrize("r", [1, 2, 7])
def test_clients_alike_weigh_the_same(weighting, r):
    np.testing.assert_allclose(weights_of(weighting, np.tile([3, 1, 6], (r, 1))), np.full(r, 1 / r), rtol=1e-12)


def test_all_weightings_but_those_that_compare_clients_or_rounds_have_raw_weights():
    assert {type(weighting) for weighting in EVERY if not weighting.has_own_weights} == {Mix, Clip, FedAU, FedNova}


@pytest.mark.parametrize("weighting", [weighting for weighting in EVERY if weighting.has_own_weights], ids=repr)
@checks
@given(counts=histograms)
def test_a_raw_weight_is_the_clients_own_and_gives_the_weights_when_divided_by_the_sum(weighting, counts):
    metrics = make_reports(counts).metrics
    raw = weighting.raw(metrics)
    alone = [weighting.raw({name: values[[i]] for name, values in metrics.items()})[0] for i in range(len(counts))]
    np.testing.assert_allclose(raw, alone, rtol=1e-14)
    np.testing.assert_allclose(raw / raw.sum(), weights_of(weighting, counts), rtol=1e-12)


@checks
@given(counts=histograms, seed=st.integers(0, 99))
def test_entropy_depends_neither_on_class_names_nor_on_sizes_and_falls_when_classes_merge(counts, seed):
    rng = np.random.Generator(np.random.Philox(seed))
    entropy = label_entropy(counts)
    shuffled = rng.permuted(counts, axis=1)
    np.testing.assert_allclose(label_entropy(shuffled), entropy, atol=1e-12)
    sizes = rng.integers(1, 9, (len(counts), 1))
    np.testing.assert_allclose(label_entropy(sizes * counts), entropy, atol=1e-12)
    merged = np.column_stack([counts[:, 0] + counts[:, 1], counts[:, 2:]])
    assert (label_entropy(merged) <= entropy + 1e-12).all()
    assert (entropy <= np.log(counts.shape[1]) + 1e-12).all()
    assert (entropy >= 0).all()


@given(r=st.integers(1, 40), m=st.integers(1, 10**6))
@checks
def test_weighing_clients_of_equal_size_by_examples_is_weighing_them_equally(r, m):
    counts = np.full((r, 1), m)
    assert weights_of(ByExamples(), counts).tobytes() == weights_of(Equal(), counts).tobytes()


def test_weighing_by_examples_gives_shares_of_all_examples():
    assert weights_of(ByExamples(), np.array([[1, 0], [1, 2]])).tolist() == [0.25, 0.75]


def test_a_function_is_a_weighting_and_its_numbers_need_not_sum_to_one():
    def inverse_loss(reports):
        return 1 / reports.metrics["loss"]

    weights = weights_of(FunctionWeighting(inverse_loss), COUNTS)
    np.testing.assert_allclose(weights[0] / weights[-1], 20.0)  # losses 0.1 and 2.0
    assert weights.sum() == pytest.approx(1)
    assert FunctionWeighting(inverse_loss).name == "inverse_loss"


@pytest.mark.parametrize("answer", [[0.0] * 4, [1.0, -1.0, 1.0, 1.0], [1.0, np.nan, 1.0, 1.0], [np.inf, 1.0, 1.0, 1.0]])
def test_a_function_that_returns_no_weights_is_named(answer):
    def broken(reports):
        return answer

    with pytest.raises(ComponentError, match="broken must return numbers that are not negative and not all 0"):
        weights_of(FunctionWeighting(broken), COUNTS)


def test_a_function_says_what_it_asks_of_clients():
    def weigh(reports):
        return 1 / reports.metrics["disagreement"]

    weigh.needs, weigh.measures = ["label_counts"], [Disagreement()]
    assert FunctionWeighting(weigh).needs == ("label_counts",)
    assert FunctionWeighting(weigh).measures == (Disagreement(),)


def test_a_users_weighting_of_own_numbers_needs_one_method():
    class BySquare(OwnWeight):
        def raw(self, metrics):
            return metrics["num_examples"] ** 2

    assert weights_of(BySquare(), np.array([[1], [3]])).tolist() == [0.1, 0.9]

    class Negative(OwnWeight):
        def raw(self, metrics):
            return -metrics["num_examples"]

    with pytest.raises(ComponentError, match="Negative must return numbers that are not negative"):
        weights_of(Negative(), COUNTS)


# ------------------------------------------------------------------------------------------------ temperature


@checks
@given(counts=histograms, temperature=st.floats(0.02, 100))
def test_a_temperature_is_a_power_of_the_weights(counts, temperature):
    plain, weights = weights_of(ByEntropy(), counts), weights_of(ByEntropy(temperature), counts)
    powers = np.exp(np.log(plain / plain.max()) / temperature)
    np.testing.assert_allclose(weights, powers / powers.sum(), rtol=1e-9)
    assert weights.max() / weights.min() <= counts.shape[1] ** (1 / temperature) * (1 + 1e-9)


def test_hot_entropy_weights_are_equal_and_cold_ones_choose_the_most_varied():
    np.testing.assert_allclose(weights_of(ByEntropy(1e12), COUNTS), np.full(4, 0.25), rtol=1e-9)
    np.testing.assert_allclose(weights_of(ByEntropy(0.02), COUNTS), [0, 0, 0, 1], atol=0.005)


def test_the_coldest_raw_weights_of_a_million_classes_are_numbers():
    raw = ByEntropy(0.02).raw({"label_entropy": np.log([1.0, 1e6])})
    assert raw[0] == 1
    assert np.isfinite(raw).all()


@pytest.mark.parametrize("temperature", [0, -1, 0.01, np.inf, np.nan])
def test_a_temperature_out_of_range_is_refused(temperature):
    with pytest.raises(ConfigError, match=r"ByEntropy\.temperature must be at least 0\.02( and finite)?; got"):
        ByEntropy(temperature)


# ----------------------------------------------------------------------------------------------- disagreement


def test_weights_by_disagreement_are_the_golden_ones():
    """design/golden.json, "robust_weights"."""
    eta = np.array([0.3039467199999999, 1.323346028089211, 1.815689204666272, 2.7735110729657877])
    expected = [0.663715434989935, 0.15244246417533688, 0.11110609071206277, 0.07273601012266534]
    for factor in (1, 7.5):  # a common factor changes nothing
        reports = ClientResults(np.arange(4), np.zeros((4, 1), np.float32), {"disagreement": factor * eta})
        np.testing.assert_allclose(ByDisagreement().weights({}, reports)[0], expected, rtol=1e-13)


def test_a_weighting_by_disagreement_asks_for_the_measurement_with_its_options():
    options = {"loss": "zero_one", "radius": 0.1, "step": 0.05, "confidence": 0.01}
    assert ByDisagreement(**options).measures == (Disagreement(**options),)
    assert ByDisagreement().measures == (Disagreement(),)
    with pytest.raises(ConfigError, match=r"Disagreement\.step must be in \(0, 0\.2\]; got 0\.3"):
        ByDisagreement(step=0.3)
