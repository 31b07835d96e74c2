"""Runs in MLflow: what was run, its rounds, and its models."""

import getpass
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedreach.data.federated import FederatedData
from fedreach.errors import require
from fedreach.runs.callbacks import Callback
from fedreach.runs.folder import BEST, LAST, REFIT
from fedreach.runs.schema import Result, RoundRow, RunRecord, Timing
from fedreach.runs.trackers.base import Clock, Thinned, need, numbers, seconds
from fedreach.storage.files import Folder

NOTE = "mlflow.json"  # in the run folder: which of MLflow's runs it is
MOST = 1000  # rounds that are logged, or up to twice as many
AT_ONCE = 1000  # numbers that MLflow takes in one call
PARAMS_AT_ONCE, LONGEST_PARAM = 100, 6000  # likewise; letters
STORE_SECONDS = 60.0  # that others may take to make a store
SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # nobody asked for it
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # MLflow's own 7 and 120 s would hold a run up for minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
"""Variables of MLflow that are set unless the user did."""


@dataclass
class MLflow(Callback):
    """Makes a run of MLflow: the settings as parameters, a metric a number and round, models and result as artifacts.

    It is tagged with method, seed, id and git revision, and goes on as the same one where the run goes on. Where it is
    kept follows MLFLOW_TRACKING_URI, as everywhere in MLflow, else ``mlflow.db`` in the current folder: ``mlflow ui``.

    When: there is an MLflow server, or many experiments are looked at in one place.

    Args:
        uri: Where, in place of that variable. Passwords belong into MLFLOW_TRACKING_PASSWORD: this stands in run.json.
        experiment: Of MLflow. Default: the experiment's name.
        models: Whether the last and the best model are uploaded.
        every: Of so many rounds one is logged, and one that is evaluated; and the last. Default: all of less than 2000
            rounds, of more so many that a thousand are, as a local store takes 0.1 ms a number.
    """

    uri: str | None = None
    experiment: str | None = None
    models: bool = True
    every: int | None = None
    clock: Clock = field(init=False, repr=False, default_factory=Clock)
    waiting: list[Any] = field(init=False, repr=False, default_factory=list)
    known: dict[str, int] = field(init=False, repr=False, default_factory=dict)
    run: str = field(init=False, repr=False, default="")
    left_out: tuple[RoundRow, Timing] | None = field(init=False, repr=False, default=None)  # the last round, if it was

    def __post_init__(self) -> None:
        need("mlflow", "mlflow-skinny")
        require(self, every="[1, inf)")

    def begin(self, run: RunRecord, data: FederatedData | None, engine: str, folder: Path) -> None:
        self.folder, self.waiting, self.known, self.run = folder, [], {}, ""
        self.left_out = None
        self.thinned = Thinned(self.every or max(1, int(run.config.get("rounds", 0)) // MOST))
        self.seconds = (folder / RunRecord.FILE).stat().st_mtime
        with _quiet():
            from mlflow import MlflowClient, get_tracking_uri
            from mlflow.entities import Metric

            uri = self.uri or get_tracking_uri()
            with _one_by_one(uri):
                self.client, self.metric = MlflowClient(tracking_uri=uri), Metric
            self._open(run, uri)

    def round(self, row: RoundRow, timing: Timing, lost: Mapping[int, str]) -> None:
        self.seconds += seconds(timing)
        if self.thinned.takes(row.round, bool(row.evaluated)):
            self.left_out = None
            self._log(row, timing)
        else:
            self.left_out = row, timing

    def _log(self, row: RoundRow, timing: Timing) -> None:
        at = round(1000 * self.seconds)
        self.waiting += [
            self.metric(key, float(value), at, row.round)
            for key, value in numbers(row, timing).items()
            if row.round > self.known.get(key, -1)
        ]
        if len(self.waiting) >= AT_ONCE or self.clock.is_due():
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
        if self.left_out is not None:
            self._log(*self.left_out)
        self._write()
        if isinstance(error, Exception):
            self.client.set_tag(self.run, "fedreach.error", f"{error}"[:LONGEST_PARAM])
        status = "FINISHED" if error is None else "FAILED" if isinstance(error, Exception) else "KILLED"
        self.client.set_terminated(self.run, status)

    def _write(self) -> None:
        while some := self.waiting[:AT_ONCE]:
            self.client.log_batch(self.run, metrics=some)
            self.waiting = self.waiting[AT_ONCE:]

    def _open(self, run: RunRecord, uri: str) -> None:
        """Go on with the run of MLflow that was begun for this folder, or begin one."""
        from mlflow.entities import Param

        note, params = self.folder / NOTE, _params(run)
        same = {"of": run.id, "uri": uri}
        noted = json.loads(note.read_text("utf-8")) if note.exists() else {}
        there = self._there(noted["run"]) if same.items() <= noted.items() else None
        if there is not None:
            self.run = noted["run"]
            self.client.update_run(self.run, status="RUNNING")
            params = {key: value for key, value in params.items() if key not in there.data.params}
            for key in there.data.metrics:
                self.known[key] = max(each.step for each in self.client.get_metric_history(self.run, key))
        else:
            name = f"{run.method} seed {run.seed}"
            self.run = self.client.create_run(self._experiment(run), run_name=name, tags=_tags(run)).info.run_id
            note.write_text(json.dumps({**same, "run": self.run}) + "\n", encoding="utf-8")
        pairs = [Param(key, value) for key, value in params.items()]
        for i in range(0, len(pairs), PARAMS_AT_ONCE):
            self.client.log_batch(self.run, params=pairs[i : i + PARAMS_AT_ONCE])

    def _there(self, number: str) -> Any:
        """Return a run of MLflow; None where somebody deleted it."""
        from mlflow.exceptions import MlflowException

        try:
            found = self.client.get_run(number)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
        return None if found.info.lifecycle_stage == "deleted" else found

    def _experiment(self, run: RunRecord) -> str:
        from mlflow.exceptions import MlflowException

        name = self.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or str(run.config.get("name", "fedreach"))
        try:
            return str(self.client.create_experiment(name))
        except MlflowException as error:
            found = self.client.get_experiment_by_name(name) if error.error_code == "RESOURCE_ALREADY_EXISTS" else None
            if found is None:
                raise
            return str(found.experiment_id)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep to oneself what MLflow and its packages say as they are loaded and make a store."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    for logger in ("mlflow.store.db.utils", "alembic"):
        logging.getLogger(logger).setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _one_by_one(uri: str) -> Iterator[None]:
    """Let one process after the other open a store: of several that make its tables at once all but one fail."""
    store = sha256(f"{getpass.getuser()} {uri}".encode()).hexdigest()[:12]
    with Folder(Path(tempfile.gettempdir()) / f"fedreach-mlflow-{store}").locked(STORE_SECONDS):
        yield


def _params(run: RunRecord) -> dict[str, str]:
    """Return the settings by dotted keys; who looks on is none."""
    flat: dict[str, Any] = {}

    def collect(value: Any, key: str) -> None:
        if isinstance(value, Mapping):
            for name, inner in value.items():
                collect(inner, f"{key}.{name}" if key else str(name))
        elif value is not None and key != "run.trackers":
            flat[key] = value if isinstance(value, str) else json.dumps(value)

    collect(run.config, "")
    return {"method.name": run.method, "seed": str(run.seed)} | {k: v[:LONGEST_PARAM] for k, v in flat.items()}


def _tags(run: RunRecord) -> dict[str, str]:
    git = run.git or {}
    tags = {"fedreach.method": run.method, "fedreach.seed": str(run.seed), "fedreach.run": run.id}
    tags |= {"fedreach.version": str(run.environment.get("fedreach", "")), "mlflow.source.name": "fedreach"}
    if git:
        tags |= {"mlflow.source.git.commit": str(git["revision"]), "fedreach.git.changed": str(git["changed"])}
    return tags
