"""Checks of the built-in allocation rules: what theory says only of one method."""

import numpy as np

from fedreach._util.streams import generator
from fedreach.testing.base import Subject, define_check, fail, must_be_close
from fedreach.testing.checks.allocation import cell
from fedreach.wireless.problem import AllocationProblem

from .running import each_method, must_pass

DRAWS = 2000


def golden_problem() -> AllocationProblem:
    """Return the five clients of golden G1."""
    return AllocationProblem(
        upload_seconds=np.array([0.10, 0.08, 0.12, 0.20, 0.06]),
        power_watts=np.array([0.5, 1.0, 0.25, 0.1, 2.0]),
        cycles=np.array([1e8, 2e8, 5e7, 1.5e8, 3e8]),
        max_hertz=np.array([2e9, 3e9, 2.5e9, 1e9, 4e9]),
        num_examples=np.array([100, 150, 80, 120, 200]),
    )


@define_check()
def golden_optimum(subject: Subject) -> None:
    """Five clients with a known optimum: cost 2.6497, deadline 0.98848 s, shares .158, .199, .140, .260 and .242.

    Reference: specification of the allocation, golden G3
    """
    got = subject.make().allocate(golden_problem(), generator(0, "allocation"))
    must_be_close("the cost", got.cost, 2.649697293704, within=1e-11)
    must_be_close("the deadline", got.seconds, 0.9884802917, within=1e-9)
    must_be_close("the energy", got.joules, 1.6612170020, within=1e-9)
    must_be_close("the price of the band", got.band_price, 2.1776535079, within=1e-8)
    shares = [0.158102614, 0.199116183, 0.140231432, 0.260139995, 0.242409775]
    must_be_close("the shares", got.share, shares, within=1e-8)


@define_check()
def everybody_alike(subject: Subject) -> None:
    """All get the same share, 1 / k."""
    got = subject.make().allocate(cell("", 7).problem, generator(0, "allocation"))
    must_be_close("the shares", got.share, np.full(7, 1 / 7), "7 clients", within=1e-12)


@define_check()
def best_single_frequency(subject: Subject) -> None:
    """The frequency is (a1 / (2 a2 eps))^(1/3), 0.7937 GHz, or the highest of the device, if that is lower.

    Reference: specification, section 5.6, with its printed units mended
    """
    got = subject.make().allocate(golden_problem(), generator(0, "allocation"))
    must_be_close("the frequencies in GHz", got.hertz / 1e9, np.full(5, 0.79370052598), within=1e-9)


@define_check()
def drawn_evenly(subject: Subject) -> None:
    """Shares are Dirichlet(1), so that each is 1 / k on average, and frequencies uniform in [0.1, 1] of the highest.

    Reference: specification, section 5.6
    """
    problem, rng = golden_problem(), generator(0, "allocation")
    drawn = [subject.make().allocate(problem, rng) for _ in range(DRAWS)]
    share = np.mean([got.share for got in drawn], axis=0)
    hertz = np.mean([got.hertz / problem.max_hertz for got in drawn], axis=0)
    # Five standard errors: the variance of a share is 4 / (25 * 6), that of a frequency 0.9^2 / 12.
    if not (np.abs(share - 0.2) < 5 * np.sqrt(4 / 150 / DRAWS)).all():
        fail(f"the mean shares are {share.round(4).tolist()}", f"5 clients, {DRAWS} draws")
    if not (np.abs(hertz - 0.55) < 5 * np.sqrt(0.81 / 12 / DRAWS)).all():
        fail(f"the mean frequencies are {hertz.round(4).tolist()} of the highest", f"5 clients, {DRAWS} draws")


@define_check()
def band_goes_where_it_gains_most(subject: Subject) -> None:
    """With fine steps, the gains (a1 + a2 P) tau / b^2 of all clients end up equal, and the band is used up.

    Reference: specification, section 5.6: the printed gain has the wrong sign
    """
    problem = golden_problem()
    got = subject.make().allocate(problem, generator(0, "allocation"))
    if abs(got.share.sum() - 1) > 1e-9:
        fail(f"the shares sum to {got.share.sum():.9g}", "golden G1")
    wanted = np.sqrt((1 + problem.power_watts) * problem.upload_seconds)
    must_be_close("the shares", got.share, wanted / wanted.sum(), "golden G1", within=0.011)


METHOD_CHECKS = {
    "exact": (golden_optimum,),
    "equal": (everybody_alike, best_single_frequency),
    "random": (drawn_evenly,),
    "greedy": (band_goes_where_it_gains_most, best_single_frequency),
}


@each_method("allocation", METHOD_CHECKS)
def test_a_method_passes_its_checks(kind, name, check):
    must_pass(kind, name, check)
