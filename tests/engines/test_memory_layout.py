"""What a module sees of the flat vector: tensors as torch lays them out, in every engine."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedreach.engines.batches import ChannelsLast
from fedreach.engines.engine import TorchEngine
from fedreach.engines.manual import Manual
from fedreach.engines.models.flat import Layout, bind, flatten
from fedreach.engines.native import Native
from fedreach.engines.protocols import Task
from fedreach.engines.sequential import Sequential
from fedreach.engines.vmap import Vmap
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.solvers import FedAvg, FedProx

IDS = np.arange(3)


class Net(nn.Module):
    """The usual small net, which flattens by `view`."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 6, 3), nn.Conv2d(6, 8, (3, 2))
        self.out = nn.Linear(8 * 1 * 2, 3)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        return self.out(F.relu(self.second(x)).view(-1, 8 * 1 * 2))


def engine_of(kind, federated, solver=None, local=None):
    torch.manual_seed(0)
    data = federated((9, 5, 4), (1, 8, 8), "image")
    return TorchEngine(kind, Task(Net(), data, solver or FedAvg(), local or LocalSGD(batch_size=4, epochs=2), 3))


@pytest.mark.parametrize("kind", [Sequential, Vmap, Manual, Native])
def test_a_net_that_flattens_by_view_runs_in_every_engine_to_the_same_numbers(kind, federated):
    for solver, local in ((FedAvg(), None), (FedProx(mu=0.5), LocalSGD(batch_size=4, momentum=0.9, clip_norm=0.1))):
        plain, engine = (engine_of(each, federated, solver, local) for each in (Sequential, kind))
        theirs, own = (each.train(each.initial, IDS, 1, 0.1) for each in (plain, engine))
        np.testing.assert_allclose(own.update, theirs.update, rtol=0, atol=1e-5)
        np.testing.assert_allclose(own.loss, theirs.loss, rtol=1e-4)
        moved = plain.initial + theirs.update[0]
        found, right = (each.logits(moved, "test", np.arange(5)) for each in (engine, plain))
        np.testing.assert_allclose(found, right, rtol=0, atol=1e-5)


def test_the_vector_is_the_parameters_as_torch_lists_them():
    net = Net()
    by_torch = nn.utils.parameters_to_vector(net.parameters())
    assert torch.equal(flatten(net), by_torch)


def test_a_bound_module_has_torchs_default_strides():
    net, fresh = Net(), Net()
    bind(net, flatten(net), torch.zeros(Layout.of(net).num_trainable))
    for own, default in zip(net.parameters(), fresh.parameters(), strict=True):
        assert own.stride() == default.stride()
        assert own.grad.stride() == default.stride()


def test_filters_that_are_turned_and_turned_back_are_the_same():
    layout = Layout.of(Net())
    filters, vectors = ChannelsLast(layout), torch.arange(2.0 * layout.size).view(2, -1)
    turned = filters.to_channels_last(vectors)
    name = "second.weight"
    place = slice(Net().first.weight.numel() + 6, None)
    wanted = layout.views(vectors)[name].movedim(-3, -1).flatten(1)
    assert torch.equal(turned[:, place][:, : wanted.shape[1]], wanted)
    filters.turn_back(turned, torch.tensor([1]))
    assert torch.equal(turned[1], vectors[1])
    assert not torch.equal(turned[0], vectors[0])
