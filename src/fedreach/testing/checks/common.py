"""Checks that components of every type share, given a way to run the components of a type."""

import dataclasses
import inspect
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import numpy as np

from fedreach.arrays import AnyArray
from fedreach.federation.values import State
from fedreach.registry import KINDS, imported
from fedreach.testing.base import Check, Subject, define_check, fail, same, shown


class Watched:
    """A part whose every call is looked at afterwards: no argument may have changed.

    Example:
        >>> class Careless:
        ...     def weights(self, state, reports):
        ...         reports["loss"][:] = 0.0
        >>> Watched(Careless()).weights({}, {"loss": np.ones(2)})
        Traceback (most recent call last):
            ...
        fedreach.testing.base.Failure: weights wrote to reports.loss: before [1., 1.], after [0., 0.]
    """

    def __init__(self, part: Any) -> None:
        self._part = part

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """That of the part, so that its traits are read and its name is told."""
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
class Given:
    """What a part is tried on; it says in words what it is."""

    words: str

    def __str__(self) -> str:
        return self.words


class Outcome(NamedTuple):
    """What a part did in a round."""

    said: str  # in words
    value: Any  # what must be the same again, to the bit


def as_it_is(state: State) -> State:
    """Return a state as it is between the rounds of a run that is not interrupted."""
    return state


@dataclasses.dataclass(frozen=True)
class Playing:
    """A kind's way of playing: what its parts are tried on, and what they do there.

    Its methods make checks, each given the statement of the type.
    """

    inputs: Callable[[], Iterable[Any]]
    play: Callable[..., Sequence[Outcome]]  # part, one of the inputs[, keep: what the state goes through] -> by round

    def straight(self, subject: Subject, given: Any) -> Sequence[Outcome]:
        """Return what a part does, computed once for all checks."""
        outcomes: Sequence[Outcome] = subject.once(str(given), lambda: self.play(subject.component, given))
        return outcomes

    def same_again(self, sentence: str, advice: str) -> Check:
        """Return the check that nothing counts but what is handed in; `advice` says what else it may have been."""

        def check(subject: Subject, given: Any) -> None:
            first = self.straight(subject, given)
            for seed in (1, 2):
                with other_global_seeds(seed):
                    again = self.play(subject.component, given)
                _must_be_alike(first, again, "asked again", f". {advice}")

        return Check("same again", sentence, check, self.inputs)

    def arguments_untouched(self, sentence: str) -> Check:
        """Return the check that no argument is written to."""

        def check(subject: Subject, given: Any) -> None:
            self.play(Watched(subject.component), given)

        return Check("arguments untouched", sentence, check, self.inputs)

    def going_on_from_a_file(
        self,
        sentence: str = "The state consists of named arrays; a run that is stored after each round and read again "
        "goes on alike.",
    ) -> Check:
        """Return the check that the state is all that a run needs to go on."""

        def check(subject: Subject, given: Any) -> None:
            again = self.play(subject.component, given, through_a_file)
            _must_be_alike(self.straight(subject, given), again, "with the state read from a file")

        return Check("going on from a file", sentence, check, self.inputs)


def _must_be_alike(first: Sequence[Outcome], second: Sequence[Outcome], how: str, advice: str = "") -> None:
    for a, b in zip(first, second, strict=True):
        if not _equal(a.value, b.value):
            fail(f"{a.said}; {how}, {b.said}{advice}")


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return same(a, b)
    return len(a) == len(b) and all(map(_equal, a, b)) if isinstance(a, tuple) else bool(a == b)


@define_check()
def options_are_all_it_is(subject: Subject) -> None:
    """A part is a frozen dataclass, and its options, written as JSON and read again, make an equal part."""
    part, function = subject.component, KINDS[subject.kind].function
    if function and isinstance(part, imported(function)):
        return  # a function has no options of its own here
    if not dataclasses.is_dataclass(part):
        if vars(part):
            fail(
                f"it keeps {', '.join(map(repr, vars(part)))}, which its repr does not tell; make it a "
                "@dataclass(frozen=True) with these as fields"
            )
        return
    if not cast(Any, type(part)).__dataclass_params__.frozen:
        fail("its options can be changed during a run; write @dataclass(frozen=True)")
    try:
        text = json.dumps(_written(part))
    except (TypeError, ValueError) as error:
        fail(f"its options cannot be written as JSON: {error}", repr(part))
    again = _read(part, json.loads(text))
    if again != part:
        fail(f"it came back as {again!r}", f"{part!r}, written as {text}")


def _written(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _written(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
    if isinstance(value, Mapping):
        return {key: _written(inner) for key, inner in value.items()}
    return [_written(inner) for inner in value] if isinstance(value, list | tuple) else value


def _read(like: Any, stored: Any) -> Any:
    """Return what was stored, with the classes of the value that it came from."""
    if dataclasses.is_dataclass(like) and not isinstance(like, type):
        return type(like)(**{key: _read(getattr(like, key), inner) for key, inner in stored.items()})
    if isinstance(like, Mapping):
        return {key: _read(like[key], inner) for key, inner in stored.items()}
    if isinstance(like, list | tuple):
        return type(like)(_read(a, b) for a, b in zip(like, stored, strict=True))
    return stored
