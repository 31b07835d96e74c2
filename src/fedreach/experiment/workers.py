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

from fedreach._util.errors import ConfigError, FedReachError, TrainingError
from fedreach._util.processes import ONE_THREAD, cores
from fedreach._util.registry import is_installed
from fedreach.evaluation.scores import is_evaluated
from fedreach.experiment.components import file_digests
from fedreach.experiment.schema import EngineSection, Experiment
from fedreach.federation.types import Equal
from fedreach.runs.folder import RunFolder
from fedreach.runs.identity import DATA
from fedreach.runs.schema import Result, RoundRow
from fedreach.runs.trackers import warn

# -------------------- The runs of a comparison and their status


@dataclass(frozen=True, eq=False)
class Job:
    """One run of a comparison."""

    method: str
    seed: int
    folder: Path
    experiment: Experiment
    out: Path  # folder of the comparison, whose runs agree on engine and data
    setting: str = ""  # in words, if several settings of a method are tried
    source: Job | None = None  # run of the method whose cohorts this run's cohorts equal

    @cached_property
    def training(self) -> str:
        """Key of the training. Runs with the same key differ only in `method.adaptation` and share one training."""
        method = self.experiment.method.model_copy(update={"adaptation": None})
        key = f"{self.seed} {self.experiment.model_copy(update={'method': method}).model_dump_json()}"
        return key if self.source is None else f"{key} {self.source.training}"

    def with_amounts(self) -> Experiment:
        """Return the experiment to run: cohort sizes that another method decides are those of its finished run.

        Raises:
            ConfigError: If that run did not finish, or has fewer rounds.
        """
        if self.source is None:
            return self.experiment
        method, rows = self.experiment.method, RunFolder(self.source.folder).kept_rows(RoundRow.FILE)[1:]
        result = RunFolder(self.source.folder).read(Result)
        is_finished = result is not None and result.status == "finished"
        if not is_finished or len(rows) < self.rounds:
            what = f"has {len(rows)} rounds" if is_finished else "did not finish"
            raise ConfigError(
                f"methods.{self.method}.cohort_size: needs {self.rounds} rounds of {self.source.label}, which {what}. "
                "Let that run finish all rounds, or use a number."
            )
        assert method.schedule is not None  # because of `source`
        assert not isinstance(method.cohort_size, int)  # likewise
        amounts = [_amount(row, method.schedule.equal) for row in rows[: self.rounds]]
        size = method.cohort_size.model_copy(update={"amounts": amounts})
        return self.experiment.model_copy(update={"method": method.model_copy(update={"cohort_size": size})})

    @cached_property
    def begun(self) -> int:
        """Round from which the run resumes after an interruption; 0 if it was not interrupted."""
        rows = self.folder / RoundRow.FILE
        return max(0, rows.read_bytes().count(b"\n") - 1) if rows.exists() else 0  # minus the row of round 0

    @property
    def label(self) -> str:
        """Readable name of the run."""
        return ", ".join(filter(None, (self.method, self.setting, f"seed {self.seed}")))

    @property
    def rounds(self) -> int:
        """Number of rounds of the run."""
        return self.experiment.rounds


def _amount(row: Mapping[str, Any], equal: Equal) -> Any:
    """Return the amount of a round that the cohort of another method should equal (see `CohortSchedule`)."""
    clients = sorted([*row["cohort"], *row["lost"]])
    if equal in ("clients", "examples"):
        return clients if equal == "examples" else len(clients)
    return row["bytes_down"] + row["bytes_up"] if equal == "bytes" else row[equal]


@dataclass
class ComparisonStatus:
    """The status of a comparison in progress."""

    jobs: Sequence[Job]
    skipped: int = 0  # finished before this command
    running: dict[Job, int] = field(default_factory=dict)  # job -> round
    refitting: dict[Job, tuple[int, int]] = field(default_factory=dict)  # job -> round and rounds of its refit
    latest: dict[Job, dict[str, float]] = field(default_factory=dict)  # last evaluation
    finished: list[Job] = field(default_factory=list)
    lengths: dict[Job, int] = field(default_factory=dict)  # rounds of runs that this command finished
    failed: dict[Job, str] = field(default_factory=dict)
    ended: Job | None = None  # the job that this message ended
    began: float = field(default_factory=time.monotonic)
    fresh_rounds: int = 0  # rounds run since then

    @property
    def rounds_left(self) -> int:
        """Remaining rounds, assuming that runs that may end early are as long as other runs of their method."""
        over, trained = {*self.finished, *self.failed}, {job.training for job in self.finished}
        pending = {job.training: job for job in reversed(self.jobs) if job not in over and job.training not in trained}
        return sum(max(0, self._length(job) - self.running.get(job, job.begun)) for job in pending.values())

    def _length(self, job: Job) -> int:
        """Return how many rounds a run is likely to have."""
        alike = [rounds for done, rounds in self.lengths.items() if done.method == job.method]
        run_lengths = alike or [*self.lengths.values()]
        return round(fmean(run_lengths)) if run_lengths else job.rounds

    def twin(self, job: Job) -> Job | None:
        """Return a finished run whose training a job can reuse."""
        return next((done for done in self.finished if done.training == job.training), None)

    @property
    def seconds_left(self) -> float | None:
        """Estimated remaining seconds, from the rounds since `began`; None before the first round."""
        if not self.fresh_rounds:
            return None
        return (time.monotonic() - self.began) * self.rounds_left / self.fresh_rounds


class ComparisonCallback:
    """Base class of a comparison's callbacks, whose methods do nothing; an exception in them ends the comparison."""

    def begin(self) -> None:
        """Called before the first run starts, unless all runs are finished."""

    def update(self, status: ComparisonStatus) -> None:
        """Called after each message of a run, and before the first run for finished and failed runs."""

    def planned(self, why: str) -> None:
        """Called after a pilot, with the number of seeds computed from it, as text."""


# -------------------- Executors and workers

LOG = "workers.log"
MAX_STARTS = 3  # of a job whose process dies, for example because the machine was short of memory
Message = dict[str, Any]
"""A message of a worker, or a job for it (see `fedreach.experiment.worker`)."""


class Worker(Protocol):
    """A process that runs one job after another; a worker may be started again if its process has died."""

    def start(self, on_message: Callable[[Message], None]) -> None:
        """Start the process and pass its messages to `on_message`, possibly from another thread.

        The first message is ``{"ready": true}``. A job then sends ``{"round": 3, ...}`` after every round,
        ``{"refit_round": 2, "refit_rounds": 5}`` after every round of a refit, ``{"tracker": name, "warning": text}``
        for a failing tracker, and ``{"ended": ...}``. ``{"died": cause}`` is the last message. ``{"refused": reason}``
        means that the worker cannot use this machine.
        """

    def send(self, job: Message) -> None:
        """Send a job to the process."""

    def end(self) -> None:
        """Ask the process to end; a current run first writes its checkpoint."""

    def wait(self) -> None:
        """Wait until the process ends, and kill it after a time limit."""


class Executor(Protocol):
    """Machines on which a comparison runs."""

    def pool(
        self, engine: EngineSection, out: Path, jobs: int, workers: int | None
    ) -> AbstractContextManager[Sequence[Worker]]:
        """Provide workers that see the folder `out`, at most one per job; clean up at the end.

        Raises:
            ConfigError: If no machine can run these jobs.
        """


# -------------------- Running the jobs of a comparison


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Resources for runs; results do not depend on the number of workers and on the executor.

    Args:
        out: Folder of the comparison or comparisons, which contains the workers' log.
        base: Folder that paths in the experiments are relative to.
        workers: Number of parallel processes. Default: as many as the executor's machines can run.
        executor: Executor that computes the runs. Default: this machine.
        callbacks: Callbacks that follow the progress.
    """

    out: Path
    base: Path
    workers: int | None = None
    executor: Executor | None = None
    callbacks: Sequence[ComparisonCallback] = ()


def run_jobs(engine: EngineSection, waiting: Sequence[Job], status: ComparisonStatus, resources: Resources) -> None:
    """Report finished and failed runs to the callbacks, then run the waiting jobs."""
    out, callbacks = resources.out, resources.callbacks
    for ended in [None, *status.failed]:
        status.ended = ended
        for callback in callbacks:
            callback.update(status)
    for empty in {out, *(job.out for job in status.jobs)} - {job.out for job in status.finished}:
        (empty / DATA).unlink(missing_ok=True)  # without results, the data may change
    if waiting:
        for callback in callbacks:
            callback.begin()
        with (resources.executor or Local()).pool(engine, out, len(waiting), resources.workers) as pool:
            Scheduler(pool, waiting, status, out, resources.base).work(callbacks)


class Scheduler:
    """The workers of a comparison and their jobs.

    The scheduler starts the workers, runs waiting jobs in order, and updates `status`. A job whose process dies is
    restarted from its checkpoint. It is started at most `MAX_STARTS` times.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        waiting: Sequence[Job],
        status: ComparisonStatus,
        out: Path,
        base: Path,
    ) -> None:
        self.alive, self.status, self.out, self.base = list(workers), status, out, base
        self.waiting = list(waiting)  # of one comparison or several
        self.files = {job: file_digests(job.experiment, base) for job in waiting}  # at the start
        self.free: list[Worker] = []
        self.busy: dict[Worker, Job] = {}
        self.deaths: Counter[Job] = Counter()
        self.warned: set[str] = set()  # trackers that failed
        self.log = out / LOG
        self.messages: queue.SimpleQueue[tuple[Worker, Message]] = queue.SimpleQueue()

    def work(self, callbacks: Sequence[ComparisonCallback]) -> None:
        """Run all jobs; after an interruption, current runs write their checkpoints."""
        self.status.began, self.status.fresh_rounds = time.monotonic(), 0  # without those of a pilot
        started: list[Worker] = []
        try:
            for worker in self.alive:
                self._start(worker)
                started.append(worker)
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
        """Return the first job whose source is over and whose training no other job is running; the others wait."""
        under_way = {job.training for job in self.busy.values()} - {job.training for job in self.status.finished}
        over = {None, *self.status.finished, *self.status.failed}
        return next((job for job in self.waiting if job.source in over and job.training not in under_way), None)

    def _hand_out(self, worker: Worker, job: Job) -> None:
        self.waiting.remove(job)
        self.busy[worker] = job
        self.status.running[job] = job.begun
        try:
            experiment = job.with_amounts()
        except FedReachError as error:
            self.messages.put((worker, {"ended": "failed", "error": str(error)}))
            return
        twin = self.status.twin(job)
        worker.send(
            {
                "method": job.method,
                "seed": job.seed,
                "folder": str(job.folder),
                "twin": None if twin is None else str(twin.folder),
                "out": str(job.out),
                "base": str(self.base),
                "config": experiment.model_dump(mode="json"),
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
            if message["tracker"] not in self.warned:  # a failure usually affects all runs
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
        """Restart a worker whose process died, and try its job again, up to `MAX_STARTS` times."""
        job = self.busy.pop(worker, None)
        if job is None:  # a process that dies without a job would die again
            self.alive.remove(worker)
            self.free = [free_worker for free_worker in self.free if free_worker is not worker]
            if not self.alive:
                raise TrainingError(f"No worker is left: the process of the last worker died ({cause}){self._hint()}.")
            return
        self.deaths[job] += 1
        if self.deaths[job] < MAX_STARTS:
            with self.log.open("a", encoding="utf-8") as log:
                log.write(f"{job.label}: its process died ({cause}); FedReach resumes it from its last checkpoint.\n")
            del self.status.running[job]
            self.status.refitting.pop(job, None)
            self.waiting.insert(0, job)
        else:
            self._end(job, f"its process died ({cause}, as in all {MAX_STARTS} tries){self._hint()}")
        self._start(worker)

    def _hint(self) -> str:
        return f"; see {self.log}" if self.log.exists() and self.log.stat().st_size else ""


# -------------------- Workers on this machine, which exchange JSON lines


@dataclass(frozen=True)
class Local:
    """Processes on this machine; their default number is the number of cores divided by ``engine.threads``."""

    @contextlib.contextmanager
    def pool(self, engine: EngineSection, out: Path, jobs: int, workers: int | None) -> Iterator[list[Process]]:
        size = min(workers or max(1, cores() // (engine.threads or 1)), jobs)
        threads = max(1, cores() // size)  # where the experiment does not say
        with tidy_log(out):
            yield [Process(out / LOG, threads, search_path()) for _ in range(size)]


def search_path() -> dict[str, str]:
    """Return an environment in which another Python process finds the same modules as this one.

    The search path includes the folder of a script, because experiments name modules in it as ``module:NAME``.
    """
    user_paths = [str(Path(place).resolve()) for place in sys.path if not is_installed(place)]
    places = [place for place in dict.fromkeys(user_paths) if Path(place).is_dir()]
    return {"PYTHONPATH": os.pathsep.join(places)} if places else {}


@contextlib.contextmanager
def tidy_log(out: Path) -> Iterator[None]:
    """Remove the workers' log at the end if it is empty."""
    try:
        yield
    finally:
        log = out / LOG
        if log.exists() and not log.stat().st_size:
            log.unlink()


class Process:
    """A worker process on this machine (see `fedreach.experiment.worker`).

    Args:
        log: File for the output of the process.
        threads: Number of threads of a run if the experiment does not set it.
        environment: Environment variables in addition to the variables of this process.
        folder: Working folder. Default: the working folder of this process.
    """

    def __init__(
        self, log: Path, threads: int, environment: Mapping[str, str] | None = None, folder: Path | None = None
    ) -> None:
        self.log, self.threads, self.environment, self.folder = log, threads, environment or {}, folder
        self.process: subprocess.Popen[str]  # once it is started

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
        assert self.process.stdin is not None  # opened as a pipe
        self._write(None)
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def wait(self) -> None:
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _write(self, message: Message | None) -> None:
        assert self.process.stdin is not None  # opened as a pipe
        with contextlib.suppress(BrokenPipeError):  # a process that died is noticed where its output ends
            self.process.stdin.write(json.dumps(message) + "\n")
