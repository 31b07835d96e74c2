"""A model and its flat vector are the same numbers."""

import pytest
import torch
from torch import nn

from fedreach._util.errors import ConfigError
from fedreach.engines.models.flat import Layout, bind, flatten
from fedreach.engines.models.networks import build

CASES = {
    "mlp": lambda: build("mlp", (4,), 3, seed=0, options={"hidden": [5]}),
    "lstm": lambda: build("lstm", (6,), 7, seed=0, options={"hidden": 4}),
    "resnet20": lambda: build("resnet20", (1, 8, 8), 3, seed=0, options={"width": 2, "norm": "batch"}),
}
INPUT = {"mlp": torch.ones(2, 4), "lstm": torch.ones(2, 6, dtype=torch.int64), "resnet20": torch.ones(2, 1, 8, 8)}
cases = pytest.mark.parametrize("name", CASES)


@cases
def test_flatten_and_bind_are_inverse(name):
    one, other = CASES[name](), CASES[name]()
    vector = torch.randn(Layout.of(one).size, generator=torch.Generator().manual_seed(0))
    bind(one, vector)
    assert torch.equal(flatten(one), vector)
    bind(other, flatten(one))
    theirs = other.state_dict()
    assert all(torch.equal(tensor, theirs[key]) for key, tensor in one.state_dict().items())


@cases
def test_views_show_every_tensor_once_in_its_shape_and_share_the_memory(name):
    module = CASES[name]()
    layout, vector = Layout.of(module), flatten(module)
    views = layout.views(vector)
    state = {k: v for k, v in module.state_dict().items() if v.is_floating_point()}
    assert set(views) == set(layout.names) == set(state)
    assert all(torch.equal(views[k], v) for k, v in state.items())
    assert sum(v.numel() for v in views.values()) == layout.size == len(vector)
    for view in views.values():
        view.fill_(1.0)
    assert (vector == 1).all()


def test_parameters_come_first_and_buffers_last():
    layout = Layout.of(nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)))
    assert layout.parameters == ("0.weight", "0.bias", "1.weight", "1.bias")
    assert layout.buffers == ("0.running_mean", "0.running_var")  # the batch counter is an integer
    assert (layout.num_trainable, layout.size) == (3 + 3 + 6 + 2, 3 + 3 + 6 + 2 + 3 + 3)


@cases
def test_a_bound_module_lives_in_its_vector(name):
    module, twin = CASES[name](), CASES[name]()
    layout = Layout.of(module)
    vector = flatten(module)
    bind(module, vector)
    vector.mul_(0.5)
    bind(twin, vector.clone())
    assert torch.equal(module.eval()(INPUT[name]), twin.eval()(INPUT[name]))
    with torch.no_grad():
        next(module.parameters()).fill_(7.0)
    assert (layout.views(vector)[layout.parameters[0]] == 7).all()


@cases
def test_the_bound_gradient_is_the_gradient_of_each_parameter(name):
    module, twin = CASES[name](), CASES[name]()
    layout = Layout.of(module)
    gradient = torch.zeros(layout.num_trainable)
    bind(module, flatten(module), gradient)
    for model in (module, twin):
        model(INPUT[name]).square().sum().backward()
    theirs = torch.zeros_like(gradient)
    for key, view in layout.parameter_views(theirs).items():
        view.copy_(dict(twin.named_parameters())[key].grad)
    torch.testing.assert_close(gradient, theirs, rtol=0, atol=2e-5 * float(theirs.abs().max()))
    assert gradient.any()
    module(INPUT[name]).square().sum().backward()  # adds, as backward() does
    assert (gradient.norm() / theirs.norm()).item() == pytest.approx(2, rel=0.2)


def test_flatten_copies():
    module = nn.Linear(2, 1)
    vector = flatten(module)
    vector.zero_()
    assert flatten(module).any()


@pytest.mark.parametrize(
    ("module", "rule"),
    [
        (
            nn.Linear(2, 2).double(),
            r"bfloat16 or float16; weight of Linear is torch\.float64.*\.float\(\)",
        ),
        (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, momentum=None)), r"BatchNorm layer '1' must be a number"),
        (nn.ReLU(), r"ReLU must have parameters to train"),
        (nn.Linear(2, 2).requires_grad_(False), r"Linear must have parameters to train"),
    ],
)
def test_a_module_that_cannot_be_one_vector_is_refused(module, rule):
    with pytest.raises(ConfigError, match=rule):
        Layout.of(module)
