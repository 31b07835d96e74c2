"""The stack with its step compiled: fewer and larger kernels, on a GPU recorded once and replayed (CUDA graphs)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedreach.engines.stacked import Stacked, Tensors


class Compiled(Stacked):
    """Trains the cohort together, with gradients compiled by `torch.compile`.

    Compiling takes from seconds to a minute for each shape of a step, and on a CPU needs a C++ compiler. It pays for
    long runs in which clients have equally many steps; after eight shapes torch compiles no more. Not every layer can
    be compiled under `torch.func.vmap`; what cannot is named by torch when round 1 begins. `auto` does not try this
    engine.
    """

    name = "compiled"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.threads = self.workers.count = 1  # a compiler is not forked
        replayed = "reduce-overhead" if self.device.type == "cuda" else "default"
        self._step_gradients = torch.compile(super()._gradients, mode=replayed, dynamic=False)

    def _gradients(
        self, weights: Tensors, buffers: Tensors, x: Tensor, y: Tensor, weight: Tensor | None
    ) -> tuple[Tensors, tuple[Tensor, Tensors]]:
        if self.device.type == "cuda":
            # What the last step returned is used up.
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        found: tuple[Tensors, tuple[Tensor, Tensors]] = self._step_gradients(weights, buffers, x, y, weight)
        return found
