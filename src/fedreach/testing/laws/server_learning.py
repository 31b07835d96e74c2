"""Laws of server steps that learn from the server's own data, tried on softmax regression in numpy."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedreach.arrays import Float32s, Floats, Ints
from fedreach.federation.steps import server_batches, server_split
from fedreach.federation.traits import Traits
from fedreach.federation.values import NO_STATE, State
from fedreach.streams import generator
from fedreach.testing.law import Law, Subject, broken, law, must_be_close, same, shown
from fedreach.testing.laws.any_part import as_it_is

EXAMPLES, INPUTS, CLASSES, CLIENTS, ROUNDS, SEED = 100, 10, 4, 3, 8, 3
D = INPUTS * CLASSES


@dataclass(eq=False)
class Regression:
    """The `OwnData` of softmax regression without bias, in numpy: every number is known."""

    x: Floats  # (EXAMPLES, INPUTS)
    y: Ints
    round: int
    local: Float32s  # (r, D) the clients' local models
    rng: np.random.Generator = field(init=False)
    seen: list[tuple[str, Ints]] = field(default_factory=list)  # what it was asked for, and of which examples
    read_locals: bool = False
    drawn_from: int = EXAMPLES

    def __post_init__(self) -> None:
        self.rng = server_batches(SEED, self.round)

    @property
    def examples(self) -> int:
        return len(self.y)

    def split(self, held_out: float) -> tuple[Ints, Ints]:
        train, rest = server_split(self.y, held_out, SEED)
        self.drawn_from = len(train)
        return train, rest

    def step(self, params: Float32s, index: Ints, rate: float) -> Float32s:
        self.seen.append(("step", index))
        return self.moved(params, index, np.eye(CLASSES)[self.y[index]], rate)

    def distill(self, params: Float32s, index: Ints, teacher: Float32s, rate: float) -> Float32s:
        self.seen.append(("distill", index))
        return self.moved(params, index, softmax(teacher), rate)

    def moved(self, params: Float32s, index: Ints, target: Floats, rate: float) -> Float32s:
        """Return the model after one step down the gradient of the mean cross-entropy to (b, CLASSES) shares."""
        away = softmax(self.outputs(params, index)) - target
        gradient = self.x[index].T @ away / len(index)
        return (params - rate * gradient.reshape(-1)).astype(np.float32)

    def outputs(self, params: Float32s, index: Ints) -> Floats:
        return self.x[index] @ params.astype(np.float64).reshape(INPUTS, CLASSES)

    def logits(self, params: Float32s, index: Ints) -> Float32s:
        return self.outputs(params, index).astype(np.float32)

    def loss(self, params: Float32s, index: Ints) -> float:
        self.seen.append(("loss", index))
        shares = softmax(self.outputs(params, index))
        return float(-np.log(shares[np.arange(len(index)), self.y[index]]).mean())

    def local_models(self) -> Iterator[Float32s]:
        self.read_locals = True
        yield from self.local

    def batches(self, kind: str) -> list[Ints]:
        """Return the examples of each request of a kind."""
        return [index for asked, index in self.seen if asked == kind]


def softmax(logits: Floats | Float32s) -> Floats:
    """Return (b, c) shares of the classes."""
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def school(number: int) -> Regression:
    """Return the data of the server in a round; clients' models differ from round to round."""
    rng = generator(0, "testing server data")
    y = rng.integers(CLASSES, size=EXAMPLES)
    x = np.eye(CLASSES, INPUTS)[y] + rng.standard_normal((EXAMPLES, INPUTS))
    local = generator(0, "testing local models", number).standard_normal((CLIENTS, D)).astype(np.float32)
    return Regression(x, y, number, local)


def first_model() -> Float32s:
    return generator(0, "testing first model").standard_normal(D).astype(np.float32)


def lessons(
    part: Any,
    keep: Callable[[State], State] = as_it_is,
    *,
    rounds: int = ROUNDS,
    change: Callable[[Regression], Regression] = lambda own: own,
) -> tuple[list[Float32s], list[Regression]]:
    """Return the models after each round in which the server learns, and what it looked at; none of others."""
    params, state, models, looked = first_model(), NO_STATE, [], []
    if not callable(getattr(part, "learn", None)):
        return [], []
    for number in range(1, rounds + 1):
        own = change(school(number))
        new, state = part.learn(params, state, own)
        if not isinstance(new, np.ndarray) or new.shape != params.shape or new.dtype != np.float32:
            found = f"{new.dtype} of shape {new.shape}" if isinstance(new, np.ndarray) else type(new).__name__
            broken(f"learn should return float32 parameters of shape {params.shape}; got {found}", f"round {number}")
        params, state = new.copy(), keep(state)
        models.append(params.copy())
        looked.append(own)
    return models, looked


# ----------------------------------------------------------------------------------------------- of all that learn


@law()
def other_batches_in_other_rounds(subject: Subject) -> None:
    """Batches that are not all of the server's data are drawn anew in every round."""
    looked = lessons(subject.part)[1]
    taken = [[*own.batches("step"), *own.batches("distill")] for own in looked]
    drawn = [
        tuple(batch.tobytes() for batch in batches)
        for own, batches in zip(looked, taken, strict=True)
        if batches and all(len(batch) < own.drawn_from for batch in batches)
    ]
    if len(drawn) > 1 and len(set(drawn)) < len(drawn):
        broken(
            f"of {len(drawn)} rounds only {len(set(drawn))} had batches of their own",
            f"{EXAMPLES} examples of the server, batches of {len(taken[0][0])}",
        )


@law()
def says_that_it_reads_updates(subject: Subject) -> None:
    """A server step that looks at the clients' local models says so: `reads_updates = True`."""
    if any(own.read_locals for own in lessons(subject.part)[1]) and not Traits.of(subject.part).reads_updates:
        broken("it asked for local models; `reads_updates` is not set")


LEARNING: tuple[Law, ...] = (other_batches_in_other_rounds, says_that_it_reads_updates)


# ---------------------------------------------------------------------------------------------------- the server alone


@law()
def as_many_steps_as_it_says(subject: Subject) -> None:
    """Without early stopping each round is `steps` gradient steps on batches of `batch_size`."""
    _goes_by_hand(subject.make(rate=0.5, batch_size=5, steps=3, held_out=None, patience=None), steps=3, rate=0.5)


@law()
def stops_by_what_it_holds_out(subject: Subject) -> None:
    """With early stopping the model is the one with the lowest loss on examples that are never trained on.

    After `patience` rounds without a lower one nothing moves any more. The law follows it by hand.
    """
    rate, share, patience, rounds = 1.0, 0.5, 3, 40
    part = subject.make(rate=rate, batch_size=5, steps=2, held_out=share, patience=patience)
    models, looked = lessons(part, rounds=rounds)
    known, best = school(1), first_model()
    train, held_out = known.split(share)
    at, lowest, waited = best, known.loss(best, held_out), 0
    for number, (own, got) in enumerate(zip(looked, models, strict=True), start=1):
        given = f"round {number}, {len(held_out)} of {EXAMPLES} examples held out, patience {patience}"
        taken = own.batches("step")
        if waited >= patience:
            if taken:
                broken(f"it trains, {waited} rounds after the lowest loss", given)
        else:
            if len(taken) != 2 or not all(np.isin(batch, train).all() for batch in taken):
                broken("it should take 2 steps, on none of the examples that are held out", given)
            for batch in taken:
                at = known.moved(at, batch, np.eye(CLASSES)[known.y[batch]], rate)
            loss, waited = known.loss(at, held_out), waited + 1
            if loss < lowest:
                best, lowest, waited = at, loss, 0
        must_be_close("the model", got, best, given, rule="the one with the lowest loss on what is held out")
    if waited < patience:
        broken(f"training did not stop in {rounds} rounds, at a rate of {rate:g}")


SERVER_ONLY: tuple[Law, ...] = (as_many_steps_as_it_says, stops_by_what_it_holds_out)


# --------------------------------------------------------------------------------------------------------- fine-tuning


@law()
def sgd_from_the_aggregated_model(subject: Subject) -> None:
    """Fine-tuning is `steps` gradient steps on batches of the server's data, or those of so many epochs."""
    _goes_by_hand(subject.make(rate=0.5, batch_size=5, steps=3), steps=3, rate=0.5)
    looked = _goes_by_hand(subject.make(rate=0.5, batch_size=40, steps=None, epochs=2), steps=6, rate=0.5)
    for epoch in (slice(0, 3), slice(3, 6)):
        seen = np.concatenate(looked[0].batches("step")[epoch])
        if not np.array_equal(np.sort(seen), np.arange(EXAMPLES)):
            broken("an epoch should see each example once", f"{EXAMPLES} examples, batches of 40")


@law()
def tunes_when_it_says(subject: Subject) -> None:
    """The server goes on after each round, or after the last one only; with 0 steps never."""
    for when, wanted in (("each_round", [True] * 4), ("end", [False, False, False, True])):
        got = [subject.make(when=when, steps=1).tunes(number, 4) for number in (1, 2, 3, 4)]
        if got != wanted:
            broken(f"it tunes after rounds 1 to 4: {got}; wanted {wanted}", f"when = {when!r}, 4 rounds")
        if any(subject.make(when=when, steps=0).tunes(number, 4) for number in (1, 2, 3, 4)):
            broken("it tunes with 0 steps, which should be `inner` bit for bit", f"when = {when!r}")


FINE_TUNE: tuple[Law, ...] = (sgd_from_the_aggregated_model, tunes_when_it_says)


# ---------------------------------------------------------------------------------------------------------- distilling


@law()
def distils_the_mean_of_the_logits(subject: Subject) -> None:
    """Each step follows KL(softmax(mean of the clients' logits) || softmax(logits)), every client counting alike.

    Reference: Lin et al. 2020, eq. 1 (AVGLOGITS)
    """
    rate = 0.5
    models, looked = lessons(subject.make(rate=rate, batch_size=5, steps=3))
    params = first_model()
    for number, (own, got) in enumerate(zip(looked, models, strict=True), start=1):
        known, taken = school(number), own.batches("distill")
        if [len(batch) for batch in taken] != [5, 5, 5]:
            broken(f"it should distil 3 batches of 5; got {[len(batch) for batch in taken]}", f"round {number}")
        for batch in taken:
            teacher = np.mean([known.outputs(local, batch) for local in known.local], axis=0)
            params = known.moved(params, batch, softmax(teacher), rate)
        must_be_close("the model", got, params, f"round {number}, {CLIENTS} clients, 3 steps of rate {rate}", 1e-5)


@law()
def labels_are_not_looked_at(subject: Subject) -> None:
    """Other labels of the server's inputs change nothing."""
    part = subject.make(batch_size=5, steps=3)
    plain, other = (
        lessons(part, change=change)[0]
        for change in (lambda own: own, lambda own: replace(own, y=(own.y + 1) % CLASSES))
    )
    for number, (a, b) in enumerate(zip(plain, other, strict=True), start=1):
        if not same(a, b):
            broken(f"the model was {shown(a)}, and {shown(b)} with other labels", f"round {number}")


@law()
def who_agrees_teaches_nothing(subject: Subject) -> None:
    """Where all clients' models are the student, it stays; without any report, too."""
    part, start = subject.make(rate=0.5, batch_size=5, steps=3), first_model()
    for words, local in (("all local models are the student", np.tile(start, (CLIENTS, 1))), ("no report", start[:0])):
        local = local.reshape(-1, D)
        (got,), _ = lessons(part, rounds=1, change=lambda own, local=local: replace(own, local=local))  # type: ignore[misc]
        must_be_close("the model", got, start, words, 1e-6)


FEDDF: tuple[Law, ...] = (distils_the_mean_of_the_logits, labels_are_not_looked_at, who_agrees_teaches_nothing)


def _goes_by_hand(part: Any, *, steps: int, rate: float) -> list[Regression]:
    """Follow a part by hand over the batches that it draws; return what it looked at."""
    models, looked = lessons(part)
    known, params = school(1), first_model()
    for number, (own, got) in enumerate(zip(looked, models, strict=True), start=1):
        taken = own.batches("step")
        if len(taken) != steps or any(len(np.unique(batch)) != len(batch) for batch in taken):
            broken(f"it should take {steps} steps, on each example once a batch; it took {len(taken)}")
        for batch in taken:
            params = known.moved(params, batch, np.eye(CLASSES)[known.y[batch]], rate)
        must_be_close("the model", got, params, f"round {number}, {steps} steps of rate {rate}", 1e-5)
    return looked
