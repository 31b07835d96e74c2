"""Engine that trains all clients of a group at once with `torch.vmap`.

The clients' models are the rows of one (k, d) matrix, in descending order of their numbers of local steps. So the first
rows are the clients that still train in a step. Batches that are not full are padded with examples of weight 0.
`sequential` is the readable version, and a test compares the two engines. Only dropout masks differ, because all rows
share one random stream.
"""

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fedreach._util.arrays import Ints
from fedreach._util.errors import ConfigError, TrainingError
from fedreach._util.streams import torch_seed
from fedreach.engines.models.draws import seeded_generators
from fedreach.engines.protocols import Task, Terms
from fedreach.engines.trainer import ClientStack, Group, GroupTrainer, apply_step, cause_of

Rows = slice | Tensor
Tensors = dict[str, Tensor]
_Models = tuple[Tensor, Tensor, Tensor, Terms]
"""Models of the stack, moments of the optimizer, the global model, and the terms of the solver."""
# Larger stacks do not fit into the cache. The C library also returns larger blocks of memory to the system in every
# step, which is slow.
STACK_BYTES = 16_000_000


class Vmap(GroupTrainer):
    """Engine that trains the clients of a cohort together with `torch.vmap`.

    Use when: a GPU is available, and `torch.func` supports the module.
    """

    name = "vmap"

    def __init__(self, task: Task, device: torch.device) -> None:
        super().__init__(task, device)
        if self.behavior.counts:
            raise ConfigError(
                f"engine.name = {self.name!r}: training must change only the parameters and float32 buffers of the "
                f"model; {type(task.module).__name__} changes {', '.join(self.behavior.counts)}. Use 'auto'."
            )

    def groups(self, ids: Ints, concurrency: int) -> list[Ints]:
        """Return groups of clients with similar numbers of steps."""
        order = np.argsort(-self.data.train.sizes_of(ids), kind="stable")
        if self.device.type != "cpu":
            return [order]
        return np.array_split(order, -(-len(order) // max(1, STACK_BYTES // (4 * self.layout.size))))

    def train_group(
        self, start: Tensor, ids: Ints, round_: int, lr: float, update: Tensor, group: Ints, terms: Terms
    ) -> Group:
        clients = ClientStack(self, ids, group, round_, update)
        counts, rows, stack = clients.counts, clients.rows, clients.vectors
        batches = torch.from_numpy(clients.index).to(self.device)
        stack.copy_(start)
        moments = torch.zeros(self.local.moments, len(rows), self.layout.num_trainable, device=self.device)
        total = torch.zeros(len(rows), device=self.device)
        terms = {name: vectors[torch.from_numpy(rows)].to(self.device) for name, vectors in terms.items()}
        models, shifts = (stack, moments, start, terms), self.shifts_of(ids[rows])
        self.renew()
        self.module.train()
        seed = torch_seed(self.seed, "dropout", round_, int(ids[group].min())) if self.draws else 0
        drawing = seeded_generators(seed, self.device) if self.draws else nullcontext()
        with drawing, _without_fused_recurrence(self.module):
            for step in range(counts.shape[1]):
                active = int((counts[:, step] > 0).sum())
                for alike, count in self._alike(counts[:active, step]):
                    batch = batches[alike, step, : count.max()]
                    shift = None if shifts is None else shifts[alike]
                    try:
                        loss = self._step(step, models, alike, batch, count, lr, shift)
                    except Exception as error:
                        cause, all_ids = cause_of(error).removesuffix("."), sorted(map(int, ids[group]))
                        raise TrainingError(
                            f"Client {all_ids[0]} failed in round {round_}: {cause}."
                            if len(all_ids) == 1
                            else f"One of the clients {all_ids} failed in round {round_}: {cause}. "
                            "Use engine.name = 'sequential' to find it."
                        ) from error
                    total[alike] += loss
        stack.sub_(start)
        return clients.finish(total.cpu().numpy())

    def _alike(self, counts: Ints) -> Iterator[tuple[Rows, Ints]]:
        """Split the active rows into rows that can run together, with their batch sizes.

        All rows can, unless the model has averaged buffers or mixes examples. BatchNorm would include examples of
        weight 0 in its statistics. So only rows with equal batch sizes run together.
        """
        if not self.layout.buffers and not self.behavior.mixes:
            yield slice(0, len(counts)), counts
            return
        for size in np.unique(counts):
            rows = np.flatnonzero(counts == size)
            yield torch.from_numpy(rows).to(self.device), counts[rows]

    def _step(
        self, step: int, models: _Models, rows: Rows, batch: Tensor, count: Ints, lr: float, shift: Tensor | None
    ) -> Tensor:
        """Take step `step`, from 0, for these rows of the stack; return each row's loss, summed over its examples."""
        stack, moments, start, terms = models
        local, views, p = self.local, self.layout.parameter_views, self.layout.num_trainable
        full = bool((count == batch.shape[1]).all())
        # The padding repeats the client's first example: weight 0 would not cancel another example's infinite loss.
        x, y = self.samples["train"].batch(batch if full else torch.where(batch >= 0, batch, batch[:, :1]))
        weight = None if full else (batch >= 0).float()
        vectors, row_moments = stack[rows], moments[:, rows]  # views if `rows` is a slice, otherwise copies
        weights, buffers = vectors[:, :p], self.layout.buffer_views(vectors[:, p:])
        gradient, (loss, statistics) = self._gradients(views(weights), buffers, x, y, weight, shift)

        g = torch.cat([gradient[name].flatten(1) for name in self.layout.parameters], 1)
        g = self.solver.correct(g, weights, start[:p], **{name: term[rows] for name, term in terms.items()})
        if local.clip_norm is not None:
            norm = torch.stack([part.flatten(1).square().sum(1) for part in views(g).values()]).sum(0).sqrt()
            g = g * torch.clamp(local.clip_norm / norm, max=1.0)[:, None]
        apply_step(local, g, weights, row_moments, step + 1, lr)
        for name, tensor in buffers.items():
            tensor.copy_(statistics[name])
        if not isinstance(rows, slice):
            moments[:, rows] = row_moments
            stack[rows] = vectors
        return loss * torch.from_numpy(count).to(self.device)

    def _gradients(
        self, weights: Tensors, buffers: Tensors, x: Tensor, y: Tensor, weight: Tensor | None, shift: Tensor | None
    ) -> tuple[Tensors, tuple[Tensor, Tensors]]:
        """Return the gradients of each row's mean loss, the (a,) losses and the new buffers."""

        def loss_of(
            parameters: Tensors, statistics: Tensors, x: Tensor, y: Tensor, weight: Tensor | None, shift: Tensor | None
        ) -> tuple[Tensor, Tensors]:
            constants = {n: t.clone() for n, t in self.module.named_buffers() if n not in statistics}
            logits = functional_call(self.module, {**parameters, **statistics, **constants}, (x,))
            losses = self.losses(logits, y, shift)
            return losses.mean() if weight is None else (losses * weight).sum() / weight.sum(), statistics

        # BatchNorm updates its running statistics in place, so they need separate memory under vmap.
        statistics = {name: tensor.clone() for name, tensor in buffers.items()}
        in_dims = (0, 0, 0, 0, None if weight is None else 0, None if shift is None else 0)
        gradient_of = vmap(grad_and_value(loss_of, has_aux=True), in_dims=in_dims, randomness="different")
        return gradient_of(weights, statistics, x, y, weight, shift)


@contextmanager
def _without_fused_recurrence(module: nn.Module) -> Iterator[None]:
    """Turn off oneDNN for recurrent layers inside the block, because vmap does not support its fused kernel."""
    if not any(isinstance(layer, nn.RNNBase) for layer in module.modules()):
        yield
        return
    with ExitStack() as stack:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="TF32 acceleration")
            stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        yield
