"""Models by name, or any `torch.nn.Module` of the user. Their numbers are seen as one flat vector, see `flat`."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from fedreach.errors import ConfigError, nearest
from fedreach.limits import check_memory
from fedreach.models.cnn import cnn as cnn
from fedreach.models.cnn import lenet as lenet
from fedreach.models.dense import linear as linear
from fedreach.models.dense import mlp as mlp
from fedreach.models.draws import seeded
from fedreach.models.lstm import lstm as lstm
from fedreach.models.outputs import TakeOutput
from fedreach.models.resnet import resnet20 as resnet20
from fedreach.registry import NameTable

MODELS = NameTable(
    __name__,
    linear="dense:linear",
    mlp="dense:mlp",
    lenet="cnn:lenet",
    cnn="cnn:cnn",
    resnet20="resnet:resnet20",
    lstm="lstm:lstm",
)


def build(
    model: str | Callable[..., nn.Module],
    sample_shape: Sequence[int] | Mapping[str, Sequence[int]] | Sequence[Sequence[int]],
    num_classes: int,
    *,
    seed: int,
    options: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Return a freshly initialised model.

    Args:
        model: A name of `MODELS`, or a callable that returns a module; it is handed `sample_shape` and
            `num_classes` where it has arguments of these names.
        sample_shape: Shape of one example, such as (1, 28, 28), (64,) or (80,) tokens; of several inputs that of each,
            by name or in order.
        num_classes: Number of outputs.
        seed: Of the generators of torch, numpy and `random` during the initialisation; they are put back afterwards.
        options: Further arguments of the model; ``output`` is none of them: it says which part of what the module
            returns is its output, see `fedreach.models.outputs.TakeOutput`.

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
            f"model.name must be one of FedReach's models or FILE.py:NAME; got {model!r}." + nearest(model, MODELS)
        )
    if isinstance(model, str) and output is not None:
        raise ConfigError(
            f"model.output is for modules of your own; {model!r} returns a tensor; got {output!r}. Leave it out."
        )
    factory = MODELS[model] if isinstance(model, str) else model
    name = model if isinstance(model, str) else getattr(factory, "__name__", "model")
    accepted = inspect.signature(factory).parameters
    is_several = isinstance(sample_shape, Mapping) or any(
        not isinstance(size, int | np.integer) for size in sample_shape
    )
    if is_several and isinstance(model, str):
        raise ConfigError(f"The model {model!r} takes one input; got several. Give a module or function of your own.")
    shape = dict(sample_shape) if isinstance(sample_shape, Mapping) else tuple(sample_shape)
    given = {"sample_shape": shape, "num_classes": num_classes}
    arguments = {key: value for key, value in given.items() if key in accepted}
    if not any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
        for key in options:
            if key not in accepted or key in given:
                raise ConfigError(
                    f"The model {name!r} has no option {key!r}."
                    + nearest(key, [key for key in accepted if key not in given])
                )
    try:
        inspect.signature(factory).bind(**arguments, **options)
    except TypeError as error:
        raise ConfigError(f"The model {name!r} cannot be built: {error}. Give its arguments as options.") from error
    if isinstance(model, str):
        _check_fits(name, factory, {**arguments, **options})
    with seeded(seed):
        torch.manual_seed(seed)  # of a GPU, too, where the model is made there
        module = factory(**arguments, **options)
        if not isinstance(module, nn.Module):
            raise ConfigError(f"The model {name!r} must return a torch.nn.Module; got {type(module).__name__}.")
        _give_sizes(module, None if is_several else shape)
        if output is not None:
            module.register_forward_hook(TakeOutput(output))
    return module


def _give_sizes(module: nn.Module, sample_shape: Any) -> None:
    """Let lazy layers find their sizes and draw their weights, by two examples of zeros.

    Raises:
        ConfigError: If the module does not take them.
    """
    if not any(is_lazy(tensor) for tensor in (*module.parameters(), *module.buffers())):
        return
    if sample_shape is None:
        raise ConfigError(
            f"The lazy layers of {type(module).__name__} take their sizes from one input, and there are several. Give "
            "the layers their sizes."
        )
    was_training, failed = module.training, None
    for dtype in (torch.float32, torch.int64):  # tokens are whole numbers
        try:
            with torch.no_grad():
                module.eval()(torch.zeros(2, *sample_shape, dtype=dtype))
            break
        except Exception as error:  # whatever the module of a user does
            failed = error
    else:
        raise ConfigError(
            f"The lazy layers of {type(module).__name__} take their sizes from two examples of shape "
            f"{tuple(sample_shape)}, and it does not take these: {failed}. Give the layers their sizes."
        )
    module.train(was_training)


def _check_fits(name: str, factory: Callable[..., nn.Module], arguments: Mapping[str, Any]) -> None:
    """Refuse a model that memory does not hold; it is made first without its numbers, which take 4 bytes each.

    A model of one's own is not made twice.

    Raises:
        ConfigError: With its size and the limit, or if torch cannot make layers of these sizes.
    """
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            made = factory(**arguments)
    except (RuntimeError, OverflowError, TypeError) as error:  # sizes below 0, or beyond 64 bits
        said = str(error).splitlines()[0]
        raise ConfigError(f"The model {name!r} cannot be built: {said}. Check the sizes among its options.") from error
    size = sum(numbers.numel() for numbers in (*made.parameters(), *made.buffers()))
    check_memory(f"The model {name!r} of {size} numbers", 4 * size, "Make its layers smaller.")
