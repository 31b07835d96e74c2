"""Readable engine, which trains one client after another, like the pseudocode of papers."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from functools import cached_property, partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.hooks import RemovableHandle

from fedreach._util.arrays import Ints
from fedreach._util.errors import ComponentError, ConfigError, TrainingError
from fedreach._util.streams import torch_seed
from fedreach.data.several import IGNORED
from fedreach.engines.batches import batch_plan
from fedreach.engines.models.draws import seeded_generators
from fedreach.engines.models.flat import bind, keep_buffers, narrow_types
from fedreach.engines.models.outputs import describe_returned
from fedreach.engines.models.state import NarrowParameters, copy_module
from fedreach.engines.protocols import LOSS_MEMORY, Task, Terms
from fedreach.engines.trainer import Group, GroupTrainer, apply_step, cause_of
from fedreach.federation.augmentations import Augmentation
from fedreach.federation.base import name_of
from fedreach.federation.local_sgd import TorchSteps

# --- Arguments of `Loss.objective` in a local step: the module, the batch, and other models on this batch

LayerCalls = dict[str, list[tuple[Any, Any]]]
"""(inputs, outputs) of each call of a layer in a forward pass, by layer."""


class Pass:
    """Forward pass of a module over a batch that records the calls of the module's layers (see `ForwardPass`).

    Args:
        module: Model.
        x: (b, ...) inputs.

    Example:
        >>> module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> watched = Pass(module, torch.zeros(5, 3))
        >>> [tuple(found.shape) for found in (watched.outputs, watched.features(), watched.features("0"))]
        [(5, 2), (5, 4), (5, 4)]
    """

    def __init__(self, module: nn.Module, x: Tensor) -> None:
        self.size, self._calls = len(x), cast(LayerCalls, {})
        self._linear = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)]
        with ExitStack() as hooks:
            for name, part in module.named_modules():
                hooks.enter_context(part.register_forward_hook(partial(_note, self._calls, name)))
            self.outputs: Tensor = module(x)

    def features(self, layer: str | None = None) -> Tensor:
        name = self._linear[-1] if layer is None and self._linear else layer
        if name is None:
            raise ComponentError("features: the model must have a linear layer; got none. Pass the name of a layer.")
        if name not in self._calls:
            layer_names = ", ".join(map(repr, filter(None, self._calls)))
            raise ComponentError(f"features: layer must be one that the model uses, {layer_names}; got {name!r}.")
        inputs, returned = self._calls[name][-1]
        features = inputs[0] if layer is None else returned
        rows = isinstance(features, Tensor) and len(features) == self.size and (layer is not None or features.ndim == 2)
        if len(self._calls[name]) > 1 or not rows:
            which = f"the last linear layer, {name!r}," if layer is None else f"layer {name!r}"
            raise ComponentError(
                f"features: {which} must be used once per pass, with one row per example. Pass another layer's name."
            )
        flat: Tensor = features.flatten(1)
        return flat


def _note(calls: LayerCalls, name: str, part: nn.Module, inputs: Any, returned: Any) -> None:
    calls.setdefault(name, []).append((inputs, returned))


class Step(Pass):
    """Local training step, as passed to a loss with a method `objective` (see `LocalStep`).

    Args:
        engine: Engine, whose module is the local model.
        x: (b, ...) inputs of the batch.
        y: (b, ...) targets of the batch.
        shift: Shift that the loss adds to the outputs.
        broadcast: (d,) global model.
        memory: (d,) client state of the loss. None: zeros.
    """

    def __init__(
        self, engine: Sequential, x: Tensor, y: Tensor, shift: Tensor | None, broadcast: Tensor, memory: Tensor | None
    ) -> None:
        super().__init__(engine.module, x)
        self.x, self.y, self.broadcast, self.module = x, y, broadcast, engine.module
        self.memory = torch.zeros_like(broadcast) if memory is None else memory
        self._engine, self._shift = engine, shift
        self.loss = self._mean_loss(self.outputs)

    def _mean_loss(self, outputs: Tensor) -> Tensor:
        mean: Tensor = self._engine.losses(outputs, self.y, self._shift).mean()
        return mean

    @cached_property
    def global_model(self) -> Pass:
        return self.frozen(self.broadcast)

    def frozen(self, model: Tensor) -> Pass:
        bind(self._engine.frozen_module, model, layout=self._engine.layout)
        with torch.no_grad():
            return Pass(self._engine.frozen_module, self.x)

    def gradient(self) -> Tensor:
        parameters = dict(self.module.named_parameters())
        flat = torch.zeros(self._engine.layout.num_trainable, device=self.broadcast.device)
        views = self._engine.layout.parameter_views(flat)
        trained = [parameters[name] for name in views]
        gradients = torch.autograd.grad(self.loss, trained, retain_graph=True, allow_unused=True)
        for view, gradient in zip(views.values(), gradients, strict=True):
            if gradient is not None:
                view.copy_(gradient)
        return flat

    def loss_at(self, move: Tensor) -> Tensor:
        parameters = dict(self.module.named_parameters())
        moved = {name: parameters[name] + by for name, by in self._engine.layout.parameter_views(move).items()}
        buffers = {name: buffer.clone() for name, buffer in self.module.named_buffers()}
        return self._mean_loss(functional_call(self.module, {**moved, **buffers}, (self.x,)))

    def objective(self) -> Tensor:
        """Return the value of the objective that the client minimizes.

        Raises:
            ComponentError: If the objective is not a differentiable number.
        """
        objective: Any = self._engine.loss.objective(self)
        if not isinstance(objective, Tensor) or objective.shape != () or not objective.requires_grad:
            constant = isinstance(objective, Tensor) and objective.shape == ()
            raise ComponentError(
                f"{name_of(self._engine.loss)}.objective must return a differentiable tensor with one number, such as "
                "step.loss + ...; got "
                f"{'a constant' if constant else describe_returned(objective)}."
            )
        return objective


# -------------------- Augmentation, with a seed for each run, round, client and step


def augment_batch(augmentation: Augmentation, x: Tensor, seed: int, round_: int, client: int, step: int) -> Tensor:
    """Return the augmented inputs of a client's training batch.

    Args:
        augmentation: Augmentation, which draws from seeded generators (see `fedreach.engines.models.draws`).
        x: (b, ...) inputs, which do not change.
        seed: Seed of the run.
        round_: Round number.
        client: Client id.
        step: Number of the client's step in the round, from 1.

    Raises:
        ComponentError: If the augmented inputs have another shape or type.

    Example:
        >>> from fedreach.federation.augmentations import FlipAndCrop
        >>> x = torch.arange(16.0).view(1, 1, 4, 4)
        >>> one, same = (augment_batch(FlipAndCrop(padding=2), x, 0, 1, 7, 3) for _ in range(2))
        >>> torch.equal(one, same), one.shape
        (True, torch.Size([1, 1, 4, 4]))
    """
    with seeded_generators(torch_seed(seed, f"augmentation {step}", round_, client), x.device), torch.no_grad():
        augmented_x: Any = augmentation.augment(x.clone())
    if not isinstance(augmented_x, Tensor) or augmented_x.shape != x.shape or augmented_x.dtype != x.dtype:
        dtype = f" of {augmented_x.dtype}" if isinstance(augmented_x, Tensor) else ""
        raise ComponentError(
            f"The augmentation {name_of(augmentation)} must return inputs of the same shape and type, {tuple(x.shape)} "
            f"of {x.dtype}; got {describe_returned(augmented_x)}{dtype}."
        )
    return augmented_x


def check_augmentation(augmentation: Augmentation, x: Tensor) -> None:
    """Check an augmentation with two calls on the same inputs before the first round.

    Raises:
        ConfigError: If the augmentation fails.
        ComponentError: If the augmentation changes the shape or type of the inputs, or two calls with the same seed
            differ.
    """
    name = name_of(augmentation)
    try:
        first, second = (augment_batch(augmentation, x, 0, 1, 0, 1) for _ in range(2))
    except (ConfigError, ComponentError):
        raise
    except Exception as error:  # the user's code can raise any error
        raise ConfigError(
            f"The augmentation {name} must accept inputs of shape {tuple(x.shape)} and type {x.dtype}; got an error: "
            f"{error}"
        ) from error
    if not torch.equal(first, second):
        raise ComponentError(
            f"The augmentation {name} must draw from torch, numpy.random or random, which FedReach seeds; got two "
            "results that differ for the same seed. Use functions such as torch.rand and torch.randint."
        )


class Sequential(GroupTrainer):
    """Readable engine, which trains one client at a time in torch.

    Use when: the other engines do not support the model. This engine supports any module, and tests compare the other
    engines with it.
    """

    name = "sequential"
    follows_torch = True

    def __init__(self, task: Task, device: torch.device) -> None:
        super().__init__(task, device)
        if isinstance(self.local.optimizer, TorchSteps):
            self.local.optimizer.begun(self._trained_parameters(), self.local.lr)  # fails before the first round
        if self.layout.narrow and self.loss.has_objective:
            raise ConfigError(
                f"The trained parameters of a model for the loss {name_of(self.loss)} must be float32; got "
                f"{narrow_types(self.module)}. Call .float() on the model."
            )
        self.augmentation = task.augmentation
        if self.augmentation is not None:
            if task.data.dataset.kind == "several":
                raise ConfigError(
                    f"Examples for augmentation {name_of(self.augmentation)} must have one input; got several in "
                    f"{task.data.dataset.name}. Augment them in the model, if self.training is true."
                )
            x, _ = self.samples["train"].batch(torch.arange(min(8, len(self.samples["train"])), device=device))
            check_augmentation(self.augmentation, x)

    @cached_property
    def frozen_module(self) -> nn.Module:
        """Copy of the module for models other than the local model."""
        return copy_module(self.module).eval()

    def groups(self, ids: Ints, concurrency: int) -> list[Ints]:
        """Return one group per client, the largest clients first."""
        return list(np.argsort(-self.data.train.sizes_of(ids), kind="stable")[:, None])

    def train_group(
        self, start: Tensor, ids: Ints, round_: int, lr: float, update: Tensor, group: Ints, terms: Terms
    ) -> Group:
        losses: list[float] = []
        steps: list[int] = []
        shifts = self.shifts_of(ids)
        for row, plan in zip(group, self.plans(ids[group], round_), strict=True):
            client = int(ids[row])
            seed = torch_seed(self.seed, "dropout", round_, client) if self.draws else 0
            try:
                with seeded_generators(seed, self.device) if self.draws else nullcontext():
                    client_terms = {name: rows[row].to(self.device) for name, rows in terms.items()}
                    shift = None if shifts is None else shifts[row]
                    vector, loss = self._train_one(start, plan, lr, client_terms, shift, (round_, client))
            except Exception as error:
                raise TrainingError(f"Client {client} failed in round {round_}: {cause_of(error)}") from error
            update[row].copy_(vector.sub_(start))
            losses.append(loss)
            steps.append(len(plan))
        return losses, steps, None

    def plans(self, ids: Ints, round_: int) -> list[Ints]:
        """Return the (steps, batch) table of example indices of each client, padded with -1."""
        plans = []
        for client in map(int, ids):
            samples = self.data.train[client]
            positions = batch_plan(self.seed, round_, client, len(samples), self.local)
            plans.append(np.where(positions >= 0, samples[positions], -1))
        return plans

    def _trained_parameters(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    def _train_one(
        self, start: Tensor, plan: Ints, lr: float, terms: Terms, shift: Tensor | None, key: tuple[int, int]
    ) -> tuple[Tensor, float]:
        local, p = self.local, self.layout.num_trainable
        vector, gradient = start.clone(), torch.zeros(p, device=self.device)
        weights, broadcast = vector[:p], start[:p]
        moments = torch.zeros(local.moments, p, device=self.device)
        total, examples_seen = torch.zeros((), device=self.device), 0
        loss_memory = terms.pop(LOSS_MEMORY, None)
        self.place(vector, gradient)
        narrow = NarrowParameters(self.module, self.layout, vector, gradient)
        torch_steps = None
        if isinstance(local.optimizer, TorchSteps):
            torch_steps = local.optimizer.begun(self._trained_parameters(), lr)
        self.module.train()
        used = torch.zeros_like(gradient) if local.weight_decay else None
        hooks = [] if used is None else self._note_used(used)
        for step, batch in enumerate(plan, start=1):
            index = torch.from_numpy(batch[batch >= 0]).to(self.device)
            x, y = self.samples["train"].batch(index)
            if self.augmentation is not None:
                x = augment_batch(self.augmentation, x, self.seed, *key, step)
            gradient.zero_()
            if used is not None:
                used.zero_()
            if self.loss.has_objective:
                local_step = Step(self, x, y, shift, start, loss_memory)
                loss = local_step.loss
                local_step.objective().backward()  # type: ignore[no-untyped-call]  # of torch
            else:
                loss = self.losses(self.module(x), y, shift).mean()
                loss.backward()
            narrow.take_gradients()

            g = self.solver.correct(gradient, weights, broadcast, **terms)
            if local.clip_norm is not None:
                g = g * torch.clamp(local.clip_norm / g.norm(), max=1.0)
            counted = int((y != IGNORED).sum()) if self.data.dataset.positions else len(index)
            total += loss.detach().float() * counted
            examples_seen += counted
            if torch_steps is not None:
                gradient.copy_(g)
                narrow.give_gradients()
                torch_steps.step()
                narrow.take_weights()
                continue
            trained = None if used is None else (used > 0) | (gradient != 0)
            apply_step(local, g, weights, moments, step, lr, trained)
            narrow.round_weights()
        for hook in hooks:
            hook.remove()
        keep_buffers(self.module, vector, self.layout)
        return vector, float(total) / examples_seen

    def _note_used(self, used: Tensor) -> list[RemovableHandle]:
        """Register hooks that write 1 into the (p,) vector for each parameter that receives a gradient.

        As in torch's optimizers, weight decay does not change parameters without a gradient.
        """
        parameters, hooks = dict(self.module.named_parameters()), []
        for name, part in self.layout.parameter_views(used).items():
            if not parameters[name].requires_grad:
                continue

            def note(_: Tensor, part: Tensor = part) -> None:
                part.fill_(1)

            hooks.append(parameters[name].register_post_accumulate_grad_hook(note))  # type: ignore[no-untyped-call]
        return hooks
