"""Conversion of Pillow images and torch tensors to arrays.

Images become grayscale (mode L) or RGB. This module imports neither Pillow nor torch.
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
    """Convert a tensor to an array; float types that NumPy does not support, such as bfloat16, become float32."""
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

    Black-and-white images become grayscale. Palettes and other color modes become RGB. An opaque alpha channel is
    removed.

    Raises:
        DataError: If the image has transparent pixels, or FedReach does not support its mode.
    """
    mode = picture.mode
    if mode not in (*GRAY, *COLOR):
        raise DataError(
            f"{what} must be an image of mode {', '.join((*GRAY, *COLOR))}; got mode {mode}, which has no standard "
            "scale. Pass arrays of floats, such as np.asarray(image, np.float32) / 65535, or set kind='features' to "
            "use the numbers without scaling."
        )
    is_gray = mode in GRAY
    if mode in ALPHA or "transparency" in picture.info:
        picture = picture.convert("LA" if is_gray else "RGBA")
        if picture.getchannel("A").getextrema()[0] < 255:
            raise DataError(
                f"{what} must not have transparent pixels; got mode {mode}. Add a background with "
                "Image.alpha_composite(Image.new('RGBA', image.size, 'white'), image.convert('RGBA')).convert('RGB')."
            )
    return picture.convert("L" if is_gray else "RGB")


def stack_inputs(values: Iterable[Any], length: int, name: str, kind: str | None = None) -> AnyArray:
    """Stack inputs of equal shape and type into an (n, ...) array.

    Args:
        values: Arrays or Pillow images, which are converted by `as_shown`.
        length: Number of inputs n.
        name: Name of the data set, for messages.
        kind: Kind of the inputs. With ``"features"``, images with unsupported modes become arrays without scaling.

    Raises:
        DataError: If `values` is empty, inputs differ in shape or type, or an image is invalid.
    """
    stacked: AnyArray | None = None
    first: Any = None
    for number, value in enumerate(values):
        what = f"{name}: example {number}"
        if isinstance(value, Mapping):
            advice = " Decode images with ds.cast_column(COLUMN, datasets.Image())." if "bytes" in value else ""
            raise DataError(f"{what} must be an array or an image; got a dictionary.{advice}")
        if is_picture(value) and not (kind == "features" and value.mode not in (*GRAY, *COLOR)):
            picture = as_shown(value, what)
            first = first or picture
            if (picture.mode, picture.size) != (first.mode, first.size):
                raise DataError(
                    f"{name}: all images must have the same size and mode; the first has {first.mode} {first.size}, "
                    f"and example {number} has {picture.mode} {picture.size}. Convert them with "
                    f"image.convert('RGB').resize({first.size})."
                )
            pixels = np.asarray(picture)
            array = np.moveaxis(pixels, -1, 0) if pixels.ndim == 3 else pixels
        else:
            try:
                array = np.asarray(as_numpy(value))
            except ValueError as error:  # arrays of different shapes
                raise DataError(
                    f"{what} must be one array or image; got a {type(value).__name__} of arrays of different shapes. "
                    "For several inputs, use a tuple of arrays, or a dictionary of arrays by name."
                ) from error
        stacked = np.empty((length, *array.shape), array.dtype) if stacked is None else stacked
        if (array.shape, array.dtype) != (stacked.shape[1:], stacked.dtype):
            raise DataError(
                f"{name}: all inputs must have the same shape and type; the first has {stacked.shape[1:]} "
                f"{stacked.dtype}, and example {number} has {array.shape} {array.dtype}."
            )
        stacked[number] = array
    if stacked is None:
        raise DataError(f"{name} must have at least one example; got none.")
    return stacked


def as_array(values: Any, name: str, kind: str | None = None) -> Any:
    """Convert a tensor or a list of images to an array, and a list of tensors to a list of arrays.

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
    """Convert a list of images whose pixels are classes to a list of arrays; return other values unchanged.

    Raises:
        DataError: If the pixels of an image are colors.
    """
    if isinstance(values, list | tuple) and values and is_picture(values[0]):
        return [classes_of_pixels(value, what) for value in values]
    return values


def classes_of_pixels(picture: Any, what: str) -> AnyArray:
    """Return the (H, W) classes of an image, which are the gray levels or palette indices of its pixels.

    Raises:
        DataError: If the pixels are colors.
    """
    if picture.mode not in ("L", "P", "1", "I"):
        raise DataError(f"{what} must be an image of mode L, P, I or 1 whose pixels are classes; got {picture.mode}.")
    return np.asarray(picture).astype(np.int64)
