"""Laws of weightings, tried on reports of a few rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedreach.arrays import Floats, Ints
from fedreach.federation.contract import checked_weights
from fedreach.federation.round import NO_STATE
from fedreach.federation.values import Reports, State
from fedreach.testing.contract.any_part import options_are_all_it_is
from fedreach.testing.inputs import Heard, heard
from fedreach.testing.law import Subject, broken, law, same, told
from fedreach.testing.watching import Watched, other_global_seeds, through_a_file


@law(heard)
def simplex(subject: Subject, given: Heard) -> None:
    """The weights are not negative and sum to 1, one for each report."""
    _weigh(subject.part, given)


@law(heard)
def order_does_not_count(subject: Subject, given: Heard) -> None:
    """Reports in another order, by clients with other ids, get their weights in that order."""
    for hear in given.rounds[:1]:
        reports = _reports(subject.part, hear)
        straight = _weights(subject.part, reports)
        r = len(reports.ids)
        for order in (np.arange(r)[::-1], np.roll(np.arange(r), 1)):
            other = _weights(subject.part, _picked(reports, order))
            if not np.allclose(other, straight[order], rtol=1e-9, atol=1e-12):
                broken(f"the weights were {told(straight)}; with the reports in the order {told(order)}, {told(other)}")


@law(heard)
def same_again(subject: Subject, given: Heard) -> None:
    """The same state and reports give the same weights, whatever was done with the weighting before."""
    with other_global_seeds(1):
        first = _weigh(subject.part, given)
    with other_global_seeds(2):
        second = _weigh(subject.part, given)
    _alike(first, second, "when asked again; draw no random numbers, keep nothing in `self`")


@law(heard)
def arguments_untouched(subject: Subject, given: Heard) -> None:
    """A weighting does not write to its arguments: state and reports."""
    _weigh(Watched(subject.part), given)


@law(heard)
def going_on_from_a_file(subject: Subject, given: Heard) -> None:
    """The state consists of named arrays; a run that is stored after each round and read again goes on alike."""
    straight = _weigh(subject.part, given)
    _alike(straight, _weigh(subject.part, given, keep=through_a_file), "with the state read from a file")


@law(heard)
def raw_gives_the_weights(subject: Subject, given: Heard) -> None:
    """Where there is a method `raw`, its numbers divided by their sum are the weights."""
    if not hasattr(subject.part, "raw"):
        return
    reports = _reports(subject.part, given.rounds[0])
    raw, weights = np.asarray(subject.part.raw(reports.metrics)), _weights(subject.part, reports)
    if raw.shape != weights.shape or not np.isfinite(raw).all() or (raw < 0).any() or raw.sum() <= 0:
        broken(f"raw must be {len(weights)} numbers that are not negative and not all 0; got {told(raw)}")
    if not np.allclose(raw / raw.sum(), weights, rtol=1e-9, atol=1e-12):
        broken(f"raw / its sum is {told(raw / raw.sum())}, the weights are {told(weights)}")


@law(heard)
def raw_is_each_clients_own(subject: Subject, given: Heard) -> None:
    """Each number of `raw` depends on that client's own metrics only, so that the client can compute it alone."""
    if not hasattr(subject.part, "raw"):
        return
    metrics = _reports(subject.part, given.rounds[0]).metrics
    together = np.asarray(subject.part.raw(metrics))
    for i, number in enumerate(together):
        alone = np.asarray(subject.part.raw({key: values[i : i + 1] for key, values in metrics.items()}))
        if not np.allclose(alone, number, rtol=1e-9, atol=0):
            broken(f"client {i} of {len(together)} gets {number:.9g} among the others, and {told(alone)} alone")


LAWS = (
    simplex,
    order_does_not_count,
    same_again,
    arguments_untouched,
    going_on_from_a_file,
    raw_gives_the_weights,
    raw_is_each_clients_own,
    options_are_all_it_is,
)


def _reports(part: Any, hear: Callable[..., Reports]) -> Reports:
    return hear(getattr(part, "needs", ()), getattr(part, "measures", ()))


def _weights(part: Any, reports: Reports) -> Floats:
    return checked_weights(part, part.weights(NO_STATE, reports), len(reports.ids))[0]


def _weigh(part: Any, given: Heard, keep: Callable[[State], State] = lambda state: state) -> list[Floats]:
    """Return the weights of each round."""
    state: State = NO_STATE
    answers = []
    for hear in given.rounds:
        reports = _reports(part, hear)
        weights, state = checked_weights(part, part.weights(state, reports), len(reports.ids))
        state = keep(state)
        answers.append(weights.copy())
    return answers


def _picked(reports: Reports, order: Ints) -> Reports:
    metrics: Mapping[str, Floats] = {key: values[order] for key, values in reports.metrics.items()}
    counts = None if reports.label_counts is None else reports.label_counts[order]
    return replace(reports, update=reports.update[order], metrics=metrics, label_counts=counts)


def _alike(first: list[Floats], second: list[Floats], how: str) -> None:
    for number, (a, b) in enumerate(zip(first, second, strict=True), start=1):
        if not same(a, b):
            broken(f"in round {number} the weights were {told(a)}, and {told(b)} {how}")
