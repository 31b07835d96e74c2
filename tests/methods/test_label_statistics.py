"""Checks of the built-in label statistics: what theory says only of one method."""

from dataclasses import replace
from typing import Any

import numpy as np

from fedreach._util.arrays import Floats
from fedreach._util.streams import generator
from fedreach.federation.weighting import ByEntropy, ByExamples, Equal
from fedreach.testing.base import Subject, define_check, fail, must_be_close, shown

from ..quadratics import two_quadratics  # noqa: TID252 (tests are no package that has a name)
from .running import each_method, must_pass

MANY = 40_000
FAR = 1000  # counts that the noise does not bring to 0


@define_check()
def the_truth(subject: Subject) -> None:
    """The counts are released as they are."""
    counts = np.array([[3, 0, 5], [1, 1, 1]])
    must_be_close("what is released", subject.make().release(counts, generator(0, "labels")), counts, shown(counts), 0)


@define_check()
def the_sum_is_the_weighted_mean(subject: Subject) -> None:
    """The model under secure aggregation is that of a federation in which the server sees every weight and update."""
    component = subject.make()
    if (
        not component.only_sum
        or np.isfinite(component.release(np.ones((2, 3), np.int64), generator(0, "labels"))).any()
    ):
        fail("`only_sum` should be set, and nan released: the server sees no client's labels")
    for weighting in (ByExamples(), Equal(), ByEntropy()):
        plain = two_quadratics(weighting=weighting)
        secure = replace(plain, federation=replace(plain.federation, label_statistics=component))
        ends = []
        for simulation in (secure, plain):
            state = simulation.start()
            for _ in range(5):
                state = simulation.step(state).state
            ends.append(state.params)
        case = f"two quadratics, weighting {type(weighting).__name__}"
        must_be_close("the model after 5 rounds", ends[0], ends[1], case, 1e-6, "that without the sum")


@define_check()
def discrete_laplace_noise(subject: Subject) -> None:
    """The noise is a whole number x with probability proportional to exp(-epsilon |x| / 2).

    Replacing one example changes two counts by 1, so that each may differ by epsilon / 2.
    """
    for epsilon in (0.5, 2.0):
        noise = _noise(subject.make(epsilon=epsilon))
        a = np.exp(-epsilon / 2)
        for x in range(-3, 4):
            _must_come(noise, x, (1 - a) / (1 + a) * a ** abs(x), f"epsilon = {epsilon}")


@define_check()
def discrete_gaussian_noise(subject: Subject) -> None:
    """The noise is a whole number x of probability proportional to exp(-x^2 / (2 sigma^2)), sigma as small as allowed.

    The smallest sigma for epsilon = 1 and delta = 1e-5 is 5.275, by the sum of the privacy losses of two counts.

    Reference: Canonne, Kamath and Steinke 2020
    """
    sigma, noise = 5.275, _noise(subject.make(epsilon=1.0, delta=1e-5))
    x = np.arange(-100, 101)
    mass = np.exp(-(x**2) / (2 * sigma**2))
    for number in (0, 1, -4, 8):
        _must_come(noise, number, float(mass[number + 100] / mass.sum()), "epsilon 1, delta 1e-5")
    # The variance of a squared normal is 2 sigma^4.
    if abs(noise.var() - sigma**2) > 5 * sigma**2 * np.sqrt(2 / MANY):
        fail(f"the noise has the variance {noise.var():.2f}, instead of {sigma**2:.2f}", "epsilon 1, delta 1e-5")


@define_check()
def noise_does_not_see_the_data(subject: Subject) -> None:
    """The noise added to one client's counts is the same whatever other clients hold, and counts below 0 become 0."""
    component = subject.make()
    counts = np.full((3, 2), FAR)
    other = counts.copy()
    other[1] = 5 * FAR
    a, b = (component.release(made, generator(0, "labels")) for made in (counts, other))
    if not np.array_equal(a[[0, 2]], b[[0, 2]]):
        fail(f"clients 0 and 2 were {shown(a[[0, 2]])}, and {shown(b[[0, 2]])} when client 1 held more", shown(counts))
    least = component.release(np.zeros((200, 5), np.int64), generator(0, "labels"))
    if (least < 0).any() or not (least == np.rint(least)).all():
        fail(f"released counts should be whole and not negative; got {shown(np.unique(least))}", "200 empty clients")


METHOD_CHECKS = {
    "exact": (the_truth,),
    "secure_aggregation": (the_sum_is_the_weighted_mean,),
    "discrete_laplace": (discrete_laplace_noise, noise_does_not_see_the_data),
    "discrete_gaussian": (discrete_gaussian_noise, noise_does_not_see_the_data),
}


def _must_come(noise: Floats, number: int, p: float, case: str) -> None:
    """Fail unless a number came about as often as this probability says."""
    share = float((noise == number).mean())
    if abs(share - p) > 5 * np.sqrt(p * (1 - p) / MANY):  # five standard errors
        fail(f"noise of {number} came in {share:.2%} of {MANY} draws, instead of {p:.2%}", case)


def _noise(component: Any) -> Floats:
    counts = np.full((MANY // 4, 4), FAR)
    return np.asarray((component.release(counts, generator(0, "noise")) - counts).ravel())


@each_method("label_statistics", METHOD_CHECKS)
def test_a_method_passes_its_checks(kind, name, check):
    must_pass(kind, name, check)
