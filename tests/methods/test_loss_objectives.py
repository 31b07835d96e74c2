"""Checks of losses that see more than outputs and targets, see `fedreach.federation.base.Objective`."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedreach.testing.base import Check, Subject, define_check, fail, must_be_close, same, shown
from fedreach.testing.checks.loss import Moment, ObjectiveStep, moments, objective_of

from .running import each_method, must_pass


def nothing_without(option: str) -> Check:
    """Return the check that with this option 0 the objective is the loss, to the bit."""

    def check(subject: Subject, case: Moment) -> None:
        value, gradient, step = objective_of(subject.make(**{option: 0.0}), case)
        if value != loss_value(step) or not same(gradient, loss_gradient(step)):
            fail(f"with {option} = 0 it is {value} and its gradient {shown(gradient)}; the loss {loss_value(step)}")

    return Check(
        f"{option} 0 is the loss", f"With {option} = 0 the objective is the loss, bit for bit.", check, moments
    )


@define_check(moments)
def a_contrast_of_cosines(subject: Subject, case: Moment) -> None:
    """It adds mu times the mean of log(1 + exp((cos(z, z_prev) - cos(z, z_glob)) / tau)), and nothing before round 2.

    Reference: Li, He and Song 2021, eq. 3 and 4
    """
    for mu, tau in ((1.0, 0.5), (3.0, 2.0)):
        value, _, step = objective_of(subject.make(mu=mu, temperature=tau), case)
        z, towards, away = (hidden(step, which) for which in ("local", "broadcast", "memory"))
        term = np.log1p(np.exp((_cosine(z, away) - _cosine(z, towards)) / tau)).mean() if case.remembers else 0.0
        must_be_close(f"what is added with mu {mu:g}", value - loss_value(step), mu * term, str(case), 1e-4)


@define_check(moments)
def a_mean_square_of_correlations(subject: Subject, case: Moment) -> None:
    """It adds beta times the mean over all pairs of features of their squared correlation, and nothing to one example.

    Reference: Shi et al. 2023, eq. 6
    """
    for beta in (0.1, 2.0):
        value, _, step = objective_of(subject.make(beta=beta), case)
        z = hidden(step, "local")
        d, live = z.shape[1], z[:, z.std(axis=0) > 0]
        term = (np.corrcoef(live.T) ** 2).sum() / d**2 if case.examples > 1 else 0.0
        must_be_close(f"what is added with beta {beta:g}", value - loss_value(step), beta * term, str(case), 1e-3)


@define_check(moments)
def a_divergence_of_the_other_classes(subject: Subject, case: Moment) -> None:
    """It adds beta times the mean of KL(q_global || q_local), softmax of the outputs / tau of all classes but the true.

    Reference: Lee et al. 2022, eq. 4 to 6
    """
    for beta, tau in ((1.0, 1.0), (2.0, 3.0)):
        value, _, step = objective_of(subject.make(beta=beta, tau=tau), case)
        y = step.step.y.numpy()
        total = 0.0
        for one, other, label in zip(outputs(step, "broadcast"), outputs(step, "local"), y, strict=True):
            g, w = (_softmax(np.delete(row, label) / tau) for row in (one, other))
            total += float((g * np.log(g / w)).sum())
        must_be_close("what is added", value - loss_value(step), beta * total / len(y), str(case), 1e-4)


@define_check(moments)
def the_gradient_rho_away(subject: Subject, case: Moment) -> None:
    """Its gradient is that of the loss at w + rho g / |g|.

    Reference: Foret et al. 2021, eq. 2 and 3
    """
    for rho in (0.05, 1.0):
        _, gradient, step = objective_of(subject.make(rho=rho), case)
        g = loss_gradient(step)
        _, expected, _ = objective_of(subject.make(rho=0.0), case, moved=rho * g / np.linalg.norm(g))
        must_be_close(f"the gradient with rho {rho:g}", gradient, expected, str(case), 1e-4)


METHOD_CHECKS = {
    "moon": (nothing_without("mu"), a_contrast_of_cosines),
    "feddecorr": (nothing_without("beta"), a_mean_square_of_correlations),
    "fedntd": (nothing_without("beta"), a_divergence_of_the_other_classes),
    "fedsam": (nothing_without("rho"), the_gradient_rho_away),
}


def loss_value(step: ObjectiveStep) -> float:
    """Return what the loss of the batch is."""
    return float(step.step.loss.detach())


def loss_gradient(step: ObjectiveStep) -> Any:
    """Return its gradient, (p,)."""
    return step.step.gradient().numpy()


def hidden(step: ObjectiveStep, which: str) -> Any:
    """Return the (b, 5) features of the "local", "broadcast" or "memory" model, as float64."""
    return _pass(step, which).features().detach().numpy().astype(np.float64)


def outputs(step: ObjectiveStep, which: str) -> Any:
    """Return the (b, 3) outputs likewise."""
    return _pass(step, which).outputs.detach().numpy().astype(np.float64)


def _pass(step: ObjectiveStep, which: str) -> Any:
    return step.step if which == "local" else step.step.frozen(getattr(step, which))


def _cosine(a: Any, b: Any) -> Any:
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return (a * b).sum(axis=1) / np.maximum(lengths, 1e-8)


def _softmax(row: Any) -> Any:
    shifted = np.exp(row - row.max())
    return shifted / shifted.sum()


@each_method("loss", METHOD_CHECKS)
def test_a_method_passes_its_checks(kind, name, check):
    must_pass(kind, name, check)
