"""The benchmark of BatchNorm: all rules see the same inputs of the same models, and differences are paired by seed."""

from __future__ import annotations

import pytest

import fedreach
from fedreach.federation.adaptation.base import Unadapted

from .benchmarked import benchmarks


@pytest.fixture
def benchmark():
    with benchmarks("batchnorm") as (module,):
        yield module


def test_the_interval_is_of_differences_by_seed(benchmark):
    rows = [
        {"seed": seed, "kind": kind, "shift": shift, "inputs": n, "unadapted": 70.0 + seed, "unguarded": 0.0}
        | {"label_shift": 10.0 * seed, "batchnorm": 10.0 * seed + 2 + seed}
        for seed in (0, 1)
        for kind in benchmark.KINDS
        for shift in benchmark.OWN
        for n in benchmark.INPUTS
    ]
    text = benchmark.text(rows)
    assert "Seeds 0 to 1 (2)" in text
    # Differences are 2 and 3: sd/sqrt(2) is .5, and t of one degree of freedom is 12.706.
    assert "| +2.5 ± 6.4 / +2.5 ± 6.4 / +2.5 ± 6.4 |" in text
    assert "70.5 | 0.0 / 0.0 / 0.0 | +5.0 / +5.0 / +5.0 | +7.5" in text


def test_a_rule_that_does_nothing_gains_nothing_on_the_inputs_of_the_others(benchmark, monkeypatch):
    monkeypatch.setattr(benchmark, "ROUNDS", 20)
    monkeypatch.setattr(benchmark, "OWN", {"none": None, "brightness −0.5": -0.5})
    monkeypatch.setattr(benchmark, "RULES", {"unguarded": Unadapted(), "batchnorm": benchmark.RULES["batchnorm"]})
    rows = list(benchmark.measure(fedreach.load("digits"), 0))
    assert {(row["kind"], row["shift"]) for row in rows} == {(k, s) for k in benchmark.KINDS for s in benchmark.OWN}
    assert [row["unguarded"] for row in rows] == [0.0] * len(rows)
    assert max(row["batchnorm"] for row in rows if row["shift"] == "none") > 0
