"""Your own measurement: clients send how sure their model is of their own examples, and the sure ones count less.

python examples/deeper/13_own_measurement.py
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import fedreach as fr
from fedreach.federation.weighting import OwnWeight
from fedreach.testing import check


@dataclass(frozen=True)
class Sureness(fr.Measurement):
    """The mean probability that the local model gives to its first choice."""

    name: str = "sureness"  # under this name it stands in `metrics` and in the rows
    wants_before: ClassVar[bool] = False  # True: `outputs.before` holds the answers of the broadcast model, too

    def measure(self, outputs, rng):
        logits = outputs.logits - outputs.logits.max(axis=1, keepdims=True)
        return float((1 / np.exp(logits).sum(axis=1)).mean())


@dataclass(frozen=True)
class ByDoubt(OwnWeight):
    """Weigh by 1 - sureness: each client's own number, so that it works under secure aggregation as well."""

    measures: ClassVar = (Sureness(),)

    def raw(self, metrics):
        return 1.001 - metrics["sureness"]


check(ByDoubt())  # what every weighting must satisfy; raises and says in words what fails

digits = fr.load("digits").partition("dirichlet_by_class", clients=50, alpha=0.1, min_size=2, participants=20)
model, local = {"name": "mlp", "hidden": [32]}, {"epochs": 2, "batch_size": 16}
for weighting in ("by_examples", ByDoubt):
    method = fr.Method(selection={"name": "minimax", "refresh": 10}, weighting=weighting, solver="scaffold")
    *_, last = fr.run(digits, method, model=model, local=local, cohort_size=5, rounds=40)
    print(
        f"unseen clients {last['unseen_accuracy']:.3f}, gap {last['participation_gap']:+.3f}; "
        f"last weights {[round(weight, 2) for weight in last['weights']]}"
    )
