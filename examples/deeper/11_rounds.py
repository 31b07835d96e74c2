"""One federation in Python: fifty clients hold the digits, twenty can train, five do in each round.

Run: python examples/deeper/11_rounds.py
"""

import fedreach
from fedreach._util.streams import generator
from fedreach.data.federated import federate
from fedreach.data.partition import dirichlet_by_class
from fedreach.evaluation.evaluator import Evaluator
from fedreach.federation.federation import Federation
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.selection.random import Uniform
from fedreach.federation.server import Average
from fedreach.federation.solvers import FedAvg
from fedreach.federation.weighting import ByExamples
from fedreach.runs.simulation import simulate

digits = fedreach.load("digits")
partition = dirichlet_by_class(digits.train_y, 50, generator(0, "partition"), alpha=0.1)
data = federate(digits, partition, participants=20, seed=0)

local = LocalSGD(lr=0.1, batch_size=16, epochs=2)
federation = Federation(Uniform(), ByExamples(), FedAvg(), local, Average(), cohort_size=5, seed=0)
simulation = simulate(data, "mlp", federation, rounds=20, model_options={"hidden": [32]})
evaluator = Evaluator(simulation.engine, data)

state = simulation.start()
for _ in range(simulation.rounds):
    state, report, _ = simulation.step(state)
    if state.round % 5 == 0:
        scores, _ = evaluator.evaluate(state.params, state.round)
        print(
            f"round {state.round:2}: cohort {report.cohort}, participants {scores['participant_accuracy']:.3f}, "
            f"unseen clients {scores['unseen_accuracy']:.3f}, gap {scores['participation_gap']:+.3f}"
        )
