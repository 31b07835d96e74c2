"""Which numbers a client can have reported: what leaves the range, no honest client computed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedreach.arrays import Bools, Floats
from fedreach.federation.traits import Traits

ROUNDING = 1e-6
"""Of numbers that clients compute in single precision, relative to the end of a range and at least absolute."""


class Range(NamedTuple):
    """What lies between two numbers, both included; None: no end on this side. Nothing that is not finite lies in it.

    Example:
        >>> loss = Range(0.0)
        >>> print(loss, loss.holds(np.array([-1.0, 0.0, -1e-9, np.inf])))
        at least 0 [False  True  True False]
    """

    minimum: float | None = None
    maximum: float | None = None

    @classmethod
    def of(cls, part: object) -> Range:
        """Return what a measurement or a loss says of its numbers, see `Traits.minimum` and `Traits.maximum`."""
        traits = Traits.of(part)
        return cls(traits.minimum, traits.maximum)

    def holds(self, values: Floats | float) -> Bools:
        """Return of each value whether it lies in the range, but for rounding."""
        inside: Bools = np.isfinite(values)
        if self.minimum is not None:
            inside &= values >= self.minimum - ROUNDING * max(1.0, abs(self.minimum))
        if self.maximum is not None:
            inside &= values <= self.maximum + ROUNDING * max(1.0, abs(self.maximum))
        return inside

    def __str__(self) -> str:
        low, high = (None if end is None else f"{end:.6g}" for end in self)
        if low is not None and high is not None:
            return f"from {low} to {high}"
        return f"at least {low}" if low is not None else "finite" if high is None else f"at most {high}"


ANY, NOT_NEGATIVE, SHARE = Range(), Range(0.0), Range(0.0, 1.0)


def is_part_of(share: float, count: int) -> bool:
    """Return whether a share is one of 0/count, 1/count ... 1, but for rounding in double precision.

    Example:
        >>> is_part_of(2 / 3, 3), is_part_of(0.7, 3), is_part_of(2 / 3, 0)
        (True, False, False)
    """
    return count > 0 and 0 <= share <= 1 and abs(share * count - round(share * count)) <= 1e-8 * count
