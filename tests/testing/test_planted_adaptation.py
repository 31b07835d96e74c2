"""Mistakes in adaptation rules: each fails the check that is about it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

import fedreach as fr
from fedreach.federation.adaptation.base import log_softmax
from fedreach.federation.adaptation.few_labels import FewLabels
from fedreach.federation.adaptation.label_shift import LabelShift
from fedreach.federation.adaptation.methods import BatchNormRefresh
from fedreach.federation.types import NO_STATE

from .own_rule import Own
from .planted import must_be_caught, noting

FAULTS = []
caught_by = noting(FAULTS)


@caught_by("batches do not matter")
class LastBatch(BatchNormRefresh):
    """Statistics are those of the latest inputs, which forget the ones before."""

    def update(self, state, client, outputs):
        return super().update(state, {}, outputs)


@caught_by("inputs are independent")
class RefreshedWhenPredicting(BatchNormRefresh):
    """What is predicted together is normalised together."""

    def predict(self, state, client, outputs):
        statistics = outputs.statistics.refreshed(outputs.inputs, self.strength)
        return super().predict(state, {**client, "statistics": statistics}, outputs)


@caught_by("no labels no change")
class SmoothedWithoutLabels(FewLabels):
    def with_labels(self, state, outputs, labels):
        if len(labels):
            return super().with_labels(state, outputs, labels)
        c = outputs.logits.shape[1]
        return {"head": np.vstack([np.zeros((outputs.features.shape[1], c)), 0.1 * np.arange(c)])}


LAST_HEAD = {}


@caught_by("known labels affect one client")
class HeadsLeak(FewLabels):
    """The head of the latest client, kept where everybody finds it."""

    def with_labels(self, state, outputs, labels):
        LAST_HEAD["head"] = super().with_labels(state, outputs, labels)["head"]
        return {"head": LAST_HEAD["head"]}

    def predict(self, state, client, outputs):
        return super().predict(state, LAST_HEAD or client, outputs)


@caught_by("known labels affect one client")
class HowManyIsUnsaid(FewLabels):
    labels = -1

    def __init__(self):
        object.__setattr__(self, "strength", 1.0)


@caught_by("classes in any order")
class KnowsTheFirstClass(FewLabels):
    """Labels of class 0 are taken for a gap in the data."""

    def with_labels(self, state, outputs, labels):
        there = labels > 0
        some = replace(outputs, logits=outputs.logits[there], features=outputs.features[there])
        return super().with_labels(state, some, labels[there])


@caught_by("batches do not matter")
class MovedByInputs(FewLabels):
    """It trusts its own predictions for labels."""

    def update(self, state, client, outputs):
        return super().with_labels(state, outputs, outputs.logits.argmax(axis=1))


@caught_by("examples have equal weight")
class CalibratedByClient(LabelShift):
    def contribute(self, query, outputs, labels, counts):
        sums = super().contribute(query, outputs, labels, counts)
        pooled = ("loss", "gradient", "curvature")
        return {name: values / len(labels) if name in pooled else values for name, values in sums.items()}


@caught_by("no shift no change")
class KeepsTheBiasUnsaid(LabelShift):
    """Labels say what the source prior is, and nothing brings the model's predictions to it."""

    def __init__(self):
        super().__init__(calibration="none", guard=False, strength=1.0)

    keeps_bias = False


# -------------------------------------------------------------------------------------------------- what it reads


@caught_by("no labels of unseen clients")
class LabelsLeak(Own):
    """Where the outputs carry labels, it counts these."""

    def update(self, state, client, outputs):
        labels = getattr(outputs, "labels", None)
        if labels is None:
            return super().update(state, client, outputs)
        return {"seen": client["seen"] + np.bincount(labels, minlength=len(client["seen"]))}


LAST_TOLD = {}


@caught_by("known prior affects one client")
class KnownSharesLeak(Own):
    """The shares of the reference, kept where everybody finds them."""

    def with_prior(self, state, prior):
        LAST_TOLD["prior"] = prior
        return super().with_prior(state, prior)

    def start(self, state):
        prior = LAST_TOLD.get("prior", state["base"])
        return {"seen": self.strength * (prior if len(prior) == len(state["base"]) else state["base"])}


@caught_by("log probabilities")
class FeaturesWithoutAsking(Own):
    """It does not say `reads_inputs = True`, and so there are none."""

    def update(self, state, client, outputs):
        return super().update(state, client, outputs) if np.isfinite(outputs.features).all() else client


@caught_by("later inputs change nothing")
class EvidenceThatLooksAhead(Own):
    """Each input is weighed by shares to which all of them contributed."""

    def predict_online(self, state, client, outputs):
        client = self.update(state, client, outputs)
        return self.predict(state, client, outputs), client


@caught_by("later inputs change nothing")
class ForgetsBetweenCalls(Own):
    def predict_online(self, state, client, outputs):
        return super().predict_online(state, client, outputs)[0], client


@caught_by("inputs are independent")
class LearnsInPredict(Own):
    """Right of all inputs together, wrong of one of them."""

    def predict(self, state, client, outputs):
        return super().predict(state, self.update(state, client, outputs), outputs)


@caught_by("inputs are independent")
class ScalesByTheBatch(Own):
    def predict(self, state, client, outputs):
        scaled = outputs.logits / (1 + outputs.logits.std())
        return super().predict(state, client, type(outputs)(scaled))


# ---------------------------------------------------------------------------------------------- how it is fitted


@caught_by("no shift no change")
class BaseOfTrainingLabels(Own):
    """The bias is of what was held out; what it is taken against, of the labels that were trained on."""

    def contribute(self, query, outputs, labels, counts):
        sums = super().contribute(query, outputs, labels, counts)
        return sums if query else {**sums, "trained": counts}

    def fold(self, state, sums):
        new = super().fold(state, sums)
        return new if state else {**new, "trained": (sums["trained"] + 1) / (sums["trained"] + 1).sum()}

    def start(self, state):
        return {"seen": self.strength * state["trained"]}

    def predict(self, state, client, outputs):
        return super().predict({**state, "base": state["trained"]}, client, outputs)


@caught_by("no shift no change")
class BaseOfNobody(Own):
    """The source prior is taken to be even."""

    def start(self, state):
        return {"seen": np.full_like(state["base"], self.strength / len(state["base"]))}


@caught_by("no shift no change")
class CalibrationBookedAsServing(Own):
    """The model as it is before the first input, the calibrated one after it."""

    def start(self, state):
        return {"seen": np.zeros_like(state["base"])}

    def update(self, state, client, outputs):
        begun = client if client["seen"].any() else super().start(state)
        return super().update(state, begun, outputs)

    def predict(self, state, client, outputs):
        if client["seen"].any():
            return super().predict(state, client, outputs)
        return log_softmax(outputs.logits)


@caught_by("examples have equal weight")
class PooledByClient(Own):
    """Every participant counts the same, however little it holds out."""

    def contribute(self, query, outputs, labels, counts):
        sums = super().contribute(query, outputs, labels, counts)
        return {name: values / len(labels) for name, values in sums.items()}


@dataclass(frozen=True)
class ByWhoComesFirst(Own):
    """The first whom it asks counts twice."""

    asked: list = field(default_factory=list, compare=False, init=False)

    def contribute(self, query, outputs, labels, counts):
        sums = super().contribute(query, outputs, labels, counts)
        if not query:
            self.asked.append(len(labels))
        return {name: 2 * values if self.asked[0] == len(labels) else values for name, values in sums.items()}

    def query(self, state):
        if not state:
            self.asked.clear()
        return super().query(state)


caught_by("participants in any order")(ByWhoComesFirst)


@caught_by("log probabilities")
class FailsWithoutAnExampleOfAClass(Own):
    """The mean over those of a class, of which there may be none: it is refused."""

    def contribute(self, query, outputs, labels, counts):
        if query:
            return super().contribute(query, outputs, labels, counts)
        held = super().contribute(query, outputs, labels, counts)["held"]
        return {"held": held * held / held}


@caught_by("sums of one shape")
class ArraysThatAreStretched(Own):
    """A number for each example, which numpy adds to a single one without a word."""

    def contribute(self, query, outputs, labels, counts):
        return {**super().contribute(query, outputs, labels, counts), "right": np.ones(1 + (len(labels) > 1))}


@caught_by("log probabilities")
class FitsAnotherTime(Own):
    """Its exchanges never end."""

    def query(self, state):
        return NO_STATE if not state else {"bias": state["bias"]}


@caught_by("classes in any order")
class LastClassIsTheRest(Own):
    """The last class gets a few examples more, in case of something new."""

    def fold(self, state, sums):
        return super().fold(state, sums if state else {"held": sums["held"] + 3 * (np.arange(len(sums["held"])) == 2)})


@caught_by("a constant in the logits")
class WithoutNormalising(Own):
    """Logits are shrunk towards 0, which is nowhere."""

    def predict(self, state, client, outputs):
        return super().predict(state, client, type(outputs)(10 * np.tanh(outputs.logits / 10)))


# --------------------------------------------------------------------------------------------- what it gives back


@caught_by("resuming from a file")
class StateThatIsNoArray(Own):
    def fold(self, state, sums):
        return {**super().fold(state, sums), "names": ["bias"]}


@caught_by("resuming from a file")
class ClientThatIsNoArray(Own):
    def update(self, state, client, outputs):
        return {"seen": client["seen"], "later": [outputs]}

    def predict(self, state, client, outputs):
        for one in client.get("later", ()):
            client = Own.update(self, state, client, one)
        return super().predict(state, client, outputs)


@caught_by("log probabilities")
class NotNormalised(Own):
    def predict(self, state, client, outputs):
        return np.log(client["seen"] / client["seen"].sum()) + log_softmax(outputs.logits)


@caught_by("log probabilities")
class AbsentClassesAreRuledOut(Own):
    def predict(self, state, client, outputs):
        p = np.exp(super().predict(state, client, outputs))
        p[p < 1e-3] = 0
        return np.log(p / p.sum(axis=1, keepdims=True))


@caught_by("log probabilities")
class SinglePrecision(Own):
    def predict(self, state, client, outputs):
        return super().predict(state, client, outputs).astype(np.float32)


@caught_by("arguments untouched")
class WritesToWhatTheClientKeeps(Own):
    def update(self, state, client, outputs):
        client["seen"][:] += np.exp(log_softmax(outputs.logits + state["bias"])).sum(axis=0)
        return client


@caught_by("arguments untouched")
class WritesToTheOutputs(Own):
    def predict(self, state, client, outputs):
        outputs.logits[:] += 1
        return super().predict(state, client, outputs)


@caught_by("batches do not matter")
class OnlyTheLastBatchCounts(Own):
    def update(self, state, client, outputs):
        return super().update(state, self.start(state), outputs)


@caught_by("batches do not matter")
class ManyWithoutTheirPast(Own):
    def update_many(self, state, clients, outputs):
        return [self.update(state, self.start(state), one) for one in outputs]


@caught_by("order of inputs matters little")
class ForgetsQuickly(Own):
    """What was seen counts half with every input that comes after it."""

    def update(self, state, client, outputs):
        for p in np.exp(log_softmax(outputs.logits + state["bias"])):
            client = {"seen": client["seen"] / 2 + p}
        return client


@caught_by("known prior reweights")
class KnownSharesOnTopOfTheSource(Own):
    """The prior that the model has already is not taken out; nor is it for adapted clients, who count their own."""

    def with_prior(self, state, prior):
        return {"seen": prior * state["base"], "known": np.ones(())}

    def predict(self, state, client, outputs):
        if "known" in client:
            return log_softmax(outputs.logits + np.log(client["seen"]) * 0.5)
        return super().predict(state, client, outputs)


@caught_by("reproducible")
class DrawsItsPrior(Own):
    def start(self, state):
        return {"seen": state["base"] * np.random.uniform(1, 2, len(state["base"]))}  # noqa: NPY002 (that is the fault)


@caught_by("options define the component")
class OptionsThatNobodySees(fr.Adaptation):
    def __init__(self, power=1.0):
        self.power = power

    def predict(self, state, client, outputs):
        return log_softmax(self.power * outputs.logits)


@pytest.mark.parametrize(("kind", "cls", "options", "check"), FAULTS)
def test_a_planted_fault_is_caught(kind, cls, options, check):
    must_be_caught(kind, cls, options, check)
