"""The readable engine: one client after the other, as the papers write it."""

from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor, nn

from fedreach.arrays import Ints
from fedreach.engines.augmenting import augmented, check_augmentation
from fedreach.engines.batches import batch_plan
from fedreach.engines.protocols import Task, Terms
from fedreach.engines.samples import seeded
from fedreach.engines.trainer import Group, GroupTrainer, cause_of
from fedreach.errors import TrainingError
from fedreach.federation.adam import Adam
from fedreach.federation.torch_steps import TorchSteps
from fedreach.models.flat import bind
from fedreach.streams import torch_seed


class Sequential(GroupTrainer):
    """Trains one client at a time.

    When: any module at all, and as the readable twin that the others are tested against.
    """

    name = "sequential"
    follows_torch = True

    def __init__(self, task: Task, device: torch.device) -> None:
        super().__init__(task, device)
        if isinstance(self.local.optimizer, TorchSteps):
            self.local.optimizer.begun(self._trained_parameters(), self.local.rate)  # refused before the first round
        self.augmentation = task.augmentation
        if self.augmentation is not None:
            x, _ = self.samples["train"].batch(torch.arange(min(8, len(self.samples["train"])), device=device))
            check_augmentation(self.augmentation, x)

    def groups(self, ids: Ints, concurrency: int) -> list[Ints]:
        """Return every client by itself, the largest first."""
        return list(np.argsort(-self.data.train.sizes_of(ids), kind="stable")[:, None])

    def train_group(
        self, start: Tensor, ids: Ints, round_: int, rate: float, update: Tensor, group: Ints, terms: Terms
    ) -> Group:
        losses: list[float] = []
        steps: list[int] = []
        shifts = self.shifts_of(ids)
        for row, plan in zip(group, self.plans(ids[group], round_), strict=True):
            client = int(ids[row])
            seed = torch_seed(self.seed, "dropout", round_, client) if self.draws else 0
            try:
                with seeded(seed, self.device) if self.draws else nullcontext():
                    own = {name: rows[row].to(self.device) for name, rows in terms.items()}
                    vector, loss = self._train_one(
                        start, plan, rate, own, None if shifts is None else shifts[row], (round_, client)
                    )
            except Exception as error:
                cause = cause_of(error, self.local)
                raise TrainingError(f"Client {client} failed in round {round_}: {cause}") from error
            update[row].copy_(vector.sub_(start))
            losses.append(loss)
            steps.append(len(plan))
        return losses, steps, None

    def plans(self, ids: Ints, round_: int) -> list[Ints]:
        """Return each client's (steps, batch) table of sample indices, -1 where a batch is not full."""
        plans = []
        for client in map(int, ids):
            samples = self.data.train[client]
            positions = batch_plan(self.seed, round_, client, len(samples), self.local)
            plans.append(np.where(positions >= 0, samples[positions], -1))
        return plans

    def _trained_parameters(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    def _train_one(
        self, start: Tensor, plan: Ints, rate: float, terms: Terms, shift: Tensor | None, key: tuple[int, int]
    ) -> tuple[Tensor, float]:
        local, p = self.local, self.layout.num_trainable
        vector, gradient = start.clone(), torch.zeros(p, device=self.device)
        weights, broadcast = vector[:p], start[:p]
        moments = [torch.zeros_like(gradient) for _ in range(local.moments)]
        total, seen = torch.zeros((), device=self.device), 0
        bind(self.module, vector, gradient, layout=self.layout)
        torch_steps = None
        if isinstance(local.optimizer, TorchSteps):
            torch_steps = local.optimizer.begun(self._trained_parameters(), rate)
        self.module.train()
        for step, batch in enumerate(plan, start=1):
            index = torch.from_numpy(batch[batch >= 0]).to(self.device)
            x, y = self.samples["train"].batch(index)
            if self.augmentation is not None:
                x = augmented(self.augmentation, x, self.seed, *key, step)
            gradient.zero_()
            loss = self.losses(self.module(x), y, shift).mean()
            loss.backward()

            g = self.solver.correct(gradient, weights, broadcast, **terms)
            if local.clip_norm is not None:
                g = g * torch.clamp(local.clip_norm / g.norm(), max=1.0)
            total += loss.detach() * len(index)
            seen += len(index)
            if torch_steps is not None:
                gradient.copy_(g)
                torch_steps.step()
                continue
            if isinstance(local.optimizer, Adam):
                g, moments[:] = local.optimizer.direction(g, weights, moments, step, local.weight_decay)
            elif local.weight_decay:
                g = g + local.weight_decay * weights
            if local.momentum:
                g = moments[0].mul_(local.momentum).add_(g)
            weights.sub_(g, alpha=rate)
        return vector, float(total) / seen
