"""Several weightings, averaged."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedreach.arrays import Floats
from fedreach.federation.protocols import Weighting
from fedreach.federation.values import Reports, State
from fedreach.federation.weighting.nesting import checked_factors, checked_parts, weights_of


@dataclass(frozen=True)
class Mix:
    """Average weightings: w_i = sum_j s_j w_ij, where w_ij is the weight that part j gives client i.

    A part's say is its share s_j whatever it thinks; under `Product`, a part that weighs all equally has none. With
    a share of equal weights, nobody is left out: ``{ name = "mix", parts = ["entropy", "equal"], shares = [9, 1] }``.

    A weight depends on all clients' numbers, so there is no `raw`, and no secure sum.

    When: several reasons shall be weighed against each other, none of them a veto.

    Args:
        parts: Weightings, at least one.
        shares: One for each part, finite, not negative, not all 0; they are divided by their sum. Equal where left out.

    Raises:
        ConfigError: If a part is no weighting or a share is outside its range.

    Example:
        >>> from fedreach.federation.weighting import ByExamples, Equal
        >>> reports = Reports(np.arange(2), np.zeros((2, 1), np.float32), {"num_examples": np.array([10.0, 90.0])})
        >>> Mix((ByExamples(), Equal()), shares=(3, 1)).weights({}, reports)[0]
        array([0.2, 0.8])
    """

    parts: tuple[Weighting, ...]
    shares: Sequence[float] | None = None

    def __post_init__(self) -> None:
        parts = checked_parts("Mix.parts", self.parts)
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "shares", checked_factors("Mix.shares", self.shares, parts))

    def weights(self, state: State, reports: Reports) -> tuple[Floats, State]:
        assert self.shares is not None  # filled in above
        found, new = weights_of({str(j): part for j, part in enumerate(self.parts)}, state, reports)
        mixed: Floats = np.average(found, axis=0, weights=self.shares)
        return mixed, new
