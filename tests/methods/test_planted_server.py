"""Mistakes in what the server does and is told: each is caught by the check that is about it."""

from __future__ import annotations

import numpy as np
import pytest

from fedreach._util.streams import generator
from fedreach.federation.aggregation import MIFA, FedVARP, Mean
from fedreach.federation.labels import DiscreteLaplace
from fedreach.federation.participation import Bernoulli
from fedreach.federation.robust import (
    CenteredClipping,
    GeometricMedian,
    Krum,
    Median,
    MultiKrum,
    NormBound,
    TrimmedMean,
    mean_of_nearest,
)
from fedreach.federation.secure_aggregation import SecureAggregation
from fedreach.federation.server import Average, FedAdam, FedAvgM, FedDF, FineTune, Safari, ServerOnly

from .planted import must_be_caught, noting

FAULTS = []
caught_by = noting(FAULTS)


@caught_by("momentum adds up")
class ForgetsItsVelocity(Average):
    def apply(self, params, state, mean_update):
        return super().apply(params, {}, mean_update)


@caught_by("average with momentum")
class DampsTheUpdate(FedAvgM):
    """As torch's `dampening`: v is a mean of updates and no sum."""

    def apply(self, params, state, mean_update):
        return super().apply(params, state, (1 - self.momentum) * mean_update)


@caught_by("average with momentum")
class LooksAhead(FedAvgM):
    """Nesterov's momentum."""

    def apply(self, params, state, mean_update):
        _, new = super().apply(params, state, mean_update)
        velocity = new.get("velocity", mean_update)
        return (params + self.lr * (mean_update + self.momentum * velocity)).astype(np.float32), new


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
class TossesOnce(Safari):
    """The same coin in every round."""

    def trains(self, rng):
        return super().trains(generator(0, "coin", 1))


@caught_by("the coin")
class TurnedCoin(Safari):
    def trains(self, rng):
        return not super().trains(rng)


@caught_by("sgd from the aggregated model")
class StepsFromWhereItWas(FineTune):
    """All gradients at the aggregated model."""

    def learn(self, params, state, own):
        moved = [super().learn(params, state, own)[0] - params]
        more = [own.step(params, own.rng.permutation(own.examples)[: self.batch_size], self.lr) - params]
        return (params + sum(moved + more)).astype(np.float32), state


@caught_by("tunes when it says")
class TunesAtTheBeginning(FineTune):
    def tunes(self, round_, rounds):
        return self.steps != 0 and (self.when == "each_round" or round_ == 1)


@caught_by("tunes when it says")
class TunesByNoSteps(FineTune):
    def tunes(self, round_, rounds):
        return self.when == "each_round" or round_ == rounds


@caught_by("clients rounds are those of inner")
class ForgetsInner(FineTune):
    def apply(self, params, state, mean_update):
        return (params + mean_update).astype(np.float32), state


@caught_by("stops by what it holds out")
class StopsByWhatItTrainsOn(ServerOnly):
    def learn(self, params, state, own):
        if self.held_out is not None:
            loss, (train, _) = own.loss, own.split(self.held_out)
            own.loss = lambda model, index: loss(model, train)
        return super().learn(params, state, own)


@caught_by("stops by what it holds out")
class TrainsOnAll(ServerOnly):
    def learn(self, params, state, own):
        split = own.split
        own.split = lambda held_out: (np.arange(own.examples), split(held_out)[1])
        return super().learn(params, state, own)


@caught_by("stops by what it holds out")
class HandsOutTheLastModel(ServerOnly):
    def learn(self, params, state, own):
        best, state = super().learn(params, state, own)
        return state.get("at", best), state


@caught_by("stops by what it holds out")
class NeverStops(ServerOnly):
    def learn(self, params, state, own):
        return super().learn(params, {**state, "waited": np.array([0])} if state else state, own)


@caught_by("labels are not looked at")
class DistilsTowardsTheLabels(FedDF):
    def learn(self, params, state, own):
        towards = np.eye(params.size // own.x.shape[1], dtype=np.float32)
        distill = own.distill
        own.distill = lambda model, index, teacher, rate: distill(model, index, teacher + towards[own.y[index]], rate)
        return super().learn(params, state, own)


@caught_by("distils the mean of the logits")
class MeanOfTheProbabilities(FedDF):
    """What FedDF is not: the log of the mean of the clients' softmax outputs as the teacher."""

    def learn(self, params, state, own):
        logits = own.logits

        def probabilities(model, index):
            said = np.exp(logits(model, index))
            return said / said.sum(axis=1, keepdims=True)

        own.logits = probabilities
        distill = own.distill
        own.distill = lambda model, index, teacher, rate: distill(model, index, np.log(teacher), rate)
        return super().learn(params, state, own)


@caught_by("distils the mean of the logits")
class TheFirstClientCountsTwice(FedDF):
    """A weighted mean."""

    def learn(self, params, state, own):
        own.local = np.concatenate([own.local[:1], own.local])
        return super().learn(params, state, own)


@caught_by("who agrees teaches nothing")
class TheSumOfTheLogits(FedDF):
    def learn(self, params, state, own):
        distill, clients = own.distill, len(own.local)
        own.distill = lambda model, index, teacher, rate: distill(model, index, clients * teacher, rate)
        return super().learn(params, state, own)


# ---------------------------------------------------------------------------------------------------------- aggregation


@caught_by("the weighted mean")
class MeanInFloat32(Mean):
    def combine(self, state, weights, update, rng):
        return (weights.astype(np.float32) @ update).astype(np.float64), state


@caught_by("as the papers loop of fedvarp")
class ForgetsWhatWasSent(FedVARP):
    """Stale rows: they are added to the mean and never taken off again."""

    def combine(self, state, weights, update, rng, *, last, n):
        return super().combine(state, weights, update, rng, last=np.zeros_like(last), n=n)


@caught_by("as the papers loop of fedvarp")
class MeanOverWhoIsThere(FedVARP):
    """Takes the cohort for all."""

    def combine(self, state, weights, update, rng, *, last, n):
        return super().combine(state, weights, update, rng, last=last, n=len(update))


@caught_by("as the papers loop of fedvarp")
class SumOverTheCohort(FedVARP):
    """Without 1/r."""

    def combine(self, state, weights, update, rng, *, last, n):
        step, new = super().combine(state, weights, update, rng, last=last, n=n)
        return step + (len(update) - 1) * (step - state.get("mean", 0.0)), new


@caught_by("the mean where all are there")
class AddsTheNewMean(FedVARP):
    """Adds the mean of the y_j after they became this round's."""

    def combine(self, state, weights, update, rng, *, last, n):
        step, new = super().combine(state, weights, update, rng, last=last, n=n)
        return step - state.get("mean", 0.0) + new["mean"], new


@caught_by("as the papers loop of mifa")
class OneRoundLate(MIFA):
    """Steps along the mean before this round's updates are in it."""

    def combine(self, state, weights, update, rng, *, last, n):
        new, kept = super().combine(state, weights, update, rng, last=last, n=n)
        return np.asarray(state.get("mean", 0.0) + 0.0 * new), kept


@caught_by("as the papers loop of mifa")
class MeanOfTheCohortOnly(MIFA):
    """Divides by how many are there."""

    def combine(self, state, weights, update, rng, *, last, n):
        return super().combine(state, weights, update, rng, last=last, n=len(update))


@caught_by("as the papers loop of mifa")
class CountsTwice(MIFA):
    """Adds a client's new update and keeps its old one."""

    def combine(self, state, weights, update, rng, *, last, n):
        return super().combine(state, weights, update, rng, last=0 * last, n=n)


@caught_by("the median of each number")
class UpperMedian(Median):
    """Takes the larger of two middle numbers."""

    def center(self, state, rows, f):
        return np.concatenate([np.sort(block, axis=0)[len(rows) // 2] for _, block in rows.blocks()]), state


@caught_by("the mean without the ends")
class TrimsOneEnd(TrimmedMean):
    def center(self, state, rows, f):
        return np.concatenate([np.sort(b, axis=0)[: len(rows) - f].mean(axis=0) for _, b in rows.blocks()]), state


@caught_by("a liar moves it little")
class TrimsNothing(TrimmedMean):
    def center(self, state, rows, f):
        return super().center(state, rows, 0)


@caught_by("the iterations of weiszfeld")
class OneIterationFewer(GeometricMedian):
    def center(self, state, rows, f):
        return GeometricMedian(iterations=self.iterations - 1).center(state, rows, f)


@caught_by("the mean of the nearest")
class DropsTwiceAsMany(MultiKrum):
    def center(self, state, rows, f):
        return mean_of_nearest(rows, f, len(rows) - 2 * f), state


@caught_by("the nearest update")
class SecondNearest(Krum):
    def center(self, state, rows, f):
        return 2 * mean_of_nearest(rows, f, 2) - mean_of_nearest(rows, f, 1), state


@caught_by("clipped around the last center")
class ForgetsTheCenter(CenteredClipping):
    def center(self, state, rows, f):
        return super().center({}, rows, f)


@caught_by("shortened to the median length")
class ShortensToTheMean(NormBound):
    def combine(self, state, weights, update, rng):
        mean = float(np.linalg.norm(update.astype(np.float64), axis=1).mean())
        return NormBound(bound=mean).combine(state, weights, update, rng)


@caught_by("discrete laplace noise", epsilon=1.0)
class NoiseForOneCountOnly(DiscreteLaplace):
    """Replacing an example changes two counts, not one."""

    def release(self, counts, rng):
        return DiscreteLaplace(2 * self.epsilon).release(counts, rng)


@caught_by("the sum is the weighted mean")
class TellsTheCounts(SecureAggregation):
    def release(self, counts, rng):
        return counts.astype(np.float64)


@caught_by("one does not tell of another", act_prob=0.5)
class AllOrNobody(Bernoulli):
    def available(self, n, rng):
        return np.full(n, rng.random() < self.act_prob)


@caught_by("as often as it says", act_prob=0.5)
class TheSameClientsInEveryRound(Bernoulli):
    def available(self, n, rng):
        return super().available(n, generator(0, "participation", 1))


@caught_by("as often as it says", act_prob=0.5)
class ReachedTooOften(Bernoulli):
    def available(self, n, rng):
        return rng.random(n) < self.act_prob**0.5


@pytest.mark.parametrize(("kind", "cls", "options", "check"), FAULTS)
def test_a_planted_fault_is_caught(kind, cls, options, check):
    must_be_caught(kind, cls, options, check)
