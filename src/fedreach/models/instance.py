"""A model that was made before it is known for which seed: it is copied, and what it trains is drawn anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from fedreach.errors import ConfigError
from fedreach.models.copying import computed_weights, copied
from fedreach.models.flat import module_tensors

DRAWN = "_drawn_anew"  # attribute of a module whose trained numbers were drawn anew


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
        """Return a copy; what it trains is drawn from torch's generator, unless its weights are to be kept."""
        module = copied(self.module)
        if not keep_weights:
            redraw(module)
            module.__dict__[DRAWN] = True
        return module

    def __deepcopy__(self, memo: dict[int, Any]) -> ModuleInstance:
        """Return a copy that keeps the hooks on tensors, see `copied`."""
        return ModuleInstance(copied(self.module))


def redraw(module: nn.Module) -> None:
    """Draw what a module trains anew, layer by layer, as each layer does when it is made.

    Frozen parameters stay, and so do the buffers of layers that train nothing: they are no initial weights. In a module
    without frozen parameters, all layers start as new ones.

    Raises:
        ConfigError: If a layer has parameters that are trained, and no `reset_parameters` that would draw them.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        >>> before = net[0].requires_grad_(False).weight.clone()
        >>> redraw(net)
        >>> bool((net[0].weight == before).all())
        True
    """
    stays = {name: tensor.detach().clone() for name, tensor in _staying(module).items()}
    for name, layer in module.named_modules():
        reset = getattr(layer, "reset_parameters", None) or getattr(layer, "_reset_parameters", None)
        own = [key for key, p in layer.named_parameters(recurse=False) if p.requires_grad]
        if not own and stays:
            continue
        if reset is not None and not computed_weights(layer):  # else it would draw what is computed again
            reset()
        elif own:
            where = f"{type(layer).__name__} {name!r}" if name else type(layer).__name__
            raise ConfigError(
                f"A module that was made before is drawn anew for each seed, layer by layer; {where} has parameters "
                f"({', '.join(own)}) and no reset_parameters() for them. Hand over its class or a function that "
                'makes it, or keep its weights for all seeds: model={"name": module, "keep_weights": True}.'
            )
    tensors = module_tensors(module)
    for name, value in stays.items():
        tensors[name].data.copy_(value)


def _staying(module: nn.Module) -> dict[str, Tensor]:
    """Return what stays when a module is drawn anew: nothing where all of its parameters are trained."""
    found: dict[str, Tensor] = {name: p for name, p in module.named_parameters() if not p.requires_grad}
    if not found:
        return {}
    for place, layer in module.named_modules():
        if not any(p.requires_grad for p in layer.parameters(recurse=False)):
            found |= {f"{place}.{key}".lstrip("."): b for key, b in layer.named_buffers(recurse=False)}
    return found


def numbers_note(module: nn.Module) -> str:
    """Return a line about a model with frozen numbers, or whose numbers were drawn in place of its own; else nothing.

    Example:
        >>> net = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 2))
        >>> numbers_note(net[0]), numbers_note(ModuleInstance(nn.Sequential(net[0].requires_grad_(False), net[1]))())
        ('', 'model: 14 numbers are trained and drawn anew with each seed, 42 frozen ones stay')
    """
    trained, frozen = (sum(p.numel() for p in module.parameters() if p.requires_grad is on) for on in (True, False))
    drawn = " and drawn anew with each seed" if DRAWN in vars(module) else ""
    if drawn and not frozen:
        return f"model: {trained} numbers are trained{drawn}; keep_weights = true starts from the module's own"
    return f"model: {trained} numbers are trained{drawn}, {frozen} frozen ones stay" if frozen else ""
