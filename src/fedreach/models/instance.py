"""A model that was made before it is known for which seed: it is copied, and its weights are drawn anew."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from torch import nn

from fedreach.errors import ConfigError


@dataclass(frozen=True, eq=False)
class ModuleInstance:
    """Makes copies of a module, for `fedreach.models.build`.

    Example:
        >>> import torch
        >>> layer = nn.Linear(2, 1)
        >>> make = ModuleInstance(layer)
        >>> torch.equal(make().weight, layer.weight), torch.equal(make(keep_weights=True).weight, layer.weight)
        (False, True)
    """

    module: nn.Module

    def __call__(self, keep_weights: bool = False) -> nn.Module:
        """Return a copy; its initial weights are drawn from torch's generator, unless they are to be kept."""
        module = copy.deepcopy(self.module)
        if not keep_weights:
            redraw(module)
        return module


def redraw(module: nn.Module) -> None:
    """Draw the weights of a module anew, layer by layer, as each layer does when it is made.

    Raises:
        ConfigError: If a layer has parameters, and no `reset_parameters` that would draw them.
    """
    for name, layer in module.named_modules():
        reset = getattr(layer, "reset_parameters", None) or getattr(layer, "_reset_parameters", None)
        if reset is not None:
            reset()
        elif own := [key for key, _ in layer.named_parameters(recurse=False)]:
            where = f"{type(layer).__name__} {name!r}" if name else type(layer).__name__
            raise ConfigError(
                f"A module that was made before is drawn anew for each seed, layer by layer; {where} has parameters "
                f"({', '.join(own)}) and no reset_parameters(). Hand over its class or a function that makes it, or "
                'keep its weights for all seeds: model={"name": module, "keep_weights": True}.'
            )
