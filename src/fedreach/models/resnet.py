"""ResNet-20 for small images."""

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from fedreach.errors import ConfigError

Norm = Literal["group", "batch"]


def resnet20(sample_shape: Sequence[int], num_classes: int, width: int = 16, norm: Norm = "group") -> nn.Module:
    """ResNet-20: three stages of three residual blocks with `width`, 2 `width` and 4 `width` filters.

    When: 32 x 32 colour images where accuracy matters more than time.

    Args:
        sample_shape: (channels, height, width) of an image.
        width: Filters of the first stage.
        norm: ``"group"`` normalises each example by itself (two groups a layer), which suits small and skewed
            clients; ``"batch"`` is the BatchNorm of the original, whose running statistics are averaged like
            parameters (see `fedreach.models.flat`).

    Reference: He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, section 4.2; shortcuts of
    option A, without parameters.

    Example:
        >>> sum(p.numel() for p in resnet20((3, 32, 32), 10).parameters())
        269722
    """
    if len(sample_shape) != 3:
        raise ConfigError(f"The model 'resnet20' needs images of shape (channels, height, width); got {sample_shape}.")
    if norm not in ("group", "batch"):
        raise ConfigError(f"resnet20.norm must be 'group' or 'batch'; got {norm!r}.")
    if width < 1 or (norm == "group" and width % 2):
        raise ConfigError(f"resnet20.width must be at least 1, and even for norm 'group'; got {width}.")
    blocks: list[nn.Module] = []
    before = width
    for stage in range(3):
        after = width * 2**stage
        for block in range(3):
            blocks.append(_Block(before, after, stride=2 if stage and not block else 1, norm=norm))
            before = after
    return nn.Sequential(
        nn.Conv2d(sample_shape[0], width, 3, padding=1, bias=False),
        _norm(norm, width),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(before, num_classes),
    )


def _norm(norm: Norm, channels: int) -> nn.Module:
    return nn.GroupNorm(2, channels) if norm == "group" else nn.BatchNorm2d(channels)


class _Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.stride, self.widen = stride, after - before
        self.first = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.first_norm = _norm(norm, after)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.second_norm = _norm(norm, after)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first_norm(self.first(x)))
        y = self.second_norm(self.second(y))
        shortcut = x[..., :: self.stride, :: self.stride] if self.stride > 1 else x
        if self.widen:
            shortcut = F.pad(shortcut, (0, 0, 0, 0, self.widen // 2, self.widen - self.widen // 2))
        return F.relu(y + shortcut)
