"""The fast engine: the whole cohort in one kernel.

The cohort's models are the rows of one (k, d) matrix. Clients are sorted by their number of local steps, so that in
step t those still training are a prefix of it; no work is spent on clients that are done. Batches that are not full
are filled up with samples of weight 0. `sequential` is the plain twin, and a test holds the two equal; only the masks
of dropout differ, because one stream serves the whole stack.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional as F

from fedreach.arrays import Float32s, Floats, Ints
from fedreach.engines.base import Engine, Trained, seeded
from fedreach.errors import TrainingError
from fedreach.streams import torch_seed

Rows = slice | Tensor

# A stack and its gradients pass through the cache in every step, and the C library gives larger pieces of memory back
# to the system each time, which then hands them out page by page.
STACK_BYTES = 16_000_000


class Stacked(Engine):
    """Trains the cohort together."""

    name = "stacked"

    def groups(self, ids: Ints) -> list[Ints]:
        """Return stacks of clients with about equally many steps."""
        order = np.argsort(-self.data.train.sizes[ids], kind="stable")
        if self.device.type != "cpu":
            return [order]
        most = max(1, STACK_BYTES // (4 * self.layout.size))
        return np.array_split(order, -(-len(order) // most))

    def train(self, broadcast: Float32s, ids: Ints, round_: int, rate: float) -> Trained:
        """Train each client of `ids` from the `broadcast` (d,) vector with step size `rate`."""
        with _recurrence(self.module):
            return super().train(broadcast, ids, round_, rate)

    def train_group(self, start: Tensor, ids: Ints, round_: int, rate: float, update: Sequence[Tensor]) -> Floats:
        """Train the clients from the (d,) `start`, all in one stack."""
        plans = self.plans(ids, round_)
        order = np.argsort([-len(plan) for plan in plans], kind="stable")
        index = _stack([plans[i] for i in order])
        counts = (index >= 0).sum(axis=2)  # (k, steps), 0 where a client is done
        batches = torch.from_numpy(index).to(self.device)

        stack = start.repeat(len(ids), 1)
        velocity = torch.zeros(len(ids), self.layout.num_trainable if self.local.momentum else 0, device=self.device)
        total = torch.zeros(len(ids), device=self.device)
        self.module.train()
        seed = torch_seed(self.seed, "dropout", round_, int(ids.min())) if self.draws else 0
        with seeded(seed, self.device) if self.draws else nullcontext():
            for step in range(index.shape[1]):
                active = int((counts[:, step] > 0).sum())
                for rows, count in self._alike(counts[:active, step]):
                    batch = batches[rows, step, : count.max()]
                    try:
                        total[rows] += self._step(stack, velocity, start, rows, batch, count, rate)
                    except Exception as error:
                        raise TrainingError(
                            f"One of the clients {sorted(map(int, ids))} failed in round {round_}: {error}. "
                            "engine.name = 'sequential' says which."
                        ) from error

        for row, position in zip(stack.sub_(start).cpu(), order, strict=True):
            update[position].copy_(row)
        loss = np.empty(len(ids))
        loss[order] = total.cpu().numpy() / counts.sum(axis=1)
        return loss

    def _alike(self, counts: Ints) -> Iterator[tuple[Rows, Ints]]:
        """Split the active rows, with their batch sizes, into what can run together.

        That is all of them, unless the model has buffers: BatchNorm normalises over the batch, where samples of
        weight 0 would count, so that clients with equally large batches are run together.
        """
        if not self.layout.buffers:
            yield slice(0, len(counts)), counts
            return
        for size in np.unique(counts):
            rows = np.flatnonzero(counts == size)
            yield torch.from_numpy(rows).to(self.device), counts[rows]

    def _step(
        self, stack: Tensor, velocity: Tensor, start: Tensor, rows: Rows, batch: Tensor, count: Ints, rate: float
    ) -> Tensor:
        """Take one step for these rows of the stack; return each one's loss summed over its samples."""
        local, p = self.local, self.layout.num_trainable
        full = bool((count == batch.shape[1]).all())
        # Filled up with the client's own first sample: weight 0 would not silence another client's infinite loss.
        x, y = self.train_samples.batch(batch if full else torch.where(batch >= 0, batch, batch[:, :1]))
        weight = None if full else (batch >= 0).float()
        vectors = stack[rows]
        weights = vectors[:, :p]
        gradient, (loss, buffers) = self._gradients(weights, vectors[:, p:], x, y, weight)

        g = self.solver.correct(gradient, weights, start[:p])
        if local.clip_norm is not None:
            g = g * torch.clamp(local.clip_norm / g.norm(dim=1, keepdim=True), max=1.0)
        if local.weight_decay:
            g = g + local.weight_decay * weights
        if local.momentum:
            g = velocity[rows] = local.momentum * velocity[rows] + g
        if isinstance(rows, slice):
            weights.sub_(g, alpha=rate)  # a view of the stack
        else:
            stack[rows] = torch.cat([weights - rate * g, buffers], dim=1)
        return loss * torch.from_numpy(count).to(self.device)

    def _gradients(
        self, weights: Tensor, buffers: Tensor, x: Tensor, y: Tensor, weight: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the (a, p) gradients of each row's mean loss, the (a,) losses and the (a, d - p) new buffers."""

        def loss_of(
            w: Tensor, statistics: dict[str, Tensor], x: Tensor, y: Tensor, weight: Tensor | None
        ) -> tuple[Tensor, dict[str, Tensor]]:
            counters = {n: t.clone() for n, t in self.module.named_buffers() if not t.is_floating_point()}
            # vmap has no rule for some operations on filters with their channels last.
            parameters = {name: view.contiguous() for name, view in self.layout.parameter_views(w).items()}
            logits = functional_call(self.module, {**parameters, **statistics, **counters}, (x,))
            if weight is None:
                return F.cross_entropy(logits, y), statistics
            return (F.cross_entropy(logits, y, reduction="none") * weight).sum() / weight.sum(), statistics

        # BatchNorm writes its running statistics in place, under vmap only where they lie on their own.
        names, shapes = self.layout.buffers, self.layout.shapes[len(self.layout.parameters) :]
        columns = torch.split(buffers, [shape.numel() for shape in shapes], dim=1) if names else ()
        statistics = {n: c.reshape(-1, *s).clone() for n, c, s in zip(names, columns, shapes, strict=True)}

        in_dims = (0, 0, 0, 0, None if weight is None else 0)
        gradient_of = vmap(grad_and_value(loss_of, has_aux=True), in_dims=in_dims, randomness="different")
        gradient, (loss, statistics) = gradient_of(weights, statistics, x, y, weight)
        new = [statistics[name].flatten(1) for name in names]
        return gradient, (loss, torch.cat(new, dim=1) if new else buffers)


def _stack(plans: list[Ints]) -> Ints:
    """Return (k, steps, batch) with -1 where a client has no such step or sample."""
    shape = (len(plans), max(len(plan) for plan in plans), max(plan.shape[1] for plan in plans))
    stacked = np.full(shape, -1, np.int64)
    for row, plan in zip(stacked, plans, strict=True):
        row[: plan.shape[0], : plan.shape[1]] = plan
    return stacked


class _recurrence:  # noqa: N801 (a context manager, used like a function)
    """Keep oneDNN out of recurrent layers while in effect: vmap has no rule for its fused kernel."""

    def __init__(self, module: nn.Module) -> None:
        recurrent = any(isinstance(layer, nn.RNNBase) for layer in module.modules())
        self.flags = torch.backends.mkldnn.flags(enabled=False) if recurrent else None

    def __enter__(self) -> None:
        if self.flags is not None:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="TF32 acceleration")
                self.flags.__enter__()

    def __exit__(self, *exc: object) -> None:
        if self.flags is not None:
            self.flags.__exit__(None, None, None)
