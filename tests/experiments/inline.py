"""An executor that runs jobs in this process, one after the other: comparisons without the start of workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedreach.experiment.schema import EngineSection
from fedreach.experiment.worker import LastRead, Rounds, run_job
from fedreach.experiment.workers import Message


class Here:
    """Does as a worker's process does."""

    def __init__(self) -> None:
        self.read = LastRead()

    def start(self, on_message: Callable[[Message], None]) -> None:
        self.on_message = on_message
        on_message({"ready": True})

    def send(self, job: Message) -> None:
        self.on_message(run_job(job, Rounds(self.on_message), self.read))

    def end(self) -> None: ...

    def wait(self) -> None: ...


@dataclass(frozen=True)
class Inline:
    """This process."""

    @contextmanager
    def pool(self, engine: EngineSection, out: Path, jobs: int, workers: int | None) -> Iterator[list[Here]]:
        yield [Here()]
