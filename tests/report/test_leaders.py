from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from fedreach.evaluation.statistics import AnalysisPlan
from fedreach.report.analysis import Leaders, leaders_by
from fedreach.report.numbers import RunData, RunSet
from fedreach.report.overview import analyse
from fedreach.report.read import read
from fedreach.report.tables import tabulate

from .made_up import compared, federation, write_curve

LEVELS = {"a": 0.9, "b": 0.8, "c": 0.7, "d": 0.6}


@dataclass
class Made:
    """What `leaders_by` asks of a comparison, with values in place of runs: method -> one a seed."""

    values: dict[str, list[float]]
    plan: AnalysisPlan = field(default_factory=AnalysisPlan)
    looks: tuple[int, ...] = ()
    margin: float | None = None
    pilot: tuple[int, ...] | None = None

    def counted(self, method: str) -> list[Any]:
        clients = SimpleNamespace(hash="h")
        return [SimpleNamespace(seed=s, partition=clients, value=v) for s, v in enumerate(self.values[method])]


def lead(made: Made, *, lower_is_better: bool = False) -> Leaders:
    def value(run: RunData) -> float:
        return float(cast(Any, run).value)

    return leaders_by(cast(RunSet, made), list(made.values), value, lower_is_better=lower_is_better)


def about(level: float, seed: int, sd: float = 0.01, count: int = 8) -> list[float]:
    return (level + sd * np.random.default_rng(seed).normal(size=count)).tolist()


def test_who_is_better_than_all_others_leads() -> None:
    made = Made({name: about(level, j) for j, (name, level) in enumerate(LEVELS.items())})
    assert lead(made).methods == ("a",)
    assert lead(made, lower_is_better=True).methods == ("d",)
    assert lead(made).tested == 6


def test_two_between_whom_nothing_is_decided_lead_together() -> None:
    levels = LEVELS | {"b": 0.9}
    made = Made({name: about(level, j) for j, (name, level) in enumerate(levels.items())})
    assert set(lead(made).methods) == {"a", "b"}


def test_nobody_leads_where_the_first_is_better_than_others_who_lead_over_the_last() -> None:
    # All but d are better than d, and a is better than c: bold for a, b and c would say that c is as good as a.
    wave = np.array([1.0, -1.0] * 4)
    values = {"a": 0.90 + 0.002 * wave, "b": 0.89 + 0.03 * wave, "c": 0.88 - 0.002 * wave, "d": 0.5 + 0.001 * wave}
    made = Made({name: numbers.tolist() for name, numbers in values.items()})
    found = lead(made)
    better = {(pair.first, pair.second) for pair in found.pairs if pair.judged.conclusion == "better"}
    assert better == {("a", "c"), ("a", "d"), ("b", "d"), ("c", "d")}
    assert found.methods == ()


def test_a_lead_over_some_only_is_none() -> None:
    # c spreads so widely that nothing is decided about it.
    values = {"a": about(0.9, 0), "b": about(0.8, 1), "c": about(0.7, 2, sd=0.6)}
    assert lead(Made(values)).methods == ()


def test_one_seed_and_seeds_that_were_added_after_a_look_decide_nothing() -> None:
    clear = {name: about(level, j) for j, (name, level) in enumerate(LEVELS.items())}
    assert lead(Made({name: values[:1] for name, values in clear.items()})).methods == ()
    assert lead(Made(clear, looks=(4,))).methods == ()


@pytest.mark.parametrize("correction", ["holm", "max_t"])
def test_a_lead_that_holds_without_the_correction_alone_is_none(correction: Any) -> None:
    # Five methods; the first leads by so much that each single test would say so, p = 0.03, and ten together do not.
    same = np.random.default_rng(3).normal(size=(4, 8))
    lead_of = np.array([1.0, -1.0] * 4)
    rows = {f"m{j}": (0.5 + 1e-3 * same[j]).tolist() for j in range(4)}
    best = (0.5 + 0.02 * (0.95 + lead_of)).tolist()
    found = lead(Made({"best": best} | rows, AnalysisPlan(correction=correction)))
    with_best = [pair.judged for pair in found.pairs if pair.first == "best"]
    assert len(with_best) == 4
    assert all(judged.p is not None and judged.p < 0.05 for judged in with_best)
    assert found.methods == ()


def test_among_equal_methods_hardly_ever_one_leads_by_chance() -> None:
    rng = np.random.default_rng(0)
    told = sum(bool(lead(Made({f"m{j}": rng.normal(size=6).tolist() for j in range(4)})).methods) for _ in range(200))
    assert told <= 18  # of 200 at 5 %: ten are expected at most, 18 are exceeded once in 200 times


@pytest.fixture
def close(tmp_path: Path) -> RunSet:
    """Two methods that lead each with half of the seeds, and one far behind."""
    scores = {"one": (0.80, 0.84, 0.81, 0.85), "two": (0.84, 0.80, 0.86, 0.82), "far": (0.50, 0.52, 0.51, 0.53)}
    runs: dict[str, dict[str, str]] = {}
    for method, values in scores.items():
        runs[method] = {str(seed): f"runs/{method}/seed-{seed}" for seed in range(4)}
        for seed, value in enumerate(values):
            path = tmp_path / runs[method][str(seed)]
            columns = {
                "participant_accuracy": [0.1, value],
                "unseen_accuracy": [0.1, value],
                "participant_loss": [2.0, 1.0],
            }
            write_curve(path, method, seed, columns, held=federation(12, 4, seed=seed))
    compared(tmp_path, runs, baseline="far")
    return read([tmp_path])


def test_the_table_marks_those_who_lead_where_methods_are_judged(close: RunSet) -> None:
    table = tabulate(analyse(close))
    marked = {(table.rows[i][0], table.header[j]) for i, j in table.bold}
    assert marked == {("one", "unseen clients"), ("two", "unseen clients")}
    assert "Bold: significantly better on unseen clients than every method that is not bold" in table.stated

    # Without the far one nobody leads, although one of them is ahead.
    two = tabulate(analyse(replace(close, methods=("one", "two"), baseline="one")))
    assert two.bold == frozenset()
    assert "No method is bold" in two.stated
