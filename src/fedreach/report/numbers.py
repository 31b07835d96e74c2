"""Numbers for reading: significant digits, per cent and points, and a unit that fits all numbers of a column."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fedreach.evidence.judgement import Judgement
from fedreach.evidence.scores import ACCURACY, MainScore
from fedreach.evidence.spread import Spread

ABSENT = "-"
SEVERAL_HOURS = 7200.0  # seconds from which numbers are told in hours


@dataclass(frozen=True)
class Unit:
    """A unit of seconds or joules that numbers are told in."""

    name: str
    size: float = 1.0  # in seconds or joules

    def text(self, value: float) -> str:
        """Return a value in seconds or joules with this unit.

        Example:
            >>> Unit("kJ", 1000.0).text(53210.0)
            '53.2 kJ'
        """
        return f"{number(value / self.size)} {self.name}"


def number(value: float | None) -> str:
    """Return three significant digits, or all digits before the point.

    Example:
        >>> number(0.03127), number(312.6), number(999.7), number(12345.6), number(None)
        ('0.0313', '313', '1,000', '12,346', '-')
    """
    if value is None:
        return ABSENT
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
        return Unit("h", 3600.0) if middle >= SEVERAL_HOURS else Unit("s")
    return Unit("kJ", 1000.0) if middle >= 1000.0 else Unit("J")


def with_unit(quantity: str, value: float) -> str:
    """Return one number of seconds or joules in the unit that fits it.

    Example:
        >>> with_unit("seconds", 3599.0), with_unit("joules", 1234.0)
        ('3,599 s', '1.23 kJ')
    """
    return unit_of(quantity, [value]).text(value)


def plus_minus(spread: Spread, places: int, scale: float = 1.0) -> str:
    """Return a mean, and its spread if there is one.

    Example:
        >>> plus_minus(Spread(5, 0.7134, 0.0081, 0.70, 0.73), 3)
        '0.713 ± 0.008'
    """
    if spread.mean is None:
        return ABSENT
    return f"{scale * spread.mean:.{places}f}" + (f" ± {scale * spread.sd:.{places}f}" if spread.sd is not None else "")


def percent(spread: Spread, by: MainScore = ACCURACY) -> str:
    """Return a fraction's spread in per cent, such as ``"71.3 ± 0.8"``; an error's as it is.

    Example:
        >>> percent(Spread(5, 0.7134, 0.0081, 0.70, 0.73))
        '71.3 ± 0.8'
    """
    return ABSENT if spread.mean is None else by.spread(spread.mean, spread.sd)


def points(value: float, *, sign: bool = False, by: MainScore = ACCURACY) -> str:
    """Return a difference of fractions in percentage points, with a true minus sign; of errors as it is.

    Example:
        >>> points(-0.021), points(0.021, sign=True), points(-0.0001, sign=True)
        ('−2.1', '+2.1', '0.0')
    """
    return by.number(value, sign=sign)


def interval(low: float | None, high: float | None, *, sign: bool = False, by: MainScore = ACCURACY) -> str:
    """Return `` [low, high]`` as `points`; nothing if there is no interval."""
    if low is None or high is None:
        return ""
    return f" [{points(low, sign=sign, by=by)}, {points(high, sign=sign, by=by)}]"


def nats(change: Judgement) -> str:
    """Return a mean change in nats, and its interval if there is one.

    Example:
        >>> nats(Judgement(50, -0.0049, -0.0106, 0.0004)), nats(Judgement(1, 0.0117))
        ('−0.005 [−0.011, 0.000]', '+0.012')
    """
    if change.mean is None:
        return ABSENT
    mean, *ends = (
        "0.000" if float(text) == 0 else text.replace("-", "−")
        for text in (f"{value:+.3f}" for value in (change.mean, change.low, change.high) if value is not None)
    )
    return f"{mean} [{', '.join(ends)}]" if ends else mean


def p_text(value: float | None) -> str:
    """Return a p-value for a table cell."""
    if value is None:
        return ABSENT
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def detectable(judged: Judgement, by: MainScore = ACCURACY) -> str:
    """Return the least difference that would have been found, as `points`."""
    return ABSENT if judged.detectable is None else points(judged.detectable, by=by)


def verdict(judged: Judgement) -> str:
    """Return the verdict, and where there is none the number of seeds that would reach one.

    Example:
        >>> verdict(Judgement(20, 0.01, verdict="not decided", seeds_needed=143))
        'not decided (~143)'
    """
    if judged.seeds_needed is None:
        return judged.verdict or ABSENT
    return f"{judged.verdict} (~{number(judged.seeds_needed)})"
