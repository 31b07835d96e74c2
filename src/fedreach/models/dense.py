"""Models for features and small images without convolutions."""

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from fedreach.errors import check


def linear(sample_shape: Sequence[int], num_classes: int) -> nn.Module:
    """Multinomial logistic regression: one linear layer on the flattened example.

    When: tables, and as the convex case in which theory holds.

    Example:
        >>> linear((1, 8, 8), 10)[1]
        Linear(in_features=64, out_features=10, bias=True)
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(sample_shape), num_classes))


def mlp(sample_shape: Sequence[int], num_classes: int, hidden: Sequence[int] = (200, 100)) -> nn.Module:
    """Fully connected layers with ReLU between them.

    When: small images and tables; the default, as it trains in moments.

    Args:
        sample_shape: Shape of one example; it is flattened.
        hidden: Width of each hidden layer; (200, 100) as in arXiv 2311.05936, section 5.

    Raises:
        ConfigError: If a width is not at least 1.

    Example:
        >>> sum(p.numel() for p in mlp((1, 28, 28), 10).parameters())
        178110
    """
    for width in hidden:
        check("mlp", "hidden", width, "[1, inf)")
    widths = [math.prod(sample_shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], num_classes))
