"""Augmented training batches: a plain loop's, seeded by round, client and step, and never in evaluation."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import nn

import fedreach as fr
from fedreach._util.errors import ComponentError, ConfigError
from fedreach._util.streams import torch_seed
from fedreach.engines.choice import choose
from fedreach.engines.engine import TorchEngine
from fedreach.engines.manual import Manual
from fedreach.engines.native.trainer import Native
from fedreach.engines.protocols import Task
from fedreach.engines.sequential import Sequential, augment_batch
from fedreach.engines.vmap import Vmap
from fedreach.federation.augmentations import FlipAndCrop, FunctionAugmentation
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.solvers import FedAvg

SIZES, IDS = (13, 2, 8, 6), np.arange(4)
LOCAL = LocalSGD(batch_size=4, epochs=2)
SHAPE = (2, 5, 6)


@pytest.fixture
def data(federated):
    return federated(SIZES, SHAPE, "image")


def net(dropout=0.0):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), *([nn.Dropout(dropout)] if dropout else []), nn.Linear(60, 3))


def engine(data, augmentation, module=None, kind=Sequential, **options):
    task = Task(module or net(), data, FedAvg(), LOCAL, seed=3, augmentation=augmentation)
    return TorchEngine(kind, task, **options)


def loop(images, flip, padding):
    """Return the images of flip_and_crop, one by one, by the same numbers."""
    flips = torch.rand(len(images)) < flip
    down, right = torch.randint(2 * padding + 1, (2, len(images)))
    found = []
    for i, image in enumerate(images):
        whole = torch.zeros(image.shape[0], image.shape[1] + 2 * padding, image.shape[2] + 2 * padding)
        whole[:, padding : padding + image.shape[1], padding : padding + image.shape[2]] = (
            image.flip(2) if flips[i] else image
        )
        found.append(whole[:, down[i] : down[i] + image.shape[1], right[i] : right[i] + image.shape[2]])
    return torch.stack(found)


@pytest.mark.parametrize(("flip", "padding"), [(0.5, 2), (0.0, 3), (1.0, 1)])
def test_flip_and_crop_does_to_the_batch_what_a_loop_does_to_each_image(flip, padding):
    images = torch.randn(50, *SHAPE)
    torch.manual_seed(1)
    found = FlipAndCrop(flip, padding).augment(images)
    torch.manual_seed(1)
    assert torch.equal(found, loop(images, flip, padding))
    assert not torch.equal(found[0], found[1])


def test_each_image_is_flipped_and_moved_by_itself_and_about_half_are_flipped():
    images = torch.arange(6.0).expand(400, 1, 1, 6)
    flipped = (FlipAndCrop(padding=0).augment(images)[:, 0, 0, 0] == 5).float().mean()
    assert 0.4 < flipped < 0.6
    moved = FlipAndCrop(flip=0.0, padding=1).augment(torch.ones(400, 1, 3, 3)).sum((1, 2, 3))
    assert set(moved.tolist()) == {4.0, 6.0, 9.0}  # by a corner, by a side, not at all


@pytest.mark.parametrize("round_", [1, 2])
def test_a_client_trains_as_a_plain_loop_on_augmented_batches(data, round_):
    augmentation, made = FlipAndCrop(padding=2), engine(data, FlipAndCrop(padding=2))
    trained = made.train(made.initial, IDS, round_, 0.1)
    for client in IDS:
        module = net()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        (plan,) = made.trainer.plans(np.array([client]), round_)
        for step, batch in enumerate(plan, start=1):
            x, y = made.trainer.samples["train"].batch(torch.from_numpy(batch[batch >= 0]))
            torch.manual_seed(torch_seed(3, f"augmentation {step}", round_, int(client)))
            x = augmentation.augment(x)
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            optimizer.step()
        vector = torch.cat([numbers.detach().flatten() for numbers in module.parameters()]).numpy()
        np.testing.assert_allclose(made.initial + trained.update[client], vector, rtol=0, atol=1e-6)


def test_the_bits_do_not_depend_on_the_order_of_clients_nor_on_what_was_drawn_before(data):
    made = engine(data, FlipAndCrop(padding=2))
    one = made.train(made.initial, IDS, 1, 0.1).update
    torch.manual_seed(99)
    other = engine(data, FlipAndCrop(padding=2), threads=2)
    assert other.train(made.initial, IDS[::-1].copy(), 1, 0.1).update[::-1].tobytes() == one.tobytes()
    assert other.train(made.initial, IDS[2:3], 1, 0.1).update.tobytes() == one[2:3].tobytes()


def test_rounds_clients_and_steps_have_draws_of_their_own():
    x, seen = torch.randn(8, *SHAPE), set()
    for key in ((3, 1, 0, 1), (4, 1, 0, 1), (3, 2, 0, 1), (3, 1, 1, 1), (3, 1, 0, 2)):
        seen.add(augment_batch(FlipAndCrop(padding=2), x, *key).numpy().tobytes())
    assert len(seen) == 5


def test_dropout_draws_the_same_with_an_augmentation_that_changes_nothing(data):
    def nothing(inputs):
        torch.rand(7)
        return inputs

    plain, same = (engine(data, each, net(0.5)) for each in (None, FunctionAugmentation(nothing)))
    one, two = (made.train(made.initial, IDS, 1, 0.1).update for made in (plain, same))
    assert one.tobytes() == two.tobytes()


def test_evaluation_and_probes_see_the_inputs_as_they_are_and_the_data_are_not_written_to(data):
    def zero(inputs):
        return inputs.mul_(0)

    before = data.dataset.train_x.copy()
    plain, changed = (engine(data, each) for each in (None, FunctionAugmentation(zero)))
    for split in ("train", "test"):
        found = [made.predict(made.initial, split, np.arange(3)) for made in (plain, changed)]
        assert found[0][1].tobytes() == found[1][1].tobytes()
    losses = [made.training_loss(made.initial, IDS) for made in (plain, changed)]
    assert losses[0].tobytes() == losses[1].tobytes()
    outputs = [made.answers(made.initial, "train", np.arange(3), inputs=False).logits for made in (plain, changed)]
    assert outputs[0].tobytes() == outputs[1].tobytes()
    updates = [made.train(made.initial, IDS, 1, 0.1).update for made in (plain, changed)]
    assert np.abs(updates[0] - updates[1]).max() > 1e-3
    assert data.dataset.train_x.tobytes() == before.tobytes()
    x = torch.ones(2, 3)
    augment_batch(FunctionAugmentation(zero), x, 0, 1, 0, 1)
    assert x.sum() == 6


@pytest.mark.parametrize("kind", [Manual, Native, Vmap])
def test_other_engines_refuse_it_and_auto_says_why(data, kind):
    with pytest.raises(ConfigError, match=rf"'{kind.name}' does not support augmentations"):
        engine(data, FlipAndCrop(), kind=kind)
    choice = choose(engine(data, FlipAndCrop()).task)
    assert choice.name == "sequential"
    assert "does not support augmentations" in choice.refused[kind.name]


def drawn_elsewhere(inputs):
    return inputs + float(np.random.default_rng().random())


@pytest.mark.parametrize(
    ("function", "error", "said"),
    [
        (
            lambda inputs: inputs[:, :, 1:],
            ComponentError,
            "inputs of the same shape and type, (8, 2, 5, 6)",
        ),
        (lambda inputs: inputs.double(), ComponentError, "got a tensor of shape (8, 2, 5, 6) of torch.float64"),
        (lambda inputs: None, ComponentError, "got NoneType"),
        (lambda inputs: inputs @ torch.ones(2), ConfigError, "must accept inputs of shape (8, 2, 5, 6)"),
        (drawn_elsewhere, ComponentError, "drawn_elsewhere must draw from torch, numpy.random or random"),
    ],
)
def test_a_function_that_breaks_the_rules_is_refused_before_the_first_round(data, function, error, said):
    with pytest.raises(error, match=re.escape(said)):
        engine(data, FunctionAugmentation(function))


def test_rows_of_a_table_cannot_be_flipped(federated):
    with pytest.raises(ConfigError, match=r"flip_and_crop changes images, .* got inputs of shape \(60,\)"):
        engine(federated(SIZES, (60,)), FlipAndCrop())


@pytest.mark.parametrize("options", [{"flip": 1.5}, {"flip": -0.1}, {"padding": -1}])
def test_an_option_out_of_its_range_is_refused(options):
    with pytest.raises(ConfigError, match=r"FlipAndCrop\.(flip|padding) must be"):
        FlipAndCrop(**options)


# ---------------------------------------------------------------------------------------------------- torchvision


class Negated(nn.Module):
    """As a transform of torchvision."""

    def __init__(self, p=0.5):
        super().__init__()
        self.p = p

    def forward(self, *inputs):
        return -inputs[0] if torch.rand(1) < self.p else inputs[0]


# -------------------------------------------------------------------------------------------------- experiments


OWN = """
import torch
def noisy(inputs, size=0.5):
    return inputs + size * torch.randn_like(inputs)
"""


def last(augmentation, engine="auto"):
    data = fr.load("digits").partition("iid", clients=6, participants=3)
    ran = fr.run(data, model="linear", rounds=2, cohort_size=3, augmentation=augmentation, engine={"name": engine})
    return float([*ran][-1]["unseen_loss"])


def test_a_file_a_function_and_a_transform_augment_a_run_of_python(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    plain, file = last(None, "sequential"), last("own.py:noisy")
    assert file != plain
    assert last({"name": "own.py:noisy", "size": 0.0}) == plain
    assert last(lambda inputs: inputs + 0.5 * torch.randn_like(inputs)) == file
    assert last(Negated(0.0)) == plain
    assert last(Negated(1.0)) != plain
    assert last({"name": "flip_and_crop", "padding": 1}) not in (plain, file)


def test_a_wrong_augmentation_is_told_by_its_key():
    with pytest.raises(ConfigError, match=r"unknown augmentation 'flip_and_crp'. Did you mean 'flip_and_crop'"):
        last("flip_and_crp")
    with pytest.raises(ConfigError, match=r"augmentation"):
        last({"name": "flip_and_crop", "pading": 1})
