"""Objectives that see more than outputs: each against a loop in plain torch, and where it must be FedAvg to the bit."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedreach._util.errors import ComponentError, ConfigError, TrainingError
from fedreach.data.federated import FederatedData
from fedreach.engines.batches import batch_plan
from fedreach.engines.choice import ENGINES, choose
from fedreach.engines.engine import TorchEngine
from fedreach.engines.models.flat import bind, flatten
from fedreach.engines.protocols import Task
from fedreach.engines.sequential import Sequential
from fedreach.federation.aggregation import Mean
from fedreach.federation.federation import Federation
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.losses import (
    MOON,
    MSE,
    CrossEntropy,
    FedDecorr,
    FedNTD,
    FedSAM,
    FunctionLoss,
    LabelSmoothing,
    LogitAdjusted,
)
from fedreach.federation.selection.random import Full, Uniform
from fedreach.federation.server import Average, FedAdam, FedAvgM
from fedreach.federation.solvers import FedAvg, FedDyn, FedProx, Scaffold
from fedreach.federation.weighting import Equal
from fedreach.runs.simulation import Simulation

ROUNDS, RATE, SIZES = 3, 0.2, (13, 7, 9)
LOCAL = LocalSGD(batch_size=4, epochs=2, lr=RATE)
OBJECTIVES = [MOON(mu=2.0), FedDecorr(beta=0.5), FedNTD(beta=0.7, tau=2.0), FedSAM(rho=0.1)]
NAMES = ["moon", "feddecorr", "fedntd", "fedsam"]


def model() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


def smooth() -> nn.Module:
    """Return a model that takes batches of one example."""
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def chain() -> nn.Module:
    """Return a model that every engine can train."""
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))


@pytest.fixture
def simulated(federated):
    """Return ``make(loss, ...)``, the simulation of three clients that all take part."""

    def make(loss, kind=Sequential, module=None, **parts):
        data = federated(SIZES, (5,))
        usual = {"solver": FedAvg(), "server": Average(), "selection": Full(), "local": LOCAL}
        federation = Federation(
            weighting=Equal(), aggregation=Mean(), loss=loss, cohort_size=3, seed=7, **(usual | parts)
        )
        task = Task.of(module or model(), data, federation)
        return Simulation(federation, data, TorchEngine(kind, task), ROUNDS)

    return make


def updates(simulation, rounds=ROUNDS):
    """Return the (3, d) updates of each round."""
    state, found = simulation.start(), []
    for _ in range(rounds):
        done = simulation.step(state)
        state = done.state
        found.append(done.update)
    return np.array(found)


# ------------------------------------------------------------------------------------ the same, in plain torch


def features(module, x):
    return module[:-1](x)


def moon(local, world, previous, x, y):
    loss = F.cross_entropy(local(x), y)
    if previous is None:
        return loss
    with torch.no_grad():
        towards, away = features(world, x), features(previous, x)
    z = features(local, x)
    logits = torch.stack([F.cosine_similarity(z, towards, dim=1), F.cosine_similarity(z, away, dim=1)], 1) / 0.5
    return loss + 2.0 * F.cross_entropy(logits, torch.zeros(len(y), dtype=torch.long))


def feddecorr(local, world, previous, x, y):
    loss, z = F.cross_entropy(local(x), y), features(local, x)
    if len(y) == 1:
        return loss
    covariances = torch.cov(z.T, correction=0)
    deviations = (covariances.diagonal() + 1e-8).sqrt()  # the authors' 1e-8
    k = covariances / torch.outer(deviations, deviations)
    return loss + 0.5 * k.pow(2).sum() / k.numel()


def fedntd(local, world, previous, x, y):
    outputs = local(x)
    with torch.no_grad():
        said = world(x)
    total = F.cross_entropy(outputs, y)
    for i in range(len(y)):
        others = [c for c in range(3) if c != y[i]]
        q_l, q_g = F.softmax(outputs[i, others] / 2.0, 0), F.softmax(said[i, others] / 2.0, 0)
        total = total + 0.7 * (q_g * (q_g / q_l).log()).sum() / len(y)
    return total


def gradients_of(name, model_, broadcast_model, previous, x, y):
    """Return the gradients of an objective, parameter by parameter."""
    objectives = {"moon": moon, "feddecorr": feddecorr, "fedntd": fedntd}
    if name == "fedsam":
        return gradients_of_sam(model_, x, y)
    value = objectives[name](model_, broadcast_model, previous, x, y)
    return torch.autograd.grad(value, list(model_.parameters()))


def gradients_of_sam(model_, x, y):
    gradients = torch.autograd.grad(F.cross_entropy(model_(x), y), list(model_.parameters()))
    norm = sum(g.pow(2).sum() for g in gradients).sqrt()
    ascended = copy.deepcopy(model_)
    with torch.no_grad():
        for parameter, gradient in zip(ascended.parameters(), gradients, strict=True):
            parameter += 0.1 * gradient / norm
    return torch.autograd.grad(F.cross_entropy(ascended(x), y), list(ascended.parameters()))


def train(name, start, previous, data, client, round_, local):
    """Train one client as a paper writes it, by torch's own optimizer; return its model."""
    trained, broadcast_model = copy.deepcopy(start).train(), copy.deepcopy(start).eval()
    options = {"lr": local.lr, "momentum": local.momentum, "weight_decay": local.weight_decay}
    optimizer, samples = torch.optim.SGD(trained.parameters(), **options), data.train[client]
    for positions in batch_plan(7, round_, client, len(samples), local):
        index = samples[positions[positions >= 0]]
        x, y = torch.from_numpy(data.dataset.train_x[index]), torch.from_numpy(data.labels[index])
        # Further forward passes of the model must not count in its running statistics.
        once = copy.deepcopy(trained)
        once(x)
        gradients = gradients_of(name, trained, broadcast_model, previous, x, y)
        for parameter, gradient in zip(trained.parameters(), gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
        for buffer, new in zip(trained.buffers(), once.buffers(), strict=True):
            buffer.copy_(new)
    return trained


DECAYED = LocalSGD(batch_size=7, epochs=3, lr=0.05, momentum=0.9, weight_decay=0.02)
"""Clients of 12, 6 and 8 examples have last batches of 5, 6 and 1."""
CASES = [(LOCAL, model), (DECAYED, smooth)]


@pytest.mark.parametrize(("local", "make"), CASES, ids=["batch norm", "momentum, weight decay, single examples"])
@pytest.mark.parametrize(("loss", "name"), list(zip(OBJECTIVES, NAMES, strict=True)), ids=NAMES)
def test_three_rounds_of_three_clients_are_those_of_a_loop_in_plain_torch(simulated, loss, name, local, make):
    world, last = make(), [None] * 3
    simulation, plain = (simulated(one, module=make(), local=local) for one in (loss, CrossEntropy()))
    assert (simulation.data.train.sizes % local.batch_size).any()  # some last batches are not full
    found = updates(simulation)
    for round_ in range(1, ROUNDS + 1):
        start = flatten(world).numpy()
        locals_ = [train(name, world, last[client], simulation.data, client, round_, local) for client in range(3)]
        expected = np.stack([flatten(one).numpy() - start for one in locals_])
        np.testing.assert_allclose(found[round_ - 1], expected, rtol=0, atol=1e-6)
        last = [one.eval() for one in locals_]
        bind(world, torch.from_numpy(start + expected.mean(axis=0)))
    assert abs(found - updates(plain)).max() > 1e-4  # it does something


# ---------------------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize("loss", [MOON(mu=0.0), FedDecorr(beta=0.0), FedNTD(beta=0.0), FedSAM(rho=0.0)], ids=NAMES)
def test_with_strength_0_it_is_fedavg_to_the_last_bit(simulated, loss):
    assert np.array_equal(updates(simulated(loss)), updates(simulated(CrossEntropy())))


@pytest.mark.parametrize("loss", [MOON(mu=5.0), FedNTD(beta=5.0)], ids=["moon", "fedntd"])
def test_what_only_pulls_away_from_the_global_model_leaves_the_first_step_alone(simulated, loss):
    """In step 1 the local model is the global one (but for BatchNorm), and nobody has an earlier one."""
    plain, local = nn.Linear(5, 3), LocalSGD(batch_size=99, lr=RATE)
    torch.manual_seed(1)
    found, fedavg = (updates(simulated(one, module=plain, local=local), 1) for one in (loss, CrossEntropy()))
    np.testing.assert_allclose(found, fedavg, atol=1e-6)


def test_sam_follows_the_gradient_of_the_place_rho_away_on_a_quadratic(simulated):
    """On f(w) = |w|^2 / 2 the gradient at w + rho w / |w| is w (1 + rho / |w|): one step of SGD shows the factor."""

    def half_square(outputs, targets):
        return 0.5 * outputs.square().sum(-1)

    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor([3.0, 0.0, 4.0]))

        def forward(self, x):
            return self.w.expand(len(x), 3)

    loss = FedSAM(rho=0.5, inner=FunctionLoss(half_square))
    found = updates(simulated(loss, module=Constant(), local=LocalSGD(batch_size=99, lr=0.1)), 1)[0]
    np.testing.assert_allclose(found, np.tile([-0.33, 0, -0.44], (3, 1)), atol=1e-6)


def test_the_training_loss_of_a_round_is_that_of_the_batches_and_not_the_objective(simulated):
    """The first step's loss is FedAvg's, whatever is added: selections by loss compare the same thing."""
    how = LocalSGD(batch_size=99, lr=RATE)
    rows = [simulated(one, local=how) for one in (FedDecorr(beta=9.0), CrossEntropy())]
    a, b = (one.step(one.start()).result.metrics["loss"] for one in rows)
    np.testing.assert_allclose(a, b, rtol=1e-6)


# ----------------------------------------------------------------------------------------- what goes together


@pytest.mark.parametrize("loss", OBJECTIVES, ids=NAMES)
@pytest.mark.parametrize(
    "parts", [{"solver": FedProx(mu=0.5)}, {"server": FedAdam(lr=0.1)}, {"server": FedAvgM()}], ids=str
)
def test_it_trains_with_solvers_and_server_steps(simulated, loss, parts):
    found, plain = updates(simulated(loss, **parts)), updates(simulated(loss))
    assert np.isfinite(found).all()
    assert abs(found - plain).max() > 1e-5


def test_fedprox_pulls_on_top_of_what_the_objective_follows(simulated):
    """Two full-batch steps: the second one differs from that without FedProx by -rate mu (w_1 - w_0)."""
    how, module = LocalSGD(batch_size=99, steps=2, lr=RATE), nn.Linear(5, 3)
    one, two, pulled = (
        updates(simulated(FedSAM(rho=0.1), module=module, local=replace(how, steps=steps), solver=solver), 1)[0]
        for steps, solver in ((1, FedAvg()), (2, FedAvg()), (2, FedProx(mu=0.5)))
    )
    np.testing.assert_allclose(pulled, two - RATE * 0.5 * one, atol=1e-6)


@pytest.mark.parametrize("solver", [Scaffold(), FedDyn()], ids=["scaffold", "feddyn"])
def test_two_parts_that_each_keep_a_vector_at_clients_are_refused(simulated, solver):
    with pytest.raises(ConfigError, match=r"and MOON both store a vector .* 'fedprox'"):
        simulated(MOON(), solver=solver)
    updates(simulated(FedSAM(), solver=solver), 1)


@pytest.mark.parametrize("inner", [LogitAdjusted(), FedSAM()], ids=["shifts", "sees more"])
def test_an_inner_loss_that_shifts_or_sees_more_is_refused(inner):
    with pytest.raises(ConfigError, match=r"MOON.inner must be a loss of outputs.*; \w+ (shifts|already has an)"):
        MOON(inner=inner)


def test_another_loss_can_stand_inside(simulated):
    smoothed = LabelSmoothing(0.2)
    found, plain, other = (updates(simulated(one), 1) for one in (FedSAM(rho=0.0, inner=smoothed), smoothed, FedSAM()))
    assert np.array_equal(found, plain)
    assert abs(found - other).max() > 1e-4


def numbers_learnt(loss):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(30)
    table = {"client": ["a", "b", "c"] * 10, "x": x, "cost": 1000 + 50 * x}
    data = FederatedData.from_frame(table, client="client", target="cost", participants=["a", "b"])
    federation = Federation(Full(), Equal(), FedAvg(), LOCAL, Average(), loss=loss, cohort_size=2, seed=0)
    task = Task.of(nn.Linear(1, 1), data, federation)
    return updates(Simulation(federation, task.data, TorchEngine(Sequential, task), ROUNDS))


def test_numbers_are_learnt_on_the_scale_of_the_inner_loss():
    """Left out, targets of about 1000 would come as they are, and their squares drive the model off."""
    found = []
    for loss in (MSE(), FedSAM(rho=0.0, inner=MSE()), FedSAM(rho=0.1, inner=MSE())):
        torch.manual_seed(0)
        found.append(numbers_learnt(loss))
    assert np.array_equal(found[0], found[1])
    assert 0 < abs(found[2] - found[0]).max() < 0.5
    with pytest.raises(ConfigError, match="needs classes as targets"):
        numbers_learnt(FedNTD(inner=MSE()))


# --------------------------------------------------------------------------------------------- other engines


@pytest.mark.parametrize("kind", [kind for kind in ENGINES.values() if kind is not Sequential])
def test_other_engines_refuse_a_loss_that_sees_more(simulated, kind):
    with pytest.raises(
        ConfigError, match=rf"'{kind.name}' does not support the loss FedSAM, which has a method `objective`"
    ):
        simulated(FedSAM(), kind, chain())


def test_auto_takes_sequential_and_says_why_in_a_line_for_each_other(simulated):
    found = choose(simulated(MOON(), module=chain()).engine.task)
    assert found.name == "sequential"
    assert all("does not support the loss MOON" in why for why in found.refused.values())
    assert set(found.refused) >= {"native", "manual", "vmap"}


@pytest.mark.parametrize("loss", OBJECTIVES, ids=NAMES)
def test_the_number_of_processes_changes_no_bit(simulated, loss):
    one = simulated(loss)
    two = replace(one, engine=TorchEngine(Sequential, one.engine.task, threads=2))
    assert np.array_equal(updates(one), updates(two))


# ------------------------------------------------------------------------------------------------ memory


def test_a_client_keeps_the_model_of_the_last_round_in_which_it_counted(simulated):
    simulation = simulated(MOON(), selection=Uniform())
    simulation = replace(simulation, federation=replace(simulation.federation, cohort_size=1))
    state, kept = simulation.start(), {}
    assert not state.memory.read(np.arange(3)).any()
    for _ in range(5):
        broadcast = state.params
        done = simulation.step(state)
        state = done.state
        kept[done.result.cohort[0]] = broadcast + done.update[0]
        for client, model_ in kept.items():
            assert np.array_equal(state.memory.read(np.array([client]))[0], model_)
    assert len(kept) > 1


@dataclass(frozen=True)
class Own(CrossEntropy):
    """Cross-entropy and what a test does."""

    does: object = None

    def objective(self, step):
        return self.does(step)


def seen(simulated, does, module=None):
    found = []

    def note(step):
        found.append(does(step))
        return step.loss

    updates(simulated(Own(does=note), module=module), 1)
    return found


def test_a_step_shows_the_module_the_batch_and_all_models(simulated):
    def look(step):
        assert step.outputs.shape == (len(step.x), 3) == (len(step.y), 3)
        assert torch.equal(step.broadcast, flatten(model()))
        assert not step.memory.any()
        assert step.frozen(step.broadcast).outputs.requires_grad is False
        assert torch.equal(step.frozen(step.broadcast).outputs, step.global_model.outputs)
        assert torch.equal(step.features("2"), step.features())
        assert torch.equal(step.module[-1](step.features()), step.outputs)
        torch.testing.assert_close(step.loss_at(torch.zeros(step.gradient().shape)), step.loss)
        return step.global_model.features().shape

    assert (4, 8) in seen(simulated, look)


@pytest.mark.parametrize(
    ("layer", "says"),
    [("nowhere", "got 'nowhere'"), (None, "must have a linear layer; got none")],
    ids=["name", "none"],
)
def test_features_that_are_not_there_are_refused_by_name(simulated, layer, says):
    module = nn.Sequential(nn.Unflatten(1, (5, 1)), nn.Conv1d(5, 3, 1), nn.Flatten())
    with pytest.raises(TrainingError, match=says):
        seen(simulated, lambda step: step.features(layer), module)


def test_a_layer_that_is_used_twice_has_no_features(simulated):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.last = nn.Linear(5, 5), nn.Linear(5, 3)

        def forward(self, x):
            return self.last(self.inner(self.inner(x)))

    with pytest.raises(TrainingError, match=r"layer 'inner' must be used once per pass"):
        seen(simulated, lambda step: step.features("inner"), Twice())


@pytest.mark.parametrize(
    ("does", "got"),
    [
        (lambda step: 1.0, "got float"),
        (lambda step: step.outputs.square(), r"got a tensor of shape \(4, 3\)"),
        (lambda step: step.loss.detach(), "got a constant"),
    ],
    ids=["number", "vector", "constant"],
)
def test_an_objective_that_is_not_one_number_with_a_gradient_is_refused(simulated, does, got):
    with pytest.raises(TrainingError, match=rf"must return a differentiable tensor with one number, .* {got}"):
        updates(simulated(Own(does=does)))


def test_what_a_client_keeps_must_be_as_long_as_the_model(simulated):
    class Short(MOON):
        def keep(self, memory, local):
            return local[:, :2]

    with pytest.raises(ComponentError, match=r"Short.keep must return float32 of shape \(1, \d+\)"):
        updates(simulated(Short()), 1)
