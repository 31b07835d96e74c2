"""Shifts of how bright inputs are: what another lamp, scanner or sensor does; for images and for features.

The unit of a strength is 255 for images, whose pixels are then clipped as a camera clips them, and the standard
deviation of each feature.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedreach.data.shifts.base import Examples, InputScale
from fedreach.errors import require


@dataclass(frozen=True)
class Brightness:
    """Make inputs brighter or darker: x + strength * unit.

    Where nothing is clipped this is alpha x + beta, which the guard of `label_shift` can undo.

    When: light or exposure differs between clients: other scanners, other times of the day.

    Args:
        strength: From -1 to 1. Of images, the share of the range from black to white.

    Example:
        >>> scale = InputScale("toy", "image", 2, np.array([[[100.0]]]), np.array([255.0]))
        >>> four = Examples(np.array([[[[0, 100], [200, 255]]]], np.uint8), np.array([1]), np.array([0]))
        >>> Brightness(0.2).shifted(four, scale, np.random.default_rng(0)).x.ravel()
        array([ 51, 151, 251, 255], dtype=uint8)
    """

    strength: float

    def __post_init__(self) -> None:
        require(self, strength="[-1, 1]")

    def shifted(self, examples: Examples, scale: InputScale, rng: np.random.Generator) -> Examples:
        x = scale.numbers("Brightness", examples.x)
        return examples.seen_as(scale.stored(x + self.strength * scale.unit))


@dataclass(frozen=True)
class Contrast:
    """Bring inputs nearer to the data set's mean, or farther from it: mean + (1 - strength) (x - mean).

    The mean is that of each channel or feature.

    When: inputs are washed out or harsh at some clients.

    Args:
        strength: Below 1, at which nothing would be left, and at least -3; -1 doubles the contrast, 0.5 halves it.

    Example:
        >>> scale = InputScale("toy", "image", 2, np.array([[[100.0]]]), np.array([255.0]))
        >>> four = Examples(np.array([[[[0, 100], [200, 250]]]], np.uint8), np.array([1]), np.array([0]))
        >>> Contrast(0.5).shifted(four, scale, np.random.default_rng(0)).x.ravel()
        array([ 50, 100, 150, 175], dtype=uint8)
    """

    strength: float

    def __post_init__(self) -> None:
        require(self, strength="[-3, 1)")

    def shifted(self, examples: Examples, scale: InputScale, rng: np.random.Generator) -> Examples:
        if self.strength == 0:  # of features, mean + (x - mean) is not x to the last bit
            return examples
        x = scale.numbers("Contrast", examples.x)
        return examples.seen_as(scale.stored(scale.centre + (1 - self.strength) * (x - scale.centre)))


@dataclass(frozen=True)
class InputNoise:
    """Add normal noise to each number: x + strength * unit * z, z standard normal.

    This is noise on inputs; wrong labels are `[noise]`.

    When: sensors of some clients are worse than those of participants.

    Args:
        strength: Standard deviation of the noise in units, not negative, at most 10.

    Example:
        >>> scale = InputScale("toy", "features", 2, np.array([100.0]), np.array([2.0]))
        >>> one = Examples(np.array([[5.0]], np.float32), np.array([1]), np.array([0]))
        >>> rng = np.random.default_rng(0)                              # its first normal number is 0.12573
        >>> InputNoise(0.5).shifted(one, scale, rng).x
        array([[5.12573]], dtype=float32)
    """

    strength: float

    def __post_init__(self) -> None:
        require(self, strength="[0, 10]")

    def shifted(self, examples: Examples, scale: InputScale, rng: np.random.Generator) -> Examples:
        x = scale.numbers("InputNoise", examples.x)
        return examples.seen_as(scale.stored(x + self.strength * scale.unit * rng.standard_normal(x.shape)))
