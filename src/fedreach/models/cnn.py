"""Convolutional models: LeNet and the CNN of the FedDyn experiments."""

from collections.abc import Sequence

from torch import nn

from fedreach.errors import ConfigError


def lenet(sample_shape: Sequence[int], num_classes: int) -> nn.Module:
    """LeNet with 6 and 16 filters of 5 x 5, ReLU, max pooling, and layers of 120 and 84.

    When: 28 x 28 images, with few parameters to send.

    Reference: LeCun et al., "Gradient-based learning applied to document recognition", 1998.

    Example:
        >>> sum(p.numel() for p in lenet((1, 28, 28), 10).parameters())
        44426
    """
    return _two_convolutions("lenet", sample_shape, num_classes, filters=(6, 16), hidden=(120, 84))


def cnn(sample_shape: Sequence[int], num_classes: int) -> nn.Module:
    """The CNN of FedDyn for CIFAR: 64 and 64 filters of 5 x 5, max pooling, layers of 384 and 192.

    When: 32 x 32 colour images, and to compare with FedDyn's line of papers.

    Reference: Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021, appendix.

    Example:
        >>> sum(p.numel() for p in cnn((3, 32, 32), 10).parameters())
        797962
    """
    return _two_convolutions("cnn", sample_shape, num_classes, filters=(64, 64), hidden=(384, 192))


def _two_convolutions(
    name: str, sample_shape: Sequence[int], num_classes: int, filters: tuple[int, int], hidden: tuple[int, int]
) -> nn.Module:
    if len(sample_shape) != 3 or min(sample_shape[1:]) < 16:
        raise ConfigError(
            f"The model {name!r} needs images of shape (channels, height, width), at least 16 x 16; "
            f"got {tuple(sample_shape)}. Use 'linear' or 'mlp'."
        )
    channels, height, width = sample_shape
    # Each 5 x 5 convolution takes 4 off a side, each pooling halves it.
    side = [((size - 4) // 2 - 4) // 2 for size in (height, width)]
    first, second = filters
    return nn.Sequential(
        nn.Conv2d(channels, first, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * side[0] * side[1], hidden[0]),
        nn.ReLU(),
        nn.Linear(hidden[0], hidden[1]),
        nn.ReLU(),
        nn.Linear(hidden[1], num_classes),
    )
