"""Laws of losses that see more than outputs and targets, see `fedreach.federation.objectives.Objective`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np

from fedreach.arrays import Float32s
from fedreach.federation.traits import Traits
from fedreach.streams import generator
from fedreach.testing.law import Law, Subject, broken, law, must_be_close, same, shown
from fedreach.testing.laws.any_part import Given
from fedreach.testing.purity import other_global_seeds


@dataclass(frozen=True, eq=False)
class Moment(Given):
    """A client in the middle of its training: a model of one hidden layer, and a batch."""

    examples: int
    away: float  # how far the local model went from the global one
    remembers: bool  # whether the client keeps a vector already


def moments() -> Iterator[Moment]:
    """Yield the first step of a run, and later ones."""
    yield Moment("the first step of a run, 6 examples", 6, 0.0, False)
    yield Moment("a later step, 6 examples", 6, 0.3, True)
    yield Moment("a step on one example", 1, 0.3, True)


def of_objectives(check: Callable[[Subject, Moment], None]) -> Law:
    """Make a law that is tried in moments, of those losses that have an `objective`."""

    @wraps(check)
    def suited(subject: Subject, given: Moment) -> None:
        if Traits.of(subject.part).sees_more:
            check(subject, given)

    return law(moments)(suited)


@of_objectives
def one_number_with_a_gradient(subject: Subject, given: Moment) -> None:
    """An objective is one finite number whose gradient is finite."""
    value, gradient, _ = asked(subject.part, given)
    if not np.isfinite(value) or not np.isfinite(gradient).all():
        broken(f"the objective is {value} and its gradient {shown(gradient)}")


@of_objectives
def the_same_objective_again(subject: Subject, given: Moment) -> None:
    """An objective depends on its step alone: asked again, it is the same to the bit."""
    first = asked(subject.part, given)
    for seed in (1, 2):
        with other_global_seeds(seed):
            again = asked(subject.part, given)
        if first[0] != again[0] or not same(first[1], again[1]):
            broken(f"it was {first[0]} with the gradient {shown(first[1])}, then {again[0]} with {shown(again[1])}")


@of_objectives
def steps_untouched(subject: Subject, given: Moment) -> None:
    """An objective writes neither to the batch nor to any model, and leaves the gradients of parameters alone."""
    _, _, step = asked(subject.part, given)
    changed = [name for name, before in step.before.items() if not same(before, step.now()[name])]
    if changed:
        broken(f"it wrote to {', '.join(changed)}; write a - b, not a -= b or a.sub_(b)")


@law()
def keeps_its_own(subject: Subject) -> None:
    """What a client keeps is float32, as long as before, by its own vector and model, and no argument is written to."""
    if not Traits.of(subject.part).remembers_clients:
        return
    rng = generator(0, "testing keep")
    memory, local = rng.standard_normal((2, 3, 7)).astype(np.float32)
    before = memory.copy(), local.copy()
    kept = subject.part.keep(memory, local)
    if not isinstance(kept, np.ndarray) or kept.shape != memory.shape or kept.dtype != np.float32:
        broken(f"keep should return float32 of shape {memory.shape}; got {shown(kept)}")
    if not same(before[0], memory) or not same(before[1], local):
        broken("keep wrote to its arguments")
    for i in range(len(kept)):
        alone = subject.part.keep(memory[i : i + 1], local[i : i + 1])
        must_be_close(f"what client {i} keeps, asked alone,", alone[0], kept[i])


LAWS = (one_number_with_a_gradient, the_same_objective_again, steps_untouched, keeps_its_own)


def nothing_without(option: str) -> Law:
    """Return the law that with this option 0 the objective is the loss, to the bit."""

    def check(subject: Subject, given: Moment) -> None:
        value, gradient, step = asked(subject.make(**{option: 0.0}), given)
        if value != step.loss_value or not same(gradient, step.loss_gradient):
            broken(f"with {option} = 0 it is {value} and its gradient {shown(gradient)}; the loss {step.loss_value}")

    return Law(f"{option} 0 is the loss", f"With {option} = 0 the objective is the loss, bit for bit.", check, moments)


@law(moments)
def a_contrast_of_cosines(subject: Subject, given: Moment) -> None:
    """It adds mu times the mean of log(1 + exp((cos(z, z_prev) - cos(z, z_glob)) / tau)), and nothing before round 2.

    Reference: Li, He and Song 2021, eq. 3 and 4
    """
    for mu, tau in ((1.0, 0.5), (3.0, 2.0)):
        value, _, step = asked(subject.make(mu=mu, temperature=tau), given)
        z, towards, away = (step.hidden(which) for which in ("local", "global", "memory"))
        term = np.log1p(np.exp((_cosine(z, away) - _cosine(z, towards)) / tau)).mean() if given.remembers else 0.0
        must_be_close(f"what is added with mu {mu:g}", value - step.loss_value, mu * term, str(given), 1e-4)


@law(moments)
def a_mean_square_of_correlations(subject: Subject, given: Moment) -> None:
    """It adds beta times the mean over all pairs of features of their squared correlation, and nothing to one example.

    Reference: Shi et al. 2023, eq. 6
    """
    for beta in (0.1, 2.0):
        value, _, step = asked(subject.make(beta=beta), given)
        z = step.hidden("local")
        d, live = z.shape[1], z[:, z.std(axis=0) > 0]
        term = (np.corrcoef(live.T) ** 2).sum() / d**2 if given.examples > 1 else 0.0
        must_be_close(f"what is added with beta {beta:g}", value - step.loss_value, beta * term, str(given), 1e-3)


@law(moments)
def a_divergence_of_the_other_classes(subject: Subject, given: Moment) -> None:
    """It adds beta times the mean of KL(q_global || q_local), softmax of the outputs / tau of all classes but the true.

    Reference: Lee et al. 2022, eq. 4 to 6
    """
    for beta, tau in ((1.0, 1.0), (2.0, 3.0)):
        value, _, step = asked(subject.make(beta=beta, tau=tau), given)
        y = step.step.y.numpy()
        total = 0.0
        for one, other, label in zip(step.outputs("global"), step.outputs("local"), y, strict=True):
            g, w = (_softmax(np.delete(row, label) / tau) for row in (one, other))
            total += float((g * np.log(g / w)).sum())
        must_be_close("what is added", value - step.loss_value, beta * total / len(y), str(given), 1e-4)


@law(moments)
def the_gradient_rho_away(subject: Subject, given: Moment) -> None:
    """Its gradient is that of the loss at w + rho g / |g|.

    Reference: Foret et al. 2021, eq. 2 and 3
    """
    for rho in (0.05, 1.0):
        _, gradient, step = asked(subject.make(rho=rho), given)
        g = step.loss_gradient
        _, expected, _ = asked(subject.make(rho=0.0), given, moved=rho * g / np.linalg.norm(g))
        must_be_close(f"the gradient with rho {rho:g}", gradient, expected, str(given), 1e-4)


METHOD_LAWS: Mapping[str, tuple[Law, ...]] = {
    "moon": (nothing_without("mu"), a_contrast_of_cosines),
    "feddecorr": (nothing_without("beta"), a_mean_square_of_correlations),
    "fedntd": (nothing_without("beta"), a_divergence_of_the_other_classes),
    "fedsam": (nothing_without("rho"), the_gradient_rho_away),
}


def _cosine(a: Any, b: Any) -> Any:
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return (a * b).sum(axis=1) / np.maximum(lengths, 1e-8)


def _softmax(row: Any) -> Any:
    shifted = np.exp(row - row.max())
    return shifted / shifted.sum()


class Asked:
    """The step that an objective was handed, and what laws ask of it."""

    def __init__(self, part: Any, given: Moment, moved: Float32s | None) -> None:
        import torch

        from fedreach.engines.objective import ObjectiveRun, Step
        from fedreach.models import build
        from fedreach.models.flat import Layout, bind, flatten

        numbers, rng = Traits.of(part).needs_numbers, generator(0, "testing step")
        module = build("mlp", (4,), 3, seed=0, options={"hidden": [5]})
        self.broadcast = flatten(module)
        p = len(self.broadcast)
        self.vector = self.broadcast + given.away * _normal(rng, p)
        self.memory = self.broadcast + 0.5 * _normal(rng, p) if given.remembers else torch.zeros(p)
        if moved is not None:
            self.vector += torch.from_numpy(moved)
        x = _normal(rng, given.examples, 4)
        y = _normal(rng, given.examples, 3) if numbers else torch.from_numpy(rng.integers(0, 3, given.examples))
        self.gradient = torch.zeros(p)
        bind(module, self.vector, self.gradient)
        run = ObjectiveRun(part, module, Layout.of(module))
        self.step = Step(run, x, y, lambda z: part.per_example(z, y).mean(), self.broadcast, self.memory)
        self.before = self.now()

    def now(self) -> dict[str, Float32s]:
        """Return what an objective must not write to."""
        step = self.step
        named = {"x": step.x, "y": step.y, "broadcast": self.broadcast, "memory": self.memory}
        named |= {"the local model": self.vector, "the gradients": self.gradient}
        return {name: tensor.detach().numpy().copy() for name, tensor in named.items()}

    @property
    def loss_value(self) -> float:
        """What the loss of the batch is,"""
        return float(self.step.loss.detach())

    @property
    def loss_gradient(self) -> Float32s:
        """and its gradient, (p,)."""
        found: Float32s = self.step.gradient().numpy()
        return found

    def _pass(self, which: str) -> Any:
        return self.step if which == "local" else self.step.frozen(getattr(self, _MODELS[which]))

    def hidden(self, which: str) -> Any:
        """Return the (b, 5) features of the "local", "global" or "memory" model, as float64."""
        return self._pass(which).features().detach().numpy().astype(np.float64)

    def outputs(self, which: str) -> Any:
        """Return the (b, 3) outputs likewise."""
        return self._pass(which).outputs.detach().numpy().astype(np.float64)


_MODELS = {"global": "broadcast", "memory": "memory"}


def _normal(rng: np.random.Generator, *shape: int) -> Any:
    import torch

    return torch.from_numpy(rng.standard_normal(shape).astype(np.float32))


def asked(part: Any, given: Moment, moved: Float32s | None = None) -> tuple[float, Float32s, Asked]:
    """Return the objective of a step, its (p,) gradient, and the step; the local model is `moved` by this first."""
    import torch

    step = Asked(part, given, moved)
    value = part.objective(step.step)
    if not isinstance(value, torch.Tensor) or value.shape != () or not value.requires_grad:
        broken(f"the objective should be a tensor of one number that torch can differentiate; got {value!r}")
    module, layout = step.step.module, step.step._run.layout
    parameters, flat = dict(module.named_parameters()), torch.zeros(layout.num_trainable)
    views = layout.parameter_views(flat)
    wanted = [parameters[name] for name in views]
    found = torch.autograd.grad(value, wanted, retain_graph=True, allow_unused=True)
    for view, one in zip(views.values(), found, strict=True):
        if one is not None:
            view.copy_(one)
    return float(value.detach()), flat.numpy(), step
