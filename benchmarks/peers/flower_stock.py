"""A plain Flower app, the peer of `benchmarks/flower.py`: FedAvg of Flower's own on the examples in BENCH_DATA.

A module of its own, which knows nothing of FedReach, as Flower's processes import it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

client_app = ClientApp()
server_app = ServerApp()


def make_model() -> nn.Module:
    """Return the experiment's MLP."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


@cache
def examples(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what a client trains on, loaded once a process."""
    with np.load(os.environ["BENCH_DATA"]) as stored:
        return torch.from_numpy(stored[f"x{client}"]), torch.from_numpy(stored[f"y{client}"])


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train for one epoch of batches of 16."""
    model = make_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = examples(int(context.node_config["partition-id"]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in torch.randperm(len(y)).split(16):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(RecordDict(content), reply_to=message)


class Timed(FedAvg):
    """FedAvg that notes when rounds end, and gives up where a client is lost."""

    def __init__(self, clients: int, cohort_size: int) -> None:
        super().__init__(cohort_size / clients, 0.0, min_train_nodes=cohort_size, min_available_nodes=clients)
        self.cohort_size, self.ends = cohort_size, list[float]()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average, and note the time."""
        replies = list(replies)
        if len(replies) < self.cohort_size or any(reply.has_error() for reply in replies):
            raise RuntimeError(f"Flower lost clients: {len(replies)} of {self.cohort_size} replied")
        result = super().aggregate_train(server_round, replies)
        self.ends.append(time.perf_counter())
        return result


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run and write down when rounds ended."""
    clients, cohort_size, rounds = (int(os.environ[f"BENCH_{name}"]) for name in ("CLIENTS", "COHORT", "ROUNDS"))
    strategy = Timed(clients, cohort_size)
    strategy.start(grid, ArrayRecord(make_model().state_dict()), num_rounds=rounds, timeout=120)
    out = Path(str(context.run_config["out"]))
    out.mkdir(parents=True, exist_ok=True)
    (out / "ends.json").write_text(json.dumps(strategy.ends))
    (out / "result.json").write_text(json.dumps({"status": "finished"}))
