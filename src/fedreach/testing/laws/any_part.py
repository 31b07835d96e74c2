"""Laws that say the same of parts of every kind, given a kind's way of playing."""

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from fedreach.federation.values import State
from fedreach.registry import KINDS, imported
from fedreach.testing.law import Law, Subject, broken, law, same
from fedreach.testing.purity import Watched, other_global_seeds, through_a_file


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

    Its methods make laws, each given the sentence of the kind.
    """

    inputs: Callable[[], Iterable[Any]]
    play: Callable[..., Sequence[Outcome]]  # part, one of the inputs[, keep: what the state goes through] -> by round

    def straight(self, subject: Subject, given: Any) -> Sequence[Outcome]:
        """Return what a part does, played once for all laws."""
        outcomes: Sequence[Outcome] = subject.once(str(given), lambda: self.play(subject.part, given))
        return outcomes

    def same_again(self, sentence: str, advice: str) -> Law:
        """Return the law that nothing counts but what is handed in; `advice` says what else it may have been."""

        def check(subject: Subject, given: Any) -> None:
            first = self.straight(subject, given)
            for seed in (1, 2):
                with other_global_seeds(seed):
                    again = self.play(subject.part, given)
                _must_be_alike(first, again, "asked again", f". {advice}")

        return Law("same again", sentence, check, self.inputs)

    def arguments_untouched(self, sentence: str) -> Law:
        """Return the law that no argument is written to."""

        def check(subject: Subject, given: Any) -> None:
            self.play(Watched(subject.part), given)

        return Law("arguments untouched", sentence, check, self.inputs)

    def going_on_from_a_file(
        self,
        sentence: str = "The state consists of named arrays; a run that is stored after each round and read again "
        "goes on alike.",
    ) -> Law:
        """Return the law that the state is all that a run needs to go on."""

        def check(subject: Subject, given: Any) -> None:
            again = self.play(subject.part, given, through_a_file)
            _must_be_alike(self.straight(subject, given), again, "with the state read from a file")

        return Law("going on from a file", sentence, check, self.inputs)


def _must_be_alike(first: Sequence[Outcome], second: Sequence[Outcome], how: str, advice: str = "") -> None:
    for a, b in zip(first, second, strict=True):
        if not _equal(a.value, b.value):
            broken(f"{a.said}; {how}, {b.said}{advice}")


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return same(a, b)
    return len(a) == len(b) and all(map(_equal, a, b)) if isinstance(a, tuple) else bool(a == b)


@law()
def options_are_all_it_is(subject: Subject) -> None:
    """A part is a frozen dataclass, and its options, written as JSON and read again, make an equal part."""
    part, function = subject.part, KINDS[subject.kind].function
    if function and isinstance(part, imported(function)):
        return  # a function has no options of its own here
    if not dataclasses.is_dataclass(part):
        if vars(part):
            broken(
                f"it keeps {', '.join(map(repr, vars(part)))}, which its repr does not tell; make it a "
                "@dataclass(frozen=True) with these as fields"
            )
        return
    if not cast(Any, type(part)).__dataclass_params__.frozen:
        broken("its options can be changed during a run; write @dataclass(frozen=True)")
    try:
        text = json.dumps(_written(part))
    except (TypeError, ValueError) as error:
        broken(f"its options cannot be written as JSON: {error}", repr(part))
    again = _read(part, json.loads(text))
    if again != part:
        broken(f"it came back as {again!r}", f"{part!r}, written as {text}")


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
