"""Mistakes in objectives that see more than outputs: each is caught by the check that is about it."""

from __future__ import annotations

import pytest
from torch.nn import functional as F

from fedreach.federation.losses import MOON, FedDecorr, FedNTD, FedSAM

from .planted import must_be_caught, noting

FAULTS = []
caught_by = noting(FAULTS)


@caught_by("a contrast of cosines", kind="loss")
class MoonAwayFromTheGlobalModel(MOON):
    def objective(self, step):
        return 2 * step.loss - super().objective(step)


@caught_by("a contrast of cosines", kind="loss")
class MoonOfOutputs(MOON):
    def objective(self, step):
        if self.mu == 0 or not step.memory.any():
            return step.loss
        towards, away = step.global_model.outputs, step.frozen(step.memory).outputs
        closer = F.cosine_similarity(step.outputs, towards) - F.cosine_similarity(step.outputs, away)
        return step.loss + self.mu * F.softplus(-closer / self.temperature).mean()


@caught_by("mu 0 is the loss", kind="loss")
class MoonThatIsNeverOff(MOON):
    def objective(self, step):
        return super().objective(step) + 1e-3 * step.features().square().mean()


@caught_by("a mean square of correlations", kind="loss")
class CovariancesInPlaceOfCorrelations(FedDecorr):
    def objective(self, step):
        if self.beta == 0 or len(step.x) < 2:
            return step.loss
        z = step.features() - step.features().mean(0)
        return step.loss + self.beta * (z.T @ z / len(z)).square().mean()


@caught_by("a divergence of the other classes", kind="loss")
class DivergenceOfAllClasses(FedNTD):
    def objective(self, step):
        if self.beta == 0:
            return step.loss
        ours, theirs = (F.log_softmax(o / self.tau, dim=1) for o in (step.outputs, step.global_model.outputs))
        return step.loss + self.beta * F.kl_div(ours, theirs, reduction="batchmean", log_target=True)


@caught_by("a divergence of the other classes", kind="loss")
class DivergenceTheOtherWayRound(FedNTD):
    def objective(self, step):
        if self.beta == 0:
            return step.loss
        others = F.one_hot(step.y, 3) == 0
        ours, theirs = (
            F.log_softmax(o[others].view(len(step.y), -1) / self.tau, dim=1)
            for o in (step.outputs, step.global_model.outputs)
        )
        return step.loss + self.beta * F.kl_div(theirs, ours, reduction="batchmean", log_target=True)


@caught_by("the gradient rho away", kind="loss")
class SamDownhill(FedSAM):
    def objective(self, step):
        gradient = step.gradient()
        return step.loss_at(-self.rho * gradient / gradient.norm()) if self.rho else step.loss


@caught_by("the gradient rho away", kind="loss")
class SamWithoutTheNorm(FedSAM):
    def objective(self, step):
        return step.loss_at(self.rho * step.gradient()) if self.rho else step.loss


@pytest.mark.parametrize(("kind", "cls", "options", "check"), FAULTS)
def test_a_planted_fault_is_caught(kind, cls, options, check):
    must_be_caught(kind, cls, options, check)
