"""Checks of losses, and of their methods `objective`, `keep` and `shift`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from fedreach._util.arrays import Float32s, Floats, Ints
from fedreach._util.streams import generator
from fedreach.testing.base import Case, Subject, define_check, fail, must_be_close, other_global_seeds, same, shown
from fedreach.testing.checks.label_statistics import Labels


@dataclass(frozen=True, eq=False)
class Moment(Case):
    """A step of a client's local training, with a model with one hidden layer."""

    examples: int  # batch size
    away: float  # standard deviation of the difference between local and global model
    remembers: bool  # whether the client has a state from an earlier round


def moments() -> Iterator[Moment]:
    """Yield the first step of a run, and later steps."""
    yield Moment("the first step of a run, 6 examples", 6, 0.0, False)
    yield Moment("a later step, 6 examples", 6, 0.3, True)
    yield Moment("a later step, 1 example", 1, 0.3, True)


of_objectives = define_check(moments, lambda component, case: component.has_objective)


@of_objectives
def one_number_with_a_gradient(subject: Subject, case: Moment) -> None:
    """An objective is one finite number with a finite gradient."""
    value, gradient, _ = objective_of(subject.component, case)
    if not np.isfinite(value) or not np.isfinite(gradient).all():
        fail(f"the objective is {value} and its gradient {shown(gradient)}")


@of_objectives
def the_same_objective_again(subject: Subject, case: Moment) -> None:
    """An objective depends only on its step: computed again, it has the same bits."""
    first = objective_of(subject.component, case)
    for seed in (1, 2):
        with other_global_seeds(seed):
            repeated = objective_of(subject.component, case)
        if first[0] != repeated[0] or not same(first[1], repeated[1]):
            fail(f"it was {first[0]} with the gradient {shown(first[1])}, then {repeated[0]} with {shown(repeated[1])}")


@of_objectives
def steps_untouched(subject: Subject, case: Moment) -> None:
    """An objective does not change the batch, the models or the gradients of parameters."""
    _, _, step = objective_of(subject.component, case)
    changed = [name for name, before in step.before.items() if not same(before, step.now()[name])]
    if changed:
        fail(f"it changed {', '.join(changed)}; write a - b instead of a -= b or a.sub_(b)")


@define_check(only=lambda component, _: component.remembers_clients)
def client_states_are_independent(subject: Subject) -> None:
    """The method `keep` returns float32 states from each client's own state and model, and changes no argument."""
    rng = generator(0, "testing keep")
    memory, local = rng.standard_normal((2, 3, 7)).astype(np.float32)
    before = memory.copy(), local.copy()
    new_memory = subject.component.keep(memory, local)
    if not isinstance(new_memory, np.ndarray) or new_memory.shape != memory.shape or new_memory.dtype != np.float32:
        fail(f"keep should return float32 of shape {memory.shape}; got {shown(new_memory)}")
    if not same(before[0], memory) or not same(before[1], local):
        fail("keep changed its arguments")
    for i in range(len(new_memory)):
        alone = subject.component.keep(memory[i : i + 1], local[i : i + 1])
        must_be_close(f"the state of client {i}, computed alone,", alone[0], new_memory[i])


class ObjectiveStep:
    """The argument of an objective, with copies of the arrays that the objective must not change."""

    def __init__(self, component: Any, case: Moment, moved: Float32s | None) -> None:
        import torch

        from fedreach.engines.models.flat import Layout, bind, flatten
        from fedreach.engines.models.networks import build
        from fedreach.engines.models.state import copy_module
        from fedreach.engines.sequential import Step

        numbers, rng = component.declares("needs_numbers"), generator(0, "testing step")
        module = build("mlp", (4,), 3, seed=0, options={"hidden": [5]})
        self.broadcast = flatten(module)
        p = len(self.broadcast)
        self.vector = self.broadcast + case.away * _normal(rng, p)
        self.memory = self.broadcast + 0.5 * _normal(rng, p) if case.remembers else torch.zeros(p)
        if moved is not None:
            self.vector += torch.from_numpy(moved)
        x = _normal(rng, case.examples, 4)
        y = _normal(rng, case.examples, 3) if numbers else torch.from_numpy(rng.integers(0, 3, case.examples))
        self.gradient = torch.zeros(p)
        bind(module, self.vector, self.gradient)
        engine: Any = SimpleNamespace(
            module=module,
            frozen_module=copy_module(module).eval(),
            layout=Layout.of(module),
            losses=lambda outputs, targets, _: component.per_example(outputs, targets),
        )
        self.step = Step(engine, x, y, None, self.broadcast, self.memory)
        self.before = self.now()

    def now(self) -> dict[str, Float32s]:
        """Return copies of the arrays that an objective must not change, by name."""
        step = self.step
        named = {"x": step.x, "y": step.y, "broadcast": self.broadcast, "memory": self.memory}
        named |= {"the local model": self.vector, "the gradients": self.gradient}
        return {name: tensor.detach().numpy().copy() for name, tensor in named.items()}


def _normal(rng: np.random.Generator, *shape: int) -> Any:
    import torch

    return torch.from_numpy(rng.standard_normal(shape).astype(np.float32))


def objective_of(component: Any, case: Moment, moved: Float32s | None = None) -> tuple[float, Float32s, ObjectiveStep]:
    """Return the objective of a step, its (p,) gradient, and the step; `moved` is first added to the local model."""
    import torch

    step = ObjectiveStep(component, case, moved)
    value = component.objective(step.step)
    if not isinstance(value, torch.Tensor) or value.shape != () or not value.requires_grad:
        fail(f"the objective should be a differentiable tensor with one number; got {value!r}")
    gradients = torch.autograd.grad(
        value, [*step.step.module.parameters()], retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return float(value.detach()), torch.cat([gradient.reshape(-1) for gradient in gradients]).numpy(), step


@dataclass(frozen=True, eq=False)
class Batch(Case):
    """Outputs of a model for some examples, and their targets."""

    outputs: Float32s  # (b, c), or (b, t) for numbers
    targets: Ints | Float32s  # (b,) classes, or (b, t) numbers


def batches() -> Iterator[Batch]:
    """Yield batches of one or more examples, with uncertain and certain predictions."""
    rng = generator(0, "testing batches")
    for b, c, size in ((1, 2, 1.0), (7, 3, 1.0), (40, 10, 5.0), (4, 3, 60.0)):
        outputs = (size * rng.standard_normal((b, c))).astype(np.float32)
        yield Batch(f"{b} examples of {c} classes, outputs of about {size:g}", outputs, rng.integers(0, c, b))
    for b, t, size in ((1, 1, 1.0), (7, 1, 1.0), (40, 3, 5.0), (4, 2, 300.0)):
        outputs, targets = (size * rng.standard_normal((2, b, t))).astype(np.float32)
        yield Batch(f"{b} examples with {t} numbers, outputs of about {size:g}", outputs, targets)


def _fits(component: Any, case: Batch) -> bool:
    return component.declares("needs_numbers") is (case.targets.dtype.kind == "f")


of_batches = define_check(batches, _fits)  # with classes or numbers, as the loss requires


@of_batches
def one_number_per_example(subject: Subject, case: Batch) -> None:
    """A loss returns one finite number per example."""
    loss, _ = loss_and_gradient(subject.component, case.outputs, case.targets)
    if loss.shape != (len(case.targets),) or not np.isfinite(loss).all():
        fail(f"the losses should be {len(case.targets)} finite numbers; got {shown(loss)} of shape {loss.shape}")


@of_batches
def examples_are_independent(subject: Subject, case: Batch) -> None:
    """The loss of an example does not depend on the other examples of the batch, nor on their order."""
    loss, _ = loss_and_gradient(subject.component, case.outputs, case.targets)
    order = np.arange(len(loss))[::-1]
    turned, _ = loss_and_gradient(subject.component, case.outputs[order], case.targets[order])
    must_be_close("the losses for examples in reverse order", turned[order], loss, str(case))
    alone, _ = loss_and_gradient(subject.component, case.outputs[:1], case.targets[:1])
    must_be_close("the first loss, computed alone,", alone, loss[:1], str(case))


@of_batches
def downhill(subject: Subject, case: Batch) -> None:
    """The gradient is finite, and a small step against it does not increase the loss."""
    loss, gradient = loss_and_gradient(subject.component, case.outputs, case.targets)
    if not np.isfinite(gradient).all():
        fail(f"the gradient is {shown(gradient)}")
    after, _ = loss_and_gradient(subject.component, case.outputs - np.float32(1e-3) * gradient, case.targets)
    if not (after <= loss + 1e-5 * (1 + np.abs(loss))).all():
        fail(f"the losses {shown(loss)} became {shown(after)}")


def labels() -> Iterator[Labels]:
    """Yield label counts of clients with all classes, with one class, with equal counts, and without examples."""
    counts = np.array([[5, 0, 2], [7, 0, 0], [4, 4, 4], [0, 1, 600], [0, 0, 0]])
    yield Labels("clients with labels of three classes", counts)
    yield Labels("one client with labels of ten classes", np.arange(10)[None])


@define_check(labels, lambda component, _: component.shifts_outputs)
def shifts_by_own_labels(subject: Subject, case: Labels) -> None:
    """The method `shift` returns one finite number per class, which depends only on the client's own label counts."""
    shifts = np.asarray(subject.component.shift(case.counts))
    if shifts.shape != case.counts.shape or not np.isfinite(shifts).all():
        fail(f"the shifts should be finite numbers of shape {case.counts.shape}; got {shown(shifts)}")
    alone = np.concatenate([subject.component.shift(row[None]) for row in case.counts])
    must_be_close("the shifts of each client, computed alone,", alone, shifts, str(case))


def loss_and_gradient(component: Any, outputs: Float32s, targets: Ints | Float32s) -> tuple[Floats, Float32s]:
    """Return the (b,) losses, and the (b, c) gradient of their sum."""
    import torch

    z = torch.from_numpy(outputs.copy()).requires_grad_()
    loss = component.per_example(z, torch.from_numpy(targets.copy()))
    (gradient,) = torch.autograd.grad(loss.sum(), z)
    return loss.detach().numpy().astype(np.float64), gradient.numpy()
