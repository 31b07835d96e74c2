"""Mistakes in what the server does and is told: each is caught, by the law that says what is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from fedreach.federation.aggregation import Mean
from fedreach.federation.labels import DiscreteLaplace, SecureSum
from fedreach.federation.participation import Bernoulli
from fedreach.federation.server import Average, FedAdam, Safari
from fedreach.streams import generator

from .planted import check_caught, noting

FAULTS = []
caught_by = noting(FAULTS)


# --------------------------------------------------------------------------------------------------------------- server


@caught_by("same again")
class KeepsItsVelocity(Average):
    def apply(self, params, state, mean_update):
        kept = self.__dict__.setdefault("kept", {})
        kept["steps"] = kept.get("steps", 0) + 1
        return (params + mean_update * (1 + 1 / kept["steps"])).astype(np.float32), state


@caught_by("going on from a file")
class CountsInAWord(Average):
    def apply(self, params, state, mean_update):
        new, _ = super().apply(params, {}, mean_update)
        return new, {"rounds": state.get("rounds", "") + "I"}


@caught_by("momentum adds up")
class ForgetsItsVelocity(Average):
    def apply(self, params, state, mean_update):
        return super().apply(params, {}, mean_update)


@caught_by("where the clients went")
class GoesTheOtherWay(Average):
    def apply(self, params, state, mean_update):
        return super().apply(params, state, -mean_update)


@caught_by("a new model")
class ForgetsTheType(Average):
    def apply(self, params, state, mean_update):
        return params + mean_update, state


@caught_by("arguments untouched")
class AddsInPlace(Average):
    def apply(self, params, state, mean_update):
        params += mean_update.astype(np.float32)
        return params, state


@caught_by("arguments untouched")
class SlowsItsStateDown(Average):
    def apply(self, params, state, mean_update):
        velocity = state.get("velocity", np.zeros(len(params)))
        velocity *= 0.5
        return (params + mean_update + velocity).astype(np.float32), {"velocity": velocity + mean_update}


@caught_by("adam by hand")
class AdamCorrectedForItsStart(FedAdam):
    def apply(self, params, state, mean_update):
        t = state.get("t", np.zeros(1)) + 1
        new, kept = super().apply(params, {key: value for key, value in state.items() if key != "t"}, mean_update)
        moved = (new - params) / (1 - self.beta1 ** t[0])
        return (params + moved).astype(np.float32), {**kept, "t": t}


@caught_by("the coin")
class SharesItsCoin(Safari):
    """The coin is drawn from the stream that also chooses clients."""

    def trains(self, rng):
        return super().trains(generator(0, "select", 1))


@caught_by("the coin")
class TurnedCoin(Safari):
    def trains(self, rng):
        return not super().trains(rng)


# ---------------------------------------------------------------------------------------------------------- aggregation


@caught_by("the weighted mean")
class MeanInFloat32(Mean):
    def combine(self, state, weights, update, rng):
        return (weights.astype(np.float32) @ update).astype(np.float64), state


@caught_by("linear is the weighted sum")
class MedianThatSaysItIsLinear(Mean):
    linear = True

    def combine(self, state, weights, update, rng):
        return np.median(update, axis=0).astype(np.float64), state


@caught_by("whatever the order")
class FirstOfAll(Mean):
    def combine(self, state, weights, update, rng):
        return update[0].astype(np.float64), state


@caught_by("arguments untouched")
class ScalesInPlace(Mean):
    def combine(self, state, weights, update, rng):
        update *= 2
        return super().combine(state, weights / 2, update, rng)


# ------------------------------------------------------------------------------------------- labels, and who is reached


@caught_by("same again", epsilon=1.0)
class NoiseFromElsewhere(DiscreteLaplace):
    def release(self, counts, rng):
        return super().release(counts, np.random.default_rng())


@caught_by("arguments untouched", epsilon=1.0)
class NoiseInPlace(DiscreteLaplace):
    def release(self, counts, rng):
        counts += 1
        return super().release(counts - 1, rng)


@caught_by("discrete laplace noise", epsilon=1.0)
class NoiseForOneCountOnly(DiscreteLaplace):
    """Replacing an example changes two counts, not one."""

    def release(self, counts, rng):
        return DiscreteLaplace(2 * self.epsilon).release(counts, rng)


@caught_by("the sum is the weighted mean")
class TellsTheCounts(SecureSum):
    def release(self, counts, rng):
        return counts.astype(np.float64)


@caught_by("one does not tell of another", act_prob=0.5)
class AllOrNobody(Bernoulli):
    def available(self, n, rng):
        return np.full(n, rng.random() < self.act_prob)


@caught_by("as often as it says", act_prob=0.5)
class ReachedTooOften(Bernoulli):
    def available(self, n, rng):
        return rng.random(n) < self.act_prob**0.5


# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "cls", "options", "law"), FAULTS)
def test_a_planted_fault_is_caught_by_the_law_that_says_it(kind, cls, options, law):
    check_caught(kind, cls, options, law)
