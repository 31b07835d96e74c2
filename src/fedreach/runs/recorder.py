"""The recorder of a run, which writes rows, checkpoints, and the best and the last model.

The simulator and Flower write the same run folder, so their runs can be resumed, reported and compared in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from fedreach._util.arrays import AnyArray, replace_fields
from fedreach._util.errors import ANOTHER_FOLDER, STEADIER, RunFolderError, TrainingError
from fedreach._util.files import FileDigest, content_of, digest_of
from fedreach._util.tables import count_noun
from fedreach.engines.models.flat import Layout
from fedreach.evaluation.scores import ACCURACY, MAE
from fedreach.federation.accounting import spent
from fedreach.federation.federation import Federation
from fedreach.federation.round import refers_to_length
from fedreach.federation.selection.clustering import cluster_changes
from fedreach.federation.state import FederationState
from fedreach.federation.steps import memory_width
from fedreach.federation.types import RoundCost, RoundResult
from fedreach.runs.checkpoint import Snapshot, finish, load, save
from fedreach.runs.folder import BEST, CONSTANTS, LAST, LISTED, ROW_FILES, RunFolder
from fedreach.runs.identity import ROUNDS, relevant_options
from fedreach.runs.schema import (
    CHECKPOINT,
    ClientLine,
    FederationRecord,
    Result,
    RoundRow,
    RunRecord,
    Timing,
)

MAX_NAMED = 5  # clients that a message names
MAX_RELATIVE_ERROR = 10.0  # times the error of the mean; a model that learned anything is closer
Evaluated = tuple[Mapping[str, float], Sequence[Mapping[str, Any]]]
"""Columns of an evaluation, and lines about single clients (see `fedreach.evaluation.evaluator.Evaluator`)."""
Losses = Mapping[int, float]
"""Participant -> loss on the participant's held-out data."""


@dataclass(frozen=True, eq=False)
class Recorder:
    """Recorder of one run, which writes the run folder.

    Args:
        folder: Run folder.
        federation: Federation whose components determine the deployed models.
        layout: Layout of the model.
        stop_if_diverged: End the run if an evaluation is not finite. A model that is not finite always ends the run.
    """

    folder: RunFolder
    federation: Federation
    layout: Layout
    stop_if_diverged: bool = True
    _heard: dict[int, Losses] = field(default_factory=dict, init=False)  # losses of the best round

    def describe(self, run: RunRecord, federation: FederationRecord) -> RunRecord:
        """Write the run record, and the federation record if it is missing; return the written run record."""
        stored = self.folder.read_json(FederationRecord.FILE)
        if stored is None or stored["hash"] != federation.hash:
            self.folder.write(federation)
        written = replace(run, id=self._id(run, federation))
        self.folder.write(written)
        return written

    def constants(self, new_constants: Mapping[str, AnyArray]) -> Mapping[str, AnyArray]:
        """Return the stored constants of the run (see `state`); a new run stores `new_constants`.

        The constants are written once, because a second call of a module's constructor may draw other constants.
        """
        if (self.folder.path / CHECKPOINT).exists():
            stored = self.folder.read_tensors(CONSTANTS)
            return new_constants if stored is None else stored[0]
        self.folder.remove(CONSTANTS)
        if new_constants:
            self.folder.write_tensors(CONSTANTS, new_constants, {})
        return new_constants

    def _id(self, run: RunRecord, federation: FederationRecord) -> str:
        """Return the digest of all options that affect numbers of the run, so not of its name.

        The number of rounds is left out if no round depends on it: such a run can be extended.
        """
        excluded = ("method", "environment", "git", "id")
        essentials = relevant_options({key: value for key, value in vars(run).items() if key not in excluded})
        rounds = run.config.get("rounds")
        if isinstance(rounds, int) and not refers_to_length(self.federation, rounds):
            essentials.pop(ROUNDS)
        return digest_of({}, {"run": essentials, "federation": federation.hash})[:32]

    def load(self) -> Snapshot | None:
        """Return the run at its checkpoint, and remove later rows; None without a checkpoint."""
        width = memory_width(self.federation, self.layout.num_trainable, self.layout.size)
        snapshot = load(self.folder, width)
        if snapshot is not None:
            self._check_best(snapshot, later=True)
        return snapshot

    def reopened(self, snapshot: Snapshot) -> Snapshot:
        """Return a run to extend, without the evaluation of its previous last round.

        A longer run would not have included that evaluation. The checkpoint keeps the row of the round until it is
        written again, so that the files match the checkpoint after any interruption. An evaluation of the best model is
        kept, because the earlier best model was overwritten.
        """
        last = list(self.folder.records(RoundRow))[-1]
        if last.round != snapshot.state.round or not last.evaluated or snapshot.best_round == last.round:
            return snapshot
        files = dict(snapshot.files)
        for shape in (RoundRow, ClientLine):
            lines = self.folder.kept_text(shape.FILE).splitlines(keepends=True)
            before = "".join(line for line in lines if json.loads(line)["round"] < last.round).encode()
            files[shape.FILE] = FileDigest.of(before)
        timing = replace(self.folder.timing(last.round)[-1], evaluate_seconds=None)
        since = snapshot.evaluations_since_best - 1
        rows = replace(last, evaluated={}), timing.checked(self.folder.run)
        extended = replace(snapshot, files=files, evaluations_since_best=since, rows=rows)
        save(self.folder, extended)
        return extended

    def begin(self, state: FederationState) -> tuple[Snapshot, RoundRow]:
        """Remove old files of rows, and return a run before round 1 and its row of round 0.

        Raises:
            RunFolderError: If the folder already contains rounds.
        """
        self.folder.refuse_lost_rounds()
        self.folder.remove(RoundRow.FILE, ClientLine.FILE, Timing.FILE)
        snapshot = Snapshot(state, 0, 0, np.inf, 0, self.folder.list_files(ROW_FILES))
        nothing = None if self.federation.radio is None else RoundCost(0.0, 0.0, 0.0, 0.0, None)
        row = RoundRow(
            round=0,
            cohort=(),
            weights=(),
            lost=(),
            bytes_down=0,
            bytes_up=0,
            bytes_total=0,
            probe_bytes=0,
            evaluated={},
            **_cost_columns(nothing, snapshot),
        )
        return snapshot, row

    def after(self, snapshot: Snapshot, state: FederationState, result: RoundResult) -> tuple[Snapshot, RoundRow]:
        """Return the run after a round and the row of the round, which has not been written yet."""
        policy, selection = self.federation.selection, snapshot.state.selection
        total, cost = snapshot.bytes_total + result.bytes_down + result.bytes_up, result.cost
        snapshot = replace_fields(snapshot, state=state, bytes_total=total)
        if cost is not None:
            seconds, joules = snapshot.seconds_total + cost.seconds, snapshot.joules_total + cost.joules
            snapshot = replace(snapshot, seconds_total=seconds, joules_total=joules)
        row = RoundRow(
            round=state.round,
            cohort=result.cohort,
            weights=[round(w, 9) for w in result.weights],
            lost=list(result.lost),
            metrics={name: [round(value, 9) for value in values] for name, values in result.metrics.items()},
            train_loss=None if result.train_loss is None else round(result.train_loss, 9),
            bytes_down=result.bytes_down,
            bytes_up=result.bytes_up,
            bytes_total=total,
            probe_bytes=result.probe_bytes,
            remark=result.remark or None,
            by_server=result.by_server,
            clusters=state.clusters.tolist() if len(state.models) > 1 else None,
            cluster_changes=cluster_changes(policy, selection, state.selection),
            evaluated={},
            **_cost_columns(cost, snapshot),
        )
        return snapshot, row

    def close(
        self, snapshot: Snapshot, row: RoundRow, timing: Timing, evaluated: Evaluated | None = None
    ) -> tuple[Snapshot, RoundRow]:
        """Return the run with the rows of a round, for `written` to write, and the row with its evaluation.

        The recorder keeps the model with the lowest loss on participants' held-out data. It never uses the test set. If
        two rounds have losses of different participants, as on Flower, it compares the participants in both rounds.
        """
        lines: Sequence[Mapping[str, Any]] = ()
        if evaluated is not None:
            columns, lines = evaluated
            columns = {**columns, **_cohort_score(lines, row.cohort)}
            self._refuse_if_diverged(snapshot.state, columns, lines)
            snapshot = self._update_best(snapshot, columns.get("participant_loss", np.inf), _losses(lines))
            row = replace(row, evaluated=columns)
        client_lines = (ClientLine(**line, names=self.names_of(line["ids"])) for line in lines)
        rows = *snapshot.rows, row, *client_lines, timing.checked(self.folder.run)
        return replace_fields(snapshot, rows=rows), row

    @cached_property
    def _names(self) -> Sequence[str] | None:
        record = self.folder.read(FederationRecord)
        return None if record is None else record.client_names

    def names_of(self, ids: Sequence[int]) -> list[str] | None:
        """Return the names of clients; None if they have no names."""
        return None if self._names is None else [self._names[client] for client in ids]

    def written(self, snapshot: Snapshot) -> Snapshot:
        """Append the waiting rows to their files; return the run without them.

        The call can be repeated after any interruption, because it first removes rows that an interrupted call
        appended.
        """
        if not snapshot.rows:
            return snapshot
        if not self.folder.list_files(ROW_FILES).items() <= snapshot.files.items():
            self.folder.rewind(snapshot.files, snapshot.rows[0].round - 1)
        self.folder.append(*snapshot.rows)
        return replace(snapshot, rows=(), files={**snapshot.files, **self.folder.list_files(ROW_FILES)})

    def _write_all(self, snapshot: Snapshot) -> Snapshot:
        """Write the waiting rows and the waiting best model; return the run without them."""
        snapshot = self.written(snapshot)
        if snapshot.best is None:
            return snapshot
        self.folder.write_tensors(BEST, snapshot.best, {"round": snapshot.best_round})
        return replace(snapshot, best=None, files={**snapshot.files, BEST: self.folder.digest(BEST)})

    def save(self, snapshot: Snapshot) -> Snapshot:
        """Write all waiting rows and models, then a checkpoint, and return the run as written."""
        snapshot = self._write_all(snapshot)
        save(self.folder, snapshot)
        return snapshot

    def finish(self, snapshot: Snapshot, then: Callable[[], Mapping[str, Any] | None] = lambda: None) -> Result:
        """Write the last model and the last checkpoint, call `then`, and write the result of the run.

        Args:
            snapshot: Run after the last round.
            then: Function that writes further files, and returns the costs of a refit (see `Result.refit`) or None.

        Raises:
            TrainingError: If no update counted in the whole run or in the last rounds, more than half of all rounds.
                For regression, also if the error increased and exceeds `MAX_RELATIVE_ERROR` times the error of the
                participants' mean.
        """
        snapshot = self._write_all(snapshot)
        self._refuse_if_no_client_counted()
        self._refuse_if_far_off()
        self._check_best(snapshot)
        self.folder.write_tensors(LAST, self.models(snapshot.state), {"round": snapshot.state.round})
        finish(self.folder, snapshot)
        refit = then()
        best = snapshot.best_round if np.isfinite(snapshot.best_loss) else None  # None: no held-out data
        state = snapshot.state
        privacy = spent(self.federation, state.aggregation[0], len(state.clusters), state.round)
        return self.end(
            Result(status="finished", rounds=state.round, best_round=best, refit=refit, privacy=privacy, error=None)
        )

    def end(self, result: Result) -> Result:
        """Write the result of the run with the manifest of its files."""
        self.folder.sync()
        result = replace(result, run=self.folder.run, files=self.folder.list_files(LISTED))
        self.folder.write(result)
        return result

    def _refuse_if_no_client_counted(self) -> None:
        """Reject a run in which no client counted, or that lost all clients in its second half."""
        lines = list(self.folder.lines(RoundRow.FILE))[1:]
        # Clients; rounds that lost all clients; last rounds without a counted client.
        lost, lost_rounds, empty_rounds = 0, 0, 0
        for line in reversed(lines):  # usually stops at once: a client counted in the last round
            row = json.loads(line)
            if row["cohort"]:
                break
            lost, lost_rounds, empty_rounds = lost + len(row["lost"]), lost_rounds + bool(row["lost"]), empty_rounds + 1
        if lost and (empty_rounds == len(lines) or 2 * lost_rounds > len(lines)):
            all_empty = empty_rounds == len(lines)
            which = f"any of the {empty_rounds}" if all_empty else f"the last {empty_rounds} of {len(lines)}"
            raise TrainingError(
                f"No client's update counted in {which} rounds: all {lost} were lost or not finite. "
                f"{STEADIER}, or wait until clients are online. Then choose {ANOTHER_FOLDER}."
            )

    def _refuse_if_far_off(self) -> None:
        """Reject a regression model that is not finite, or became far worse than the participants' mean."""
        record = self.folder.read(FederationRecord)
        mean = None if record is None else record.mean_mae
        if not mean:  # classification, or no held-out data
            return
        rows = [row for row in map(json.loads, self.folder.lines(RoundRow.FILE)) if "participant_mae" in row]
        if not rows:
            return
        before, after = rows[0]["participant_mae"], rows[-1]["participant_mae"]
        if after is None or (after > MAX_RELATIVE_ERROR * mean and before is not None and after > before):
            error = "not finite" if after is None else f"wrong by {MAE.number(after)} on average"
            raise TrainingError(
                f"The model diverged: after round {rows[-1]['round']} its predictions for participants' held-out data "
                f"are {error}; a constant prediction of the mean is wrong by {MAE.number(mean)}. {self._advice()}, "
                f"and choose {ANOTHER_FOLDER}."
            )

    def _refuse_if_diverged(
        self, state: FederationState, columns: Mapping[str, float], lines: Sequence[Mapping[str, Any]]
    ) -> None:
        diverged = [name for name, value in columns.items() if not np.isfinite(value)]
        if not diverged:
            return
        lasting = not np.isfinite(state.models).all(axis=1).any()  # such a model cannot be trained or deployed
        if lasting or self.stop_if_diverged:
            self._refuse_if_single_clients(state, lines)
            ending = "." if lasting else "; or continue without failing clients: run.on_failure = 'drop'."
            raise TrainingError(
                f"The model diverged: {diverged[0]} is not finite after round {state.round}. {self._advice()}{ending}"
            )

    def _advice(self) -> str:
        """Return what to try if the model diverged."""
        run = self.folder.read(RunRecord)
        if run is None or not run.config.get("attack"):
            return STEADIER
        attack = f"Malicious clients can be the reason (attack {run.config['attack']['name']})."
        return f"{attack} Choose another method.aggregation. {STEADIER}"

    def _refuse_if_single_clients(self, state: FederationState, lines: Sequence[Mapping[str, Any]]) -> None:
        """Name the clients whose loss is not finite, if the losses of at least as many other clients are."""
        losses = [pair for line in lines for pair in zip(line["ids"], line["loss"], strict=True)]
        ids = sorted({client for client, loss in losses if loss is None or not np.isfinite(loss)})
        num_finite = len({client for client, _ in losses} - {*ids})
        if ids and num_finite >= len(ids):
            names = self.names_of(ids) or list(map(str, ids))
            who = ", ".join(names[:MAX_NAMED]) + ", ..." * (len(names) > MAX_NAMED)
            raise TrainingError(
                f"The loss is not finite after round {state.round} on the data of {count_noun(len(ids), 'client')} "
                f"({who}), although it is finite on those of {num_finite}. Check these data for very large numbers, or "
                f"leave the clients out. {STEADIER} if the data are right."
            )

    def _update_best(self, snapshot: Snapshot, loss: float, losses: Losses) -> Snapshot:
        if self._is_better(snapshot, loss, losses):
            self._heard.clear()
            self._heard[snapshot.state.round] = losses
            best = self.models(snapshot.state)
            return replace(
                snapshot, best_round=snapshot.state.round, best_loss=loss, evaluations_since_best=0, best=best
            )
        return replace(snapshot, evaluations_since_best=snapshot.evaluations_since_best + 1)

    def _is_better(self, snapshot: Snapshot, loss: float, losses: Losses) -> bool:
        """Return whether a round has a lower loss than the best one before, on the participants in both."""
        if np.isinf(snapshot.best_loss):
            return loss < snapshot.best_loss
        before = self._heard.get(snapshot.best_round)
        if before is None:  # another process evaluated it
            lines = self.folder.lines(ClientLine.FILE) if (self.folder.path / ClientLine.FILE).exists() else ()
            at_best = [line for line in map(json.loads, lines) if line["round"] == snapshot.best_round]
            before = self._heard[snapshot.best_round] = _losses(at_best)
        shared = sorted(before.keys() & losses.keys())
        if len(shared) == len(before) == len(losses):
            return loss < snapshot.best_loss
        return bool(shared) and sum(losses[c] for c in shared) < sum(before[c] for c in shared)

    def _check_best(self, snapshot: Snapshot, *, later: bool = False) -> None:
        """Reject a best model of another run; allow one of a later round if `later`, as it will be written again."""
        if (listed := snapshot.files.get(BEST)) is None:
            return
        try:
            content_of(self.folder.path / BEST, listed)
        except RunFolderError:
            if not later or self.folder.stored_record(BEST)["round"] <= snapshot.state.round:
                raise

    def models(self, state: FederationState) -> dict[str, AnyArray]:
        """Return the deployed model by parameter name; with several clusters, names begin with ``0/``, ``1/``, ..."""
        models = state.adapted(self.federation)
        return {
            (f"{number}/{name}" if len(models) > 1 else name): view.numpy()
            for number, params in enumerate(models)
            for name, view in self.layout.views(torch.from_numpy(params.copy())).items()
        }


def _cohort_score(lines: Sequence[Mapping[str, Any]], cohort: Sequence[int]) -> dict[str, float]:
    """Return the column of the mean score of the cohort with the new model; empty if none has held-out examples."""
    for line in lines:
        name = MAE.name if MAE.name in line else ACCURACY.name
        chosen = np.isin(line["ids"], cohort)
        if line["population"] == "participants" and chosen.any():
            return {f"cohort_{name}": round(float(np.array(line[name])[chosen].mean()), 9)}
    return {}


def _losses(lines: Sequence[Mapping[str, Any]]) -> Losses:
    """Return the loss of each participant from an evaluation's lines about single clients."""
    participant_lines = [line for line in lines if line["population"] == "participants"]
    pairs = [pair for line in participant_lines for pair in zip(line["ids"], line["loss"], strict=True)]
    return {client: np.inf if loss is None else loss for client, loss in pairs}


def _cost_columns(cost: RoundCost | None, after: Snapshot) -> dict[str, Any]:
    """Return the columns of time, energy and allocation of a round; empty without a radio."""
    if cost is None:
        return {}
    of_round = ("seconds", "joules", "probe_seconds", "probe_joules")
    row: dict[str, Any] = {key: float(f"{getattr(cost, key):.9g}") for key in of_round}
    row |= {key: float(f"{getattr(after, key):.12g}") for key in ("seconds_total", "joules_total")}
    allocation = cost.allocation
    if allocation is not None:
        columns = {"share": allocation.share, "hertz": allocation.hertz, "upload_seconds": allocation.upload_seconds}
        columns |= {
            "compute_seconds": allocation.compute_seconds,
            "joules": allocation.upload_joules + allocation.compute_joules,
        }
        rounded = {name: [float(f"{value:.6g}") for value in values] for name, values in columns.items()}
        row["allocation"] = {"ids": allocation.ids.tolist(), **rounded}
    return row


def note_failure(folder: RunFolder, error: Exception) -> None:
    """Store the failure of a run and its cause, unless the run had finished before."""
    done = folder.read(Result)
    if done is None or done.status != "finished":
        folder.write(Result(status="failed", run=folder.run, error=f"{error}" or type(error).__name__))


def check_federation(folder: RunFolder, record: FederationRecord) -> None:
    """Reject a run folder of another federation.

    Raises:
        RunFolderError: If the folder's federation differs from `record`.
    """
    stored = folder.read_json(FederationRecord.FILE)
    if stored is not None and stored["hash"] != record.hash:
        raise RunFolderError(
            f"{folder.path} belongs to another federation ({stored['hash'][:12]}, now {record.hash[:12]}): the data or "
            f"the partition changed. Choose {ANOTHER_FOLDER}."
        )
