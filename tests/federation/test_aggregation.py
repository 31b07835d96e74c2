"""How updates become one: by the mean, or by one's own aggregator, which keeps a state for each model."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

import fedreach as fr
from fedreach._util.errors import ComponentError, ConfigError
from fedreach.federation.aggregation import Mean, total_change
from fedreach.federation.secure_aggregation import SecureAggregation
from fedreach.testing.problems import tiny_simulation


@dataclass(frozen=True)
class Median(fr.Aggregator):
    """The middle of the clients' numbers; counts its rounds, and jitters by its stream."""

    jitter: float = 0.0

    def combine(self, state, weights, update, rng):
        rounds = state.get("rounds", np.zeros(1)) + 1
        middle = np.median(update.astype(np.float64), axis=0)
        return middle + self.jitter * rng.standard_normal(len(middle)), {"rounds": rounds}


@dataclass(frozen=True)
class OwnMean(Mean):
    """The mean, written anew; says nothing of itself, so that the engine's faster sum is not used."""

    def combine(self, state, weights, update, rng):
        return super().combine(state, weights, update, rng)


def ran(aggregation, rounds=3):
    simulation = tiny_simulation()
    simulation = replace(simulation, federation=replace(simulation.federation, aggregation=aggregation))
    state, results = simulation.start(), []
    for _ in range(rounds):
        before = state
        state, result, update = simulation.step(state)
        results.append((before, result, update))
    return state, results


def test_the_mean_written_anew_gives_the_same_bits():
    assert Mean().linear
    assert not OwnMean().linear  # a new `combine` has to promise anew
    assert np.array_equal(ran(Mean())[0].models, ran(OwnMean())[0].models)


def test_an_aggregator_of_ones_own_moves_the_model_and_keeps_its_state():
    state, rounds = ran(Median())
    before, _, update = rounds[-1]
    moved = before.models[0].astype(np.float64) + np.median(update.astype(np.float64), axis=0)
    assert np.allclose(state.models[0], moved, atol=1e-6)
    assert state.aggregation[0]["rounds"] == 3


def test_its_stream_is_that_of_the_round():
    one, other = ran(Median(jitter=0.1))[0], ran(Median(jitter=0.1))[0]
    assert np.array_equal(one.models, other.models)
    assert not np.array_equal(one.models, ran(Median())[0].models)


def test_what_is_no_weighted_sum_is_refused_under_secure_aggregation():
    federation = tiny_simulation().federation
    assert replace(federation, label_statistics=SecureAggregation(), aggregation=Mean())
    with pytest.raises(ConfigError, match=r"Median is not a weighted sum. Use 'mean'"):
        replace(federation, label_statistics=SecureAggregation(), aggregation=Median())


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda update: update.mean(axis=0), "must return a pair, the update and the new state; got ndarray"),
        (lambda update: (update, {}), r"must return the \d+ numbers of one update; got shape \(2, \d+\)"),
    ],
)
def test_a_wrong_answer_is_named(answer, said):
    class Wrong(Median):
        def combine(self, state, weights, update, rng):
            return answer(update)

    with pytest.raises(ComponentError, match=f"Wrong.combine {said}"):
        ran(Wrong())


def test_changes_since_the_last_update_are_summed_in_double_precision():
    update, last = np.float32([[1.0], [1.0]]), np.float32([[2**-30], [0.0]])
    assert total_change(update, last).tolist() == [2 - 2**-30]
