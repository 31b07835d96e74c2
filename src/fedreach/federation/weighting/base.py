"""Weights that a client could work out itself, and a plain function as a weighting."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from fedreach.arrays import Floats
from fedreach.errors import PartError
from fedreach.federation.traits import name_of
from fedreach.federation.values import Reports, State


class OwnWeight(ABC):
    """A weighting w_i = a_i / sum_j a_j, in which a_i depends on client i alone; inherit from it and write `raw`.

    Clients can then scale their updates themselves, and the server needs the sums of a_i update_i and a_i only (see
    `fedreach.federation.aggregation.secure_sum`).
    """

    @abstractmethod
    def raw(self, metrics: Mapping[str, Floats]) -> Floats:
        """Return the (r,) numbers a_i, not negative, each from the client's own entry of the metrics."""

    def weights(self, state: State, reports: Reports) -> tuple[Floats, State]:
        return normalised(self, self.raw(reports.metrics)), state


def normalised(weighting: object, raw: Floats) -> Floats:
    """Return the numbers divided by their sum, or say which weighting gave numbers that are no weights."""
    if not ((raw >= 0).all() and 0 < (total := raw.sum()) < np.inf):
        raise PartError(f"{name_of(weighting)} must return numbers that are not negative, not all 0; got {raw}.")
    return np.asarray(raw / total)


@dataclass(frozen=True)
class FunctionWeighting:
    """Use ``function(reports) -> (r,) numbers``; they are divided by their sum.

    Facts that the function needs (see `FACTS`) are named in its attribute ``needs``, what clients shall measure for it
    stands in ``measures``.

    Example:
        >>> reports = Reports(np.arange(2), np.zeros((2, 1), np.float32), {"num_examples": np.array([1.0, 3.0])})
        >>> FunctionWeighting(lambda reports: reports.metrics["num_examples"] ** 2).weights({}, reports)[0]
        array([0.1, 0.9])
    """

    function: Callable[[Reports], Floats]

    @property
    def name(self) -> str:
        """The function's name, for messages."""
        return name_of(self.function)

    def weights(self, state: State, reports: Reports) -> tuple[Floats, State]:
        return normalised(self, np.asarray(self.function(reports), dtype=np.float64)), state
