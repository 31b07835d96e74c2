"""The benchmark of clusters' models scores "today" as the evaluator does, and lets the inputs speak for a cluster."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from fedreach.evaluation.modes import AdaptationEvaluator
from fedreach.experiment.build import Builder
from fedreach.experiment.load import load
from fedreach.federation.selection.random import Uniform

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("cluster_adaptation")
    for name in set(sys.modules) - before:
        if not name.startswith("fedreach") and Path(BENCHMARKS, f"{name}.py").exists():
            del sys.modules[name]


@pytest.fixture
def builder():
    return Builder(load(None, ["rounds=20", "engine.name=sequential", "data.download=false"]), BENCHMARKS)


def trained(benchmark, builder, selection):
    return benchmark.trained(builder, builder.federated(builder.dataset(), 3), 3, selection)


def test_the_mean_over_models_is_what_the_evaluator_says_today(benchmark, builder):
    world = trained(benchmark, builder, benchmark.SplitByShares(k=2, at=10))
    assert len(world.models) == 2
    evaluator = AdaptationEvaluator(world.simulation.engine, world.data, benchmark.RULE)
    columns, _, _ = evaluator.evaluate(world.models, world.clusters, 20)
    found = benchmark.measured(world)
    for mode in ("unadapted", "adapted"):
        assert found[f"mean, {mode}"] == pytest.approx(100 * columns[f"unseen_{mode}_accuracy"], abs=1e-6)
    assert found["mean, adapted"] != found["mean, adapted, fitted by all"]


def test_with_one_model_there_is_nothing_to_choose(benchmark, builder):
    found = benchmark.measured(trained(benchmark, builder, Uniform()))
    assert len({value for name, value in found.items() if name.endswith("unadapted")}) == 1
    adapted = [value for name, value in found.items() if ", adapted" in name]
    assert adapted == pytest.approx([adapted[0]] * len(adapted))
    assert found["chosen as by labels"] == 100
    assert adapted[0] != found["mean, unadapted"]


def test_who_has_the_most_evidence_serves(benchmark, builder, monkeypatch):
    world = trained(benchmark, builder, benchmark.SplitByShares(k=2, at=10))
    raw = [
        100 * np.mean(world.accuracies([world.outputs(model, index).logits for index in world.unseen]))
        for model in world.models
    ]
    held = np.array([base_of(benchmark, world, number)[0] for number in (0, 1)])
    more = int(held.argmax())  # has more of class 0
    monkeypatch.setattr(benchmark, "cluster_evidence", lambda u, base, pseudo_counts=None: 1e3 * base[0])
    found = benchmark.measured(world)
    assert found["chosen, unadapted"] == pytest.approx(raw[more])
    assert found["chosen, unadapted"] != pytest.approx(raw[1 - more])
    assert found["posterior, adapted"] == pytest.approx(found["chosen with spread, adapted, fitted by all"])


def base_of(benchmark, world, number):
    held = world.held_out(world.models[number])
    return benchmark.fit(benchmark.RULE, [held[c] for c in sorted(held) if c in world.members(number)]).state["base"]


def test_clusters_split_once_and_by_class_shares(benchmark, builder):
    world = trained(benchmark, builder, benchmark.SplitByShares(k=2, at=20))
    counts = world.data.label_counts()[world.data.population.participants]
    shares = counts / counts.sum(axis=1, keepdims=True)
    centres = np.stack([shares[world.clusters == k].mean(axis=0) for k in (0, 1)])
    distances = ((shares[:, None] - centres) ** 2).sum(axis=2)
    assert (distances.argmin(axis=1) == world.clusters).all()
    assert np.array_equal(world.models[0], world.models[1])  # split after the last round: trained together so far
    assert not np.array_equal(*trained(benchmark, builder, benchmark.SplitByShares(k=2, at=10)).models)


def test_the_cluster_whose_classes_the_inputs_have_has_the_evidence(benchmark):
    u = np.log([[0.8, 0.1, 0.1]] * 3)  # three inputs of the first class
    mostly, hardly = np.array([0.8, 0.1, 0.1]), np.array([0.1, 0.45, 0.45])
    # log of (.64 + .01 + .01)^3 and of (.08 + .045 + .045)^3
    assert benchmark.cluster_evidence(u, mostly) == pytest.approx(3 * np.log(0.66))
    assert benchmark.cluster_evidence(u, hardly) == pytest.approx(3 * np.log(0.17))
    spread = benchmark.cluster_evidence(u, hardly, 1.0)  # its clients differ: one may hold the first class
    assert benchmark.cluster_evidence(u, hardly) < spread < benchmark.cluster_evidence(u, mostly)
    assert benchmark.cluster_evidence(u, hardly, 1e12) == pytest.approx(benchmark.cluster_evidence(u, hardly))


def test_intervals_are_of_differences_by_seed_and_corrected_for_all(benchmark):
    ways = {*benchmark.TESTED, *benchmark.AGAINST}
    rows = [
        {"data": "toy", "seed": seed, "source": "made up", "clusters": 2}
        | dict.fromkeys(ways, 50.0 + 10 * seed)
        | {"pooled, adapted": 52.0 + 12 * seed}
        for seed in (0, 1)
    ]
    text = benchmark.text(rows)
    assert "| pooled, adapted | 58.0 |" in text
    # Differences 2 and 4: 3 +- t(1 - .05 / 12; 1) with t = 1 / tan(pi (.05 / 12)) = 76.4, six comparisons.
    assert "| toy, made up | pooled | one model | +3.0 [−73.4, +79.4] | 1.000 |" in text
    assert "| toy, made up | posterior | one model | 0.0 [0.0, 0.0] | 1.000 | 0.0 |" in text
