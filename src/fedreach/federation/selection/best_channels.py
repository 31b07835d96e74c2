"""Those with the best channels of the round."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedreach.federation.selection.base import Policy, largest
from fedreach.federation.values import ClientView, Selection, State


@dataclass(frozen=True)
class BestChannels(Policy):
    """Choose the k available clients that could send fastest in this round.

    Their rate R over the whole band is compared (see `fedreach.wireless.channel.bits_per_second`); ties go to the
    lower id. Clients far away are hardly ever chosen: what they know, the model never learns. This is the
    baseline that "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks" calls SAE.

    When: only seconds count, and as the baseline for what ignoring the data costs; needs `[radio]`.

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", section V-A,
    baseline (a), of which it says no more than this.

    Example:
        >>> from fedreach.testing.worlds import with_rates
        >>> view = with_rates(ClientView.of(np.arange(4), np.full(4, 10)), np.array([1e6, 4e6, 2e6, 3e6]))
        >>> BestChannels().select({}, view, 2, np.random.Generator(np.random.Philox(0))).ids
        array([1, 3])
    """

    needs_radio: ClassVar[bool] = True

    def select(self, state: State, view: ClientView, k: int, rng: np.random.Generator) -> Selection:
        assert view.radio is not None  # because of `needs_radio`
        here = view.available
        return Selection(largest(view.ids[here], view.radio.bits_per_second[here], k))
