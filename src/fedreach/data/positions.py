"""A label at every position of an example, such as the next token or the class of each pixel.

Labels have shape (n, positions...), such as (n, T) or (n, H, W). Positions with the label `IGNORED` are masked: they
count in neither loss nor metrics. Each example has at least one labeled position.

**Weights.** A batch's loss is the mean over its labeled positions, as of `torch.nn.functional.cross_entropy`; a
client's loss and score are means over its labeled positions. A client counts in the average of models by its number of
*examples*, as always, or by whatever the weighting of the method is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedreach.arrays import AnyArray, Bools, Ints
from fedreach.errors import DataError

IGNORED = -100
"""The label of masked positions; that of torch's `ignore_index` and of Hugging Face."""


def is_labeled(labels: AnyArray) -> Bools:
    """Return which positions are labeled, of the shape of the labels."""
    labeled: Bools = labels != IGNORED
    return labeled


def position_counts(labels: AnyArray) -> Ints:
    """Return the (m,) labeled positions of each example.

    Example:
        >>> position_counts(np.array([[1, 0, -100], [2, -100, -100]]))
        array([2, 1])
    """
    counts: Ints = is_labeled(labels).reshape(len(labels), -1).sum(axis=1)
    return counts


def example_classes(labels: AnyArray, num_classes: int) -> int:
    """Return how many classes there are where each example has one of them; 0 where positions have, or numbers.

    Example:
        >>> example_classes(np.array([0, 1]), 2), example_classes(np.array([[0, 1], [1, 1]]), 2)
        (2, 0)
    """
    return num_classes if labels.ndim == 1 else 0


def next_token_labels(tokens: ArrayLike, attention_mask: ArrayLike | None = None) -> Ints:
    """Return the labels of a model that predicts the next token at each position.

    The label at a position is the token that follows it. The last position has none, and neither has one whose next
    token is padding.

    Args:
        tokens: (n, T) ids.
        attention_mask: (n, T), 0 where a token is padding; None: nowhere.

    Raises:
        DataError: If the shapes are not these.

    Example:
        >>> next_token_labels([[5, 6, 7, 0]], [[1, 1, 1, 0]])
        array([[   6,    7, -100, -100]])
    """
    ids = np.asarray(tokens)
    mask = np.ones(ids.shape, np.bool_) if attention_mask is None else np.asarray(attention_mask) != 0
    if ids.ndim != 2 or mask.shape != ids.shape or ids.dtype.kind not in "ui":
        raise DataError(
            f"next_token_labels: tokens must be (n, T) integers and attention_mask of their shape; got {ids.dtype} "
            f"{ids.shape} and {mask.shape}."
        )
    labels = np.full(ids.shape, IGNORED, np.int64)
    labels[:, :-1] = np.where(mask[:, 1:] & mask[:, :-1], ids[:, 1:], IGNORED)
    return labels
