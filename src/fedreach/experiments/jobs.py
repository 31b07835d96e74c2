"""The runs of a comparison, and what is known of them while it goes on."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean

from fedreach.config.sections import Experiment
from fedreach.runs.schema import RoundRow


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
        left = {job.training: job for job in reversed(self.jobs) if job not in over and job.training not in trained}
        return sum(max(0, self._length(job) - self.running.get(job, job.begun)) for job in left.values())

    def _length(self, job: Job) -> int:
        """Return how many rounds a run is likely to have."""
        alike = [rounds for done, rounds in self.lengths.items() if done.method == job.method]
        seen = alike or [*self.lengths.values()]
        return round(fmean(seen)) if seen else job.rounds

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
