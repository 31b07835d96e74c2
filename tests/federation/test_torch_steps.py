"""PyTorch's optimizers at clients: the steps of a plain torch loop, begun again in each round."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace

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
from fedreach.federation.local_sgd import LocalSGD, TorchSteps
from fedreach.federation.solvers import FedAvg, FedProx, Scaffold
from fedreach.testing.problems import tiny_data, tiny_federation

from ..quadratics import two_quadratics  # noqa: TID252 (tests are no package that has a name)

IDS = np.arange(4)
REFUSED = {"Optimizer", "LBFGS", "SparseAdam", "Muon"}  # no optimizer; asks for the loss; sparse; matrices only
ALL = sorted(
    name
    for name, thing in vars(torch.optim).items()
    if inspect.isclass(thing) and issubclass(thing, torch.optim.Optimizer) and name not in REFUSED
)
OPTIONS = {"SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, "RMSprop": {"alpha": 0.9, "centered": True}}


def net():
    return build("mlp", (2,), 2, seed=1, options={"hidden": [8]})


def engine(kind, local, solver=None):
    return TorchEngine(kind, Task(net(), tiny_data(), solver or FedAvg(), local, seed=3))


def of(name, **local):
    given = {"lr": 0.01, "batch_size": 4, "epochs": 2, **local}
    return LocalSGD(**given, optimizer=TorchSteps(name, OPTIONS.get(name)))


def by_hand(made, name, client, round_, clip_norm=None, mu=0.0):
    """Return the vector after a plain loop of torch over the client's batches."""
    module = net()
    begun = [parameter.detach().clone() for parameter in module.parameters()]
    optimizer = getattr(torch.optim, name)(module.parameters(), lr=0.01, **OPTIONS.get(name, {}))
    (plan,) = made.trainer.plans(np.array([client]), round_)
    for batch in plan:
        x, y = made.trainer.samples["train"].batch(torch.from_numpy(batch[batch >= 0]))
        optimizer.zero_grad()
        far = sum((p - b).square().sum() for p, b in zip(module.parameters(), begun, strict=True))
        (torch.nn.functional.cross_entropy(module(x), y) + mu / 2 * far).backward()
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(module.parameters(), clip_norm)
        optimizer.step()
    return torch.cat([numbers.detach().flatten() for numbers in module.parameters()]).numpy()


@pytest.mark.parametrize("name", ALL)
def test_a_client_goes_where_torch_would_and_begins_again_in_each_round(name):
    made = engine(Sequential, of(name))
    for round_ in (1, 2):
        trained = made.train(made.initial, IDS, round_, 0.01)
        assert np.abs(trained.update).max() > 1e-5
        for client in IDS:
            found = made.initial + trained.update[client]
            np.testing.assert_allclose(found, by_hand(made, name, client, round_), rtol=0, atol=1e-6)


def test_it_is_handed_the_corrected_and_clipped_gradient():
    made = engine(Sequential, of("RMSprop", clip_norm=0.05), FedProx(mu=5.0))
    trained = made.train(made.initial, IDS, 1, 0.01)
    for client in IDS:
        right = by_hand(made, "RMSprop", client, 1, clip_norm=0.05, mu=5.0)
        np.testing.assert_allclose(made.initial + trained.update[client], right, rtol=0, atol=1e-6)
        assert np.abs(right - by_hand(made, "RMSprop", client, 1)).max() > 1e-4


def test_the_rate_is_that_of_the_round():
    made = engine(Sequential, of("RMSprop"))
    slow, fast = (made.train(made.initial, IDS, 1, rate).update for rate in (1e-4, 1e-2))
    assert 10 * np.abs(slow).max() < np.abs(fast).max()


@pytest.mark.parametrize("kind", [Manual, Native, Vmap])
def test_other_engines_refuse_it_and_auto_says_why(kind):
    with pytest.raises(ConfigError, match=rf"'{kind.name}' does not support torch\.optim\.RMSprop; 'sequential' does"):
        engine(kind, of("RMSprop"))
    choice = choose(engine(Sequential, of("RMSprop")).task)
    assert choice.name == "sequential"
    assert "does not support torch.optim.RMSprop" in choice.refused[kind.name]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: TorchSteps("RMSProp"), "must be a class of torch.optim; got 'RMSProp'. Did you mean 'RMSprop'"),
        (lambda: TorchSteps("LBFGS"), "LBFGS evaluates the loss several times"),
        (lambda: TorchSteps("SparseAdam"), "TorchSteps cannot step with torch.optim.SparseAdam"),
        (lambda: TorchSteps("RMSprop", {"alfa": 0.9}), "unexpected keyword argument 'alfa'"),
        (lambda: TorchSteps("RMSprop", {"lr": 0.9}), "Set local.lr instead"),
        (lambda: of("RMSprop", momentum=0.9), "LocalSGD.momentum and LocalSGD.weight_decay must be 0"),
        (lambda: of("RMSprop", weight_decay=0.1), "must be 0 under TorchSteps, which has its own options"),
        (
            lambda: replace(tiny_federation(), solver=Scaffold(), local=of("RMSprop")),
            "Scaffold needs plain gradient steps",
        ),
        (lambda: two_quadratics(local=of("RMSprop")).engine.train(np.zeros(2), IDS[:2], 1, 0.1), "Quadratics do not"),
    ],
)
def test_what_makes_no_sense_is_refused_before_a_run(made, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        made()


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_an_optimizer_of_matrices_refuses_a_model_with_biases_before_the_first_round():
    with pytest.raises(ConfigError, match=r"torch\.optim\.Muon does not support this model"):
        engine(Sequential, of("Muon"))


def test_an_experiment_names_it_and_lists_become_tuples():
    said = {"name": "torch", "optimizer": "NAdam", "options": {"betas": [0.8, 0.9]}}
    steps = local_of(LocalSection.model_validate({"optimizer": said})).optimizer
    assert steps == TorchSteps("NAdam", {"betas": [0.8, 0.9]})
    assert steps.begun([torch.nn.Parameter(torch.zeros(1))], 0.1).defaults["betas"] == (0.8, 0.9)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ('"torch"', "local.optimizer 'torch': missing a required argument: 'optimizer'"),
        (
            '{ name = "torch", optimizer = "RMSprop", beta1 = 0.5 }',
            "argument 'beta1'. Its options: optimizer, options.",
        ),
        (
            '{ name = "adam", optimizer = "RMSprop" }',
            "argument 'optimizer'. Its options: beta1, ",
        ),
        ('{ name = "torch", optimizer = "RMSpropp" }', "Did you mean 'RMSprop'"),
    ],
)
def test_a_wrong_one_is_told(tmp_path, option, said):
    (tmp_path / "x.toml").write_text(f"[local]\noptimizer = {option}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape(said)):
        load(tmp_path / "x.toml")
