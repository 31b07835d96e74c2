"""Worker process that runs one job after another: ``python -m fedreach.experiment.worker``.

The process reads jobs from standard input and writes messages to standard output, both as JSON lines. It ends after the
line ``null``, which means that the comparison is finished or interrupted. It also ends after the end of the input,
which means that the comparison was killed. In both cases, a current run first writes its checkpoint. No worker
therefore runs longer than its comparison.
"""

import _thread
import contextlib
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedreach._util.errors import OUT_OF_MEMORY, FedReachError, of_system
from fedreach._util.files import LOCK_SECONDS
from fedreach.data.datasets import Dataset
from fedreach.data.stored import OwnData
from fedreach.evaluation.scores import main_score_of
from fedreach.experiment.build import Builder
from fedreach.experiment.run import run
from fedreach.experiment.schema import Experiment
from fedreach.experiment.workers import Message
from fedreach.runs.callbacks import Callback
from fedreach.runs.schema import RoundRow, Timing

ORPHAN_SECONDS = LOCK_SECONDS - 1.0
"""Time until a worker ends if its comparison was killed; a resuming process waits this long for the folder."""


class _Jobs:
    """The incoming jobs, read by a thread that notices the end of the input during a run."""

    def __init__(self) -> None:
        self.waiting: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.over = threading.Event()
        self.busy = False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        expected = False
        for line in sys.stdin:
            job = json.loads(line)
            if job is None:
                expected = True
                break
            self.waiting.put(job)
        self.over.set()
        if self.busy:
            _thread.interrupt_main()
        self.waiting.put(None)
        if not expected:
            time.sleep(ORPHAN_SECONDS)
            os._exit(1)  # in a long round; only work since the last checkpoint is lost

    def next(self) -> dict[str, Any] | None:
        """Return the next job, or None if the input has ended."""
        self.busy = False
        job = self.waiting.get()
        self.busy = True
        return None if self.over.is_set() else job


def main() -> None:
    """Run jobs until the input ends, which interrupts the current run."""
    # The output of user code goes to stderr, so that it cannot be mistaken for a message.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1, encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def send(message: Message) -> None:
        try:
            out.write(json.dumps(message) + "\n")
        except BrokenPipeError:
            raise KeyboardInterrupt from None  # the comparison no longer reads

    signal.signal(signal.SIGINT, _interrupt_once)
    jobs, read = _Jobs(), LastRead()
    while (job := jobs.next()) is not None:
        try:
            ended = run_job(job, Rounds(send), read)
        except KeyboardInterrupt:
            if jobs.over.is_set() or signal.getsignal(signal.SIGINT) is not _interrupt_once:
                raise
            ended = {"ended": "failed", "error": "A custom component raised KeyboardInterrupt without Ctrl-C."}
        send(ended)


@dataclass(frozen=True)
class Rounds(Callback):
    """Callback that sends each round of a job to the comparison."""

    send: Callable[[Message], None]

    def round(self, row: RoundRow, timing: Timing, lost: Mapping[int, str]) -> None:
        name = main_score_of(row.evaluated).name
        columns = [f"{population}_{name}" for population in ("participant", "unseen", "train")]
        scores = {key: row.evaluated[key] for key in columns if key in row.evaluated}
        self.send({"round": row.round, **scores})

    def refit_round(self, round_: int, rounds: int) -> None:
        self.send({"refit_round": round_, "refit_rounds": rounds})

    def warn(self, name: str, text: str) -> None:
        """Send the warning of a tracker that failed."""
        self.send({"tracker": name, "warning": text})


class LastRead:
    """Cache of the last data set, because reading it may take longer than a run.

    A user's function is called again for each job. A digest checks that the function always returns the same data.
    """

    def __init__(self) -> None:
        self.named: tuple[str, Path] | None = None
        self.dataset: Dataset | OwnData | None = None

    def __call__(self, builder: Builder) -> Dataset | OwnData:
        data = builder.experiment.data
        named = data.model_dump_json(), builder.base
        if ":" in data.name:
            return builder.dataset()
        if self.dataset is None or named != self.named:
            self.dataset = None  # frees memory before the next read
            self.dataset, self.named = builder.dataset(), named
        return self.dataset


def run_job(job: Message, rounds: Rounds, read: LastRead) -> Message:
    """Run one job and return its last message."""
    try:
        run(
            Experiment.model_validate(job["config"]),
            seed=job["seed"],
            folder=Path(job["folder"]),
            base=Path(job["base"]),
            threads=job.get("threads"),
            method=job["method"],
            agreed=Path(job["out"]),
            twin=None if job.get("twin") is None else Path(job["twin"]),
            files=job["files"],
            callbacks=[rounds],
            warn=rounds.warn,
            read=read,
        )
        return {"ended": "finished"}
    except FedReachError as error:
        return {"ended": "failed", "error": str(error)}
    except MemoryError:
        return {"ended": "failed", "error": OUT_OF_MEMORY}
    except OSError as error:
        traceback.print_exc()
        return {"ended": "failed", "error": of_system(error)}
    except Exception as error:  # a bug of FedReach: reported with its place; the other runs continue
        traceback.print_exc()
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}, line {last.lineno}, in {last.name}"
        return {"ended": "failed", "error": f"{where}: {type(error).__name__}: {error}"}


def _interrupt_once(number: int, frame: Any) -> None:
    # A second interrupt must not cut off the checkpoint that the first one leads to.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
    sys.stderr.flush()
    os._exit(0)  # an ordinary exit may fail while the reading thread waits for input
