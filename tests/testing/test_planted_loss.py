"""Mistakes in losses: each fails the check that is about it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedreach.federation.losses import MOON, MSE, CrossEntropy, FedLC, LogitAdjusted

from .planted import must_be_caught, noting

FAULTS = []
caught_by = noting(FAULTS)


@caught_by("one number with a gradient", kind="loss")
class ObjectiveOfEachExample(CrossEntropy):
    def objective(self, step):
        return self.per_example(step.outputs, step.y)


@caught_by("one number with a gradient", kind="loss")
class LengthsOfNothing(CrossEntropy):
    """The gradient of a norm is nan where the models are the same, as in the first step."""

    def objective(self, step):
        return step.loss + (step.features() - step.global_model.features()).square().sum().sqrt()


@caught_by("the same objective again", kind="loss")
class DrawnFromTheGlobalGenerator(CrossEntropy):
    def objective(self, step):
        return step.loss + (step.features() * torch.from_numpy(np.random.rand(5)).float()).mean()  # noqa: NPY002


@caught_by("steps untouched", kind="loss")
class BackwardOfItsOwn(CrossEntropy):
    def objective(self, step):
        step.loss.backward(retain_graph=True)
        return step.loss


@caught_by("steps untouched", kind="loss")
class InputsScaledInPlace(CrossEntropy):
    def objective(self, step):
        step.x.mul_(2.0)
        return step.loss


@caught_by("client states are independent", kind="loss")
class MeanOfAllClientsKept(MOON):
    def keep(self, memory, local):
        return np.tile(local.mean(axis=0), (len(local), 1))


@caught_by("client states are independent", kind="loss")
class KeptInFloat64(MOON):
    def keep(self, memory, local):
        return local.astype(np.float64)


@caught_by("shifts by own labels")
class MarginsOfAllTogether(FedLC):
    def shift(self, counts):
        return super().shift(np.broadcast_to(counts.sum(axis=0), counts.shape))


@caught_by("shifts by own labels")
class SharesOfAllTogether(LogitAdjusted):
    def shift(self, counts):
        return super().shift(np.broadcast_to(counts.sum(axis=0), counts.shape))


# --------------------------------------------------------------------------------------------------------------- losses


@caught_by("one number per example", kind="loss")
class LossOfTheBatch(CrossEntropy):
    def per_example(self, outputs, targets):
        return super().per_example(outputs, targets).mean()


@caught_by("downhill", kind="loss")
class GradientTheWrongWay(CrossEntropy):
    def per_example(self, outputs, targets):
        loss = super().per_example(outputs, targets)
        return 2 * loss.detach() - loss


@caught_by("examples are independent", kind="loss")
class LossRelativeToTheBatch(CrossEntropy):
    def per_example(self, outputs, targets):
        loss = super().per_example(outputs, targets)
        return loss / loss.sum()


@caught_by("one number per example")
class OfTheBatch(MSE):
    def per_example(self, outputs, targets):
        return super().per_example(outputs, targets).mean()


@caught_by("examples are independent")
class AgainstTheBatch(MSE):
    def per_example(self, outputs, targets):
        return super().per_example(outputs - outputs.mean(0), targets - targets.mean(0))


@pytest.mark.parametrize(("kind", "cls", "options", "check"), FAULTS)
def test_a_planted_fault_is_caught(kind, cls, options, check):
    must_be_caught(kind, cls, options, check)
