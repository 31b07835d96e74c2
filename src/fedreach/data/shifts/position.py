"""Shifts of where pixels are: blur and rotation, which need scipy, translation and occlusion of images."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedreach.arrays import Floats
from fedreach.data.shifts.base import Examples, InputScale
from fedreach.errors import require


@dataclass(frozen=True)
class Blur:
    """Blur images by a normal density; beyond the border, its pixels go on.

    When: lenses or focus differ; images only.

    Args:
        strength: Standard deviation in pixels, not negative, at most 100.

    Example:
        >>> scale = InputScale("toy", "image", 2, np.array([[[0.0]]]), np.array([255.0]))
        >>> dot = np.zeros((1, 1, 1, 5), np.uint8)
        >>> dot[..., 2] = 200
        >>> Blur(0.5).shifted(Examples(dot, np.array([1]), np.array([0])), scale, np.random.default_rng(0)).x.ravel()
        array([  0,  21, 157,  21,   0], dtype=uint8)
    """

    strength: float

    def __post_init__(self) -> None:
        require(self, strength="[0, 100]")

    def shifted(self, examples: Examples, scale: InputScale, rng: np.random.Generator) -> Examples:
        from scipy.ndimage import gaussian_filter

        x = scale.pixels("Blur", examples.x)
        return examples.seen_as(scale.stored(gaussian_filter(x, (0, 0, self.strength, self.strength), mode="nearest")))


@dataclass(frozen=True)
class Rotation:
    """Turn images about their middle, anticlockwise, by linear interpolation; what comes in from outside is black.

    When: devices are held or mounted at another angle; images only.

    Args:
        strength: Degrees, from -180 to 180.

    Example:
        >>> scale = InputScale("toy", "image", 2, np.array([[[0.0]]]), np.array([255.0]))
        >>> four = Examples(np.array([[[[1, 2], [3, 4]]]], np.uint8), np.array([1]), np.array([0]))
        >>> Rotation(90).shifted(four, scale, np.random.default_rng(0)).x[0, 0]
        array([[2, 4],
               [1, 3]], dtype=uint8)
    """

    strength: float

    def __post_init__(self) -> None:
        require(self, strength="[-180, 180]")

    def shifted(self, examples: Examples, scale: InputScale, rng: np.random.Generator) -> Examples:
        from scipy.ndimage import rotate

        x = scale.pixels("Rotation", examples.x)
        return examples.seen_as(scale.stored(rotate(x, self.strength, axes=(2, 3), reshape=False, order=1)))


@dataclass(frozen=True)
class Translation:
    """Move images to the right and down by linear interpolation; what comes in from outside is black.

    When: what is seen lies off the middle; images only.

    Args:
        strength: Pixels, to the right and as many down, from -1000 to 1000; a negative number moves left and up.

    Example:
        >>> scale = InputScale("toy", "image", 2, np.array([[[0.0]]]), np.array([255.0]))
        >>> four = Examples(np.array([[[[10, 20], [30, 40]]]], np.uint8), np.array([1]), np.array([0]))
        >>> Translation(1).shifted(four, scale, np.random.default_rng(0)).x[0, 0]
        array([[ 0,  0],
               [ 0, 10]], dtype=uint8)
    """

    strength: float

    def __post_init__(self) -> None:
        require(self, strength="[-1000, 1000]")

    def shifted(self, examples: Examples, scale: InputScale, rng: np.random.Generator) -> Examples:
        x = scale.pixels("Translation", examples.x)
        down = _moved(x, self.strength)
        return examples.seen_as(scale.stored(_moved(down.swapaxes(2, 3), self.strength).swapaxes(2, 3)))


def _moved(x: Floats, pixels: float) -> Floats:
    """Return (m, C, H, W) images moved down: each row is the mean of two, weighted by how near they come to it."""
    height, whole = x.shape[2], math.floor(pixels)
    moved = np.zeros_like(x)
    for rows, weight in ((whole, 1 - (pixels - whole)), (whole + 1, pixels - whole)):
        to = np.arange(max(rows, 0), min(height + rows, height))
        moved[:, :, to] += weight * x[:, :, to - rows]
    return moved


@dataclass(frozen=True)
class Occlusion:
    """Hide a rectangle of each image, at a place of its own, behind the data set's mean colour.

    The rectangle has the image's proportions; its sides are rounded to whole pixels, and it lies within the image.
    After normalisation the mean is 0, as in the reference.

    When: something stands in the way, at a place that differs; images only.

    Args:
        strength: Share of the image that is hidden, from 0 to 1.

    Reference: DeVries and Taylor, "Improved Regularization of Convolutional Neural Networks with Cutout",
        arXiv 1708.04552.

    Example:
        >>> scale = InputScale("toy", "image", 2, np.array([[[9.0]]]), np.array([255.0]))
        >>> four = Examples(np.array([[[[1, 1], [1, 1]]]], np.uint8), np.array([1]), np.array([0]))
        >>> int((Occlusion(0.25).shifted(four, scale, np.random.default_rng(0)).x == 9).sum())
        1
    """

    strength: float

    def __post_init__(self) -> None:
        require(self, strength="[0, 1]")

    def shifted(self, examples: Examples, scale: InputScale, rng: np.random.Generator) -> Examples:
        x = scale.pixels("Occlusion", examples.x)
        m, (height, width) = len(x), x.shape[2:]
        rows, columns = (round(self.strength**0.5 * side) for side in (height, width))
        top, left = rng.integers(0, height - rows + 1, (m, 1)), rng.integers(0, width - columns + 1, (m, 1))
        down, across = np.arange(height) - top, np.arange(width) - left  # (m, H) and (m, W)
        hidden_rows, hidden_columns = (down >= 0) & (down < rows), (across >= 0) & (across < columns)
        hidden = hidden_rows[:, None, :, None] & hidden_columns[:, None, None, :]
        return examples.seen_as(scale.stored(np.where(hidden, scale.centre, x)))
