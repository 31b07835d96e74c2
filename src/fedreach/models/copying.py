"""Copies of a model that keep the hooks on its tensors, which `copy.deepcopy` leaves behind."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


def copied(module: nn.Module) -> nn.Module:
    """Return a deep copy of a module whose parameters have the same hooks.

    `copy.deepcopy` copies hooks of modules, and drops those of tensors, such as a mask of gradients that is
    registered by ``weight.register_hook``.

    Example:
        >>> import torch
        >>> layer = nn.Linear(2, 1, bias=False)
        >>> _ = layer.weight.register_hook(lambda gradient: gradient * 0)
        >>> other = copied(layer)
        >>> other(torch.ones(1, 2)).sum().backward()
        >>> other.weight.grad
        tensor([[0., 0.]])
    """
    other = copy.deepcopy(module)
    for ours, theirs in zip(other.parameters(), module.parameters(), strict=True):
        for register, hook in tensor_hooks(theirs):
            getattr(ours, register)(hook)
    return other


def tensor_hooks(tensor: Tensor) -> list[tuple[str, Callable[..., Any]]]:
    """Return the hooks on the gradient of a tensor, each with the method that registers it."""
    kinds = {
        "register_hook": "_backward_hooks",
        "register_post_accumulate_grad_hook": "_post_accumulate_grad_hooks",
    }
    return [(register, hook) for register, key in kinds.items() for hook in (getattr(tensor, key, None) or {}).values()]
