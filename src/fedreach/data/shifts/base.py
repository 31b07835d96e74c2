"""What a shift is handed and hands back: the examples of one client."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from fedreach.arrays import AnyArray, Floats, Ints
from fedreach.data.checks import Kind
from fedreach.data.datasets import Dataset
from fedreach.errors import DataError

WHITE = 255.0
"""The largest pixel of an image."""


@dataclass(frozen=True, eq=False)
class InputScale:
    """What a shift may know of the data set: how large its inputs are.

    Images are in grey levels, 0 to 255, as they are stored; features are in their own units.
    """

    name: str  # of the data set, for messages
    kind: Kind
    num_classes: int
    centre: Floats  # mean of the training inputs: (C, 1, 1) of each channel, or (...) of each feature; (1,) of tokens
    unit: Floats  # what a strength of 1 stands for: 255 of images, the standard deviation of each feature, likewise

    @classmethod
    def of(cls, dataset: Dataset) -> InputScale:
        """Return the scale of a data set; of features, over all training examples.

        Example:
            >>> from fedreach.data.sets.catalogue import load
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
        """Return inputs as float64, to be changed and given to `stored`.

        Raises:
            DataError: If they are tokens, of which there is neither more nor less.
        """
        if self.kind in ("tokens", "several"):
            held = "tokens" if self.kind == "tokens" else "several inputs"
            raise DataError(
                f"{who} changes numbers, and {self.name} holds {held}. Use permuted_labels or one_class, or your own "
                "shift."
            )
        return x.astype(np.float64)

    def pixels(self, who: str, x: AnyArray) -> Floats:
        """Return (m, C, H, W) images as float64, to be changed and given to `stored`.

        Raises:
            DataError: If they are no images.
        """
        if self.kind != "image":
            raise DataError(
                f"{who} moves or hides pixels, and {self.name} holds {self.kind}, which have no place. Use brightness, "
                "contrast or noise for features, permuted_labels or one_class for any data; images are uint8 "
                "(n, C, H, W)."
            )
        return x.astype(np.float64)

    def stored(self, values: Floats) -> AnyArray:
        """Return changed inputs as the data set stores them: images as whole grey levels, clipped to 0..255."""
        if self.kind == "image":
            return np.clip(np.rint(values), 0, WHITE).astype(np.uint8)
        return values.astype(np.float32)


@dataclass(frozen=True, eq=False)
class Examples:
    """Examples of one client."""

    x: AnyArray  # (m, ...) as the data set stores them
    y: Ints  # (m,) true labels
    index: Ints  # (m,) which samples of the data set they are

    def only(self, kept: AnyArray) -> Examples:
        """Return those at these positions or flags."""
        return Examples(self.x[kept], self.y[kept], self.index[kept])

    def seen_as(self, x: AnyArray) -> Examples:
        """Return them with other inputs."""
        return replace(self, x=x)


class Shift(Protocol):
    """Changes what one client holds. It writes to no argument, and its strength 0 changes nothing, bit for bit."""

    def shifted(self, examples: Examples, scale: InputScale, rng: np.random.Generator) -> Examples:
        """Return the client's examples: other inputs or labels for the same samples, or some of the samples.

        Args:
            examples: All that the client holds.
            scale: Of the data set.
            rng: The client's own.
        """
        ...
