"""Checks of components, their results, and helpers for writing checks."""

from __future__ import annotations

import dataclasses
import inspect
import json
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, cast

import numpy as np
from numpy.typing import ArrayLike

from fedreach._util.arrays import AnyArray
from fedreach._util.component import CLIENT_STATISTICS
from fedreach._util.errors import ConfigError, FedReachError
from fedreach._util.registry import COMPONENT_TYPES, import_object
from fedreach.federation.base import name_of
from fedreach.federation.types import State

NEEDS_LIBRARY = "pip install 'fedreach["  # part of the error message for a missing optional library


@dataclass(eq=False)
class CheckFailed(AssertionError):  # noqa: N818 (named like `AssertionError`)
    """A component fails a check; the message states the check, the input and the result.

    Args:
        component: Name of the component.
        check: Name of the check.
        statement: Statement that must hold.
        case: Description of the input. "": the check has no input.
        happened: Result of the component.

    Example:
        >>> print(CheckFailed("Mine", "exact size", "The cohort has k clients.", "3 clients, k = 2", "it chose 3"))
        Mine fails the check "exact size": The cohort has k clients.
          with:     3 clients, k = 2
          happened: it chose 3
    """

    component: str
    check: str
    statement: str
    case: str
    happened: str

    def __str__(self) -> str:
        text = f'{self.component} fails the check "{self.check}": {self.statement}'
        return text + f"\n  with:     {self.case}" * bool(self.case) + f"\n  happened: {self.happened}"


@dataclass(eq=False)
class Failure(Exception):  # noqa: N818 (raised inside a check; `Check.failure_of` turns it into `CheckFailed`)
    """The statement of a check does not hold (see `fail`)."""

    happened: str
    case: str = ""

    def __str__(self) -> str:
        return self.happened


def fail(happened: str, case: str = "") -> NoReturn:
    """Report in a check that its statement does not hold.

    Args:
        happened: Result of the component, and the expected result.
        case: Description of the input. Default: the description of the check's current input.
    """
    raise Failure(happened, case)


@dataclass(frozen=True)
class Subject:
    """A component to check, and a function that creates other components of the same class.

    Args:
        kind: Component type.
        name: Name of the component in messages.
        component: Component.
        make: Function that returns a component of the same class, given options.
        results: Stored results that several checks use (see `once`).
    """

    kind: str
    name: str
    component: Any
    make: Callable[..., Any]
    results: dict[str, Any] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, kind: str, component: Any, options: Mapping[str, Any] | None = None, name: str = "") -> Subject:
        """Return the subject for a component with these options."""
        constructor: Callable[..., Any] = type(component)
        function = COMPONENT_TYPES[kind].function
        is_function = bool(function) and isinstance(component, import_object(function))
        own_name = name_of(component) if is_function else constructor.__name__  # the `name` of a metric is a column's
        return cls(kind, name or own_name, component, partial(constructor, **(options or {})))

    def once(self, key: str, compute: Callable[[], Any]) -> Any:
        """Return the result of `compute`, which is computed once for this subject and key."""
        if key not in self.results:
            self.results[key] = compute()
        return self.results[key]


@dataclass(frozen=True)
class Check:
    """A statement about components, and the function that tests it.

    Args:
        name: Name of the check.
        statement: Statement that must hold.
        test: Function that raises `Failure` if the statement does not hold, given a subject and an input.
        inputs: Function that returns inputs, whose `str` describes them. None: no inputs.
        only: Function that returns whether to check a component on an input, given both.
    """

    name: str
    statement: str
    test: Callable[..., None]
    inputs: Callable[[], Iterable[Any]] | None = None
    only: Callable[[Any, Any], bool] = lambda component, case: True

    def failure_of(self, subject: Subject) -> CheckFailed | None:
        """Return the failure of the subject in this check; None if it passes.

        Raises:
            ConfigError: If a library that the component requires is not installed.
        """
        for case in [None] if self.inputs is None else self.inputs():
            words = "" if case is None else str(case)
            try:
                # Warnings of numpy depend on the platform. Checks compare the results, which do not.
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    if self.only(subject.component, case):
                        self.test(subject, *(() if case is None else (case,)))
            except Failure as failure:
                return CheckFailed(subject.name, self.name, self.statement, failure.case or words, failure.happened)
            except (Exception, SystemExit) as error:
                if isinstance(error, ConfigError) and NEEDS_LIBRARY in str(error):
                    raise
                return CheckFailed(subject.name, self.name, self.statement, words, _description_of(error))
        return None


def define_check(
    inputs: Callable[[], Iterable[Any]] | None = None,
    only: Callable[[Any, Any], bool] = lambda component, case: True,
) -> Callable[[Callable[..., None]], Check]:
    """Return a decorator that turns a function into a check.

    The function's name becomes the name of the check. The first paragraph of its docstring becomes the statement.

    Args:
        inputs: Function that returns the inputs of the check. None: no inputs.
        only: Function that returns whether to check a component on an input, given both.

    Example:
        >>> @define_check()
        ... def has_a_rate(subject):
        ...     '''A step has a positive rate.'''
        ...     if not subject.component.rate > 0:
        ...         fail(f"the rate is {subject.component.rate}")
        >>> has_a_rate.name, has_a_rate.statement
        ('has a rate', 'A step has a positive rate.')
    """

    def make(test: Callable[..., None]) -> Check:
        statement = " ".join((inspect.getdoc(test) or "").partition("\n\n")[0].split())
        return Check(test.__name__.replace("_", " "), statement, test, inputs, only)

    return make


@dataclass(frozen=True)
class CheckResults:
    """The results of all checks of one component."""

    kind: str
    name: str
    checks: int = 0
    failures: Sequence[CheckFailed] = field(default_factory=tuple)
    skipped: str = ""  # reason why the component could not be checked

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self.failures


def run_checks(subject: Subject, checks: Sequence[Check]) -> CheckResults:
    """Run checks on a component and return the results."""
    try:
        failures = [failure for check in checks if (failure := check.failure_of(subject)) is not None]
    except ConfigError as error:
        return CheckResults(subject.kind, subject.name, skipped=str(error))
    return CheckResults(subject.kind, subject.name, len(checks), tuple(failures))


# -------------------- Helpers for checks


def shown(value: Any) -> str:
    """Return an array or another value as a short text."""
    if isinstance(value, np.ndarray):
        return np.array2string(value, precision=6, threshold=24, separator=", ").replace("\n", "")
    return repr(value)


def must_be_close(
    what: str, got: ArrayLike, expected: ArrayLike, case: str = "", within: float = 1e-6, rule: str = ""
) -> None:
    """Fail if a number differs from the expected number by more than `within`."""
    a, b = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    if a.shape != b.shape or not np.allclose(a, b, rtol=0, atol=within):
        fail(f"{what} should be {shown(b)}{f' ({rule})' if rule else ''}; got {shown(a)}", case)


def same(a: AnyArray, b: AnyArray) -> bool:
    """Return whether two arrays have the same bits, including NaN."""
    a, b = np.asarray(a), np.asarray(b)
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def _description_of(error: BaseException) -> str:
    """Return a description of an exception: FedReach's message, or the failing line of the component's code."""
    message = " ".join(str(error).split()) or "without a message"
    if isinstance(error, FedReachError):
        return f"FedReach rejected it: {message}"
    frames = inspect.getinnerframes(error.__traceback__) if error.__traceback__ else []
    source_frames = [
        frame for frame in frames if frame.filename.endswith(".py") and "site-packages" not in frame.filename
    ]
    where = f" in line {source_frames[-1].lineno} of {Path(source_frames[-1].filename).name}" if source_frames else ""
    hint = ""
    if "NoneType" in message or (isinstance(error, KeyError) and error.args[0] in CLIENT_STATISTICS):
        names = ", ".join(CLIENT_STATISTICS)
        hint = f". List the client statistics that it uses ({names}) in its attribute `needs`"
    return f"it raised {type(error).__name__}{where}: {message}{hint}"


# -------------------- Checks that components of all types must pass


class WatchedGenerator:
    """A wrapper of a component, which fails if a call of the component has changed an argument.

    Example:
        >>> class Careless:
        ...     def weights(self, state, reports):
        ...         reports["loss"][:] = 0.0
        >>> WatchedGenerator(Careless()).weights({}, {"loss": np.ones(2)})
        Traceback (most recent call last):
            ...
        fedreach.testing.base.Failure: weights wrote to reports.loss: before [1., 1.], after [0., 0.]
    """

    def __init__(self, component: Any) -> None:
        self._part = component

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The class of the component, so that FedReach treats the wrapper like the component."""
        return type(self._part)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._part, name)
        if not inspect.ismethod(value):
            return value

        def call(*args: Any, **keywords: Any) -> Any:
            handed = inspect.signature(value).bind(*args, **keywords).arguments
            before = {where: array.copy() for where, array in _arrays(handed)}
            answer = value(*args, **keywords)
            after = dict(_arrays(handed))
            for where in before.keys() ^ after.keys():
                fail(f"{name} {'removed' if where in before else 'added'} {where}")
            for where, old in before.items():
                if not same(old, after[where]):
                    fail(f"{name} wrote to {where}: before {shown(old)}, after {shown(after[where])}")
            return answer

        return call


def _arrays(value: Any, where: str = "") -> Iterator[tuple[str, AnyArray]]:
    if isinstance(value, np.ndarray):
        yield where, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _arrays(inner, f"{where}.{key}".lstrip("."))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _arrays(getattr(value, field.name), f"{where}.{field.name}")


@contextmanager
def other_global_seeds(seed: int) -> Iterator[None]:
    """Seed the global generators of Python and numpy inside the block, and restore them afterwards."""
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002 (components must not use it)
    try:
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002


def through_a_file(state: State) -> State:
    """Write a state to a checkpoint, and return the state that is read; it must consist of named arrays."""
    from safetensors.numpy import load, save

    if not isinstance(state, Mapping):
        fail(f"the state must be a mapping of named arrays, which can be stored; got {type(state).__name__}")
    for key, value in state.items():
        if not isinstance(key, str) or not isinstance(value, np.ndarray | np.generic) or value.dtype.kind not in "biuf":
            kind = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
            fail(f"the state must contain only named arrays of numbers or Booleans; got {key!r}: {kind}")
    return load(save({key: np.asarray(value, order="C") for key, value in state.items()}))


@dataclass(frozen=True, eq=False)
class Case:
    """Base class of inputs of checks, with a description."""

    words: str

    def __str__(self) -> str:
        return self.words


class Outcome(NamedTuple):
    """Result of a component in a round."""

    description: str  # result as text
    value: Any  # result, which must be reproducible to the bit


@dataclass(frozen=True)
class RepeatedRuns:
    """Inputs for the components of a type, and a function that runs a component on them.

    Args:
        inputs: Function that returns inputs.
        play: Function that returns a component's results by round, given the component, an input and an optional
            function to apply to the state after each round.
        has_state: Whether components of the type can have state.
    """

    inputs: Callable[[], Iterable[Any]]
    play: Callable[..., Sequence[Outcome]]
    has_state: bool = True

    def straight(self, subject: Subject, case: Any) -> Sequence[Outcome]:
        """Return the component's results, which are computed once for all checks."""
        outcomes: Sequence[Outcome] = subject.once(str(case), lambda: self.play(subject.component, case))
        return outcomes

    def repeats(self, subject: Subject, case: Any) -> bool:
        """Return whether a second run has the same results."""

        def same() -> bool:
            repeated = self.play(subject.component, case)
            return all(_equal(a.value, b.value) for a, b in zip(self.straight(subject, case), repeated, strict=True))

        is_same: bool = subject.once(f"{case}, repeated", same)
        return is_same

    def checks(self) -> list[Check]:
        """Return the checks that components of all types must pass."""

        @define_check(self.inputs)
        def reproducible(subject: Subject, case: Any) -> None:
            """The same inputs, state and stream give the same result, independent of earlier calls."""
            advice = ". Draw from the argument `rng`, and store nothing in `self`."
            for seed in (1, 2):
                with other_global_seeds(seed):
                    repeated = self.play(subject.component, case)
                _must_be_alike(self.straight(subject, case), repeated, "when repeated", advice)

        @define_check(self.inputs)
        def arguments_untouched(subject: Subject, case: Any) -> None:
            """A component does not change its arguments."""
            self.play(WatchedGenerator(subject.component), case)

        @define_check(self.inputs)
        def resuming_from_a_file(subject: Subject, case: Any) -> None:
            """The state consists of named arrays; storing and reading it after each round changes no result."""
            if not self.repeats(subject, case):
                return  # `reproducible` reports it
            repeated = self.play(subject.component, case, through_a_file)
            _must_be_alike(self.straight(subject, case), repeated, "with the state read from a file")

        return [reproducible, arguments_untouched, *[resuming_from_a_file] * self.has_state]


def _must_be_alike(first: Sequence[Outcome], second: Sequence[Outcome], how: str, advice: str = "") -> None:
    for a, b in zip(first, second, strict=True):
        if not _equal(a.value, b.value):
            fail(f"{a.description}; {how}, {b.description}{advice}")


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return same(a, b)
    return len(a) == len(b) and all(map(_equal, a, b)) if isinstance(a, tuple) else bool(a == b)


@define_check()
def options_define_the_component(subject: Subject) -> None:
    """A component is a frozen dataclass, and its options, stored as JSON and read again, create an equal component."""
    component, function = subject.component, COMPONENT_TYPES[subject.kind].function
    if function and isinstance(component, import_object(function)):
        return  # a function has no options
    if not dataclasses.is_dataclass(component):
        if vars(component):
            fail(
                f"it has the attributes {', '.join(map(repr, vars(component)))}, which are not options; make it a "
                "@dataclass(frozen=True) with these as fields"
            )
        return
    if not cast(Any, type(component)).__dataclass_params__.frozen:
        fail("its options can change during a run; use @dataclass(frozen=True)")
    try:
        options = _as_json(component)
        repeated = json.loads(json.dumps(options))
    except (TypeError, ValueError) as error:
        fail(f"its options cannot be written as JSON: {error}", repr(component))
    if repeated != options:
        fail(f"the options read from JSON are {repeated!r}", f"{component!r}, written as {options!r}")


def _as_json(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if (repeated := dataclasses.replace(value)) != value:
            fail(f"a component with the same options is not equal: {repeated!r}", repr(value))
        return {field.name: _as_json(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
    if isinstance(value, Mapping):
        return {key: _as_json(inner) for key, inner in value.items()}
    return [_as_json(inner) for inner in value] if isinstance(value, list | tuple) else value
