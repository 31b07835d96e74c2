"""Pillow images and torch tensors as arrays, by the same rules for all sources of data.

Images become gray (mode L) or RGB. Nothing here imports Pillow or torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fedreach._util.arrays import AnyArray
from fedreach._util.errors import DataError

GRAY = ("1", "L", "LA", "La")
COLOR = ("RGB", "RGBA", "RGBa", "P", "PA", "CMYK", "YCbCr", "HSV")
ALPHA = ("LA", "La", "RGBA", "RGBa", "PA")


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


def stack_inputs(values: Iterable[Any], length: int, name: str, kind: str | None = None) -> AnyArray:
    """Stack inputs of one shape and type to an (n, ...) array.

    Args:
        values: Arrays or Pillow images, which `as_shown` converts.
        length: n.
        name: Name of the data set in messages.
        kind: With ``"features"``, images of other modes keep their numbers.

    Raises:
        DataError: If there are no inputs, one differs from the first in shape or type, or an image is invalid.
    """
    stacked: AnyArray | None = None
    first: Any = None
    for number, value in enumerate(values):
        what = f"{name}: sample {number}"
        if isinstance(value, Mapping):
            advice = " Decode pictures: ds.cast_column(COLUMN, datasets.Image())." if "bytes" in value else ""
            raise DataError(f"{what} must be an array or a picture; got a dictionary.{advice}")
        if is_picture(value) and not (kind == "features" and value.mode not in (*GRAY, *COLOR)):
            picture = as_shown(value, what)
            first = first or picture
            if (picture.mode, picture.size) != (first.mode, first.size):
                raise DataError(
                    f"{name}: pictures must have one size and be gray or in color, all of them; the first is "
                    f"{first.mode} {first.size}, and sample {number} is {picture.mode} {picture.size}. Convert them: "
                    f"picture.convert('RGB').resize({first.size})."
                )
            pixels = np.asarray(picture)
            array = np.moveaxis(pixels, -1, 0) if pixels.ndim == 3 else pixels
        else:
            try:
                array = np.asarray(as_numpy(value))
            except ValueError as error:  # arrays of several shapes
                raise DataError(
                    f"{what} must be one array or picture; got a {type(value).__name__} of parts of different "
                    "shapes. Several inputs are a tuple of arrays, or a dictionary of arrays by name."
                ) from error
        stacked = np.empty((length, *array.shape), array.dtype) if stacked is None else stacked
        if (array.shape, array.dtype) != (stacked.shape[1:], stacked.dtype):
            raise DataError(
                f"{name}: all inputs must have one shape and type, {stacked.shape[1:]} {stacked.dtype} as the first; "
                f"sample {number} has {array.shape} {array.dtype}."
            )
        stacked[number] = array
    if stacked is None:
        raise DataError(f"{name} must hold at least one sample; got none.")
    return stacked


def as_array(values: Any, name: str, kind: str | None = None) -> Any:
    """Return a tensor or a list of images as an array, a list of tensors as a list of arrays; others unchanged.

    Example:
        >>> import torch
        >>> as_array([torch.ones(2, requires_grad=True), torch.zeros(2)], "toy")[0]
        array([1., 1.], dtype=float32)
    """
    if isinstance(values, list | tuple) and values and is_picture(values[0]):
        return stack_inputs(values, len(values), name, kind)
    if isinstance(values, list | tuple) and values and hasattr(values[0], "detach"):
        return [as_numpy(value) for value in values]
    return as_numpy(values)


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
        raise DataError(f"{what} must be a picture whose pixels are classes, of mode L, P, I or 1; got {picture.mode}.")
    return np.asarray(picture).astype(np.int64)
