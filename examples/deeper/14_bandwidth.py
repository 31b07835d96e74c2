"""Who gets which bandwidth? Solve one round to a proven gap, then train with an allocation rule of one's own.

python examples/deeper/14_bandwidth.py
"""

from dataclasses import dataclass, replace

import numpy as np

import fedreach as fr
from fedreach._util.streams import generator
from fedreach.data.federated import federate
from fedreach.data.partition import dirichlet_by_class
from fedreach.data.sets import load
from fedreach.federation.federation import Federation
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.selection.random import Uniform
from fedreach.federation.server import Average
from fedreach.federation.solvers import FedAvg
from fedreach.federation.weighting import ByExamples
from fedreach.runs.simulation import simulate
from fedreach.testing import check
from fedreach.wireless.problem import Allocation, AllocationProblem
from fedreach.wireless.radio import Radio
from fedreach.wireless.rules import EqualShares, ExactAllocation
from fedreach.wireless.solve import solve


@dataclass(frozen=True)
class ByNeed(fr.AllocationRule):
    """Give each client a share in proportion to what it must send, and let every CPU run at a third of its best."""

    part: float = 1 / 3

    def allocate(self, problem: AllocationProblem, rng: np.random.Generator) -> Allocation:
        """Return the shares tau_k / sum tau."""
        share = problem.upload_seconds / problem.upload_seconds.sum()
        return Allocation.of(problem, slice(None), share, self.part * problem.max_hertz)


check(ByNeed())  # it passes the checks of every rule

digits = load("digits")
data = federate(digits, dirichlet_by_class(digits.train_y, 40, generator(0, "partition"), alpha=0.5), seed=0)
federation = Federation(
    Uniform(), ByExamples(), FedAvg(), LocalSGD(epochs=5), Average(), cohort_size=10, seed=0, radio=Radio()
)

# One round: of 40 clients under this round's channels, which of those who hold 300 examples together cost least?
simulation = simulate(data, "linear", federation, rounds=20)
view = simulation.view(simulation.start())
best = solve(view.radio.problem(), min_examples=300)
print(f"clients {best.allocation.ids.tolist()} need {best.allocation.seconds:.3f} s and {best.allocation.joules:.3f} J")
print(f"no other choice costs less than {best.lower_bound:.6f}; this one costs {best.cost:.6f} ({best.status})")

# A run: the same clients each round, and three ways to share the band.
for rule in (ExactAllocation(), EqualShares(), ByNeed()):
    simulation = simulate(data, "linear", replace(federation, allocation=rule), rounds=20)
    state, seconds, joules = simulation.start(), 0.0, 0.0
    for _ in range(20):
        state, report, _ = simulation.step(state)
        seconds, joules = seconds + report.cost.seconds, joules + report.cost.joules
    print(f"{type(rule).__name__:7s} 20 rounds in {seconds:6.2f} s with {joules:6.2f} J")
