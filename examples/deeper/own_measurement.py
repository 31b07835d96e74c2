"""Your own measurement: clients send how sure their model is of their own examples, and the sure ones count less.

Run: python examples/deeper/own_measurement.py
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import fedreach
from fedreach.data.federated import federate
from fedreach.data.partition import dirichlet_by_class
from fedreach.evaluation import Evaluator
from fedreach.federation.federation import Federation
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.selection import Minimax
from fedreach.federation.server import Average
from fedreach.federation.solvers import Scaffold
from fedreach.federation.weighting import ByExamples, OwnWeight
from fedreach.simulation.simulation import simulate
from fedreach.streams import generator
from fedreach.testing import check_weighting


@dataclass(frozen=True)
class Sureness:
    """The mean probability that the local model gives to its first choice."""

    name: str = "sureness"  # under this name it stands in `metrics` and in the rows
    wants_before: ClassVar[bool] = False  # True: `outputs.before` holds the answers of the broadcast model, too

    def measure(self, outputs, rng):
        logits = outputs.logits - outputs.logits.max(axis=1, keepdims=True)
        return float((1 / np.exp(logits).sum(axis=1)).mean())


@dataclass(frozen=True)
class ByDoubt(OwnWeight):
    """Weigh by 1 - sureness: each client's own number, so that it works under a secure sum as well."""

    measures: ClassVar = (Sureness(),)

    def raw(self, metrics):
        return 1.001 - metrics["sureness"]


check_weighting(ByDoubt())  # the laws of every weighting; raises in words where one is broken

digits = fedreach.load("digits")
partition = dirichlet_by_class(digits.train_y, 50, generator(0, "partition"), alpha=0.1, min_size=2)
data = federate(digits, partition, participants=20, seed=0)
for weighting in (ByExamples(), ByDoubt()):
    local = LocalSGD(rate=0.1, batch_size=16, epochs=2)
    federation = Federation(Minimax(refresh=10), weighting, Scaffold(), local, Average(), cohort=5, seed=0)
    simulation = simulate(data, "mlp", federation, rounds=40, model_options={"hidden": [32]})
    state, report = simulation.start(), None
    for _ in range(simulation.rounds):
        state, report, _ = simulation.step(state)
    scores, _ = Evaluator(simulation.engine, data, seed=0).evaluate(state.params, state.round)
    print(
        f"{type(weighting).__name__}: unseen clients {scores['unseen_accuracy']:.3f}, "
        f"gap {scores['participation_gap']:+.3f}; last weights {[round(w, 2) for w in report.weights]}"
    )
