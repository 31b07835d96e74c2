"""Small models of images with every layer that the engine in C knows, in every order that matters to it."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from fedreach.engines.models.networks import build


def _ends(*layers: nn.Module, numbers: int) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(numbers, 7), nn.ReLU(), nn.Linear(7, 3))


def few_filters() -> nn.Module:
    """Fewer filters than a vector has numbers, as in LeNet."""
    return _ends(
        nn.Conv2d(1, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        numbers=16 * 2 * 2,
    )


def borders() -> nn.Module:
    """Zeros around images; maxima before max(0, y)."""
    return _ends(
        nn.Conv2d(2, 20, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(20, 9, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        numbers=9 * 3 * 3,
    )


def without_pooling() -> nn.Module:
    """Filters whose outputs are all used, with other borders above than aside."""
    return _ends(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Conv2d(5, 17, 3, padding=(1, 0)), nn.ReLU(), numbers=17 * 6 * 4)


def strides() -> nn.Module:
    """Filters that leave places out, taller than wide."""
    return _ends(
        nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 8, (3, 2), stride=(1, 2)), numbers=8 * 4 * 3
    )


def pooled_strides() -> nn.Module:
    """The same before maxima, without biases, and more filters than two vectors hold."""
    return _ends(
        nn.Conv2d(1, 6, 3, stride=2, padding=1, bias=False),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(6, 33, 2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        numbers=33 * 2 * 2,
    )


def odd_sides() -> nn.Module:
    """A last row and column that no window sees."""
    return _ends(
        nn.Conv2d(1, 4, 4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 2, bias=False),
        nn.ReLU(),
        nn.MaxPool2d(2),
        numbers=4 * 2 * 2,
    )


def windows() -> nn.Module:
    """Windows that overlap and reach over the border."""
    return _ends(
        nn.Conv2d(2, 6, 3),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(6, 8, 3),
        nn.AvgPool2d(2, 2, 1),
        nn.ReLU(),
        numbers=8 * 3 * 3,
    )


def pooled_first() -> nn.Module:
    """Maxima of the inputs."""
    return _ends(nn.MaxPool2d(2), nn.Conv2d(2, 6, 3), nn.ReLU(), numbers=6 * 4 * 4)


def large_kernels() -> nn.Module:
    """More rows and columns than fit into registers at a time."""
    return _ends(
        nn.Conv2d(3, 8, 7, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 24, 7),
        nn.ReLU(),
        numbers=24,
    )


def many_channels() -> nn.Module:
    """Rows of a filter that are longer than several vectors."""
    return _ends(
        nn.Conv2d(24, 40, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(40, 20, 3),
        nn.MaxPool2d(2),
        numbers=20 * 2 * 2,
    )


def wide_borders() -> nn.Module:
    """More zeros around an image than a filter needs to see its border."""
    return _ends(nn.Conv2d(2, 5, 2), nn.ReLU(), nn.Conv2d(5, 4, 2, padding=(2, 1)), nn.ReLU(), numbers=4 * 10 * 8)


class Shortcuts(nn.Module):
    """What is added was made before: the inputs, the same twice, some of the places, more channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.GroupNorm(2, 6)
        self.second = nn.Conv2d(6, 6, 3, padding=1, bias=False)
        self.third = nn.Conv2d(6, 20, 3, stride=2, padding=1)
        self.fourth = nn.Conv2d(20, 20, 3, padding=1)
        self.end = nn.Linear(20 * 2 * 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm(self.first(x)) + F.pad(x, (0, 0, 0, 0, 1, 2)))
        z = y + F.relu(self.second(y))
        u = F.pad(y[..., ::2, ::2], (0, 0, 0, 0, 7, 7)) + F.dropout(self.third(z), 0.0, self.training)
        v = F.relu(self.fourth(u) + u)
        return self.end(F.max_pool2d(v, 2).flatten(1))


def norms() -> nn.Module:
    """Groups of channels, with and without factors, pooled and not."""
    return _ends(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 20, 3, stride=2, padding=1),
        nn.GroupNorm(4, 20),
        nn.Conv2d(20, 6, 3),
        nn.GroupNorm(1, 6, affine=False),
        nn.ReLU(),
        numbers=6,
    )


def mean_at_the_end() -> nn.Module:
    """Means of whole images, as residual networks end."""
    return nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.ReLU(), nn.GroupNorm(6, 6), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, int, int]]] = {
    "lenet": (lambda: build("lenet", (1, 28, 28), 3, seed=0), (1, 28, 28)),
    "few_filters": (few_filters, (1, 16, 16)),
    "borders": (borders, (2, 12, 12)),
    "wide_borders": (wide_borders, (2, 8, 8)),
    "shortcuts": (Shortcuts, (3, 8, 8)),
    "resnet20": (lambda: build("resnet20", (3, 8, 8), 3, seed=0, options={"width": 4}), (3, 8, 8)),
    "without_pooling": (without_pooling, (3, 8, 8)),
    "strides": (strides, (3, 12, 12)),
    "pooled_strides": (pooled_strides, (1, 24, 24)),
    "odd_sides": (odd_sides, (1, 15, 15)),
    "windows": (windows, (2, 14, 14)),
    "pooled_first": (pooled_first, (2, 12, 12)),
    "large_kernels": (large_kernels, (3, 14, 14)),
    "many_channels": (many_channels, (24, 12, 12)),
    "norms": (norms, (3, 12, 12)),
    "mean_at_the_end": (mean_at_the_end, (2, 9, 9)),
}
