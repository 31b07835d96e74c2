"""Do entropy weights, and selection by minimax similarity or by the convex hull, serve clients that never train?
Tables 1 and 2 of "Advocating for the Silent" (arXiv 2310.07171), with a small network on Fashion-MNIST.

The paper leaves the cohort, the rounds and the reduction of dimension before the hull open. Here 10 of the 40 clients
train in a round, and the hull is that along the two largest principal axes, filled up to 10.

Run: python examples/papers/entropy.py        (--quick: a smoke test of seconds; --rounds, --seeds, --data, --rate)
Took: 5 min 20 s of processor time; 8 min 43 s on a machine of 2 cores that others kept busy.
"""

import argparse
import sys

import numpy as np

import fedreach
from fedreach.data.federated import federate
from fedreach.data.partition import dirichlet_by_class
from fedreach.errors import DataError
from fedreach.evaluation import Evaluator
from fedreach.evidence.judgement import paired
from fedreach.federation.federation import Federation
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.selection import ConvexHull, Full, Interior, MaxSimilarity, Minimax, PowerOfChoice, Uniform
from fedreach.federation.server import Average
from fedreach.federation.solvers import FedAvg
from fedreach.federation.weighting import ByEntropy, ByExamples, Equal
from fedreach.simulation.simulation import simulate
from fedreach.streams import generator

PAPER = """The paper claims (100 clients, 40 can take part, 5 local epochs, batches of 128; % ± sd out of distribution):
  Table 2, EMNIST-10, Dirichlet 0.1: entropy 74.9 ± 10.5, data size 53.1 ± 12.1, equal 70.7 ± 13.2
  Table 1, EMNIST-10, Dirichlet 0.5: minimax 82.3 ± 4.7, convex hull 82.1 ± 4.6, full 80.1 ± 5.5,
    power of choice 76.3 ± 4.5, interior 73.8 ± 6.5, random 69.4 ± 5.4, largest similarity 59.8 ± 6.3
"""
WEIGHTINGS = {"entropy": ByEntropy(), "by_examples": ByExamples(), "equal": Equal()}
WEIGHING = [("entropy", "by_examples"), ("entropy", "equal")]  # pairs (better, worse) of Table 2
SELECTIONS = {
    "minimax": Minimax(),
    "convex_hull": ConvexHull(),
    "full": Full(),
    "power_of_choice": PowerOfChoice(),
    "interior": Interior(),
    "uniform": Uniform(),
    "max_similarity": MaxSimilarity(),
    "minimax, fresh": Minimax(refresh=0),  # not in the paper, whose updates are as old as their client's last round
}
CHOOSING = [
    *(("minimax", worse) for worse in ("full", "power_of_choice", "uniform", "max_similarity")),
    *(("convex_hull", worse) for worse in ("full", "power_of_choice", "uniform", "interior")),
]
COLUMNS = {"test_accuracy": "test set", "unseen_accuracy": "unseen clients", "id_accuracy": "participants"}


def train(dataset, alpha, selection, weighting, seed, options):
    """Return the columns in %, means over the last quarter of the rounds, and how many clients ever trained."""
    partition = dirichlet_by_class(dataset.train_y, 100, generator(seed, "partition"), alpha=alpha)
    data = federate(dataset, partition, participants=40, seed=seed)
    local = LocalSGD(rate=options.rate, batch_size=128, epochs=5)
    federation = Federation(selection, weighting, FedAvg(), local, Average(), cohort=10, seed=seed)
    simulation = simulate(data, "mlp", federation, rounds=options.rounds, model_options={"hidden": [50]}, threads=2)
    evaluator = Evaluator(simulation.engine, data, seed=seed)
    state, rows, trained = simulation.start(), [], set()
    for _ in range(options.rounds):
        state, report, _ = simulation.step(state)
        trained |= set(report.cohort)
        if state.round > options.rounds * 3 // 4:
            scores, _ = evaluator.evaluate(state.params, state.round)
            rows.append([100 * scores[column] for column in COLUMNS])
    return [*np.mean(rows, axis=0), len(trained)]


def table(title, dataset, alpha, methods, claims, options):
    """Train every method with every seed; print its row and what becomes of each claim on unseen clients."""
    print(f"{title}: Dirichlet {alpha}, {options.rounds} rounds, {options.seeds} seeds")
    print(f"  {'':16}" + "".join(f"{name:>16}" for name in [*COLUMNS.values(), "clients trained"]))
    results = {}
    for name, parts in methods.items():
        values = np.array([train(dataset, alpha, *parts, seed, options) for seed in range(options.seeds)])
        results[name] = values[:, 1]
        cells = [f"{m:9.1f} ± {s:4.1f}" for m, s in zip(values.mean(axis=0), values.std(axis=0, ddof=1), strict=True)]
        print(f"  {name:16}" + "".join(f"{cell:>16}" for cell in cells), flush=True)
    verdicts = []
    for better, worse in claims:
        test = paired(results[better] - results[worse])
        verdicts.append("holds" if test.low > 0 else "reversed" if test.high < 0 else "undecided")
        said = f"{test.mean:+.1f} points [{test.low:+.1f}, {test.high:+.1f}]"
        print(f"  claim: {better} above {worse} on unseen clients: {said}: {verdicts[-1]}")
    count = {verdict: verdicts.count(verdict) for verdict in ("holds", "undecided", "reversed")}
    print(
        f"  In words: of the {len(claims)} claims, {count['holds']} hold beyond the spread over seeds, "
        f"{count['undecided']} cannot be told from chance, and in {count['reversed']} the opposite is the case.\n"
    )


def main(options):
    try:
        dataset = fedreach.load(options.data)
    except DataError as error:
        print(f"Nothing was run, as {options.data} is not here and could not be downloaded.\n{error}")
        return
    print(PAPER)
    print(f"Measured here on {options.data}: % ± sd over seeds, and differences with 95 % intervals over seeds\n")
    everybody = {name: (Full(), weighting) for name, weighting in WEIGHTINGS.items()}
    some = {name: (Uniform(), weighting) for name, weighting in WEIGHTINGS.items()}
    table("Weighting, all 40 train in a round", dataset, 0.1, everybody, WEIGHING, options)
    table("Weighting, 10 of the 40 in a round", dataset, 0.1, some, WEIGHING, options)
    choice = {name: (selection, Equal()) for name, selection in SELECTIONS.items()}
    table("Selection, 10 of the 40 in a round", dataset, 0.5, choice, CHOOSING, options)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=4, help="at least 2, for a spread")
    parser.add_argument("--data", default="fashion_mnist", help="or mnist")
    parser.add_argument("--rate", type=float, default=0.1, help="local step size; the paper tunes 0.1, 0.01, 0.001")
    parser.add_argument("--quick", action="store_true", help="a smoke test on the digits that come with FedReach")
    options = parser.parse_args()
    if options.quick:
        options.data, options.rounds, options.seeds = "digits", 2, 2
        print("Smoke test: 2 rounds and 2 seeds on small digits show that it runs; its numbers mean nothing.\n")
    if options.seeds < 2:
        sys.exit("--seeds must be at least 2, as a spread is printed.")
    main(options)
