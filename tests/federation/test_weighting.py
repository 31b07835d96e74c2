"""How much each report counts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedreach.data.partition.statistics import label_entropy
from fedreach.errors import PartError
from fedreach.federation.round import Reports
from fedreach.federation.weighting import WEIGHTINGS, ByEntropy, ByExamples, Equal, FunctionWeighting

# counts and what they give: design/golden.json, "entropy_weights"
COUNTS = np.array([[10, 0, 0, 0], [5, 5, 0, 0], [1, 2, 3, 4], [25, 25, 25, 25]])
ENTROPY = [0.0, 0.6931471805599453, 1.2798542258336676, 1.3862943611198906]
ALPHA = [0.09437420752442753, 0.18874841504885506, 0.33938054732900735, 0.3774968300977101]

histograms = st.integers(2, 6).flatmap(
    lambda c: arrays(np.int64, st.tuples(st.integers(1, 6), st.just(c)), elements=st.integers(0, 50)).map(
        lambda counts: counts + (counts.sum(axis=1, keepdims=True) == 0)
    )
)
laws = settings(max_examples=100, deadline=None, derandomize=True)


def make_reports(counts):
    metrics = {
        "num_examples": counts.sum(axis=1).astype(np.float64),
        "loss": np.linspace(0.1, 2.0, len(counts)),
        "label_entropy": label_entropy(counts),
    }
    reports = Reports(np.arange(len(counts)), np.ones((len(counts), 3), np.float32), metrics, counts)
    for array in (reports.ids, reports.update, counts, *metrics.values()):
        array.setflags(write=False)
    return reports


def weights_of(weighting, counts):
    return weighting.weights({}, make_reports(counts))[0]


def test_entropies_and_their_weights_are_the_golden_ones():
    np.testing.assert_allclose(label_entropy(COUNTS), ENTROPY, rtol=0, atol=1e-12)
    np.testing.assert_allclose(weights_of(ByEntropy(), COUNTS), ALPHA, rtol=1e-12)


def test_a_uniform_client_counts_c_times_as_much_as_one_of_a_single_class():
    counts = np.array([[7] * 10, [70] + [0] * 9])
    a, b = weights_of(ByEntropy(), counts)
    assert a / b == pytest.approx(10, rel=1e-12)


@laws
@given(histograms)
def test_no_entropy_weight_is_more_than_c_times_another(counts):
    weights = weights_of(ByEntropy(), counts)
    assert weights.max() / weights.min() <= counts.shape[1] * (1 + 1e-12)


@pytest.mark.parametrize("name", WEIGHTINGS)
@laws
@given(counts=histograms, seed=st.integers(0, 99))
def test_weights_form_a_simplex_and_follow_the_clients(name, counts, seed):
    weights = weights_of(WEIGHTINGS[name](), counts)
    assert (weights >= 0).all()
    assert weights.sum() == pytest.approx(1, rel=1e-12)
    order = np.random.Generator(np.random.Philox(seed)).permutation(len(counts))
    np.testing.assert_allclose(weights_of(WEIGHTINGS[name](), counts[order]), weights[order], rtol=1e-12)


@pytest.mark.parametrize("name", WEIGHTINGS)
@laws
@given(counts=histograms, factor=st.integers(1, 9))
def test_more_of_the_same_everywhere_changes_no_weight(name, counts, factor):
    before, after = (weights_of(WEIGHTINGS[name](), c) for c in (counts, factor * counts))
    np.testing.assert_allclose(after, before, rtol=1e-12)


@laws
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
@laws
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

    with pytest.raises(PartError, match="broken must return numbers that are not negative, not all 0"):
        weights_of(FunctionWeighting(broken), COUNTS)
