"""The readable engine: one client after the other, as the papers write it."""

from contextlib import nullcontext
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fedreach.arrays import Ints
from fedreach.data.positions import IGNORED
from fedreach.engines.augmenting import augmented, check_augmentation
from fedreach.engines.batches import batch_plan
from fedreach.engines.objective import MeanLoss, ObjectiveRun
from fedreach.engines.protocols import MEMORY, Task, Terms
from fedreach.engines.trainer import Group, GroupTrainer, cause_of
from fedreach.errors import ConfigError, TrainingError
from fedreach.federation.adam import Adam
from fedreach.federation.torch_steps import TorchSteps
from fedreach.federation.traits import Traits, name_of
from fedreach.models.draws import seeded
from fedreach.models.flat import keep_buffers, narrow_types
from fedreach.models.narrow import NarrowParameters
from fedreach.streams import torch_seed


class Sequential(GroupTrainer):
    """Trains one client at a time.

    When: any module at all, and as the readable twin that the others are tested against.
    """

    name = "sequential"
    sees_more = True
    follows_torch = True

    def __init__(self, task: Task, device: torch.device) -> None:
        super().__init__(task, device)
        if isinstance(self.local.optimizer, TorchSteps):
            self.local.optimizer.begun(self._trained_parameters(), self.local.rate)  # refused before the first round
        if self.layout.narrow and Traits.of(self.loss).sees_more:
            raise ConfigError(
                f"A loss that sees more than outputs, {name_of(self.loss)}, needs a model whose trained parameters are "
                f"float32; got {narrow_types(self.module)}. Call .float() on the model."
            )
        self.augmentation = task.augmentation
        if self.augmentation is not None:
            if task.data.dataset.kind == "several":
                raise ConfigError(
                    f"augmentation {name_of(self.augmentation)} takes one tensor, and {task.data.dataset.name} has "
                    "several inputs. Augment them in the model, where self.training is true."
                )
            x, _ = self.samples["train"].batch(torch.arange(min(8, len(self.samples["train"])), device=device))
            check_augmentation(self.augmentation, x)

    @cached_property
    def objective(self) -> ObjectiveRun | None:
        """What asks the loss, where it sees more than outputs."""
        return ObjectiveRun(self.loss, self.module, self.layout) if Traits.of(self.loss).sees_more else None

    def mean_loss(self, y: Tensor, shift: Tensor | None) -> MeanLoss:
        """Return the mean loss of a batch as a function of its outputs."""
        return lambda outputs: self.losses(outputs, y, shift).mean()

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
                    kept = own.pop(MEMORY, None)
                    shift = None if shifts is None else shifts[row]
                    vector, loss = self._train_one(start, plan, rate, own, shift, kept, (round_, client))
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
        self,
        start: Tensor,
        plan: Ints,
        rate: float,
        terms: Terms,
        shift: Tensor | None,
        kept: Tensor | None,
        key: tuple[int, int],
    ) -> tuple[Tensor, float]:
        local, p = self.local, self.layout.num_trainable
        vector, gradient = start.clone(), torch.zeros(p, device=self.device)
        weights, broadcast = vector[:p], start[:p]
        moments = [torch.zeros_like(gradient) for _ in range(local.moments)]
        total, seen = torch.zeros((), device=self.device), 0
        self.place(vector, gradient)
        narrow = NarrowParameters(self.module, self.layout, vector, gradient)
        torch_steps = None
        if isinstance(local.optimizer, TorchSteps):
            torch_steps = local.optimizer.begun(self._trained_parameters(), rate)
        self.module.train()
        if self.objective is not None:
            self.objective.module = self.module  # which may have been made anew
        used = torch.zeros_like(gradient) if local.weight_decay else None
        hooks = [] if used is None else self._note_used(used)
        for step, batch in enumerate(plan, start=1):
            index = torch.from_numpy(batch[batch >= 0]).to(self.device)
            x, y = self.samples["train"].batch(index)
            if self.augmentation is not None:
                x = augmented(self.augmentation, x, self.seed, *key, step)
            gradient.zero_()
            if used is not None:
                used.zero_()
            if self.objective is None:
                loss = self.losses(self.module(x), y, shift).mean()
                loss.backward()
            else:
                loss, objective = self.objective.step(x, y, self.mean_loss(y, shift), start, kept)
                objective.backward()
            narrow.take_gradients()

            g = self.solver.correct(gradient, weights, broadcast, **terms)
            if local.clip_norm is not None:
                g = g * torch.clamp(local.clip_norm / g.norm(), max=1.0)
            counted = int((y != IGNORED).sum()) if self.data.dataset.positions else len(index)
            total += loss.detach().float() * counted
            seen += counted
            if torch_steps is not None:
                gradient.copy_(g)
                narrow.give_gradients()
                torch_steps.step()
                narrow.take_weights()
                continue
            if isinstance(local.optimizer, Adam):
                g, moments[:] = local.optimizer.direction(g, weights, moments, step, local.weight_decay)
            elif local.weight_decay:
                g = g + local.weight_decay * weights
            if used is not None:
                g = g * ((used > 0) | (gradient != 0))
            if local.momentum:
                g = moments[0].mul_(local.momentum).add_(g)
            weights.sub_(g, alpha=rate)
            narrow.round_weights()
        for hook in hooks:
            hook.remove()
        keep_buffers(self.module, vector, self.layout)
        return vector, float(total) / seen

    def _note_used(self, used: Tensor) -> list[RemovableHandle]:
        """Have backward() write 1 into the (p,) vector for each parameter that gets a gradient.

        As in torch's optimizers, weight decay leaves the others as they are: those under `torch.no_grad`, say.
        """
        parameters, hooks = dict(self.module.named_parameters()), []
        for name, part in self.layout.parameter_views(used).items():
            if not parameters[name].requires_grad:
                continue

            def note(_: Tensor, part: Tensor = part) -> None:
                part.fill_(1)

            hooks.append(parameters[name].register_post_accumulate_grad_hook(note))  # type: ignore[no-untyped-call]
        return hooks
