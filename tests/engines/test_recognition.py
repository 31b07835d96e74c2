"""Which models are chains, whatever their code looks like, and which are not."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedreach._util.errors import ConfigError
from fedreach.engines.engine import TorchEngine
from fedreach.engines.manual import Manual
from fedreach.engines.manual_layers import to_stack_layers
from fedreach.engines.models.networks import build
from fedreach.engines.protocols import Task
from fedreach.engines.recognition import NotAChainError, chain_of
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.solvers import FedAvg

IMAGE = (1, 16, 16)


class AsFunctions(nn.Module):
    def __init__(self, flatten):
        super().__init__()
        self.conv, self.out, self.flatten = nn.Conv2d(1, 4, 5), nn.Linear(144, 3), flatten

    def forward(self, x):
        x = F.max_pool2d(torch.relu(self.conv(x)), (2, 2), stride=2)
        return self.out(self.flatten(x))


@pytest.mark.parametrize(
    "flatten",
    [
        lambda x: x.flatten(1),
        lambda x: torch.flatten(x, start_dim=1),
        lambda x: x.view(-1, 144),
        lambda x: x.view(x.size(0), -1),
        lambda x: x.reshape(x.size(0), 144),
    ],
)
def test_functions_are_seen_as_the_layers_that_they_are(flatten):
    as_modules = nn.Sequential(nn.Conv2d(1, 4, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    found = chain_of(AsFunctions(flatten), IMAGE)
    assert [layer.kind for layer in found] == ["Conv2d", "MaxPool2d", "Flatten", "Linear"]
    assert found == chain_of(as_modules, IMAGE)


def test_sequences_of_sequences_and_identities_are_looked_through():
    nested = nn.Sequential(nn.Sequential(nn.Identity(), nn.Flatten()), nn.Sequential(nn.Linear(4, 3), nn.ReLU()))
    assert chain_of(nested, (2, 2)) == chain_of(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU()), (2, 2))


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(self.layer(x))


class Residual(Twice):
    def forward(self, x):
        return x + self.layer(x)


class Scaled(Twice):
    def forward(self, x):
        return self.layer(x) * 2


class Forgetful(Twice):
    def forward(self, x):
        self.layer(x)
        return x


class Moody(Twice):
    def forward(self, x):
        return self.layer(x) if self.training else self.layer(x).relu()


class Branching(Twice):
    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else x


class Special(nn.Linear):
    def forward(self, x):
        return super().forward(x) + 1


class Unused(Twice):
    def __init__(self):
        super().__init__()
        self.extra = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return self.layer(x)


class Shortcut(nn.Module):
    def __init__(self, join):
        super().__init__()
        self.layer, self.end, self.join = nn.Conv2d(1, 1, 3, padding=1), nn.Linear(256, 3), join

    def forward(self, x):
        return self.end(self.join(x, self.layer(x)).flatten(1))


def must_add(layer, source):
    assert (layer.kind, layer.shape, layer.outputs) == ("Addition", IMAGE, IMAGE)
    assert (layer.source, layer.every, layer.before, layer.relu) == (source, (1, 1), 0, False)


def test_a_shortcut_is_what_stood_there():
    for join in (lambda x, y: y + x, lambda x, y: x.add(y), lambda x, y: torch.add(x[:, :, ::1, ::1], y)):
        _, added, *_ = chain_of(Shortcut(join), IMAGE)
        must_add(added, source=0)


class DroppedShortcut(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.end = nn.Conv2d(1, 1, 1), nn.Conv2d(1, 1, 1), nn.Linear(256, 3)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        y = self.drop(self.one(x))
        return self.end((self.drop(self.two(y)) + y).flatten(1))


def test_a_shortcut_begins_at_the_same_layer_with_and_without_dropout():
    one, *_, added, _, _ = chain_of(DroppedShortcut(), IMAGE)
    assert one.kind == "Conv2d"
    must_add(added, source=1)


def hooked():
    model = nn.Linear(4, 3)
    model.register_forward_hook(lambda *_: None)
    return model


def tied():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    return model


@pytest.mark.parametrize(
    ("model", "sample", "reason"),
    [
        (Twice(), (4,), "shares its weights"),
        (Residual(), (4,), "add"),
        (Scaled(), (4,), "mul"),
        (Forgetful(), (4,), "does not end with its last layer"),
        (Moody(), (4,), "differs between training and evaluation"),
        (Branching(), (4,), "cannot be traced"),
        (nn.Sequential(Special(4, 3)), (4,), "does not follow"),
        (Unused(), (4,), "extra is used outside of a layer"),
        (hooked(), (4,), "hooks"),
        (tied(), (4,), "shares its weights"),
        (nn.Sequential(nn.ReLU(), nn.Linear(4, 3)), (4,), "ReLU does not follow"),
        (nn.Sequential(nn.Linear(4, 3), nn.Dropout2d()), (4,), "Dropout2d"),
        (nn.Sequential(nn.Linear(4, 3)), (5, 4), "are not flat"),
        (nn.Sequential(nn.Conv2d(1, 2, 3, padding="same")), IMAGE, "unsupported padding"),
        (nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect")), IMAGE, "unsupported padding"),
        (nn.Sequential(nn.Conv2d(1, 2, 5), nn.MaxPool2d(2, ceil_mode=True)), IMAGE, "pooling"),
        (nn.Sequential(nn.Conv2d(1, 2, 5), nn.Flatten(2)), IMAGE, "flattening"),
        (build("resnet20", IMAGE, 3, seed=0, options={"norm": "batch"}), IMAGE, "is not trained"),
        (Shortcut(lambda x, y: y + y), IMAGE, "does not add an earlier image"),
        (Shortcut(lambda x, y: y + x.mean(1, keepdim=True)), IMAGE, "does not follow"),
        (Shortcut(lambda x, y: y + 1), IMAGE, "does not add an earlier image"),
        (Shortcut(lambda x, y: torch.add(y, x, alpha=2)), IMAGE, "does not add an earlier image"),
        (Shortcut(lambda x, y: y + F.relu(y)), IMAGE, "an image from before a ReLU"),
        (
            Shortcut(lambda x, y: y + F.pad(x, (1, 1, 1, 1))[..., 1:-1, 1:-1]),
            IMAGE,
            "not a subsampled or zero-",
        ),
        (
            Shortcut(lambda x, y: y + F.pad(x, (0, 0, 0, 0, 0, 0), value=1.0)),
            IMAGE,
            "not a subsampled or zero-",
        ),
        (Shortcut(lambda x, y: y[..., ::2, ::2] + x[..., 1::2, ::2]), IMAGE, "not a subsampled or zero-"),
    ],
)
def test_what_is_no_chain_is_not_taken_for_one(model, sample, reason):
    with pytest.raises(NotAChainError, match=reason):
        chain_of(model, sample)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (nn.Sequential(nn.Conv2d(1, 2, 3, stride=2)), "a stride other than 1"),
        (nn.Sequential(nn.Conv2d(1, 2, 4), nn.MaxPool2d(2)), "pooling"),  # 13 x 13: an odd side
        (nn.Sequential(nn.Conv2d(1, 2, 5), nn.MaxPool2d(3)), "pooling"),
        (nn.Sequential(nn.Conv2d(1, 2, 5), nn.MaxPool2d(2, stride=1)), "pooling"),
        (nn.Sequential(nn.Conv2d(1, 2, 5), nn.AvgPool2d(2)), "pooling"),
        (nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(1, 2, 5)), "pooling"),
        (nn.Sequential(nn.Conv2d(1, 2, 5), nn.GroupNorm(1, 2)), "GroupNorm"),
        (nn.Sequential(nn.Conv2d(1, 2, 5), nn.Dropout()), "Dropout"),
    ],
)
def test_what_is_a_chain_but_not_written_out_is_refused_by_that_engine(model, reason):
    with pytest.raises(NotAChainError, match=reason):
        to_stack_layers(chain_of(model, IMAGE))


class Dropping(Twice):
    def forward(self, x):
        return F.dropout(self.layer(x), 0.25, training=self.training)


class AlwaysDropping(Twice):
    def forward(self, x):
        return F.dropout(self.layer(x), 0.25)


def test_a_dropout_is_one_that_ends_with_training():
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.25))
    functions, found = (chain_of(each.train(), (4,)) for each in (Dropping(), module))
    assert functions == found
    assert (found[-1].kind, found[-1].shape, found[-1].amount) == ("Dropout", (4,), 0.25)
    with pytest.raises(NotAChainError, match="uses dropout in evaluation"):
        chain_of(AlwaysDropping(), (4,))


def test_the_engine_says_what_it_needs_and_what_the_model_has(federated):
    with pytest.raises(ConfigError, match=r"requires a sequence of linear layers.*Dropout.*'auto'"):
        TorchEngine(
            Manual,
            Task(nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(4, 3)), federated((5,)), FedAvg(), LocalSGD(), 0),
        )


def test_looking_at_a_model_leaves_its_mode_alone():
    model = nn.Sequential(nn.Linear(4, 3))
    for mode in (True, False):
        chain_of(model.train(mode), (4,))
        assert model.training is mode
