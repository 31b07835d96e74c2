"""Which participants can be reached in a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedreach.arrays import Bools
from fedreach.errors import ConfigError


class Participation(Protocol):
    """Says who is available; the generator is that of the round."""

    def available(self, n: int, rng: np.random.Generator) -> Bools:
        """Return (n,) flags over the participants."""
        ...


@dataclass(frozen=True)
class Always:
    """Everybody can be reached in every round.

    Example:
        >>> Always().available(3, None)
        array([ True,  True,  True])
    """

    def available(self, n: int, rng: np.random.Generator) -> Bools:
        """Return n times True."""
        return np.ones(n, np.bool_)


@dataclass(frozen=True)
class Bernoulli:
    """Each participant can be reached with the same probability, independently in each round.

    A round in which nobody can be reached is run as an empty round: the model stays, the row says so. (FedDyn's
    code draws again instead, which hides such rounds and their share of the time.)

    Args:
        act_prob: Probability in (0, 1].
    """

    act_prob: float

    def __post_init__(self) -> None:
        if not 0 < self.act_prob <= 1:
            raise ConfigError(f"Bernoulli.act_prob must be in (0, 1]; got {self.act_prob}.")

    def available(self, n: int, rng: np.random.Generator) -> Bools:
        """Return n independent draws."""
        return rng.random(n) < self.act_prob


PARTICIPATIONS: dict[str, type] = {"always": Always, "bernoulli": Bernoulli}
