"""The errors of FedReach. Every message names the component, the rule, the value received and what to do.

`FedReachError.exit_code` is the exit status of the command: 2 for a wrong request (fix the input), 3 for data or
stored files that cannot be used, 1 for a run that failed.
"""

import dataclasses
import difflib
import errno
import inspect
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from numbers import Real
from typing import Annotated, Any, ParamSpec, TypeVar, get_origin

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
IN_WORDS = {str: "a text", int: "a whole number", float: "a number", type(None): "None"}
STEADIER = "Lower local.lr or set local.clip_norm"  # only for training that diverged
ANOTHER_FOLDER = "another folder with --out (in Python, out)"
RELATIVE = "A path is relative to the TOML file that it stands in, and elsewhere to the current folder."


class FedReachError(Exception):
    """Base class of all errors of FedReach; the message explains the cause and what to do."""

    exit_code = 1


class ConfigError(FedReachError, ValueError):
    """An option is unknown, of the wrong type or outside its range."""

    exit_code = 2


class ComponentError(FedReachError, ValueError):
    """A component or model broke its contract."""


class InfeasibleError(FedReachError, ValueError):
    """No set of clients meets the request; the message names the nearest one that can be met."""

    exit_code = 2


class DataError(FedReachError, ValueError):
    """Data is missing, altered, truncated, or cannot be partitioned as asked."""

    exit_code = 3


class RunFolderError(FedReachError):
    """A run folder is unreadable, has another version, or holds another experiment."""

    exit_code = 3


class TrainingError(FedReachError):
    """A client failed; the message gives its id, the round and the cause."""


MAX_LISTED = 8  # names in a message
OUT_OF_MEMORY = "Out of memory. Lower --workers, or use smaller models or data."

DISK = {
    errno.ENOSPC: "Free some space",
    errno.EFBIG: "Free some space",
    errno.EDQUOT: "Free some space of your quota",
    errno.EROFS: "Mount its disk for writing",
    errno.EMFILE: "Raise the limit of open files (ulimit -n) or lower --workers",
    errno.ENFILE: "Close other programs, as this machine has no more open files to give",
    errno.EIO: "See to the disk, which fails",
    errno.EACCES: "Make it readable and writable for you",
    errno.EPERM: "Make it readable and writable for you",
}
"""What to do about a file that the operating system rejects, by error number."""


for _kind in (FedReachError, ConfigError, ComponentError, InfeasibleError, DataError, RunFolderError, TrainingError):
    _kind.__module__ = "fedreach"  # the name in messages and tracebacks


def of_system(error: OSError) -> str:
    """Return what the operating system rejected, and what to do about it.

    Example:
        >>> of_system(OSError(errno.ENOSPC, "No space left on device", "runs/x/rounds.jsonl"))
        'runs/x/rounds.jsonl: No space left on device. Free some space; nothing is lost, the same command goes on.'
    """
    message = f"{error.filename or 'A file'}: {error.strerror or error}."
    remedy = DISK.get(error.errno or 0)
    return message if remedy is None else f"{message} {remedy}; nothing is lost, the same command goes on."


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
    return f" Known: {', '.join(map(repr, names[:MAX_LISTED]))}{more}." if names else " There are none."


def require(part: Any, /, **rules: str | Sequence[str]) -> None:
    """Raise ConfigError unless each of these options of a component follows its rule.

    An option whose annotation includes None, or a literal such as "fitted", may have that value.

    Args:
        part: Dataclass whose fields are the options.
        rules: By option, an interval such as ``"(0, 1]"`` or ``"[1, inf)"``, or the allowed names. A nan is never in
            an interval. Advice for the message may follow the interval after a colon.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Decay:
        ...     factor: float = 0.9
        ...     every: int | None = None
        ...     shape: str = "steps"
        ...     def __post_init__(self):
        ...         require(self, factor="(0, 1]: With 1 nothing decays.", every="[1, inf)", shape=("steps", "linear"))
        >>> Decay(factor=0.0)
        Traceback (most recent call last):
        fedreach.ConfigError: Decay.factor must be in (0, 1]; got 0.0. With 1 nothing decays.
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
    """Return how a value breaks the rule of an option, see `require`; None if it follows the rule.

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
    """Raise ConfigError unless an argument of a function is in an interval such as ``"(0, 1]"``; a nan never is.

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
    """Check the arguments of a function by the intervals in their annotations, as `check` does.

    Example:
        >>> @checked
        ... def odds(p: Probability) -> float:
        ...     return p / (1 - p)
        >>> odds(1.0)
        Traceback (most recent call last):
        fedreach.ConfigError: odds: p must be in (0, 1); got 1.0.
    """
    signature = inspect.signature(function)
    intervals = {name: p.annotation.__metadata__[0] for name, p in signature.parameters.items() if _has_interval(p)}

    @wraps(function)
    def call(*values: Arguments.args, **named: Arguments.kwargs) -> Result:
        arguments = signature.bind(*values, **named).arguments
        for name in intervals.keys() & arguments.keys():
            check(function.__name__, name, arguments[name], intervals[name])
        return function(*values, **named)

    return call


def _has_interval(parameter: inspect.Parameter) -> bool:
    return get_origin(parameter.annotation) is Annotated


def check_type(function: str, name: str, value: object, *types: type) -> None:
    """Raise ConfigError unless an argument of a function has one of these types; a Boolean is not a number here.

    Example:
        >>> check_type("load", "name", "digits", str)
        >>> check_type("load", "name", None, str)
        Traceback (most recent call last):
        fedreach.ConfigError: load: name must be a text; got NoneType.
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
