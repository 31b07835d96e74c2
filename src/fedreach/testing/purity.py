"""Seeing what a part does beside what it returns: writing to its arguments, keeping things to itself."""

import dataclasses
import inspect
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from fedreach.arrays import AnyArray
from fedreach.federation.values import State
from fedreach.testing.law import broken, same, shown


class Watched:
    """A part whose every call is looked at afterwards: no argument may have changed.

    Example:
        >>> class Careless:
        ...     def weights(self, state, reports):
        ...         reports["loss"][:] = 0.0
        >>> Watched(Careless()).weights({}, {"loss": np.ones(2)})
        Traceback (most recent call last):
            ...
        fedreach.testing.law.Broken: weights wrote to reports.loss: before [1., 1.], after [0., 0.]
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
                broken(f"{name} {'removed' if where in before else 'added'} {where}")
            for where, old in before.items():
                if not same(old, after[where]):
                    broken(f"{name} wrote to {where}: before {shown(old)}, after {shown(after[where])}")
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
        broken(f"the state is a {type(state).__name__}; it must be a mapping of named arrays, or a run cannot go on")
    for key, value in state.items():
        if not isinstance(key, str) or not isinstance(value, np.ndarray | np.generic) or value.dtype.kind not in "biuf":
            kind = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
            broken(f"the state holds {key!r}: {kind}; only named arrays of numbers or flags can be stored")
    return load(save({key: np.asarray(value, order="C") for key, value in state.items()}))
