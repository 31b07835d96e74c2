"""Copies of a model that keep the hooks on its tensors, which `copy.deepcopy` leaves behind.

`torch.nn.utils.weight_norm` and `torch.nn.utils.spectral_norm` keep the weight that they compute as a plain attribute
of the layer, and a hook computes it again before each pass. `copy.deepcopy` refuses such a tensor, as it has a
gradient; a copy starts without that gradient, as nothing reads the tensor before it is computed again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn

from fedreach.errors import ConfigError

COMPUTES_WEIGHTS = {("torch.nn.utils.weight_norm", "WeightNorm"), ("torch.nn.utils.spectral_norm", "SpectralNorm")}
"""Modules and names of the hooks that compute a layer's weight; looked up by name, as both are deprecated."""
TensorHook = tuple[str, Callable[..., Any]]
"""A hook on the gradient of a tensor, and the method that registers it."""


def copied(module: nn.Module) -> nn.Module:
    """Return a deep copy of a module whose parameters have the same hooks.

    `copy.deepcopy` copies hooks of modules, and drops those of tensors, such as a mask of gradients that is
    registered by ``weight.register_hook``.

    Raises:
        ConfigError: If it cannot be copied, as with tensors that were computed from its parameters.

    Example:
        >>> import torch
        >>> layer = nn.Linear(2, 1, bias=False)
        >>> _ = layer.weight.register_hook(lambda gradient: gradient * 0)
        >>> other = copied(layer)
        >>> other(torch.ones(1, 2)).sum().backward()
        >>> other.weight.grad
        tensor([[0., 0.]])
    """
    computed = [vars(layer)[name] for layer in module.modules() for name in computed_weights(layer)]
    try:
        other = copy.deepcopy(module, {id(weight): weight.detach().clone() for weight in computed})
    except Exception as error:
        raise ConfigError(
            f"A model must be a module that can be copied; copy.deepcopy({type(module).__name__}) fails: "
            f"{str(error).partition('.')[0] or type(error).__name__}. Compute such tensors in forward()."
        ) from error
    for ours, theirs in zip(other.parameters(), module.parameters(), strict=True):
        register_hooks(ours, tensor_hooks(theirs))
    return other


def computed_weights(layer: nn.Module) -> list[str]:
    """Return the attributes of a layer that a hook of `torch.nn.utils` computes again before each pass.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings(action="ignore"):
        ...     computed_weights(nn.utils.weight_norm(nn.Linear(2, 1)))
        ['weight']
    """
    hooks: list[Any] = list(layer._forward_pre_hooks.values())
    names = [hook.name for hook in hooks if (type(hook).__module__, type(hook).__name__) in COMPUTES_WEIGHTS]
    return [name for name in names if name in vars(layer)]


def register_hooks(tensor: Tensor, hooks: Iterable[TensorHook]) -> None:
    """Register hooks on the gradient of a tensor, as `tensor_hooks` returns them."""
    for register, hook in hooks:
        getattr(tensor, register)(hook)


def tensor_hooks(tensor: Tensor) -> list[TensorHook]:
    """Return the hooks on the gradient of a tensor, each with the method that registers it."""
    kinds = {
        "register_hook": "_backward_hooks",
        "register_post_accumulate_grad_hook": "_post_accumulate_grad_hooks",
    }
    return [(register, hook) for register, key in kinds.items() for hook in (getattr(tensor, key, None) or {}).values()]
