"""FedReach as a Flower app, as `benchmarks/flower.py` times it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from flwr.app import Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedreach.flower.experiment import FlowerExperiment
from fedreach.flower.strategy import FedReachStrategy

client_app = ClientApp()
server_app = ServerApp()


@cache
def experiment() -> FlowerExperiment:
    """Return the experiment, loaded once a process."""
    return FlowerExperiment(overrides=tuple(json.loads(os.environ["BENCH_OVERRIDES"])))


@cache
def client() -> ClientApp:
    """Return the app of all clients, kept loaded: Flower's simulation copies `client_app` for each message."""
    return experiment().client_app(kept_in_process=100)


@client_app.query()
@client_app.train()
@client_app.evaluate()
def answer(message: Message, context: Context) -> Message:
    """Answer as FedReach's client does."""
    return client()(message, context)


class Timed(FedReachStrategy):
    """A strategy that notes when rounds end: their rows and checkpoints are written by then."""

    ends: list[float]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Write, and note the time."""
        result = super().aggregate_evaluate(server_round, replies)
        self.ends.append(time.perf_counter())
        return result


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run and write down when rounds ended."""
    out = Path(str(context.run_config["out"]))
    strategy = experiment().strategy(out, min_clients=int(os.environ["BENCH_CLIENTS"]), timeout=120)
    strategy.__class__, strategy.ends = Timed, []  # type: ignore[attr-defined]
    strategy.run(grid)
    (out / "ends.json").write_text(json.dumps(strategy.ends))  # type: ignore[attr-defined]
