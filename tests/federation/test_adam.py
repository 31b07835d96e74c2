"""Adam and AdamW at clients: torch's steps, begun anew in each round, on the engines that follow them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from fedreach._util.errors import ConfigError
from fedreach.engines.choice import choose
from fedreach.engines.engine import TorchEngine
from fedreach.engines.manual import Manual
from fedreach.engines.models.networks import build
from fedreach.engines.native.trainer import Native
from fedreach.engines.protocols import Task
from fedreach.engines.sequential import Sequential
from fedreach.engines.vmap import Vmap
from fedreach.experiment.components import local_of
from fedreach.experiment.load import load
from fedreach.experiment.schema import LocalSection
from fedreach.federation.local_sgd import Adam, AdamW, LocalSGD
from fedreach.federation.solvers import FedAvg, FedDyn, FedProx, Scaffold
from fedreach.testing.problems import tiny_data, tiny_federation

from ..quadratics import two_quadratics  # noqa: TID252 (tests are no package that has a name)

IDS = np.arange(4)
WEIGHTS, GRADIENTS = np.array([1.0, -2.0, 0.5]), np.array([[0.3, -4.0, 0.0], [-0.1, -5.0, 1e-3], [0.2, 1.0, 7.0]])


def by_torch(kind, options, lr=0.05, weight_decay=0.1):
    """Return the weights after each of torch's steps along GRADIENTS."""
    weights = torch.tensor(WEIGHTS, requires_grad=True)
    optimizer = kind([weights], lr=lr, weight_decay=weight_decay, **options)
    found = []
    for gradient in GRADIENTS:
        weights.grad = torch.tensor(gradient)
        optimizer.step()
        found.append(weights.detach().numpy().copy())
    return np.array(found)


def ours(optimizer, lr=0.05, weight_decay=0.1):
    weights, moments, found = WEIGHTS, (0.0, 0.0), []
    for step, gradient in enumerate(GRADIENTS, start=1):
        direction, moments = optimizer.direction(gradient, weights, moments, step, weight_decay)
        weights = weights - lr * direction
        found.append(weights)
    return np.array(found)


OPTIONS = [{}, {"beta1": 0.0}, {"beta2": 0.0}, {"beta1": 0.0, "beta2": 0.0}, {"beta1": 0.5, "epsilon": 0.1}]


def torchs(options):
    made = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, **options}
    return {"betas": (made["beta1"], made["beta2"]), "eps": made["epsilon"]}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(("optimizer", "kind"), [(Adam, torch.optim.Adam), (AdamW, torch.optim.AdamW)])
def test_the_steps_are_torchs(optimizer, kind, options):
    np.testing.assert_allclose(ours(optimizer(**options)), by_torch(kind, torchs(options)), rtol=1e-9, atol=1e-9)


@dataclass(frozen=True)
class Uncorrected(Adam):
    """Does not make up for moments that begin at 0."""

    def direction(self, gradient, weights, moments, step, weight_decay):
        return super().direction(gradient, weights, moments, 10**6, weight_decay)


@dataclass(frozen=True)
class StartsAtStepTwo(Adam):
    """Counts steps from 2 on."""

    def direction(self, gradient, weights, moments, step, weight_decay):
        return super().direction(gradient, weights, moments, step + 1, weight_decay)


@dataclass(frozen=True)
class Forgets(Adam):
    """Begins m and v anew in every step."""

    def direction(self, gradient, weights, moments, step, weight_decay):
        return super().direction(gradient, weights, (0.0, 0.0), step, weight_decay)


@dataclass(frozen=True)
class DecaysInTheGradient(AdamW):
    """AdamW whose decay is scaled by v."""

    decoupled = False


@dataclass(frozen=True)
class EpsilonUnderTheRoot(Adam):
    """Adds epsilon to v."""

    def direction(self, gradient, weights, moments, step, weight_decay):
        _, (m, v) = super().direction(gradient, weights, moments, step, weight_decay)
        scale = np.sqrt(v / (1 - self.beta2**step) + self.epsilon)
        return m / (1 - self.beta1**step) / scale, (m, v)


@pytest.mark.parametrize("fault", [Uncorrected, StartsAtStepTwo, Forgets, DecaysInTheGradient, EpsilonUnderTheRoot])
def test_a_fault_goes_elsewhere(fault):
    right = torch.optim.AdamW if issubclass(fault, AdamW) else torch.optim.Adam
    assert np.abs(ours(fault(epsilon=1e-4)) - by_torch(right, torchs({"epsilon": 1e-4}))).max() > 1e-4


def test_without_memory_each_number_moves_by_the_rate():
    """With both betas 0 the direction is g / (|g| + epsilon): the sign, where g is no zero."""
    direction, _ = Adam(0.0, 0.0).direction(GRADIENTS[0], WEIGHTS, (0.0, 0.0), 1, 0.0)
    np.testing.assert_allclose(direction, np.sign(GRADIENTS[0]), atol=1e-6)


# -------------------------------------------------------------------------------------------------------- engines


HOW = {
    "adam": LocalSGD(lr=0.01, batch_size=4, epochs=2, optimizer=Adam(), weight_decay=0.1),
    "adamw, clipped": LocalSGD(lr=0.01, batch_size=4, steps=7, optimizer=AdamW(), weight_decay=0.1, clip_norm=0.5),
}


def net(model="mlp"):
    return build(model, (2,), 2, seed=1, options={"hidden": [8]} if model == "mlp" else {})


def engine(kind, local, solver=None, model="mlp"):
    return TorchEngine(kind, Task(net(model), tiny_data(), solver or FedAvg(), local, seed=3))


@pytest.mark.parametrize("how", HOW)
def test_a_client_trains_as_torch_would(how):
    """The readable engine against a plain loop over its own batches, round after round from zero moments."""
    local = HOW[how]
    made = engine(Sequential, local)
    kind = torch.optim.AdamW if isinstance(local.optimizer, AdamW) else torch.optim.Adam
    for number in (1, 2):
        trained = made.train(made.initial, IDS, number, local.lr)
        for client in IDS:
            module = net()
            optimizer = kind(module.parameters(), lr=local.lr, weight_decay=local.weight_decay)
            (plan,) = made.trainer.plans(np.array([client]), number)
            for batch in plan:
                x, y = made.trainer.samples["train"].batch(torch.from_numpy(batch[batch >= 0]))
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(module(x), y).backward()
                if local.clip_norm is not None:
                    torch.nn.utils.clip_grad_norm_(module.parameters(), local.clip_norm)
                optimizer.step()
            vector = torch.cat([numbers.detach().flatten() for numbers in module.parameters()]).numpy()
            np.testing.assert_allclose(made.initial + trained.update[client], vector, rtol=0, atol=1e-6)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("model", ["mlp", "linear"])
def test_the_stack_agrees(how, model):
    for solver in (FedAvg(), FedProx(mu=0.5)):
        one, two = (engine(kind, HOW[how], solver, model) for kind in (Sequential, Vmap))
        a, b = (each.train(each.initial, IDS, 1, 0.01) for each in (one, two))
        # A number whose gradient is nothing but rounding moves by its sign.
        np.testing.assert_allclose(b.update, a.update, rtol=0, atol=2e-5)
        assert np.abs(a.update).max() > 1e-2


@pytest.mark.parametrize("kind", [Manual, Native])
def test_engines_of_plain_steps_refuse_and_auto_passes_them_over(kind):
    local = HOW["adam"]
    said = rf"engine.name = '{kind.name}' supports plain gradient steps only; got local.optimizer Adam\. Use 'auto'\."
    with pytest.raises(ConfigError, match=said):
        engine(kind, local)
    choice = choose(engine(Sequential, local).task)
    assert choice.name in ("sequential", "vmap")
    assert kind.name in choice.refused


def test_quadratics_follow_it_too():
    """A client of two numbers, by hand: three steps from (1/2, 1/2)."""
    optimizer = Adam()
    simulation = two_quadratics(local=LocalSGD(lr=0.1, steps=3, optimizer=optimizer))
    engine_, w, moments = simulation.engine, np.full(2, 0.5), (0.0, 0.0)
    for step in (1, 2, 3):
        g = np.diag([1.0, 2.0]) @ (w - np.array([1.0, -1.0]))
        direction, moments = optimizer.direction(g, w, moments, step, 0.0)
        w = w - 0.1 * direction
    found = engine_.train(engine_.initial, np.arange(2), 1, 0.1).update[0]
    np.testing.assert_allclose(0.5 + found, w, rtol=1e-6)


# ------------------------------------------------------------------------------------------------------- refusals


def test_what_makes_no_sense_with_it_is_refused():
    with pytest.raises(ConfigError, match=r"LocalSGD\.momentum must be 0 under Adam, which has its own options"):
        LocalSGD(momentum=0.9, optimizer=Adam())
    for solver in (Scaffold(), FedDyn()):
        said = rf"{type(solver).__name__} needs plain gradient steps; got local\.optimizer AdamW\. Use 'sgd'"
        with pytest.raises(ConfigError, match=said):
            replace(tiny_federation(), solver=solver, local=LocalSGD(optimizer=AdamW()))
    assert LocalSGD(clip_norm=1.0, optimizer=Adam()).furthest(3, 0.1, 1.0) == np.inf


@pytest.mark.parametrize(("option", "value"), [("beta1", 1.0), ("beta2", -0.1), ("epsilon", 0.0), ("beta1", np.nan)])
def test_an_option_outside_its_range_is_refused_by_name(option, value):
    with pytest.raises(ConfigError, match=rf"Adam\.{option} must be .*got {value}"):
        Adam(**{option: value})


@pytest.mark.parametrize(
    ("said", "made"),
    [
        ("sgd", None),
        ("adam", Adam()),
        ({"name": "adamw", "beta2": 0.99}, AdamW(beta2=0.99)),
    ],
)
def test_an_experiment_names_it(said, made):
    assert local_of(LocalSection.model_validate({"optimizer": said})).optimizer == made


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ('optimizer = "adm"', "local.optimizer: must be 'sgd', 'adam', 'adamw' or 'torch'; got 'adm'"),
        ('optimizer = { name = "adam", beta1 = 2.0 }', "Adam.beta1 must be in [0, 1); got 2.0"),
        (
            'optimizer = { name = "adam", beta3 = 0.5 }',
            "local.optimizer 'adam': got an unexpected keyword argument 'beta3'. Its options: beta1, beta2, epsilon.",
        ),
        (
            "optimizer = { beta1 = 0.5 }",
            "local.optimizer 'sgd': got an unexpected keyword argument 'beta1'.",
        ),
        ('optimizer = "adam"\nmomentum = 0.5', "LocalSGD.momentum must be 0 under Adam"),
        ("optimizer = 3", "local.optimizer: must be a name, or a table with a `name`; got 3"),
    ],
)
def test_a_wrong_one_is_told_by_its_key(tmp_path, option, said):
    (tmp_path / "x.toml").write_text(f"[local]\n{option}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape(said)):
        load(tmp_path / "x.toml")
