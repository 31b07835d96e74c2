"""The conclusion about a claim is what paired seeds support: differences by chance are seldom a conclusion."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedreach._util.errors import ConfigError
from papers.claims import Claim, Conclusion, Test, judge_claim, judge_claims
from papers.measured import Measured, measure_run
from papers.recipe import Printed
from papers.record import tables

A = {"a": [3.0, 2.0, 1.5], "b": [5.0, 3.0, 1.75], "c": [4.0, 4.0, 4.0]}


def table(rows: dict[str, list[float]], *, seeds: int = 8, sd: float = 1e-3, shared: float = 0.0) -> Measured:
    """Return a measurement at the values 1, 2 and 4, with noise of each number and of each seed."""
    rng = np.random.default_rng(3)
    truth = np.array(list(rows.values()))[:, None]  # (methods, 1, v)
    numbers = truth + sd * rng.standard_normal((len(rows), seeds, truth.shape[2]))
    numbers += shared * rng.standard_normal((1, seeds, 1))
    return Measured(tuple(rows), tuple(range(seeds)), "x", (1.0, 2.0, 4.0)[: truth.shape[2]], {"seconds": numbers})


def conclude(test: Test, methods: list[str], measured: Measured, **more: Any) -> Conclusion:
    return judge_claim(Claim(says="", quantity="seconds", test=test, methods=methods, **more), measured)


CASES: list[tuple[Test, list[str], dict[str, Any], str]] = [
    ("least", ["a"], {}, "reproduced"),
    ("least", ["b"], {}, "contradicted"),
    ("least", ["b", "c"], {"at": "last"}, "reproduced"),  # at the last value, 1.75 of 4
    ("least", ["b", "c"], {}, "contradicted"),  # but at the first, 5 of 4
    ("most", ["c", "a"], {}, "reproduced"),
    ("most", ["c"], {}, "contradicted"),
    ("ordered", ["a", "b"], {}, "reproduced"),
    ("ordered", ["a", "b", "c"], {}, "contradicted"),
    ("ordered", ["a", "b", "c"], {"at": "last"}, "reproduced"),
    ("near", ["a", "b"], {"by": 2.1}, "reproduced"),
    ("near", ["a", "b"], {"by": 1.9}, "contradicted"),
    ("near", ["b", "a"], {"by": 0.3, "at": "last"}, "reproduced"),
    ("falls", ["a", "b"], {}, "reproduced"),
    ("falls", [], {}, "not reproduced"),  # c stays
    ("rises", ["a"], {}, "contradicted"),
    ("level", ["c"], {"by": 0.1}, "reproduced"),
    ("level", ["a"], {"by": 1.4}, "contradicted"),
    ("levels_off", ["a", "b"], {}, "reproduced"),  # slopes: 1 and 1/4; 2 and 5/8
    ("lead_shrinks", ["a", "b"], {}, "reproduced"),  # 2, then 1/4
    ("lead_shrinks", ["a", "c"], {}, "contradicted"),  # 1, then 5/2
    ("lead_grows", ["a", "c"], {}, "reproduced"),
    ("varies_least", ["a", "b"], {}, "reproduced"),  # 2 times, 2.9 times
    ("varies_least", ["a"], {}, "contradicted"),  # c: 1
]


@pytest.mark.parametrize(("test", "methods", "more", "outcome"), CASES)
def test_numbers_that_are_clear_decide(test: Test, methods: list[str], more: Any, outcome: str) -> None:
    conclusion = conclude(test, methods, table(A), **more)
    assert (conclusion.outcome, conclusion.seeds) == (outcome, 8)
    assert conclusion.mean is not None
    assert conclusion.low is not None
    assert conclusion.high is not None
    assert conclusion.low <= conclusion.mean <= conclusion.high
    assert {"reproduced": conclusion.low > 0, "contradicted": conclusion.high < 0}.get(
        outcome, conclusion.low <= 0 <= conclusion.high
    )


@pytest.mark.parametrize(("test", "methods", "more", "outcome"), CASES)
def test_noise_that_all_methods_of_a_seed_share_changes_no_conclusion(
    test: Test, methods: list[str], more: Any, outcome: str
) -> None:
    """A hard split is hard for everybody: seeds are paired, and a spread between them is none of a difference."""
    if test != "varies_least":  # a ratio
        assert conclude(test, methods, table(A, shared=50.0), **more).outcome == outcome


@pytest.mark.parametrize("test", ["most", "least", "ordered", "rises", "falls", "lead_grows", "lead_shrinks"])
@pytest.mark.parametrize("seeds", [2, 5])
def test_what_chance_alone_makes_is_seldom_reproduced_and_seldom_contradicted(test: Test, seeds: int) -> None:
    """Of the hardest case, in which one difference only is claimed: it is above 0 once in 40 times, and below too."""
    rng = np.random.default_rng(11)
    times, methods = 400, ["a"] if test in ("rises", "falls") else ["a", "b"]
    outcomes = []
    for numbers in rng.standard_normal((times, 2, seeds, 2)):
        at = "last" if test in ("most", "least", "ordered") else "every"
        measured = Measured(("a", "b"), tuple(range(seeds)), "x", (1.0, 2.0), {"seconds": numbers})
        outcomes.append(conclude(test, methods, measured, at=at).outcome)
    for outcome in ("reproduced", "contradicted"):
        assert outcomes.count(outcome) <= 0.05 * times, outcome  # 10 of 400 are expected, 20 are three sd above
    assert outcomes.count("reproduced") + outcomes.count("contradicted") > 0  # nor is it never


def test_a_difference_just_as_large_as_the_margin_is_seldom_said_to_be_none() -> None:
    rng = np.random.default_rng(12)
    near = 0
    for noise in rng.standard_normal((400, 6)):
        numbers = np.stack([noise + 2.0, np.zeros(6)])[..., None]  # the truth is at the margin
        measured = Measured(("a", "b"), tuple(range(6)), "", (0.0,), {"seconds": numbers})
        near += conclude("near", ["a", "b"], measured, by=2.0).outcome == "reproduced"
    assert near <= 0.05 * 400


def test_of_many_differences_by_chance_few_claims_are_contradicted() -> None:
    """Among 20 rivals at 3 values one lies apart by chance nearly always, were each asked by itself."""
    rng = np.random.default_rng(13)
    against = 0
    for numbers in rng.standard_normal((100, 20, 6, 3)):
        methods = tuple(f"m{j}" for j in range(20))
        measured = Measured(methods, tuple(range(6)), "x", (1.0, 2.0, 3.0), {"seconds": numbers})
        against += conclude("most", ["m0", *methods[1:]], measured).outcome == "contradicted"
    assert against <= 12  # 2.5 % a direction of rivals that share m0, so a few


def test_one_clear_difference_the_other_way_among_many_is_found() -> None:
    rows = {f"m{j}": [1.0, 1.0, 1.0] for j in range(12)} | {"ours": [5.0, 5.0, 5.0], "better": [1.0, 1.0, 9.0]}
    conclusion = conclude("most", ["ours"], table(rows, sd=0.1))
    assert (conclusion.outcome, conclusion.what) == ("contradicted", "ours minus better at 4")
    assert conclusion.mean == pytest.approx(-4.0, abs=0.3)


def test_all_that_is_claimed_has_to_pass() -> None:
    rows = {"ours": [5.0, 5.0, 5.0], "far": [1.0, 1.0, 1.0], "close": [5.0, 4.9, 4.9]}
    conclusion = conclude("most", ["ours"], table(rows, sd=0.05))
    assert (conclusion.outcome, conclusion.what) == ("not reproduced", "ours minus close at 1")  # the weakest is told
    assert conclude("most", ["ours", "far"], table(rows, sd=0.05)).outcome == "reproduced"


@pytest.mark.parametrize("test", ["least", "most", "ordered"])
def test_equals_count_for_orders_and_for_changes_they_do_not(test: Test) -> None:
    """`At least as good` is not contradicted by the very same run; `rises` is not shown by one that stays."""
    rows = {"a": [1.0, 1.0, 1.0], "b": [1.0, 1.0, 1.0]}
    assert conclude(test, ["a", "b"], table(rows, sd=0.0)).outcome == "reproduced"
    for change in ("rises", "falls", "levels_off"):
        assert conclude(change, ["a"], table(rows, sd=0.0)).outcome == "not reproduced"
    rounding = table({"a": [1.0, 1.0, 1.0], "b": [1.0 + 1e-13, 1.0, 1.0 - 1e-13]}, sd=0.0)
    assert conclude(test, ["a", "b"], rounding).outcome == "reproduced"


def test_what_is_the_same_with_every_seed_needs_no_chance() -> None:
    rows = {"a": [1.0, 1.0, 1.0], "b": [2.0, 2.0, 2.0]}
    conclusion = conclude("least", ["a"], table(rows, sd=0.0))
    assert (conclusion.outcome, conclusion.mean, conclusion.low) == ("reproduced", 1.0, None)
    assert conclude("most", ["a"], table(rows, sd=0.0)).outcome == "contradicted"


def test_a_step_between_the_ends_of_the_axis_is_no_matter() -> None:
    assert conclude("rises", ["a"], table({"a": [1.0, 0.5, 2.0]})).outcome == "reproduced"


# ----------------------------------------------------------------------------------------- what cannot be tested


def test_one_seed_decides_nothing() -> None:
    conclusion = conclude("least", ["a"], table(A, seeds=1))
    assert (conclusion.outcome, conclusion.reason, conclusion.mean) == ("not testable", "one seed has no spread", None)


def test_a_scale_that_is_too_small_decides_nothing_however_clear_its_numbers() -> None:
    claim = Claim(says="", quantity="seconds", test="least", methods=["a"])
    conclusion = judge_claim(claim, table(A), reason="it is small")
    assert (conclusion.outcome, conclusion.reason) == ("not testable", "it is small")


def test_nothing_is_said_where_a_number_is_missing_and_only_there() -> None:
    measured = table(A)
    measured.numbers["seconds"][0, 3, 1] = np.nan  # of a, at the second value
    assert conclude("least", ["a", "b"], measured).reason == "a number is missing"
    assert conclude("most", ["b"], measured).outcome == "not testable"  # a is among all others
    assert conclude("least", ["c", "b"], measured).outcome == "contradicted"
    assert conclude("least", ["a", "b"], measured, at="last").outcome == "reproduced"
    assert conclude("falls", ["b"], measured).outcome == "reproduced"


@pytest.mark.parametrize(
    "test", ["rises", "falls", "level", "levels_off", "lead_shrinks", "lead_grows", "varies_least"]
)
def test_changes_need_an_axis(test: Test) -> None:
    conclusion = conclude(test, ["a"], table({"a": [1.0], "b": [2.0]}), by=1.0)
    assert (conclusion.outcome, conclusion.reason) == ("not testable", "the axis has one value")


def test_a_claim_about_what_is_not_measured_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"does not measure.*Did you mean 'seconds'"):
        judge_claim(Claim(says="", quantity="second", test="falls"), table(A))


def test_where_runs_are_too_short_for_a_quantity_a_claim_about_it_is_not_testable() -> None:
    early = Claim(says="", quantity="accuracy_early", test="falls")
    conclusion = judge_claim(early, table(A), reason="it only shows that it runs")
    assert (conclusion.outcome, conclusion.reason) == ("not testable", "it only shows that it runs")
    with pytest.raises(ConfigError, match="does not measure"):
        judge_claim(early, table(A))
    with pytest.raises(ConfigError, match="does not measure"):
        judge_claim(Claim(says="", quantity="earliness", test="falls"), table(A), reason="it only shows that it runs")


@pytest.mark.parametrize(("test", "methods"), [("near", ["a", "b"]), ("level", ["a"])])
def test_how_near_has_to_be_said(test: Test, methods: list[str]) -> None:
    with pytest.raises(ValueError, match="by how much"):
        Claim(says="", quantity="seconds", test=test, methods=methods)


def test_a_claim_is_judged_for_another_method_in_its_place_too() -> None:
    claims = [Claim(says="", quantity="seconds", test="least", methods=["a", "c"])]
    own, other = judge_claims(claims, table(A), {"a": "b"})
    assert (own.instead, own.outcome) == ("", "reproduced")
    assert (other.instead, other.outcome) == ("b", "contradicted")
    claims = [Claim(says="", quantity="seconds", test="least", methods=["a", "b"])]
    assert len(list(judge_claims(claims, table(A), {"a": "b"}))) == 1  # b is compared with a already


def test_a_number_that_a_paper_does_not_print_is_none_as_toml_has_no_null() -> None:
    printed = Printed(where="Table 1", quantity="accuracy", numbers={"a": [92.0, float("nan"), 57.0], "b": 3.0})
    assert printed.numbers == {"a": [92.0, None, 57.0], "b": 3.0}


def test_numbers_of_the_paper_stand_at_the_values_that_they_are_of() -> None:
    printed = {"where": "Table 1", "quantity": "accuracy", "over": "", "at": [10, 20, 50]}
    printed["numbers"] = {"ours": [72.2, 80.1, 86.9], "left out": [1.0, 2.0, 3.0]}
    numbers = {"accuracy": {"ours": [[0.7, 0.8, 0.9]]}}
    made = {"x": [10.0, 50.0, 70.0], "axis": "clients", "methods": ["ours"], "numbers": numbers, "claims": []}
    ((_, header, rows),) = tables({**made, "paper": [printed]})
    assert header == ["clients", "10", "50", "70"]
    assert rows[1:] == [["ours, Table 1", "72.2", "86.9", "-"]]  # not 80.1 at 50, and nobody who took no part


def test_bounds_are_those_of_the_test_set_late() -> None:
    rows = [{"round": n, "test_accuracy": 0.5, "test_bound_disagreement_jsd": float(n)} for n in range(9)]
    quantities = measure_run(rows)
    assert quantities["bounds_jsd"] == 7.5
    assert "bounds_zero_one" not in quantities
