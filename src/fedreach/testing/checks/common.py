"""Checks that components of every type share, given a way to run the components of a type."""

import dataclasses
import inspect
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import numpy as np

from fedreach._util.arrays import AnyArray
from fedreach._util.registry import KINDS, import_object
from fedreach.federation.types import State
from fedreach.testing.base import Check, Subject, define_check, fail, same, shown


class WatchedGenerator:
    """A component that fails after a call that has changed one of its arguments.

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
        """The class of the component, so that its traits and its name are those of the component."""
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
    """Have the generators that Python and numpy share begin at this seed, and put them back as they were."""
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002 (it is what must not matter)
    try:
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002


def through_a_file(state: State) -> State:
    """Return a state as it comes back from a checkpoint; it must consist of named arrays."""
    from safetensors.numpy import load, save

    if not isinstance(state, Mapping):
        fail(f"the state is a {type(state).__name__}; it must be a mapping of named arrays, or a run cannot go on")
    for key, value in state.items():
        if not isinstance(key, str) or not isinstance(value, np.ndarray | np.generic) or value.dtype.kind not in "biuf":
            kind = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
            fail(f"the state holds {key!r}: {kind}; only named arrays of numbers or flags can be stored")
    return load(save({key: np.asarray(value, order="C") for key, value in state.items()}))


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """An input of a check, which describes itself."""

    words: str

    def __str__(self) -> str:
        return self.words


class Outcome(NamedTuple):
    """What a component did in a round."""

    description: str  # in words
    value: Any  # what must be the same again, to the bit


def as_it_is(state: State) -> State:
    """Return a state as it is between the rounds of a run that is not interrupted."""
    return state


@dataclasses.dataclass(frozen=True)
class RepeatedRuns:
    """How the components of a type are run: on which inputs, and what they do there."""

    inputs: Callable[[], Iterable[Any]]
    play: Callable[..., Sequence[Outcome]]  # component, input[, keep: what the state goes through] -> by round
    has_state: bool = True

    def straight(self, subject: Subject, case: Any) -> Sequence[Outcome]:
        """Return what the component does, computed once for all checks."""
        outcomes: Sequence[Outcome] = subject.once(str(case), lambda: self.play(subject.component, case))
        return outcomes

    def checks(self) -> list[Check]:
        """Return the checks that components of all types must pass."""

        @define_check(self.inputs)
        def same_again(subject: Subject, case: Any) -> None:
            """The same inputs, state and stream give the same result, whatever was done with the component before."""
            advice = ". Draw from the `rng` that is handed in, and keep nothing in `self`."
            for seed in (1, 2):
                with other_global_seeds(seed):
                    repeated = self.play(subject.component, case)
                _must_be_alike(self.straight(subject, case), repeated, "asked again", advice)

        @define_check(self.inputs)
        def arguments_untouched(subject: Subject, case: Any) -> None:
            """A component does not write to its arguments."""
            self.play(WatchedGenerator(subject.component), case)

        @define_check(self.inputs)
        def going_on_from_a_file(subject: Subject, case: Any) -> None:
            """The state consists of named arrays; a run that stores and reads it after each round goes on alike."""
            repeated = self.play(subject.component, case, through_a_file)
            _must_be_alike(self.straight(subject, case), repeated, "with the state read from a file")

        return [same_again, arguments_untouched, *[going_on_from_a_file] * self.has_state]


def _must_be_alike(first: Sequence[Outcome], second: Sequence[Outcome], how: str, advice: str = "") -> None:
    for a, b in zip(first, second, strict=True):
        if not _equal(a.value, b.value):
            fail(f"{a.description}; {how}, {b.description}{advice}")


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return same(a, b)
    return len(a) == len(b) and all(map(_equal, a, b)) if isinstance(a, tuple) else bool(a == b)


@define_check()
def options_are_all_it_is(subject: Subject) -> None:
    """A component is a frozen dataclass, and its options, written as JSON and read again, make an equal component."""
    component, function = subject.component, KINDS[subject.kind].function
    if function and isinstance(component, import_object(function)):
        return  # a function has no options of its own here
    if not dataclasses.is_dataclass(component):
        if vars(component):
            fail(
                f"it keeps {', '.join(map(repr, vars(component)))}, which its repr does not tell; make it a "
                "@dataclass(frozen=True) with these as fields"
            )
        return
    if not cast(Any, type(component)).__dataclass_params__.frozen:
        fail("its options can be changed during a run; write @dataclass(frozen=True)")
    try:
        options = _as_json(component)
        repeated = json.loads(json.dumps(options))
    except (TypeError, ValueError) as error:
        fail(f"its options cannot be written as JSON: {error}", repr(component))
    if repeated != options:
        fail(f"they came back as {repeated!r}", f"{component!r}, written as {options!r}")


def _as_json(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if (repeated := dataclasses.replace(value)) != value:
            fail(f"made again of its options it is {repeated!r}", repr(value))
        return {field.name: _as_json(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
    if isinstance(value, Mapping):
        return {key: _as_json(inner) for key, inner in value.items()}
    return [_as_json(inner) for inner in value] if isinstance(value, list | tuple) else value
