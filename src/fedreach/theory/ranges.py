"""The check that the bounds make of what they are given."""

from __future__ import annotations

import math

from fedreach.errors import ConfigError


def check(function: str, name: str, value: float, interval: str) -> None:
    """Raise ConfigError unless `value` lies in `interval`, written as in mathematics.

    Args:
        function: Who asks.
        name: Of the argument.
        value: What arrived.
        interval: Such as ``"(0, 1]"`` or ``"[0, inf)"``; a nan lies in none.

    Example:
        >>> check("excess_risk", "delta", 0.05, "(0, 1)")
        >>> check("excess_risk", "delta", 0.0, "(0, 1)")
        Traceback (most recent call last):
        fedreach.errors.ConfigError: excess_risk: delta must be in (0, 1); got 0.0.
    """
    low, high = (float(end) for end in interval[1:-1].split(","))
    above = value > low if interval[0] == "(" else value >= low
    below = value < high if interval[-1] == ")" else value <= high
    if math.isnan(value) or not (above and below):
        raise ConfigError(f"{function}: {name} must be in {interval}; got {value!r}.")
