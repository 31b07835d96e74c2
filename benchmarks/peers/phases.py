"""Where the time of a round of FedReach goes, on one thread.

    python phases.py --case mlp --engine stacked    # prints one line of JSON

Functions are replaced by ones that note the time and call them; a part within another counts as itself only.
`selection` is the choice of a cohort, with what the server knows of the clients; `batches` draws the order of examples
and gathers them; `weighing` is the weights and the weighted mean; `server step` the server's optimiser. Of local
training, `products` is the share that torch's profiler finds in matrix products, convolutions and layers of an LSTM,
`other training` the rest: activations, loss, SGD, autograd and Python. The profiler slows down small operations and so
overstates the rest. It does not see into C: of the engine `native`, `other training` is all of it, batches included.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch
from cases import CASES
from fedreach_run import make_simulation
from measure import parse_arguments
from torch.profiler import ProfilerActivity, profile

import fedreach.federation.steps as steps_module
from fedreach.engines.batches import Samples
from fedreach.engines.choice import ENGINES
from fedreach.engines.engine import TorchEngine
from fedreach.runs.simulation import Simulation

PRODUCTS = {
    "aten::mm",
    "aten::addmm",
    "aten::addmm_",
    "aten::bmm",
    "aten::baddbmm",
    "aten::baddbmm_",
    "aten::mv",
    "aten::addmv",
    "aten::dot",
}
PARTS = ("selection", "batches", "products", "other training", "weighing", "server step", "rest")


class Watch:
    """Adds up the seconds of parts; a part that runs within another interrupts it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.running = ["rest"]
        self.since = time.perf_counter()
        self.thread = threading.get_ident()

    def note(self) -> None:
        """Book the time since the last note to the part that is running."""
        now = time.perf_counter()
        part = self.running[-1]
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self.since
        self.since = now

    def watched(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, as one that counts as this part."""

        def call(*values: Any, **named: Any) -> Any:
            if threading.get_ident() != self.thread:
                return function(*values, **named)
            self.note()
            self.running.append(part)
            try:
                return function(*values, **named)
            finally:
                self.note()
                self.running.pop()

        return call


def places(simulation: Simulation) -> list[tuple[object, str, str]]:
    """Return owner and name of the functions that are watched, and the part that they are."""
    federation = simulation.federation
    found: list[tuple[object, str, str]] = [
        (Simulation, "view", "selection"),
        (steps_module, "plan_probe", "selection"),
        (steps_module, "plan_round", "selection"),
        (TorchEngine, "train", "training"),
        (type(federation.weighting), "weights", "weighing"),
        (TorchEngine, "weighted_sum", "weighing"),
        (type(federation.server), "apply", "server step"),
    ]
    # What makes batches, wherever engines imported it.
    modules = [module for name, module in sys.modules.items() if name.startswith("fedreach.engines.")]
    for owner in (Samples, *modules):
        names = [name for name, value in vars(owner).items() if name.startswith("batch") and inspect.isfunction(value)]
        found += [(owner, name, "batches") for name in names]
    return found


def product_seconds(step: Callable[[], None]) -> float:
    """Return the seconds that a round spends in products of any kind: the profiler slows all but these."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        step()
    return 1e-6 * sum(
        event.self_cpu_time_total
        for event in profiler.key_averages()
        if event.key in PRODUCTS or "conv" in event.key or "rnn_layer" in event.key
    )


def seconds_of_parts(case: str, engine: str, rounds: int, warmup: int, seed: int) -> dict[str, float | None]:
    """Return the seconds of a round that each of the `PARTS` takes, None where they cannot be told from others."""
    simulation = make_simulation(CASES[case], engine, seed, threads=1)
    state = simulation.start()

    def step() -> None:
        nonlocal state
        state = simulation.step(state).state

    for _ in range(warmup):
        step()
    watch = Watch()
    with ExitStack() as stack:
        for owner, name, part in places(simulation):
            stack.enter_context(patch.object(owner, name, watch.watched(part, getattr(owner, name))))
        watch.since = time.perf_counter()
        for _ in range(rounds):
            step()
        watch.note()
        seconds = {part: total / rounds for part, total in watch.seconds.items()}
    training = seconds.pop("training")
    in_c = simulation.engine.name == "native"
    products = 0.0 if in_c else min(training, product_seconds(step))
    found: dict[str, float | None] = {part: seconds.get(part, 0.0) for part in PARTS}
    found |= {"products": products, "other training": training - products}
    return found | {"batches": None, "products": None} if in_c else found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="auto", choices=[*ENGINES, "auto"])
    arguments = parse_arguments(parser, threads=1)
    torch.set_num_threads(1)
    rounds = arguments.rounds * arguments.repeats
    print(json.dumps(seconds_of_parts(arguments.case, arguments.engine, rounds, arguments.warmup, arguments.seed)))


if __name__ == "__main__":
    main()
