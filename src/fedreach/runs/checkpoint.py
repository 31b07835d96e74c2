"""Checkpoints, and the models of a finished run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from fedreach._util.arrays import AnyArray, Float32s
from fedreach._util.errors import RunFolderError
from fedreach._util.files import FileDigest
from fedreach._util.row_store import RowTable
from fedreach.engines.models.flat import Layout
from fedreach.federation.state import FederationState
from fedreach.federation.types import State
from fedreach.runs.folder import BEST, CONSTANTS, ROW_FILES, RunFolder
from fedreach.runs.schema import CHECKPOINT, ClientLine, FederationRecord, RoundRow, Timing

# ---- Checkpoints of a run between two rounds
# Clients' memory and large tables of updates have separate files. A checkpoint stores only the places of their rows, so
# writing it costs only what changed since the last one.

MEMORY_FILE, SENT = "memory.rows", "sent.rows"
PER_MODEL = ("server", "solver", "aggregation")  # components that have a state for each model


@dataclass(frozen=True, eq=False)
class Snapshot:
    """State of a run between two rounds, which a checkpoint contains."""

    state: FederationState
    bytes_total: int
    best_round: int
    best_loss: float
    evaluations_since_best: int
    files: Mapping[str, FileDigest]  # manifest of the written rows and the best model
    seconds_total: float = 0.0  # simulated, like the joules, if there is a radio
    joules_total: float = 0.0
    gone: Sequence[str] = ()  # obsolete files
    rows: tuple[RoundRow | ClientLine | Timing, ...] = ()  # not written yet; a checkpoint waits for them
    best: Mapping[str, AnyArray] | None = None  # by parameter name; also not written yet


ROWS: Mapping[str, type[RoundRow] | type[Timing]] = {shape.__name__: shape for shape in (RoundRow, Timing)}
NUMBERS = [column.name for column in fields(Snapshot) if column.name not in ("state", "rows", "best", "files")]


def save(folder: RunFolder, snapshot: Snapshot) -> None:
    """Write the checkpoint of a run whose rows and best model have been written.

    All files that the checkpoint refers to reach the disk before the checkpoint replaces the previous one. After a
    power cut, the folder contains this checkpoint or the previous one, with all files that it needs.
    """
    state = snapshot.state
    tensors: dict[str, AnyArray] = {"models": state.models, "clusters": state.clusters, "loss": state.loss}
    if state.holds is not None:
        tensors["holds"] = state.holds
    parts = {"selection": state.selection, "weighting": state.weighting}
    for name in PER_MODEL:
        parts |= {f"{name}.{model}": part_state for model, part_state in enumerate(getattr(state, name))}
    for name, part_state in parts.items():
        tensors |= {f"{name}.{key}": value for key, value in part_state.items()}
    layouts: dict[str, Any] = {}
    manifest = {**snapshot.files, **folder.list_files((FederationRecord.FILE, CONSTANTS))}
    for name, rows in _in_files(state).items():
        tensors["memory" if name == MEMORY_FILE else name] = rows.places(folder.path / name)
        manifest[name] = rows.digest()
        if name != MEMORY_FILE or rows.layout.dtype != "float32":
            layouts[name] = {**asdict(rows.layout), "on_disk": rows.backing.on_disk}
    record: dict[str, Any] = {name: getattr(snapshot, name) for name in NUMBERS} | {
        "round": state.round,
        "run": folder.run,
        "files": manifest,
    }
    if np.isinf(snapshot.best_loss):
        record["best_loss"] = None
    if layouts:
        record["layouts"] = layouts
    if snapshot.rows:  # only of an extended run, see `fedreach.runs.recorder.Recorder.reopened`
        record["waiting"] = [[type(row).__name__, row.to_json()] for row in snapshot.rows]
    folder.sync()
    folder.write_tensors(CHECKPOINT, tensors, record)


def finish(folder: RunFolder, snapshot: Snapshot) -> None:
    """Write the last checkpoint of a finished run, without the contents of separate files."""
    state = snapshot.state
    tables = _in_files(state)
    if tables:
        selection = {key: value for key, value in state.selection.items() if f"selection.{key}" not in tables}
        state = replace(state, memory=None, sent=None, selection=selection)
        save(folder, replace(snapshot, state=state, gone=sorted(tables)))
        folder.remove(*tables)


def _in_files(state: FederationState) -> dict[str, RowTable]:
    """Return the tables with separate files, by file name: clients' memory, their updates, and other large tables."""
    tables: dict[str, Any] = {f"selection.{key}": value for key, value in state.selection.items()}
    tables |= {MEMORY_FILE: state.memory, SENT: state.sent}
    return {name: rows for name, rows in tables.items() if isinstance(rows, RowTable)}


def load(folder: RunFolder, width: int) -> Snapshot | None:
    """Return the run at its checkpoint, and remove later rows; None without a checkpoint.

    `width` is the number of values in the state of a client.
    """
    stored = folder.read_tensors(CHECKPOINT)
    if stored is None:
        return None
    tensors, record = stored
    manifest = {name: FileDigest(*entry) for name, entry in record["files"].items()}
    models, layouts = tensors["models"], {MEMORY_FILE: {"width": width}, **record.get("layouts", {})}
    rows = {
        name: RowTable.stored(
            folder.path / name,
            places=tensors["memory" if name == MEMORY_FILE else name],
            listed=manifest[name],
            **layout,
        )
        for name, layout in layouts.items()
        if name != MEMORY_FILE or "memory" in tensors
    }
    folder.remove(*record["gone"])  # the run was killed before it removed them
    memory, sent = rows.pop(MEMORY_FILE, None), rows.pop(SENT, None)
    tensors |= rows

    def state_of(name: str) -> State:
        return {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}

    state = FederationState(
        round=record["round"],
        models=models,
        clusters=tensors["clusters"],
        loss=tensors["loss"],
        selection=state_of("selection"),
        weighting=state_of("weighting"),
        memory=memory,
        holds=tensors.get("holds"),
        sent=sent,
        **{name: tuple(state_of(f"{name}.{model}") for model in range(len(models))) for name in PER_MODEL},
    )
    waiting = tuple(ROWS[kind].of_json(row) for kind, row in record.get("waiting", ()))
    folder.rewind(manifest, waiting[0].round - 1 if waiting else record["round"])
    if record["best_loss"] is None:
        record["best_loss"] = np.inf
    files = {name: digest for name, digest in manifest.items() if name in (*ROW_FILES, BEST)}
    return Snapshot(state, rows=waiting, files=files, **{name: record[name] for name in NUMBERS})


# ---- Models of a run: from tensors by name to vectors


class StoredModels(NamedTuple):
    """The last, the best or the refitted model of a run."""

    round: int  # its round
    vectors: Float32s  # (r, d): one row per cluster


def read_models(folder: RunFolder, name: str, layout: Layout) -> StoredModels | None:
    """Return the models in ``NAME.safetensors``; None if the file is missing.

    Args:
        folder: Run folder.
        name: ``"last"``, ``"best"`` or ``"refit"``.
        layout: Layout of the model.

    Raises:
        RunFolderError: If the weights belong to another model.
    """
    stored = folder.read_tensors(f"{name}.safetensors")
    if stored is None:
        return None
    tensors, record = stored
    count = max(1, len(tensors) // len(layout.names))
    heads = [""] if count == 1 else [f"{model}/" for model in range(count)]
    named_shapes = dict(zip(layout.names, map(tuple, layout.shapes), strict=True))
    shapes = {head + key: shape for head in heads for key, shape in named_shapes.items()}
    stored_shapes = {key: value.shape for key, value in tensors.items()}
    if stored_shapes != shapes:
        key = min(key for key in stored_shapes.keys() | shapes if stored_shapes.get(key) != shapes.get(key))
        raise RunFolderError(
            f"{folder.path / name}.safetensors has the weights of another model: {key!r} is "
            f"{stored_shapes.get(key, 'missing')} in the file and {shapes.get(key, 'missing')} in the model. Pass the "
            "model that was trained, or rerun the run."
        )
    vectors = np.empty((count, layout.size), np.float32)
    for vector, head in zip(vectors, heads, strict=True):
        for key, view in layout.views(torch.from_numpy(vector)).items():
            view.copy_(torch.from_numpy(tensors[head + key]))
    return StoredModels(int(record["round"]), vectors)
