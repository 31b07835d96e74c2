"""Weigh reports by how often their clients were drawn."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedreach.arrays import Floats
from fedreach.federation.weighting.base import OwnWeight


@dataclass(frozen=True)
class ByDraws(OwnWeight):
    """Give each draw the same say: w_i = t_i / sum_j t_j, t_i how often client i was drawn.

    That is the plain mean over draws, in which a client that was drawn twice counts twice. Replies that are lost take
    their draws along: the mean is over those that came. Under a selection that draws each once it is `equal`.

    *When to use it:* with selections that draw with replacement and whose probabilities already count examples:
    `multinomial`, `urns_by_size`, `urns_by_similarity`. With other weightings large clients would count twice.

    When: selection draws clients with replacement: `multinomial` and the urns.

    Reference: Fraboni, Vidal, Kameni and Lorenzi, "Clustered Sampling", ICML 2021, section 2.

    Example:
        >>> ByDraws().raw({"num_examples": np.array([10.0, 90.0]), "draws": np.array([1.0, 3.0])})
        array([1., 3.])
    """

    def raw(self, metrics: Mapping[str, Floats]) -> Floats:
        return metrics["draws"] if "draws" in metrics else np.ones(len(metrics["num_examples"]))
