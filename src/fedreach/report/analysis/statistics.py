"""Spread over seeds, paired differences to a baseline, and Holm's correction.

Intervals are Student t intervals over seeds at 95 %. What cannot be said is None, with the reason in `note`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

LEVEL = 0.95


@dataclass(frozen=True)
class Spread:
    """Mean and spread of one number over seeds."""

    count: int  # seeds with a number
    mean: float | None
    sd: float | None  # with n - 1 below the sum
    low: float | None  # 95 % t interval of the mean
    high: float | None
    note: str = ""


@dataclass(frozen=True)
class Paired:
    """Mean difference over seeds, its 95 % t interval and the two-sided p-value of the paired t test."""

    count: int
    mean: float | None
    low: float | None
    high: float | None
    p: float | None
    note: str = ""


def spread(values: ArrayLike) -> Spread:
    """Return mean, standard deviation and t interval of one value per seed.

    mean +- q sd / sqrt(s), with q the 0.975 quantile of Student's t with s - 1 degrees of freedom. With a nan among
    them there is no mean: leaving that seed out would flatter the method.

    Example:
        >>> spread([0.5, 1.0, 1.5])
        Spread(count=3, mean=1.0, sd=0.5, low=-0.24..., high=2.24..., note='')
        >>> spread([0.70]).note
        'one seed: no spread'
    """
    array = np.asarray(values, dtype=np.float64)
    count = int(np.isfinite(array).sum())
    if count == 0:
        return Spread(0, None, None, None, None, "not measured")
    if count < len(array):
        return Spread(count, None, None, None, None, f"{len(array) - count} of {len(array)} seeds have no number")
    mean = float(array.mean())
    if count == 1:
        return Spread(1, mean, None, None, None, "one seed: no spread")
    from scipy import stats  # takes half a second to load: only where there is something to work out

    sd = float(array.std(ddof=1))
    reach = float(stats.t.ppf(0.5 + LEVEL / 2, count - 1)) * sd / math.sqrt(count)
    return Spread(count, mean, sd, mean - reach, mean + reach)


def paired(differences: ArrayLike) -> Paired:
    """Return the paired t test of differences, method minus baseline with the same seed, against 0.

    t = mean / (sd / sqrt(s)); p = P(|T| > |t|) with s - 1 degrees of freedom.

    Example:
        >>> paired([0.01, 0.02, 0.03])
        Paired(count=3, mean=0.02, low=-0.004..., high=0.044..., p=0.074..., note='')
        >>> paired([0.02, 0.02]).note
        'all differences are equal: no t test'
    """
    array = np.asarray(differences, dtype=np.float64)
    over = spread(array)
    if over.mean is None or over.sd is None:
        note = "one seed: no interval, no test" if over.count == 1 else over.note
        return Paired(over.count, over.mean, None, None, None, note)
    # Equal differences leave a sd of rounding errors only, and t would be their reciprocal.
    if over.sd <= 1e-12 * max(1.0, float(np.abs(array).max())):
        return Paired(over.count, over.mean, None, None, None, "all differences are equal: no t test")
    from scipy import stats

    t = over.mean / (over.sd / math.sqrt(over.count))
    return Paired(over.count, over.mean, over.low, over.high, 2 * float(stats.t.sf(abs(t), over.count - 1)))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return p-values corrected for their number by Holm's step-down method.

    With the m p-values in increasing order, p'_(i) = min(1, max over j <= i of (m - j + 1) p_(j)): with any dependence
    between them, the chance of even one false finding stays below the level. None, where no test was made, stays None
    and is not counted in m.

    References:
        Holm (1979), A simple sequentially rejective multiple test procedure, Scand. J. Statist. 6, 65-70.

    Example:
        >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
        [0.03, 0.06, 0.06]
    """
    tested = sorted((p, position) for position, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, position) in enumerate(tested):
        highest = max(highest, min(1.0, (len(tested) - rank) * p))
        corrected[position] = highest
    return corrected
