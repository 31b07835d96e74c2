"""Shifts of images that the safeguard was not chosen on: functions of (m, C, H, W) pixels in 0..1, as shifts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy import fft, ndimage

import fedreach as fr
from fedreach._util.arrays import Floats
from fedreach.data.shifts import WHITE, Examples, InputScale

Change = Callable[[Floats, np.random.Generator], Floats]


@dataclass(frozen=True)
class Pixels(fr.Shift):
    """A shift by a function of pixels in 0..1."""

    change: Change

    def shifted(self, examples: Examples, scale: InputScale, rng: np.random.Generator) -> Examples:
        x = scale.pixels("Pixels", examples.x) / WHITE
        return examples.seen_as(scale.stored(WHITE * self.change(x, rng)))


def gamma(power: float) -> Change:
    """x^power: another response of the sensor."""
    return lambda x, rng: x**power


def negative(x: Floats, rng: np.random.Generator) -> Floats:
    """Black for white."""
    return 1 - x


def salt_and_pepper(share: float) -> Change:
    """This share of the pixels is black or white, at random."""

    def change(x: Floats, rng: np.random.Generator) -> Floats:
        return np.where(rng.random(x.shape) < share, rng.integers(0, 2, x.shape), x)

    return change


def affine(matrix: Floats) -> Change:
    """Each output pixel is the one at matrix @ place, from the middle, by linear interpolation."""

    def change(x: Floats, rng: np.random.Generator) -> Floats:
        middle = (np.array(x.shape[2:]) - 1) / 2
        offset, out = middle - matrix @ middle, np.empty_like(x)
        for image, to in zip(x.reshape(-1, *x.shape[2:]), out.reshape(-1, *x.shape[2:]), strict=True):
            ndimage.affine_transform(image, matrix, offset, output=to, order=1)
        return out

    return change


def shear(slope: float) -> Change:
    """Slanted: a row moves by `slope` times its height."""
    return affine(np.array([[1.0, 0.0], [slope, 1.0]]))


def zoom(factor: float) -> Change:
    """Larger (above 1) or smaller."""
    return affine(np.eye(2) / factor)


def elastic(pixels: float) -> Change:
    """Each image is warped by a smooth random field whose displacements have this root mean square."""

    def change(x: Floats, rng: np.random.Generator) -> Floats:
        out, places = np.empty_like(x), np.indices(x.shape[2:]).astype(np.float64)
        for image, to in zip(x, out, strict=True):
            field = ndimage.gaussian_filter(rng.standard_normal(places.shape), (0, 4, 4))
            moved = places + pixels * field / np.sqrt((field**2).mean())
            for channel, target in zip(image, to, strict=True):
                ndimage.map_coordinates(channel, moved, output=target, order=1)
        return out

    return change


def posterise(levels: int) -> Change:
    """Only so many grey levels."""
    return lambda x, rng: np.rint(x * (levels - 1)) / (levels - 1)


def compressed(step: float) -> Change:
    """As JPEG does it: cosine coefficients of 4 by 4 blocks, rounded by a step that grows with their frequency."""

    def change(x: Floats, rng: np.random.Generator) -> Floats:
        m, c, h, w = x.shape
        blocks = x.reshape(m, c, h // 4, 4, w // 4, 4)
        steps = step * (1 + np.add.outer(np.arange(4), np.arange(4)))[:, None, :]
        found = fft.dctn(blocks, axes=(3, 5), norm="ortho")
        rounded: Floats = fft.idctn(np.rint(found / steps) * steps, axes=(3, 5), norm="ortho")
        return rounded.reshape(x.shape)

    return change


def lit(field: Callable[[Floats, Floats], Floats]) -> Change:
    """Uneven light: each pixel times a number that depends on its place, height and width from -1 to 1."""

    def change(x: Floats, rng: np.random.Generator) -> Floats:
        down, across = np.meshgrid(*(np.linspace(-1, 1, side) for side in x.shape[2:]), indexing="ij")
        return x * field(down, across)

    return change


def stripes(strength: float) -> Change:
    """Every fourth row is brighter: lines of a bad scanner."""

    def change(x: Floats, rng: np.random.Generator) -> Floats:
        return x + strength * (np.arange(x.shape[2]) % 4 == 0)[:, None]

    return change


def thick(pixels: int) -> Change:
    """The brightest (or, of a negative number, the darkest) of so many pixels by so many: bold or thin strokes."""
    size = (1, 1, abs(pixels), abs(pixels))

    def change(x: Floats, rng: np.random.Generator) -> Floats:
        found: Floats = (ndimage.grey_dilation if pixels > 0 else ndimage.grey_erosion)(x, size)
        return found

    return change


FRESH: Mapping[str, Change] = {
    "gamma 0.45": gamma(0.45),
    "gamma 2.2": gamma(2.2),
    "negative": negative,
    "salt and pepper 8 %": salt_and_pepper(0.08),
    "shear 0.35": shear(0.35),
    "zoom 1.3": zoom(1.3),
    "zoom 0.7": zoom(0.7),
    "elastic 1.5 pixels": elastic(1.5),
    "posterise, 3 levels": posterise(3),
    "compressed, step 0.6": compressed(0.6),
    "gradient from dark to light": lit(lambda down, across: 0.6 + 0.4 * down),
    "vignette": lit(lambda down, across: np.exp(-(down**2) - across**2)),
    "stripes +0.4": stripes(0.4),
    "thickened, 2 pixels": thick(2),
    "thinned, 2 pixels": thick(-2),
}
"""Kinds on which nothing of the guard was chosen."""


def light(red: float, green: float, blue: float) -> Change:
    """Light of another color: each channel times its number."""
    return lambda x, rng: x * np.array([red, green, blue])[:, None, None]


def dim_and_noisy(brightness: float, deviation: float) -> Change:
    """A dark place: light times `brightness`, and noise of this standard deviation in all pixels and colors."""
    return lambda x, rng: brightness * x + deviation * rng.standard_normal(x.shape)


def each_its_own_light(low: float, high: float) -> Change:
    """Each image and color times a number of its own, uniform from `low` to `high`."""
    return lambda x, rng: x * rng.uniform(low, high, (len(x), x.shape[1], 1, 1))


def saturation(factor: float) -> Change:
    """Colors `factor` times as far from grey."""

    def change(x: Floats, rng: np.random.Generator) -> Floats:
        grey = x.mean(axis=1, keepdims=True)
        return grey + factor * (x - grey)

    return change


def fog(share: float) -> Change:
    """So much of each pixel is white."""
    return lambda x, rng: (1 - share) * x + share


IN_COLOR: Mapping[str, Change] = {
    "dim 0.4, noise 0.1": dim_and_noisy(0.4, 0.1),
    "dim 0.6, noise 0.2": dim_and_noisy(0.6, 0.2),
    "warm light": light(1.2, 1.0, 0.6),
    "cold light": light(0.7, 0.95, 1.2),
    "light that differs by image": each_its_own_light(0.5, 1.3),
    "greyer": saturation(0.2),
    "more colorful": saturation(2.0),
    "fog": fog(0.5),
    "channels swapped": lambda x, rng: x[:, ::-1],
}
"""Kinds for images in color, on which nothing of the guard was chosen either."""
