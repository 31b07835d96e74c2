"""Pillow images and torch tensors as arrays, by the same rules for all sources of data.

Images become gray (mode L) or RGB. Nothing here imports Pillow or torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedreach._util.arrays import AnyArray
from fedreach._util.errors import DataError

GRAY = ("1", "L", "LA", "La")
COLOR = ("RGB", "RGBA", "RGBa", "P", "PA", "CMYK", "YCbCr", "HSV")
ALPHA = ("LA", "La", "RGBA", "RGBa", "PA")
Converted = Counter[tuple[str, str]]
"""Number of converted images by old and new mode."""


def as_numpy(value: Any) -> Any:
    """Return a tensor as an array, without its gradient; floats that NumPy lacks, such as bfloat16, as float32."""
    if not hasattr(value, "detach"):
        return value
    plain = value.detach().cpu()
    if str(getattr(plain, "layout", "torch.strided")) != "torch.strided":
        plain = plain.to_dense()
    is_narrow = str(plain.dtype).startswith(("torch.bfloat", "torch.float8"))
    return (plain.float() if is_narrow else plain).numpy()


def is_picture(value: Any) -> bool:
    """Return whether a value is a Pillow image."""
    return hasattr(value, "getbands") and hasattr(value, "convert")


def as_shown(picture: Any, what: str) -> Any:
    """Convert a Pillow image to mode L or RGB.

    Palettes and other color modes become RGB, black and white becomes gray, and an opaque alpha channel is removed.

    Raises:
        DataError: If the image is partly transparent, or its mode has no defined colors.
    """
    mode = picture.mode
    if mode not in (*GRAY, *COLOR):
        raise DataError(
            f"{what} must be a picture of mode {', '.join((*GRAY, *COLOR))}; got {mode}, whose numbers have no known "
            "scale. Hand over arrays of floats, such as np.asarray(picture, np.float32) / 65535, or say "
            "kind='features' to take the numbers as they are."
        )
    is_gray = mode in GRAY
    if mode in ALPHA or "transparency" in picture.info:
        picture = picture.convert("LA" if is_gray else "RGBA")
        if picture.getchannel("A").getextrema()[0] < 255:
            raise DataError(
                f"{what} is transparent in places (mode {mode}), and what shows through is not known. Put pictures on "
                "a background: Image.alpha_composite(Image.new('RGBA', picture.size, 'white'), "
                "picture.convert('RGBA')).convert('RGB')."
            )
    return picture.convert("L" if is_gray else "RGB")


@dataclass
class Stack:
    """Collects inputs of one shape and type in one array."""

    name: str  # of the data set, in messages
    length: int
    kind: str | None = None  # "features": images of other modes keep their numbers
    array: AnyArray | None = None
    first: Any = None  # the first image
    converted: Converted = field(default_factory=Counter)

    def add(self, number: int, value: Any) -> None:
        """Store an input.

        Raises:
            DataError: If its shape or type differs from the first input, or `as_shown` rejects the image.
        """
        if isinstance(value, Mapping):
            advice = " Decode pictures: ds.cast_column(COLUMN, datasets.Image())." if "bytes" in value else ""
            raise DataError(f"{self.name}: sample {number} must be an array or a picture; got a dictionary.{advice}")
        array = self._picture(number, value) if is_picture(value) else self._array(number, value)
        if self.array is None:
            self.array = np.empty((self.length, *array.shape), array.dtype)
        if (array.shape, array.dtype) != (self.array.shape[1:], self.array.dtype):
            raise DataError(
                f"{self.name}: all inputs must have one shape and type, {self.array.shape[1:]} {self.array.dtype} as "
                f"the first; sample {number} has {array.shape} {array.dtype}."
            )
        self.array[number] = array

    def _array(self, number: int, value: Any) -> AnyArray:
        try:
            return np.asarray(as_numpy(value))
        except ValueError as error:  # arrays of several shapes
            raise DataError(
                f"{self.name}: sample {number} must be one array or picture; got a {type(value).__name__} of "
                f"{len(value)} parts of different shapes. Several inputs are a tuple of arrays, or a dictionary of "
                "them by the names of the forward's arguments."
            ) from error

    def _picture(self, number: int, picture: Any) -> AnyArray:
        """Return an image as an array with channels first."""
        if self.kind == "features" and picture.mode not in (*GRAY, *COLOR):
            return np.asarray(picture)
        plain_picture = as_shown(picture, f"{self.name}: sample {number}")
        if plain_picture.mode != picture.mode:
            self.converted[picture.mode, plain_picture.mode] += 1
        self.first = self.first or plain_picture
        if plain_picture.mode != self.first.mode:
            raise DataError(
                f"{self.name}: pictures must be gray or in color, all of them; the first has mode {self.first.mode}, "
                f"and sample {number} has {plain_picture.mode}. Convert them: picture.convert('RGB')."
            )
        if plain_picture.size != self.first.size:
            raise DataError(
                f"{self.name}: pictures must have one size; the first has {self.first.size}, and sample {number} has "
                f"{plain_picture.size}. Resize them: picture.resize({self.first.size})."
            )
        pixels = np.asarray(plain_picture)
        return np.moveaxis(pixels, -1, 0) if pixels.ndim == 3 else pixels


def stack_inputs(values: Iterable[Any], length: int, name: str, kind: str | None = None) -> tuple[AnyArray, Converted]:
    """Stack inputs to an (n, ...) array, and count converted images.

    Raises:
        DataError: If there are no inputs, or one is invalid, see `Stack.add`.
    """
    stack = Stack(name, length, kind)
    for number, value in enumerate(values):
        stack.add(number, value)
    if stack.array is None:
        raise DataError(f"{name} must hold at least one sample; got none.")
    return stack.array, stack.converted


def as_array(values: Any, name: str, kind: str | None = None) -> tuple[Any, Converted]:
    """Return a tensor or a list of images as an array, a list of tensors as a list of arrays; others unchanged.

    Example:
        >>> import torch
        >>> as_array([torch.ones(2, requires_grad=True), torch.zeros(2)], "toy")[0]
        [array([1., 1.], dtype=float32), array([0., 0.], dtype=float32)]
    """
    if isinstance(values, list | tuple) and values and is_picture(values[0]):
        return stack_inputs(values, len(values), name, kind)
    if isinstance(values, list | tuple) and values and hasattr(values[0], "detach"):
        return [as_numpy(value) for value in values], Counter()
    return as_numpy(values), Counter()


def as_labels(values: Any, what: str) -> Any:
    """Return a list of images whose pixels are classes as a list of arrays; other values unchanged.

    Raises:
        DataError: If the pixels of an image are colors.
    """
    if isinstance(values, list | tuple) and values and is_picture(values[0]):
        return [classes_of_pixels(value, what) for value in values]
    return values


def classes_of_pixels(picture: Any, what: str) -> AnyArray:
    """Return the (H, W) classes of an image: its gray levels or palette indices.

    Raises:
        DataError: If the pixels are colors.
    """
    if picture.mode not in ("L", "P", "1", "I"):
        raise DataError(
            f"{what} must be a picture whose pixels are classes, of mode L, P, I or 1; got {picture.mode}. Map its "
            "colors to class numbers first."
        )
    return np.asarray(picture).astype(np.int64)


def note_of(converted: Converted) -> str:
    """Return a note about converted images.

    Example:
        >>> note_of(Counter({("P", "RGB"): 12, ("1", "L"): 1}))
        'pictures were converted: 12 from P to RGB, 1 from 1 to L'
    """
    parts = [f"{count} from {before} to {after}" for (before, after), count in converted.items()]
    return f"pictures were converted: {', '.join(parts)}" if parts else ""
