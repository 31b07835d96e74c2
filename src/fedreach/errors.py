"""One tree of errors. Every message names the part, the rule, what arrived and what to do.

`FedReachError.exit_code` is what the command line ends with: 2 for a wrong request (fix the input),
3 for data or stored files that cannot be used, 1 for a run that failed.
"""

from __future__ import annotations

import difflib
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
