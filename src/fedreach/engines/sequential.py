"""The readable engine: one client after the other, as the papers write it."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Self

import numpy as np
import torch
from torch.nn import functional as F

from fedreach.arrays import Float32s, Ints
from fedreach.engines.base import Engine, Trained, seeded
from fedreach.errors import TrainingError
from fedreach.models.flat import bind
from fedreach.streams import torch_seed


class Sequential(Engine):
    """Trains one client at a time."""

    name = "sequential"

    def train(self, broadcast: Float32s, ids: Ints, round_: int, rate: float) -> Trained:
        """Train each client from the broadcast vector."""
        start = self.tensor(broadcast)
        update = np.empty((len(ids), self.layout.size), np.float32)
        loss = np.empty(len(ids))
        for row, (client, plan) in enumerate(zip(ids, self.plans(ids, round_), strict=True)):
            seed = torch_seed(self.seed, "dropout", round_, int(client)) if self.draws else 0
            try:
                with seeded(seed, self.device) if self.draws else nullcontext():
                    vector, loss[row] = self._train_one(start, plan, rate)
            except Exception as error:
                raise TrainingError(f"Client {client} failed in round {round_}: {error}") from error
            update[row] = (vector - start).cpu().numpy()
        return Trained(update, loss, self.layout.num_trainable)

    def twin(self) -> Self:
        """Return an engine with a model of its own on the same data."""
        other = copy.copy(self)
        other.module = copy.deepcopy(self.module)
        return other

    def _train_one(self, start: torch.Tensor, plan: Ints, rate: float) -> tuple[torch.Tensor, float]:
        local, p = self.local, self.layout.num_trainable
        vector, gradient = start.clone(), torch.zeros(p, device=self.device)
        weights, broadcast = vector[:p], start[:p]
        velocity = torch.zeros_like(gradient)
        total, seen = torch.zeros((), device=self.device), 0
        bind(self.module, vector, gradient, layout=self.layout)
        self.module.train()
        for batch in plan:
            index = torch.from_numpy(batch[batch >= 0]).to(self.device)
            x, y = self.train_samples.batch(index)
            gradient.zero_()
            loss = F.cross_entropy(self.module(x), y)
            loss.backward()  # type: ignore[no-untyped-call]

            g = self.solver.correct(gradient, weights, broadcast)
            if local.clip_norm is not None:
                g = g * torch.clamp(local.clip_norm / g.norm(), max=1.0)
            if local.weight_decay:
                g = g + local.weight_decay * weights
            if local.momentum:
                g = velocity.mul_(local.momentum).add_(g)
            weights.sub_(g, alpha=rate)

            total += loss.detach() * len(index)
            seen += len(index)
        return vector, float(total) / seen
