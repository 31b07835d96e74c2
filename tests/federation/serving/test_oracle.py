"""The library's `label_shift` against the same rule written a second time, on a model that was really trained."""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from fedreach.data.federated import federate
from fedreach.data.partition import PARTITIONS
from fedreach.data.sets.catalogue import load
from fedreach.federation.federation import Federation
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.selection import Uniform
from fedreach.federation.server import Average
from fedreach.federation.serving import evidence, priors
from fedreach.federation.serving.fit import HeldOut, fit
from fedreach.federation.serving.label_shift import LabelShift
from fedreach.federation.solvers import FedAvg
from fedreach.federation.values import Outputs
from fedreach.federation.weighting import ByExamples
from fedreach.simulation.simulation import simulate
from fedreach.streams import generator

from . import oracle

ROUNDS = 20


@cache
def digits():
    """Return participants' (logits, labels, training counts) on held-out examples, and unseen clients' (logits, labels).

    50 clients, 20 of whom take part, each class spread by Dirichlet(.1); FedAvg with an MLP.
    """
    dataset = load("digits")
    rng = generator(0, "partition")
    partition = PARTITIONS["dirichlet_by_class"](dataset.train_y, 50, rng, alpha=0.1)
    data = federate(dataset, partition, participants=20)
    parts = Uniform(), ByExamples(), FedAvg(), LocalSGD(rate=0.1, batch_size=16), Average()
    simulation = simulate(
        data, "mlp", Federation(*parts, cohort=10, seed=0), rounds=ROUNDS, model_options={"hidden": [32]}, engine="sequential"
    )
    state = simulation.start()
    for _ in range(ROUNDS):
        state = simulation.step(state).state
    counts = data.label_counts().astype(np.float64)

    def of(place):
        index = np.asarray(place, np.int64)
        return simulation.engine.logits(state.params, "true", index), dataset.train_y[index]

    ...
