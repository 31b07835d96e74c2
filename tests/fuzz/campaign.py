"""What a fuzz target is, and how its examples end: what a campaign of them counts.

An example *survives* if the call succeeds, is *told* if it ends in one message of ours, is *lost* if anything else is
raised or it takes too long or too much memory, and is *wrong* if what came out is not what went in.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import click
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

from fedreach._util.errors import FedReachError

SECONDS = 20.0  # of one example, on a busy machine
BYTES = 2 * 2**30  # that one example may add to what the process has

Ending = Literal["survived", "told"]


class TooLongError(BaseException):
    """An example took longer than it may."""


class WrongError(AssertionError):
    """A call succeeded, and what came of it is not what went in."""


@dataclass(frozen=True)
class Target:
    """One thing that is handed to FedReach by others.

    `run` is handed a folder of its own, which is empty, and an example; it raises `WrongError` where an oracle knows
    better than what came out.
    """

    name: str
    examples: SearchStrategy[Any]
    run: Callable[[Path, Any], object]
    share: float = 1.0  # of the examples of a campaign, cheap targets have more


@dataclass(frozen=True)
class Counts:
    """How the examples of one target ended."""

    target: str
    injected: int = 0
    survived: int = 0
    told: int = 0
    lost: int = 0
    wrong: int = 0
    first: str = ""  # the first that was lost or wrong

    def with_one(self, ending: str, example: str = "") -> Counts:
        """Return the counts with one example more."""
        more = {"injected": self.injected + 1, ending: getattr(self, ending) + 1}
        return replace(self, **more, first=self.first or example)


def ending(call: Callable[[], object]) -> Ending:
    """Return how a call ends; what it must never raise is raised."""
    with limited():
        try:
            call()
        except (FedReachError, click.UsageError) as error:
            if not str(error).strip():
                raise WrongError("an error must say something") from error
            return "told"
    return "survived"


@contextlib.contextmanager
def limited(seconds: float = SECONDS, more_bytes: int = BYTES) -> Iterator[None]:
    """Raise TooLongError or MemoryError in what takes longer, or more memory, than it may."""

    def ring(number: int, frame: object) -> None:
        raise TooLongError(f"took more than {seconds} s")

    if threading.current_thread() is not threading.main_thread():  # signals are heard there only
        yield
        return
    before, soft_hard = signal.signal(signal.SIGALRM, ring), resource.getrlimit(resource.RLIMIT_AS)
    if sys.platform == "linux":
        has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (has + more_bytes, soft_hard[1]))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, soft_hard)


def tried(target: Target, examples: int, fresh: Callable[[], Path]) -> None:
    """Try a target on so many examples, others each time; the smallest that is lost or wrong is shown and raised."""

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=False,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(target.examples)
    def one(example: Any) -> None:
        folder = fresh()
        ending(lambda: target.run(folder, example))

    one()


def campaign(targets: Iterable[Target], examples: int, fresh: Callable[[], Path]) -> list[Counts]:
    """Try targets on so many examples in all, and count; nothing is raised, so that a table can be made of it."""
    targets = list(targets)
    whole, found = sum(target.share for target in targets), []
    for target in targets:
        counts = Counts(target.name)

        def run(folder: Path, example: Any, target: Target = target) -> None:
            nonlocal counts
            try:
                counts = counts.with_one(ending(lambda: target.run(folder, example)))
            except (Exception, TooLongError) as error:
                how = "wrong" if isinstance(error, WrongError) else "lost"
                counts = counts.with_one(how, f"{example!r:.300}: {type(error).__name__}: {error}")

        tried(replace(target, run=run), max(1, round(examples * target.share / whole)), fresh)
        found.append(counts)
    return found
