"""Paired differences over seeds, judged together: interval, p-value and verdict by one correction.

All comparisons of a table are one family. For each the paired t test over seeds asks whether there is a difference,
two one-sided tests whether it is within a margin, and power says what these seeds could have seen.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from fedreach.arrays import Floats
from fedreach.evidence.corrections import LEVEL, MaxT, holm, holm_levels, max_t
from fedreach.evidence.plan import Correction
from fedreach.evidence.power import POWER, seeds_to_equate, seeds_to_find, shift_found
from fedreach.evidence.spread import spread, t_quantile, t_tail

Verdict = Literal["better", "worse", "equivalent", "not decided", ""]


@dataclass(frozen=True)
class Judgement:
    """A mean difference over seeds, and what can be said of it. What cannot be said is None, the reason in `note`."""

    count: int  # pairs of runs with the same seed and clients
    mean: float | None
    low: float | None = None  # interval at the level at which the correction tests this difference
    high: float | None = None
    p: float | None = None  # two-sided, of the paired t test, not corrected
    p_corrected: float | None = None  # below 0.05 exactly where the interval excludes 0
    p_equivalent: float | None = None  # of the two one-sided tests that it is within the margin, corrected by Holm
    detectable: float | None = None  # the least true difference that is found with power 0.8
    seeds_needed: int | None = None  # about, where not decided: to find this difference, or to show the equivalence
    verdict: Verdict = ""  # empty where nothing could be tested
    note: str = ""

    @property
    def significant(self) -> bool:
        """Whether the difference is none by chance alone, after the correction."""
        return self.p_corrected is not None and self.p_corrected < LEVEL


@dataclass(frozen=True)
class _Test:
    """A paired t test: t = sqrt(s) mean / sd with `freedom` degrees of freedom."""

    count: int
    mean: float
    sd: float
    freedom: int

    @property
    def error(self) -> float:
        return self.sd / math.sqrt(self.count)

    @property
    def p(self) -> float:
        return 2 * t_tail(abs(self.mean) / self.error, self.freedom)

    def p_equivalent(self, margin: float) -> float:
        return t_tail((margin - abs(self.mean)) / self.error, self.freedom)


def judge(
    differences: Sequence[Mapping[int, float]],
    *,
    correction: Correction = "holm",
    margin: float | None = None,
    pilot: Collection[int] | None = None,
    lower_is_better: bool = False,
) -> tuple[Judgement, ...]:
    """Return what the seeds say of each of several differences.

    - Interval and corrected p-value are two sides of one test: with Holm at the level of its step, with max-t by the
      largest |t| of all.
    - *better* and *worse*: p' < 0.05. Else *equivalent*: both one-sided tests at the margin, corrected, have p < 0.05.
      Else *not decided*, with the number of seeds that would decide if the true difference were the one seen.
    - A difference of `detectable` or more is found in four of five studies, at the level corrected for all comparisons.
    - Where the number of seeds followed from a pilot's spread (Stein), the standard deviation is the pilot's: then t
      has Student's distribution exactly, as the number depends on nothing else.

    Args:
        differences: Each by seed: one method's number minus another's of the same seed and clients.
        correction: ``"holm"`` or ``"max_t"``.
        margin: In the units of the differences; None: equivalence is not asked.
        pilot: Seeds of the pilot, where there was one.
        lower_is_better: As with a loss.

    References:
        Holm (1979); Schuirmann (1987), two one-sided tests, J. Pharmacokinet. Biopharm. 15, 657-680; Stein (1945).

    Example:
        >>> found, unsure = judge([{0: 0.05, 1: 0.06, 2: 0.07}, {0: -0.01, 1: 0.02, 2: 0.01}], margin=0.02)
        >>> found.verdict, round(found.p_corrected, 3), unsure.verdict, unsure.seeds_needed
        ('better', 0.018, 'not decided', 13)
    """
    tests = [_test(each, pilot) for each in differences]
    held = [j for j, test in enumerate(tests) if isinstance(test, _Test)]
    some = [test for test in tests if isinstance(test, _Test)]
    p_values = [test.p for test in some]
    together = _together([differences[j] for j in held], some, pilot) if correction == "max_t" and some else None
    if together is None:
        corrected, levels = holm(p_values), holm_levels(p_values)
        criticals = [t_quantile(1 - level / 2, test.freedom) for level, test in zip(levels, some, strict=True)]
        planned = [t_quantile(1 - LEVEL / 2 / len(some), test.freedom) for test in some]
    else:
        corrected = [together.corrected(test.mean / test.error, test.p) for test in some]
        criticals = planned = [together.critical] * len(some)
    equal = None if margin is None else holm([test.p_equivalent(margin) for test in some])
    judged: dict[int, Judgement] = {}
    for i, (j, test) in enumerate(zip(held, some, strict=True)):
        found = Judgement(
            test.count,
            test.mean,
            test.mean - criticals[i] * test.error,
            test.mean + criticals[i] * test.error,
            test.p,
            corrected[i],
            None if equal is None else equal[i],
            test.error * _shift(planned[i], test.freedom, by_stein=pilot is not None),
        )
        judged[j] = _decided(found, test, margin, LEVEL / len(some), pilot, lower_is_better)
    return tuple(judged[j] if isinstance(test, _Test) else test for j, test in enumerate(tests))


def paired(differences: ArrayLike) -> Judgement:
    """Judge one difference, its values in the order of seeds, beside no other.

    Example:
        >>> found = paired([0.01, 0.02, 0.03])
        >>> round(found.mean, 3), round(found.low, 4), round(found.p, 3)
        (0.02, -0.0048, 0.074)
    """
    return judge([dict(enumerate(np.asarray(differences, np.float64).tolist()))])[0]


def _test(differences: Mapping[int, float], pilot: Collection[int] | None) -> _Test | Judgement:
    """Return the paired t test, or why there is none."""
    values = np.array(list(differences.values()), np.float64)
    over = spread(values)
    known = over if pilot is None else spread([differences[seed] for seed in pilot if seed in differences])
    if over.mean is None or known.sd is None:
        note = "one seed: no interval, no test" if over.count == 1 else over.note or "no pilot"
        return Judgement(over.count, over.mean, note=note)
    # Equal differences leave a sd of rounding errors only, and t would be their reciprocal.
    if known.sd <= 1e-12 * max(1.0, float(np.abs(values).max())):
        return Judgement(over.count, over.mean, note="all differences are equal: no t test")
    return _Test(over.count, over.mean, known.sd, known.count - 1)


def _together(
    differences: Sequence[Mapping[int, float]], tests: Sequence[_Test], pilot: Collection[int] | None
) -> MaxT | None:
    """Return the distribution of max |t|, from the seeds that all have; None where there are too few of them."""
    shared = set.intersection(*(set(each) for each in differences)) & (
        set(pilot) if pilot is not None else {*differences[0]}
    )
    if len(shared) < 2:
        return None
    table: Floats = np.array([[each[seed] for each in differences] for seed in sorted(shared)])
    return max_t(table, min(test.freedom for test in tests))


def _shift(critical: float, freedom: int, *, by_stein: bool) -> float:
    return critical + t_quantile(POWER, freedom) if by_stein else shift_found(critical, freedom)


def _decided(
    found: Judgement,
    test: _Test,
    margin: float | None,
    level: float,
    pilot: Collection[int] | None,
    lower_is_better: bool,
) -> Judgement:
    if found.significant:
        return replace(found, verdict="better" if (test.mean > 0) is not lower_is_better else "worse")
    if found.p_equivalent is not None and found.p_equivalent < LEVEL:
        return replace(found, verdict="equivalent")
    freedom = None if pilot is None else test.freedom
    found_by = seeds_to_find(test.mean, test.sd, level, freedom)
    equated_by = None if margin is None else seeds_to_equate(test.mean, margin, test.sd, level, freedom)
    known = [number for number in (found_by, equated_by) if number is not None]
    # Fewer than there are would be said where a p-value lies just above the level: one more is the least to ask for.
    return replace(found, verdict="not decided", seeds_needed=max(min(known), test.count + 1) if known else None)
