"""Stored rows as TensorBoard event files, for those who look at their runs there.

The module needs the extra ``tracking``; nothing else in FedReach does.
"""

from pathlib import Path

import numpy as np

from fedreach.arrays import Floats
from fedreach.errors import ConfigError
from fedreach.report.values import Comparison, Run

GROUPS = ("id", "unseen", "test", "participation_gap", "bytes", "seconds", "joules")


def write_events(comparison: Comparison, out: Path) -> tuple[Path, ...]:
    """Write one event file per run, ``out/METHOD/seed-S/events.out.tfevents.fedreach``, and return the paths.

    Every number of every round becomes a scalar; step is the round, and wall time the seconds that the run had trained
    and evaluated by then, so that the same rows give the same bytes. ``tensorboard --logdir OUT`` shows them.

    Raises:
        ConfigError: If tensorboard is not installed.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError as error:
        raise ConfigError(
            "event files need tensorboard, which is not installed. Run: pip install 'fedreach[tracking]'."
        ) from error
    paths = []
    for run in comparison.runs:
        path = Path(out) / run.method.replace("/", "_") / f"seed-{run.seed}" / "events.out.tfevents.fedreach"
        path.parent.mkdir(parents=True, exist_ok=True)
        seconds = elapsed(run)
        with path.open("wb") as file:
            writer = RecordWriter(file)
            writer.write(Event(wall_time=0.0, file_version="brain.Event:2").SerializeToString())
            for row, number in enumerate(run.rounds["round"]):
                known = {name: values[row] for name, values in run.rounds.items() if np.isfinite(values[row])}
                known.pop("round")
                scalars = [Summary.Value(tag=tag_of(name), simple_value=float(value)) for name, value in known.items()]
                event = Event(wall_time=float(seconds[row]), step=int(number), summary=Summary(value=scalars))
                writer.write(event.SerializeToString())
            writer.flush()
        paths.append(path)
    return tuple(paths)


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


def elapsed(run: Run) -> Floats:
    """Return the seconds spent until the end of each round, shape (rounds,); 0 before any timing."""
    parts = [values for name, values in run.timing.items() if name.endswith("_seconds")]
    spent = np.cumsum(np.nansum(parts, axis=0)) if parts else np.zeros(0)
    timed = run.timing.get("round", np.zeros(0))
    before: Floats = np.concatenate([[0.0], spent])
    return before[np.searchsorted(timed, run.rounds["round"], side="right")]
