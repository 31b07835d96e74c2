"""Checks of server optimizers; optimizers that train on the server's data are checked with softmax regression."""

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
    """Softmax regression without bias in numpy, with the interface `ServerOperations`."""

    x: Floats  # (EXAMPLES, INPUTS)
    y: Ints
    round: int
    local: Float32s  # (r, D) local models of the clients
    rng: np.random.Generator = field(init=False)
    requests: list[tuple[str, Ints]] = field(default_factory=list)  # kind of each request, and its examples
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
        """Return the model after one gradient step on the mean cross-entropy with (b, CLASSES) target probabilities."""
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
    """Return the (b, c) probabilities of the classes."""
    return np.asarray(np.exp(log_softmax(logits.astype(np.float64))))


def server_data(number: int) -> Regression:
    """Return the server's data in a round; the clients' models differ between rounds."""
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
    """Return the model after each round, and the data with the requests; empty if the server does not train."""
    params, state, models, looked = first_model(), NO_STATE, [], []
    if not (component.trains_server or component.tunes_server):
        return [], []
    for number in range(1, rounds + 1):
        data = change(server_data(number))
        new, state = component.learn(params, state, data)
        params, state = _params_like(params, new, f"after learning in round {number}"), keep(state)
        models.append(params.copy())
        looked.append(data)
    return models, looked


# -------------------- Checks of servers that train on their data


@define_check()
def other_batches_in_other_rounds(subject: Subject) -> None:
    """The server draws different batches in each round, unless a batch contains all of its data."""
    drawn = []
    for data in learn_rounds(subject.component)[1]:
        batches = [*data.batches("step"), *data.batches("distill")]
        if batches and all(len(batch) < data.drawn_from for batch in batches):
            drawn.append(tuple(batch.tobytes() for batch in batches))
    if len(drawn) > 1 and len(set(drawn)) < len(drawn):
        fail(f"only {len(set(drawn))} of {len(drawn)} rounds had different batches", f"{EXAMPLES} examples")


@define_check()
def declares_reads_updates(subject: Subject) -> None:
    """A server that reads the clients' local models declares `reads_updates = True`."""
    if any(data.read_locals for data in learn_rounds(subject.component)[1]) and not subject.component.reads_updates:
        fail("it read local models; set `reads_updates = True`")


ROUNDS = 5


@dataclass(frozen=True, eq=False)
class Moves(Case):
    """A model and the mean updates of several rounds."""

    params: Float32s  # (d,)
    updates: Floats  # (rounds, d)


def moves() -> Iterator[Moves]:
    """Yield models of several sizes, with mean updates of several sizes."""
    rng = generator(0, "testing moves")
    for d in (1, 5, 1000):
        yield Moves(
            f"{ROUNDS} rounds of a model of {d} parameters",
            rng.standard_normal(d).astype(np.float32),
            0.1 * rng.standard_normal((ROUNDS, d)),
        )
    start = rng.standard_normal(6).astype(np.float32)
    yield Moves(
        "a model of 6 parameters, three of which are not updated", start, np.tile([0, 0, 0, 1e-12, 1, 1e6], (3, 1))
    )


def _run(component: Any, case: Moves, keep: Callable[[State], State] = lambda state: state) -> list[Float32s]:
    """Return the parameters after each round."""
    params, state, models = case.params.copy(), NO_STATE, []
    for number, update in enumerate(case.updates, start=1):
        answer = component.apply(params, state, update.copy())
        if not (isinstance(answer, tuple) and len(answer) == 2):
            fail(f"apply must return the parameters and the state; got {type(answer).__name__}")
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
        for what, models in (("round", _run(component, case, keep)), ("learning", learn_rounds(component, keep)[0]))
        for number, model in enumerate(models, start=1)
    ]


PLAYING = RepeatedRuns(moves, _play)


@define_check(moves)
def a_new_model(subject: Subject, case: Moves) -> None:
    """A server optimizer returns the new (d,) parameters as finite float32 numbers, and the new state."""
    PLAYING.straight(subject, case)


@define_check(moves)
def zero_updates_change_nothing(subject: Subject, case: Moves) -> None:
    """If all mean updates are zero, the model does not change."""
    zero = Moves("", case.params, np.zeros_like(case.updates))
    for number, params in enumerate(_run(subject.component, zero), start=1):
        if not np.array_equal(params, case.params):
            fail(f"after {number} rounds of zero updates, {shown(case.params)} became {shown(params)}")


@define_check(moves)
def moves_along_the_update(subject: Subject, case: Moves) -> None:
    """If the mean update is the same u in each round, the change of the model has a positive scalar product with u."""
    component, u = subject.component, case.updates[0]
    if component.trains_server and all(component.trains(generator(0, "coin", number)) for number in range(100)):
        return  # clients never train
    for number, params in enumerate(_run(subject.component, Moves("", case.params, np.tile(u, (ROUNDS, 1)))), start=1):
        moved = params.astype(np.float64) - case.params
        if not moved @ u > 0:
            fail(f"after {number} rounds, the model changed by {shown(moved)} for the update u = {shown(u)}")


@define_check(only=lambda component, _: component.trains_server)
def training_depends_on_the_stream(subject: Subject) -> None:
    """In which rounds the server trains on its data depends only on the random stream of the round."""
    for number in range(1, 30):
        answers = []
        for seed in (number, number + 1000):  # different seeds, because the first numbers of two seeds may be equal
            with other_global_seeds(seed):
                answers.append(subject.component.trains(generator(0, "coin", number)))
        if not all(isinstance(answer, bool | np.bool_) for answer in answers) or answers[0] != answers[1]:
            fail(f"trains() must return the same Boolean when repeated; got {answers}", f"the stream of round {number}")
