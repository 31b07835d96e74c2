"""Jobs of a comparison, and the executor that runs them in processes of this machine."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

from fedreach._util.errors import ConfigError, TrainingError
from fedreach._util.limits import check_processes
from fedreach._util.processes import ONE_THREAD, cores
from fedreach._util.registry import is_installed
from fedreach.evaluation.scores import is_evaluated
from fedreach.experiment.components import file_digests
from fedreach.experiment.schema import EngineSection, Experiment
from fedreach.runs.identity import DATA
from fedreach.runs.schema import RoundRow
from fedreach.runs.trackers import warn

# -------------------- The runs of a comparison, and what is known of them while it goes on


@dataclass(frozen=True, eq=False)
class Job:
    """One run of a comparison."""

    method: str
    seed: int
    folder: Path
    experiment: Experiment
    out: Path  # folder of the comparison, whose runs agree on engine and data
    setting: str = ""  # in words, where several of one method are tried

    @cached_property
    def training(self) -> str:
        """What is trained: the same for runs that differ in `method.serving` alone, of which one trains for all."""
        method = self.experiment.method.model_copy(update={"serving": None})
        return f"{self.seed} {self.experiment.model_copy(update={'method': method}).model_dump_json()}"

    @cached_property
    def begun(self) -> int:
        """Round from which it goes on, as an earlier command was interrupted there; 0 where there was none."""
        rows = self.folder / RoundRow.FILE
        return max(0, rows.read_bytes().count(b"\n") - 1) if rows.exists() else 0  # less that of round 0

    @property
    def label(self) -> str:
        """Name for people."""
        return ", ".join(filter(None, (self.method, self.setting, f"seed {self.seed}")))

    @property
    def rounds(self) -> int:
        """Length of the run."""
        return self.experiment.rounds


@dataclass
class ComparisonStatus:
    """What is known while a comparison goes on."""

    jobs: Sequence[Job]
    skipped: int = 0  # finished before this command
    running: dict[Job, int] = field(default_factory=dict)  # job -> round
    refitting: dict[Job, tuple[int, int]] = field(default_factory=dict)  # job -> round and rounds of training again
    latest: dict[Job, dict[str, float]] = field(default_factory=dict)  # last evaluation
    finished: list[Job] = field(default_factory=list)
    lengths: dict[Job, int] = field(default_factory=dict)  # rounds of runs that this command finished
    failed: dict[Job, str] = field(default_factory=dict)
    ended: Job | None = None  # the job that this message ended
    began: float = field(default_factory=time.monotonic)
    fresh_rounds: int = 0  # rounds run since then

    @property
    def rounds_left(self) -> int:
        """Rounds that are not run yet; runs that may end early are taken to be as long as others of their method."""
        over, trained = {*self.finished, *self.failed}, {job.training for job in self.finished}
        pending = {job.training: job for job in reversed(self.jobs) if job not in over and job.training not in trained}
        return sum(max(0, self._length(job) - self.running.get(job, job.begun)) for job in pending.values())

    def _length(self, job: Job) -> int:
        """Return how many rounds a run is likely to have."""
        alike = [rounds for done, rounds in self.lengths.items() if done.method == job.method]
        run_lengths = alike or [*self.lengths.values()]
        return round(fmean(run_lengths)) if run_lengths else job.rounds

    def twin(self, job: Job) -> Job | None:
        """Return a finished run whose training a job can take."""
        return next((done for done in self.finished if done.training == job.training), None)

    @property
    def seconds_left(self) -> float | None:
        """Estimate from the rounds that were run since `began`; None before the first."""
        if not self.fresh_rounds:
            return None
        return (time.monotonic() - self.began) * self.rounds_left / self.fresh_rounds


class ComparisonCallback:
    """Is told of a comparison, and does nothing; subclasses say what they do. What they raise ends the comparison."""

    def begin(self) -> None:
        """Before the first run starts; not where all are finished."""

    def update(self, status: ComparisonStatus) -> None:
        """Whenever a run has news; before the first run starts, too, if there is something to tell."""

    def planned(self, why: str) -> None:
        """After a pilot: how many seeds follow from it, in words."""


# -------------------- What an executor is: it hands out workers, processes somewhere that run one job after the other

LOG = "workers.log"
Message = dict[str, Any]
"""What a worker says, and a job that it is handed (see `fedreach.experiment.worker`)."""


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


# -------------------- Hands the jobs of a comparison to workers, and notes what these say


def run_jobs(
    executor: Executor,
    engine: EngineSection,
    waiting: Sequence[Job],
    status: ComparisonStatus,
    *,
    out: Path,
    base: Path,
    workers: int | None,
    callbacks: Sequence[ComparisonCallback],
) -> None:
    """Tell of what is finished or cannot be run, and run what waits."""
    for ended in [None, *status.failed]:
        status.ended = ended
        for callback in callbacks:
            callback.update(status)
    for empty in {out, *(job.out for job in status.jobs)} - {job.out for job in status.finished}:
        (empty / DATA).unlink(missing_ok=True)  # without results there is nothing that other data would not go with
    if waiting:
        for callback in callbacks:
            callback.begin()
        with executor.pool(engine, out, len(waiting), workers) as pool:
            Scheduler(pool, executor.tries, waiting, status, out, base).work(callbacks)


class Scheduler:
    """The workers of a comparison, and who runs what.

    They are not started yet; the first job that waits is the first to run, and is begun at most `tries` times where the
    process that runs it dies. `status` is kept up to date.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        tries: int,
        waiting: Sequence[Job],
        status: ComparisonStatus,
        out: Path,
        base: Path,
    ) -> None:
        self.alive, self.tries, self.status, self.out, self.base = list(workers), tries, status, out, base
        self.waiting = list(waiting)  # of one comparison or several
        self.files = {job: file_digests(job.experiment, base) for job in waiting}  # as they are when all begins
        self.free: list[Worker] = []
        self.busy: dict[Worker, Job] = {}
        self.deaths: Counter[Job] = Counter()
        self.warned: set[str] = set()  # trackers that failed
        self.log = out / LOG
        self.messages: queue.SimpleQueue[tuple[Worker, Message]] = queue.SimpleQueue()

    def work(self, callbacks: Sequence[ComparisonCallback]) -> None:
        """Run all jobs; where that is interrupted, those that run write their checkpoints."""
        self.status.began, self.status.fresh_rounds = time.monotonic(), 0  # those of a pilot took other seconds
        started: list[Worker] = []
        try:
            for worker in self.alive:
                started.append(worker)
                self._start(worker)
            while self.waiting or self.busy:
                self.status.ended = None
                self._take_in(*self.messages.get())
                while self.free and (job := self._next()) is not None:
                    self._hand_out(self.free.pop(0), job)
                if self.status.ended or self.status.running:
                    for callback in callbacks:
                        callback.update(self.status)
        finally:
            for worker in started:
                worker.end()
            for worker in started:
                worker.wait()

    def _start(self, worker: Worker) -> None:
        def on_message(message: Message) -> None:
            self.messages.put((worker, message))

        worker.start(on_message)

    def _next(self) -> Job | None:
        """Return the first job whose training is not under way already: then it is waited for."""
        under_way = {job.training for job in self.busy.values()} - {job.training for job in self.status.finished}
        return next((job for job in self.waiting if job.training not in under_way), None)

    def _hand_out(self, worker: Worker, job: Job) -> None:
        self.waiting.remove(job)
        self.busy[worker] = job
        self.status.running[job] = job.begun
        twin = self.status.twin(job)
        worker.send(
            {
                "method": job.method,
                "seed": job.seed,
                "folder": str(job.folder),
                "twin": None if twin is None else str(twin.folder),
                "out": str(job.out),
                "base": str(self.base),
                "config": job.experiment.model_dump(mode="json"),
                "files": self.files[job],
            }
        )

    def _take_in(self, worker: Worker, message: Message) -> None:
        if "refused" in message:
            raise ConfigError(message["refused"])
        if "ready" in message:
            self.free.append(worker)
        elif "died" in message:
            self._replace(worker, message["died"])
        elif "warning" in message:
            if message["tracker"] not in self.warned:  # what ails one mostly ails all runs
                warn(message["tracker"], message["warning"])
            self.warned.add(message["tracker"])
        elif "refit_round" in message:
            self.status.refitting[self.busy[worker]] = message["refit_round"], message["refit_rounds"]
        elif "ended" in message:
            self._end(self.busy.pop(worker), message.get("error"))
            self.free.append(worker)
        else:
            job = self.busy[worker]
            self.status.fresh_rounds += 1
            self.status.running[job] = message["round"]
            if is_evaluated(message):
                self.status.latest[job] = message

    def _end(self, job: Job, error: str | None) -> None:
        if error is None:
            self.status.finished.append(job)
            self.status.lengths[job] = self.status.running[job]
        else:
            self.status.failed[job] = error
        del self.status.running[job]
        self.status.refitting.pop(job, None)
        self.status.ended = job

    def _replace(self, worker: Worker, cause: str) -> None:
        """Start a worker again whose process died, and have its job tried again where it is not the job's fault."""
        job = self.busy.pop(worker, None)
        if job is None:  # no job will be missed; and what dies before it does anything would die for ever
            self.alive.remove(worker)
            self.free = [free_worker for free_worker in self.free if free_worker is not worker]
            if not self.alive:
                raise TrainingError(f"No worker is left: the process of the last one died ({cause}){self._hint()}.")
            return
        self.deaths[job] += 1
        if self.deaths[job] < self.tries:
            with self.log.open("a", encoding="utf-8") as log:
                log.write(f"{job.label}: its process died ({cause}); it goes on from its last checkpoint.\n")
            del self.status.running[job]
            self.status.refitting.pop(job, None)
            self.waiting.insert(0, job)
        else:
            often = f", as in all {self.tries} tries" if self.tries > 1 else ""
            self._end(job, f"its process died ({cause}{often}){self._hint()}")
        self._start(worker)

    def _hint(self) -> str:
        return f"; {self.log} may say why" if self.log.exists() and self.log.stat().st_size else ""


# -------------------- Workers on this machine: processes that are spoken to by JSON lines

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
    user_paths = [str(Path(place).resolve()) for place in sys.path if not is_installed(place)]
    places = [place for place in dict.fromkeys(user_paths) if Path(place).is_dir()]
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
    """One process, see `fedreach.experiment.worker`.

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
                [sys.executable, "-P", "-m", "fedreach.experiment.worker"],
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
