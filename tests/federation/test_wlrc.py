"""What a client answers when it is asked for its Rademacher score."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedreach._util.errors import ConfigError
from fedreach._util.streams import generator
from fedreach.federation.bounds import all_signs, monte_carlo_score
from fedreach.federation.measurements import WLRC
from fedreach.federation.types import LocalOutputs

# design/algorithms.md, section 6.1: three batches of 2, 2 and 1; exact .9125 size-weighted, 1.09375 unweighted
LOGITS = np.array([[1, -2], [0.5, 3], [2, 0], [1, 1], [4, -1]], np.float32)
LABELS = np.array([0, 1, 0, 0, 1])
CLOSED = (2 * 0.7529870416 + 2 * 0.4886025119 + 1.6448811606) / 5

checks = settings(max_examples=40, deadline=None, derandomize=True)


def answer(score, logits=LOGITS, labels=LABELS, before=None, seed=0):
    logits = np.asarray(logits, np.float32)
    for array in (logits, labels, before):
        if array is not None:
            array.setflags(write=False)
    return score.measure(LocalOutputs(logits, labels, before), generator(seed, "wlrc"))


def softmax(logits):
    raw = np.exp(logits.astype(np.float64))
    return raw / raw.sum(axis=1, keepdims=True)


def random_outputs(m, c, seed=0):
    rng = generator(seed, "logits")
    return rng.normal(size=(m, c)).astype(np.float32), rng.integers(0, c, m)


def test_short_batches_count_by_their_size():
    closed = WLRC("logits", estimator="closed_form", batch_size=2)
    assert answer(closed) == pytest.approx(CLOSED, abs=1e-9)
    draws = 4000
    score = answer(WLRC("logits", draws=draws, batch_size=2))
    # Standard deviation of the weighted sum over the batches' sums, by enumeration.
    batches = (LOGITS[:2], LOGITS[2:4], LOGITS[4:])
    spread = [np.std(np.abs(all_signs(b.size) @ b.ravel())) * len(b) / (5 * b.size) for b in batches]
    assert abs(score - 0.9125) < 4 * np.linalg.norm(spread) / np.sqrt(draws)


def test_a_client_smaller_than_a_batch_is_one_batch():
    batch = LOGITS[4:]
    expected = monte_carlo_score(batch, all_signs(2))
    assert expected == 2.0
    assert answer(WLRC("logits", draws=3000), batch, LABELS[4:]) == pytest.approx(2.0, abs=4 * 0.5 / np.sqrt(3000))


@pytest.mark.parametrize("estimator", ["monte_carlo", "closed_form"])
def test_softmax_does_not_see_what_all_logits_have_in_common_and_logits_do(estimator):
    shifted = LOGITS + np.float32(2)
    assert answer(WLRC(estimator=estimator), shifted) == pytest.approx(answer(WLRC(estimator=estimator)), rel=1e-6)
    logits = WLRC("logits", estimator=estimator)
    assert abs(answer(logits, shifted) - answer(logits)) > 0.1


def test_softmax_scores_are_those_of_the_probabilities():
    probability = softmax(LOGITS)
    for estimator in ("monte_carlo", "closed_form"):
        a = answer(WLRC("softmax", estimator=estimator, batch_size=2))
        b = answer(WLRC("logits", estimator=estimator, batch_size=2), probability)
        assert a == pytest.approx(b, rel=1e-6)


@checks
@given(m=st.integers(1, 40), c=st.integers(2, 6), size=st.integers(1, 20), seed=st.integers(0, 99))
def test_softmax_scores_have_the_stated_ceiling(m, c, size, seed):
    logits, labels = random_outputs(m, c, seed)
    batches = np.diff([*range(0, m, size), m])
    # |F_b| <= sqrt(B_b), so a batch's expectation is at most 1 / (C sqrt(B_b)).
    ceiling = (batches / (c * np.sqrt(batches))).sum() / m
    closed = WLRC(estimator="closed_form", batch_size=size)
    assert answer(closed, 5 * logits, labels) <= ceiling * np.sqrt(2 / np.pi) * (1 + 1e-9)
    assert answer(closed, 5 * logits, labels) > answer(closed, 0 * logits, labels)  # uniform is the least certain


def test_the_order_inside_a_batch_does_not_matter_and_which_batch_does_little():
    logits, labels = random_outputs(64, 5)
    closed = WLRC(estimator="closed_form", batch_size=32)
    inside = np.r_[generator(1, "order").permutation(32), np.arange(32, 64)]
    assert answer(closed, logits[inside], labels[inside]) == pytest.approx(answer(closed, logits, labels), rel=1e-12)


def test_two_measurements_from_one_stream_agree_and_others_differ_by_their_noise():
    logits, labels = random_outputs(64, 5)
    score, closed = WLRC(draws=64), WLRC(estimator="closed_form")
    assert answer(score, logits, labels) == answer(score, logits, labels)
    tries = np.array([answer(score, logits, labels, seed=seed) for seed in range(200)])
    assert len(np.unique(tries)) == 200
    # Two batches of 64 draws each: relative standard error .756 / sqrt(128).
    error = answer(closed, logits, labels) * 0.756 / np.sqrt(128)
    assert abs(tries.mean() - answer(closed, logits, labels)) < 4 * error / np.sqrt(200) + 0.01 * error
    assert tries.std() == pytest.approx(error, rel=0.25)


def test_excess_losses_are_of_the_local_model_against_the_broadcast_one():
    before = np.zeros((5, 2), np.float32)
    score = WLRC("excess_loss", estimator="closed_form", batch_size=5)
    example = np.arange(5)
    excess = -np.log(softmax(LOGITS)[example, LABELS]) - np.log(2)
    expected = np.sqrt(2 / np.pi) * np.linalg.norm(excess) / 5
    assert answer(score, before=before) == pytest.approx(expected, rel=1e-6)
    assert answer(score, before=LOGITS.copy()) == 0
    assert answer(WLRC("excess_loss"), before=LOGITS.copy()) == 0


def test_only_excess_losses_want_the_broadcast_models_outputs():
    assert [WLRC(outputs).wants_before for outputs in ("softmax", "logits", "excess_loss")] == [False, False, True]
    assert WLRC().name == "wlrc"


@pytest.mark.parametrize("estimator", ["monte_carlo", "closed_form"])
def test_large_logits_do_not_overflow(estimator):
    logits = np.array([[1e30, -1e30], [-1e30, 1e30]], np.float32)
    assert np.isfinite(answer(WLRC(estimator=estimator), logits, np.array([0, 1])))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"outputs": "sofmax"}, r"WLRC\.outputs must be 'softmax', .*; got 'sofmax'\. Did you mean 'softmax'\?"),
        ({"estimator": "exact"}, r"WLRC\.estimator must be 'monte_carlo' or 'closed_form'; got 'exact'"),
        ({"draws": 0}, r"WLRC\.draws must be at least 1; got 0"),
        ({"batch_size": 0}, r"WLRC\.batch_size must be at least 1; got 0"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        WLRC(**options)
