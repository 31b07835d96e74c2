"""Engine `manual`, which trains groups of clients with explicit formulas for gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedreach._util.arrays import Floats, Ints
from fedreach._util.errors import ConfigError
from fedreach.engines.batches import ChannelsLast
from fedreach.engines.manual_layers import Memory, ModelStack, PlaceLayer, TrainingStep, to_stack_layers
from fedreach.engines.protocols import Task, Terms
from fedreach.engines.recognition import Layer, NotAChainError, chain_of
from fedreach.engines.trainer import ClientStack, Group, GroupTrainer, apply_step
from fedreach.federation.base import LocalSolver

# -------------------- A first layer whose weights are computed only after training
# A step of plain SGD changes the weights of a dense first layer by a product of errors and inputs,
# W <- W - lr D_t^T X_t. So after t steps, the outputs for a batch X are X W^T = X W_0^T - lr sum_s (X X_s^T) D_s. All
# products of inputs are computed once. W_0, which all clients share, is multiplied by all their examples at once. No
# step copies, changes or reads a client's (outputs x inputs) weights, which are most numbers of many models. This is
# faster if a client has fewer examples than the layer has outputs.


class ImplicitFirstLayer:
    """First layer of `a` clients in one round of local training, without explicit weights.

    Args:
        layer: Description of the layer.
        start: (d,) global model.
        x: (a, s, inputs) all examples in the order of training.
        lr: Learning rate.
        memory: Memory for intermediate results.
    """

    def __init__(self, layer: Layer, start: Tensor, x: Tensor, lr: float, memory: Memory) -> None:
        (a, s, _), (inputs,), (outputs,) = x.shape, layer.shape, layer.outputs
        self.layer, self.x, self.lr, self.memory = layer, x, lr, memory
        weight = start[layer.weight].view(outputs, inputs).t()
        flat, first = x.view(a * s, inputs), memory.take(a * s, outputs)
        if layer.bias is None:
            torch.mm(flat, weight, out=first)
        else:
            torch.addmm(start[layer.bias], flat, weight, out=first)
        self.first = first.view(a, s, outputs)  # outputs of W_0 for all examples
        self.products = torch.bmm(x, x.transpose(1, 2), out=memory.take(a, s, s))
        if layer.bias is not None:
            self.products.add_(1)  # the bias is the weight of a constant input 1
        self.errors = memory.take(*self.first.shape).zero_()

    def forward(self, a: int, begin: int, out: Tensor) -> None:
        """Write the (a, b, outputs) outputs of the first `a` clients for their examples from position `begin`."""
        rows = slice(begin, begin + out.shape[1])
        if begin:
            past = self.products[:a, rows, :begin], self.errors[:a, :begin]
            torch.baddbmm(self.first[:a, rows], *past, alpha=-self.lr, out=out)
        else:
            out.copy_(self.first[:a, rows])
        if self.layer.relu:
            out.clamp_min_(0)

    def backward(self, a: int, begin: int, y: Tensor, dy: Tensor) -> None:
        """Store the gradient `dy` of the loss with respect to the outputs `y`."""
        errors = self.errors[:a, begin : begin + y.shape[1]]
        if self.layer.relu:
            torch.ops.aten.threshold_backward.grad_input(dy, y, 0.0, grad_input=errors)
        else:
            errors.copy_(dy)

    def moves(self, update: Tensor) -> None:
        """Write the change of the weights into the (a, d) update."""
        layer, errors = self.layer, self.errors.mul_(-self.lr)
        shape = *layer.outputs, *layer.shape
        weight = update[:, layer.weight].view(len(update), *shape)
        # Compute each client's product in the cache, then copy it: writing to distant memory directly is slow.
        product = self.memory.take(*shape)
        for client, client_errors, x in zip(weight, errors, self.x, strict=True):
            client.copy_(torch.mm(client_errors.t(), x, out=product))
        if layer.bias is not None:
            torch.sum(errors, 1, out=update[:, layer.bias])


# --- The engine `manual`: explicit gradients for chains of common layers
# As in `vmap`, the clients of a group are the rows of one matrix, in descending order of their numbers of local steps.
# So the clients that still train in a step are the first rows. In plain SGD steps, the gradient is not stored: the
# product that computes it is subtracted immediately, and a first layer may not need explicit weights (see
# `ImplicitFirstLayer`). All steps use the same memory. `sequential` is the readable version, and tests compare the two.

CACHE_BYTES = 2_000_000  # memory of a group in a step, so that it stays in the cache
MAX_CLIENTS = 16
LARGE = 16_384  # number of weights of a first layer from which an implicit layer is faster
MAX_SHAPES = 64  # number of prepared steps of different shapes
NUMBERS = 4_000_000  # number of log-probabilities in memory at a time


class Manual(GroupTrainer):
    """Engine that trains groups of clients with explicit formulas for gradients.

    Use when: no C compiler is available, and the model is a sequence of dense or convolution layers.
    """

    name = "manual"
    written_out = ("cross_entropy", "squared_error")
    any_optimizer = False

    def __init__(self, task: Task, device: torch.device) -> None:
        d, local = task.data.dataset, task.local
        try:
            chain = chain_of(task.module, d.train_x.shape[1:])
            layers = to_stack_layers(chain)
        except NotAChainError as error:
            raise ConfigError(
                f"engine.name = 'manual' requires a sequence of linear layers, convolutions, ReLU, 2 x 2 max pooling "
                f"and flattening; got {type(task.module).__name__}: {error}. Use 'auto'."
            ) from error
        super().__init__(task, device)
        steady = not (local.momentum or local.weight_decay) and local.clip_norm is None
        self.filters = ChannelsLast(self.layout)
        self.fused_update = steady and is_identity(task.solver)
        self.batches = _Batches if d.num_classes else _NumberBatches
        self.whole = _Models(layers, d.train_x.shape[1:], d.outputs, 0, self.layout.size, self.device)
        self.first: Layer | None = None  # a first layer that can be implicit
        self.memory = Memory(self.device)
        first, later_layers = chain[0], layers[1:]
        if self.fused_update and first.kind == "Linear" and later_layers:
            parts = [part for part in (first.weight, first.bias) if part is not None]
            begin = max(part.stop for part in parts)
            if begin == sum(part.stop - part.start for part in parts):
                self.first = first
                self.rest = _Models(later_layers, first.outputs, d.outputs, begin, self.layout.size, self.device)

    def groups(self, ids: Ints, concurrency: int) -> list[Ints]:
        """Return groups of clients with similar numbers of steps, small enough for the cache."""
        order = np.argsort(-self.data.train.sizes[ids], kind="stable")
        if self.device.type != "cpu":
            return [order]
        b, largest = self.local.batch_size, self.data.train.sizes[ids].max(initial=1)
        steps = math.ceil(self.local.expected_steps(np.array([largest]))[0])
        numbers = self.whole.numbers(min(b, int(largest)))
        if self._implicit(steps * b):
            assert self.first is not None  # `_implicit` is true only then
            numbers = self.rest.numbers(b) + steps * b * (self.first.shape[0] + 2 * self.first.outputs[0] + steps * b)
        return np.array_split(order, -(-len(order) // min(MAX_CLIENTS, max(1, CACHE_BYTES // (4 * numbers)))))

    def train_group(
        self, start: Tensor, ids: Ints, round_: int, lr: float, update: Tensor, group: Ints, terms: Terms
    ) -> Group:
        clients = ClientStack(self, ids, group, round_, update)
        index, counts = np.ascontiguousarray(clients.index.transpose(1, 0, 2)), clients.counts.T
        rows, out = clients.rows, clients.vectors
        start = self.filters.to_channels_last(start)
        terms = {name: self._term(vectors[torch.from_numpy(rows)]) for name, vectors in terms.items()}
        shifts = self.shifts_of(ids[rows])
        if self._implicit(len(index) * index.shape[2]):
            total = self._train_implicit(self.batches(self, index, counts, shifts), start, lr, out)
        else:
            weights, _ = self.whole.rows(len(rows))
            weights.copy_(start)
            moments = torch.zeros(self.local.moments, *weights.shape, device=self.device)
            total = np.zeros(len(rows))
            chunk = max(1, NUMBERS // (index[0].size * self.data.dataset.outputs))
            for begin in range(0, len(index), chunk):
                part = slice(begin, begin + chunk)
                total += self._train_steps(
                    self.batches(self, index[part], counts[part], shifts), start, lr, terms, moments
                )
            torch.sub(weights, start, out=out)
        self.filters.turn_back(out, torch.arange(len(rows), device=self.device))
        return clients.finish(total)

    def _term(self, values: Tensor) -> Tensor:
        """Return a term of the solver, (k, p) vectors or (k, 1) numbers, with channels last."""
        term = values.to(self.device)
        return term if term.shape[1] == 1 else self.filters.to_channels_last(term)

    def _implicit(self, examples: int) -> bool:
        """Return whether the first layer is implicit for clients with this number of examples in a round."""
        if self.first is None:
            return False
        (inputs,), (outputs,) = self.first.shape, self.first.outputs
        return examples <= outputs and inputs * outputs >= LARGE

    def _train_implicit(self, batches: _Batches, start: Tensor, lr: float, out: Tensor) -> Floats:
        """Train a stack, write its change into `out`, and return each client's loss, summed over its examples."""
        assert self.first is not None  # `_implicit` is true only then
        s, k, b = batches.shape
        self.memory.begin_again()
        x = self.memory.take(k * s * b, *self.whole.sample)
        self.samples["train"].batch_into(batches.samples.view(s, k, b).transpose(0, 1).reshape(-1), x)
        implicit = ImplicitFirstLayer(self.first, start, x.view(k, s * b, -1), lr, self.memory)
        weights, _ = self.rest.rows(k)
        weights.copy_(start[self.rest.begin :])
        for step, (a, m) in enumerate(batches.shapes):
            ready = self.rest.step_of(a, m)
            implicit.forward(a, step * b, ready.x)
            dy = ready.step(partial(batches.gradient, step), lr, batches.shift_of(a), with_input_gradient=True)
            implicit.backward(a, step * b, ready.x, dy)
        implicit.moves(out)
        torch.sub(weights, start[self.rest.begin :], out=out[:, self.rest.begin :])
        return batches.losses()

    def _train_steps(self, batches: _Batches, start: Tensor, lr: float, terms: Terms, moments: Tensor) -> Floats:
        """Take the steps of a stack; return each client's loss, summed over its examples."""
        for step, (a, m) in enumerate(batches.shapes):
            ready = self.whole.step_of(a, m)
            self.samples["train"].batch_into(batches.samples[step, :a, :m].reshape(-1), ready.inputs)
            ready.step(partial(batches.gradient, step), lr if self.fused_update else None, batches.shift_of(a))
            if self.fused_update:
                continue
            weights, g = self.whole.rows(a)
            g = self.solver.correct(g, weights, start, **{name: rows[:a] for name, rows in terms.items()})
            if self.local.clip_norm is not None:
                g = g * torch.clamp(self.local.clip_norm / g.norm(dim=1, keepdim=True), max=1.0)
            apply_step(self.local, g, weights, moments[:, :a], 1, lr)  # only Adam uses the number of the step
        return batches.losses()


class _Batches:
    """The (s, k, b) examples of s steps of k clients, and the gradient of their cross-entropy loss.

    A batch that is not full is padded with the client's first example, which has weight 0.
    """

    def __init__(self, trainer: Manual, index: Ints, counts: Ints, shifts: Tensor | None) -> None:
        s, k, b = self.shape = index.shape
        self.shifts = shifts  # (k, c), added to the outputs
        device, self.outputs = trainer.device, trainer.data.dataset.outputs
        self.full = bool((counts == b).all())
        self.shapes = [(k, b)] * s
        filled, self.present = index, None
        if not self.full:
            # By step: the number of clients that still train, and the size of their largest batch.
            self.shapes = list(zip((counts > 0).sum(axis=1).tolist(), counts.max(axis=1).tolist(), strict=True))
            filled = np.where(index >= 0, index, index[:, :, :1]).clip(0)
            self.present = torch.from_numpy(index >= 0).to(device)
        self.samples = torch.from_numpy(np.ascontiguousarray(filled)).to(device)
        self.y = trainer.samples["train"].y.index_select(0, self.samples.view(-1))
        self.shares: Tensor | None = None  # weight of each example in its batch, unless all are 1 / b
        if self.present is not None:
            shares = self.present / torch.from_numpy(counts.clip(1)).to(device)[:, :, None]
            self.shares = shares.float().view(-1, 1)
        self.target = self.targets().view(s, k, b, self.outputs)
        self.loss_terms = torch.zeros_like(self.target)

    def targets(self) -> Tensor:
        """Return the gradient of the loss with respect to log-probabilities: minus an example's weight at its class."""
        target = -torch.eye(self.outputs, device=self.y.device).index_select(0, self.y)
        return target.div_(self.shape[2]) if self.shares is None else target.mul_(self.shares)

    def gradient(self, step: int, outputs: Tensor, out: Tensor) -> Tensor:
        """Write the gradient of the loss with respect to the (a, m, c) outputs, and store the terms of the loss."""
        a, m, _ = outputs.shape
        target, loss_terms = self.target[step, :a, :m], self.loss_terms[step, :a, :m]
        if m == self.shape[2]:
            return self.write_gradient(step, outputs, target, loss_terms, out)
        noted = torch.empty_like(loss_terms).contiguous()
        dy = self.write_gradient(step, outputs, target.contiguous(), noted, out)
        self.loss_terms[step, :a, :m] = noted
        return dy

    def write_gradient(self, step: int, outputs: Tensor, target: Tensor, loss_terms: Tensor, out: Tensor) -> Tensor:
        """Write the gradient into `out`, and log-probabilities into `loss_terms`."""
        aten = torch.ops.aten
        aten._log_softmax.out(outputs, 2, False, out=loss_terms)
        dy: Tensor = aten._log_softmax_backward_data.out(target, loss_terms, 2, torch.float32, out=out)
        return dy

    def shift_of(self, a: int) -> Tensor | None:
        """Return the (a, c) shifts that are added to the outputs of the first `a` clients."""
        return None if self.shifts is None else self.shifts[:a]

    def losses(self) -> Floats:
        """Return the (k,) losses of the clients, summed over their examples."""
        losses = self.negative_losses().view(self.shape)
        if self.present is not None:
            losses = losses * self.present
        return -losses.sum(2).double().sum(0).cpu().numpy()

    def negative_losses(self) -> Tensor:
        """Return minus the loss of each example."""
        return self.loss_terms.view(-1, self.outputs).gather(1, self.y[:, None])


class _NumberBatches(_Batches):
    """Batches with numeric targets, (s, k, b, t), and the gradient of their mean squared error."""

    def targets(self) -> Tensor:
        return self.y

    def write_gradient(self, step: int, outputs: Tensor, target: Tensor, loss_terms: Tensor, out: Tensor) -> Tensor:
        """Write the gradient, 2 (z - y) / t times each example's weight, and the errors into `loss_terms`."""
        a, m, t = outputs.shape
        torch.sub(outputs, target, out=loss_terms)
        if self.shares is None:
            return torch.mul(loss_terms, 2 / (t * m), out=out)
        return torch.mul(loss_terms, self.shares.view(*self.shape, 1)[step, :a, :m] * (2 / t), out=out)

    def negative_losses(self) -> Tensor:
        return -self.loss_terms.square().mean(-1)


class _Models:
    """Memory for the models of a group, or for some of their layers; all groups use the same memory.

    The layers accept inputs of the shape `sample`. Their numbers are at `begin` to `end` of the flat vector.
    """

    def __init__(
        self,
        layers: Sequence[PlaceLayer],
        sample: Sequence[int],
        outputs: int,
        begin: int,
        end: int,
        device: torch.device,
    ) -> None:
        self.layers, self.sample, self.outputs = layers, tuple(sample), outputs
        self.begin, self.width, self.device = begin, end - begin, device
        self.memory = Memory(device)
        self.matrices = [torch.empty(0, self.width, device=device) for _ in range(2)]
        self.steps: dict[tuple[int, int], TrainingStep] = {}
        self.counted: dict[int, int] = {}

    def numbers(self, batch: int) -> int:
        """Return the number of values that one client needs in a step."""
        if batch not in self.counted:
            nowhere = torch.device("meta")
            row, memory = torch.empty(1, self.width, device=nowhere), Memory(nowhere)
            stack = ModelStack(row, row, self.begin)
            TrainingStep(self.layers, stack, batch, self.sample, self.outputs, memory)
            self.counted[batch] = self.width + memory.numbers
        return self.counted[batch]

    def rows(self, a: int) -> tuple[Tensor, Tensor]:
        """Return (a, p) weights and (a, p) gradients for `a` clients; fewer clients use the first rows."""
        if len(self.matrices[0]) < a:
            self.matrices = [torch.empty(a, self.width, device=self.device) for _ in range(2)]
            self.steps.clear()
        return self.matrices[0][:a], self.matrices[1][:a]

    def step_of(self, a: int, b: int) -> TrainingStep:
        """Return a step of the first `a` clients with `b` examples each."""
        if (a, b) not in self.steps:
            if len(self.steps) >= MAX_SHAPES:
                self.steps.clear()
            self.memory.begin_again()
            stack = ModelStack(*self.rows(a), self.begin)
            self.steps[a, b] = TrainingStep(self.layers, stack, b, self.sample, self.outputs, self.memory)
        return self.steps[a, b]


def is_identity(solver: LocalSolver) -> bool:
    """Return whether a solver returns the gradient unchanged."""
    if solver.is_stateful:  # its terms can change the gradient
        return False
    gradient = torch.ones(1)
    return solver.correct(gradient, torch.ones(1), torch.zeros(1)) is gradient
