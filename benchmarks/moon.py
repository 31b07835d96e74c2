"""MOON and FedAvg on CIFAR-10, against plain loops written from MOON's paper and its published accuracies.

    python benchmarks/moon.py --seeds 2                 # printed only
    python benchmarks/moon.py --seeds 4 --write         # docs/records/moon.md: about 15 minutes on one core

First, both methods train on a subset of CIFAR-10 for a few rounds, with FedReach and with the loops of `moon_loop.py`,
which import nothing of FedReach. The models must agree to `TOLERANCE`; otherwise the benchmark exits with status 1.
Then each seed draws a subset, a partition and initial weights, and both methods train on them. Accuracies are on the
whole test set. Network, optimizer, mu and temperature are the paper's; images, epochs and rounds are fewer. CIFAR-10 is
read from FEDREACH_DATA; without it the benchmark exits with status 2. One process, one thread. Rows are kept in --rows.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
import numpy as np
import torch

import fedreach
from fedreach._util.arrays import Float32s
from fedreach._util.errors import FedReachError
from fedreach._util.streams import generator
from fedreach.data.datasets import Dataset
from fedreach.data.federated import FederatedData, federate
from fedreach.data.partition import dirichlet_by_class
from fedreach.data.validation import on_all_rows
from fedreach.engines.batches import batch_plan
from fedreach.engines.models.flat import bind, flatten
from fedreach.evaluation.statistics import run_paired_test
from fedreach.federation.base import Loss
from fedreach.federation.federation import Federation
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.losses import MOON, CrossEntropy
from fedreach.federation.selection.random import Full
from fedreach.federation.server import Average
from fedreach.federation.solvers import FedAvg
from fedreach.federation.weighting import ByExamples
from fedreach.runs.simulation import Simulation, simulate
from harm_tables import signed
from moon_loop import Options, PlainLoop, projection_cnn
from seeds import asked, kept, tell
from tables import table

CLIENTS, ALPHA, BATCH, MU, TEMPERATURE = 10, 0.5, 64, 5.0, 0.5
IMAGES, EPOCHS, ROUNDS = 5_000, 10, 8
CHECKED_IMAGES, CHECKED_EPOCHS, CHECKED_ROUNDS = 1_500, 2, 4
TOLERANCE = 1e-4  # of the distance of two models, relative to how far training went
LOSSES: Mapping[str, Loss] = {"fedavg": CrossEntropy(), "moon": MOON(mu=MU, temperature=TEMPERATURE)}
STRENGTHS = {"fedavg": 0.0, "moon": MU}
PUBLISHED = {"fedavg": "66.3 ± 0.5", "moon": "69.1 ± 0.4"}
"""Li et al. 2021, Table 1: CIFAR-10, mean and standard deviation over three trials."""
MISSING = 2


def federated(dataset: Dataset, seed: int, images: int) -> FederatedData:
    """Return a subset of the training images, divided as in the paper; every client trains on all that it holds."""
    drawn = np.sort(generator(seed, "subset").permutation(len(dataset.train_y))[:images])
    subset = replace(dataset, train_x=dataset.train_x[drawn], train_y=dataset.train_y[drawn])
    rng = generator(seed, "partition")
    partition = dirichlet_by_class(subset.train_y, CLIENTS, rng, alpha=ALPHA, min_size=10)
    return on_all_rows(federate(subset, partition, seed=seed))


def simulation_of(method: str, data: FederatedData, seed: int, epochs: int, rounds: int, engine: str) -> Simulation:
    """Return a method of the paper as FedReach runs it."""
    options = Options()
    local = LocalSGD(options.lr, BATCH, epochs, momentum=options.momentum, weight_decay=options.weight_decay)
    parts = Full(), ByExamples(), FedAvg(), local, Average()
    federation = Federation(*parts, cohort_size=CLIENTS, seed=seed, loss=LOSSES[method])
    return simulate(data, projection_cnn, federation, rounds=rounds, engine=engine)


def normalized(dataset: Dataset) -> torch.Tensor:
    """Return the training images with mean 0 and deviation 1 in each channel."""
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (dataset.mean, dataset.std))
    return (torch.from_numpy(dataset.train_x).float() / 255 - mean) / std


def plain_models(method: str, simulation: Simulation, rounds: int) -> Iterator[Float32s]:
    """Yield the global model after each round of the plain loop, on the batches that FedReach draws."""
    data, federation = simulation.data, simulation.federation
    clients = data.population.participants.tolist()
    model = projection_cnn(data.dataset.num_classes)
    bind(model, torch.from_numpy(simulation.engine.initial.copy()))
    options = Options(mu=STRENGTHS[method], temperature=TEMPERATURE)
    sizes = {client: len(data.train[client]) for client in clients}
    loop = PlainLoop(model, normalized(data.dataset), torch.from_numpy(data.labels), sizes, options)
    for round_ in range(1, rounds + 1):
        batches = {}
        for client in clients:
            plan = batch_plan(federation.seed, round_, client, sizes[client], federation.local)
            batches[client] = [data.train[client][batch[batch >= 0]] for batch in plan]
        loop.run_round(batches)
        yield flatten(loop.model).numpy().copy()


def largest_distance(method: str, dataset: Dataset, seed: int = 0) -> float:
    """Return how far FedReach's model is from the plain loop's, relative to how far that went, in the worst round."""
    data = federated(dataset, seed, CHECKED_IMAGES)
    simulation = simulation_of(method, data, seed, CHECKED_EPOCHS, CHECKED_ROUNDS, "sequential")
    state, distances = simulation.start(), []
    begin = state.params.copy()
    for expected in plain_models(method, simulation, CHECKED_ROUNDS):
        state = simulation.step(state).state
        distances.append(np.linalg.norm(state.params - expected) / np.linalg.norm(expected - begin))
    return float(max(distances))


def accuracies(dataset: Dataset, seed: int) -> Iterator[dict[str, Any]]:
    """Yield the accuracy of both methods on the test set after the last round, in percent."""
    data = federated(dataset, seed, IMAGES)
    test = np.arange(len(dataset.test_y))
    for method in LOSSES:
        simulation = simulation_of(method, data, seed, EPOCHS, ROUNDS, "auto")
        state = simulation.start()
        for _ in range(ROUNDS):
            state = simulation.step(state).state
        right, _ = simulation.engine.predict(state.params, "test", test)
        yield {"method": method, "accuracy": 100 * float(right.mean())}
        print(f"seed {seed}: {method} {100 * right.mean():.1f} %", file=sys.stderr, flush=True)


def text(rows: Sequence[Mapping[str, Any]], distances: Mapping[str, float]) -> str:
    """Return the section of the page."""
    seeds = sorted({row["seed"] for row in rows})
    of = {
        method: np.array([row["accuracy"] for row in rows if row["method"] == method and row["seed"] in seeds])
        for method in LOSSES
    }
    lines = [
        [
            f"`{method}`",
            f"{each.mean():.1f} ± {each.std(ddof=1):.1f}",
            PUBLISHED[method],
            f"{distances[method]:.1e}",
        ]
        for method, each in of.items()
    ]
    gain = run_paired_test(of["moon"] - of["fedavg"])
    interval = "not known" if gain.low is None else f"[{signed(gain.low)}, {signed(gain.high or 0.0)}]"
    detectable = "not known" if gain.mde is None else f"{gain.mde:.1f}"
    head = ["method", "accuracy % ± sd", "published % ± sd", "largest distance to the plain loop"]
    return "\n".join(
        [
            "```text",
            f"python benchmarks/moon.py --seeds {len(seeds)} --write        # one core",
            "```",
            "",
            f"Test set, after {ROUNDS} rounds; seeds {seeds[0]} to {seeds[-1]} ({len(seeds)}). Each client trains "
            f"{EPOCHS} epochs a round, and all of them together hold {IMAGES:,} images.",
            "",
            table(head, lines, left=1),
            "",
            f"MOON minus FedAvg: {signed(gain.estimate or 0.0)} points, 95% interval {interval}, paired by seed. "
            f"Smallest true difference detected with 80% power: {detectable} points. Published gain: +2.8 points.",
        ]
    )


def main() -> None:
    seeds, file, write = asked(__doc__, "runs/moon.jsonl", first=0)
    if len(seeds) < 2:
        sys.exit("--seeds must be at least 2, for a spread.")
    try:
        dataset = fedreach.load("cifar10", download=False)
    except FedReachError as error:
        print(f"not run: {error}", file=sys.stderr)
        sys.exit(MISSING)
    distances = {method: largest_distance(method, dataset) for method in LOSSES}
    apart = {method: distance for method, distance in distances.items() if not distance <= TOLERANCE}
    if apart:
        sys.exit(f"FedReach and the plain loop must agree to {TOLERANCE:g}; got {apart}.")
    rows = kept(file, [{"seed": seed} for seed in seeds], lambda seed: accuracies(dataset, seed))
    tell("moon", text(rows, distances), write=write)


if __name__ == "__main__":
    main()
