"""Faults that are easily made about targets that are numbers; each is caught by the check that is about it."""

from dataclasses import dataclass

import numpy as np
import pytest

from fedreach.evaluation.metrics import R2, MeanAbsoluteError
from fedreach.federation.losses import MSE, Huber

from .planted import must_be_caught, noting

FAULTS = []
caught_by = noting(FAULTS)


@caught_by("squared distance")
class Summed(MSE):
    def per_example(self, outputs, targets):
        return (outputs - targets).square().sum(-1)


@caught_by("squared distance")
class Halved(MSE):
    def per_example(self, outputs, targets):
        return super().per_example(outputs, targets) / 2


@caught_by("half of mse at most")
@dataclass(frozen=True)
class JumpsAtDelta(Huber):
    """The linear part without what makes it meet the squared one."""

    def per_example(self, outputs, targets):
        e = (outputs - targets).abs()
        return e.square().div(2).where(e <= self.delta, self.delta * e).mean(-1)


@caught_by("pulls by delta at most")
@dataclass(frozen=True)
class SlopeOne(Huber):
    """torch's smooth L1, whose slope is 1 beyond delta."""

    def per_example(self, outputs, targets):
        return super().per_example(outputs, targets) / self.delta


@caught_by("mean distance")
class MedianError(MeanAbsoluteError):
    def of(self, labels, scores):
        return float(np.median(abs(labels - scores)))


@caught_by("mean distance")
class SignedError(MeanAbsoluteError):
    def of(self, labels, scores):
        return float((scores - labels).mean())


@caught_by("the mean explains nothing")
class AllTargetsTogether(R2):
    """One mean for targets of different sizes."""

    def of(self, labels, scores):
        return float(1 - np.square(labels - scores).sum() / np.square(labels - labels.mean()).sum())


@caught_by("the mean explains nothing")
class Correlation(R2):
    """The square of the correlation, which forgives a wrong scale."""

    def of(self, labels, scores):
        return float(np.mean([np.corrcoef(y, z)[0, 1] ** 2 for y, z in zip(labels.T, scores.T, strict=True)]))


@caught_by("the mean explains nothing")
class DefinedForOne(R2):
    def of(self, labels, scores):
        found = super().of(labels, scores)
        return 0.0 if np.isnan(found) else found


@pytest.mark.parametrize(("kind", "cls", "options", "check"), FAULTS)
def test_a_planted_fault_is_caught(kind, cls, options, check):
    must_be_caught(kind, cls, options, check)
