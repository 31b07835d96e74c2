"""What an `Objective` is handed in a step of local training: the module, the batch, and other models on that batch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import cached_property, partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedreach.errors import PartError
from fedreach.federation.objectives import Objective
from fedreach.federation.protocols import Loss
from fedreach.federation.traits import name_of
from fedreach.models.copying import copied
from fedreach.models.flat import Layout, bind

Calls = dict[str, list[tuple[Any, Any]]]
"""Layer -> what it was given and what it returned, each time that it was called in a pass."""
MeanLoss = Callable[[Tensor], Tensor]
"""Mean loss over the batch, given the outputs."""


class Pass:
    """A `ForwardPass`: one pass of a module over a batch, its layers watched.

    Example:
        >>> module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> watched = Pass(module, torch.zeros(5, 3))
        >>> [tuple(found.shape) for found in (watched.outputs, watched.features(), watched.features("0"))]
        [(5, 2), (5, 4), (5, 4)]
    """

    def __init__(self, module: nn.Module, x: Tensor) -> None:
        self.size, self._calls = len(x), cast(Calls, {})
        self._linear = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)]
        with ExitStack() as hooks:
            for name, part in module.named_modules():
                hooks.enter_context(part.register_forward_hook(partial(_note, self._calls, name)))
            self.outputs: Tensor = module(x)

    def features(self, layer: str | None = None) -> Tensor:
        name = self._linear[-1] if layer is None and self._linear else layer
        if name is None:
            raise PartError("features: the model has no linear layer. Name the layer whose output is meant.")
        if name not in self._calls:
            known = ", ".join(map(repr, filter(None, self._calls)))
            raise PartError(f"features: the model has no layer {name!r} that is used. It has {known}.")
        given, returned = self._calls[name][-1]
        found = given[0] if layer is None else returned
        rows = isinstance(found, Tensor) and len(found) == self.size and (layer is not None or found.ndim == 2)
        if len(self._calls[name]) > 1 or not rows:
            which = f"the last linear layer, {name!r}," if layer is None else f"layer {name!r}"
            raise PartError(
                f"features: {which} must be used once a pass, for one row an example. Name another layer of the model."
            )
        flat: Tensor = found.flatten(1)
        return flat


def _note(calls: Calls, name: str, part: nn.Module, given: Any, returned: Any) -> None:
    calls.setdefault(name, []).append((given, returned))


class Step(Pass):
    """A `LocalStep`."""

    def __init__(
        self, run: ObjectiveRun, x: Tensor, y: Tensor, mean_loss: MeanLoss, broadcast: Tensor, memory: Tensor
    ) -> None:
        super().__init__(run.module, x)
        self.x, self.y, self.broadcast, self.memory, self.module = x, y, broadcast, memory, run.module
        self._run, self._mean_loss = run, mean_loss
        self.loss = mean_loss(self.outputs)

    @cached_property
    def global_model(self) -> Pass:
        return self.frozen(self.broadcast)

    def frozen(self, model: Tensor) -> Pass:
        other = self._run.other
        bind(other, model, layout=self._run.layout)
        with torch.no_grad():
            return Pass(other, self.x)

    def gradient(self) -> Tensor:
        parameters = dict(self.module.named_parameters())
        flat = torch.zeros(self._run.layout.num_trainable, device=self.broadcast.device)
        views = self._run.layout.parameter_views(flat)
        asked = [parameters[name] for name in views]
        found = torch.autograd.grad(self.loss, asked, retain_graph=True, allow_unused=True)
        for view, one in zip(views.values(), found, strict=True):
            if one is not None:
                view.copy_(one)
        return flat

    def loss_at(self, move: Tensor) -> Tensor:
        parameters = dict(self.module.named_parameters())
        moved = {name: parameters[name] + by for name, by in self._run.layout.parameter_views(move).items()}
        buffers = {name: buffer.clone() for name, buffer in self.module.named_buffers()}
        return self._mean_loss(functional_call(self.module, {**moved, **buffers}, (self.x,)))


class ObjectiveRun:
    """Asks a loss for the objective of steps; one for each engine.

    Args:
        loss: An `Objective`.
        module: The local model.
        layout: Its own.
    """

    def __init__(self, loss: Loss, module: nn.Module, layout: Layout) -> None:
        self.part, self.module, self.layout = cast(Objective, loss), module, layout
        self.other = copied(module).eval()  # whose numbers are those of the frozen model that is asked last

    def step(
        self, x: Tensor, y: Tensor, mean_loss: MeanLoss, broadcast: Tensor, memory: Tensor | None
    ) -> tuple[Tensor, Any]:
        """Return the mean loss of a batch, and what is to be made small.

        Raises:
            PartError: If the objective is not one number that can be differentiated.
        """
        memory = torch.zeros_like(broadcast) if memory is None else memory
        step = Step(self, x, y, mean_loss, broadcast, memory)
        found = self.part.objective(step)
        if not isinstance(found, Tensor) or found.shape != () or not found.requires_grad:
            got = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            if isinstance(found, Tensor) and found.shape == ():
                got = "a constant"
            raise PartError(
                f"{name_of(self.part)}.objective must return a tensor of one number that torch can differentiate, such "
                f"as step.loss + ...; got {got}."
            )
        return step.loss, found
