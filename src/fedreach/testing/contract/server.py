"""Laws of server steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedreach.arrays import Float32s, Floats
from fedreach.federation.protocols import ServerTrains
from fedreach.federation.round import NO_STATE
from fedreach.federation.values import State
from fedreach.streams import generator
from fedreach.testing.contract.any_part import options_are_all_it_is
from fedreach.testing.law import Subject, broken, law, same, told
from fedreach.testing.watching import Watched, other_global_seeds, through_a_file

ROUNDS = 5


@dataclass(frozen=True, eq=False)
class Moves:
    """A model and the mean updates of a few rounds."""

    words: str
    params: Float32s  # (d,)
    updates: Floats  # (rounds, d)

    def __str__(self) -> str:
        return self.words


def moves() -> Iterator[Moves]:
    """Yield models of several sizes, with updates of several lengths."""
    rng = generator(0, "testing moves")
    for d in (1, 5, 1000):
        yield Moves(
            f"{ROUNDS} rounds of a model of {d} numbers",
            rng.standard_normal(d).astype(np.float32),
            0.1 * rng.standard_normal((ROUNDS, d)),
        )
    start = rng.standard_normal(6).astype(np.float32)
    yield Moves(
        "a model of 6 numbers, of which three are not updated", start, np.tile([0, 0, 0, 1e-12, 1, 1e6], (3, 1))
    )


@law(moves)
def a_new_model(subject: Subject, given: Moves) -> None:
    """A server step returns the new (d,) parameters in float32, all finite, and the new state."""
    _run(subject.part, given)


@law(moves)
def where_nobody_moved(subject: Subject, given: Moves) -> None:
    """If the mean update is zero from the start, the model stays as it is."""
    zero = Moves("", given.params, np.zeros_like(given.updates))
    for number, params in enumerate(_run(subject.part, zero), start=1):
        if not np.array_equal(params, given.params):
            broken(f"after {number} rounds of zero updates the model {told(given.params)} had become {told(params)}")


@law(moves)
def where_the_clients_went(subject: Subject, given: Moves) -> None:
    """If the mean update is the same u in each round, the model moves along u and not against it."""
    part, u = subject.part, given.updates[0]
    if isinstance(part, ServerTrains) and all(part.trains(generator(0, "coin", number)) for number in range(100)):
        return  # clients are never asked
    for number, params in enumerate(_run(subject.part, Moves("", given.params, np.tile(u, (ROUNDS, 1)))), start=1):
        moved = params.astype(np.float64) - given.params
        if not moved @ u > 0:
            broken(f"after {number} rounds the model had moved by {told(moved)}, for the update u = {told(u)}")


@law(moves)
def same_again(subject: Subject, given: Moves) -> None:
    """The same parameters, state and update give the same model, whatever was done with the step before."""
    with other_global_seeds(1):
        first = _run(subject.part, given)
    with other_global_seeds(2):
        second = _run(subject.part, given)
    _alike(first, second, "when asked again; draw no random numbers, keep nothing in `self`")


@law(moves)
def arguments_untouched(subject: Subject, given: Moves) -> None:
    """A server step does not write to its arguments: parameters, state and mean update."""
    _run(Watched(subject.part), given)


@law(moves)
def going_on_from_a_file(subject: Subject, given: Moves) -> None:
    """The state consists of named arrays; a run that is stored after each round and read again goes on alike."""
    _alike(_run(subject.part, given), _run(subject.part, given, through_a_file), "with the state read from a file")


@law()
def trains_as_the_coin_says(subject: Subject) -> None:
    """Where a server step trains on the server's own data, the round's stream alone decides when."""
    part = subject.part
    if not isinstance(part, ServerTrains):
        return
    if not (part.rate > 0 and part.batch_size >= 1):
        broken(f"rate must be positive and batch_size at least 1; got {part.rate} and {part.batch_size}")
    for number in range(1, 30):
        answers = []
        for seed in (1, 2):
            with other_global_seeds(seed):
                answers.append(part.trains(generator(0, "coin", number)))
        if not all(isinstance(answer, bool | np.bool_) for answer in answers) or answers[0] != answers[1]:
            broken(f"trains() must be the same flag again; got {answers}", f"the stream of round {number}")


LAWS = (
    a_new_model,
    where_nobody_moved,
    where_the_clients_went,
    same_again,
    arguments_untouched,
    going_on_from_a_file,
    trains_as_the_coin_says,
    options_are_all_it_is,
)


def _run(part: Any, given: Moves, keep: Callable[[State], State] = lambda state: state) -> list[Float32s]:
    """Return the parameters after each round."""
    params, state, models = given.params.copy(), NO_STATE, []
    for number, update in enumerate(given.updates, start=1):
        answer = part.apply(params, state, update.copy())
        if not (isinstance(answer, tuple) and len(answer) == 2):
            broken(f"apply must return a pair, the parameters and the state; got {type(answer).__name__}")
        new, state = answer
        if not isinstance(new, np.ndarray) or new.shape != params.shape or new.dtype != np.float32:
            found = f"{new.dtype} of shape {new.shape}" if isinstance(new, np.ndarray) else type(new).__name__
            broken(f"in round {number} the parameters should be float32 of shape {params.shape}; got {found}")
        if not np.isfinite(new).all():
            broken(f"in round {number} the parameters became {told(new)}")
        params, state = new.copy(), keep(state)
        models.append(params.copy())
    return models


def _alike(first: list[Float32s], second: list[Float32s], how: str) -> None:
    for number, (a, b) in enumerate(zip(first, second, strict=True), start=1):
        if not same(a, b):
            broken(f"after round {number} the model was {told(a)}, and {told(b)} {how}")
