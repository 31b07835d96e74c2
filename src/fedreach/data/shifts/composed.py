"""Several shifts, one after the other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedreach.data.shifts.base import Examples, InputScale, Shift
from fedreach.errors import ConfigError


@dataclass(frozen=True)
class Composed:
    """Apply several shifts, each to what the one before it left: images are made darker, say, and then turned.

    In an experiment: ``parts = [{ name = "brightness", strength = -0.3 }, { name = "rotation", strength = 20.0 }]``.

    When: clients differ in several ways at once, as they mostly do.

    Args:
        parts: The shifts in their order, at least one.

    Raises:
        ConfigError: If there is none, or one is no shift.

    Example:
        >>> from fedreach.data.shifts.labels import OneClass, PermutedLabels
        >>> scale = InputScale("toy", "tokens", 2, np.zeros(1), np.ones(1))
        >>> three = Examples(np.zeros((3, 4), np.uint8), np.array([0, 1, 1]), np.arange(3))
        >>> Composed((OneClass(), PermutedLabels())).shifted(three, scale, np.random.default_rng(0)).y
        array([0, 0])
    """

    parts: tuple[Shift, ...]

    def __post_init__(self) -> None:
        parts = tuple(self.parts)
        if not parts:
            raise ConfigError("Composed.parts must have at least one shift in it; got none.")
        for part in parts:
            if isinstance(part, (type, str)) or not hasattr(part, "shifted"):
                raise ConfigError(
                    f"Composed.parts must be shifts, such as Brightness(0.3); got {part!r}. Names of shifts stand for "
                    "them in experiment files only."
                )
        object.__setattr__(self, "parts", parts)

    def shifted(self, examples: Examples, scale: InputScale, rng: np.random.Generator) -> Examples:
        for part in self.parts:
            examples = part.shifted(examples, scale, rng)
        return examples
