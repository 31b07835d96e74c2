"""One tree of errors. Every message names the part, the rule, what arrived and what to do.

`FedReachError.exit_code` is what the command line ends with: 2 for a wrong request (fix the input),
3 for data or stored files that cannot be used, 1 for a run that failed.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable


class FedReachError(Exception):
    """Anything FedReach refuses or fails to do, explained in one message."""

    exit_code = 1


class ConfigError(FedReachError, ValueError):
    """An option is unknown, of the wrong type or outside its range."""

    exit_code = 2


class PartError(FedReachError, ValueError):
    """A selection policy, weighting, solver or model broke its contract."""


class InfeasibleError(FedReachError, ValueError):
    """No set of clients fulfils what was asked of it; the message says what is nearest."""

    exit_code = 2


class DataError(FedReachError, ValueError):
    """Data is missing, altered, truncated, or cannot be partitioned as asked."""

    exit_code = 3


class RunFolderError(FedReachError):
    """A run folder is unreadable, of another version, or holds another experiment."""

    exit_code = 3


class TrainingError(FedReachError):
    """A client failed: its id, the round and the cause are in the message."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the closest known name, or the list of what there is.

    Example:
        >>> nearest("dirichlet_by_clas", ["iid", "dirichlet_by_class"])
        " Did you mean 'dirichlet_by_class'?"
        >>> nearest("zzz", ["iid", "shards"])
        " Known: 'iid', 'shards'."
    """
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f" Did you mean {close[0]!r}?"
    return " Known: " + ", ".join(repr(n) for n in names) + "." if names else " There are none."


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
