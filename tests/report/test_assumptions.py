"""A conclusion is printed with what it is about or assumes, and with a warning if one seed or a few seeds make it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedreach.evaluation.scores import ACCURACY
from fedreach.evaluation.statistics import AnalysisPlan, PairedTest, SeedTest, run_paired_tests
from fedreach.report import tables
from fedreach.report.analysis import Difference
from fedreach.report.findings import _fragile_sentences

BETTER = [0.9, 1.3, 0.4, 1.1, 0.7, 1.6, 0.8, 1.2, 0.5, 1.0, 1.4]
COLLAPSED = [*BETTER, *BETTER, -19.0]


def judged(values: list[float], test: SeedTest = "ranks") -> PairedTest:
    return run_paired_tests([dict(enumerate(values, start=1))], test=test, margin=0.02)[0]


def comparison(test: SeedTest = "ranks") -> Any:
    plan = AnalysisPlan(test=test)
    return SimpleNamespace(plan=plan, score=ACCURACY, baseline="base", margin=0.02, looks=(), pilot=None)


def fragile(*tests: PairedTest) -> list[str]:
    contrasts = tuple(Difference(f"m{j}", "base", test) for j, test in enumerate(tests))
    analysis: Any = SimpleNamespace(comparison=comparison(), contrasts={"last": contrasts})
    return [*_fragile_sentences(analysis)]


@pytest.mark.parametrize(
    ("values", "test", "words"),
    [
        (COLLAPSED, "ranks", "signed-rank test over seeds, about the typical difference"),
        (BETTER[:5], "ranks", "paired t-test over seeds, assumes no strong skew"),
        (BETTER, "t", "paired t-test over seeds, assumes normal differences"),
    ],
)
def test_a_conclusion_is_printed_with_its_test_and_its_assumption(
    values: list[float], test: SeedTest, words: str
) -> None:
    family = [judged(values, test)]
    assert tables.star_sentence(comparison(test), family) == f"* p < 0.05 ({words})."
    assert f"({words})" in tables.tests_sentence(comparison(test), family)


@pytest.mark.parametrize(("seeds", "share"), [(5, 45), (20, 14)])
def test_it_is_said_how_frequent_a_collapse_can_be_that_the_seeds_miss(seeds: int, share: int) -> None:
    text = tables.tests_sentence(comparison(), [judged(list(np.linspace(0.1, 1.0, seeds)))])
    assert f"{seeds} seeds can miss a collapse that occurs in {share}% of runs." in text
    assert (1 - share / 100) ** seeds == pytest.approx(0.05, abs=0.01)


def test_a_conclusion_that_one_seed_decides_is_named_with_the_seed() -> None:
    three = judged([0.05, 0.06, 0.09])
    assert three.deciding == (1, 2, 3)
    (sentence,) = fragile(judged(BETTER), three)
    assert sentence == (
        "One seed decides the conclusion on m1 (any of 3 seeds): without it, the result is inconclusive."
    )
    (sentence,) = fragile(replace(three, deciding=(7,)))
    assert "m0 (seed 7)" in sentence
    assert fragile(judged(BETTER)) == []


def test_a_collapse_that_moves_the_mean_is_reported() -> None:
    (sentence,) = fragile(judged(COLLAPSED))
    assert sentence.startswith("A few seeds move the mean difference")
    assert sentence.endswith("m0 (mean +12.2, typical +95.0).")
