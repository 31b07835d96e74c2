"""Made-up curves with answers that can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedreach.evaluation.statistics import run_paired_tests
from fedreach.report.analysis import MethodSummary, When, rows_of
from fedreach.report.findings import find
from fedreach.report.numbers import RunSet
from fedreach.report.overview import Analysis, analyse
from fedreach.report.read import read, read_run

from .made_up import compared, federation, write_comparison, write_curve

UNSEEN = {  # method -> seed -> accuracy on unseen clients in rounds 0, 1, 2
    "base": ([0.1, 0.5, 0.50], [0.1, 0.5, 0.52], [0.1, 0.6, 0.57]),
    "other": ([0.1, 0.6, 0.55], [0.1, 0.7, 0.59], [0.1, 0.7, 0.60]),
}


@pytest.fixture
def small(tmp_path: Path) -> RunSet:
    runs: dict[str, dict[str, str]] = {}
    for method, curves in UNSEEN.items():
        runs[method] = {str(seed): f"runs/{method}/seed-{seed}" for seed in range(3)}
        for seed, unseen in enumerate(curves):
            columns = {
                "unseen_accuracy": unseen,
                "participant_accuracy": [0.2, 0.7, 0.8],
                "participation_gap": [0.2 - unseen[0], 0.7 - unseen[1], 0.8 - unseen[2]],
                "participant_loss": [2.0, 0.5, 0.6],
                "bytes_total": [0, 1_500_000, 3_000_000],
            }
            write_curve(tmp_path / runs[method][str(seed)], method, seed, columns, best_round=1)
    compared(tmp_path, runs, target=0.58)
    return read([tmp_path])


def of(comparison: RunSet, method: str, when: When = "last") -> MethodSummary:
    return next(row for row in analyse(comparison).rows(when) if row.method == method)


def test_the_last_round_is_the_mean_over_seeds(small: RunSet) -> None:
    row = of(small, "base")
    assert row.at["unseen"].mean == pytest.approx((0.50 + 0.52 + 0.57) / 3)
    assert row.at["gap"].mean == pytest.approx(0.8 - row.at["unseen"].mean)
    assert (row.at["round"].mean, row.at["megabytes"].mean) == (2, 3.0)


def test_the_best_round_is_the_one_with_the_lowest_held_out_loss(small: RunSet) -> None:
    # Round 1 has the lowest participant_loss, though participants' accuracy is highest in round 2.
    row = of(small, "other", when="best")
    assert (row.at["round"].mean, row.at["megabytes"].mean) == (1, 1.5)
    assert row.at["unseen"].mean == pytest.approx(2.0 / 3)


def test_where_no_best_round_is_on_record_held_out_loss_says_it_and_never_the_test_set(tmp_path: Path) -> None:
    columns = {
        "participant_accuracy": [0.2, 0.7, 0.8, 0.9],
        "participant_loss": [2.0, 0.5, 0.6, 0.7],
        "test_accuracy": [0.1, 0.3, 0.9, 0.2],
        "unseen_accuracy": [0.1, 0.3, 0.2, 0.9],
    }
    run = read_run(write_curve(tmp_path / "run", "m", 0, columns))
    assert run.best_round is None
    assert rows_of(run, "best").tolist() == [1]


def test_differences_are_taken_seed_by_seed(small: RunSet) -> None:
    differences = {0: 0.55 - 0.50, 1: 0.59 - 0.52, 2: 0.60 - 0.57}
    assert (of(small, "other").difference,) == run_paired_tests([differences], margin=0.02)
    assert of(small, "base").difference.note == "the baseline"


def test_one_comparison_needs_no_correction(small: RunSet) -> None:
    difference = of(small, "other").difference
    assert difference.p_corrected == difference.p


def test_the_target_counts_the_seeds_that_reached_it(small: RunSet) -> None:
    # base: only seed 2, in round 1 (its later fall does not matter); other: all seeds in round 1.
    base, other = of(small, "base"), of(small, "other")
    assert (base.reached, base.to_target["round"].mean, base.to_target["megabytes"].mean) == (1, 1, 1.5)
    assert (other.reached, other.to_target["round"].mean) == (3, 1)


def test_runs_on_other_clients_are_no_pair(tmp_path: Path) -> None:
    columns = {"participant_accuracy": [0.1, 0.5]}
    one = write_curve(tmp_path / "one", "one", 0, columns, held=federation(20, 0, seed=1))
    two = write_curve(tmp_path / "two", "two", 0, columns, held=federation(20, 0, seed=2))
    difference = of(read([one, two]), "two").difference
    assert (difference.mean, difference.note) == (None, "not the same clients as the baseline")


def test_a_failed_run_is_planned_but_not_counted(comparison: RunSet) -> None:
    row = of(comparison, "minimax_gap")
    assert (row.seeds, row.seeds_planned, row.difference.count) == (4, 5, 4)


def test_the_p_of_every_method_is_corrected_for_all(comparison: RunSet) -> None:
    rows = [row for row in analyse(comparison).last if not row.is_baseline]
    raw = sorted(row.difference.p or 0 for row in rows)
    assert min(row.difference.p_corrected or 0 for row in rows) == pytest.approx(4 * raw[0])


def planned(comparison: RunSet, **plan: Any) -> Analysis:
    return analyse(replace(comparison, plan=replace(comparison.plan, **plan)))


def test_all_pairs_are_one_family_of_which_the_table_shows_those_to_the_baseline(comparison: RunSet) -> None:
    analysis = planned(comparison, contrasts="all")
    pairs = {(each.first, each.second): each.judged for each in analysis.contrasts["last"]}
    assert len(pairs) == 10
    for row in analysis.last[1:]:
        assert row.difference == pairs[row.method, comparison.baseline]
    assert min(each.p_corrected for each in pairs.values()) == pytest.approx(
        10 * min(each.p for each in pairs.values())
    )


def test_a_pair_and_its_mirror_are_judged_alike(comparison: RunSet) -> None:
    one, other = comparison.methods[1:3]
    (ahead,) = planned(comparison, contrasts=[[one, other]]).contrasts["last"]
    (behind,) = planned(comparison, contrasts=[[other, one]]).contrasts["last"]
    assert (ahead.judged.mean, ahead.judged.low) == pytest.approx((-behind.judged.mean, -behind.judged.high))
    assert {ahead.judged.conclusion, behind.judged.conclusion} in (
        {"better", "worse"},
        {"equivalent"},
        {"inconclusive"},
    )


def test_a_contrast_that_is_not_declared_is_not_told(comparison: RunSet) -> None:
    one, other = comparison.methods[1:3]
    row = of(planned(comparison, contrasts=[[one, other]]).comparison, one)
    assert (row.difference.mean, row.difference.note) == (None, "not a planned comparison")


def test_means_over_the_last_rounds_are_of_accuracies_and_not_of_sums(small: RunSet) -> None:
    row = next(row for row in planned(small, last_rounds=2).last if row.method == "base")
    assert row.at["unseen"].mean == pytest.approx((0.50 + 0.51 + 0.585) / 3)
    assert row.at["gap"].mean == pytest.approx(0.75 - row.at["unseen"].mean)
    assert (row.at["round"].mean, row.at["megabytes"].mean) == (2, 3.0)
    assert row.difference.mean is None
    other = next(row for row in planned(small, last_rounds=2).last if row.method == "other")
    assert other.difference.mean == pytest.approx((0.575 + 0.645 + 0.65) / 3 - (0.50 + 0.51 + 0.585) / 3)


def test_seeds_added_after_looking_leave_numbers_and_no_conclusion(comparison: RunSet) -> None:
    before, after = analyse(comparison), analyse(replace(comparison, looks=(3,)))
    for one, other in zip(before.last[1:], after.last[1:], strict=True):
        assert (one.difference.mean, one.difference.p_corrected) == (
            other.difference.mean,
            other.difference.p_corrected,
        )
        assert other.difference.conclusion == "inconclusive"
        assert other.difference.seeds_needed is None
    assert any("No conclusion: " in text and "(3, then 5)" in text for text in find(after).warnings)


def test_a_target_never_reached_has_no_rounds(tmp_path: Path) -> None:
    row = of(read([write_comparison(tmp_path, ["a"], [0, 1], rounds=3, target=0.99)]), "a")
    assert (row.reached, row.to_target["round"].mean) == (0, None)
