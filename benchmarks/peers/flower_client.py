"""What a client does in Flower: it trains on its own examples when the server asks.

This is a module of its own because Flower's actors import it: what they load stays in them from round to round.
"""

from __future__ import annotations

from functools import cache

import torch
from cases import CASES
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from measure import in_float64
from torch import nn

Work = tuple[nn.Module, torch.Tensor, torch.Tensor]
app = ClientApp()


@cache
def work(name: str, fewer: bool, exact: bool, seed: int, threads: int) -> Work:
    """Return model, examples (N, m, ...) and labels (N, m), made once in each actor; float64 where `exact`."""
    torch.set_num_threads(threads)
    case = CASES[name].with_fewer_clients() if fewer else CASES[name]
    model, (x, y) = case.make_model(), (torch.from_numpy(array) for array in case.make_data(seed))
    return (model.double(), in_float64(x), y) if exact else (model, x, y)


@app.query()
def tell_number(message: Message, context: Context) -> Message:
    """Reply with the client's number."""
    number = MetricRecord({"client": int(context.node_config["partition-id"])})
    return Message(RecordDict({"number": number}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train for one epoch, in stored order, and reply with the model."""
    config: ConfigRecord = message.content["config"]
    model, x, y = work(config["case"], config["fewer"], config["exact"], config["seed"], config["threads"])
    client = int(context.node_config["partition-id"])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    size = config["batch-size"]
    for batch, target in zip(x[client].split(size), y[client].split(size), strict=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch), target).backward()
        optimizer.step()
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(y[client])})}
    return Message(RecordDict(content), reply_to=message)
