"""Laws of what the server is told of clients' labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedreach.arrays import Floats, Ints
from fedreach.federation.labels import released_entropy
from fedreach.streams import generator
from fedreach.testing.contract.any_part import options_are_all_it_is
from fedreach.testing.law import Subject, broken, law, same, told
from fedreach.testing.watching import Watched, other_global_seeds


@dataclass(frozen=True, eq=False)
class Labels:
    """Label counts of some clients."""

    words: str
    counts: Ints  # (n, c)

    def __str__(self) -> str:
        return self.words


def labels() -> Iterator[Labels]:
    """Yield label counts of many clients, of one, and of clients with a single class."""
    rng = generator(0, "testing labels")
    yield Labels("20 clients with 0 to 29 examples of each of 5 classes", rng.integers(0, 30, (20, 5)))
    yield Labels("one client with 1 example of 2 classes", np.array([[1, 0]]))
    yield Labels("4 clients with a single class each", np.eye(4, dtype=np.int64) * 100)


@law(labels)
def counts_of_everybody(subject: Subject, given: Labels) -> None:
    """What is released is (n, c) numbers in float64, finite unless only sums are shown."""
    told_counts = _release(subject.part, given.counts)
    if not isinstance(told_counts, np.ndarray) or told_counts.shape != given.counts.shape:
        broken(f"release should return an array of shape {given.counts.shape}; got {told(told_counts)}")
    if told_counts.dtype != np.float64 or not (subject.part.only_sum or np.isfinite(told_counts).all()):
        broken(f"released counts should be finite numbers in float64; got {told_counts.dtype}: {told(told_counts)}")


@law(labels)
def entropies_in_range(subject: Subject, given: Labels) -> None:
    """The label entropies that follow from what is released are between 0 and ln c nats."""
    if subject.part.only_sum:
        return
    entropy, most = released_entropy(_release(subject.part, given.counts)), np.log(given.counts.shape[1])
    if not ((entropy >= -1e-12) & (entropy <= most + 1e-12)).all():
        broken(f"the entropies are {told(entropy)}, with ln c = {most:.6g}")


@law(labels)
def same_again(subject: Subject, given: Labels) -> None:
    """The same counts and stream release the same numbers."""
    with other_global_seeds(1):
        first = _release(subject.part, given.counts)
    with other_global_seeds(2):
        second = _release(subject.part, given.counts)
    if not same(first, second):
        broken(f"it released {told(first)}, and {told(second)} again; draw from the `rng` that is handed in")


@law(labels)
def arguments_untouched(subject: Subject, given: Labels) -> None:
    """Releasing does not write to the counts."""
    _release(Watched(subject.part), given.counts)


LAWS = (counts_of_everybody, entropies_in_range, same_again, arguments_untouched, options_are_all_it_is)


def _release(part: Any, counts: Ints) -> Floats:
    released: Floats = part.release(counts.copy() if not isinstance(part, Watched) else counts, generator(0, "labels"))
    return released
