"""FedNova: clients that take more steps count no more for it."""

from dataclasses import dataclass

import numpy as np

from fedreach.arrays import Floats
from fedreach.federation.protocols import Weighting
from fedreach.federation.values import Reports, State
from fedreach.federation.weighting.base import normalised
from fedreach.federation.weighting.by_examples import ByExamples
from fedreach.federation.weighting.nesting import checked_parts, weights_of

EXAMPLES = ByExamples()


@dataclass(frozen=True)
class FedNova:
    """Average updates per local step, and take as many such steps as clients did on average.

    With update u_i of a client that took tau_i local steps, and weights p_i by `inner`, the server's step is

        (sum_i p_i tau_i) sum_i p_i u_i / tau_i.

    In other words reports weigh w_i proportional to p_i / tau_i, and their mean is multiplied by
    (sum_i p_i tau_i) (sum_i p_i / tau_i), which is at least 1. FedAvg's step, sum_i p_i u_i, pulls towards clients with
    many steps and so minimises another objective than sum_i p_i f_i. Where all take equally many steps, they are one.

    With local momentum, tau_i is the sum of what each gradient moved, see `LocalSGD.moved_steps`: the |a_i|_1 of the
    paper, in the mean's factor as well. A proximal pull and weight decay, which the paper counts in, are left out: a
    solver may correct gradients as it likes. Inside `product`, `mix` and `clip` only the ratios of the w_i count.

    *When to use it:* where clients take unequal numbers of steps: with `local.epochs`, if they hold unequal numbers of
    examples, or with `local.steps` as a table. Under a secure sum it is refused, as the factor belongs to all clients.

    When: clients take different numbers of local steps.

    Args:
        inner: The weighting that gives the p_i; by default each example counts the same, as in the paper.

    Raises:
        ConfigError: If `inner` is no weighting.

    Reference: Wang, Liu, Liang, Joshi and Poor, "Tackling the Objective Inconsistency Problem in Heterogeneous
    Federated Optimization", NeurIPS 2020, eq. 5 to 8, with tau_eff = sum_i p_i |a_i|_1, as in the authors' code,
    github.com/JYWa/FedNova, for plain steps and momentum.

    Example:
        >>> metrics = {"num_examples": np.array([10.0, 10.0]), "steps": np.array([1.0, 4.0])}
        >>> reports = Reports(np.arange(2), np.array([[1], [4]], np.float32), metrics)
        >>> weights, _ = FedNova().weights({}, reports)
        >>> scale = FedNova().mean_scale({}, reports, n=2)
        >>> weights, scale, scale * weights @ reports.update  # 2.5 steps, each of length 1
        (array([0.8, 0.2]), 1.5625, array([2.5]))
    """

    inner: Weighting = EXAMPLES

    def __post_init__(self) -> None:
        checked_parts("FedNova.inner", (self.inner,))

    def weights(self, state: State, reports: Reports) -> tuple[Floats, State]:
        (share,), new = weights_of({"inner": self.inner}, state, reports)
        return normalised(self, share / steps_of(reports)), new

    def mean_scale(self, state: State, reports: Reports, n: int) -> float:
        """Return (sum_i p_i tau_i) (sum_i p_i / tau_i)."""
        (share,), _ = weights_of({"inner": self.inner}, state, reports)
        steps = steps_of(reports)
        return float((share @ steps) * (share / steps).sum())


def steps_of(reports: Reports) -> Floats:
    """Return (r,) tau_i, 1 for all where nobody says."""
    return reports.metrics.get("steps", np.ones(len(reports.ids)))
