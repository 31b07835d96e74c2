"""Adaptation of unseen clients where a selection makes several cluster models.

    python benchmarks/cluster_adaptation.py --seeds 2 --first 20     # printed only
    python benchmarks/cluster_adaptation.py --seeds 20 --write       # docs/records/cluster_adaptation.md

Each seed trains one model with uniform selection and one per cluster, with the same partition and cohorts: `clustered`,
and on the digits also three clusters by k-means of the participants' label distributions, split after round 10. The
accuracy is the mean over unseen clients, each with all its inputs and no label, adapted by `label_shift` with its
safeguard:

- mean: mean over the cluster models, weighted by their shares of participants; the rule is fitted by the members of a
  cluster (the default), or by all participants
- pooled: the mean of the clusters' parameters with these weights, one model; the rule is fitted by all
- chosen: the cluster k with the largest sum_i log sum_c base_kc exp u_ic, u from the pooled model, base_k the label
  distribution of its members' held-out examples; unadapted, or adapted by the rule that its members fit
- chosen with spread: the evidence under a Dirichlet prior A_k base_k, prequential; the rule is fitted by all
- posterior: the clusters' adapted predictions, mixed by that evidence and the clusters' shares
- by shares: the same, mixed by the shares alone
- by labels: the cluster with the largest sum_i log base_k,y_i, which needs labels; fitted by members or by all

The digits take three times as many seeds. Each seed adds lines to --rows, so more seeds cost only themselves.
Fashion-MNIST is read from FEDREACH_DATA.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.stats import t
from sklearn.cluster import KMeans

import fedreach as fr
from fedreach._util.arrays import Floats, Ints
from fedreach._util.errors import FedReachError
from fedreach.data.federated import FederatedData
from fedreach.evaluation.evaluator import Group
from fedreach.evaluation.statistics import holm
from fedreach.experiment.build import Builder
from fedreach.experiment.load import load
from fedreach.federation.adaptation import inference as online
from fedreach.federation.adaptation.fitting import HeldOut, fit
from fedreach.federation.adaptation.label_shift import LabelShift, scores
from fedreach.federation.base import Selection
from fedreach.federation.selection.labels import Clustered
from fedreach.federation.selection.random import Uniform
from fedreach.federation.state import FederationState
from fedreach.federation.types import ClientResults, Cohort, Outputs, ServerView, State
from fedreach.runs.simulation import Simulation, simulate
from harm_tables import signed
from page import put
from tables import table

ROOT = Path(__file__).parents[1]
RULE = LabelShift()
TESTED = {"pooled, adapted": "pooled", "posterior, adapted": "posterior", "by shares, adapted": "by shares"}
AGAINST = {"mean, adapted": "the mean over models", "one model, adapted": "one model"}
LEVEL = 0.95


@dataclass(frozen=True)
class SplitByShares(fr.Selection):
    """Choose as `Uniform`; after round `at`, give each of k clusters of participants by class shares its model."""

    needs: ClassVar[tuple[str, ...]] = ("label_counts",)

    k: int = 3
    at: int = 10

    def init(self, view: ServerView) -> State:
        assert view.label_counts is not None  # because of `needs`
        shares = view.label_counts / view.label_counts.sum(axis=1, keepdims=True)
        found = KMeans(self.k, n_init=10, random_state=0).fit_predict(shares).astype(np.int64)
        return {"found": found, "clusters": np.zeros_like(found)}

    def clusters(self, state: State) -> Ints:
        return state["clusters"]

    def select(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Cohort:
        return Cohort(rng.choice(view.ids[view.available], size=k, replace=False))

    def observe(self, state: State, reports: ClientResults) -> State:
        return {**state, "clusters": state["found"]} if reports.round >= self.at else state


EXPERIMENTS: Mapping[str, Path | None] = {
    "digits": None,  # as in `make demo`
    "fashion_mnist": ROOT / "examples" / "fashion_mnist_adaptation.toml",
}
TIMES = {"digits": 3, "fashion_mnist": 1}
"""How many times --seeds: a seed of the digits takes a tenth of the time."""
SOURCES: Mapping[str, Mapping[str, Selection]] = {
    "digits": {"clustered": Clustered(), "k-means of class shares": SplitByShares()},
    "fashion_mnist": {"clustered": Clustered()},
}


def log_sum(z: Floats) -> Floats:
    """Return log sum_c exp z_c, row by row."""
    return np.asarray(np.logaddexp.reduce(z, axis=-1))


@dataclass(frozen=True, eq=False)
class World:
    """One model a cluster, or one in all, and the clients that are adapted."""

    simulation: Simulation
    models: Floats  # (k, d)
    clusters: Ints  # (n,) of the participants
    data: FederatedData

    @classmethod
    def of(cls, simulation: Simulation, state: FederationState) -> World:
        return cls(simulation, np.asarray(state.models), state.clusters, simulation.data)

    @cached_property
    def unseen(self) -> list[Ints]:
        """The examples of each unseen client."""
        group = Group.of(self.data.population.unseen, self.data.train, self.data.held_out)
        return np.split(group.index, np.cumsum(group.sizes)[:-1])

    @cached_property
    def labels(self) -> list[Ints]:
        """Those of each unseen client, which scores and the oracle alone look at."""
        return [self.data.dataset.train_y[index] for index in self.unseen]

    @cached_property
    def shares(self) -> Floats:
        """(k,) of the participants that each cluster has."""
        counts: Floats = np.bincount(self.clusters, minlength=len(self.models)) / len(self.clusters)
        return counts

    @cached_property
    def pooled(self) -> Floats:
        """The (d,) mean of the models."""
        return np.asarray(self.shares @ self.models.astype(np.float64), np.float32)

    def outputs(self, model: Floats, index: Ints) -> Outputs:
        return self.simulation.engine.answers(np.asarray(model, np.float32), "true", index, inputs=True)

    def held_out(self, model: Floats) -> dict[int, HeldOut]:
        """Return what each participant that holds examples out fits by, in the order of their ids."""
        data, counts = self.data, self.data.label_counts().astype(np.float64)
        held = {int(c): data.held_out[int(c)] for c in data.population.participants if len(data.held_out[int(c)])}
        y = data.dataset.train_y
        return {c: HeldOut(self.outputs(model, index), y[index], counts[c]) for c, index in held.items()}

    def members(self, number: int) -> set[int]:
        """Return the participants of a cluster."""
        return set(self.data.population.participants[self.clusters == number].tolist())

    def accuracies(self, predicted: Sequence[Floats]) -> Floats:
        """Return (clients,) of predictions for each client's inputs."""
        pairs = zip(predicted, self.labels, strict=True)
        return np.array([(one.argmax(axis=1) == y).mean() for one, y in pairs])


def adapt(state: State, outputs: Sequence[Outputs]) -> list[Floats]:
    """Return each client's log-probabilities, after all its inputs."""
    kept = RULE.update_many(state, [RULE.start(state)] * len(outputs), outputs)
    return [RULE.predict(state, own, one) for own, one in zip(kept, outputs, strict=True)]


def cluster_evidence(u: Floats, base: Floats, pseudo_counts: float | None = None) -> float:
    """Return how well class shares explain a client's inputs: base themselves, or shares that are Dirichlet about it.

    Args:
        u: (n, c) log likelihood ratios by one model, the same for all clusters.
        base: (c,) of the cluster.
        pseudo_counts: A of the cluster; None: its clients all have `base`.
    """
    point = float(log_sum(u + np.log(base)).sum())
    return point if pseudo_counts is None else point + float(online.evidence_path(u, base, pseudo_counts).log_w[-1, 0])


def measured(world: World) -> dict[str, float]:
    """Return the mean accuracies of unseen clients, way by way, and which part of them choose as their labels would."""
    shares, count = world.shares, len(world.shares)
    plain, by_members, by_all, bases, spreads = [], [], [], [], []
    for number, model in enumerate(world.models):
        held, outputs = world.held_out(model), [world.outputs(model, index) for index in world.unseen]
        mine = [one for client, one in held.items() if client in world.members(number)] or list(held.values())
        state = fit(RULE, mine).state
        bases.append(state["base"])
        spreads.append(float(state["pseudo_counts"][0]))
        plain.append(world.accuracies([one.logits for one in outputs]))
        by_members.append(world.accuracies(adapt(state, outputs)))
        by_all.append([np.exp(one) for one in adapt(fit(RULE, list(held.values())).state, outputs)])
    outputs = [world.outputs(world.pooled, index) for index in world.unseen]
    state = fit(RULE, list(world.held_out(world.pooled).values())).state
    us = [scores(state, one) for one in outputs]
    point = np.array([[cluster_evidence(u, base) for u in us] for base in bases])
    spread = np.array([[cluster_evidence(u, *one) for u in us] for one in zip(bases, spreads, strict=True)])
    labelled = np.array([[np.log(base)[y].sum() for y in world.labels] for base in bases])
    each = np.arange(len(us))
    log_posterior = spread + np.log(shares)[:, None]
    posterior = np.exp(log_posterior - log_sum(log_posterior.T))

    def mixed(weights: Floats) -> Floats:
        """Return accuracies of the clusters' predictions, mixed by (k, clients) weights."""
        predicted = [sum(weights[k, i] * by_all[k][i] for k in range(count)) for i in each]
        return world.accuracies([np.asarray(one) for one in predicted])

    raw, own, fitted = np.array(plain), np.array(by_members), np.array([world.accuracies(one) for one in by_all])
    found = {
        "mean, unadapted": shares @ raw,
        "mean, adapted": shares @ own,
        "mean, adapted, fitted by all": shares @ fitted,
        "pooled, unadapted": world.accuracies([one.logits for one in outputs]),
        "pooled, adapted": world.accuracies(adapt(state, outputs)),
        "chosen, unadapted": raw[point.argmax(axis=0), each],
        "chosen, adapted": own[point.argmax(axis=0), each],
        "chosen with spread, adapted, fitted by all": fitted[spread.argmax(axis=0), each],
        "posterior, adapted": mixed(posterior),
        "by shares, adapted": mixed(np.repeat(shares[:, None], len(us), axis=1)),
        "by labels, unadapted": raw[labelled.argmax(axis=0), each],
        "by labels, adapted": own[labelled.argmax(axis=0), each],
        "by labels, adapted, fitted by all": fitted[labelled.argmax(axis=0), each],
        "chosen as by labels": point.argmax(axis=0) == labelled.argmax(axis=0),
    }
    return {name: 100 * float(np.mean(values)) for name, values in found.items()}


def trained(builder: Builder, data: FederatedData, seed: int, selection: Selection) -> World:
    """Train the experiment's model, or models, with another selection."""
    e, federation = builder.experiment, replace(builder.federation(seed), selection=selection)
    simulation = simulate(
        data, builder.model(), federation, rounds=e.rounds, model_options=e.model.options, engine=e.engine.name
    )
    state = simulation.start()
    for _ in range(e.rounds):
        state, _, _ = simulation.step(state)
    return World.of(simulation, state)


def record(name: str, builder: Builder, data: FederatedData, seed: int) -> list[dict[str, Any]]:
    """Return a row for each source of clusters."""
    began = time.process_time()
    one = measured(trained(builder, data, seed, Uniform()))
    alone = {"one model, unadapted": one["pooled, unadapted"], "one model, adapted": one["pooled, adapted"]}
    rows = []
    for source, selection in SOURCES[name].items():
        world = trained(builder, data, seed, selection)
        row = {"data": name, "seed": seed, "source": source, "clusters": len(world.models)}
        rows.append(row | measured(world) | alone)
    print(f"{name}, seed {seed}: {time.process_time() - began:.0f} s", flush=True)
    return rows


def interval(differences: Floats, comparisons: int) -> tuple[float, float, float, float, float]:
    """Return mean, Bonferroni-adjusted t interval, p, and the minimum detectable effect (80% power)."""
    n = len(differences)
    error = float(differences.std(ddof=1)) / math.sqrt(n)
    reach = t.ppf(1 - (1 - LEVEL) / (2 * comparisons), n - 1)
    mean = float(differences.mean())
    p = float(2 * t.sf(abs(mean) / error, n - 1)) if error else 1.0
    return mean, mean - reach * error, mean + reach * error, p, float(reach + t.ppf(0.8, n - 1)) * error


def text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of means, and that of differences, all corrected together."""
    cells = list(dict.fromkeys((row["data"], row["source"]) for row in rows))
    of = {cell: [row for row in rows if (row["data"], row["source"]) == cell] for cell in cells}
    ways = [name for name in rows[0] if name not in ("data", "seed", "source")]
    means = [[way, *(f"{np.mean([row[way] for row in of[cell]]):.1f}" for cell in cells)] for way in ways]
    head = ["unseen clients, %", *(f"{data}, {source} ({len(of[data, source])} seeds)" for data, source in cells)]
    found = [
        (cell, way, other, np.array([row[way] - row[other] for row in of[cell]]))
        for cell in cells
        for way in TESTED
        for other in AGAINST
    ]
    results = [interval(differences, len(found)) for *_, differences in found]
    corrected = holm([1.0 if p is None else p for *_, p, _ in results])  # where all seeds tie there is no p
    lines = []
    for (cell, way, other, _), (mean, low, high, _, least), p in zip(found, results, corrected, strict=True):
        shown = f"{signed(mean)} [{signed(low)}, {signed(high)}]"
        lines.append([", ".join(cell), TESTED[way], AGAINST[other], shown, "< 0.001" if p < 0.001 else f"{p:.3f}"])
        lines[-1].append(f"{least:.1f}")
    second = table(["clusters of", "way", "minus", "points [95% CI]", "adjusted p", "MDE, points"], lines, left=3)
    return f"{table(head, means, left=1)}\n\n{second}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2, help="of Fashion-MNIST, from --first on; default: %(default)s")
    parser.add_argument("--first", type=int, default=1000, help="first seed; default: %(default)s")
    parser.add_argument("--rows", type=Path, default=Path("runs/cluster_adaptation.jsonl"), help="default: %(default)s")
    parser.add_argument("--write", action="store_true", help="put the tables into their record in docs/records")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.rows.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in arguments.rows.read_text().splitlines()] if arguments.rows.exists() else []
    seeds = {name: range(arguments.first, arguments.first + n * arguments.seeds) for name, n in TIMES.items()}
    for name, source in EXPERIMENTS.items():
        builder = Builder(load(source, ["data.download=false"]), ROOT)
        try:
            dataset = builder.dataset()
        except FedReachError:
            print(f"{name} is not in the folder FEDREACH_DATA: left out")
            continue
        for seed in seeds[name]:
            if not any((row["data"], row["seed"]) == (name, seed) for row in rows):
                new = record(name, builder, builder.federated(dataset, seed), seed)
                with arguments.rows.open("a") as file:
                    file.writelines(json.dumps(row) + "\n" for row in new)
                rows += new
    found = text([row for row in rows if row["seed"] in seeds[row["data"]]])
    command = f"python benchmarks/cluster_adaptation.py --seeds {arguments.seeds} --write        # one core"
    if arguments.write:
        put("cluster_adaptation", f"```text\n{command}\n```\n\n{found}")
    print(found)


if __name__ == "__main__":
    main()
