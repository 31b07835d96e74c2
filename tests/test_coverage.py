"""The statistics keep their promises in studies with a known truth, and what would break them is seen."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import coverage
import coverage_shapes
from fedreach.evaluation import statistics
from fedreach.evaluation.statistics import LEVEL, PairedTest, run_paired_tests

STUDIES = 250
NUMBER = 6_000
ERROR = math.sqrt(coverage_shapes.MOST_FALSE * (1 - coverage_shapes.MOST_FALSE) / NUMBER)
Family = Callable[[coverage.Studies], Iterable[coverage.Line]]


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times fewer draws of the largest t: its critical value is as right, and less exact by a hundredth."""
    monkeypatch.setattr(statistics, "DRAWS", 999)


def number_of(family: Family) -> int:
    """Return how many comparisons of a family are made; shapes have 35 cells."""
    return 60 if family is coverage.shapes else STUDIES


@pytest.mark.sampled(7)
@pytest.mark.parametrize("family", coverage.FAMILIES)
def test_what_is_promised_is_kept(family: Family) -> None:
    lines = list(family(coverage.Studies(number_of(family))))
    assert len(lines) >= 3
    assert [line for line in lines if not line.kept] == []


CELLS = [(name, seeds) for name in coverage_shapes.SHAPES for seeds in coverage_shapes.SEEDS]


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("name", "seeds"), CELLS)
def test_few_conclusions_are_false_whatever_the_shape_of_the_differences(name: str, seeds: int) -> None:
    rates = coverage_shapes.rates(name, seeds, NUMBER)
    assert rates.missed <= coverage_shapes.MOST_FALSE + 3 * ERROR
    assert rates.equivalent <= 0.075 + 3 * ERROR


@pytest.mark.parametrize("seeds", [5, 10, 20])
def test_the_t_test_of_the_mean_would_be_noticed(seeds: int) -> None:
    """A collapse of one run in twelve by 8 sd makes 14, 20 and 15% of its conclusions false."""
    rates = coverage_shapes.rates("one in 12 lower by 8 sd", seeds, NUMBER, "t")
    assert rates.missed > 0.12
    assert rates.equivalent > 0.14


@pytest.mark.parametrize("seeds", coverage_shapes.SEEDS)
def test_the_simulation_has_the_intervals_of_the_library(seeds: int) -> None:
    rng = np.random.default_rng(seeds)
    values = rng.standard_t(3, (5, seeds))
    for test in ("ranks", "t"):
        low, high = coverage_shapes.intervals(values, LEVEL, test)
        judged = [run_paired_tests([dict(enumerate(row.tolist()))], test=test)[0] for row in values]
        assert [each.low for each in judged] == pytest.approx(low)
        assert [each.high for each in judged] == pytest.approx(high)


def test_a_collapse_can_be_missed_so_no_test_of_the_mean_is_both_valid_and_powerful() -> None:
    """With power B for the other runs, the mean of which is 0 with the collapse has false findings B (11/12)^s."""
    for seeds, most in ((3, 0.08), (5, 0.1), (10, 0.15), (20, 0.35)):
        assert coverage_shapes.MOST_FALSE / coverage_shapes.unseen(seeds) < most  # the largest power with 6%


def unpaired(runs: Any, pairs: coverage.Pairs, **how: Any) -> Sequence[PairedTest]:
    """The second method's runs are those of other seeds."""
    return run_paired_tests([dict(enumerate(runs[:, a] - np.roll(runs[:, b], 1))) for a, b in pairs], **how)


def uncorrected(runs: Any, pairs: coverage.Pairs, **how: Any) -> Sequence[PairedTest]:
    """Each difference is judged as if it were the only one."""
    return [coverage.compared(runs, [pair], **how)[0] for pair in pairs]


def one_sided(runs: Any, pairs: coverage.Pairs, **how: Any) -> Sequence[PairedTest]:
    """Half the p-value is held against the level."""
    found = coverage.compared(runs, pairs, **how)
    return [replace(j, conclusion="better") if (j.p_corrected or 0) / 2 < LEVEL else j for j in found]


def counted_twice(runs: Any, pairs: coverage.Pairs, **how: Any) -> Sequence[PairedTest]:
    """Every seed stands for two."""
    return coverage.compared(np.repeat(runs, 2, axis=0), pairs, **how)


def wide_margin(runs: Any, pairs: coverage.Pairs, **how: Any) -> Sequence[PairedTest]:
    """Equivalence is held against more than the margin that was said."""
    return coverage.compared(runs, pairs, **how | {"margin": 1.3 * how["margin"]})


def mean_of_all(runs: Any, pairs: coverage.Pairs, **how: Any) -> Sequence[PairedTest]:
    """The mean is tested by t, and its interval is held against the typical difference."""
    return coverage.compared(runs, pairs, **how | {"test": "t"})


def pilot_alone(runs: Any, pairs: coverage.Pairs, **how: Any) -> Sequence[PairedTest]:
    """The seeds after the pilot have no say."""
    return coverage.compared(runs[: len(how["pilot"])], pairs)


@pytest.mark.parametrize(
    ("fault", "family"),
    [
        (unpaired, coverage.one),
        (uncorrected, coverage.many_by_holm),
        (uncorrected, coverage.many_by_max_t),
        (one_sided, coverage.one),
        (counted_twice, coverage.one),
        (wide_margin, coverage.equivalence),
        (pilot_alone, coverage.stein),
        (mean_of_all, coverage.shapes),
    ],
)
def test_a_planted_fault_breaks_a_promise(fault: coverage.Compare, family: Family) -> None:
    assert [line.what for line in family(coverage.Studies(number_of(family), fault)) if not line.kept] != []


def test_looking_after_every_seed_finds_what_is_not_there() -> None:
    assert coverage.peeking(200) > 2 * LEVEL
