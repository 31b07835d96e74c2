"""A solver of one's own whose correction is not elementwise is refused before the first round, by every engine."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
import torch

import fedreach as fr
from fedreach._util.errors import ConfigError
from fedreach.engines.choice import ENGINES, choose
from fedreach.engines.engine import TorchEngine
from fedreach.engines.models.networks import build
from fedreach.engines.protocols import Task
from fedreach.engines.trainer import reject_mixing
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.solvers import SOLVERS, FedProx, Scaffold


class Normed(fr.LocalSolver):
    """Steps of one length: the norm is taken over all numbers."""

    affine: ClassVar[bool] = True  # which is not so

    def correct(self, gradient, params, broadcast):
        return gradient / (gradient * gradient).sum() ** 0.5


class Clipped(fr.LocalSolver):
    """Looks at the others only where the gradient is long."""

    def correct(self, gradient, params, broadcast):
        return gradient * torch.clamp(50.0 / gradient.norm(), max=1.0)


class Neighbours(fr.LocalSolver):
    """Each number follows the one beside it."""

    def correct(self, gradient, params, broadcast):
        return gradient + 0.1 * (params.roll(1, -1) - params)


class ByDistance(fr.LocalSolver):
    """As FedProx, by the distance and not its square."""

    def correct(self, gradient, params, broadcast):
        away = params - broadcast
        return gradient + 0.1 * away / away.norm(dim=-1, keepdim=True)


class ScaffoldByNorm(Scaffold):
    """What is kept is shortened by its norm."""

    def correct(self, gradient, params, broadcast, drift):
        return gradient + drift / drift.norm(dim=-1, keepdim=True)


MIXING = [Normed(), Clipped(), Neighbours(), ByDistance(), ScaffoldByNorm()]


class Sign(fr.LocalSolver):
    def correct(self, gradient, params, broadcast):
        return torch.sign(gradient) * (params - broadcast).abs()


class Masked(fr.LocalSolver):
    """Holds a number for each parameter of its model, so that it takes vectors of that length only."""

    def correct(self, gradient, params, broadcast):
        return gradient * torch.linspace(0, 1, 31)


class Noisy(fr.LocalSolver):
    def correct(self, gradient, params, broadcast):
        return gradient + 0.1 * torch.randn_like(gradient)


class ProxOfMine(FedProx):
    """A subclass, tried as any other."""


class Failing(fr.LocalSolver):
    def correct(self, gradient, params, broadcast):
        raise RuntimeError("not today")


@pytest.fixture
def task(federated):
    def made(solver):
        module = build("mlp", (5,), 3, seed=1, options={"hidden": [2]})
        return Task(module, federated((13, 2, 8), (5,)), solver, LocalSGD(batch_size=4), 3)

    return made


@pytest.mark.parametrize("kind", ENGINES.values())
@pytest.mark.parametrize("solver", MIXING, ids=lambda solver: type(solver).__name__)
def test_a_correction_that_looks_at_other_numbers_is_refused_by_every_engine(task, solver, kind):
    with pytest.raises(ConfigError) as refused:
        TorchEngine(kind, task(solver))
    if "affine" not in str(refused.value):  # which `native` asks first
        assert "correct must correct each number independently" in str(refused.value)


@pytest.mark.parametrize("solver", MIXING, ids=lambda solver: type(solver).__name__)
def test_auto_refuses_it_too(task, solver):
    with pytest.raises(ConfigError, match=r"correct each number independently; .* a loss with a method `objective`"):
        choose(task(solver))


@pytest.mark.parametrize("solver", [Sign(), Masked(), Noisy(), ProxOfMine(), Failing()], ids=lambda s: type(s).__name__)
def test_a_solver_that_is_elementwise_or_fails_by_itself_is_let_through(solver):
    before = torch.get_rng_state()
    reject_mixing(solver, p=31)
    assert torch.equal(torch.get_rng_state(), before)  # what training draws stays the same


@pytest.mark.parametrize("name", SOLVERS)
def test_built_in_solvers_would_pass_the_trial(name):
    reject_mixing(type("Mine", (SOLVERS[name],), {})(), p=40)


def test_a_large_model_is_tried_on_few_numbers():
    sizes = []

    class Counting(fr.LocalSolver):
        def correct(self, gradient, params, broadcast):
            sizes.append(len(gradient))
            return gradient

    reject_mixing(Counting(), p=10**9)
    assert max(sizes) <= 4096
    assert np.isfinite(sizes).all()
