"""Running means and variances of BatchNorm layers after convolutions, refreshed by a client's own inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedreach.arrays import Float32s
from fedreach.federation.values import Outputs
from fedreach.models.draws import seed_of, seeded
from fedreach.models.flat import Layout, bind

BATCH = 256
"""Inputs that go through the model at a time."""


def refreshable_layers(module: nn.Module) -> list[_BatchNorm]:
    """Return the BatchNorm layers after convolutions that go by float32 running statistics in evaluation mode.

    They stand in the order of the module. `BatchNorm1d` is left out: see `fedreach.federation.serving.batchnorm`.

    Example:
        >>> len(refreshable_layers(nn.Sequential(nn.BatchNorm2d(3), nn.BatchNorm2d(3, track_running_stats=False))))
        1
    """
    layers = [layer for layer in module.modules() if isinstance(layer, nn.BatchNorm2d | nn.BatchNorm3d)]
    return [layer for layer in layers if layer.running_mean is not None and layer.running_mean.dtype == torch.float32]


@dataclass(frozen=True, eq=False)
class BatchNormStatistics:
    """See `fedreach.federation.values.RunningStatistics`; the (d,) vector of the model is never written to.

    A layer's statistics depend on those of the layers before it. So all inputs go through the model once a layer, in
    the order in which the model comes to them, in batches: memory does not grow with their number, and what comes out
    is what one pass with all inputs as a single batch gives in training mode.
    """

    module: nn.Module
    layout: Layout
    vector: Tensor  # (d,)
    said: Callable[[Tensor, Tensor], Outputs]  # what a (d,) model says of inputs

    def refreshed(self, inputs: Float32s, strength: float) -> Float32s:
        x = torch.from_numpy(inputs).to(self.vector.device)
        self._bind_copy()
        if len(x):
            weight = len(x) / (len(x) + strength)
            for layer in self._in_order(x[:1]):
                for running, own in zip(_statistics(layer), self._moments(layer, x), strict=True):
                    running.lerp_(own, weight)
        parts = [part for layer in refreshable_layers(self.module) for part in _statistics(layer)]
        found: Float32s = torch.cat(parts).cpu().numpy()
        return found

    def outputs(self, statistics: Float32s, inputs: Float32s) -> Outputs:
        vector = self._bind_copy()
        given = torch.from_numpy(np.array(statistics, np.float32)).to(vector.device)
        parts = [part for layer in refreshable_layers(self.module) for part in _statistics(layer)]
        for part, values in zip(parts, torch.split(given, [len(part) for part in parts]), strict=True):
            part.copy_(values)
        return self.said(vector, torch.from_numpy(inputs).to(vector.device))

    def _bind_copy(self) -> Tensor:
        """Let the module live in a copy of the model, and return that."""
        vector = self.vector.clone()
        bind(self.module, vector, layout=self.layout)
        self.module.eval()
        return vector

    def _in_order(self, x: Tensor) -> list[_BatchNorm]:
        """Return the layers in the order in which the model comes to them; without those that it never comes to."""
        seen: dict[_BatchNorm, None] = {}

        def note(layer: _BatchNorm, _: tuple[Tensor, ...]) -> None:
            seen[layer] = None

        hooks = [layer.register_forward_pre_hook(note) for layer in refreshable_layers(self.module)]
        try:
            with torch.no_grad():
                self.module(x)
        finally:
            for hook in hooks:
                hook.remove()
        return list(seen)

    def _moments(self, layer: _BatchNorm, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of what comes to a layer, over inputs and places, summed in float64.

        The variance is divided by the number, not by one less: that is what a layer normalises by in training.
        """
        total = torch.zeros(layer.num_features, dtype=torch.float64, device=x.device)
        squares, count = torch.zeros_like(total), 0

        def add(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            nonlocal count
            values = arguments[0].double().movedim(1, -1).flatten(0, -2)
            total.add_(values.sum(0))
            squares.add_(values.square().sum(0))
            count += len(values)

        with layer.register_forward_pre_hook(add), torch.no_grad():
            for part in torch.split(x, BATCH):
                with seeded(seed_of(part), part.device):  # of a model that draws in evaluation
                    self.module(part)
        mean = total / count
        return mean.float(), (squares / count - mean.square()).clamp_min(0).float()


def _statistics(layer: _BatchNorm) -> tuple[Tensor, Tensor]:
    """Return the running mean and variance of a layer of `refreshable_layers`."""
    mean, variance = layer.running_mean, layer.running_var
    assert mean is not None
    assert variance is not None
    return mean, variance
