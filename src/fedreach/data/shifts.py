"""Shifts: differences in inputs or labels between unseen clients and participants."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from fedreach._util.arrays import AnyArray, Floats, Ints
from fedreach._util.component import Component
from fedreach._util.errors import ComponentError, ConfigError, DataError, require
from fedreach._util.streams import generator
from fedreach.data.assignment import checked_number
from fedreach.data.checks import ExampleKind
from fedreach.data.datasets import Dataset, content_hash
from fedreach.data.federated import FederatedData, Shifted

# ---- What a shift receives and returns: the examples of one client

WHITE = 255.0
"""Largest pixel value of an image."""


@dataclass(frozen=True, eq=False)
class InputScale:
    """Scale of a data set's inputs.

    A shift receives no other information about the data set. Images have gray levels from 0 to 255. Features have
    their original units.
    """

    name: str  # name of the data set, used in messages
    kind: ExampleKind
    num_classes: int
    centre: Floats  # mean of the training inputs: (C, 1, 1) for images, (...) for features, (1,) for tokens
    unit: Floats  # change of a shift of strength 1: 255 for images, the standard deviation of each feature

    @classmethod
    def of(cls, dataset: Dataset) -> InputScale:
        """Determine the scale of a data set; for features, measure it over all training examples.

        Example:
            >>> from fedreach.data.sets import load
            >>> scale = InputScale.of(load("digits"))
            >>> scale.unit.item(), scale.centre.shape
            (255.0, (1, 1, 1))
        """
        about = dataset.name, dataset.kind, dataset.num_classes
        if dataset.kind == "image":
            return cls(*about, WHITE * np.array(dataset.mean)[:, None, None], np.array([WHITE]))
        if dataset.kind == "features":
            x = dataset.train_x
            return cls(*about, x.mean(axis=0, dtype=np.float64), x.std(axis=0, dtype=np.float64))
        return cls(*about, np.zeros(1), np.ones(1))

    def numbers(self, who: str, x: AnyArray) -> Floats:
        """Copy the inputs as float64.

        Raises:
            DataError: If the inputs are tokens, or records of several inputs.
        """
        if self.kind in ("tokens", "several"):
            content = "tokens" if self.kind == "tokens" else "several inputs"
            raise DataError(
                f"{who} needs numeric inputs; {self.name} contains {content}. Use permuted_labels or one_class."
            )
        return x.astype(np.float64)

    def pixels(self, who: str, x: AnyArray) -> Floats:
        """Copy (m, C, H, W) images as float64.

        Raises:
            DataError: If the inputs are not images.
        """
        if self.kind != "image":
            raise DataError(
                f"{who} needs images; {self.name} contains {self.kind}. Use brightness, contrast or noise for "
                "features. permuted_labels and one_class work with any data."
            )
        return x.astype(np.float64)

    def stored(self, values: Floats) -> AnyArray:
        """Convert inputs to the type of the data set. Images are rounded to gray levels and clipped to [0, 255]."""
        if self.kind == "image":
            return np.clip(np.rint(values), 0, WHITE).astype(np.uint8)
        return values.astype(np.float32)


@dataclass(frozen=True, eq=False)
class Examples:
    """Examples of one client."""

    x: AnyArray  # (m, ...) inputs, in the type of the data set
    y: Ints  # (m,) true labels
    index: Ints  # (m,) indices in the data set

    def only(self, chosen: AnyArray) -> Examples:
        """Select examples by position, or by a boolean mask."""
        return Examples(self.x[chosen], self.y[chosen], self.index[chosen])

    def seen_as(self, x: AnyArray) -> Examples:
        """Replace the inputs and keep the labels."""
        return replace(self, x=x)


class Shift(Component):
    """Base class of shifts, which change the examples of one client.

    A shift must not modify its arguments. With strength 0, it must return the same examples bit for bit.
    """

    component_type = "shift"

    @abstractmethod
    def shifted(self, examples: Examples, scale: InputScale, rng: np.random.Generator) -> Examples:
        """Return the client's examples with changed inputs or labels, or a subset of the examples.

        Args:
            examples: All examples of the client.
            scale: Scale of the inputs of the data set.
            rng: Random generator of the client.
        """


@dataclass(frozen=True)
class StrengthShift(Shift):
    """Base class of shifts whose only option is the strength."""

    strength: float
    interval: ClassVar[str] = "[0, 1]"  # allowed range of the strength

    def __post_init__(self) -> None:
        require(self, strength=self.interval)


@dataclass(frozen=True)
class InputShift(StrengthShift):
    """Base class of shifts that change only the inputs."""

    is_spatial: ClassVar[bool] = False  # true if the shift needs images

    def shifted(self, examples: Examples, scale: InputScale, rng: np.random.Generator) -> Examples:
        numbers = scale.pixels if self.is_spatial else scale.numbers
        return examples.seen_as(scale.stored(self.change_inputs(numbers(type(self).__name__, examples.x), scale, rng)))

    @abstractmethod
    def change_inputs(self, x: Floats, scale: InputScale, rng: np.random.Generator) -> Floats:
        """Return the changed inputs; `x` is a copy and may be modified."""


# ---- Several shifts in sequence


@dataclass(frozen=True)
class Composed(Shift):
    """Sequence of several shifts.

    For example, the first shift makes images darker, and the second shift rotates them. In an experiment file, write
    ``parts = [{ name = "brightness", strength = -0.3 }, { name = "rotation", strength = 20.0 }]``.

    Use when: clients differ in several ways at once.

    Args:
        parts: Shifts in the order in which they are applied, at least one.

    Raises:
        ConfigError: If `parts` is empty, or contains an object that is not a shift.

    Example:
        >>> from fedreach.data.shifts import OneClass, PermutedLabels
        >>> scale = InputScale("toy", "tokens", 2, np.zeros(1), np.ones(1))
        >>> three = Examples(np.zeros((3, 4), np.uint8), np.array([0, 1, 1]), np.arange(3))
        >>> Composed((OneClass(), PermutedLabels())).shifted(three, scale, np.random.default_rng(0)).y
        array([0, 0])
    """

    parts: tuple[Shift, ...]

    def __post_init__(self) -> None:
        parts = tuple(self.parts)
        if not parts:
            raise ConfigError("Composed.parts must contain at least one shift; got none.")
        for part in parts:
            if not isinstance(part, Shift):
                raise ConfigError(f"Composed.parts must contain only shifts, such as Brightness(0.3); got {part!r}.")
        object.__setattr__(self, "parts", parts)

    def shifted(self, examples: Examples, scale: InputScale, rng: np.random.Generator) -> Examples:
        for part in self.parts:
            examples = part.shifted(examples, scale, rng)
        return examples


# ---- Shifts of intensity, for images and features
# A strength of 1 is 255 for images and one standard deviation for features. Pixels are clipped to [0, 255].


@dataclass(frozen=True)
class Brightness(InputShift):
    """Brighter or darker inputs: x + strength * unit.

    The intensity correction of `label_shift` can reverse this shift, except for clipped pixels.

    Use when: light or exposure differs between clients, for example between two scanners.

    Args:
        strength: Change in units, from -1 to 1. One unit is the range from black to white for images, and one standard
            deviation for features.

    Example:
        >>> scale = InputScale("toy", "image", 2, np.array([[[100.0]]]), np.array([255.0]))
        >>> four = Examples(np.array([[[[0, 100], [200, 255]]]], np.uint8), np.array([1]), np.array([0]))
        >>> Brightness(0.2).shifted(four, scale, np.random.default_rng(0)).x.ravel()
        array([ 51, 151, 251, 255], dtype=uint8)
    """

    interval = "[-1, 1]"

    def change_inputs(self, x: Floats, scale: InputScale, rng: np.random.Generator) -> Floats:
        return x + self.strength * scale.unit


@dataclass(frozen=True)
class Contrast(InputShift):
    """Lower or higher contrast: mean + (1 - strength) * (x - mean).

    The mean of each channel or feature is computed over the training inputs.

    Use when: the contrast of images or the spread of features differs between clients.

    Args:
        strength: Reduction of the contrast, at least -3 and below 1. A strength of 0.5 halves the contrast, and -1
            doubles it.

    Example:
        >>> scale = InputScale("toy", "image", 2, np.array([[[100.0]]]), np.array([255.0]))
        >>> four = Examples(np.array([[[[0, 100], [200, 250]]]], np.uint8), np.array([1]), np.array([0]))
        >>> Contrast(0.5).shifted(four, scale, np.random.default_rng(0)).x.ravel()
        array([ 50, 100, 150, 175], dtype=uint8)
    """

    interval = "[-3, 1)"

    def change_inputs(self, x: Floats, scale: InputScale, rng: np.random.Generator) -> Floats:
        if self.strength == 0:  # for features, rounding would change the last bit of mean + (x - mean)
            return x
        return scale.centre + (1 - self.strength) * (x - scale.centre)


@dataclass(frozen=True)
class InputNoise(InputShift):
    """Gaussian noise on the inputs: x + strength * unit * z with standard normal z.

    To add noise to labels instead, use ``[noise]`` in the experiment file.

    Use when: unseen clients have less precise sensors than participants.

    Args:
        strength: Standard deviation of the noise in units, from 0 to 10. One unit is the range from black to white for
            images, and one standard deviation for features.

    Example:
        >>> scale = InputScale("toy", "features", 2, np.array([100.0]), np.array([2.0]))
        >>> one = Examples(np.array([[5.0]], np.float32), np.array([1]), np.array([0]))
        >>> rng = np.random.default_rng(0)                              # its first normal number is 0.12573
        >>> InputNoise(0.5).shifted(one, scale, rng).x
        array([[5.12573]], dtype=float32)
    """

    interval = "[0, 10]"

    def change_inputs(self, x: Floats, scale: InputScale, rng: np.random.Generator) -> Floats:
        return x + self.strength * scale.unit * rng.standard_normal(x.shape)


# ---- Shifts of labels, for any kind of data


@dataclass(frozen=True)
class PermutedLabels(StrengthShift):
    """Concept shift: each client permutes the labels of some classes.

    The client draws round(strength * C) of the C classes, at least two unless the strength is 0. Each drawn class
    receives the label of the next drawn class, and the last class receives the label of the first class.

    Use when: clients use the same label for different classes. The inputs do not reveal this shift. So the experiment
    measures how much a method that uses only inputs can reduce the accuracy.

    Args:
        strength: Share of the classes that are permuted, from 0 to 1. Default: 1.

    Example:
        >>> scale = InputScale("toy", "tokens", 2, np.zeros(1), np.ones(1))
        >>> three = Examples(np.zeros((3, 4), np.uint8), np.array([0, 1, 1]), np.arange(3))
        >>> PermutedLabels().shifted(three, scale, np.random.default_rng(0)).y
        array([1, 0, 0])
    """

    strength: float = 1.0

    def shifted(self, examples: Examples, scale: InputScale, rng: np.random.Generator) -> Examples:
        count = min(scale.num_classes, max(2, round(self.strength * scale.num_classes))) if self.strength else 0
        circle = rng.permutation(scale.num_classes)[:count]
        names = np.arange(scale.num_classes)
        names[circle] = np.roll(circle, -1)
        return replace(examples, y=names[examples.y])


@dataclass(frozen=True)
class OneClass(StrengthShift):
    """Label shift: each client loses examples of all classes except its most frequent class.

    The client removes at random round(strength * r) of its r examples of the other classes. If two classes are equally
    frequent, the class with the lower number counts as the most frequent.

    Use when: you measure the largest benefit that knowledge of the label distribution can have.

    Args:
        strength: Share of the examples of other classes that are removed, from 0 to 1. Default: 1.

    Example:
        >>> scale = InputScale("toy", "tokens", 3, np.zeros(1), np.ones(1))
        >>> four = Examples(np.zeros((4, 2), np.uint8), np.array([0, 2, 1, 2]), np.arange(4))
        >>> OneClass().shifted(four, scale, np.random.default_rng(0)).index
        array([1, 3])
    """

    strength: float = 1.0

    def shifted(self, examples: Examples, scale: InputScale, rng: np.random.Generator) -> Examples:
        main_class = int(np.bincount(examples.y, minlength=scale.num_classes).argmax())
        other_examples = rng.permutation(np.flatnonzero(examples.y != main_class))
        is_kept = np.ones(len(examples.y), np.bool_)
        is_kept[other_examples[: round(self.strength * len(other_examples))]] = False
        return examples.only(is_kept)


# ---- Spatial shifts, for images


@dataclass(frozen=True)
class Blur(InputShift):
    """Gaussian blur of images.

    Beyond the border of an image, the filter repeats the border pixels. This shift requires SciPy.

    Use when: lenses or focus differ between clients. For images only.

    Args:
        strength: Standard deviation of the filter in pixels, from 0 to 100.

    Example:
        >>> scale = InputScale("toy", "image", 2, np.array([[[0.0]]]), np.array([255.0]))
        >>> dot = np.zeros((1, 1, 1, 5), np.uint8)
        >>> dot[..., 2] = 200
        >>> Blur(0.5).shifted(Examples(dot, np.array([1]), np.array([0])), scale, np.random.default_rng(0)).x.ravel()
        array([  0,  21, 157,  21,   0], dtype=uint8)
    """

    interval = "[0, 100]"
    is_spatial = True

    def change_inputs(self, x: Floats, scale: InputScale, rng: np.random.Generator) -> Floats:
        from scipy.ndimage import gaussian_filter

        return np.asarray(gaussian_filter(x, (0, 0, self.strength, self.strength), mode="nearest"))


@dataclass(frozen=True)
class Rotation(InputShift):
    """Counterclockwise rotation of images about their center, with linear interpolation.

    Pixels from outside the image are black. This shift requires SciPy.

    Use when: clients hold or mount their cameras at different angles. For images only.

    Args:
        strength: Angle in degrees, from -180 to 180. Negative angles rotate clockwise.

    Example:
        >>> scale = InputScale("toy", "image", 2, np.array([[[0.0]]]), np.array([255.0]))
        >>> four = Examples(np.array([[[[1, 2], [3, 4]]]], np.uint8), np.array([1]), np.array([0]))
        >>> Rotation(90).shifted(four, scale, np.random.default_rng(0)).x[0, 0]
        array([[2, 4],
               [1, 3]], dtype=uint8)
    """

    interval = "[-180, 180]"
    is_spatial = True

    def change_inputs(self, x: Floats, scale: InputScale, rng: np.random.Generator) -> Floats:
        from scipy.ndimage import rotate

        return np.asarray(rotate(x, self.strength, axes=(2, 3), reshape=False, order=1))


@dataclass(frozen=True)
class Translation(InputShift):
    """Translation of images to the right and down by the same distance, with linear interpolation.

    Pixels from outside the image are black.

    Use when: objects are not centered. For images only.

    Args:
        strength: Distance in pixels, from -1000 to 1000. Negative distances move the image to the left and up.

    Example:
        >>> scale = InputScale("toy", "image", 2, np.array([[[0.0]]]), np.array([255.0]))
        >>> four = Examples(np.array([[[[10, 20], [30, 40]]]], np.uint8), np.array([1]), np.array([0]))
        >>> Translation(1).shifted(four, scale, np.random.default_rng(0)).x[0, 0]
        array([[ 0,  0],
               [ 0, 10]], dtype=uint8)
    """

    interval = "[-1000, 1000]"
    is_spatial = True

    def change_inputs(self, x: Floats, scale: InputScale, rng: np.random.Generator) -> Floats:
        down = _move_down(x, self.strength)
        return _move_down(down.swapaxes(2, 3), self.strength).swapaxes(2, 3)


def _move_down(x: Floats, pixels: float) -> Floats:
    """Move (m, C, H, W) images down; a fractional distance interpolates between two rows."""
    height, whole_pixels = x.shape[2], math.floor(pixels)
    moved = np.zeros_like(x)
    for rows, weight in ((whole_pixels, 1 - (pixels - whole_pixels)), (whole_pixels + 1, pixels - whole_pixels)):
        to = np.arange(max(rows, 0), min(height + rows, height))
        moved[:, :, to] += weight * x[:, :, to - rows]
    return moved


@dataclass(frozen=True)
class Occlusion(InputShift):
    """Occlusion of images by a rectangle at a random position (Cutout; DeVries and Taylor, 2017).

    The rectangle has the proportions of the image and the mean color of the training images. Its sides are rounded to
    whole pixels. The paper sets the covered pixels to 0 after normalization, which is the same color.

    Use when: objects are partly covered. For images only.

    Args:
        strength: Share of the image that is covered, from 0 to 1.

    Reference: DeVries and Taylor, "Improved Regularization of Convolutional Neural Networks with Cutout",
        arXiv 1708.04552.

    Example:
        >>> scale = InputScale("toy", "image", 2, np.array([[[9.0]]]), np.array([255.0]))
        >>> four = Examples(np.array([[[[1, 1], [1, 1]]]], np.uint8), np.array([1]), np.array([0]))
        >>> int((Occlusion(0.25).shifted(four, scale, np.random.default_rng(0)).x == 9).sum())
        1
    """

    is_spatial = True

    def change_inputs(self, x: Floats, scale: InputScale, rng: np.random.Generator) -> Floats:
        m, (height, width) = len(x), x.shape[2:]
        rows, columns = (round(self.strength**0.5 * side) for side in (height, width))
        top_edge, left_edge = rng.integers(0, height - rows + 1, (m, 1)), rng.integers(0, width - columns + 1, (m, 1))
        down, across = np.arange(height) - top_edge, np.arange(width) - left_edge  # (m, H) and (m, W)
        hidden_rows, hidden_columns = (down >= 0) & (down < rows), (across >= 0) & (across < columns)
        hidden = hidden_rows[:, None, :, None] & hidden_columns[:, None, None, :]
        return np.where(hidden, scale.centre, x)


# ---- Apply a shift to unseen clients


def shift_unseen(data: FederatedData, shift: Shift, *, share: float = 1.0, seed: int = 0) -> FederatedData:
    """Apply a shift to all examples of some unseen clients.

    FedReach draws round(share * u) of the u unseen clients. With the same seed, a larger share includes the clients of
    a smaller share. The shift changes neither participants nor the test set nor the server's data, so training remains
    the same. Only the evaluation and the adaptation of unseen clients change.

    Args:
        data: Federated data with unseen clients.
        shift: Shift that is applied to each drawn client.
        share: Share of the unseen clients to which the shift is applied, from 0 to 1.
        seed: Seed of the drawn clients and of the shift.

    Raises:
        ConfigError: If all clients participate, the share is outside its range, or examples do not have exactly one
            class.
        DataError: If the shift does not support the kind of inputs.
        ComponentError: If a custom shift returns invalid examples.

    Example:
        >>> from fedreach.data.shifts import Brightness
        >>> from fedreach.testing.problems import tiny_data
        >>> data = tiny_data()
        >>> dark = shift_unseen(data, Brightness(-0.3), share=0.5)
        >>> data.population.unseen, dark.shift.clients
        (array([4, 5]), array([5]))
    """
    share = checked_number("shift.share", share, 0, 1)
    if not data.dataset.example_classes:
        target_form = "one label per position" if data.dataset.positions else "numbers as targets"
        raise ConfigError(
            f"shift: requires one class per example; {data.dataset.name} has {target_form}. Remove the shift."
        )
    unseen = data.population.unseen
    if not len(unseen):
        raise ConfigError("shift: requires unseen clients, but all clients participate. Lower population.participants.")
    drawn = generator(seed, "shifted-clients").permutation(unseen)
    clients = np.sort(drawn[: round(share * len(unseen))])
    d, scale = data.dataset, InputScale.of(data.dataset)
    x, y = d.train_x, d.train_y.copy()
    gone = np.zeros(len(y), np.bool_)
    for client in clients.tolist():
        index = np.concatenate([data.train[client], data.held_out[client]])
        before = Examples(np.asarray(d.train_x[index]), d.train_y[index], index)
        after = _check_returned(
            shift, before, shift.shifted(before, scale, generator(seed, "shift", client=client)), scale
        )
        gone[np.setdiff1d(index, after.index)] = True
        y[after.index] = after.y
        if not np.array_equal(after.x, d.train_x[after.index]):
            x = _writable_copy(x) if x is d.train_x else x
            x[after.index] = after.x
    seen_labels = np.where(data.labels == d.train_y, y, data.labels)  # noisy labels stay noisy
    changed = np.concatenate([clients[:0], *(part[c] for c in clients for part in (data.train, data.held_out))])
    dropped = np.zeros((data.num_clients, d.num_classes), np.int64)
    np.add.at(dropped, (data.partition.owner()[gone], y[gone]), 1)
    record = {"kind": repr(shift), "share": share, "clients": clients.tolist(), "dropped": int(gone.sum())}
    return replace(
        data,
        dataset=replace(d, train_x=x, train_y=y),
        labels=seen_labels,
        train=data.train.without(gone[data.train.order]),
        held_out=data.held_out.without(gone[data.held_out.order]),
        shift=Shifted(clients, dropped, content_hash(x[changed], y[changed]), record),
        draw=None if data.draw is None else partial(_redraw_shifted, data, shift, share),
    )


def _redraw_shifted(data: FederatedData, shift: Shift, share: float, seed: int) -> FederatedData:
    return shift_unseen(data.redrawn(seed), shift, share=share, seed=seed)


def _writable_copy(x: AnyArray) -> AnyArray:
    """Copy an array to make it writable. For a file map, only the modified pages use memory."""
    base: Any = x
    while base is not None and not isinstance(base, np.memmap):
        base = base.base
    if base is None or base.filename is None or (base.ctypes.data, base.nbytes) != (x.ctypes.data, x.nbytes):
        return x.copy()
    return np.memmap(base.filename, x.dtype, "c", base.offset, x.shape)


def _check_returned(shift: Shift, before: Examples, after: Examples, scale: InputScale) -> Examples:
    """Return the result of a shift; raise ComponentError if it is invalid."""

    def refuse(rule: str, got: object) -> ComponentError:
        return ComponentError(f"{type(shift).__name__}.shifted must return {rule}; got {got}.")

    if not isinstance(after, Examples):
        raise refuse("Examples", type(after).__name__)
    index: Ints = after.index
    if not len(index) or len(np.unique(index)) < len(index) or not np.isin(index, before.index).all():
        raise refuse("at least one example of the client, each once", f"examples {index[:5]} of {before.index[:5]}")
    expected = (len(index), *before.x.shape[1:]), before.x.dtype
    if (after.x.shape, after.x.dtype) != expected or after.y.shape != index.shape:
        raise refuse(f"inputs of shape and type {expected}, and one label each", (after.x.shape, after.x.dtype))
    if after.x.dtype.kind == "f" and not np.isfinite(after.x).all():
        raise refuse("finite inputs", "nan or infinity")
    if after.y.dtype.kind not in "iu" or after.y.min() < 0 or after.y.max() >= scale.num_classes:
        raise refuse(f"labels from 0 to {scale.num_classes - 1}", after.y[:5])
    return after


# ---- Shifts by name

SHIFTS: Mapping[str, Any] = {
    "brightness": Brightness,
    "contrast": Contrast,
    "noise": InputNoise,
    "blur": Blur,
    "rotation": Rotation,
    "translation": Translation,
    "occlusion": Occlusion,
    "permuted_labels": PermutedLabels,
    "one_class": OneClass,
    "composed": Composed,
}
