"""Leave out clients whose labels are far from those of all together."""

from dataclasses import dataclass

import numpy as np

from fedreach.federation.selection.shared.admission import Admission
from fedreach.federation.values import ClientView, Selection, State


@dataclass(frozen=True)
class KLFilter(Admission):
    """Choose k at random among clients whose label distribution is close to that of all participants together.

    An available client i is admitted if KL(p || p_i) <= `threshold`, where p_i is its label distribution, smoothed, and
    p the pooled one of all participants, available or not (see `fedreach.theory.divergence.label_divergences`). k of
    those admitted are drawn, each set of k equally likely; all of them if they are fewer than k, so that the cohort
    shrinks, as the row of the round says. If nobody is admitted, or all of them together hold fewer than
    `min_examples`, the filter cannot be kept, see `infeasible`.

    With few examples a client, hardly any passes the paper's 0.2 nats: of clients with 750 examples from
    Dirichlet(0.5) fewer than 1 %, so that the filter keeps the clients that are nearly balanced.

    When: label counts may be known, and clients far from all others in their labels shall stay out.

    Args:
        threshold: e1, in nats, not negative.
        direction: ``"global_to_local"`` compares KL(p || p_i), as in the paper; ``"local_to_global"`` KL(p_i || p).
        smoothing: kappa, pseudo-examples added to each class of a client, not negative. With 0, KL(p || p_i) is inf
            for a client that lacks a class: it is admitted last.
        min_examples: e2, training examples that those admitted must hold together; None: as many as k clients of the
            mean size.
        infeasible: ``"admit"`` lets in more clients, in increasing divergence, until it is feasible (ties by lower id)
            and says so in the row of the round; ``"error"`` ends the run.

    Raises:
        ConfigError: If an option is out of its range.
        PartError: From `select`, if the filter cannot be kept and `infeasible` is ``"error"``.

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", constraints 37e
    and 37f without the radio. 37f is asked of those admitted, not of the k that are drawn.

    Example:
        >>> from dataclasses import replace
        >>> counts = np.array([[10, 10, 0], [5, 5, 10], [30, 0, 0], [8, 12, 10]])
        >>> view = replace(ClientView.of(np.arange(4), counts.sum(axis=1)), label_counts=counts)
        >>> KLFilter(0.21).select({}, view, 3, np.random.Generator(np.random.Philox(0))).ids
        array([0, 3])
    """

    def select(self, state: State, view: ClientView, k: int, rng: np.random.Generator) -> Selection:
        """Return the cohort; the remark says where clients beyond the threshold were let in, or too few were not."""
        ids, _, enough, kept, said = self.admitted(view, k)
        remark = "" if kept and enough and len(ids) >= k else said
        return Selection(ids if len(ids) <= k else rng.choice(ids, size=k, replace=False), remark)
