"""Stein's two stages: how many seeds find a given difference, from the spread of a pilot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fedreach.evidence.corrections import LEVEL, max_t
from fedreach.evidence.plan import Correction
from fedreach.evidence.power import POWER
from fedreach.evidence.spread import t_quantile


def seeds_by_stein(sd: float, freedom: int, difference: float, critical: float) -> int:
    """Return the number of seeds s that finds a true difference with probability `POWER`, whatever the true spread.

    The smallest s with sqrt(s) difference / sd >= critical + t_POWER, sd of a pilot of v + 1 seeds, v = `freedom`.
    Given sd, the mean of all s seeds is independent of it, so that T = sqrt(s) (mean - delta) / sd has Student's t
    distribution with v degrees of freedom exactly; the interval mean +- critical sd / sqrt(s) covers delta with its
    level, and is at most 2 difference critical / (critical + t_POWER) wide.

    References:
        Stein (1945), A two-sample test for a linear hypothesis whose power is independent of the variance, Ann. Math.
        Statist. 16, 243-258.

    Example:
        >>> seeds_by_stein(0.04, 19, 0.02, 2.093)
        35
    """
    return max(freedom + 1, math.ceil((sd * (critical + t_quantile(POWER, freedom)) / difference) ** 2))


def plan_seeds(
    pilot: Sequence[Mapping[int, float]], difference: float, *, correction: Correction = "holm"
) -> list[int | None]:
    """Return for each comparison how many seeds find `difference`, at the level corrected for their number.

    Args:
        pilot: Each comparison's differences by seed, of the seeds of the pilot.
        difference: In the units of these.
        correction: ``"holm"`` plans with Bonferroni's level, as Holm's first step does.

    Returns:
        Seeds of each, pilot included; None for one whose differences are all equal, or that is not on all seeds.

    Example:
        >>> plan_seeds([{0: 0.00, 1: 0.04, 2: 0.02, 3: 0.06, 4: 0.03}], 0.02)
        [18]
    """
    seeds = sorted(set.intersection(*(set(each) for each in pilot))) if pilot else []
    if len(seeds) < 2:
        return [None] * len(pilot)
    table = np.array([[each[seed] for each in pilot] for seed in seeds])
    finite = np.isfinite(table).all(axis=0)
    sds = np.where(finite, table.std(axis=0, ddof=1), 0.0)
    tested = finite & (sds > 1e-12)
    if not tested.any():
        return [None] * len(pilot)
    freedom = len(seeds) - 1
    if correction == "max_t":
        critical = max_t(table[:, tested], freedom).critical
    else:
        critical = t_quantile(1 - LEVEL / 2 / int(tested.sum()), freedom)
    return [
        seeds_by_stein(float(sd), freedom, difference, critical) if varies else None
        for sd, varies in zip(sds, tested, strict=True)
    ]
