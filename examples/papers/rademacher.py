"""Paper 004, "Client Selection with Rademacher Complexity for Federated Learning": has the cluster of clients with the
lowest score the lowest error? The paper has no experiments; this is one, with Fashion-MNIST. What training on that
cluster brings, and for whom, is `python -m papers rademacher/demo`; this looks at the groups' own models, which no
run of a spec has.

Clients hold 320 images each, of the classes of their group. Of the 8 in a group 4 train in every round and 4 never do.
A second federation has one group more, whose labels are drawn at random.

What the score measures: no supremum over functions is taken, so that it is a norm of what the local model says, and
with softmax how certain the model is. Models of few classes are certain, models of random labels are not.

Run: python examples/papers/rademacher.py      (--quick: a smoke test of seconds; --rounds, --seeds, --workers.)
"""

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache

import numpy as np
from scipy.stats import spearmanr

import fedreach
from fedreach import DataError
from fedreach._util.streams import generator
from fedreach.data.assignment import Partition
from fedreach.data.federated import federate
from fedreach.data.noise import corrupt
from fedreach.federation.bounds import cluster_scores
from fedreach.federation.federation import Federation
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.measurements import WLRC
from fedreach.federation.selection.random import Full
from fedreach.federation.server import Average
from fedreach.federation.solvers import FedAvg
from fedreach.federation.weighting import Equal
from fedreach.runs.simulation import simulate

PAPER = """The paper claims (no experiments; sections 2.3 and 3): the cluster of clients with the lowest score has the
lowest excess error, "the one whose local data distribution most closely aligns with the global learning objective".
"""
SKEWED = ["0123456789", "01234", "56789", "012", "345", "67", "89"]  # the classes that a group's clients hold
FEDERATIONS = {"skewed labels": SKEWED, "skewed labels and a group of random ones": [*SKEWED, "random"]}
OUTPUTS = ("softmax", "logits", "excess_loss")


load = cache(fedreach.load)


def clients_of(groups, seed, options):
    """Return the clients, 8 a group, and the (clients,) group of each."""
    full, rng = load(options.data), generator(seed, "groups")
    left = {c: rng.permutation(np.flatnonzero(full.train_y == c)).tolist() for c in range(10)}
    holds = [[int(c) for c in group.replace("random", SKEWED[0])] for group in groups for _ in range(8)]
    some = np.array([left[c].pop() for classes in holds for c in np.resize(classes, options.examples)])
    client = np.arange(len(holds))
    train, test = (full.train_x[some], full.train_y[some]), (full.test_x, full.test_y)
    part = fedreach.from_arrays(*train, *test, mean=full.mean, std=full.std, name=full.name)
    owner, labels = np.repeat(client, options.examples), part.train_y.copy()
    data = federate(
        part, Partition.from_owner(owner, len(client), "groups"), participants=client[client % 8 < 4], seed=seed
    )
    if "random" in groups:  # symmetric noise of 90 % makes all ten labels equally likely
        random = owner // 8 == groups.index("random")
        rng, noise = generator(seed, "noise"), {"kind": "symmetric", "rate": 0.9, "num_classes": 10}
        labels[random] = corrupt(labels[random], rng, **noise).labels
    return replace(data, labels=labels), client // 8


def simulation_of(data, cohort, seed, rounds):
    local = LocalSGD(lr=0.1, batch_size=32, epochs=2)
    federation = Federation(Full(), Equal(), FedAvg(), local, Average(), cohort_size=cohort, seed=seed)
    return simulate(data, "mlp", federation, rounds=rounds, model_options={"hidden": [64]})


def score(task):
    """Return (6, groups): three scores, 10^4 x; their norm; accuracy of the group's mean model in the last round."""
    groups, seed, options = task
    data, group = clients_of(groups, seed, options)
    ids = data.population.participants
    simulation = simulation_of(data, len(ids), seed, options.rounds)
    engine, state = simulation.engine, simulation.start()
    for _ in range(options.rounds):
        before, (state, _, update) = state.params, simulation.step(state)
    said, rng = engine.outputs(before, update, ids, before=True), generator(seed, "signs")
    kinds = [*map(WLRC, OUTPUTS), WLRC("softmax", estimator="closed_form")]
    rows = [1e4 * cluster_scores(np.array([kind.measure(one, rng) for one in said]), group[ids]) for kind in kinds]
    models = [before + update[group[ids] == g].mean(axis=0) for g in range(len(groups))]
    own = [np.concatenate([data.held_out[i] for i in ids[group[ids] == g]]) for g in range(len(groups))]
    test = np.arange(len(data.dataset.test_y))
    rows.append([100 * engine.predict(model, "test", test)[0].mean() for model in models])
    rows.append([100 * engine.predict(m, "true", at)[0].mean() for m, at in zip(models, own, strict=True)])
    return np.array(rows)


def cell(values, digits=1):
    return f"{np.mean(values):{7 + digits}.{digits}f} ± {np.std(values, ddof=1):4.{digits}f}"


def show_scores(groups, options, pool):
    """Print what the groups score beside how well they do; return how often the lowest score is the best group."""
    rows = np.array(list(pool.map(score, [(groups, seed, options) for seed in range(options.seeds)])))
    names = [*OUTPUTS, "test set, %", "own data, %"]
    print(f"  10^4 x score, round {options.rounds:<6}" + "".join(f"{name:>15}" for name in names))
    for g, group in enumerate(groups):
        print(f"    classes {group:14}" + "".join(map(cell, rows[:, [0, 1, 2, 4, 5], g].T)))
    for where, column in {"the test set": 4, "their own data": 5}.items():
        ranks = [[spearmanr(row[o], row[column])[0] for row in rows] for o in range(3)]
        print(f"    ranks, {where:15}" + "".join(cell(rank, 2) for rank in ranks))
    off = np.abs(rows[:, 0] / rows[:, 3] - 1).max()
    print(f"    sqrt(2/pi) ||softmax|| / (B C) is the softmax score up to {off:.1%}")
    best = (rows[:, :3].argmin(axis=2) == rows[:, 4].argmax(axis=1)[:, None]).sum(axis=0)
    counts = ", ".join(f"{name} {count}" for name, count in zip(OUTPUTS, best, strict=True))
    return f"the lowest score is that of the group best on the test set in seeds of {options.seeds}: {counts}"


def main(options):
    try:
        load(options.data)
    except DataError as error:
        print(f"Nothing was run, as {options.data} is not here and could not be downloaded.\n{error}")
        return
    print(PAPER)
    print(f"Measured on {options.data}: mean ± sd over {options.seeds} seeds; differences with their 95 % interval")
    verdicts = []
    with ProcessPoolExecutor(options.workers) as pool:
        for title, groups in FEDERATIONS.items():
            print(f"\nGroups: {title}")
            verdicts.append(f"  {title}: {show_scores(groups, options, pool)}")
    print("\nDoes the claim hold here?", *verdicts, sep="\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, default in {"rounds": 20, "seeds": 10, "workers": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--quick", action="store_true", help="a smoke test on the digits that come with FedReach")
    options = parser.parse_args()
    options.data, options.examples = "fashion_mnist", 320  # of each client
    if options.quick:
        options.data, options.examples, options.rounds, options.seeds = "digits", 16, 1, 2
        print("Smoke test: 1 round and 2 seeds on small digits show that it runs; its numbers mean nothing.\n")
    if options.seeds < 2:
        sys.exit("--seeds must be at least 2, as a spread is printed.")
    main(options)
