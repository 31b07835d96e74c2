"""Mistakes that public code has made, and careless ones: each is caught, by the law that says what is wrong."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from fedreach import registry
from fedreach.evaluation.metrics import Accuracy, MeanLoss
from fedreach.federation.aggregation import Mean
from fedreach.federation.labels import DiscreteLaplace, SecureSum, released
from fedreach.federation.losses import CrossEntropy
from fedreach.federation.measurements import WLRC, Disagreement
from fedreach.federation.participation import Bernoulli
from fedreach.federation.selection import (
    CSRA,
    SELECTIONS,
    BestChannels,
    ConvexHull,
    EntropyTopK,
    KLFilter,
    MaxSimilarity,
    Minimax,
    Policy,
    PowerOfChoice,
    Uniform,
)
from fedreach.federation.server import Average, FedAdam, Safari
from fedreach.federation.solvers import FedDyn, FedProx, Scaffold
from fedreach.federation.values import ClientView, Probe, Selection
from fedreach.federation.weighting import ByEntropy, ByExamples
from fedreach.streams import generator
from fedreach.testing import trial
from fedreach.testing.worlds import with_rates
from fedreach.wireless.allocation.baselines import best_frequencies, best_shares, sqrt_sort
from fedreach.wireless.allocation.exact import allocate
from fedreach.wireless.allocation.problem import Allocation
from fedreach.wireless.allocation.rules import Equal as EqualShares
from fedreach.wireless.allocation.rules import Exact, Greedy
from fedreach.wireless.allocation.rules import Random as RandomShares

Clustered, Rademacher = SELECTIONS["clustered"], SELECTIONS["rademacher"]

FAULTS = []


def caught_by(law, kind=None, **options):
    """Note a faulty class, and the law that it must break."""

    def note(cls):
        FAULTS.append(pytest.param(kind or trial.kind_of(cls), cls, options, law, id=cls.__name__))
        return cls

    return note


# ------------------------------------------------------------------------------------------------------- solvers


@caught_by("golden scaffold")
class ScaffoldWithTheWrongSign(Scaffold):
    def prepare(self, memory, state, share):
        return {"drift": -super().prepare(memory, state, share)["drift"]}


@caught_by("clients keep their control variates")
class ScaffoldThatNeverStores(Scaffold):
    def remember(self, memory, state, update, steps, rate):
        return memory


@caught_by("c is the mean of all c i")
class ScaffoldWithoutTheShareOfReplies(Scaffold):
    def conclude(self, state, reports, mean_update, n):
        return super().conclude(state, reports, mean_update, len(reports.ids))


@caught_by("golden scaffold")
class ScaffoldStartedFromTheWeights(Scaffold):
    """The server's control variate begins as the model, here (.5, .5), and not as 0."""

    def prepare(self, memory, state, share):
        return super().prepare(memory, {"c": 0.5, **state}, share)


@caught_by("clients keep their control variates")
class ScaffoldThatCountsOneStep(Scaffold):
    def remember(self, memory, state, update, steps, rate):
        return super().remember(memory, state, update, np.ones_like(steps), rate)


@caught_by("own memory")
class FedDynByPosition(FedDyn):
    """Memory is looked up by place in the cohort and not by client."""

    def prepare(self, memory, state, share):
        rows = state.get("rows", np.zeros((0, memory.shape[1])))
        found = np.zeros_like(memory)
        found[: len(rows)] = rows[: len(memory)]
        return super().prepare(found, state, share)

    def conclude(self, state, reports, mean_update, n):
        step, new = super().conclude(state, reports, mean_update, n)
        rows = np.zeros((n, reports.trained.shape[1]))
        before = state.get("rows", rows[:0])
        rows[: len(before)] = before
        rows[: len(reports.ids)] += reports.trained
        return step, {**new, "rows": rows}


@caught_by("h is the mean over all participants")
class FedDynOverThoseWhoReplied(FedDyn):
    def conclude(self, state, reports, mean_update, n):
        return super().conclude(state, reports, mean_update, len(reports.ids))


@caught_by("feddyn finds the optimum")
class FedDynWithoutMemory(FedDyn):
    def correct(self, gradient, params, broadcast, pull, memory):
        return gradient + pull * (params - broadcast)


@caught_by("golden fedprox")
class FedProxWithTheWrongSign(FedProx):
    def correct(self, gradient, params, broadcast):
        return gradient - self.mu * (params - broadcast)


@caught_by("number by number")
@caught_by("golden fedprox")
class FedProxWithTheNormNotSquared(FedProx):
    def correct(self, gradient, params, broadcast):
        away = params - broadcast
        return gradient + self.mu * away / (1e-12 + (away * away).sum() ** 0.5)


@caught_by("affine if it says so")
class FedProxThatSaysToBeAffine(FedProx):
    affine: ClassVar[bool] = True

    def correct(self, gradient, params, broadcast):
        away = params - broadcast
        return gradient + self.mu * away * away * away


@caught_by("the same in torch")
@caught_by("arguments untouched")
class FedProxInPlace(FedProx):
    def correct(self, gradient, params, broadcast):
        gradient += self.mu * (params - broadcast)
        return gradient


@caught_by("stops where the clients balance")
class MemoryThatHelpsNobody(Scaffold):
    def correct(self, gradient, params, broadcast, drift):
        return gradient


@caught_by("stops where the clients balance")
class OwnMemoryTheWrongWay:
    """Control variates that are added where they must be subtracted, of no built-in part's family."""

    sends_note, sends_state = True, True

    def correct(self, gradient, params, broadcast, drift):
        return gradient - drift

    def prepare(self, memory, state, share):
        return {"drift": (state.get("c", 0.0) - memory).astype(np.float32)}

    def remember(self, memory, state, update, steps, rate):
        followed = update / (-rate * steps[:, None])
        return (memory - state.get("c", 0.0) + followed).astype(np.float32)

    def conclude(self, state, reports, mean_update, n):
        return mean_update, {"c": state.get("c", 0.0) + reports.note.sum(axis=0, dtype=np.float64) / n}

    def served(self, params, state):
        return params


@caught_by("arguments untouched")
class RemembersInPlace(FedDyn):
    def remember(self, memory, state, update, steps, rate):
        memory += update
        return memory


@caught_by("going on from a file")
class CountsRoundsInAList(FedDyn):
    def conclude(self, state, reports, mean_update, n):
        step, new = super().conclude(state, reports, mean_update, n)
        return step, {**new, "rounds": [*state.get("rounds", []), n]}


# ----------------------------------------------------------------------------------------------------- selection


def largest_cosines(rows):
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    cosine = (unit @ unit.T).astype(np.float64).round(12)
    np.fill_diagonal(cosine, -1)
    return cosine.max(axis=1, initial=-1)


@caught_by("nearest neighbours both stay")
class MinimaxByValue(Minimax):
    """The paper's set of values: of two clients with one value, the second vanishes."""

    def choose(self, ids, rows, k, rng, nearest=None):
        _, first = np.unique(largest_cosines(rows), return_index=True)
        return Selection(ids[first[:k]])


@caught_by("valid choice")
class MinimaxWithOneMore(Minimax):
    """The paper's loop ``while |chosen| <= k``."""

    def choose(self, ids, rows, k, rng, nearest=None):
        return super().choose(ids, rows, min(k + 1, len(ids)), rng, nearest)


@caught_by("golden minimax")
class MinimaxTheOtherWay(Minimax):
    def choose(self, ids, rows, k, rng, nearest=None):
        return MaxSimilarity().choose(ids, rows, k, rng)


@caught_by("lengths do not count")
class MinimaxByInnerProduct(Minimax):
    def choose(self, ids, rows, k, rng, nearest=None):
        product = (rows @ rows.T).astype(np.float64)
        np.fill_diagonal(product, -np.inf)
        return Selection(ids[np.argsort(product.max(axis=1), kind="stable")[:k]])


@caught_by("valid choice")
class HullWithDuplicates(ConvexHull):
    def choose(self, ids, rows, k, rng):
        found = super().choose(ids, rows, k, rng).ids
        return Selection(np.r_[found[:1], found[:-1]] if len(found) > 1 else found)


@caught_by("candidates in proportion to examples")
class CandidatesDrawnUniformly(PowerOfChoice):
    def _candidates(self, view, k, rng):
        alike = replace(view, num_examples=np.ones_like(view.num_examples))
        return super()._candidates(alike, k, rng)


@caught_by("only candidates")
class PlaceAmongTheCandidates(PowerOfChoice):
    """The wrong clients where there are fewer candidates than clients."""

    def select(self, state, view, k, rng):
        place = np.argsort(-view.loss[view.probed], kind="stable")[:k]
        return Selection(view.ids[place])


@caught_by("golden divergences")
class KLInTheWrongDirection(KLFilter):
    def select(self, state, view, k, rng):
        other = {"global_to_local": "local_to_global", "local_to_global": "global_to_local"}[self.direction]
        right = KLFilter(self.threshold, other, self.smoothing, self.min_examples, self.infeasible)
        return right.select(state, view, k, rng)


@caught_by("the most varied labels")
class LeastEntropy(EntropyTopK):
    def select(self, state, view, k, rng):
        return super().select(state, replace(view, label_entropy=-view.label_entropy), k, rng)


@caught_by("golden split")
class ClustersOfOtherClients(Clustered):
    """The right sides, but those of the clients in reverse order."""

    def clusters(self, state):
        return super().clusters(state)[::-1]


@caught_by("the lowest score is best")
class HighestScoreIsBest(Rademacher):
    def __init__(self):
        super().__init__(n_clusters=3)  # their number is not what is wrong, and looking for it takes long

    def scores(self, state, view):
        return -super().scores(state, view)


@caught_by("every set equally often")
class NeighboursOnly(Uniform):
    """Each client is chosen equally often, and always beside the same ones."""

    def select(self, state, view, k, rng):
        ids = view.ids[view.available]
        return Selection(np.roll(ids, rng.integers(len(ids)))[:k])


@caught_by("valid choice")
class PositionsForIds(Policy):
    def select(self, state, view, k, rng):
        return Selection(np.flatnonzero(view.available)[:k])


@caught_by("valid choice")
class DeafToAvailability(Policy):
    def select(self, state, view, k, rng):
        return Selection(view.ids[:k])


@caught_by("arguments untouched")
class WritesToTheView(Policy):
    def select(self, state, view, k, rng):
        view.loss[np.isnan(view.loss)] = np.inf
        order = np.argsort(-view.loss[view.available], kind="stable")
        return Selection(view.ids[view.available][order[:k]])


@caught_by("arguments untouched")
class WritesToItsState(Policy):
    """Longest waiting first; the count goes up in place."""

    def init(self, view):
        return {"ids": view.ids, "waited": np.arange(len(view.ids))}

    def select(self, state, view, k, rng):
        order = np.argsort(-state["waited"][view.available], kind="stable")
        return Selection(view.ids[view.available][order[:k]])

    def observe(self, state, reports):
        state["waited"][:] += 1
        state["waited"][np.searchsorted(state["ids"], reports.ids)] = 0
        return state


@caught_by("same again")
class GlobalGenerator(Policy):
    def select(self, state, view, k, rng):
        ids = np.random.permutation(view.ids[view.available])  # noqa: NPY002 (that is the fault)
        return Selection(ids[:k])


@caught_by("same again")
class CountsInItself(Policy):
    def __init__(self):
        self.rounds = 0

    def select(self, state, view, k, rng):
        self.rounds += 1
        return Selection(np.roll(view.ids[view.available], self.rounds)[:k])


@caught_by("renaming")
class LowIdsFirst(Policy):
    def select(self, state, view, k, rng):
        return Selection(view.ids[view.available][:k])


@caught_by("renaming")
class LowIdsMoreOften(Policy):
    def select(self, state, view, k, rng):
        ids = view.ids[view.available]
        p = 10.0 ** -np.arange(len(ids))
        return Selection(rng.choice(ids, size=k, replace=False, p=p / p.sum()))


@caught_by("open about updates")
class QuietlyByUpdates(Policy):
    def init(self, view: ClientView):
        return {"ids": view.ids, "length": np.zeros(len(view.ids))}

    def probe(self, state, view, k, rng):
        return Probe(view.ids[view.available], asks="update")

    def select(self, state, view, k, rng):
        order = np.argsort(-state["length"][view.available], kind="stable")
        return Selection(view.ids[view.available][order[:k]])

    def observe(self, state, reports):
        length = state["length"].copy()
        length[np.searchsorted(state["ids"], reports.ids)] = reports.trained[:, 0]
        return {**state, "length": length}


@caught_by("going on from a file")
class StateOfLists(Policy):
    def init(self, view):
        return {"seen": []}

    def select(self, state, view, k, rng):
        return Selection(rng.choice(view.ids[view.available], size=k, replace=False))


@caught_by("cohort size")
class StopsHalfWay(Policy):
    def select(self, state, view, k, rng):
        return Selection(rng.choice(view.ids[view.available], size=-(-k // 2), replace=False))


@caught_by("valid choice")
class NeedsWhatItDidNotAskFor(Policy):
    def select(self, state, view, k, rng):
        return Selection(view.ids[view.available][np.argsort(view.label_entropy[view.available])[:k]])


@dataclass
class Changeable(Policy):
    rate: float = 1.0

    def select(self, state, view, k, rng):
        return Selection(rng.choice(view.ids[view.available], size=k, replace=False))


caught_by("options are all it is")(Changeable)


# ----------------------------------------------------------------------------------------------------- weighting


class Weighs:
    """A plain weighting of which one line is wrong."""

    def weights(self, state, reports):
        raw = self.number(reports)
        return raw / raw.sum(), state


@caught_by("simplex")
class DoesNotSumToOne:
    def weights(self, state, reports):
        return reports.metrics["num_examples"] / 100, state


@caught_by("order does not count")
class FirstCountsMore(Weighs):
    def number(self, reports):
        return 1.0 / np.arange(1, len(reports.ids) + 1)


@caught_by("golden entropy")
class EntropyInBits(ByEntropy):
    def weights(self, state, reports):
        bits = {"label_entropy": reports.metrics["label_entropy"] / np.log(2)}
        return super().weights(state, replace(reports, metrics=reports.metrics | bits))

    def raw(self, metrics):
        return super().raw({"label_entropy": metrics["label_entropy"] / np.log(2)})


@caught_by("raw is each clients own")
class RawAmongOthers(ByExamples):
    def raw(self, metrics):
        return metrics["num_examples"] / metrics["num_examples"].max()


@caught_by("raw gives the weights")
class RawOfSomethingElse(ByExamples):
    def raw(self, metrics):
        return np.sqrt(metrics["num_examples"])

    def weights(self, state, reports):
        return reports.metrics["num_examples"] / reports.metrics["num_examples"].sum(), state


@caught_by("arguments untouched")
class SortsTheReports(Weighs):
    def number(self, reports):
        reports.metrics["loss"].sort()
        return np.ones(len(reports.ids))


@caught_by("same again")
class WeighsByChance(Weighs):
    def number(self, reports):
        return np.random.random(len(reports.ids))  # noqa: NPY002 (that is the fault)


@caught_by("going on from a file")
class RemembersWords(Weighs):
    def weights(self, state, reports):
        weights, _ = super().weights(state, reports)
        return weights, {"last": np.array(["equal"])}

    def number(self, reports):
        return np.ones(len(reports.ids))


# -------------------------------------------------------------------------------------------------- measurements


@caught_by("bounds are clamped")
class UnclampedBounds(Disagreement):
    """The paper's formulas as printed, for 0-1 losses."""

    def measure(self, outputs, rng):
        if self.loss != "zero_one":
            return super().measure(outputs, rng)
        wrong = (outputs.logits.argmax(axis=1) != outputs.labels).astype(np.float64)
        m, v = wrong.mean(), wrong.var(ddof=1) if len(wrong) > 1 else 0.0
        d = self.step * np.arange(1, round(self.radius / self.step) + 1)
        s, c = 1 - d**2, d * np.sqrt(2 - d**2)
        up = 1 - (s * (1 - m) - c * np.sqrt(v)) ** 2 / max(1 - m, 1e-12)
        low = (s * m - c * np.sqrt(v)) ** 2 / max(m, 1e-12)
        return float((up - low).sum())


@caught_by("golden jsd")
class DivergenceInNats(Disagreement):
    def measure(self, outputs, rng):
        return super().measure(outputs, rng) * (np.log(2) ** 2 if self.loss == "jsd" else 1)


def signed_means(part, outputs, rng):
    """Return each batch's size and its signed means, one for each draw."""
    values = outputs.logits.astype(np.float64)
    for begin in range(0, len(values), part.batch_size):
        batch = values[begin : begin + part.batch_size]
        signs = rng.integers(2, size=(part.draws, batch.size)) * 2 - 1
        yield len(batch), signs @ batch.ravel() / batch.size


@caught_by("golden score")
class AbsoluteValueOutsideTheMean(WLRC):
    def measure(self, outputs, rng):
        batches = list(signed_means(self, outputs, rng))
        return sum(size * abs(draws.mean()) for size, draws in batches) / sum(size for size, _ in batches)


@caught_by("golden score")
class LastBatchOnly(WLRC):
    """What the server keeps if clients send inside the loop over batches."""

    def measure(self, outputs, rng):
        return float([np.abs(draws).mean() for _, draws in signed_means(self, outputs, rng)][-1])


@caught_by("golden score")
class BatchesCountAlike(WLRC):
    def measure(self, outputs, rng):
        return float(np.mean([np.abs(draws).mean() for _, draws in signed_means(self, outputs, rng)]))


@caught_by("a finite number")
class LogOfProbability:
    wants_before: ClassVar[bool] = False
    name = "log_p"

    def measure(self, outputs, rng):
        p = np.exp(outputs.logits.astype(np.float64))
        p = p / p.sum(axis=1, keepdims=True)
        return float(np.log(p[np.arange(len(p)), outputs.labels]).mean())


@caught_by("same again")
class MeasuresByChance(WLRC):
    def measure(self, outputs, rng):
        return super().measure(outputs, np.random.default_rng())


@caught_by("arguments untouched")
class MeasuresInPlace(WLRC):
    def measure(self, outputs, rng):
        outputs.logits[:] -= outputs.logits.max()
        return super().measure(outputs, rng)


# -------------------------------------------------------------------------------------------------------- server


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


# ------------------------------------------------------------------------------------- labels, and who is reached


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


# ------------------------------------------------------------------------------------------------ radio, allocation


@caught_by("the best channels")
class WorstChannels(BestChannels):
    def select(self, state, view, k, rng):
        return super().select(state, with_rates(view, 1 / view.radio.bits_per_second), k, rng)


@caught_by("no set is cheaper", threshold=10.0)
class TakesTheCheapestFirst(CSRA):
    def _searched(self, problem, min_examples, rng):
        return allocate(problem.only(sqrt_sort(problem, min_examples))), ""


@caught_by("golden choice", threshold=10.0)
class ForgetsTheJoules(CSRA):
    def _searched(self, problem, min_examples, rng):
        return super()._searched(replace(problem, joules_price=0.0), min_examples, rng)


@caught_by("the filter comes first")
class Unfiltered(CSRA):
    def admitted(self, view, k):
        return CSRA(threshold=np.inf, min_examples=self.min_examples).admitted(view, k)


@caught_by("one number an example", kind="loss")
class LossOfTheBatch(CrossEntropy):
    def per_example(self, outputs, targets):
        return super().per_example(outputs, targets).mean()


@caught_by("downhill", kind="loss")
class GradientTheWrongWay(CrossEntropy):
    def per_example(self, outputs, targets):
        loss = super().per_example(outputs, targets)
        return 2 * loss.detach() - loss


@caught_by("each example by itself", kind="loss")
class LossRelativeToTheBatch(CrossEntropy):
    def per_example(self, outputs, targets):
        loss = super().per_example(outputs, targets)
        return loss / loss.sum()


@caught_by("nats of the right class", kind="loss")
class LossInBits(CrossEntropy):
    def per_example(self, outputs, targets):
        return super().per_example(outputs, targets) / np.log(2)


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


@caught_by("share that is right")
class CountsTheRightOnes(Accuracy):
    def of(self, labels, scores):
        return float((scores.argmax(axis=1) == labels).sum())


@caught_by("nats of the truth")
class LossOfThePredicted(MeanLoss):
    def of(self, labels, scores):
        return super().of(scores.argmax(axis=1), scores)


@caught_by("whatever the order")
class OfTheFirstHalf(Accuracy):
    def of(self, labels, scores):
        half = len(labels) // 2 + 1
        return super().of(labels[:half], scores[:half])


@caught_by("band and frequencies are kept")
class GivesTheBandTwice(EqualShares):
    def allocate(self, problem, rng):
        given = super().allocate(problem, rng)
        return Allocation.of(problem, slice(None), np.minimum(2 * given.share, 1), given.hertz)


@caught_by("costs are those of the formulas")
class BillsTheWholeBand(EqualShares):
    """Power is paid for the time over the whole band, and not for that over the client's share."""

    def allocate(self, problem, rng):
        given = super().allocate(problem, rng)
        return replace(given, upload_joules=given.upload_joules * given.share)


@caught_by("same again")
class DividesByChance(EqualShares):
    def allocate(self, problem, rng):
        share = np.random.dirichlet(np.ones(len(problem)))  # noqa: NPY002 (that is the fault)
        return Allocation.of(problem, slice(None), share, super().allocate(problem, rng).hertz)


@caught_by("arguments untouched")
class SlowsTheDevicesDown(EqualShares):
    def allocate(self, problem, rng):
        problem.max_hertz[:] *= 0.5
        return super().allocate(problem, rng)


@caught_by("golden optimum")
class AlternatesOnce(Exact):
    """Shares for given frequencies, then frequencies for these shares, as in the paper's algorithm 2."""

    def allocate(self, problem, rng):
        share = best_shares(problem, problem.max_hertz)
        return Allocation.of(problem, slice(None), share, best_frequencies(problem, share).hertz)


@caught_by("best single frequency")
class PrintedFrequency(Greedy):
    def allocate(self, problem, rng):
        return Greedy(frequency="printed").allocate(problem, rng)


@caught_by("band goes where it gains most")
class PrintedSign(Greedy):
    """The largest of the negative gains is the smallest gain."""

    def allocate(self, problem, rng):
        worth = (problem.seconds_price + problem.joules_price * problem.power_watts) * problem.upload_seconds
        share = np.where(worth == worth.min(), 1 - 0.01 * (len(problem) - 1), 0.01)
        return Allocation.of(problem, slice(None), share, super().allocate(problem, rng).hertz)


@caught_by("drawn evenly")
class DrawsThenScales(RandomShares):
    """Uniform numbers divided by their sum are not Dirichlet(1), but their mean is: frequencies tell."""

    def allocate(self, problem, rng):
        given = super().allocate(problem, rng)
        return Allocation.of(problem, slice(None), given.share, rng.uniform(0.0, 1.0, len(problem)) * problem.max_hertz)


# -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "cls", "options", "law"), FAULTS)
def test_a_planted_fault_is_caught_by_the_law_that_says_it(kind, cls, options, law):
    found = trial.verdict(kind, cls(**options), options=options)
    broken = {breach.law: breach for breach in found.broken}
    assert law in broken, f"broken were {sorted(broken)}"
    assert not found.skipped
    said = str(broken[law])
    assert said.startswith(f'{cls.__name__} breaks the law "{law}": ')
    assert broken[law].happened
    assert "Traceback" not in said


def test_a_fault_below_a_part_is_caught_through_the_part(monkeypatch):
    def unclamped(mean, variance, distance):
        shift = np.square(np.asarray(distance))
        return ((1 - shift) * mean - np.sqrt(shift * (2 - shift) * variance)) ** 2 / np.maximum(mean, 1e-12)

    monkeypatch.setattr("fedreach.theory.disagreement._shrunk", unclamped)
    found = trial.verdict_of_built_in("measurement", "disagreement")
    assert "bounds are clamped" in {breach.law for breach in found.broken}
    monkeypatch.undo()

    in_nats = released.label_entropy
    monkeypatch.setattr(released, "label_entropy", lambda counts: in_nats(counts) / np.log(2))
    found = trial.verdict_of_built_in("weighting", "entropy")
    assert "golden entropy" in {breach.law for breach in found.broken}
    found = trial.verdict_of_built_in("label_statistics", "exact")
    assert "entropies in range" in {breach.law for breach in found.broken}


def test_there_are_faults_of_every_kind():
    elsewhere = {"serving"}  # test_planted_serving.py
    assert {fault.values[0] for fault in FAULTS} == set(registry.VERIFIED) - elsewhere
    assert len(FAULTS) >= 50
