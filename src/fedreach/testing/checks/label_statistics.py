"""Checks of label statistics."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedreach._util.arrays import Ints
from fedreach._util.streams import generator
from fedreach.federation.labels import released_entropy
from fedreach.testing.base import Case, Outcome, RepeatedRuns, Subject, define_check, fail, shown


@dataclass(frozen=True, eq=False)
class Labels(Case):
    """Label counts of some clients."""

    counts: Ints  # (n, c)


def labels() -> Iterator[Labels]:
    """Yield label counts of many clients, of one client, and of clients with one class."""
    rng = generator(0, "testing labels")
    yield Labels("20 clients with 0 to 29 examples of each of 5 classes", rng.integers(0, 30, (20, 5)))
    yield Labels("1 client with 1 example, 2 classes", np.array([[1, 0]]))
    yield Labels("4 clients with one class each", np.eye(4, dtype=np.int64) * 100)


def _play(component: Any, case: Labels) -> list[Outcome]:
    released = component.release(case.counts.copy(), generator(0, "labels"))
    return [Outcome(f"it released {shown(released)}", released)]


PLAYING = RepeatedRuns(labels, _play, has_state=False)


@define_check(labels)
def counts_of_all_clients(subject: Subject, case: Labels) -> None:
    """Released counts are (n, c) float64 numbers, which are finite unless only their sum is released."""
    ((_, released),) = PLAYING.straight(subject, case)
    if not isinstance(released, np.ndarray) or released.shape != case.counts.shape:
        fail(f"release should return an array of shape {case.counts.shape}; got {shown(released)}")
    if released.dtype != np.float64 or not (subject.component.only_sum or np.isfinite(released).all()):
        fail(f"released counts should be finite numbers in float64; got {released.dtype}: {shown(released)}")


@define_check(labels, lambda component, _: not component.only_sum)
def entropies_in_range(subject: Subject, case: Labels) -> None:
    """The label entropies of the released counts are between 0 and ln c nats."""
    ((_, released),) = PLAYING.straight(subject, case)
    entropy, largest = released_entropy(released), np.log(case.counts.shape[1])
    if not ((entropy >= -1e-6) & (entropy <= largest + 1e-6)).all():
        fail(f"the entropies should be from 0 to {largest:.6g}; got {shown(entropy)}")
