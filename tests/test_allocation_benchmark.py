"""The benchmark of allocations compares all methods on the same clients, and says so where one takes too long."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedreach.wireless.solve import solve

from .benchmarked import benchmarks

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "allocation.py"


@pytest.fixture(scope="module")
def allocation():
    with benchmarks("allocation") as (module,):
        yield module


def test_a_quarter_of_the_examples_is_needed_and_the_band_grows_with_the_clients(allocation):
    for clients, hertz in ((40, 2e6), (80, 2e6), (800, 2e7)):
        problem, needed = allocation.instance(clients, "G", seed=3)
        assert needed == round(problem.num_examples.sum() / 4)
        assert problem.num_examples.min() >= 50
        assert problem.num_examples.max() <= 200
        # A client sends B log2(1 + snr) bits a second, with an snr of 10^3 to 10^4 by 2 MHz: about 12 bits a hertz.
        assert 7 < np.median(32 * 62_006 / problem.upload_seconds) / hertz < 14


def test_computing_takes_longer_than_sending_in_megahertz_only(allocation):
    sending, computing = {}, {}
    for regime in allocation.REGIMES:
        problem, _ = allocation.instance(80, regime, seed=0)
        computing[regime] = np.median(problem.cycles / problem.max_hertz)
        sending[regime] = np.median(problem.upload_seconds) * 20  # with a twentieth of the band, as in a set of 20
    assert computing["G"] < sending["G"] / 10
    assert computing["M"] > sending["M"]


@pytest.mark.parametrize("regime", ["G", "M"])
def test_no_method_is_below_the_bound_and_all_cover(allocation, regime):
    problem, needed = allocation.instance(9, regime, seed=2)
    bound = solve(problem, needed).lower_bound
    for method in allocation.METHODS:
        if allocation.why_not(method, 0.0, 1):
            continue
        found = allocation.find(method, problem, needed, 2)
        if found.rows is not None:
            assert problem.num_examples[found.rows].sum() >= needed
        if "cost" in found.facts:
            # SCIP may violate constraints a little.
            assert found.facts["cost"] >= bound * (1 - (1e-5 if method == "scip" else 0))
        if method in (*allocation.OURS, "scip"):
            assert found.facts["cost"] == pytest.approx(bound, rel=1e-5)


def test_the_rows_are_printed_and_written(tmp_path):
    command = [sys.executable, str(SCRIPT), "--methods", "sorted", "--clients", "20", "--seeds", "2", "--regimes", "G"]
    done = subprocess.run([*command, "--json", str(tmp_path / "rows.json")], capture_output=True, text=True, check=True)
    found = json.loads((tmp_path / "rows.json").read_text())
    assert [(row["method"], row["rule"], row["seed"]) for row in found["rows"]] == [
        *[("proven", rule, seed) for seed in (0, 1) for rule in (None, "greedy", "equal", "random")],
        *[("sorted", "exact", seed) for seed in (0, 1)],
    ]
    for row in found["rows"]:
        assert row["ratio"] >= 1
        assert 0 < row["seconds"] < 60
        assert row["megabytes"] >= 0
        if row["method"] == "proven" and row["rule"] is None:
            assert row["gap"] <= 1e-6
            assert row["ratio"] <= 1 + 1.1e-6
    (profile,) = found["profiles"]
    assert sum(profile[part] for part in profile if part not in ("clients", "regime")) < 60
    assert "| G: cost / proven lower bound | 20 clients |" in done.stdout
    assert "| sorted by sqrt(P tau) / d, exact allocation | 1." in done.stdout


def test_a_call_over_the_limit_is_a_row_that_says_so(allocation, monkeypatch):
    monkeypatch.setitem(allocation.METHODS, "proven", allocation.METHODS["proven"]._replace(rules=()))
    (row,) = allocation.measure("proven", 300_000, "G", 0, limit=1)
    assert row["note"] == "over 1 s"
    assert "seconds" not in row


def test_general_solvers_are_not_tried_where_they_would_be_over_the_limit(allocation, monkeypatch):
    monkeypatch.setattr(allocation, "find_spec", lambda name: object())
    assert allocation.why_not("scip", 61.0, 60) == "not run"
    assert allocation.why_not("scip", 59.0, 60) == ""
    assert allocation.why_not("proven", 61.0, 60) == ""  # most of its time does not grow with the clients
    monkeypatch.setattr(allocation, "find_spec", lambda name: None)
    assert allocation.why_not("scip", 0.0, 60) == "needs pyscipopt"
    assert allocation.why_not("sorted", 0.0, 60) == ""


def test_costs_are_compared_with_the_best_bound_on_the_same_clients(allocation):
    draw = {"clients": 9, "regime": "G", "seed": 1}
    rows = [{**draw, "cost": 4.0, "lower_bound": 2.0}, {**draw, "cost": 6.0, "lower_bound": 3.0}, {**draw, "cost": 9.0}]
    rows += [{**draw, "seed": 2, "cost": 5.0}, {**draw, "note": "not run"}]
    ratios = [row.get("ratio") for row in allocation.with_ratios(rows)]
    assert ratios == [pytest.approx(4 / 3), 2.0, 3.0, None, None]


def test_the_parts_of_a_profile_add_up_and_nothing_stays_replaced(allocation):
    from fedreach.wireless import candidates, search

    before = search.cost_of_needs, candidates.fractional_cover, candidates.cover_table
    spent = allocation.profile(20, "G", 0)
    assert tuple(spent) == allocation.PARTS
    assert all(seconds > 0 for seconds in spent.values())
    assert (search.cost_of_needs, candidates.fractional_cover, candidates.cover_table) == before
