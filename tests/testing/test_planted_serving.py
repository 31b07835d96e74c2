"""Careless serving rules: each is caught, by the law that says what is wrong. The rule that they spoil is right."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from tests.testing.test_planted_batchnorm import FAULTS as BATCHNORM

from fedreach import registry
from fedreach.federation.serving.bbse import BBSE, RLLS
from fedreach.federation.serving.label_shift import LabelShift, scores
from fedreach.federation.serving.plain import Plain
from fedreach.federation.serving.priors import map_em, training_shares
from fedreach.federation.serving.softmax import log_softmax
from fedreach.federation.serving.true_prior import TruePrior
from fedreach.federation.values import NO_STATE
from fedreach.testing import trial
from fedreach.testing.law import Subject, judge

FAULTS = []


@dataclass(frozen=True)
class Own:
    """A rule of one's own: a bias that makes the mean prediction that of the class shares, then running means.

    Args:
        strength: How many inputs the source prior counts for.
    """

    strength: float = 20.0

    def query(self, state):
        if not state:
            return NO_STATE
        return None if state["asked"] == 30 else {"bias": state["bias"]}

    def contribute(self, query, outputs, labels, counts):
        if not query:
            return {"held": np.bincount(labels, minlength=len(counts)).astype(np.float64)}
        return {"predicted": np.exp(log_softmax(outputs.logits + query["bias"])).sum(axis=0)}

    def fold(self, state, sums):
        if not state:
            share = (sums["held"] + 0.5) / (sums["held"] + 0.5).sum()
            return {"base": share, "bias": np.zeros(len(share)), "asked": np.zeros((), np.int64)}
        predicted = (sums["predicted"] + 0.5) / (sums["predicted"] + 0.5).sum()
        bias = state["bias"] + np.log(state["base"] / predicted)
        return {**state, "bias": bias, "asked": state["asked"] + 1}

    def start(self, state):
        return {"seen": self.strength * state["base"]}

    def update(self, state, client, outputs):
        return {"seen": client["seen"] + np.exp(log_softmax(outputs.logits + state["bias"])).sum(axis=0)}

    def predict(self, state, client, outputs):
        prior = client["seen"] / client["seen"].sum()
        return log_softmax(outputs.logits + state["bias"] - np.log(state["base"]) + np.log(prior))

    def predict_online(self, state, client, outputs):
        rows = []
        for row in outputs.logits:
            one = type(outputs)(row[None])
            rows.append(self.predict(state, client, one)[0])
            client = self.update(state, client, one)
        return np.array(rows), client

    def with_prior(self, state, prior):
        return {"seen": prior}


def caught_by(law):
    """Note a faulty class, and the law that it must break."""

    def note(cls):
        FAULTS.append(pytest.param(cls, law, id=cls.__name__))
        return cls

    return note


# -------------------------------------------------------------------------------------------------- what it reads


@caught_by("no labels of those served")
class LabelsLeak(Own):
    """Where the outputs carry labels, it counts these."""

    def update(self, state, client, outputs):
        labels = getattr(outputs, "labels", None)
        if labels is None:
            return super().update(state, client, outputs)
        return {"seen": client["seen"] + np.bincount(labels, minlength=len(client["seen"]))}


LAST_TOLD = {}


@caught_by("known shares stay with their client")
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


@caught_by("nothing that comes later")
class EvidenceThatLooksAhead(Own):
    """Each input is weighed by shares to which all of them contributed."""

    def predict_online(self, state, client, outputs):
        client = self.update(state, client, outputs)
        return self.predict(state, client, outputs), client


@caught_by("nothing that comes later")
class ForgetsBetweenCalls(Own):
    def predict_online(self, state, client, outputs):
        return super().predict_online(state, client, outputs)[0], client


@caught_by("each input by itself")
class LearnsInPredict(Own):
    """Right of all inputs together, wrong of one of them."""

    def predict(self, state, client, outputs):
        return super().predict(state, self.update(state, client, outputs), outputs)


@caught_by("each input by itself")
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


@caught_by("whoever holds an example")
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


caught_by("whoever stands where")(ByWhoComesFirst)


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


@caught_by("classes by any name")
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


@caught_by("going on from a file")
class StateThatIsNoArray(Own):
    def fold(self, state, sums):
        return {**super().fold(state, sums), "names": ["bias"]}


@caught_by("going on from a file")
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


@caught_by("one or many at a time")
class OnlyTheLastBatchCounts(Own):
    def update(self, state, client, outputs):
        return super().update(state, self.start(state), outputs)


@caught_by("one or many at a time")
class ManyWithoutTheirPast(Own):
    def update_many(self, state, clients, outputs):
        return [self.update(state, self.start(state), one) for one in outputs]


@caught_by("the order of inputs counts little")
class ForgetsQuickly(Own):
    """What was seen counts half with every input that comes after it."""

    def update(self, state, client, outputs):
        for p in np.exp(log_softmax(outputs.logits + state["bias"])):
            client = {"seen": client["seen"] / 2 + p}
        return client


@caught_by("known shares weigh")
class KnownSharesOnTopOfTheSource(Own):
    """The prior that the model has already is not taken out; nor is it for served clients, who count their own."""

    def with_prior(self, state, prior):
        return {"seen": prior * state["base"], "known": np.ones(())}

    def predict(self, state, client, outputs):
        if "known" in client:
            return log_softmax(outputs.logits + np.log(client["seen"]) * 0.5)
        return super().predict(state, client, outputs)


@caught_by("same again")
class DrawsItsPrior(Own):
    def start(self, state):
        return {"seen": state["base"] * np.random.uniform(1, 2, len(state["base"]))}  # noqa: NPY002 (that is the fault)


@caught_by("options are all it is")
class OptionsThatNobodySees:
    def __init__(self, power=1.0):
        self.power = power

    query, contribute, fold, start, update = Plain.query, Plain.contribute, Plain.fold, Plain.start, Plain.update

    def predict(self, state, client, outputs):
        return log_softmax(self.power * outputs.logits)


# ------------------------------------------------------------------------------------------------- single rules


@caught_by("source prior of held out labels")
class SourcePriorOfTrainingLabels(LabelShift):
    def contribute(self, query, outputs, labels, counts):
        sums = super().contribute(query, outputs, labels, counts)
        return {**sums, "held_out": counts} if "held_out" in sums else sums


@caught_by("many classes are matched")
class MatchedToTrainingShares(LabelShift):
    def fold(self, state, sums):
        told = state["told"] if state else training_shares(sums["trained"])
        new = super().fold({**state, "base": told} if "predicted" in sums else state, sums)
        return {**new, "base": (state or new)["base"], "told": told}


@caught_by("spread of training labels")
@caught_by("spread is found again")
class SpreadOfHeldOutLabels(LabelShift):
    """A handful of examples instead of all that it trained on: they say little of how far clients lie apart."""

    def contribute(self, query, outputs, labels, counts):
        held = np.bincount(labels, minlength=len(counts)).astype(np.float64)
        return super().contribute(query, outputs, labels, held)


@caught_by("whoever holds an example")
@caught_by("calibrated at the optimum")
@caught_by("split participants fit the same")
class CalibratedByClient(LabelShift):
    def contribute(self, query, outputs, labels, counts):
        sums = super().contribute(query, outputs, labels, counts)
        pooled = ("loss", "gradient", "curvature")
        return {name: values / len(labels) if name in pooled else values for name, values in sums.items()}


@caught_by("evidence of what came before")
class EvidenceByTheSharesOfAll(LabelShift):
    """W by the prior that EM found, in which each input has its part: P(sup W >= 20) is .10 instead of .035."""

    def update(self, state, client, outputs):
        new = super().update(state, client, outputs)
        u = scores(state, outputs)
        log_w = (log_softmax(u + np.log(state["base"]))[:, 0] - log_softmax(u + np.log(new["prior"]))[:, 0]).sum()
        log_w += len(u) * (np.log(new["prior"]) - np.log(state["base"]))[0]
        return {**new, "log_w": np.array([log_w]), "weight": np.array([1 / (1 + self.odds * np.exp(-log_w))])}


@caught_by("evidence of what came before")
class OddsTheOtherWayRound(LabelShift):
    def update(self, state, client, outputs):
        new = super().update(state, client, outputs)
        return {**new, "weight": 1 / (1 + np.exp(-new["log_w"]) / self.odds)}


@caught_by("served by its prior")
class AlwaysAdapts(LabelShift):
    """The weight is worked out, and not used."""

    def predict(self, state, client, outputs):
        seen = client["n"][0] > 0
        return super().predict(state, {**client, "weight": np.ones(1)} if seen else client, outputs)


@caught_by("inputs that say nothing")
class BeginsWithEvenShares(LabelShift):
    def start(self, state):
        return {**super().start(state), "prior": np.full_like(state["base"], 1 / len(state["base"]))}


@caught_by("many pseudo counts never adapt")
class WithoutPseudoCounts(LabelShift):
    """EM finds the maximum of the likelihood."""

    def update(self, state, client, outputs):
        new = super().update(state, client, outputs)
        return {**new, "prior": map_em(new["u"], state["base"], 0.0), "weight": np.ones(1)}


@caught_by("no shift no change")
class KeepsTheBiasUnsaid(LabelShift):
    """Labels say what the source prior is, and nothing brings the model's predictions to it."""

    def __init__(self):
        super().__init__(calibration="none", guard=False)

    keeps_bias = False


@caught_by("shares as they are told")
class SourcePriorIsLeftIn(TruePrior):
    def with_prior(self, state, prior):
        shares = prior * state["base"]
        return super().with_prior(state, shares / shares.sum())


@caught_by("shares that explain the predictions")
class ConfusionByRow(BBSE):
    """Rows of labels where columns were meant."""

    def contribute(self, query, outputs, labels, counts):
        sums = super().contribute(query, outputs, labels, counts)
        return {**sums, "confusion": sums["confusion"].T}


@caught_by("between bbse and nothing")
class PulledOneWayOnly(RLLS):
    """gamma is read and then forgotten."""

    def update(self, state, client, outputs):
        return RLLS(self.strength, 1.0, self.hard).update(state, client, outputs)


@caught_by("no order of inputs")
class TheFirstCountsTwice(BBSE):
    def update(self, state, client, outputs):
        twice = np.concatenate([outputs.logits[:1], outputs.logits])
        return super().update(state, client, replace(outputs, logits=twice))


@caught_by("the model as it is")
class Sharpened(Plain):
    def predict(self, state, client, outputs):
        return log_softmax(1.5 * outputs.logits)


# -----------------------------------------------------------------------------------------------------------------


def laws_of(part):
    """Return the laws that a part must keep by their names."""
    return {law.name: law for law in trial.laws_of("serving", trial.like("serving", part))}


@pytest.mark.parametrize(("cls", "law"), FAULTS)
def test_a_planted_fault_is_caught_by_the_law_that_says_it(cls, law):
    found = judge(Subject.of("serving", cls()), [laws_of(cls())[law]])
    assert found.broken, f"it keeps {law!r}"
    said = str(found.broken[0])
    assert said.startswith(f'{cls.__name__} breaks the law "{law}": ')
    assert found.broken[0].happened
    assert "Traceback" not in said


@pytest.mark.parametrize("part", [Own(), Own(strength=1.0), Plain()], ids=repr)
def test_a_right_rule_keeps_all_laws(part):
    found = trial.verdict("serving", part)
    assert not found.broken, "\n".join(map(str, found.broken))


def test_each_law_has_a_fault():
    laws = trial.laws_of("serving", list(registry.table("serving")))
    assert {law.name for law in laws} == {fault.values[1] for fault in (*FAULTS, *BATCHNORM)}


def test_a_rule_of_ones_own_is_seen_to_be_one():
    assert trial.kind_of(Own()) == "serving"
    assert trial.like("serving", Own()) == ()
    assert trial.like("serving", CalibratedByClient()) == ("label_shift",)
