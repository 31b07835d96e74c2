"""Shifts of labels: what inputs mean, and which classes a client has; for data of any kind."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedreach.data.shifts.base import Examples, InputScale
from fedreach.errors import require


@dataclass(frozen=True)
class PermutedLabels:
    """Concept shift: the client calls some classes by each other's names, in a circle of its own.

    round(strength C) classes, and at least two where the strength is not 0, are drawn; each takes the name of the next.
    No rule that sees inputs alone can know.

    When: clients mean other things by the same label. No rule that sees inputs alone can mend that: a test of harm.

    Args:
        strength: Share of the C classes, from 0 to 1.

    Example:
        >>> scale = InputScale("toy", "tokens", 2, np.zeros(1), np.ones(1))
        >>> three = Examples(np.zeros((3, 4), np.uint8), np.array([0, 1, 1]), np.arange(3))
        >>> PermutedLabels().shifted(three, scale, np.random.default_rng(0)).y
        array([1, 0, 0])
    """

    strength: float = 1.0

    def __post_init__(self) -> None:
        require(self, strength="[0, 1]")

    def shifted(self, examples: Examples, scale: InputScale, rng: np.random.Generator) -> Examples:
        count = min(scale.num_classes, max(2, round(self.strength * scale.num_classes))) if self.strength else 0
        circle = rng.permutation(scale.num_classes)[:count]
        names = np.arange(scale.num_classes)
        names[circle] = np.roll(circle, -1)
        return replace(examples, y=names[examples.y])


@dataclass(frozen=True)
class OneClass:
    """The client has its most frequent class only: the strongest label shift. Of two as frequent, the first counts.

    round(strength m') of the client's m' examples of other classes are dropped, drawn at random.

    When: the extreme of label shift: what an estimate of class shares gains at most.

    Args:
        strength: Share of the other classes' examples that are dropped, from 0 to 1.

    Example:
        >>> scale = InputScale("toy", "tokens", 3, np.zeros(1), np.ones(1))
        >>> four = Examples(np.zeros((4, 2), np.uint8), np.array([0, 2, 1, 2]), np.arange(4))
        >>> OneClass().shifted(four, scale, np.random.default_rng(0)).index
        array([1, 3])
    """

    strength: float = 1.0

    def __post_init__(self) -> None:
        require(self, strength="[0, 1]")

    def shifted(self, examples: Examples, scale: InputScale, rng: np.random.Generator) -> Examples:
        most = int(np.bincount(examples.y, minlength=scale.num_classes).argmax())
        others = rng.permutation(np.flatnonzero(examples.y != most))
        kept = np.ones(len(examples.y), np.bool_)
        kept[others[: round(self.strength * len(others))]] = False
        return examples.only(kept)
