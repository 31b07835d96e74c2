"""What an executor is: it hands out workers, processes somewhere that run one job after the other."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from fedreach.config.sections import EngineSection

LOG = "workers.log"
Message = dict[str, Any]
"""What a worker says, and a job that it is handed (see `fedreach.experiments.executors.worker`)."""


class Worker(Protocol):
    """A process somewhere that runs one job after the other. A worker may be started again after it died."""

    def start(self, on_message: Callable[[Message], None]) -> None:
        """Start the process; what it says is handed to `on_message`, which may be called from another thread.

        ``{"ready": true}`` comes first and once, then what the job at hand says: ``{"round": 3, ...}`` after every
        round, ``{"refit_round": 2, "refit_rounds": 5}`` after every round of training again on all rows,
        ``{"tracker": name, "warning": text}`` of a tracker that fails, and ``{"ended": ...}``. ``{"died":
        cause}`` is the last; ``{"refused": reason}`` says that this machine cannot be used.
        """

    def send(self, job: Message) -> None:
        """Hand out a job."""

    def end(self) -> None:
        """Tell the process to end; one that is in a run first writes its checkpoint."""

    def wait(self) -> None:
        """Wait for the end, and force it where it does not come."""


class Executor(Protocol):
    """Machines that a comparison runs on."""

    @property
    def tries(self) -> int:
        """How often a job is begun, at most, where the process that runs it dies."""

    def pool(
        self, engine: EngineSection, out: Path, jobs: int, workers: int | None
    ) -> AbstractContextManager[Sequence[Worker]]:
        """Hand out workers, at most one a job, that see the folder `out`; clean up in the end.

        Raises:
            ConfigError: If no machine can run this.
        """
