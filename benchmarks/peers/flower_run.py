"""FedAvg in Flower 1.41 (https://flower.ai): its Message API in its simulation, on Ray.

    python flower_run.py --case mlp                 # one actor a core, one thread each; prints one line of JSON
    python flower_run.py --case mlp --threads 2     # actors of two threads, as many as there are cores for
    python flower_run.py --case mlp --check         # tests the result instead

Clients keep data and model in their actor from round to round; nothing is evaluated. `run_simulation` is what
`flwr run` calls too. Seconds are taken between the ends of rounds; the first, in which actors start and clients tell
their numbers, is left out. Flower looks for messages and for replies every 0.1 s, which no option changes.
"""

from __future__ import annotations

import os

# Read when flwr and ray are imported.
os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
os.environ["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] = "1"

import argparse
import json
import logging
import tempfile
import time
from collections.abc import Iterable
from copy import deepcopy

import torch
from cases import CASES, Case
from flower_client import app as client_app
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from measure import (
    CORES,
    Clock,
    case_of,
    family_peak_rss_mb,
    in_float64,
    largest_difference,
    make_row,
    mean_loss,
    parse_arguments,
    require,
)
from plain_torch import State, run_round


class Turns(FedAvg):
    """FedAvg whose clients take turns, as in the other peers."""

    def __init__(self, case: Case, clock: Clock) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.case, self.clock = case, clock
        self.nodes: dict[int, int] = {}  # client -> node

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if not self.nodes:
            while len(nodes := list(grid.get_node_ids())) < self.case.num_clients:
                time.sleep(0.1)  # Flower registers them one after the other
            asked = [Message(RecordDict(), node, MessageType.QUERY) for node in nodes]
            for reply in grid.send_and_receive(asked):
                self.nodes[int(reply.content["number"]["client"])] = reply.metadata.src_node_id
        record = RecordDict({"arrays": arrays, "config": config})
        cohort = [self.nodes[client] for client in self.case.cohort_of(server_round - 1)]
        return self._construct_messages(record, cohort, MessageType.TRAIN)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        failed = [reply.error.reason for reply in replies if reply.has_error()]
        if failed or len(replies) < self.case.cohort_size:
            raise RuntimeError(
                f"Flower lost {self.case.cohort_size - len(replies) + len(failed)} clients: {failed[:1]}"
            )
        result = super().aggregate_train(server_round, replies)
        self.clock.lap()
        return result

    def summary(self) -> None:
        """Say nothing."""


def train(start: State, case: Case, rounds: int, config: ConfigRecord, clock: Clock) -> tuple[State, float]:
    """Return the model after so many rounds, and the peak megabytes of all processes."""
    strategy, server_app, found = Turns(case, clock), ServerApp(), []

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        result = strategy.start(grid, ArrayRecord(start), num_rounds=rounds, train_config=config)
        found.append((result.arrays.to_torch_state_dict(), family_peak_rss_mb()))

    with tempfile.TemporaryDirectory(prefix="fl") as folder:  # a socket's path must be short
        os.environ["FLWR_HOME"] = folder
        logging.getLogger("flwr").setLevel(logging.ERROR)
        run_simulation(
            server_app,
            client_app,
            case.num_clients,
            backend_config={
                "init_args": {"num_cpus": CORES, "_temp_dir": folder, "log_to_driver": False, "logging_level": 40},
                "client_resources": {"num_cpus": config["threads"], "num_gpus": 0.0},
            },
        )
    if not found:
        raise RuntimeError("Flower's simulation ended without a result")
    return found[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments = parse_arguments(parser, threads=1)
    case = case_of(arguments)
    config = ConfigRecord(
        {
            "case": case.name,
            "fewer": case.num_clients < CASES[case.name].num_clients,
            "exact": arguments.check,
            "seed": arguments.seed,
            "threads": arguments.threads,
            "lr": case.learning_rate,
            "batch-size": case.batch_size,
        }
    )
    model, clock = case.make_model(), Clock()
    if arguments.check:
        check(case, model.double(), config, arguments.seed)
        return
    rounds = arguments.warmup + arguments.rounds * arguments.repeats
    _, peak = train(model.state_dict(), case, rounds, config, clock)
    workers = max(1, CORES // arguments.threads)
    print(
        json.dumps(make_row("flower", case, arguments, clock, packages=("flwr", "ray"), peak_mb=peak, workers=workers))
    )


def check(case: Case, model: torch.nn.Module, config: ConfigRecord, seed: int) -> None:
    """Require that three rounds end with plain torch's model, and that it has learnt something; in float64."""
    x, y = (torch.from_numpy(array) for array in case.make_data(seed))
    x, server = in_float64(x), deepcopy(model.state_dict())
    start, before = deepcopy(server), mean_loss(model, x, y)
    found, _ = train(start, case, 3, config, Clock())
    for round_ in range(3):
        server = run_round(
            server, model, x, y, case.cohort_of(round_), batch_size=case.batch_size, learning_rate=case.learning_rate
        )
    error, moved = largest_difference(found, server), largest_difference(start, server)
    require(error < 1e-12 < moved / 1000, f"Flower is plain torch in 3 rounds: off by {error:.1e}, moved {moved:.1e}")
    model.load_state_dict(found)
    after = mean_loss(model, x, y)
    require(after < before, f"3 rounds lower the loss: {before:.4f} to {after:.4f} nats")


if __name__ == "__main__":
    main()
