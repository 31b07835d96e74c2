"""Hands the jobs of a comparison to workers, and notes what these say."""

import queue
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fedreach.config.sections import EngineSection
from fedreach.config.user_code import file_digests
from fedreach.errors import ConfigError, TrainingError
from fedreach.evidence.scores import is_evaluated
from fedreach.experiments.executors.base import LOG, Executor, Message, Worker
from fedreach.experiments.jobs import ComparisonCallback, ComparisonStatus, Job
from fedreach.runs.identity import DATA
from fedreach.runs.trackers.tracked import warn


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
            self.free = [other for other in self.free if other is not worker]
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
