"""Paper 001, "Aggregation Weighting of Federated Learning via Generalization Bound Estimation" (arXiv 2311.05936): do
weights of 1 / disagreement resist noisy labels? Its Table 1 for MNIST, on a part of the images.

Of the noise the paper says that 20 % of the data are noisy, "by assigning some of the labels as 0". It matters when:

- before the split: clients are drawn by the labels they see, and whoever is rich in class 0 gets the noise;
- after the split: everybody has about 20 % of it;
- whole clients: a fifth of the clients sees nothing but label 0, which a model fits perfectly.

Equal weights are the control: they, too, keep large clients from deciding.

Run: python examples/papers/disagreement.py        (--quick: a smoke test of seconds; --rounds, --seeds, --clients,
--examples, --workers.) The paper's size is --examples 60000 --rounds 200.
"""

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache

import numpy as np

import fedreach
from fedreach.data.federated import federate
from fedreach.data.noise import corrupt
from fedreach.data.partition import dirichlet_by_client
from fedreach.errors import DataError
from fedreach.evaluation import Evaluator
from fedreach.evidence.spread import spread
from fedreach.federation.federation import Federation
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.selection import Full
from fedreach.federation.server import Average
from fedreach.federation.solvers import FedAvg, FedDyn, FedProx, Scaffold
from fedreach.federation.weighting import ByDisagreement, ByExamples, Equal
from fedreach.simulation.simulation import simulate
from fedreach.streams import generator
from fedreach.theory.disagreement import bounds, jsd_loss

PAPER = """The paper claims (Table 1, MNIST: MLP 200-100, all clients in each round, Dirichlet 0.3, lognormal 0.9,
20 % noise; test accuracy in %, weights by sample proportion -> by 1 / disagreement):
   10 clients: FedAvg 72.21 -> 96.86, FedProx 71.17 -> 96.84, SCAFFOLD 87.74 -> 95.50, FedDyn 90.97 -> 96.60
  100 clients: FedAvg 90.15 -> 97.32, FedProx 89.91 -> 97.28, SCAFFOLD 97.27 -> 97.51, FedDyn 95.85 -> 96.73
"""
SOLVERS = {"fedavg": FedAvg(), "fedprox": FedProx(mu=1e-4), "scaffold": Scaffold(), "feddyn": FedDyn(alpha=0.01)}
WEIGHTINGS = {
    "by_examples": ByExamples(),
    "equal": Equal(),
    "jsd": ByDisagreement("jsd"),
    "zero_one": ByDisagreement("zero_one"),
}
TABLES = {"before the split": [*SOLVERS], "after the split": ["fedavg"], "whole clients": ["fedavg"]}
NOISE = {"kind": "to_one_class", "rate": 0.2}
LOCAL = LocalSGD(rate=0.1, batch_size=50, epochs=5, weight_decay=1e-3)  # section 5.2.1


load = cache(fedreach.load)


def clients_of(noise, seed, options):
    """Return the clients with what they see; the test set is never noisy."""
    full = load(options.data)
    some = generator(seed, "examples").permutation(len(full.train_y))[: options.examples]
    train, test = (full.train_x[some], full.train_y[some]), (full.test_x, full.test_y)
    part = fedreach.from_arrays(*train, *test, mean=full.mean, std=full.std, name=full.name)
    labels = part.train_y
    if noise == "before the split":
        labels = corrupt(labels, generator(seed, "noise"), **NOISE, num_classes=10).labels
    split = dirichlet_by_client(labels, options.clients, generator(seed, "partition"), alpha=0.3, sigma=0.9)
    if noise == "after the split":
        return federate(part, split, seed=seed, held_out=0.01, noise=NOISE)
    if noise == "whole clients":
        labels = np.where(split.owner() < options.clients // 5, 0, labels)
    return replace(federate(part, split, seed=seed, held_out=0.01), labels=labels)


def simulation_of(data, solver, weighting, seed, options):
    parts = Full(), WEIGHTINGS[weighting], SOLVERS[solver], LOCAL, Average()
    federation = Federation(*parts, cohort=options.clients, seed=seed)
    # One client after the other: they differ too much in size to gain from being stacked.
    return simulate(data, "mlp", federation, rounds=options.rounds, engine="sequential")


def accuracy(run):
    """Return the accuracy on the test set in %, mean over the last rounds (at most 5)."""
    noise, solver, weighting, seed, options = run
    data = clients_of(noise, seed, options)
    simulation = simulation_of(data, solver, weighting, seed, options)
    evaluator, state, last = Evaluator(simulation.engine, data, seed), simulation.start(), []
    for _ in range(options.rounds):
        state = simulation.step(state).state
        if state.round > options.rounds - 5:
            scores, _ = evaluator.evaluate(state.served(simulation.federation), state.round)
            last.append(100 * scores["test_accuracy"])
    return np.mean(last)


def show_clients(noise, options):
    """Print the bounds and the disagreement of some clients beside their noise, in the last round of seed 0."""
    data = clients_of(noise, 0, options)
    simulation = simulation_of(data, "fedavg", "jsd", 0, options)
    state = simulation.start()
    for _ in range(options.rounds):
        before, (state, report, update) = state, simulation.step(state)
    true, sizes = data.dataset.train_y, data.train.sizes
    noisy = np.array([np.mean((data.labels != true)[data.train[client]]) for client in report.cohort])
    outputs = simulation.engine.outputs(before.params, update, np.array(report.cohort), before=False)
    print(f"\nNoise {noise}, FedAvg weighted by jsd, round {state.round}, seed 0: clients, the least noisy first")
    print("  noisy  labels 0  share of examples  squared loss within distance .1      .2     eta  weight")
    for i in np.argsort(noisy, kind="stable")[:: max(1, options.clients // 10)]:
        zero, share = np.mean(outputs[i].labels == 0), sizes[i] / sizes.sum()
        low, high = bounds(jsd_loss(outputs[i].logits, outputs[i].labels), np.array([0.1, 0.2]))
        curves = f"{low[0]:.2f}-{high[0]:.2f}  {low[1]:.2f}-{high[1]:.2f}"
        eta, weight = report.metrics["disagreement"][i], report.weights[i]
        print(f"  {noisy[i]:5.0%} {zero:9.0%} {share:18.1%} {curves:>40}  {eta:5.2f} {weight:7.1%}")


def main(options):
    try:
        load(options.data)
    except DataError as error:
        print(f"Nothing was run, as {options.data} is not here and could not be downloaded.\n{error}")
        return
    print(PAPER)
    print(f"Measured on {options.data}: {options.clients} clients, {options.examples} images, {options.rounds} rounds;")
    print(f"test accuracy in %, mean ± sd over {options.seeds} seeds; differences with their 95 % interval")
    verdicts = []
    with ProcessPoolExecutor(options.workers) as pool:
        for noise, solvers in TABLES.items():
            head = "".join(f"{name:>14}" for name in WEIGHTINGS)
            print(f"\nNoise {noise:16}{head}     jsd - by_examples         jsd - equal")
            for solver in solvers:
                runs = [(noise, solver, w, seed, options) for w in WEIGHTINGS for seed in range(options.seeds)]
                table = np.reshape(list(pool.map(accuracy, runs)), (len(WEIGHTINGS), -1))
                line, words = "".join(f"{row.mean():7.1f} ± {row.std(ddof=1):4.1f}" for row in table), []
                for other in table[:2]:
                    gain = spread(table[2] - other)
                    line += f"{gain.mean:+7.1f} [{gain.low:+.1f}, {gain.high:+.1f}]"
                    words.append("yes" if gain.low > 0 else "no" if gain.high < 0 else "not decided")
                print(f"  {solver:18}{line}", flush=True)
                verdicts.append(f"  noise {noise}, {solver}: {words[0]}; better than equal weights: {words[1]}")
    for noise in ("before the split", "whole clients"):
        show_clients(noise, options)
    print("\nIs 1 / disagreement (jsd) better than sample proportion here?", *verdicts, sep="\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, default in {"rounds": 15, "seeds": 5, "clients": 10, "examples": 3000, "workers": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--quick", action="store_true", help="a smoke test on the digits that come with FedReach")
    options = parser.parse_args()
    options.data = "digits" if options.quick else "mnist"
    if options.quick:
        options.rounds, options.seeds, options.examples = 1, 2, 400
        print("Smoke test: 1 round and 2 seeds on small digits show that it runs; its numbers mean nothing.\n")
    if options.seeds < 2:
        sys.exit("--seeds must be at least 2, as a spread is printed.")
    main(options)
