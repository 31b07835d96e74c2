"""Draw in proportion to examples, with replacement."""

from dataclasses import dataclass

import numpy as np

from fedreach.arrays import Ints
from fedreach.federation.selection.shared.urns import Urns
from fedreach.federation.values import ClientView, State


@dataclass(frozen=True)
class Multinomial(Urns):
    """Draw each of the k places from all available clients, client i with probability p_i = m_i / sum_j m_j.

    m_i is its number of examples. With the weighting `by_draws` the mean update is on average that of all clients,
    sum_i p_i u_i, and the weight of client i has the variance p_i (1 - p_i) / k. With `by_examples` large clients would
    count twice.

    *When to use it:* as the unbiased baseline of theory (MD sampling). `urns_by_size` is as unbiased and varies less.

    When: sizes differ much and an unbiased mean of equal weights is wanted; with the weighting `by_draws`.

    Reference: Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, "Federated Optimization in Heterogeneous Networks",
    MLSys 2020, Algorithm 1; "MD sampling" in Fraboni et al., ICML 2021.

    Example:
        >>> view = ClientView.of(np.array([4, 6]), np.array([10, 990]))
        >>> chosen = Multinomial().select({}, view, 3, np.random.Generator(np.random.Philox(0)))
        >>> chosen.ids, chosen.draws
        (array([6]), array([3]))
    """

    def urns(self, state: State, view: ClientView, k: int) -> Ints:
        balls = view.num_examples[view.available]
        return np.broadcast_to(balls, (k, len(balls)))
