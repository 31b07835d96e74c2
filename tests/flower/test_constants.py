"""Constants of a model on Flower: sent once to each node, by the server, and everything else without them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedreach.deploy.saved import load
from fedreach.engines.engine import TorchEngine
from fedreach.engines.protocols import Task
from fedreach.engines.sequential import Sequential
from fedreach.federation import selection, server, solvers, weighting
from fedreach.federation.federation import Federation
from fedreach.federation.local_sgd import LocalSGD
from fedreach.flower.app import client_app, share_labels
from fedreach.flower.local import ClientData
from fedreach.flower.strategy import FedReachStrategy
from fedreach.runs.folder import CONSTANTS

from .in_process import InProcess

CLIENTS = range(3)


class Net(nn.Module):
    """A frozen layer, a mask and a hidden code that each constructor draws otherwise; a head that is trained."""

    def __init__(self):
        super().__init__()
        rng = np.random.default_rng()
        self.body, self.norm, self.head = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)
        self.body.requires_grad_(False)
        self.body.weight.copy_(torch.from_numpy(rng.random((4, 4))))
        self.register_buffer("mask", torch.from_numpy(rng.random(4) > 0.3))
        self.register_buffer("code", torch.from_numpy(rng.random(4).astype("f4")), persistent=False)

    def forward(self, x):
        return self.head(self.norm(self.body(x * self.mask + self.code)))


CONSTANT_BYTES = 4 * (16 + 4) + 4 + 4 * 4  # frozen weights and biases, the mask, the code
VECTOR = 2 * 4 + 4 * 2 + 2 + 2 * 4  # norm, head, statistics


def examples(client):
    rng = np.random.default_rng(client)
    x = rng.standard_normal((20, 4)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64)


def federation():
    parts = selection.Full(), weighting.ByExamples(), solvers.FedAvg(), LocalSGD(batch_size=5), server.Average()
    return Federation(*parts, cohort_size=3, seed=0)


def own_app():
    return client_app(federation(), Net, lambda c: ClientData(examples(c.node_config["partition-id"]), num_classes=2))


class Watched(InProcess):
    """Keeps the messages that the server sent."""

    def push_messages(self, messages):
        messages = list(messages)
        self.seen = [*getattr(self, "seen", []), *messages]
        return super().push_messages(messages)


def strategy(tmp_path, module, rounds=2, **options):
    return FedReachStrategy(
        federation(), module, rounds=rounds, folder=tmp_path / "run", min_clients=3, timeout=9, patience=1, **options
    )


def test_clients_train_with_the_constants_of_the_server_and_not_of_their_own_constructors(tmp_path):
    module, grid = Net(), InProcess(own_app(), CLIENTS)
    local = [grid.contexts[c].state for c in CLIENTS]
    assert strategy(tmp_path, module).run(grid)
    for state in local:
        kept = {name: array.numpy() for name, array in state.array_records["constants"].items()}
        assert sorted(kept) == ["body.bias", "body.weight", "code", "mask"]
        assert kept["mask"].tolist() == module.mask.tolist()
    result = load(tmp_path / "run", model=Net).net
    assert torch.equal(result.body.weight, module.body.weight)
    assert torch.equal(result.code, module.code)
    assert (tmp_path / "run" / CONSTANTS).exists()


def test_the_model_is_that_of_one_local_round_by_hand(tmp_path):
    module = Net()
    data_of = ClientData(examples(1), num_classes=2).federated(1)
    engine = TorchEngine(Sequential, Task(module, data_of, solvers.FedAvg(), LocalSGD(batch_size=5), seed=0))
    right = engine.train(engine.initial, np.array([1]), 1, 0.1).update[0]
    grid = Watched(own_app(), CLIENTS)
    replies = []

    def answering(client, message, answer):
        reply = answer()
        if message.metadata.message_type == "train" and client == 1:
            replies.append(reply.content["update"]["update"].numpy())
        return reply

    grid.answering = answering
    strategy(tmp_path, module, rounds=1).run(grid)
    assert replies[0].tobytes() == right.tobytes()


def sizes(message, name):
    return sum(array.numpy().nbytes for array in message.content[name].values())


def test_constants_are_sent_once_to_each_node_and_models_without_them(tmp_path):
    grid = Watched(own_app(), CLIENTS)
    strategy(tmp_path, Net()).run(grid)
    sent = [message for message in grid.seen if "constants" in message.content]
    assert [message.metadata.message_type for message in sent] == ["query"] * len(CLIENTS)
    assert [sizes(message, "constants") for message in sent] == [CONSTANT_BYTES] * len(CLIENTS)
    for message in grid.seen:
        if message.metadata.message_type in ("train", "evaluate"):
            assert sizes(message, "arrays") == 4 * VECTOR


def test_a_node_that_comes_back_empty_is_sent_the_constants_again(tmp_path):
    grid, done = InProcess(own_app(), CLIENTS), []

    def answering(client, message, answer):
        reply = answer()
        if message.metadata.message_type == "train" and client == 2 and not done:
            done.append(grid.restart(2))
        return reply

    grid.answering = answering
    module = Net()
    strategy(tmp_path, module, rounds=3).run(grid)
    assert done
    kept = grid.contexts[2].state.array_records["constants"]["mask"].numpy()
    assert kept.tolist() == module.mask.tolist()


def test_initial_arrays_bring_their_constants(tmp_path):
    pretrained, module = Net(), Net()
    begun = strategy(tmp_path, module)
    begun.start(InProcess(own_app(), CLIENTS), ArrayRecord(pretrained.state_dict()), num_rounds=2, timeout=9)
    result = load(tmp_path / "run", model=Net).net
    assert torch.equal(result.body.weight, pretrained.body.weight)
    assert torch.equal(result.code, module.code)  # not in a state dict


def test_bytes_of_a_round_are_counted_as_in_the_simulator(tmp_path):
    import json

    strategy(tmp_path, Net()).run(InProcess(own_app(), CLIENTS))
    rows = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert [row["bytes_down"] for row in rows[1:]] == [3 * (4 * VECTOR + CONSTANT_BYTES), 3 * 4 * VECTOR]


def foreign_app():
    app = ClientApp()

    def own(message, context):
        model = Net()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        return model, *map(torch.from_numpy, examples(context.node_config["partition-id"]))

    @app.train()
    def train(message, context):
        model, x, y = own(message, context)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1).step()
        metrics = MetricRecord({"train_loss": loss.item(), "num-examples": len(y)})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        model, x, y = own(message, context)
        out = model.eval()(x).detach()
        loss = nn.functional.cross_entropy(out, y).item()
        numbers = {"eval_loss": loss, "eval_acc": (out.argmax(1) == y).float().mean().item(), "num-examples": len(y)}
        return Message(RecordDict({"metrics": MetricRecord(numbers)}), reply_to=message)

    share_labels(app, lambda context: examples(context.node_config["partition-id"])[1], num_classes=2)
    return app


def test_an_app_that_knows_nothing_of_fedreach_can_load_the_whole_state_dict(tmp_path):
    grid = Watched(foreign_app(), CLIENTS)
    assert strategy(tmp_path, Net()).run(grid).arrays
