"""The budget of a run, for comparisons at equal cost of methods with different costs per round."""

from dataclasses import dataclass
from typing import Annotated, Protocol

from fedreach._util.component import Options


class Spending(Protocol):
    """Costs of a run so far (see `fedreach.runs.checkpoint.Snapshot`)."""

    @property
    def bytes_total(self) -> int: ...  # down and up, probes included

    @property
    def seconds_total(self) -> float: ...  # simulated, if there is a radio

    @property
    def joules_total(self) -> float: ...


@dataclass(frozen=True)
class Budget(Options):
    """Budget of a run, which ends with the first round that reaches a limit; that round may exceed the limit.

    Args:
        megabytes: Limit of communication with the participants in 10^6 bytes, probes included.
        seconds: Limit of simulated time, for a federation with a radio.
        joules: Limit of simulated energy, for a federation with a radio.

    Example:
        >>> from types import SimpleNamespace
        >>> spending = SimpleNamespace(bytes_total=3_000_000, seconds_total=40.0, joules_total=7.0)
        >>> Budget(megabytes=3.0).is_spent(spending), Budget(megabytes=3.1, joules=8.0).is_spent(spending)
        (True, False)
    """

    megabytes: Annotated[float | None, "(0, inf)"] = None
    seconds: Annotated[float | None, "(0, inf)"] = None
    joules: Annotated[float | None, "(0, inf)"] = None

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are set, by name."""
        return {name: limit for name, limit in vars(self).items() if limit is not None}

    def is_spent(self, spending: Spending) -> bool:
        """Return whether a limit is reached."""
        return (
            (self.megabytes is not None and spending.bytes_total >= 1e6 * self.megabytes)
            or (self.seconds is not None and spending.seconds_total >= self.seconds)
            or (self.joules is not None and spending.joules_total >= self.joules)
        )


UNLIMITED = Budget()
