"""The benchmark of attacks: differences are paired by seed, and its experiment gives what the tables read."""

from __future__ import annotations

import pytest

from .benchmarked import benchmarks


@pytest.fixture
def benchmark():
    with benchmarks("attacks") as (module,):
        yield module


def test_differences_are_paired_by_seed(benchmark):
    honest, attacked = {0: 0.9, 1: 0.8, 2: 0.7}, {0: 0.89, 1: 0.78, 2: 0.67}
    # Differences are -1, -2 and -3: sd/sqrt(3) is 0.577, and t of two degrees of freedom is 4.303.
    assert benchmark.cell(attacked, honest) == "−2.0 ± 2.5"


def test_each_attack_and_rule_of_the_tables_is_run(benchmark, tmp_path, monkeypatch):
    short = benchmark.Case(("rounds = 2", "evaluation.every = 2"), ("mean", benchmark.RECOMMENDED))
    monkeypatch.setattr(benchmark, "CASES", {"digits": short})
    scores = benchmark.measured("digits", "sign flip x 10", 0.3, range(2), tmp_path)
    assert scores.adapted.keys() == {"mean", benchmark.RECOMMENDED}
    assert all(by_seed.keys() == {0, 1} for by_seed in scores.unadapted.values())
    kept = next(tmp_path.rglob("comparison.json")).read_text()
    assert '"strength": 10' in kept
    assert '"share": 0.3' in kept
