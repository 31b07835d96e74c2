"""What a run may spend: methods that ask for more a round are then compared at equal cost, not at equal rounds."""

import math
from dataclasses import dataclass
from typing import Protocol


class Spending(Protocol):
    """What a run has spent so far, as `fedreach.runs.checkpoint.Snapshot` counts it."""

    @property
    def bytes_total(self) -> int: ...  # down and up, probes included

    @property
    def seconds_total(self) -> float: ...  # simulated, of a federation with a radio

    @property
    def joules_total(self) -> float: ...


@dataclass(frozen=True)
class Budget:
    """A run ends with the first round that reaches one of these; it may exceed it by what that round costs.

    Args:
        megabytes: Of 10^6 bytes, sent to and by the participants, probes included.
        seconds: Simulated, of a federation with a radio.
        joules: Likewise.

    Example:
        >>> from types import SimpleNamespace
        >>> spending = SimpleNamespace(bytes_total=3_000_000, seconds_total=40.0, joules_total=7.0)
        >>> Budget(megabytes=3.0).is_spent(spending), Budget(megabytes=3.1, joules=8.0).is_spent(spending)
        (True, False)
    """

    megabytes: float = math.inf
    seconds: float = math.inf
    joules: float = math.inf

    def is_spent(self, spending: Spending) -> bool:
        """Say whether nothing is left of one of them."""
        return (
            spending.bytes_total >= 1e6 * self.megabytes
            or spending.seconds_total >= self.seconds
            or spending.joules_total >= self.joules
        )


UNLIMITED = Budget()
