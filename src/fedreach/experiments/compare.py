"""Many runs: methods x seeds in parallel processes, resumed where they stopped, never repeated once done."""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedreach.errors import ConfigError, RunFolderError
from fedreach.experiments.config import Experiment
from fedreach.experiments.folder import RunFolder
from fedreach.experiments.identity import OtherExperimentError, finished, identity
from fedreach.experiments.machine import cores


@dataclass(frozen=True, eq=False)
class Job:
    """One run of a comparison."""

    method: str
    seed: int
    folder: Path
    experiment: Experiment

    @property
    def label(self) -> str:
        """Name for people."""
        return f"{self.method}, seed {self.seed}"

    @property
    def rounds(self) -> int:
        """Length of the run."""
        return self.experiment.rounds


@dataclass
class Told:
    """What is known while a comparison goes on; handed to `tell` after every message."""

    jobs: Sequence[Job]
    skipped: int = 0  # finished before this command
    running: dict[Job, int] = field(default_factory=dict)  # job -> round
    latest: dict[Job, dict[str, float]] = field(default_factory=dict)  # last evaluation
    finished: list[Job] = field(default_factory=list)
    failed: dict[Job, str] = field(default_factory=dict)
    ended: Job | None = None  # the job that this message ended
    began: float = field(default_factory=time.monotonic)
    fresh_rounds: int = 0  # rounds run by this command

    @property
    def rounds_left(self) -> int:
        """Rounds that are not run yet."""
        over = {*self.finished, *self.failed}
        return sum(job.rounds - self.running.get(job, 0) for job in self.jobs if job not in over)

    @property
    def seconds_left(self) -> float | None:
        """Estimate from the rounds of this command; None before the first."""
        if not self.fresh_rounds:
            return None
        return (time.monotonic() - self.began) * self.rounds_left / self.fresh_rounds


def plan(experiment: Experiment, out: Path) -> list[Job]:
    """Return the runs of a comparison, all methods of one seed before the next seed."""
    if not experiment.methods:
        raise ConfigError(
            "There is nothing to compare: the experiment has no [methods.NAME] table. Use `fedreach run`."
        )
    jobs = []
    for seed in experiment.seeds:
        for method in experiment.methods:
            folder = out / "runs" / method / f"seed-{seed}"
            jobs.append(Job(method, seed, folder, experiment.resolved(method)))
    return jobs


def compare(
    experiment: Experiment,
    *,
    out: Path,
    base: Path,
    workers: int | None = None,
    begin: Callable[[], None] = lambda: None,
    tell: Callable[[Told], None] = lambda told: None,
) -> Told:
    """Run all methods with all seeds; results do not depend on the number of workers.

    Args:
        experiment: With its methods.
        out: Folder of the comparison.
        base: Folder that paths in the experiment are relative to.
        workers: Processes at a time; None takes the cores, divided by ``engine.threads`` where that is set.
        begin: Called once before the first run starts, and not where all are finished.
        tell: Called whenever a run has news.

    Returns:
        What finished and what failed. A failing run does not stop the others.

    Raises:
        RunFolderError: If `out` holds another comparison, or another process writes to it. Nothing is changed then.
    """
    told = Told(plan(experiment, out))
    with RunFolder(out).locked():
        waiting = _skip_finished(told, base)
        RunFolder(out).write_json(
            "comparison.json",
            {
                "name": experiment.name,
                "baseline": experiment.baseline or next(iter(experiment.methods)),
                "target_accuracy": experiment.target_accuracy,
                "methods": list(experiment.methods),
                "seeds": list(experiment.seeds),
                "runs": _runs(told.jobs, out),
                "config": experiment.model_dump(mode="json"),
            },
        )
        for job in [None, *told.failed]:
            told.ended = job
            tell(told)
        if waiting:
            begin()
            size = min(workers or max(1, cores() // (experiment.engine.threads or 1)), len(waiting))
            threads = max(1, cores() // size)  # where the experiment does not say
            log = out / "workers.log"
            _run_all(waiting[::-1], told, [_Worker(base, log, threads) for _ in range(size)], tell)
            if not log.stat().st_size:
                log.unlink()
    return told


def _skip_finished(told: Told, base: Path) -> list[Job]:
    """Return the jobs that are to be run; note those that are finished and those whose folder cannot be used."""
    waiting = []
    for job in told.jobs:
        try:
            done = finished(RunFolder(job.folder), identity(job.experiment, job.seed, job.method, base))
        except OtherExperimentError:
            raise
        except RunFolderError as error:
            told.failed[job] = str(error)
            continue
        if done is None:
            waiting.append(job)
        else:
            told.finished.append(job)
    told.skipped = len(told.finished)
    return waiting


def _run_all(waiting: list[Job], told: Told, pool: Sequence[_Worker], tell: Callable[[Told], None]) -> None:
    """Run the jobs, the last one first."""
    messages: queue.Queue[tuple[_Worker, dict[str, Any] | None]] = queue.Queue()
    told.began = time.monotonic()
    try:
        for worker in pool:
            worker.start(messages)
            _hand_out(worker, waiting, told)
        while told.running:
            worker, message = messages.get()
            told.ended = None
            _take_in(worker, message, told, messages)
            tell(told)
            if worker.job is None:
                _hand_out(worker, waiting, told)
    finally:
        for worker in pool:
            worker.end()
        for worker in pool:
            worker.wait()


def _runs(jobs: Sequence[Job], out: Path) -> dict[str, dict[str, str]]:
    runs: dict[str, dict[str, str]] = {}
    for job in jobs:
        runs.setdefault(job.method, {})[str(job.seed)] = job.folder.relative_to(out).as_posix()
    return runs


def _hand_out(worker: _Worker, waiting: list[Job], told: Told) -> None:
    if waiting:
        worker.job = waiting.pop()
        told.running[worker.job] = 0
        worker.send(worker.job)


def _take_in(
    worker: _Worker,
    message: dict[str, Any] | None,
    told: Told,
    messages: queue.Queue[tuple[_Worker, dict[str, Any] | None]],
) -> None:
    """Note a message; None means that the worker's output ended, which it only does when the process died."""
    job = worker.job
    if job is None:
        return
    if message is None:
        code = worker.process.wait()
        cause = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        said = f"; {worker.log} may say why" if worker.log.stat().st_size else ""
        message = {"ended": "failed", "error": f"its process died ({cause}){said}"}
        worker.start(messages)
    if "ended" not in message:
        told.fresh_rounds += 1
        told.running[job] = message["round"]
        if "id_accuracy" in message:
            told.latest[job] = message
        return
    if message["ended"] == "failed":
        told.failed[job] = message["error"]
    else:
        told.finished.append(job)
    del told.running[job]
    told.ended, worker.job = job, None


class _Worker:
    """One process; see `fedreach.experiments.worker`."""

    def __init__(self, base: Path, log: Path, threads: int) -> None:
        self.base, self.log, self.threads = base, log, threads
        self.job: Job | None = None
        self.process: subprocess.Popen[str]

    def start(self, messages: queue.Queue[tuple[_Worker, dict[str, Any] | None]]) -> None:
        # A session of its own: Ctrl-C reaches the comparison only, which passes it on once.
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fedreach.experiments.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                bufsize=1,
                start_new_session=True,
            )
        threading.Thread(target=self._listen, args=(self.process, messages), daemon=True).start()

    def _listen(
        self, process: subprocess.Popen[str], messages: queue.Queue[tuple[_Worker, dict[str, Any] | None]]
    ) -> None:
        assert process.stdout is not None  # opened as a pipe
        with process.stdout as lines:
            for line in lines:
                if line.endswith("\n"):  # else the process was killed as it wrote
                    messages.put((self, json.loads(line)))
        messages.put((self, None))

    def send(self, job: Job) -> None:
        assert self.process.stdin is not None  # opened as a pipe
        request = {
            "method": job.method,
            "seed": job.seed,
            "folder": str(job.folder),
            "base": str(self.base),
            "threads": self.threads,
            "config": job.experiment.model_dump(mode="json"),
        }
        with contextlib.suppress(BrokenPipeError):  # a process that died is noticed where its output ends
            self.process.stdin.write(json.dumps(request) + "\n")

    def end(self) -> None:
        """Tell the process to end; one that is in a run first writes its checkpoint."""
        if hasattr(self, "process"):
            assert self.process.stdin is not None  # opened as a pipe
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()

    def wait(self) -> None:
        """Wait for the end, and force it where it does not come."""
        if hasattr(self, "process"):
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
