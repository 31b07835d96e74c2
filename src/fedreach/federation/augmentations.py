"""Augmentations: random changes of the inputs of training batches."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fedreach._util.errors import ConfigError
from fedreach.federation.base import Component, OfFunction

# -------------------- The base class, and a plain function as an augmentation


class Augmentation(Component):
    """Random changes of the inputs of a client's training batch.

    Augmentations draw from torch, numpy and `random`. FedReach seeds these generators for each run, round, client and
    step. So a client trains on the same inputs in any order of clients, in a resumed run and on Flower.
    """

    component_type = "augmentation"

    @abstractmethod
    def augment(self, inputs: Any) -> Any:
        """Return augmented inputs of the same shape and type.

        Args:
            inputs: (b, ...) tensor of model inputs, such as (b, c, h, w) normalized images.
        """


@dataclass(frozen=True)
class FunctionAugmentation(OfFunction, Augmentation):
    """Augmentation by ``function(inputs) -> inputs`` of (b, ...) tensors, such as a transform of torchvision.

    Example:
        >>> import torch
        >>> FunctionAugmentation(torch.neg).augment(torch.ones(2, 1))
        tensor([[-1.],
                [-1.]])
    """

    def augment(self, inputs: Any) -> Any:
        return self.function(inputs)


# -------------------- Random horizontal flips, and random crops of padded images


@dataclass(frozen=True)
class FlipAndCrop(Augmentation):
    """Random horizontal flips and random crops of padded images.

    Each image is flipped with probability `flip`, padded with `padding` zeros on each side, and cropped to its size at
    a uniformly random offset. Inputs are normalized, so 0 is the mean color of the data set.

    Use when: inputs are photographs, as in CIFAR-10. Do not use it for digits or letters, because a flip can change
    their class.

    Args:
        flip: Probability of a flip, in [0, 1].
        padding: Number of padding pixels on each side; 0: no crop.

    Raises:
        ConfigError: If a value is out of range, or inputs are not images.

    Reference: He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, section 4.2.

    Example:
        >>> import torch
        >>> FlipAndCrop(flip=1.0, padding=0).augment(torch.tensor([[[[1.0, 2.0, 3.0]]]]))
        tensor([[[[3., 2., 1.]]]])
    """

    flip: Annotated[float, "[0, 1]"] = 0.5
    padding: Annotated[int, "[0, 1e4]"] = 4

    def augment(self, inputs: Any) -> Any:
        import torch
        from torch.nn import functional as F

        if inputs.dim() != 4 or not inputs.is_floating_point():
            raise ConfigError(
                "The augmentation flip_and_crop changes images, (channels, height, width); got inputs of shape "
                f"{tuple(inputs.shape[1:])} and type {inputs.dtype}. Use a custom augmentation, FILE.py:NAME."
            )
        b, channels, height, width = inputs.shape
        flipped = (torch.rand(b) < self.flip).to(inputs.device)
        images = torch.where(flipped[:, None, None, None], inputs.flip(-1), inputs)
        if self.padding == 0:
            return images
        offsets = torch.randint(2 * self.padding + 1, (2, b)).to(inputs.device)
        rows = offsets[0][:, None] + torch.arange(height, device=inputs.device)
        columns = offsets[1][:, None] + torch.arange(width, device=inputs.device)
        padded = F.pad(images, (self.padding,) * 4)
        image = torch.arange(b, device=inputs.device)[:, None, None, None]
        channel = torch.arange(channels, device=inputs.device)[:, None, None]
        return padded[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


# -------------------- How the inputs of clients' training batches are changed at random

AUGMENTATIONS: Mapping[str, Any] = {
    "flip_and_crop": FlipAndCrop,
}
