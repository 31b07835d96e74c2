"""Mistakes in weightings, measurements and metrics: each fails the check that is about it."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

import fedreach as fr
from fedreach.evaluation.metrics import Accuracy
from fedreach.federation.measurements import WLRC
from fedreach.federation.weighting import ByExamples

from .planted import must_be_caught, noting

FAULTS = []
caught_by = noting(FAULTS)


class Weighs(fr.Weighting):
    """A plain weighting of which one line is wrong."""

    def weights(self, state, reports):
        raw = self.number(reports)
        return raw / raw.sum(), state


@caught_by("simplex")
class DoesNotSumToOne(fr.Weighting):
    def weights(self, state, reports):
        return reports.metrics["num_examples"] / 100, state


@caught_by("order does not matter")
class FirstCountsMore(Weighs):
    def number(self, reports):
        return 1.0 / np.arange(1, len(reports.ids) + 1)


@caught_by("raw depends on own metrics")
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


@caught_by("reproducible")
class WeighsByChance(Weighs):
    def number(self, reports):
        return np.random.random(len(reports.ids))  # noqa: NPY002 (that is the fault)


@caught_by("resuming from a file")
class RemembersWords(Weighs):
    def weights(self, state, reports):
        weights, _ = super().weights(state, reports)
        return weights, {"last": np.array(["equal"])}

    def number(self, reports):
        return np.ones(len(reports.ids))


@caught_by("a finite number")
class LogOfProbability(fr.Measurement):
    wants_before: ClassVar[bool] = False
    name = "log_p"

    def measure(self, outputs, rng):
        p = np.exp(outputs.logits.astype(np.float64))
        p = p / p.sum(axis=1, keepdims=True)
        return float(np.log(p[np.arange(len(p)), outputs.labels]).mean())


@caught_by("reproducible")
class MeasuresByChance(WLRC):
    def measure(self, outputs, rng):
        return super().measure(outputs, np.random.default_rng())


@caught_by("arguments untouched")
class MeasuresInPlace(WLRC):
    def measure(self, outputs, rng):
        outputs.logits[:] -= outputs.logits.max()
        return super().measure(outputs, rng)


@caught_by("order does not matter")
class OfTheFirstHalf(Accuracy):
    def of(self, labels, scores):
        half = len(labels) // 2 + 1
        return super().of(labels[:half], scores[:half])


@caught_by("has a name")
class Nameless(WLRC):
    name = ""


@caught_by("one number")
class OneForEachExample(Accuracy):
    def of(self, labels, scores):
        return scores.argmax(axis=1) == labels


@caught_by("reproducible")
class CountsItsCalls(Accuracy):
    def of(self, labels, scores):
        calls = self.__dict__.setdefault("calls", [])
        calls.append(len(labels))
        return super().of(labels, scores) + len(calls)


@caught_by("arguments untouched")
class NormalizesInPlace(Accuracy):
    def of(self, labels, scores):
        scores -= scores.max(axis=1, keepdims=True)
        return super().of(labels, scores)


@pytest.mark.parametrize(("kind", "cls", "options", "check"), FAULTS)
def test_a_planted_fault_is_caught(kind, cls, options, check):
    must_be_caught(kind, cls, options, check)
