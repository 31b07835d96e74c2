"""An engine that computes something else than the model is never taken: faults are planted, and found."""

from __future__ import annotations

import itertools
import warnings
from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedreach._util.errors import ConfigError
from fedreach.engines.choice import ENGINES, build_engine, choose
from fedreach.engines.engine import TorchEngine
from fedreach.engines.examination import SIZES, Examination, trial_of
from fedreach.engines.models.networks import build
from fedreach.engines.native.trainer import Native
from fedreach.engines.protocols import Task
from fedreach.engines.sequential import Sequential
from fedreach.engines.vmap import Vmap
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.solvers import FedAvg, FedDyn, FedProx, Scaffold

from .images import MODELS as IMAGES
from .zoo import CLASSES, ZOO


@pytest.fixture
def task(federated):
    """Return ``make(module, ...)``, the task of training it on three clients."""

    def make(module, shape=(8,), kind="features", solver=None, **local):
        data = federated((13, 8, 7), shape, kind, num_classes=CLASSES)
        return Task(module, data, solver or FedAvg(), LocalSGD(**local), 0)

    return make


def trained_otherwise(change, also=None):
    """Return an engine whose updates are changed by a planted fault."""

    class Planted(Sequential):
        name = "planted"

        def train_group(self, start, ids, round_, rate, update, group, terms):
            found = super().train_group(start, ids, round_, rate, update, group, terms)
            views = self.layout.views(update)
            for row in group:
                change({name: tensor[row] for name, tensor in views.items()}, rate)
            return found

    return Planted


class WrongInEvaluation(Sequential):
    """Leaves the module in training mode where it is evaluated."""

    name = "planted"

    def _answers(self, vector, split, index):
        for outputs, y in super()._answers(vector, split, index):
            yield outputs + 0.01 * outputs.abs().max(), y


class WrongLosses(Sequential):
    name = "planted"

    def train_group(self, *arguments):
        losses, steps, finite = super().train_group(*arguments)
        return [1.01 * loss for loss in losses], steps, finite


def first_layer_off(views, rate):
    views["0.weight"] *= 1.01


def buffer_forgotten(views, rate):
    views["1.running_var"].zero_()


def frozen_trained(views, rate):
    views["2.weight"] -= 1e-3 * rate


class Detached(nn.Linear):
    """A layer that its code leaves as it is, though it could be trained."""

    def forward(self, x):
        return functional.linear(x, self.weight.detach(), self.bias.detach())


def normalized(middle=Detached):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), middle(12, 10), nn.ReLU(), nn.Linear(10, CLASSES))


FAULTS = {
    "one layer is off by 1%": (trained_otherwise(first_layer_off), "the update of 0.weight differs by 1.0%"),
    "a buffer is forgotten": (trained_otherwise(buffer_forgotten), "the update of 1.running_var differs"),
    "a frozen layer is trained": (trained_otherwise(frozen_trained), "the update of 2.weight differs"),
    "evaluation is off": (WrongInEvaluation, "the output in evaluation differs by 1.0%"),
    "losses are off": (WrongLosses, "the loss in training differs by 1.0%"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_engine_is_not_taken_and_gives_way_where_it_is_named(fault, task, monkeypatch):
    kind, why = FAULTS[fault]
    given = task(normalized(), batch_size=4)
    monkeypatch.setattr("fedreach.engines.choice.ENGINES", {"planted": kind, "sequential": Sequential})
    chosen = choose(given)
    assert chosen.name == "sequential"
    assert why in chosen.refused["planted"]
    assert chosen.warning.startswith("engine sequential: other engines compute different results from torch for this")
    assert why in chosen.warning
    with pytest.warns(UserWarning, match="sequential: planted computes different results from torch") as told:
        assert build_engine("planted", given).name == "sequential"
    assert why in str(told[0].message)


@pytest.mark.parametrize("fault", FAULTS)
def test_without_its_fault_the_planted_engine_is_right(fault, task):
    class Faultless(FAULTS[fault][0]):
        train_group = Sequential.train_group
        _answers = Sequential._answers

    assert Examination(task(normalized())).difference(Faultless) is None


@pytest.mark.parametrize("solver", [FedAvg(), FedProx(mu=0.3), Scaffold(), FedDyn(0.1)])
def test_a_fault_is_found_whatever_the_solver_and_the_steps(solver, task):
    given = task(
        normalized(nn.Linear), solver=solver, momentum=0.9, weight_decay=0.1, clip_norm=0.5, steps=7, batch_size=2
    )
    examination = Examination(given)
    assert examination.difference(Vmap) is None
    assert "the update of 0.weight differs" in examination.difference(FAULTS["one layer is off by 1%"][0])


@pytest.mark.parametrize(
    ("name", "shape", "kind", "options"),
    [
        ("linear", (8,), "features", {}),
        ("mlp", (8,), "features", {"hidden": [20, 10]}),
        ("mlp", (1, 16, 16), "image", {}),
        ("lenet", (1, 16, 16), "image", {}),
        ("cnn", (1, 16, 16), "image", {}),
        ("resnet20", (1, 8, 8), "image", {"width": 2}),
        ("lstm", (6,), "tokens", {"embedding": 3, "hidden": 5}),
    ],
)
@pytest.mark.sampled(3)
def test_built_in_models_are_still_trained_by_the_fastest_engine(name, shape, kind, options, task):
    module = build(name, shape, CLASSES, seed=2, options=options)
    examination = Examination(task(module, shape, kind))
    assert examination.only_plain is None
    assert examination.difference(Native) is None
    assert examination.difference(Vmap) is None


def test_batch_norm_of_a_built_in_model_is_still_trained_together(task):
    module = build("resnet20", (1, 8, 8), CLASSES, seed=0, options={"width": 2, "norm": "batch"})
    examination = Examination(task(module, (1, 8, 8), "image"))
    assert examination.only_plain is None
    assert examination.difference(Vmap) is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("FlippedByChance", "the model draws random numbers other than dropout's"),
        ("FlippedByPython", "the model draws random numbers by random"),
        ("NoiseByNumpy", "the model draws random numbers by numpy"),
        ("NoiseInEvaluation", "other than dropout's"),
        ("LoopByData", "reads numbers from tensors"),
        ("BranchByData", "reads numbers from tensors"),
        ("ForwardHook", "the model has hooks"),
        ("MaskedGradient", "parameters of the model have hooks"),
        ("FrozenByTrain", "FrozenByTrain overrides train()"),
        ("Clipped", "the model's code has custom gradients"),
        ("HookedInForward", "the model's code registers hooks"),
        ("ClampedWeights", "the model's code writes to its parameters"),
        ("Renormalized", "the model's code writes to its parameters"),
        ("OtherForward", "Linear overrides forward()"),
        ("Counting", "has state outside of its parameters and buffers"),
        ("OwnGenerator", "has state outside of its parameters and buffers"),
    ],
)
def test_what_no_comparison_can_see_is_left_to_the_plain_engine_in_one_line(name, why, task):
    member = ZOO[name]
    given = task(member.make(), member.shape, member.kind)
    chosen = choose(given)
    assert (chosen.name, dict(chosen.seconds)) == ("sequential", {})
    assert str(chosen) == chosen.warning
    assert str(chosen).startswith("engine sequential: ")
    assert why in str(chosen)
    assert "\n" not in str(chosen)
    with pytest.warns(UserWarning, match="engine sequential: vmap computes different results") as told:
        assert build_engine("vmap", given).name == "sequential"
    assert why in str(told[0].message)


@pytest.mark.parametrize("name", ["Probe", "ReadByData", "Reversed", "StraightThrough", "BranchBySize", "Autocast"])
def test_code_that_a_graph_does_not_show_is_not_trained_by_a_graph(name, task):
    given = task(ZOO[name].make())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with suppress(ConfigError):  # where its graph is none that the engine knows
            assert build_engine("native", given).name == "sequential"
            assert any("engine sequential: native computes different results" in str(each.message) for each in told)


@pytest.mark.parametrize("size", [2, 6, 12])
def test_a_branch_by_the_size_of_a_batch_is_seen_at_the_sizes_of_the_run(size, task):
    class Branch(nn.Linear):
        def forward(self, x):
            return super().forward(-x if len(x) == size else x.clone())

    assert "operations differ between batches" in str(choose(task(Branch(8, CLASSES), batch_size=13)))


def test_a_model_whose_copies_train_the_original_is_refused_by_every_engine(task):
    layer = nn.Linear(8, CLASSES)
    layer.forward = lambda x: x @ layer.weight.T
    scaled = nn.Linear(8, CLASSES)
    scaled.scale = nn.Parameter(torch.ones(1))
    scaled.register_forward_hook(lambda _, inputs, output: output * scaled.scale)
    for module in (layer, scaled):
        for engine in ("auto", "sequential"):
            with pytest.raises(ConfigError, match="must not share layers with its copies"):
                build_engine(engine, task(module))


def test_a_model_that_never_returns_the_same_is_refused_by_every_engine(task):
    calls = itertools.count(1)  # of the process: no copy of the model begins anew

    class Clock(nn.Linear):
        def forward(self, x):
            return super().forward(x) * next(calls)

    for engine in ("auto", "sequential"):
        with pytest.raises(ConfigError, match="Clock must return the same outputs for the same inputs"):
            build_engine(engine, task(Clock(8, CLASSES)))


def test_the_trial_is_small_and_has_clients_of_unequal_size_and_batches_that_are_not_full(task):
    trial = trial_of(task(nn.Linear(8, CLASSES), batch_size=1, steps=9, drop_last=True))
    assert trial.data.train.sizes.tolist() == list(SIZES)
    assert len(trial.data.dataset.train_x) == sum(SIZES)
    assert trial.local.steps_of(np.array(SIZES), np.arange(3), 0, 1).tolist() == [2, 1, 1]


def test_few_examples_are_enough(federated):
    data = federated((3, 2), (8,), num_classes=CLASSES)
    assert choose(Task(nn.Linear(8, CLASSES), data, FedAvg(), LocalSGD(), 0)).name in ENGINES


def test_nothing_random_of_the_process_is_used_up(task):
    given = task(ZOO["dropout"].make())
    torch.manual_seed(5)
    state = torch.get_rng_state()
    choose(given)
    assert torch.equal(torch.get_rng_state(), state)


def test_an_engine_that_was_examined_is_not_examined_again(task, monkeypatch):
    given = task(nn.Linear(8, CLASSES))
    monkeypatch.setattr("fedreach.engines.choice.Examination", None)
    assert build_engine("vmap", given, examined=True).name == "vmap"
    assert isinstance(build_engine("sequential", given), TorchEngine)
    with pytest.raises(TypeError):
        build_engine("vmap", given)


def test_a_rounding_that_crosses_a_kink_in_one_batch_is_no_fault(task):
    class OnceOff(Vmap):
        def train_group(self, start, ids, round_, rate, update, group, terms):
            found = super().train_group(start, ids, round_, rate, update, group, terms)
            if round_ == 1:
                update *= 1.01
            return found

    examination = Examination(task(nn.Linear(8, CLASSES)))
    assert examination.difference(OnceOff) is None


@pytest.mark.parametrize("name", IMAGES)
def test_every_layer_of_images_is_recognized_as_before(name, federated):
    make, shape = IMAGES[name]
    torch.manual_seed(0)
    examination = Examination(Task(make(), federated((13, 2, 8, 6), shape, "image"), FedAvg(), LocalSGD(), 0))
    assert examination.only_plain is None
    assert examination.difference(Native) is None
