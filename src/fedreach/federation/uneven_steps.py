"""Numbers of local steps that differ between clients, drawn: who has a fast machine today, and who a slow one."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from fedreach.arrays import Ints
from fedreach.errors import ConfigError, require
from fedreach.streams import generator

Drawn = Literal["client", "round"]


@dataclass(frozen=True)
class UnevenSteps:
    """Let each client take a number of steps of its own, each from `least` to `most` as likely as the others.

    The draw depends on the seed of the run and on client and round, and on nothing else: all methods of a comparison
    have the same, and a client on a real network knows its own as the server does.

    *When to use it:* to try methods on clients whose machines differ, as with the weighting `fednova`.

    Args:
        least: The fewest steps, at least 1.
        most: The most steps, at least `least`; at most 10^9.
        drawn: ``"client"``: once for each client, which keeps its number; ``"round"``: anew in each round.

    Raises:
        ConfigError: If a value is outside its range.

    Example:
        >>> UnevenSteps(2, 20).of(np.array([0, 5, 7]), seed=0, round_=3)
        array([ 2, 16, 15])
    """

    least: int
    most: int
    drawn: Drawn = "round"

    def __post_init__(self) -> None:
        require(self, least="[1, 1e9]", most="[1, 1e9]", drawn=get_args(Drawn))
        if self.least > self.most:
            raise ConfigError(
                f"UnevenSteps.least must be at most `most`, which is {self.most}; got {self.least}. Exchange them."
            )

    def of(self, ids: Ints, seed: int, round_: int) -> Ints:
        """Return the steps of these clients in a round."""
        rng = generator(seed, "local-steps", round_ if self.drawn == "round" else 0)
        share = rng.random(int(ids.max(initial=-1)) + 1)[ids]  # of client i the i-th number, whoever else is asked for
        return self.least + (share * (self.most - self.least + 1)).astype(np.int64)

    @property
    def mean(self) -> float:
        """What is expected."""
        return (self.least + self.most) / 2
