"""The benchmark of private training: pfl trains what FedReach trains, and without pfl its table is left out."""

from __future__ import annotations

import importlib
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import fedreach as fr
from fedreach._util.streams import torch_seed
from fedreach.engines.models.networks import build
from fedreach.federation.aggregation import Mean
from fedreach.federation.differential_privacy import DPFedAvg
from fedreach.federation.local_sgd import LocalSGD
from fedreach.report.read import read

from .benchmarked import benchmarks

QUIET = DPFedAvg(clip=0.05, delta=1e-5, noise_multiplier=1e-7)  # next to no noise, but clipped and divided


@pytest.fixture
def benchmark(monkeypatch):
    with benchmarks("private", folders=("", "peers")) as (module,):
        monkeypatch.setattr(module, "COHORT", 4)
        monkeypatch.setattr(module, "CLIP", QUIET.clip)
        monkeypatch.setattr(module, "LOCAL", LocalSGD(lr=0.05, batch_size=3))
        yield module


@pytest.fixture
def pfl_private(benchmark):
    """The part of the benchmark in pfl."""
    pytest.importorskip("pfl")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pfl and its packages
        yield importlib.import_module("pfl_private")


@pytest.fixture(params=[Mean(), QUIET], ids=["mean", "dp_fedavg"])
def distance(request, benchmark, pfl_private, tmp_path):
    """A function: the distance of the models of FedReach and pfl, relative to how far training went."""
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=80)
    x = (rng.integers(120, size=(80, 1, 4, 4)) + 40 * y[:, None, None, None]).astype(np.uint8)
    spec = fr.from_arrays(x, y, num_classes=3).partition("iid", clients=8, participants=8)
    fr.compare(
        spec,
        {"private": fr.Method(aggregation=request.param, selection="poisson", weighting="equal")},
        model="linear",
        local={"lr": 0.05, "batch_size": 3},
        rounds=6,
        cohort_size=4,
        out=tmp_path / "runs",
        progress=False,
    )
    (run,) = read([tmp_path / "runs"]).runs
    ours = load_file(tmp_path / "runs" / run.path / "last.safetensors")["1.weight"]
    start = build("linear", (1, 4, 4), 3, seed=torch_seed(0, "model"))[1].weight.detach().numpy()
    noise = None if request.param == Mean() else 1e-7

    def measure() -> float:
        net, _ = benchmark.train_with_pfl(run, tmp_path / "runs", fr.FederatedData.from_spec(spec, seed=0), noise)
        theirs = net[1].weight.detach().numpy()
        return float(np.linalg.norm(ours - theirs) / np.linalg.norm(ours - start))

    measure.noise = noise
    return measure


@pytest.mark.slow
def test_pfl_trains_the_model_that_fedreach_trains(distance):
    assert distance() < 1e-5


@pytest.mark.slow
def test_another_order_of_examples_is_noticed(distance, benchmark, monkeypatch):
    monkeypatch.setattr(benchmark, "batch_plan", lambda seed, round_, client, n, local: np.arange(n))
    assert distance() > 1e-3


@pytest.mark.slow
def test_another_divisor_is_noticed(distance, pfl_private, monkeypatch):
    monkeypatch.setattr(pfl_private, "ExpectedSize", pfl_private.Postprocessor)
    assert distance() < 1e-5 if distance.noise is None else distance() > 1e-3


@pytest.mark.slow
def test_another_clipping_norm_is_noticed(distance, benchmark, monkeypatch):
    monkeypatch.setattr(benchmark, "CLIP", 2 * QUIET.clip)
    assert distance() < 1e-5 if distance.noise is None else distance() > 1e-3


def test_without_pfl_its_table_is_left_out(benchmark, monkeypatch, capsys):
    monkeypatch.setattr(sys.modules["contenders"], "find_spec", lambda name: None)
    assert benchmark.text_of_pfl({}, {}, Path(), None) == ""
    assert "pfl is left out" in capsys.readouterr().err
