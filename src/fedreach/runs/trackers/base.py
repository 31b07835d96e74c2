"""What trackers share: the numbers of a round, and writing those of many short rounds at once."""

import importlib.util
import time
from dataclasses import dataclass

from fedreach.errors import ConfigError
from fedreach.runs.schema import RoundRow, Timing

EVERY_SECONDS = 1.0
"""What is told is written so often; a killed run is told again of what was not."""


@dataclass
class Clock:
    """Says when it is time to write; at first it is."""

    last: float = -EVERY_SECONDS

    def is_due(self) -> bool:
        """Say whether a second has passed since it last was."""
        now = time.monotonic()
        if now - self.last < EVERY_SECONDS:
            return False
        self.last = now
        return True


@dataclass
class Thinned:
    """Of so many rounds takes the first, and the first that is evaluated.

    Example:
        >>> some = Thinned(4)
        >>> [number for number in range(12) if some.takes(number, is_evaluated=number % 3 == 0)]
        [0, 4, 6, 8, 9]
    """

    every: int
    stretch: int = -1  # of rounds, of which an evaluated one was taken last

    def takes(self, number: int, is_evaluated: bool) -> bool:
        """Say whether a round is taken; they are asked for in their order."""
        first, stretch = number % self.every == 0, number // self.every
        new = is_evaluated and stretch != self.stretch
        self.stretch = stretch if new else self.stretch
        return first or new


def numbers(row: RoundRow, timing: Timing) -> dict[str, float]:
    """Return all numbers of a round by their keys in ``rounds.jsonl`` and ``timing.jsonl``, but its own.

    Example:
        >>> row = RoundRow(round=3, cohort=[4, 7], weights=[0.5], lost=[7], bytes_down=8, bytes_up=4, bytes_total=36,
        ...     probe_bytes=0, evaluated={"id_accuracy": 0.5})
        >>> numbers(row, Timing(round=3, train_seconds=0.25))
        {'bytes_down': 8, 'bytes_up': 4, 'bytes_total': 36, 'probe_bytes': 0, 'id_accuracy': 0.5, 'clients': 2, 'lost': 1, 'train_seconds': 0.25}
    """  # noqa: E501
    found = {key: value for key, value in row.to_json().items() if type(value) in (int, float) and key != "round"}
    found |= {"clients": len(row.cohort), "lost": len(row.lost)}
    spent = {"train_seconds": timing.train_seconds, "evaluate_seconds": timing.evaluate_seconds}
    return found | {key: value for key, value in spent.items() if value is not None}


def seconds(timing: Timing) -> float:
    """Return how long a round took, as far as that is known."""
    return (timing.train_seconds or 0.0) + (timing.evaluate_seconds or 0.0)


def need(module: str, what: str) -> None:
    """Refuse a tracker whose package is not installed.

    Raises:
        ConfigError: If it is not.
    """
    if importlib.util.find_spec(module) is None:
        raise ConfigError(f"{what} is not installed. Run: pip install 'fedreach[tracking]'.")
