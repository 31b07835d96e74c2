"""A model and arrays of one's own, with clients that the data itself names.

Run: python examples/03_own_model_and_data.py
"""

import numpy as np
from torch import nn

import fedreach
from fedreach.data.federated import federate
from fedreach.data.partition import natural
from fedreach.evaluation import Evaluator
from fedreach.federation.federation import Federation
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.selection import PowerOfChoice
from fedreach.federation.server import Average
from fedreach.federation.solvers import FedProx
from fedreach.federation.weighting import Equal
from fedreach.simulation.simulation import simulate

# Thirty hospitals measure two values; each has an instrument of its own that shifts them.
rng = np.random.default_rng(0)
hospital = rng.integers(30, size=3000)
ill = rng.integers(2, size=3000)
shift = rng.normal(scale=0.5, size=(30, 2))
values = (rng.normal(size=(3000, 2)) + 1.5 * ill[:, None] + shift[hospital]).astype(np.float32)

dataset = fedreach.from_arrays(values, ill, owners=hospital, num_classes=2, name="hospitals")
data = federate(dataset, natural(ill, 30, rng, owners=hospital), participants=10, seed=0)


def network(num_classes: int, width: int = 16) -> nn.Module:
    return nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, num_classes))


federation = Federation(
    PowerOfChoice(candidates=6), Equal(), FedProx(mu=0.1), LocalSGD(rate=0.2), Average(), cohort=3, seed=0
)
simulation = simulate(data, network, federation, rounds=15, model_options={"width": 8})
evaluator = Evaluator(simulation.engine, data, seed=0)
state = simulation.start()
for _ in range(simulation.rounds):
    state, report, _ = simulation.step(state)
scores, _ = evaluator.evaluate(state.params, state.round)
print(f"participants {scores['id_accuracy']:.3f}, hospitals that never trained {scores['unseen_accuracy']:.3f}")
print(f"bytes of the last round: {report.bytes_down} down, {report.bytes_up} up, {report.probe_bytes} of them probes")
