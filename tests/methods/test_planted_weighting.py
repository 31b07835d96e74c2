"""Mistakes in what counts, and in what is measured: each is caught by the check that is about it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedreach.evaluation.metrics import AUROC, Accuracy, BalancedAccuracy, MacroF1, MeanLoss, Miscalibration
from fedreach.federation.adaptation.base import log_softmax
from fedreach.federation.measurements import WLRC, Disagreement
from fedreach.federation.weighting import ByEntropy, ByExamples, Clip, FedNova

from .planted import must_be_caught, noting

FAULTS = []
caught_by = noting(FAULTS)


# ------------------------------------------------------------------------------------------------------------ weighting


@caught_by("per step and as many steps")
class NotNormalised(FedNova):
    """Divides no update by its steps."""

    def weights(self, state, reports):
        return self.inner.weights(state, reports)


@caught_by("per step and as many steps")
class OneStepOnly(FedNova):
    """Leaves out how many steps were taken: weights alone sum to 1."""

    def mean_scale(self, state, reports, n):
        return 1.0


@caught_by("per step and as many steps")
class PlainMeanOfSteps(FedNova):
    """Takes the mean of the steps for the weighted one."""

    def mean_scale(self, state, reports, n):
        share, steps = self.inner.weights(state, reports)[0], reports.metrics["steps"]
        return float(steps.mean() * (share / steps).sum())


@caught_by("equal steps are those of inner")
class SumOfSteps(FedNova):
    """Takes as many steps as all clients together."""

    def mean_scale(self, state, reports, n):
        return len(reports.ids) * super().mean_scale(state, reports, n)


@caught_by("the lower cap counts", inner=ByExamples(), times_equal=1.5)
class ClipOfTheMostAlone(Clip):
    def weights(self, state, reports):
        return Clip(self.inner, self.most or 1.0).weights(state, reports)


@caught_by("golden entropy")
class EntropyInBits(ByEntropy):
    def weights(self, state, reports):
        bits = {"label_entropy": reports.metrics["label_entropy"] / np.log(2)}
        return super().weights(state, replace(reports, metrics=reports.metrics | bits))

    def raw(self, metrics):
        return super().raw({"label_entropy": metrics["label_entropy"] / np.log(2)})


# --------------------------------------------------------------------------------------------------------- measurements


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


def signed_means(component, outputs, rng):
    """Return each batch's size and its signed means, one for each draw."""
    values = outputs.logits.astype(np.float64)
    for begin in range(0, len(values), component.batch_size):
        batch = values[begin : begin + component.batch_size]
        signs = rng.integers(2, size=(component.draws, batch.size)) * 2 - 1
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


# -------------------------------------------------------------------------------------------------------------- metrics


@caught_by("share that is right")
class CountsTheRightOnes(Accuracy):
    def of(self, labels, scores):
        return float((scores.argmax(axis=1) == labels).sum())


@caught_by("nats of the truth")
class LossOfThePredicted(MeanLoss):
    def of(self, labels, scores):
        return super().of(scores.argmax(axis=1), scores)


@caught_by("each class the same")
class CountsClassesThatAreOnlyPredicted(BalancedAccuracy):
    """A class without an example has no recall; here it is 0."""

    def of(self, labels, scores):
        said = scores.argmax(axis=1)
        there = np.union1d(labels, said)
        return float(np.mean([(said[labels == k] == k).mean() if (labels == k).any() else 0.0 for k in there]))


@caught_by("precision and recall")
class LeavesOutClassesThatAreOnlyPredicted(MacroF1):
    def of(self, labels, scores):
        said = scores.argmax(axis=1)
        f1 = [2 * ((said == k) & (labels == k)).sum() / ((said == k).sum() + (labels == k).sum()) for k in set(labels)]
        return float(np.mean(f1))


@caught_by("pairs in order")
class TiesCountAsInOrder(AUROC):
    def of(self, labels, scores):
        if scores.shape[1] > 2:
            return super().of(labels, scores)
        p = scores[:, 1] - scores[:, 0]
        pairs = [a >= b for a in p[labels == 1] for b in p[labels == 0]]
        return float(np.mean(pairs)) if pairs else float("nan")


@caught_by("pairs in order")
class ByOutputsAsTheyAre(AUROC):
    """Outputs of different examples do not compare; probabilities do."""

    def of(self, labels, scores):
        there = [k for k in range(scores.shape[1]) if 0 < (labels == k).sum() < len(labels)]
        found = [np.mean([a > b for a in scores[labels == k, k] for b in scores[labels != k, k]]) for k in there]
        return float(np.mean(found)) if found else float("nan")


@caught_by("pairs in order")
class DefinedForOneClass(AUROC):
    def of(self, labels, scores):
        return float(np.nan_to_num(super().of(labels, scores), nan=0.5))


@caught_by("confidence and accuracy")
class InOneBin(Miscalibration):
    def of(self, labels, scores):
        right = scores.argmax(axis=1) == labels
        return float(abs(np.mean(right - np.exp(log_softmax(scores).max(axis=1)))))


@pytest.mark.parametrize(("kind", "cls", "options", "check"), FAULTS)
def test_a_planted_fault_is_caught(kind, cls, options, check):
    must_be_caught(kind, cls, options, check)
