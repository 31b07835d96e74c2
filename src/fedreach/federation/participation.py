"""Availability models, which determine the available participants of a round."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from fedreach._util.arrays import Bools
from fedreach.federation.base import Component


class Participation(Component):
    """Base class of availability models, whose methods receive the random generator of the round."""

    component_type = "participation"
    abilities: ClassVar = {"loses_replies": ("replies",)}

    loses_replies: bool = False

    @abstractmethod
    def available(self, n: int, rng: np.random.Generator) -> Bools:
        """Return (n,) whether each participant is available."""

    def replies(self, k: int, rng: np.random.Generator) -> Bools:
        """Return (k,) whether the reply of each client that trained arrives."""
        return np.ones(k, np.bool_)


@dataclass(frozen=True)
class Always(Participation):
    """Full availability: every participant is available in every round.

    Use when: clients are organizations (cross-silo), or availability should not affect an experiment.

    Example:
        >>> Always().available(3, None)
        array([ True,  True,  True])
    """

    def available(self, n: int, rng: np.random.Generator) -> Bools:
        return np.ones(n, np.bool_)


@dataclass(frozen=True)
class Bernoulli(Participation):
    """Independent availability with the same probability for each participant and round.

    In a round without available clients, the model does not change, and FedReach records such a round without a
    cohort. FedDyn's code draws again instead.

    Use when: clients are often offline, such as phones and sensors, or replies get lost.

    Args:
        act_prob: Probability that a participant is available, in (0, 1].
        reply_prob: Probability that the reply of a client that trained arrives, in (0, 1]. A client whose reply is lost
            restores its state before the round.
    """

    act_prob: Annotated[float, "(0, 1]"]
    reply_prob: Annotated[float, "(0, 1]"] = 1.0

    def available(self, n: int, rng: np.random.Generator) -> Bools:
        return rng.random(n) < self.act_prob

    def replies(self, k: int, rng: np.random.Generator) -> Bools:
        return rng.random(k) < self.reply_prob


PARTICIPATIONS: Mapping[str, Any] = {"always": Always, "bernoulli": Bernoulli}
