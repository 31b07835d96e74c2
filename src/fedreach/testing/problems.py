"""Federations small enough to think through."""

from __future__ import annotations

import numpy as np

from fedreach.data.datasets import from_arrays
from fedreach.data.federated import FederatedData, split_held_out
from fedreach.data.partition import iid
from fedreach.data.population import Population
from fedreach.engines.sequential import Sequential
from fedreach.engines.simulation import Simulation
from fedreach.federation.round import Federation
from fedreach.federation.selection import Uniform
from fedreach.federation.server import Average
from fedreach.federation.solvers import FedAvg, LocalSGD
from fedreach.federation.weighting import ByExamples
from fedreach.models import build
from fedreach.streams import generator


def tiny_data(seed: int = 0) -> FederatedData:
    """Return two Gaussian classes in the plane, 60 samples over 6 clients, of which the first 4 take part."""
    rng = generator(seed, "tiny")
    y = rng.integers(2, size=80)
    x = (rng.standard_normal((80, 2)) + 2.0 * y[:, None]).astype(np.float32)
    dataset = from_arrays(x[:60], y[:60], x[60:], y[60:], num_classes=2, name="tiny")
    partition = iid(dataset.train_y, 6, generator(seed, "partition"))
    train, held_out = split_held_out(partition, 0.2, generator(seed, "held-out"))
    population = Population(np.arange(4), np.arange(4, 6))
    return FederatedData(dataset, dataset.train_y, partition, population, train, held_out, None)


def tiny_simulation(seed: int = 0) -> Simulation:
    """Return FedAvg with a linear model on `tiny_data`, two clients a round."""
    data = tiny_data(seed)
    federation = Federation(Uniform(), ByExamples(), FedAvg(), LocalSGD(rate=0.5), Average(), cohort=2, seed=seed)
    module = build("linear", (2,), 2, seed=seed)
    return Simulation(federation, data, Sequential(module, data, FedAvg(), federation.local, seed), rounds=10)
