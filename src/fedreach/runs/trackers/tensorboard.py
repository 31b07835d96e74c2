"""Event files for those who look at their runs in TensorBoard."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedreach.data.federated import FederatedData
from fedreach.runs.callbacks import Callback
from fedreach.runs.schema import RoundRow, RunRecord, Timing
from fedreach.runs.trackers.base import Clock, need, numbers, seconds

GROUPS = ("id", "unseen", "test", "participation_gap", "bytes", "seconds", "joules")
FILE = "events.out.tfevents.{began:010.0f}.fedreach"


@dataclass
class TensorBoard(Callback):
    """Writes an event file into the run folder; ``tensorboard --logdir runs`` shows all runs in a folder as they go on.

    Every number of a round is a scalar, and the round its step. Its wall time is when the run began, or was gone on
    with, and after that the seconds that were trained and evaluated by then.

    When: runs are looked at while they go on, side by side.
    """

    clock: Clock = field(init=False, repr=False, default_factory=Clock)
    file: Any = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        need("tensorboard", "tensorboard")

    def begin(self, run: RunRecord, data: FederatedData | None, engine: str, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of tensorboard's own imports
            from tensorboard.compat.proto.event_pb2 import Event, SessionLog
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.record_writer import RecordWriter

        self.seconds = (folder / RunRecord.FILE).stat().st_mtime  # the same where it is told again later
        for old in folder.glob(FILE.replace("{began:010.0f}", "*")):
            old.unlink()  # its rounds are told again
        self.event, self.summary = Event, Summary
        self.file = (folder / FILE.format(began=self.seconds)).open("wb")
        self.writer = RecordWriter(self.file)
        self._write(file_version="brain.Event:2")
        self._write(session_log=SessionLog(status=SessionLog.START))  # who has read the older file forgets it

    def round(self, row: RoundRow, timing: Timing, lost: Mapping[int, str]) -> None:
        self.seconds += seconds(timing)
        found = numbers(row, timing).items()
        scalars = [self.summary.Value(tag=tag_of(key), simple_value=float(value)) for key, value in found]
        self._write(step=row.round, summary=self.summary(value=scalars))
        if self.clock.is_due():
            self.file.flush()

    def close(self, error: BaseException | None) -> None:
        if self.file is not None:
            self.file.close()

    def _write(self, **content: Any) -> None:
        self.writer.write(self.event(wall_time=self.seconds, **content).SerializeToString())


def tag_of(column: str) -> str:
    """Return the TensorBoard tag of a column: what belongs together comes under one heading.

    Example:
        >>> tag_of("unseen_accuracy_p10"), tag_of("train_loss")
        ('unseen/accuracy_p10', 'train_loss')
    """
    for group in GROUPS:
        if column.startswith(f"{group}_"):
            return f"{group}/{column.removeprefix(f'{group}_')}"
    return column
