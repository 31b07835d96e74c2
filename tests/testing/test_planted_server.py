"""Mistakes in server steps, aggregators and label statistics: each fails the check that is about it."""

from __future__ import annotations

import numpy as np
import pytest

from fedreach._util.streams import generator
from fedreach.federation import labels
from fedreach.federation.aggregation import Mean
from fedreach.federation.labels import DiscreteLaplace, Exact
from fedreach.federation.participation import Always
from fedreach.federation.server import Average, FedDF, FineTune, Safari, ServerOnly
from fedreach.testing.verify import check_built_in

from .planted import must_be_caught, noting

FAULTS = []
caught_by = noting(FAULTS)


# --------------------------------------------------------------------------------------------------------------- server


@caught_by("reproducible")
class KeepsItsVelocity(Average):
    def apply(self, params, state, mean_update):
        kept = self.__dict__.setdefault("kept", {})
        kept["steps"] = kept.get("steps", 0) + 1
        return (params + mean_update * (1 + 1 / kept["steps"])).astype(np.float32), state


@caught_by("resuming from a file")
class CountsInAWord(Average):
    def apply(self, params, state, mean_update):
        new, _ = super().apply(params, {}, mean_update)
        return new, {"rounds": state.get("rounds", "") + "I"}


@caught_by("moves along the update")
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


@caught_by("other batches in other rounds", batch_size=5)
class TheFirstExamplesInEveryRound(Safari):
    def learn(self, params, state, own):
        return own.step(params, np.arange(self.batch_size), self.lr), state


@caught_by("other batches in other rounds", batch_size=5, steps=2)
class TheBatchesOfRoundOne(FineTune):
    def learn(self, params, state, own):
        own.rng = generator(0, "server-batches", 1)
        return super().learn(params, state, own)


@caught_by("reproducible", batch_size=5, held_out=0.2, patience=2)
class WaitsByItself(ServerOnly):
    def learn(self, params, state, own):
        kept = self.__dict__.setdefault("kept", [])
        kept.append(0)
        return super().learn(params, {**state, "waited": np.array([len(kept) // 3])} if state else state, own)


@caught_by("declares reads updates")
class ReadsInSecret(FedDF):
    reads_updates = False


@caught_by("ignores weights as declared")
class VotesByExamples(Mean):
    linear = False
    ignores_weights = True


@caught_by("linear is the weighted sum")
class MedianThatSaysItIsLinear(Mean):
    linear = True

    def combine(self, state, weights, update, rng):
        return np.median(update, axis=0).astype(np.float64), state


@caught_by("order does not matter")
class FirstOfAll(Mean):
    def combine(self, state, weights, update, rng):
        return update[0].astype(np.float64), state


@caught_by("arguments untouched")
class ScalesInPlace(Mean):
    def combine(self, state, weights, update, rng):
        update *= 2
        return super().combine(state, weights / 2, update, rng)


# ------------------------------------------------------------------------------------------- labels, and who is reached


@caught_by("reproducible", epsilon=1.0)
class NoiseFromElsewhere(DiscreteLaplace):
    def release(self, counts, rng):
        return super().release(counts, np.random.default_rng())


@caught_by("arguments untouched", epsilon=1.0)
class NoiseInPlace(DiscreteLaplace):
    def release(self, counts, rng):
        counts += 1
        return super().release(counts - 1, rng)


@caught_by("zero updates change nothing")
class DecaysTheModel(Average):
    def apply(self, params, state, mean_update):
        return super().apply((0.9 * params).astype(np.float32), state, mean_update)


@caught_by("training depends on the stream")
class TossesItsOwnCoin(Safari):
    def trains(self, rng):
        return np.random.random() < 0.5  # noqa: NPY002 (that is the fault)


@caught_by("one update of many")
class SumInFloat32(Mean):
    def combine(self, state, weights, update, rng):
        return weights.astype(np.float32) @ update, state


@caught_by("reproducible")
class AddsNoiseOfItsOwn(Mean):
    linear = False

    def combine(self, state, weights, update, rng):
        combined, state = super().combine(state, weights, update, rng)
        return combined + np.random.standard_normal(combined.shape), state  # noqa: NPY002 (that is the fault)


@caught_by("resuming from a file")
class CountsRoundsInAWord(Mean):
    def combine(self, state, weights, update, rng):
        combined, _ = super().combine(state, weights, update, rng)
        return combined, {"rounds": state.get("rounds", "") + "I"}


@caught_by("counts of all clients")
class WholeNumbers(Exact):
    def release(self, counts, rng):
        return counts


@caught_by("one flag per client")
class OnesForFlags(Always):
    def available(self, n, rng):
        return np.ones(n, np.int64)


@caught_by("reproducible")
class TakesTurns(Always):
    def available(self, n, rng):
        turns = self.__dict__.setdefault("turns", [])
        turns.append(n)
        return np.arange(n) % 2 == len(turns) % 2


def test_an_entropy_in_bits_is_caught_through_the_statistics(monkeypatch):
    in_nats = labels.label_entropy
    monkeypatch.setattr(labels, "label_entropy", lambda counts: in_nats(counts) / np.log(2))
    results = check_built_in("label_statistics", "exact")
    assert "entropies in range" in {failure.check for failure in results.failures}


@pytest.mark.parametrize(("kind", "cls", "options", "check"), FAULTS)
def test_a_planted_fault_is_caught(kind, cls, options, check):
    must_be_caught(kind, cls, options, check)
