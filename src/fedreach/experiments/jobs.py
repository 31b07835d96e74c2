"""The runs of a comparison, and what is known of them while it goes on."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedreach.config.sections import Experiment


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
class ComparisonStatus:
    """What is known while a comparison goes on."""

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


class ComparisonCallback:
    """Is told of a comparison, and does nothing; subclasses say what they do. What they raise ends the comparison."""

    def begin(self) -> None:
        """Before the first run starts; not where all are finished."""

    def update(self, status: ComparisonStatus) -> None:
        """Whenever a run has news; before the first run starts, too, if there is something to tell."""
