"""Corrections for many comparisons: Holm's steps, and the largest of several correlated t values (max-t)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fedreach.arrays import Floats
from fedreach.evidence.spread import t_quantile

LEVEL = 0.05  # of all comparisons together: the chance of even one false finding
DRAWS = 9_999  # of max-t: LEVEL * (DRAWS + 1) is a whole number
CHUNK = 4_000_000  # normal numbers drawn at a time


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number by Holm's step-down method.

    With the m p-values in increasing order, p'_(i) = min(1, max over j <= i of (m - j + 1) p_(j)): with any dependence
    between them, the chance of even one false finding stays below the level.

    References:
        Holm (1979), A simple sequentially rejective multiple test procedure, Scand. J. Statist. 6, 65-70.

    Example:
        >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
        [0.03, 0.06, 0.06]
    """
    corrected, highest, m = [0.0] * len(p_values), 0.0, len(p_values)
    for rank, place in enumerate(np.argsort(p_values, kind="stable").tolist()):
        highest = max(highest, min(1.0, (m - rank) * p_values[place]))
        corrected[place] = highest
    return corrected


def holm_levels(p_values: Sequence[float]) -> list[float]:
    """Return the level at which Holm's method tested each: an interval at it excludes 0 exactly where p' < `LEVEL`.

    The i-th smallest p-value is tested at LEVEL / (m - i + 1) while all before it are below theirs; from the first that
    is not, all are at its level; equal ones are at the level of the first. No level is above `LEVEL`, so each interval
    covers its difference in 95 % of studies at least, whatever the order turned out to be.

    Example:
        >>> [round(level, 4) for level in holm_levels([0.01, 0.04, 0.03])]
        [0.0167, 0.025, 0.025]
    """
    levels, m = [0.0] * len(p_values), len(p_values)
    level, before, stopped = LEVEL / max(m, 1), -1.0, False
    for rank, place in enumerate(np.argsort(p_values, kind="stable").tolist()):
        p = p_values[place]
        if not stopped and p > before:
            level, before = LEVEL / (m - rank), p
            stopped = p >= level
        levels[place] = level
    return levels


class MaxT(NamedTuple):
    """The distribution of the largest of m correlated |t| where no difference is there."""

    largest: Floats  # (DRAWS,), increasing
    comparisons: int
    freedom: int

    @property
    def critical(self) -> float:
        """The |t| above which a difference is significant at `LEVEL`; Bonferroni's where that is smaller."""
        drawn = float(self.largest[-(round(LEVEL * (len(self.largest) + 1)) - 1)])
        return min(drawn, t_quantile(1 - LEVEL / 2 / self.comparisons, self.freedom))

    def corrected(self, t: float, p: float) -> float:
        """Return the corrected p-value of a t value, whose own is p: the chance that the largest |t| reaches it."""
        reached = len(self.largest) - int(np.searchsorted(self.largest, abs(t), side="left"))
        # Draws cannot tell small chances; Bonferroni's bound holds in any case.
        return min((1 + reached) / (1 + len(self.largest)), self.comparisons * p)


def max_t(differences: Floats, freedom: int) -> MaxT:
    """Return the distribution of max |t| for comparisons that are correlated as these differences are.

    Comparisons with one baseline, or of all pairs, share runs. With R the correlation of the m differences over seeds,
    T_j = Z_j / sqrt(W_jj / v), Z ~ N(0, R) and W ~ Wishart(v, R) independent: each t value has its own standard
    deviation below it, as in paired tests, so this is not the multivariate t distribution, whose common one would be
    too narrow. R is the correlation over s seeds, drawn towards 0 by 1/s: as estimated from five seeds it promises 95 %
    and keeps 93.5 (`benchmarks/coverage.py`). `DRAWS` draws from a fixed stream stand for the distribution.

    Args:
        differences: (s, m), a comparison a column, one row a seed.
        freedom: v, degrees of freedom of the standard deviations.

    References:
        Westfall and Young (1993), Resampling-based multiple testing; Hothorn, Bretz and Westfall (2008), Simultaneous
        inference in general parametric models, Biometrical Journal 50, 346-363.
    """
    centred = differences - differences.mean(axis=0)
    norms = np.sqrt((centred**2).sum(axis=0))
    directions, little = centred / np.where(norms > 0, norms, 1.0), 1 / len(differences)
    # R = factor' factor of these rows; in its own coordinates, so that few numbers are drawn.
    rows = np.vstack([math.sqrt(1 - little) * directions, math.sqrt(little) * np.eye(differences.shape[1])])
    _, sizes, axes = np.linalg.svd(rows, full_matrices=False)
    factor = (sizes[:, None] * axes)[sizes > 1e-9 * sizes.max(initial=1.0)]
    return MaxT(_largest(factor.tobytes(), factor.shape, freedom), differences.shape[1], freedom)


@lru_cache(maxsize=32)
def _largest(factor: bytes, shape: tuple[int, int], freedom: int) -> Floats:
    """Return sorted draws of max |t|; `factor` (r, m) has R = factor' factor."""
    matrix = np.frombuffer(factor, np.float64).reshape(shape)
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence(20_07)))
    step = max(1, CHUNK // ((freedom + 1) * shape[0]))
    parts = []
    for start in range(0, DRAWS, step):
        count = min(step, DRAWS - start)
        normal = rng.standard_normal((count, freedom + 1, shape[0])) @ matrix
        squares = (normal[:, 1:] ** 2).mean(axis=1)
        parts.append(np.abs(normal[:, 0] / np.sqrt(squares)).max(axis=1))
    return np.sort(np.concatenate(parts))
