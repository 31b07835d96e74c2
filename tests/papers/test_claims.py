"""The conclusion about a claim is what paired seeds support: differences by chance are seldom a conclusion."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedreach._util.errors import ConfigError
from papers.claims import Claim, Conclusion, Test, correct_outcomes, judge_claim, judge_claims
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
    ("falls", [], {}, "equivalent"),  # c stays
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
    assert (conclusion.outcome, conclusion.what) == ("equivalent", "ours minus close at 1")  # the weakest is told
    assert conclude("most", ["ours", "far"], table(rows, sd=0.05)).outcome == "reproduced"


@pytest.mark.parametrize("test", ["least", "most", "ordered"])
def test_equals_count_for_orders_and_for_changes_they_do_not(test: Test) -> None:
    """`At least as good` is not contradicted by the very same run; `rises` is not shown by one that stays."""
    rows = {"a": [1.0, 1.0, 1.0], "b": [1.0, 1.0, 1.0]}
    assert conclude(test, ["a", "b"], table(rows, sd=0.0)).outcome == "reproduced"
    for change in ("rises", "falls", "levels_off"):
        assert conclude(change, ["a"], table(rows, sd=0.0)).outcome == "equivalent"
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
    assert len(judge_claims(claims, table(A), {"a": "b"})) == 1  # b is compared with a already


# ------------------------------------------------------------------- equivalent or inconclusive, and several claims


def accuracies(differences: list[float], *, sd: float, seeds: int = 10) -> Measured:
    """Return methods a and b whose accuracies differ by this much at each value, with noise of exactly this sd."""
    noise = np.resize([1.0, -1.0], seeds)
    noise *= sd / noise.std(ddof=1)
    a = 0.5 + np.array(differences) + noise[:, None]
    numbers = {"accuracy": np.stack([a, np.full_like(a, 0.5)])}
    return Measured(("a", "b"), tuple(range(seeds)), "x", tuple(map(float, range(len(differences)))), numbers)


@pytest.mark.parametrize(
    ("differences", "sd", "outcome"),
    [
        ([0.0], 0.020, "equivalent"),  # means of two of +-s: -s, 0, s; s = 0.949 * 0.02 is below 0.02
        ([0.0], 0.022, "inconclusive"),  # 0.0209
        ([0.005], 0.030, "inconclusive"),  # 0.0224 at most
        ([0.1, 0.0], 0.020, "equivalent"),  # only what is not shown has to be small
        ([0.1, 0.001], 0.060, "inconclusive"),
        ([0.0, 0.015], 0.025, "inconclusive"),
        ([-0.003], 0.002, "contradicted"),  # however small
        ([0.003], 0.002, "reproduced"),
    ],
)
def test_equivalent_is_what_two_one_sided_tests_show_of_all_that_is_open(
    differences: list[float], sd: float, outcome: str
) -> None:
    claim = Claim(says="", quantity="accuracy", test="most", methods=["a", "b"])
    assert judge_claim(claim, accuracies(differences, sd=sd)).outcome == outcome


@pytest.mark.parametrize(("sd", "outcome"), [(0.27, "equivalent"), (0.29, "inconclusive")])
def test_the_margin_of_other_quantities_is_a_share_of_the_largest(sd: float, outcome: str) -> None:
    noise = np.resize([sd, -sd], 10)[:, None] * 0.9**0.5
    numbers = {"seconds": np.stack([5 + noise, np.full((10, 1), 5.0)])}  # margin 5% of 5.26: 0.263; 0.949 * sd
    measured = Measured(("a", "b"), tuple(range(10)), "", (0.0,), numbers)
    assert conclude("most", ["a", "b"], measured).outcome == outcome


def test_what_is_claimed_to_be_near_has_a_margin_of_its_own_and_is_never_equivalent() -> None:
    claim = Claim(says="", quantity="accuracy", test="near", methods=["a", "b"], by=0.001)
    assert judge_claim(claim, accuracies([0.0], sd=0.004)).outcome == "inconclusive"


def test_the_p_of_a_claim_is_that_of_its_weakest_difference_or_of_its_clearest_contradiction() -> None:
    measured = table({"a": [1.0], "b": [0.0], "c": [0.4]}, sd=0.5)
    a, b, c = measured.numbers["seconds"][:, :, 0]
    p = [stats.ttest_1samp(other, 0).pvalue for other in (a - b, a - c)]
    assert conclude("most", ["a"], measured).p == pytest.approx(max(p))
    least = conclude("least", ["a"], measured)  # Holm: twice the smaller one
    assert least.p == pytest.approx(2 * min(p))
    assert conclude("most", ["a", "b"], table({"a": [2.0], "b": [1.0]}, sd=0.0)).p == 2 * 0.5**8  # the sign test


def test_holm_across_claims_leaves_what_a_plain_loop_leaves() -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        p = (rng.random(6) ** 3).tolist()
        outcomes = correct_outcomes(["reproduced"] * 6, p, ["inconclusive"] * 6)
        kept = set()
        for rank, place in enumerate(np.argsort(p)):
            if p[place] * (6 - rank) >= 0.05:
                break
            kept.add(int(place))
        assert outcomes == ["reproduced" if j in kept else "inconclusive" for j in range(6)]
    assert correct_outcomes(["equivalent", "inconclusive"], [0.9, 0.04], ["equivalent"] * 2)[1] == "inconclusive"


def test_the_chance_to_be_reproduced_again_is_that_of_new_seeds_like_these() -> None:
    """Of a normal difference with t = 3, about that of a noncentral t: a bootstrap is near, and a coin is not."""
    measured = accuracies([0.1], sd=0.1, seeds=10)
    values = 0.1 + 0.1 * stats.norm.ppf((np.arange(10) + 0.5) / 10)
    measured.numbers["accuracy"][0, :, 0] = 0.5 + values
    claim = Claim(says="", quantity="accuracy", test="most", methods=["a", "b"])
    expected = stats.nct.sf(stats.t.ppf(0.975, 9), 9, 10**0.5 * values.mean() / values.std(ddof=1))
    again = judge_claim(claim, measured).again
    assert again == pytest.approx(expected, abs=0.08)
    both = claim.model_copy(update={"test": "ordered", "methods": ["b", "a"]})
    assert judge_claim(both, measured).again == again
    assert judge_claim(both.model_copy(update={"methods": ["a", "b"]}), measured).again < 0.01


def test_a_claim_counts_once() -> None:
    def claim(test: Test, methods: list[str], **more: Any) -> Claim:
        return Claim(says="", quantity="seconds", test=test, methods=methods, **more)

    rows = {"a": [1.0], "b": [2.0], "c": [3.0], "new": [4.0]}
    claims = [
        claim("least", ["a", "b"]),  # a part of the third
        claim("most", ["c", "b"]),
        claim("least", ["a", "b", "c"]),
        claim("least", ["b", "c"]),  # the second one, in the other direction
        claim("least", ["a", "b"], control=True),  # questions are counted apart
        claim("most", ["a", "c"]),  # a part of the third, and contradicted
        claim("most", ["b", "a"], at="last"),  # b minus a once more
    ]
    judged = judge_claims(claims, table(rows), {"a": "new"})
    own = [conclusion.repeats for conclusion in judged if not conclusion.instead]
    assert own == [True, False, False, True, False, True, True]
    assert all(conclusion.repeats for conclusion in judged if conclusion.instead and not conclusion.claim.control)


def test_of_two_claims_that_one_difference_decides_the_first_counts() -> None:
    """`ours beats all` and `theirs beats all` may both rest on ours minus theirs."""
    rows = {"ours": [2.0], "theirs": [3.0], "c": [0.0], "d": [0.5]}
    claims = [
        Claim(says="", quantity="seconds", test="most", methods=["ours", "theirs", "c"]),
        Claim(says="", quantity="seconds", test="most", methods=["theirs", "ours", "d"]),
    ]
    first, second = judge_claims(claims, table(rows, sd=0.1), {})
    assert (first.outcome, second.outcome) == ("contradicted", "reproduced")
    assert (first.repeats, second.repeats) == (False, True)


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
