"""Checks of server steps that learn from the server's own data, tried on softmax regression in numpy."""

from dataclasses import replace
from typing import Any

import numpy as np

from fedreach.testing.base import Subject, define_check, fail, must_be_close, same, shown
from fedreach.testing.checks.server import (
    CLASSES,
    CLIENTS,
    EXAMPLES,
    D,
    Regression,
    first_model,
    learn_rounds,
    server_data,
    softmax,
)

from .running import each_method, must_pass

# ---------------------------------------------------------------------------------------------------- the server alone


@define_check()
def as_many_steps_as_it_says(subject: Subject) -> None:
    """Without early stopping each round is `steps` gradient steps on batches of `batch_size`."""
    _goes_by_hand(subject.make(lr=0.5, batch_size=5, steps=3, held_out=None, patience=None), steps=3, lr=0.5)


@define_check()
def stops_by_what_it_holds_out(subject: Subject) -> None:
    """With early stopping the model is the one with the lowest loss on examples that are never trained on.

    After `patience` rounds without a lower one nothing moves any more. The check follows it by hand.
    """
    lr, share, patience, rounds = 1.0, 0.5, 3, 40
    component = subject.make(lr=lr, batch_size=5, steps=2, held_out=share, patience=patience)
    models, looked = learn_rounds(component, rounds=rounds)
    known, best = server_data(1), first_model()
    train, held_out = known.split(share)
    at, lowest, waited = best, known.loss(best, held_out), 0
    for number, (own, got) in enumerate(zip(looked, models, strict=True), start=1):
        case = f"round {number}, {len(held_out)} of {EXAMPLES} examples held out, patience {patience}"
        taken = own.batches("step")
        if waited >= patience:
            if taken:
                fail(f"it trains, {waited} rounds after the lowest loss", case)
        else:
            if len(taken) != 2 or not all(np.isin(batch, train).all() for batch in taken):
                fail("it should take 2 steps, on none of the examples that are held out", case)
            for batch in taken:
                at = known.moved(at, batch, np.eye(CLASSES)[known.y[batch]], lr)
            loss, waited = known.loss(at, held_out), waited + 1
            if loss < lowest:
                best, lowest, waited = at, loss, 0
        must_be_close("the model", got, best, case, rule="the one with the lowest loss on what is held out")
    if waited < patience:
        fail(f"training did not stop in {rounds} rounds, at a learning rate of {lr:g}")


SERVER_ONLY = (as_many_steps_as_it_says, stops_by_what_it_holds_out)


# --------------------------------------------------------------------------------------------------------- fine-tuning


@define_check()
def sgd_from_the_aggregated_model(subject: Subject) -> None:
    """Fine-tuning is `steps` gradient steps on batches of the server's data, or those of so many epochs."""
    _goes_by_hand(subject.make(lr=0.5, batch_size=5, steps=3), steps=3, lr=0.5)
    looked = _goes_by_hand(subject.make(lr=0.5, batch_size=40, steps=None, epochs=2), steps=6, lr=0.5)
    for epoch in (slice(0, 3), slice(3, 6)):
        seen = np.concatenate(looked[0].batches("step")[epoch])
        if not np.array_equal(np.sort(seen), np.arange(EXAMPLES)):
            fail("an epoch should see each example once", f"{EXAMPLES} examples, batches of 40")


@define_check()
def tunes_when_it_says(subject: Subject) -> None:
    """The server goes on after each round, or after the last one only; with 0 steps never."""
    for when, wanted in (("each_round", [True] * 4), ("end", [False, False, False, True])):
        got = [subject.make(when=when, steps=1).tunes(number, 4) for number in (1, 2, 3, 4)]
        if got != wanted:
            fail(f"it tunes after rounds 1 to 4: {got}; wanted {wanted}", f"when = {when!r}, 4 rounds")
        if any(subject.make(when=when, steps=0).tunes(number, 4) for number in (1, 2, 3, 4)):
            fail("it tunes with 0 steps, which should be `inner` bit for bit", f"when = {when!r}")


FINE_TUNE = (sgd_from_the_aggregated_model, tunes_when_it_says)


# ---------------------------------------------------------------------------------------------------------- distilling


@define_check()
def distils_the_mean_of_the_logits(subject: Subject) -> None:
    """Each step follows KL(softmax(mean of the clients' logits) || softmax(logits)), every client counting alike.

    Reference: Lin et al. 2020, eq. 1 (AVGLOGITS)
    """
    lr = 0.5
    models, looked = learn_rounds(subject.make(lr=lr, batch_size=5, steps=3))
    params = first_model()
    for number, (own, got) in enumerate(zip(looked, models, strict=True), start=1):
        known, taken = server_data(number), own.batches("distill")
        if [len(batch) for batch in taken] != [5, 5, 5]:
            fail(f"it should distil 3 batches of 5; got {[len(batch) for batch in taken]}", f"round {number}")
        for batch in taken:
            teacher = np.mean([known.outputs(local, batch) for local in known.local], axis=0)
            params = known.moved(params, batch, softmax(teacher), lr)
        must_be_close("the model", got, params, f"round {number}, {CLIENTS} clients, 3 steps of {lr}", 1e-5)


@define_check()
def labels_are_not_looked_at(subject: Subject) -> None:
    """Other labels of the server's inputs change nothing."""
    component = subject.make(batch_size=5, steps=3)
    plain, other = (
        learn_rounds(component, change=change)[0]
        for change in (lambda own: own, lambda own: replace(own, y=(own.y + 1) % CLASSES))
    )
    for number, (a, b) in enumerate(zip(plain, other, strict=True), start=1):
        if not same(a, b):
            fail(f"the model was {shown(a)}, and {shown(b)} with other labels", f"round {number}")


@define_check()
def who_agrees_teaches_nothing(subject: Subject) -> None:
    """Where all clients' models are the student, it stays; without any report, too."""
    component, start = subject.make(lr=0.5, batch_size=5, steps=3), first_model()
    for words, local in (("all local models are the student", np.tile(start, (CLIENTS, 1))), ("no report", start[:0])):
        local = local.reshape(-1, D)
        (got,), _ = learn_rounds(component, rounds=1, change=lambda own, local=local: replace(own, local=local))  # type: ignore[misc]
        must_be_close("the model", got, start, words, 1e-6)


FEDDF = (distils_the_mean_of_the_logits, labels_are_not_looked_at, who_agrees_teaches_nothing)


def _goes_by_hand(component: Any, *, steps: int, lr: float) -> list[Regression]:
    """Follow a part by hand over the batches that it draws; return what it looked at."""
    models, looked = learn_rounds(component)
    known, params = server_data(1), first_model()
    for number, (own, got) in enumerate(zip(looked, models, strict=True), start=1):
        taken = own.batches("step")
        if len(taken) != steps or any(len(np.unique(batch)) != len(batch) for batch in taken):
            fail(f"it should take {steps} steps, on each example once a batch; it took {len(taken)}")
        for batch in taken:
            params = known.moved(params, batch, np.eye(CLASSES)[known.y[batch]], lr)
        must_be_close("the model", got, params, f"round {number}, {steps} steps of {lr}", 1e-5)
    return looked


METHOD_CHECKS = {"server_only": SERVER_ONLY, "fine_tune": FINE_TUNE, "feddf": FEDDF}


@each_method("server", METHOD_CHECKS)
def test_a_method_passes_its_checks(kind, name, check):
    must_pass(kind, name, check)
