"""Which participants are available in a round."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from fedreach._util.arrays import Bools
from fedreach.federation.base import Component


class Participation(Component):
    """Base class of availability models; the generator is that of the round."""

    component_type = "participation"
    abilities: ClassVar = {"loses_replies": ("replies",)}

    loses_replies: bool = False

    @abstractmethod
    def available(self, n: int, rng: np.random.Generator) -> Bools:
        """Return (n,) flags over the participants."""

    def replies(self, k: int, rng: np.random.Generator) -> Bools:
        """Return (k,) flags of the clients that trained: whether their replies arrive."""
        return np.ones(k, np.bool_)


@dataclass(frozen=True)
class Always(Participation):
    """Full availability: every participant is available in every round.

    Use when: a cross-silo federation, or to exclude availability from an experiment.

    Example:
        >>> Always().available(3, None)
        array([ True,  True,  True])
    """

    def available(self, n: int, rng: np.random.Generator) -> Bools:
        return np.ones(n, np.bool_)


@dataclass(frozen=True)
class Bernoulli(Participation):
    """Independent availability with the same probability for each participant and round.

    A round without available clients leaves the model unchanged, and its row reports that. FedDyn's code draws again
    instead.

    Use when: phones and sensors that are often offline, or replies that get lost.

    Args:
        act_prob: Probability that a participant is available, in (0, 1].
        reply_prob: Probability that the reply of a client that trained arrives, in (0, 1]. A client whose reply is lost
            returns to its state before the round.
    """

    act_prob: Annotated[float, "(0, 1]"]
    reply_prob: Annotated[float, "(0, 1]"] = 1.0

    def available(self, n: int, rng: np.random.Generator) -> Bools:
        return rng.random(n) < self.act_prob

    def replies(self, k: int, rng: np.random.Generator) -> Bools:
        return rng.random(k) < self.reply_prob


PARTICIPATIONS: Mapping[str, Any] = {"always": Always, "bernoulli": Bernoulli}
