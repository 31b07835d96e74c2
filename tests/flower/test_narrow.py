"""Models of bfloat16 and float16 on Flower: they travel as float32, and each client rounds them once."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from safetensors.torch import load_file

from fedreach._util.arrays import weighted_sum
from fedreach.deploy.saved import load
from fedreach.engines.engine import TorchEngine
from fedreach.engines.protocols import Task
from fedreach.engines.sequential import Sequential
from fedreach.federation import solvers
from fedreach.flower.app import client_app, share_labels
from fedreach.flower.local import ClientData

from .in_process import InProcess
from .test_constants import CLIENTS, Watched, examples, federation, sizes, strategy

NUMBERS = 4 * 3 + 3 + 3 * 2 + 2
RATE = 0.1


class Bfloat16(nn.Module):
    dtype = torch.bfloat16

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(4, 3, dtype=self.dtype), nn.Linear(3, 2, dtype=self.dtype)

    def forward(self, x):
        return self.head(self.first(x.to(self.dtype)).tanh())


class Float16(Bfloat16):
    dtype = torch.float16


@pytest.mark.parametrize("kind", [Bfloat16, Float16])
def test_a_round_is_the_float32_mean_of_local_models(kind, tmp_path):
    module, local = kind(), federation().local
    app = client_app(federation(), kind, lambda c: ClientData(examples(c.node_config["partition-id"]), num_classes=2))
    grid = Watched(app, CLIENTS)
    strategy(tmp_path, module, rounds=1).run(grid)
    updates = []
    for client in CLIENTS:
        task = Task(
            module, ClientData(examples(client), num_classes=2).federated(client), solvers.FedAvg(), local, seed=0
        )
        engine = TorchEngine(Sequential, task)
        updates.append(engine.train(engine.initial, np.array([client]), 1, RATE).update[0])
    mean = engine.initial + weighted_sum(np.full(3, 1 / 3), np.stack(updates)).astype(np.float32)
    net = load(tmp_path / "run", model=kind).net
    for name, values in engine.layout.views(torch.from_numpy(mean)).items():
        assert net.get_parameter(name).dtype == kind.dtype
        torch.testing.assert_close(net.get_parameter(name), values.to(kind.dtype), rtol=0, atol=0)
    sent = [message for message in grid.seen if message.metadata.message_type == "train"]
    assert len(sent) == len(CLIENTS)
    assert all(sizes(message, "arrays") == 4 * NUMBERS for message in sent)


def app_of(kind):
    """Return an app that knows nothing of FedReach and sends its state dict as Flower can: not as bfloat16."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        model = kind()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        x, y = map(torch.from_numpy, examples(context.node_config["partition-id"]))
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        torch.optim.SGD(model.parameters(), lr=RATE).step()
        state = model.state_dict()
        if kind is Bfloat16:
            state = {name: tensor.float() for name, tensor in state.items()}
        metrics = MetricRecord({"train_loss": loss.item(), "num-examples": len(y)})
        return Message(RecordDict({"arrays": ArrayRecord(state), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        model = kind()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        x, y = map(torch.from_numpy, examples(context.node_config["partition-id"]))
        out = model.eval()(x).detach().float()
        loss = nn.functional.cross_entropy(out, y).item()
        numbers = {"eval_loss": loss, "eval_acc": (out.argmax(1) == y).float().mean().item(), "num-examples": len(y)}
        return Message(RecordDict({"metrics": MetricRecord(numbers)}), reply_to=message)

    share_labels(app, lambda context: examples(context.node_config["partition-id"])[1], num_classes=2)
    return app


@pytest.mark.parametrize("kind", [Bfloat16, Float16])
def test_apps_that_know_nothing_of_fedreach_train_narrow_models(kind, tmp_path):
    module = kind()
    strategy(tmp_path, module, rounds=1).run(InProcess(app_of(kind), CLIENTS))
    local = []
    for client in CLIENTS:
        model = copy.deepcopy(module)
        x, y = map(torch.from_numpy, examples(client))
        nn.functional.cross_entropy(model(x), y).backward()
        torch.optim.SGD(model.parameters(), lr=RATE).step()
        local.append({name: tensor.float() for name, tensor in model.state_dict().items()})
    for name, values in load_file(tmp_path / "run" / "last.safetensors").items():
        assert values.dtype == torch.float32
        expected = torch.stack([state[name] for state in local]).mean(0)
        torch.testing.assert_close(values, expected, rtol=1e-6, atol=1e-7)
