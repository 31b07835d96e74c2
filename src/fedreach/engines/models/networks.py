"""Built-in models, and the function that builds a model."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parameter import is_lazy

from fedreach._util.errors import ConfigError, check, nearest
from fedreach.engines.models.draws import seeded_generators
from fedreach.engines.models.outputs import TakeOutput

# -------------------- Models for features and small images without convolutions


def linear(sample_shape: Sequence[int], num_classes: int) -> nn.Module:
    """Multinomial logistic regression: one linear layer on the flattened example.

    Use when: data are tables, or theory requires a convex problem.

    Args:
        sample_shape: Shape of one example, which is flattened.
        num_classes: Number of outputs.

    Example:
        >>> linear((1, 8, 8), 10)[1]
        Linear(in_features=64, out_features=10, bias=True)
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(sample_shape), num_classes))


def mlp(sample_shape: Sequence[int], num_classes: int, hidden: Sequence[int] = (200, 100)) -> nn.Module:
    """Multilayer perceptron: fully connected layers with ReLU between them.

    Use when: data are tables or small images. This is the default model, because it trains within seconds.

    Args:
        sample_shape: Shape of one example, which is flattened.
        num_classes: Number of outputs.
        hidden: Width of each hidden layer. Default: (200, 100), as in arXiv:2311.05936, section 5.

    Raises:
        ConfigError: If a width is smaller than 1.

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


# -------------------- Convolutional models


def lenet(sample_shape: Sequence[int], num_classes: int) -> nn.Module:
    """LeNet (LeCun et al., 1998) with ReLU and max pooling.

    The two convolutions have 6 and 16 filters of 5 x 5. The two hidden layers have 120 and 84 units.

    Use when: data are 28 x 28 images, and the model should have few parameters.

    Args:
        sample_shape: (channels, height, width) of an image, at least 16 x 16.
        num_classes: Number of outputs.

    Raises:
        ConfigError: If the examples are not images of at least 16 x 16.

    Reference: LeCun et al., "Gradient-based learning applied to document recognition", 1998.

    Example:
        >>> sum(p.numel() for p in lenet((1, 28, 28), 10).parameters())
        44426
    """
    return _two_convolutions("lenet", sample_shape, num_classes, filters=(6, 16), hidden=(120, 84))


def cnn(sample_shape: Sequence[int], num_classes: int) -> nn.Module:
    """CNN of FedDyn for CIFAR (Acar et al., 2021).

    The two convolutions have 64 filters of 5 x 5 with max pooling. The two hidden layers have 384 and 192 units.

    Use when: data are 32 x 32 color images, or results should be comparable with FedDyn and related papers.

    Args:
        sample_shape: (channels, height, width) of an image, at least 16 x 16.
        num_classes: Number of outputs.

    Raises:
        ConfigError: If the examples are not images of at least 16 x 16.

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
            f"Examples for model {name!r} must be images of shape (channels, height, width), at least 16 x 16; "
            f"got {tuple(sample_shape)}. Use 'linear' or 'mlp'."
        )
    channels, height, width = sample_shape
    # Each 5 x 5 convolution shortens a side by 4 pixels, and each pooling halves it.
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


# -------------------- A character model for Shakespeare


def lstm(
    sample_shape: Sequence[int], num_classes: int, embedding: int = 8, hidden: int = 100, layers: int = 2
) -> nn.Module:
    """Next-character model of LEAF (Caldas et al., 2018): an embedding, stacked LSTM layers and a linear layer.

    Use when: data are text, and the model predicts the next character.

    Args:
        sample_shape: (length,) of a window of tokens. Tokens are from 0 to num_classes - 1.
        num_classes: Number of tokens.
        embedding: Width of the embedding. Default: 8, as in LEAF.
        hidden: Width of each LSTM layer. Default: 100, as in FedDyn; LEAF uses 256.
        layers: Number of LSTM layers.

    Raises:
        ConfigError: If the examples are not windows of tokens.

    Reference: Caldas et al., "LEAF: A Benchmark for Federated Settings" (arXiv 1812.01097), Shakespeare.

    Example:
        >>> sum(p.numel() for p in lstm((80,), 80).parameters())
        133520
    """
    if len(sample_shape) != 1:
        raise ConfigError(
            f"Examples for model 'lstm' must be windows of tokens of shape (length,); got {tuple(sample_shape)}."
        )
    return _NextToken(num_classes, embedding, hidden, layers)


class _NextToken(nn.Module):
    def __init__(self, vocabulary: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.output = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs, _ = self.lstm(self.embed(tokens))
        logits: Tensor = self.output(outputs[:, -1])
        return logits


# -------------------- ResNet-20 for small images

Norm = Literal["group", "batch"]


def resnet20(sample_shape: Sequence[int], num_classes: int, width: int = 16, norm: Norm = "group") -> nn.Module:
    """ResNet-20 for small images (He et al., 2016).

    The three stages have three residual blocks each, with `width`, 2 `width` and 4 `width` filters.

    Use when: data are 32 x 32 color images, and accuracy matters more than training time.

    Args:
        sample_shape: (channels, height, width) of an image.
        num_classes: Number of outputs.
        width: Number of filters in the first stage, at least 1, and even if `norm` is ``"group"``.
        norm: Normalization. ``"group"`` is GroupNorm with two groups, which suits small clients and clients with few
            classes. ``"batch"`` is BatchNorm, as in the paper. The server averages BatchNorm's running statistics like
            parameters (see `fedreach.engines.models.flat`).

    Raises:
        ConfigError: If the examples are not images, or an option is outside its range.

    Reference: He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, section 4.2, with the
    parameter-free shortcuts of option A.

    Example:
        >>> sum(p.numel() for p in resnet20((3, 32, 32), 10).parameters())
        269722
    """
    if len(sample_shape) != 3:
        raise ConfigError(
            f"Examples for model 'resnet20' must be images of shape (channels, height, width); got {sample_shape}."
        )
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


# --- Models by name, or custom `torch.nn.Module` classes

MODELS: Mapping[str, Any] = {
    "linear": linear,
    "mlp": mlp,
    "lenet": lenet,
    "cnn": cnn,
    "resnet20": resnet20,
    "lstm": lstm,
}


def build(
    model: str | Callable[..., nn.Module],
    sample_shape: Sequence[int] | Mapping[str, Sequence[int]] | Sequence[Sequence[int]],
    num_classes: int,
    *,
    seed: int,
    options: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Return a newly initialized model.

    Args:
        model: Name in `MODELS`, or callable that returns a module. FedReach passes `sample_shape` and `num_classes` if
            the callable has arguments with these names.
        sample_shape: Shape of one example, such as (1, 28, 28), (64,) or (80,) tokens. For several inputs, the shape
            of each input, by name or in order.
        num_classes: Number of outputs.
        seed: Seed for the generators of torch, numpy and `random` during initialization. The generators' states are
            restored afterwards.
        options: Other arguments of the model. FedReach does not pass the option ``output`` to the model, but uses it to
            select the module's output (see `fedreach.engines.models.outputs.TakeOutput`).

    Raises:
        ConfigError: If the name or an option is unknown, or the model does not fit the data.

    Example:
        >>> build("mlp", (64,), 10, seed=0, options={"hidden": [32]})[1]
        Linear(in_features=64, out_features=32, bias=True)
    """
    options = dict(options or {})
    output = options.pop("output", None)
    if isinstance(model, str) and model not in MODELS:
        raise ConfigError(
            f"model.name must be a built-in model or FILE.py:NAME; got {model!r}." + nearest(model, MODELS)
        )
    if isinstance(model, str) and output is not None:
        raise ConfigError(
            f"model.output must be left out for built-in models, which return a tensor; got {output!r} for {model!r}."
        )
    factory = MODELS[model] if isinstance(model, str) else model
    name = model if isinstance(model, str) else getattr(factory, "__name__", "model")
    is_several = isinstance(sample_shape, Mapping) or any(
        not isinstance(size, int | np.integer) for size in sample_shape
    )
    if is_several and isinstance(model, str):
        raise ConfigError(f"Examples for model {model!r} must have one input; got several. Use a custom model.")
    shape = dict(sample_shape) if isinstance(sample_shape, Mapping) else tuple(sample_shape)
    data_arguments = {"sample_shape": shape, "num_classes": num_classes}
    signature = inspect.signature(factory)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    option_names = [key for key in signature.parameters if key not in data_arguments]
    for key in options:
        if key not in option_names and not takes_any:
            raise ConfigError(f"The model {name!r} has no option {key!r}." + nearest(key, option_names))
    arguments = {key: value for key, value in data_arguments.items() if key in signature.parameters}
    try:
        signature.bind(**arguments, **options)
    except TypeError as error:
        raise ConfigError(f"The model {name!r} cannot be built: {error}. Set its arguments as options.") from error
    with seeded_generators(seed):
        torch.manual_seed(seed)  # also seeds a GPU, where the model may be created
        try:
            module = factory(**arguments, **options)
        except (RuntimeError, OverflowError, TypeError) as error:
            if not isinstance(model, str):
                raise
            raise ConfigError(  # a size is negative, needs too much memory, or has more than 64 bits
                f"The model {name!r} cannot be built: {str(error).splitlines()[0]}. Check the sizes among its options."
            ) from error
        if not isinstance(module, nn.Module):
            raise ConfigError(f"The model {name!r} must return a torch.nn.Module; got {type(module).__name__}.")
        _give_sizes(module, None if is_several else shape)
        if output is not None:
            module.register_forward_hook(TakeOutput(output))
    return module


def _give_sizes(module: nn.Module, sample_shape: Any) -> None:
    """Initialize lazy layers in a forward pass with two examples of zeros.

    Raises:
        ConfigError: If the module does not accept such examples.
    """
    if not any(is_lazy(tensor) for tensor in (*module.parameters(), *module.buffers())):
        return
    if sample_shape is None:
        raise ConfigError(
            f"Lazy layers are supported for models with one input; {type(module).__name__} has several. Set the sizes "
            "of its layers."
        )
    was_training, failures = module.training, list[Exception]()
    for dtype in (torch.float32, torch.int64):  # tokens are whole numbers
        try:
            with torch.no_grad():
                module.eval()(torch.zeros(2, *sample_shape, dtype=dtype))
            module.train(was_training)
            return
        except Exception as error:  # a user's module may raise anything
            failures.append(error)
    raise ConfigError(
        f"The model {type(module).__name__} must accept two examples of shape {tuple(sample_shape)}, from which its "
        f"lazy layers infer their sizes; got: {failures[-1]}. Set the sizes of its layers."
    )
