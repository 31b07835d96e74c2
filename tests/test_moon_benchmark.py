"""The benchmark of MOON: FedReach follows its plain loops, a wrong loop is noticed, and gains are paired by seed."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import fedreach

from .benchmarked import benchmarks


@pytest.fixture
def benchmark(monkeypatch):
    with benchmarks("moon") as (module,):
        monkeypatch.setattr(module, "CHECKED_IMAGES", 240)
        monkeypatch.setattr(module, "CHECKED_ROUNDS", 3)
        monkeypatch.setattr(module, "BATCH", 4)
        yield module


@pytest.fixture
def images():
    """Random images of the size of CIFAR-10's, whose brightness depends on the class."""
    rng = np.random.default_rng(0)
    y = rng.integers(10, size=300)
    x = rng.integers(120, size=(300, 3, 32, 32)) + 13 * y[:, None, None, None]
    return fedreach.from_arrays(x.astype(np.uint8), y, num_classes=10)


@pytest.mark.parametrize("method", ["fedavg", "moon"])
def test_fedreach_follows_the_plain_loop(benchmark, images, method):
    assert benchmark.largest_distance(method, images) <= benchmark.TOLERANCE


@pytest.mark.parametrize(("name", "value"), [("TEMPERATURE", 0.6), ("STRENGTHS", {"moon": 4.0})])
def test_a_loop_with_another_objective_is_noticed(benchmark, images, monkeypatch, name, value):
    monkeypatch.setattr(benchmark, name, value)
    assert benchmark.largest_distance("moon", images) > 10 * benchmark.TOLERANCE


def test_the_loops_import_nothing_of_fedreach(benchmark):
    assert "import fedreach" not in Path(benchmark.PlainLoop.run_round.__code__.co_filename).read_text()
    assert "from fedreach" not in Path(benchmark.PlainLoop.run_round.__code__.co_filename).read_text()


def test_gains_are_paired_by_seed(benchmark):
    accuracies = {"fedavg": [30.0, 40.0, 50.0], "moon": [31.0, 42.0, 53.0]}
    rows = [
        {"seed": seed, "method": method, "accuracy": value}
        for method, values in accuracies.items()
        for seed, value in enumerate(values)
    ]
    text = benchmark.text(rows, {"fedavg": 1e-6, "moon": 2e-5})
    assert "| `fedavg` | 40.0 ± 10.0 | 66.3 ± 0.5 | 1.0e-06 |" in text
    # Differences are 1, 2 and 3: sd/sqrt(3) is 0.577, and t of two degrees of freedom is 4.303.
    assert "MOON minus FedAvg: +2.0 points, 95% interval [−0.5, +4.5], paired by seed." in text
    # Three pairs detect 3.26 standard deviations: scipy.stats.nct.sf(4.3027, df=2, nc=3.26 * 3**0.5) is 0.80.
    assert "80% power: 3.3 points" in text


def test_without_cifar_10_it_is_not_run(benchmark, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("FEDREACH_DATA", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["moon.py"])
    with pytest.raises(SystemExit) as end:
        benchmark.main()
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("not run: ")
