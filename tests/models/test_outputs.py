"""Modules that return a dictionary, a tuple or an object are trained by the part that is named as their output."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import fedreach as fr
from fedreach._util.errors import ConfigError
from fedreach.deploy.saved import load
from fedreach.engines.models.networks import build

OWN = """
from collections import OrderedDict
from dataclasses import dataclass

from torch import Tensor, nn


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 12), nn.Linear(12, 10)

    def both(self, x):
        hidden = self.first(x.flatten(1))
        return hidden, self.last(hidden.tanh())

    def forward(self, x):
        return self.both(x)[1]


class Mapped(Plain):
    def forward(self, x):
        return dict(zip(("hidden", "logits"), self.both(x)))


class Pair(Plain):
    def forward(self, x):
        return self.both(x)


@dataclass
class Answer:
    hidden: Tensor
    logits: Tensor


class Object(Plain):
    def forward(self, x):
        return Answer(*self.both(x))


class Ordered(OrderedDict):
    def __getitem__(self, key):  # as Hugging Face's ModelOutput
        return super().__getitem__(key) if isinstance(key, str) else list(self.values())[key]

    __getattr__ = __getitem__


class Hugging(Plain):
    def forward(self, x):
        return Ordered(zip(("hidden", "logits"), self.both(x)))


def second(returned):
    return returned[1]
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trained(name, output=None, engine="sequential", out=None, **options):
    model = {"name": f"own.py:{name}", **({} if output is None else {"output": output})}
    data = fr.load("digits").partition("iid", clients=6, participants=3)
    ran = fr.run(data, model=model, rounds=2, cohort_size=3, engine={"name": engine}, out=out, **options)
    return float([*ran][-1]["unseen_loss"])


WAYS = [
    ("Mapped", "logits"),
    ("Pair", 1),
    ("Pair", "own.py:second"),
    ("Pair", lambda returned: returned[1]),
    ("Object", "logits"),
    ("Hugging", "logits"),
]


@pytest.mark.parametrize(("name", "output"), WAYS)
def test_a_part_of_what_a_module_returns_is_trained_to_the_bits_of_a_module_that_returns_it_alone(own, name, output):
    assert trained(name, output) == trained("Plain")


def test_auto_and_stacked_train_a_module_whose_output_is_named(own):
    plain = trained("Plain")
    assert trained("Mapped", "logits", "vmap") == pytest.approx(plain, rel=1e-4)
    assert trained("Mapped", "logits", "auto") == pytest.approx(plain, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("Mapped", r"got dict with 'hidden', 'logits'. .* model.output = \"logits\""),
        ("Pair", r"got tuple with 0, 1. .* model.output = 1 "),
        ("Object", r"got Answer with 'hidden', 'logits'. .* model.output = \"logits\""),
        ("Hugging", r"got Ordered with 'hidden', 'logits'. .* model.output = \"logits\""),
    ],
)
@pytest.mark.parametrize("engine", ["auto", "sequential"])
def test_a_module_that_returns_no_tensor_is_refused_with_its_parts_and_the_line_to_write(own, name, line, engine):
    with pytest.raises(ConfigError, match=line):
        trained(name, engine=engine)


def test_an_output_that_is_not_there_is_refused_with_what_is(own):
    with pytest.raises(ConfigError, match=r"dict with 'hidden', 'logits'; got 'logit'. Did you mean 'logits'"):
        trained("Mapped", "logit")
    with pytest.raises(ConfigError, match=r"tuple with 0, 1; got 2"):
        trained("Pair", 2)
    with pytest.raises(ConfigError, match=r"must return 10 numbers per example, \(2, 10\); got \(2, 12\)"):
        trained("Pair", 0)


def test_a_built_in_model_has_no_output_to_name():
    with pytest.raises(ConfigError, match="got 'logits' for 'mlp'"):
        build("mlp", (4,), 3, seed=0, options={"output": "logits"})


def test_weights_keep_their_names_and_the_module_can_be_copied_to_other_processes():
    module = build(Returning, (), 0, seed=0, options={"output": "logits"})
    assert list(module.state_dict()) == list(nn.Linear(3, 2).state_dict())
    assert pickle.loads(pickle.dumps(module))(torch.zeros(1, 3)).shape == (1, 2)


class Returning(nn.Linear):
    def __init__(self):
        super().__init__(3, 2)

    def forward(self, x):
        return Answer(super().forward(x))


@dataclass
class Answer:
    logits: torch.Tensor


@pytest.mark.parametrize(("name", "output"), [("Mapped", "logits"), ("Pair", lambda returned: returned[1])])
def test_a_finished_run_is_loaded_predicts_and_leaves_with_the_output_that_was_trained(own, name, output):
    trained(name, output, out="runs/one")
    model = load("runs/one" if (own / "runs/one/run.json").exists() else next((own / "runs").rglob("run.json")).parent)
    x = np.random.default_rng(0).integers(0, 16, (5, 1, 8, 8)).astype(np.uint8)
    found = model(torch.from_numpy(x))
    assert found.shape == (5, 10)
    model.save("model.pt2")
    again = torch.export.load("model.pt2").module()(torch.from_numpy(x))
    torch.testing.assert_close(again, found)


def test_a_changed_function_of_the_output_is_another_run(own):
    trained("Pair", "own.py:second", out="runs/one")
    (own / "own.py").write_text(OWN.replace("returned[1]", "-returned[1]"))
    with pytest.raises(fr.FedReachError, match="changed after the run"):
        load(next((own / "runs").rglob("run.json")).parent)
