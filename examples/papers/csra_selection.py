"""Is a model better if only clients train whose labels resemble those of all? Figures 2, 3 and 4 of CSRA, "Data
Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", without the radio.

All 80 clients can take part, and 4 of those admitted do in a round: with 600 training examples a client, the paper's
e2 = 2000 examples and a bit. Which it takes of those admitted is left to the radio there and to chance here.

Run: python examples/papers/csra_selection.py     (--quick: a smoke test of seconds; --rounds, --seeds, --model, --rate)
Took: 5 min 19 s of processor time; 19 min 21 s on a machine of 2 cores that others kept busy.
"""

import argparse
import sys

import numpy as np

import fedreach
from fedreach.data.federated import federate
from fedreach.data.partition import hybrid
from fedreach.errors import DataError
from fedreach.evaluation import Evaluator
from fedreach.evidence.judgement import paired
from fedreach.federation.federation import Federation
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.selection import Clustered, KLFilter, PowerOfChoice, Uniform
from fedreach.federation.server import Average
from fedreach.federation.solvers import FedAvg
from fedreach.federation.weighting import ByExamples
from fedreach.simulation.simulation import simulate
from fedreach.streams import generator
from fedreach.theory.divergence import label_divergences

PAPER = """The paper claims (Fashion-MNIST, 80 clients, 8 of them balanced, the others Dirichlet 0.5; LeNet, 10 local
epochs of rate 0.005; curves without numbers, so that only their order can be compared):
  Figure 2: clients with KL(all || client) <= e1 make a better model than random ones, large losses or a model a cluster
  Figure 3: accuracy falls as e1 grows, towards that of random clients
  Figure 4: with e1 = 0.2 accuracy grows with the examples of a round, less and less so
"""
# name: (policy, clients in a round)
METHODS = {
    **{f"e1 = {e1}": (KLFilter(e1), 4) for e1 in (0.2, 0.4, 0.6, 1.0)},
    "uniform": (Uniform(), 4),
    "power_of_choice": (PowerOfChoice(), 4),
    "clustered": (Clustered(), 4),
    **{f"e1 = 0.2, cohort {k}": (KLFilter(0.2), k) for k in (1, 2, 8)},
    # KL(client || all): not what the paper's bound is about, but finite for a client that lacks a class.
    "reverse, e1 = 0.4": (KLFilter(0.4, "local_to_global"), 4),
}
CLAIMS = [
    *(("Figure 2", "e1 = 0.2", worse) for worse in ("uniform", "power_of_choice", "clustered")),
    *(("Figure 3", "e1 = 0.2", worse) for worse in ("e1 = 0.4", "e1 = 0.6", "e1 = 1.0")),
    ("Figure 4", "e1 = 0.2, cohort 2", "e1 = 0.2, cohort 1"),
    ("Figure 4", "e1 = 0.2", "e1 = 0.2, cohort 2"),
    ("Figure 4", "e1 = 0.2, cohort 8", "e1 = 0.2"),
]


def train(dataset, policy, cohort, seed, options):
    """Return how many clients are admitted, and the test accuracy in %: means over the first and the last quarter."""
    data = federate(dataset, hybrid(dataset.train_y, 80, generator(seed, "partition")), seed=seed)
    admitted = data.num_clients
    if isinstance(policy, KLFilter):
        divergence = label_divergences(data.label_counts(), policy.direction, policy.smoothing)
        admitted = int((divergence <= policy.threshold).sum())
    local = LocalSGD(rate=options.rate, batch_size=50, epochs=10)
    federation = Federation(policy, ByExamples(), FedAvg(), local, Average(), cohort=cohort, seed=seed)
    width = {"hidden": [50]} if options.model == "mlp" else None
    simulation = simulate(data, options.model, federation, rounds=options.rounds, model_options=width, threads=2)
    evaluator = Evaluator(simulation.engine, data, seed=seed, samples_per_client=1)
    state, scores = simulation.start(), []
    for _ in range(options.rounds):
        state = simulation.step(state).state
        columns, _ = evaluator.evaluate(state.models, state.round, state.clusters)
        scores.append(100 * columns["test_accuracy"])
    quarter = -(-options.rounds // 4)
    return admitted, np.mean(scores[:quarter]), np.mean(scores[-quarter:])


def main(options):
    try:
        dataset = fedreach.load(options.data)
    except DataError as error:
        print(f"Nothing was run, as {options.data} is not here and could not be downloaded.\n{error}")
        return
    print(PAPER)
    print(
        f"Measured here on {options.data}, {options.model}, {options.rounds} rounds: % ± sd over {options.seeds} seeds"
    )
    print(f"  {'':20}{'admitted':>14}{'first quarter':>16}{'last quarter':>16}")
    results = {}
    for name, (policy, cohort) in METHODS.items():
        results[name] = np.array([train(dataset, policy, cohort, seed, options) for seed in range(options.seeds)])
        mean, sd = results[name].mean(axis=0), results[name].std(axis=0, ddof=1)
        cells = [f"{m:.1f} ± {s:4.1f}" for m, s in zip(mean, sd, strict=True)]
        print(f"  {name:20}{cells[0]:>14}{cells[1]:>16}{cells[2]:>16}", flush=True)
    print("\nThe claims, as differences in points with 95 % intervals over seeds:")
    verdicts = {1: [], 2: []}
    for figure, better, worse in CLAIMS:
        if worse == "clustered" and np.array_equal(results[worse], results["uniform"]):
            print(f"  {figure}, {better} above {worse}: not counted, as no cluster split and all is as with uniform")
            continue
        told = []
        for column, when in ((1, "first"), (2, "last")):
            test = paired(results[better][:, column] - results[worse][:, column])
            verdicts[column].append("holds" if test.low > 0 else "reversed" if test.high < 0 else "undecided")
            told.append(f"{when} {test.mean:+.1f} [{test.low:+.1f}, {test.high:+.1f}] {verdicts[column][-1]}")
        print(f"  {figure}, {better} above {worse}: {'; '.join(told)}")
    for column, when in ((1, "first"), (2, "last")):
        count = len(verdicts[column])
        holds, chance, reverse = (verdicts[column].count(verdict) for verdict in ("holds", "undecided", "reversed"))
        print(
            f"In words: in the {when} quarter of the rounds {holds} of the {count} claims hold beyond the spread "
            f"over seeds,\n{chance} cannot be told from chance, and in {reverse} the opposite is the case."
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=3, help="at least 2, for a spread")
    parser.add_argument("--model", default="mlp", help="or lenet, as in the paper, which takes ten times as long")
    parser.add_argument("--rate", type=float, default=0.05, help="local step size")
    parser.add_argument("--data", default="fashion_mnist")
    parser.add_argument("--quick", action="store_true", help="a smoke test on the digits that come with FedReach")
    options = parser.parse_args()
    if options.quick:
        options.data, options.rounds, options.seeds = "digits", 4, 2
        print("Smoke test: 4 rounds and 2 seeds on small digits show that it runs; its numbers mean nothing.\n")
    if options.seeds < 2:
        sys.exit("--seeds must be at least 2, as a spread is printed.")
    main(options)
