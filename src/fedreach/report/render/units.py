"""Numbers for reading: three significant digits, and a unit that fits all numbers of a column or an axis."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

SEVERAL_HOURS = 7200.0  # seconds from which numbers are told in hours


@dataclass(frozen=True)
class Unit:
    """A unit of seconds or joules that numbers are told in."""

    name: str
    size: float  # in seconds or joules

    def text(self, value: float) -> str:
        """Return a value in seconds or joules with this unit.

        Example:
            >>> Unit("kJ", 1000.0).text(53210.0)
            '53.2 kJ'
        """
        return f"{number(value / self.size)} {self.name}"


def number(value: float) -> str:
    """Return three significant digits, or all digits before the point.

    Example:
        >>> number(0.03127), number(312.6), number(999.7), number(12345.6)
        ('0.0313', '313', '1,000', '12,346')
    """
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"


def unit_of(quantity: str, values: Iterable[float | None]) -> Unit:
    """Return the unit for ``"seconds"`` or ``"joules"`` in which the middle one of the values reads well.

    Example:
        >>> unit_of("seconds", [311.0]).text(311.0), unit_of("seconds", [7560.0]).text(7560.0)
        ('311 s', '2.1 h')
    """
    known = [value for value in values if value is not None and np.isfinite(value)]
    middle = float(np.median(known)) if known else 0.0
    if quantity == "seconds":
        return Unit("h", 3600.0) if middle >= SEVERAL_HOURS else Unit("s", 1.0)
    return Unit("kJ", 1000.0) if middle >= 1000.0 else Unit("J", 1.0)


def told(quantity: str, value: float) -> str:
    """Return one number of seconds or joules in the unit that fits it.

    Example:
        >>> told("seconds", 3599.0), told("joules", 1234.0)
        ('3,599 s', '1.23 kJ')
    """
    return unit_of(quantity, [value]).text(value)
