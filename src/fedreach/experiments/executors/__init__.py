"""Where the runs of a comparison are computed: processes of this machine, or of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from fedreach.errors import ConfigError, nearest
from fedreach.experiments.config import EngineSection

NAMES = ("local", "ray")
LOG = "workers.log"
Message = dict[str, Any]
"""What a worker says, and a job that it is handed (see `fedreach.experiments.worker`)."""


class Worker(Protocol):
    """A process somewhere that runs one job after the other. A worker may be started again after it died."""

    def start(self, hear: Callable[[Message], None]) -> None:
        """Start the process; what it says is handed to `hear`, which may be called from another thread.

        ``{"ready": true}`` comes first and once, then what the job at hand says: ``{"round": 3, ...}`` after every
        round and ``{"ended": ...}``. ``{"died": cause}`` is the last; ``{"refused": reason}`` says that this machine
        cannot be used.
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


def chosen(name: str, address: str | None = None) -> Executor:
    """Return an executor by name.

    Args:
        name: One of `NAMES`.
        address: Of the Ray cluster; None starts one on this machine.

    Raises:
        ConfigError: If there is no such executor, the address is not for it, or Ray is not installed.

    Example:
        >>> chosen("local")
        Local(tries=1)
    """
    from fedreach.experiments.executors.local import Local
    from fedreach.experiments.executors.on_ray import OnRay

    if name not in NAMES:
        raise ConfigError(f"There is no executor {name!r}.{nearest(name, NAMES)}")
    if name == "ray":
        return OnRay(address)
    if address is not None:
        raise ConfigError(f"--address is that of a Ray cluster; got {address!r} without Ray. Add --executor ray.")
    return Local()
