"""Workers on this machine: processes that are spoken to by JSON lines."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedreach.config.sections import EngineSection
from fedreach.experiments.executors.base import LOG, Message
from fedreach.forks import cores
from fedreach.limits import check_processes
from fedreach.registry import is_installed
from fedreach.threads import ONE_THREAD

PROCESS_BYTES = 10**8  # that a worker takes at least: torch alone


@dataclass(frozen=True)
class Local:
    """Processes of this machine, as many as it has cores divided by ``engine.threads``.

    A job whose process dies is not tried again: on one's own machine that is mostly for want of memory, and would
    happen again.
    """

    tries: int = 1

    @contextlib.contextmanager
    def pool(self, engine: EngineSection, out: Path, jobs: int, workers: int | None) -> Iterator[list[Process]]:
        size = min(workers or max(1, cores() // (engine.threads or 1)), jobs)
        check_processes("workers", size, PROCESS_BYTES)
        threads = max(1, cores() // size)  # where the experiment does not say
        with tidy_log(out):
            yield [Process(out / LOG, threads, search_path()) for _ in range(size)]


def search_path() -> dict[str, str]:
    """Return the environment in which another Python finds the modules that this one finds.

    A script's own folder is one of the places: what it imports from beside it stands in experiments as ``module:NAME``.
    """
    own = [str(Path(place).resolve()) for place in sys.path if not is_installed(place)]
    places = [place for place in dict.fromkeys(own) if Path(place).is_dir()]
    return {"PYTHONPATH": os.pathsep.join(places)} if places else {}


@contextlib.contextmanager
def tidy_log(out: Path) -> Iterator[None]:
    """Remove the workers' log in the end where nothing stands in it."""
    try:
        yield
    finally:
        log = out / LOG
        if log.exists() and not log.stat().st_size:
            log.unlink()


class Process:
    """One process, see `fedreach.experiments.executors.worker`.

    What it prints goes to `log`. It has `threads` at work in a run where the experiment does not say, and variables
    beside those of this process, whose working folder it has unless another is given.
    """

    def __init__(
        self, log: Path, threads: int, environment: Mapping[str, str] | None = None, folder: Path | None = None
    ) -> None:
        self.log, self.threads, self.environment, self.folder = log, threads, environment or {}, folder
        self.process: subprocess.Popen[str] | None = None

    def start(self, on_message: Callable[[Message], None]) -> None:
        # A session of its own: Ctrl-C reaches the comparison only, which passes it on once.
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "fedreach.experiments.executors.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                bufsize=1,
                start_new_session=True,
                env={**os.environ, **ONE_THREAD, **self.environment},
                cwd=self.folder,
            )
        on_message({"ready": True})
        threading.Thread(target=self._listen, args=(self.process, on_message), daemon=True).start()

    def _listen(self, process: subprocess.Popen[str], on_message: Callable[[Message], None]) -> None:
        assert process.stdout is not None  # opened as a pipe
        with process.stdout as lines:
            for line in lines:
                if line.endswith("\n"):  # else the process was killed as it wrote
                    on_message(json.loads(line))
        code = process.wait()
        on_message({"died": f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"})

    def send(self, job: Message) -> None:
        self._write({**job, "threads": self.threads})

    def end(self) -> None:
        if self.process is not None:
            assert self.process.stdin is not None  # opened as a pipe
            self._write(None)
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()

    def wait(self) -> None:
        if self.process is not None:
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def _write(self, message: Message | None) -> None:
        assert self.process is not None  # it was started
        assert self.process.stdin is not None  # opened as a pipe
        with contextlib.suppress(BrokenPipeError):  # a process that died is noticed where its output ends
            self.process.stdin.write(json.dumps(message) + "\n")
