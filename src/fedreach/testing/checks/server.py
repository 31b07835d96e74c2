"""Checks of server steps; those that learn from data of the server are run on softmax regression in numpy."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedreach._util.arrays import Float32s, Floats, Ints
from fedreach._util.streams import generator
from fedreach.federation.adaptation.base import log_softmax
from fedreach.federation.steps import server_batches, server_split
from fedreach.federation.types import NO_STATE, State
from fedreach.testing.base import Case, Outcome, RepeatedRuns, Subject, define_check, fail, other_global_seeds, shown

EXAMPLES, INPUTS, CLASSES, CLIENTS, LESSONS, SEED = 100, 10, 4, 3, 8, 3
D = INPUTS * CLASSES


@dataclass(eq=False)
class Regression:
    """The `ServerOperations` of softmax regression without bias, in numpy: every number is known."""

    x: Floats  # (EXAMPLES, INPUTS)
    y: Ints
    round: int
    local: Float32s  # (r, D) the clients' local models
    rng: np.random.Generator = field(init=False)
    requests: list[tuple[str, Ints]] = field(default_factory=list)  # what it was asked for, and of which examples
    read_locals: bool = False
    drawn_from: int = EXAMPLES

    def __post_init__(self) -> None:
        self.rng = server_batches(SEED, self.round)

    @property
    def examples(self) -> int:
        return len(self.y)

    def split(self, held_out: float) -> tuple[Ints, Ints]:
        train, held_out_rows = server_split(self.y, held_out, SEED)
        self.drawn_from = len(train)
        return train, held_out_rows

    def step(self, params: Float32s, index: Ints, lr: float) -> Float32s:
        self.requests.append(("step", index))
        return self.moved(params, index, np.eye(CLASSES)[self.y[index]], lr)

    def distill(self, params: Float32s, index: Ints, teacher: Float32s, lr: float) -> Float32s:
        self.requests.append(("distill", index))
        return self.moved(params, index, softmax(teacher), lr)

    def moved(self, params: Float32s, index: Ints, target: Floats, lr: float) -> Float32s:
        """Return the model after one step down the gradient of the mean cross-entropy to (b, CLASSES) shares."""
        away = softmax(self.outputs(params, index)) - target
        gradient = self.x[index].T @ away / len(index)
        return (params - lr * gradient.reshape(-1)).astype(np.float32)

    def outputs(self, params: Float32s, index: Ints) -> Floats:
        return self.x[index] @ params.astype(np.float64).reshape(INPUTS, CLASSES)

    def logits(self, params: Float32s, index: Ints) -> Float32s:
        return self.outputs(params, index).astype(np.float32)

    def loss(self, params: Float32s, index: Ints) -> float:
        self.requests.append(("loss", index))
        return float(-log_softmax(self.outputs(params, index))[np.arange(len(index)), self.y[index]].mean())

    def local_models(self) -> Iterator[Float32s]:
        self.read_locals = True
        yield from self.local

    def batches(self, kind: str) -> list[Ints]:
        """Return the examples of each request of a kind."""
        return [index for request, index in self.requests if request == kind]


def softmax(logits: Floats | Float32s) -> Floats:
    """Return (b, c) shares of the classes."""
    return np.asarray(np.exp(log_softmax(logits.astype(np.float64))))


def server_data(number: int) -> Regression:
    """Return the data of the server in a round; clients' models differ from round to round."""
    rng = generator(0, "testing server data")
    y = rng.integers(CLASSES, size=EXAMPLES)
    x = np.eye(CLASSES, INPUTS)[y] + rng.standard_normal((EXAMPLES, INPUTS))
    local = generator(0, "testing local models", number).standard_normal((CLIENTS, D)).astype(np.float32)
    return Regression(x, y, number, local)


def first_model() -> Float32s:
    return generator(0, "testing first model").standard_normal(D).astype(np.float32)


def learn_rounds(
    component: Any,
    keep: Callable[[State], State] = lambda state: state,
    *,
    rounds: int = LESSONS,
    change: Callable[[Regression], Regression] = lambda data: data,
) -> tuple[list[Float32s], list[Regression]]:
    """Return the models after each round in which the server learns, and what it looked at; none of others."""
    params, state, models, looked = first_model(), NO_STATE, [], []
    if not (component.trains_server or component.tunes_server):
        return [], []
    for number in range(1, rounds + 1):
        data = change(server_data(number))
        new, state = component.learn(params, state, data)
        params, state = _params_like(params, new, f"in its lesson {number}"), keep(state)
        models.append(params.copy())
        looked.append(data)
    return models, looked


# -------------------- Checks of servers that learn


@define_check()
def other_batches_in_other_rounds(subject: Subject) -> None:
    """Batches that are not all of the server's data are drawn again in every round."""
    drawn = []
    for data in learn_rounds(subject.component)[1]:
        batches = [*data.batches("step"), *data.batches("distill")]
        if batches and all(len(batch) < data.drawn_from for batch in batches):
            drawn.append(tuple(batch.tobytes() for batch in batches))
    if len(drawn) > 1 and len(set(drawn)) < len(drawn):
        fail(f"of {len(drawn)} rounds only {len(set(drawn))} had batches of their own", f"{EXAMPLES} examples")


@define_check()
def says_that_it_reads_updates(subject: Subject) -> None:
    """A server step that looks at the clients' local models says so: `reads_updates = True`."""
    if any(data.read_locals for data in learn_rounds(subject.component)[1]) and not subject.component.reads_updates:
        fail("it asked for local models; `reads_updates` is not set")


ROUNDS = 5


@dataclass(frozen=True, eq=False)
class Moves(Case):
    """A model and the mean updates of a few rounds."""

    params: Float32s  # (d,)
    updates: Floats  # (rounds, d)


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


def _run(component: Any, case: Moves, keep: Callable[[State], State] = lambda state: state) -> list[Float32s]:
    """Return the parameters after each round."""
    params, state, models = case.params.copy(), NO_STATE, []
    for number, update in enumerate(case.updates, start=1):
        answer = component.apply(params, state, update.copy())
        if not (isinstance(answer, tuple) and len(answer) == 2):
            fail(f"apply must return a pair, the parameters and the state; got {type(answer).__name__}")
        new, state = answer
        params, state = _params_like(params, new, f"in round {number}"), keep(state)
        models.append(params.copy())
    return models


def _params_like(params: Float32s, new: Any, when: str) -> Float32s:
    if not isinstance(new, np.ndarray) or new.shape != params.shape or new.dtype != np.float32:
        got = f"{new.dtype} of shape {new.shape}" if isinstance(new, np.ndarray) else type(new).__name__
        fail(f"{when} the parameters should be float32 of shape {params.shape}; got {got}")
    if not np.isfinite(new).all():
        fail(f"{when} the parameters became {shown(new)}")
    return new.copy()


def _play(component: Any, case: Moves, keep: Callable[[State], State] = lambda state: state) -> list[Outcome]:
    return [
        Outcome(f"after {what} {number} the model was {shown(model)}", model)
        for what, models in (("round", _run(component, case, keep)), ("its lesson", learn_rounds(component, keep)[0]))
        for number, model in enumerate(models, start=1)
    ]


PLAYING = RepeatedRuns(moves, _play)


@define_check(moves)
def a_new_model(subject: Subject, case: Moves) -> None:
    """A server step returns the new (d,) parameters in float32, all finite, and the new state."""
    PLAYING.straight(subject, case)


@define_check(moves)
def where_nobody_moved(subject: Subject, case: Moves) -> None:
    """If the mean update is zero from the start, the model stays as it is."""
    zero = Moves("", case.params, np.zeros_like(case.updates))
    for number, params in enumerate(_run(subject.component, zero), start=1):
        if not np.array_equal(params, case.params):
            fail(f"after {number} rounds of zero updates the model {shown(case.params)} had become {shown(params)}")


@define_check(moves)
def where_the_clients_went(subject: Subject, case: Moves) -> None:
    """If the mean update is the same u in each round, the model moves along u and not against it."""
    component, u = subject.component, case.updates[0]
    if component.trains_server and all(component.trains(generator(0, "coin", number)) for number in range(100)):
        return  # clients are never asked
    for number, params in enumerate(_run(subject.component, Moves("", case.params, np.tile(u, (ROUNDS, 1)))), start=1):
        moved = params.astype(np.float64) - case.params
        if not moved @ u > 0:
            fail(f"after {number} rounds the model had moved by {shown(moved)}, for the update u = {shown(u)}")


@define_check(only=lambda component, _: component.trains_server)
def trains_as_the_coin_says(subject: Subject) -> None:
    """Where a server step trains on the server's own data, the round's stream alone decides when."""
    for number in range(1, 30):
        answers = []
        for seed in (number, number + 1000):  # the first numbers of two seeds alone may be alike
            with other_global_seeds(seed):
                answers.append(subject.component.trains(generator(0, "coin", number)))
        if not all(isinstance(answer, bool | np.bool_) for answer in answers) or answers[0] != answers[1]:
            fail(f"trains() must be the same flag again; got {answers}", f"the stream of round {number}")
