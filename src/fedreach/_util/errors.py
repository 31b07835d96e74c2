"""The errors of FedReach, and checks of options and arguments.

A message names the option or file, the rule, the value and a remedy. `FedReachError.exit_code` is the exit status of
the command: 2 for wrong options, 3 for unusable data or stored files, 1 for a failed run.
"""

import dataclasses
import difflib
import errno
import inspect
import math
import operator
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from numbers import Real
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar, get_origin

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
IN_WORDS = {str: "a string", int: "a whole number", float: "a number", type(None): "None"}
STEADIER = "Lower local.lr or set local.clip_norm"  # only for training that diverged
ANOTHER_FOLDER = "another folder with --out (in Python, out)"
RELATIVE = "Paths in a TOML file are relative to that file; other paths are relative to the current folder."


class FedReachError(Exception):
    """Base class of all FedReach errors; the message states the cause and a remedy."""

    exit_code = 1


class ConfigError(FedReachError, ValueError):
    """An option is unknown, of the wrong type or outside its range."""

    exit_code = 2


class ComponentError(FedReachError, ValueError):
    """A component or model returned an invalid result, or its class is defined incorrectly."""


class InfeasibleError(FedReachError, ValueError):
    """No set of clients satisfies a constraint; the message states the nearest value that is feasible."""

    exit_code = 2


class DataError(FedReachError, ValueError):
    """Data is missing, altered or truncated, or cannot be partitioned as configured."""

    exit_code = 3


class RunFolderError(FedReachError):
    """A run folder is unreadable, has another format version, or contains another experiment."""

    exit_code = 3


class TrainingError(FedReachError):
    """Local training failed; the message states the client's id, the round and the cause."""


MAX_LISTED = 8  # names in a message
OUT_OF_MEMORY = "Out of memory. Lower --workers, or use smaller models or data."

DISK = {
    errno.ENOSPC: "Free some space",
    errno.EFBIG: "Free some space",
    errno.EDQUOT: "Free some space in your disk quota",
    errno.EROFS: "Mount the disk with write access",
    errno.EMFILE: "Raise the limit of open files (ulimit -n) or lower --workers",
    errno.ENFILE: "Close other programs, because this machine has reached its limit of open files",
    errno.EIO: "Check the disk, which reports an input/output error",
    errno.EACCES: "Give yourself read and write permission",
    errno.EPERM: "Give yourself read and write permission",
}
"""Remedy for a file that the operating system cannot read or write, by error number."""


for _kind in (FedReachError, ConfigError, ComponentError, InfeasibleError, DataError, RunFolderError, TrainingError):
    _kind.__module__ = "fedreach"  # tracebacks print this name


def of_system(error: OSError) -> str:
    """Return the message for an error of the operating system: the file, the cause and the remedy.

    Example:
        >>> of_system(OSError(errno.ENOSPC, "No space left on device", "runs/x/rounds.jsonl"))
        'runs/x/rounds.jsonl: No space left on device. Free some space, then rerun the command to resume.'
    """
    message = f"{error.filename or 'A file'}: {error.strerror or error}."
    remedy = DISK.get(error.errno or 0)
    return message if remedy is None else f"{message} {remedy}, then rerun the command to resume."


def regular(path: Path, max_bytes: float = math.inf) -> Path:
    """Return the path of a file to read; raise OSError for pipes and devices, which may never end, and large files.

    Links are followed. A missing file raises FileNotFoundError.
    """
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "Is a pipe, a socket or a device, not a regular file", str(path))
    if status.st_size > max_bytes:
        raise OSError(errno.EINVAL, f"Is larger than {max_bytes / 1e6:g} MB", str(path))
    return path


def nearest(name: str, candidates: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the closest candidate, or a list of at most `MAX_LISTED` candidates.

    Example:
        >>> nearest("dirichlet_by_clas", ["iid", "dirichlet_by_class"])
        " Did you mean 'dirichlet_by_class'?"
        >>> nearest("zzz", ["iid", "shards"])
        " Known: 'iid', 'shards'."
    """
    names = list(candidates)
    if close := _did_you_mean(name, names):
        return close
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return f" Known: {', '.join(map(repr, names[:MAX_LISTED]))}{more}." if names else " No names are available."


def require(part: Any, /, **rules: str | Sequence[str]) -> None:
    """Raise ConfigError unless each of these options of a component follows its rule.

    A value that the annotation names, such as None or the literal "fitted", is always allowed.

    Args:
        part: Dataclass whose fields are the options.
        rules: For each option, an interval such as ``"(0, 1]"`` or ``"[1, inf)"``, or the allowed names. NaN is always
            rejected. After a colon, the interval can contain advice for the message.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Decay:
        ...     factor: float = 0.9
        ...     every: int | None = None
        ...     shape: str = "steps"
        ...     def __post_init__(self):
        ...         require(self, factor="(0, 1]: Use 1 for no decay.", every="[1, inf)", shape=("steps", "linear"))
        >>> Decay(factor=0.0)
        Traceback (most recent call last):
        fedreach.ConfigError: Decay.factor must be in (0, 1]; got 0.0. Use 1 for no decay.
        >>> Decay(every=0)
        Traceback (most recent call last):
        fedreach.ConfigError: Decay.every must be at least 1; got 0.
        >>> Decay(shape="step")
        Traceback (most recent call last):
        fedreach.ConfigError: Decay.shape must be 'steps' or 'linear'; got 'step'. Did you mean 'steps'?
    """
    types = {field.name: str(field.type).replace("'", '"') for field in dataclasses.fields(part)}
    for option, rule in rules.items():
        value = getattr(part, option)
        allowed = "None" if value is None else f'"{value}"'
        if (isinstance(rule, str) and allowed in types.get(option, "")) or (wrong := violation(value, rule)) is None:
            continue
        raise ConfigError(f"{type(part).__name__}.{option} {wrong}")


def violation(value: object, rule: str | Sequence[str]) -> str | None:
    """Return the message for a value that breaks the rule of an option; None if the value is allowed (see `require`).

    Example:
        >>> violation(0, "[1, inf)"), violation(1, "[1, inf)")
        ('must be at least 1; got 0.', None)
    """
    if isinstance(rule, str):
        interval, _, advice = rule.partition(":")
        return None if _lies_in(value, interval) else f"must be {_in_words(interval, value)}; got {value}.{advice}"
    if value in rule:
        return None
    *names, last = map(repr, rule)
    allowed = f"{', '.join(names)} or {last}" if names else last
    return f"must be {allowed}; got {value!r}.{_did_you_mean(str(value), rule)}"


def check(function: str, name: str, value: float, interval: str) -> None:
    """Raise ConfigError unless a function's argument is in an interval such as ``"(0, 1]"``; NaN is always rejected.

    Example:
        >>> check("excess_risk", "delta", 0.05, "(0, 1)")
        >>> check("excess_risk", "delta", 0.0, "(0, 1)")
        Traceback (most recent call last):
        fedreach.ConfigError: excess_risk: delta must be in (0, 1); got 0.0.
    """
    if not _lies_in(value, interval):
        raise ConfigError(f"{function}: {name} must be in {interval}; got {value!r}.")


NotNegative = Annotated[float, "[0, inf)"]
Positive = Annotated[float, "(0, inf)"]
Share = Annotated[float, "[0, 1]"]
Probability = Annotated[float, "(0, 1)"]
Count = Annotated[int, "[1, inf)"]


def checked(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Check the arguments of a function against the intervals in their annotations (see `check`).

    Example:
        >>> @checked
        ... def odds(p: Probability) -> float:
        ...     return p / (1 - p)
        >>> odds(1.0)
        Traceback (most recent call last):
        fedreach.ConfigError: odds: p must be in (0, 1); got 1.0.
    """
    signature = inspect.signature(function)
    annotations = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    intervals = {name: hint.__metadata__[0] for name, hint in annotations.items() if get_origin(hint) is Annotated}

    @wraps(function)
    def call(*values: Arguments.args, **named: Arguments.kwargs) -> Result:
        arguments = signature.bind(*values, **named).arguments
        for name in intervals.keys() & arguments.keys():
            check(function.__name__, name, arguments[name], intervals[name])
        return function(*values, **named)

    return call


def check_type(function: str, name: str, value: object, *types: type) -> None:
    """Raise ConfigError unless a function's argument has one of these types; a Boolean does not count as a number.

    Example:
        >>> check_type("load", "name", "digits", str)
        >>> check_type("load", "name", None, str)
        Traceback (most recent call last):
        fedreach.ConfigError: load: name must be a string; got NoneType.
    """
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        words = " or ".join(dict.fromkeys(IN_WORDS.get(allowed, allowed.__name__) for allowed in types))
        raise ConfigError(f"{function}: {name} must be {words}; got {type(value).__name__}.")


def _did_you_mean(name: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""


def _ends(interval: str) -> tuple[float, float]:
    low, _, high = interval[1:-1].partition(", ")
    return float(low), float(high)


def _lies_in(value: Any, interval: str) -> bool:
    low, high = _ends(interval)
    above = operator.gt if interval[0] == "(" else operator.ge
    below = operator.lt if interval[-1] == ")" else operator.le
    return isinstance(value, Real) and bool(above(value, low) and below(value, high))


def _in_words(interval: str, value: object) -> str:
    low, high = _ends(interval)
    if high < math.inf or (interval[0] == "(" and low != 0):
        return f"in {interval}"
    finite = " and finite" if value == math.inf else ""
    if low == 0:
        return ("positive" if interval[0] == "(" else "not negative") + finite
    return f"at least {low:g}{finite}"
