"""The statistics keep their promises in studies with a known truth, and what would break them is seen."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import coverage
from fedreach.evaluation import statistics
from fedreach.evaluation.statistics import LEVEL, PairedTest, run_paired_tests

STUDIES = 250
Family = Callable[[coverage.Studies], Iterable[coverage.Line]]


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times fewer draws of the largest t: its critical value is as right, and less exact by a hundredth."""
    monkeypatch.setattr(statistics, "DRAWS", 999)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("family", coverage.FAMILIES)
def test_what_is_promised_is_kept(family: Family) -> None:
    lines = list(family(coverage.Studies(STUDIES)))
    assert len(lines) >= 3
    assert [line for line in lines if not line.kept] == []


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
    ],
)
def test_a_planted_fault_breaks_a_promise(fault: coverage.Compare, family: Family) -> None:
    assert [line.what for line in family(coverage.Studies(STUDIES, fault)) if not line.kept] != []


def test_looking_after_every_seed_finds_what_is_not_there() -> None:
    assert coverage.peeking(200) > 2 * LEVEL
