"""What an augmentation must have, and a plain function as one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol


class Augmentation(Protocol):
    """Changes the inputs of a client's training batch at random.

    It draws from torch, numpy and `random`, whose generators are seeded by the run's seed, round, client and step: so a
    client trains on the same inputs in any order of clients, after a resume, and on Flower.
    """

    def augment(self, inputs: Any) -> Any:
        """Return inputs of the same shape and type.

        Args:
            inputs: (b, ...) tensor as the model is given it, such as (b, c, h, w) normalized images.
        """


@dataclass(frozen=True)
class FunctionAugmentation:
    """Use ``function(inputs) -> inputs``, of (b, ...) tensors: a function, or a transform of torchvision.

    Example:
        >>> import torch
        >>> FunctionAugmentation(torch.neg).augment(torch.ones(2, 1))
        tensor([[-1.],
                [-1.]])
    """

    transform: Callable[[Any], Any]

    @property
    def name(self) -> str:
        """The function's name, for messages."""
        return getattr(self.transform, "__name__", type(self.transform).__name__)

    def augment(self, inputs: Any) -> Any:
        return self.transform(inputs)
