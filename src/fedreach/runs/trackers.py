"""Experiment trackers: TensorBoard and MLflow."""

import copy
import getpass
import importlib.util
import json
import logging
import math
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from fedreach._util.errors import ConfigError, FedReachError, TrainingError, require
from fedreach._util.files import Folder
from fedreach._util.registry import is_installed
from fedreach._util.tables import visible_lines
from fedreach.data.federated import FederatedData
from fedreach.runs.callbacks import Callback, callback_lifecycle
from fedreach.runs.folder import BEST, LAST, REFIT, RunFolder, json_line
from fedreach.runs.identity import flatten
from fedreach.runs.schema import Result, RoundRow, RunRecord, Timing

# ---- Shared by trackers


def numbers(row: RoundRow, timing: Timing) -> dict[str, float]:
    """Return all numbers of a round except its index, by their keys in ``rounds.jsonl`` and ``timing.jsonl``.

    Example:
        >>> row = RoundRow(round=3, cohort=[4, 7], weights=[0.5], lost=[7], bytes_down=8, bytes_up=4,
        ...     bytes_total=36, probe_bytes=0, evaluated={"participant_accuracy": 0.5})
        >>> numbers(row, Timing(round=3, train_seconds=0.25))
        {'bytes_down': 8, 'bytes_up': 4, 'bytes_total': 36, 'probe_bytes': 0, 'participant_accuracy': 0.5, 'clients': 2,
        'lost': 1, 'train_seconds': 0.25}
    """
    columns = {key: value for key, value in row.to_json().items() if type(value) in (int, float) and key != "round"}
    columns |= {"clients": len(row.cohort), "lost": len(row.lost)}
    spent = {"train_seconds": timing.train_seconds, "evaluate_seconds": timing.evaluate_seconds}
    return columns | {key: value for key, value in spent.items() if value is not None}


def seconds(timing: Timing) -> float:
    """Return the known parts of the duration of a round."""
    return (timing.train_seconds or 0.0) + (timing.evaluate_seconds or 0.0)


def require_package(module: str, what: str) -> None:
    """Reject a tracker whose package is not installed.

    Raises:
        ConfigError: If the package is missing.
    """
    if importlib.util.find_spec(module) is None:
        raise ConfigError(f"{what} is not installed. Run: pip install 'fedreach[tracking]'.")


# ---- The trackers of a run: they get all rounds and cannot disturb the run

OURS = Path(__file__).parents[2]  # the package


class NamedTracker(NamedTuple):
    """A tracker and its name in the experiment."""

    name: str
    tracker: Callback


Warn = Callable[[str, str], object]
"""Function that receives the name of a failed tracker and a warning."""


def warn(name: str, text: str) -> None:
    """Print a warning about a tracker on stderr."""
    print(f"warning: {visible_lines(text)}", file=sys.stderr, flush=True)


class TrackerGroup(Callback):
    """Callback that passes the stored rounds of a run, and then its new events, to trackers.

    If a tracker raises any error except Ctrl-C, `warn` reports one warning. The tracker is closed and receives no more
    events. Trackers receive copies of the stored rows.
    """

    def __init__(self, trackers: Sequence[NamedTracker], folder: RunFolder, warn: Warn = warn) -> None:
        self.trackers, self.folder, self.warn = trackers, folder, warn
        self.caught_up = False

    def begin(self, run: RunRecord, data: FederatedData | None, engine: str, folder: Path) -> None:
        for named in self.trackers:
            self._call(named, "begin", copy.deepcopy(run), data, engine, folder)

    def round(self, row: RoundRow, timing: Timing, lost: Mapping[int, str]) -> None:
        self._catch_up(row.round)
        self._pass_round(json_line(row.to_json()) if self.trackers else "", timing, lost)

    def end(self, result: Result) -> None:
        self._catch_up()
        for named in self.trackers:
            self._call(named, "end", result)

    def close(self, error: BaseException | None) -> None:
        self._catch_up()
        for named in self.trackers:
            self._call(named, "close", error)
        self.trackers = []

    def _catch_up(self, before: float = math.inf) -> None:
        """Pass on the rounds of earlier commands, once."""
        if self.caught_up:
            return
        self.caught_up = True
        try:
            lines = self.folder.kept_text(RoundRow.FILE).splitlines() if self.trackers else []
            timings = {timing.round: timing for timing in self.folder.timing(len(lines) - 1)} if lines else {}
        except FedReachError as error:
            for named in self.trackers:
                self._leave_out(named, "the records of earlier rounds", error)
            return
        for number, line in enumerate(lines):
            if number < before:
                lost = dict.fromkeys(json.loads(line)["lost"], "")
                self._pass_round(line, timings.get(number, Timing(round=number)), lost)

    def _pass_round(self, line: str, timing: Timing, lost: Mapping[int, str]) -> None:
        for named in self.trackers:
            row = RoundRow.of_json(json.loads(line))  # a copy for each tracker, which may change it
            self._call(named, "round", row, timing, dict(lost))

    def _call(self, named: NamedTracker, method: str, *arguments: Any) -> None:
        try:
            getattr(named.tracker, method)(*arguments)
        except (Exception, SystemExit) as error:
            self._leave_out(named, f"`{method}`", error)
            if method != "close":
                with suppress(Exception, SystemExit):
                    named.tracker.close(error)

    def _leave_out(self, named: NamedTracker, where: str, error: BaseException) -> None:
        self.trackers = [tracker for tracker in self.trackers if tracker is not named]
        self.warn(
            named.name,
            f"tracker {named.name!r} failed in {where}: {_describe_error(error)}. The run continues without this "
            f"tracker, with the same numbers. Fix the error, then run `fedreach report {self.folder.path} --track "
            f"{named.name}` to send the complete run to the tracker.",
        )


def _describe_error(error: BaseException) -> str:
    """Describe an error, with its last place outside of installed packages."""
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [f for f in frames if not (is_installed(f.filename) or Path(f.filename).is_relative_to(OURS))]
    message = f"{error}".partition("\n")[0].rstrip(".")
    place = f" ({Path(user_frames[-1].filename).name}, line {user_frames[-1].lineno})" if user_frames else ""
    return type(error).__name__ + (f": {message}" if message else "") + place


def replay_run(folder: RunFolder, trackers: Sequence[NamedTracker], warn: Warn = warn) -> None:
    """Pass the stored run in a folder to trackers.

    Raises:
        RunFolderError: If the folder contains no run, or another process is running it.
    """
    with folder.locked():
        run, result = folder.required(RunRecord), folder.read(Result)
        tracked = TrackerGroup(trackers, folder, warn)
        with suppress(TrainingError), callback_lifecycle([tracked], run, None, "as it was recorded", folder.path):
            if result is not None and result.status == "finished":
                tracked.end(result)
            else:
                raise TrainingError("the run has not finished" if result is None else f"{result.error}")


# ---- TensorBoard: event files

GROUPS = ("participant", "unseen", "test", "participation_gap", "bytes", "seconds", "joules")
EVENTS_FILE = "events.out.tfevents.{began:010.0f}.fedreach"


@dataclass
class TensorBoard(Callback):
    """TensorBoard tracker, which writes an event file into the run folder.

    ``tensorboard --logdir runs`` shows all runs in a folder live. Every number of a round is a scalar, with the round
    as step. Its wall time is the start of the run, or of the resumed run, plus the seconds of training and evaluation.

    Use when: you compare runs while they are running.
    """

    file: Any = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        require_package("tensorboard", "tensorboard")

    def begin(self, run: RunRecord, data: FederatedData | None, engine: str, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of tensorboard's own imports
            from tensorboard.compat.proto.event_pb2 import Event, SessionLog
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.record_writer import RecordWriter

        self.seconds = (folder / RunRecord.FILE).stat().st_mtime  # the same when the run is sent again later
        for old in folder.glob(EVENTS_FILE.replace("{began:010.0f}", "*")):
            old.unlink()  # its rounds are sent again
        self.event, self.summary = Event, Summary
        self.file = (folder / EVENTS_FILE.format(began=self.seconds)).open("wb")
        self.writer = RecordWriter(self.file)
        self._write(file_version="brain.Event:2")
        self._write(session_log=SessionLog(status=SessionLog.START))  # readers drop the older file

    def round(self, row: RoundRow, timing: Timing, lost: Mapping[int, str]) -> None:
        self.seconds += seconds(timing)
        columns = numbers(row, timing).items()
        scalars = [self.summary.Value(tag=tag_of(key), simple_value=float(value)) for key, value in columns]
        self._write(step=row.round, summary=self.summary(value=scalars))
        self.file.flush()

    def close(self, error: BaseException | None) -> None:
        if self.file is not None:
            self.file.close()

    def _write(self, **content: Any) -> None:
        self.writer.write(self.event(wall_time=self.seconds, **content).SerializeToString())


def tag_of(column: str) -> str:
    """Return the TensorBoard tag of a column; related columns share a group.

    Example:
        >>> tag_of("unseen_accuracy_p10"), tag_of("train_loss")
        ('unseen/accuracy_p10', 'train_loss')
    """
    for group in GROUPS:
        if column.startswith(f"{group}_"):
            return f"{group}/{column.removeprefix(f'{group}_')}"
    return column


# ---- MLflow: settings, rounds and models

MLFLOW_NOTE = "mlflow.json"  # in the run folder: id of the MLflow run
EVERY_SECONDS = 1.0  # between writes; a resumed run sends rounds that were not written again
MAX_LOGGED_ROUNDS = 1000  # in addition to evaluated rounds
AT_ONCE = 1000  # numbers that MLflow accepts in one call
PARAMS_AT_ONCE, LONGEST_PARAM = 100, 6000  # parameters in one call; characters
STORE_SECONDS = 60.0  # that another process may need to create a store
SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # off, because users did not ask for it
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # MLflow's own 7 and 120 s would hold a run up for minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
"""Environment variables of MLflow that FedReach sets unless the user has set them."""


@dataclass
class MLflow(Callback):
    """MLflow tracker: settings as parameters, numbers of rounds as metrics, models and result as artifacts.

    The MLflow run has tags with method, seed, id and git revision. A resumed run continues the same MLflow run. The
    store is MLFLOW_TRACKING_URI, as usual in MLflow. If this variable is not set, the store is ``mlflow.db`` in the
    current folder, which ``mlflow ui`` shows.

    Use when: you have an MLflow server, or collect many experiments in one place.

    Args:
        uri: Store to use instead of MLFLOW_TRACKING_URI. ``run.json`` contains it, so put passwords into
            MLFLOW_TRACKING_PASSWORD.
        experiment: Name of the MLflow experiment. Default: the experiment's name.
        models: Upload the last and the best model.
        every: Number of rounds per logged round; evaluated rounds are always logged. Default: all rounds if there are
            fewer than 2000, else about 1000, because a local store needs 0.1 ms per number.
    """

    uri: str | None = None
    experiment: str | None = None
    models: bool = True
    every: int | None = None
    waiting: list[Any] = field(init=False, repr=False, default_factory=list)
    known: dict[str, int] = field(init=False, repr=False, default_factory=dict)
    run: str = field(init=False, repr=False, default="")

    def __post_init__(self) -> None:
        require_package("mlflow", "mlflow-skinny")
        require(self, every="[1, inf)")

    def begin(self, run: RunRecord, data: FederatedData | None, engine: str, folder: Path) -> None:
        self.folder, self.waiting, self.known, self.run = folder, [], {}, ""
        self.written = -EVERY_SECONDS
        self.step = self.every or max(1, int(run.config.get("rounds", 0)) // MAX_LOGGED_ROUNDS)
        self.seconds = (folder / RunRecord.FILE).stat().st_mtime
        with _quiet_mlflow():
            from mlflow import MlflowClient, get_tracking_uri
            from mlflow.entities import Metric

            uri = self.uri or get_tracking_uri()
            with _store_lock(uri):
                self.client, self.metric = MlflowClient(tracking_uri=uri), Metric
                self._open(run, uri)

    def round(self, row: RoundRow, timing: Timing, lost: Mapping[int, str]) -> None:
        self.seconds += seconds(timing)
        if row.round % self.step and not row.evaluated:
            return
        at = round(1000 * self.seconds)
        self.waiting += [
            self.metric(key, float(value), at, row.round)
            for key, value in numbers(row, timing).items()
            if row.round > self.known.get(key, -1)
        ]
        if len(self.waiting) >= AT_ONCE or time.monotonic() - self.written >= EVERY_SECONDS:
            self._write()

    def end(self, result: Result) -> None:
        self._write()
        self.client.set_tag(self.run, "fedreach.best_round", str(result.best_round))
        for name in (Result.FILE, RunRecord.FILE, *((LAST, BEST, REFIT) if self.models else ())):
            if (self.folder / name).exists():
                self.client.log_artifact(self.run, str(self.folder / name))

    def close(self, error: BaseException | None) -> None:
        if not self.run:
            return
        self._write()
        if isinstance(error, Exception):
            self.client.set_tag(self.run, "fedreach.error", f"{error}"[:LONGEST_PARAM])
        status = "FINISHED" if error is None else "FAILED" if isinstance(error, Exception) else "KILLED"
        self.client.set_terminated(self.run, status)

    def _write(self) -> None:
        self.written = time.monotonic()
        while batch := self.waiting[:AT_ONCE]:
            self.client.log_batch(self.run, metrics=batch)
            self.waiting = self.waiting[AT_ONCE:]

    def _open(self, run: RunRecord, uri: str) -> None:
        """Resume the MLflow run of this folder, or create one."""
        from mlflow.entities import Param

        note, params = self.folder / MLFLOW_NOTE, _params(run)
        identity = {"of": run.id, "uri": uri}
        stored = json.loads(note.read_text("utf-8")) if note.exists() else {}
        mlflow_run = self._find_run(stored["run"]) if identity.items() <= stored.items() else None
        if mlflow_run is not None:
            self.run = stored["run"]
            self.client.update_run(self.run, status="RUNNING")
            params = {key: value for key, value in params.items() if key not in mlflow_run.data.params}
            for key in mlflow_run.data.metrics:
                self.known[key] = max(point.step for point in self.client.get_metric_history(self.run, key))
        else:
            name = f"{run.method} seed {run.seed}"
            self.run = self.client.create_run(self._experiment(run), run_name=name, tags=_tags(run)).info.run_id
            note.write_text(json.dumps({**identity, "run": self.run}) + "\n", encoding="utf-8")
        pairs = [Param(key, value) for key, value in params.items()]
        for i in range(0, len(pairs), PARAMS_AT_ONCE):
            self.client.log_batch(self.run, params=pairs[i : i + PARAMS_AT_ONCE])

    def _find_run(self, number: str) -> Any:
        """Return an MLflow run; None if it was deleted."""
        from mlflow.exceptions import MlflowException

        try:
            mlflow_run = self.client.get_run(number)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
        return None if mlflow_run.info.lifecycle_stage == "deleted" else mlflow_run

    def _experiment(self, run: RunRecord) -> str:
        name = self.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or str(run.config.get("name", "fedreach"))
        experiment = self.client.get_experiment_by_name(name)
        return str(self.client.create_experiment(name) if experiment is None else experiment.experiment_id)


@contextmanager
def _quiet_mlflow() -> Iterator[None]:
    """Suppress output of MLflow and its packages while they load and create a store."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    for logger in ("mlflow.store.db.utils", "alembic"):
        logging.getLogger(logger).setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _store_lock(uri: str) -> Iterator[None]:
    """Let only one process at a time open a store: of several that create its tables at once, all but one fail."""
    store = sha256(f"{getpass.getuser()} {uri}".encode()).hexdigest()[:12]
    with Folder(Path(tempfile.gettempdir()) / f"fedreach-mlflow-{store}").locked(STORE_SECONDS):
        yield


def _params(run: RunRecord) -> dict[str, str]:
    """Return the settings by dotted keys, without the trackers."""
    settings = {key: value for key, value in flatten(run.config).items() if value is not None and key != "run.trackers"}
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in settings.items()}
    return {"method.name": run.method, "seed": str(run.seed)} | {k: v[:LONGEST_PARAM] for k, v in texts.items()}


def _tags(run: RunRecord) -> dict[str, str]:
    git = run.git or {}
    tags = {"fedreach.method": run.method, "fedreach.seed": str(run.seed), "fedreach.run": run.id}
    tags |= {"fedreach.version": str(run.environment.get("fedreach", "")), "mlflow.source.name": "fedreach"}
    if git:
        tags |= {"mlflow.source.git.commit": str(git["revision"]), "fedreach.git.changed": str(git["changed"])}
    return tags


# ---- Built-in trackers
# A tracker is a `fedreach.runs.callbacks.Callback`. It gets the whole run: the rounds of earlier commands come first,
# from the run folder. So the record of a resumed run has no gaps, and a tracker that is added late gets all rounds.
# Trackers get copies, and a failed one is left out, so no run depends on its trackers.

TRACKERS: Mapping[str, Any] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
}
