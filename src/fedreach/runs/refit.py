"""Training once more, on all rows of the participants, once the model is scored on what they held out.

The rounds have a folder of their own in that of the run, with its own checkpoint: so a run that is killed here goes on
here, and no number of the scored model depends on it. The folder goes once the model is written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedreach.arrays import AnyArray
from fedreach.errors import ANOTHER_FOLDER, STEADIER, TrainingError
from fedreach.runs.callbacks import Callback
from fedreach.runs.checkpoint import Snapshot
from fedreach.runs.folder import CONSTANTS, REFIT, RunFolder
from fedreach.runs.recorder import Recorder
from fedreach.runs.schema import RunRecord, Timing
from fedreach.runs.simulated import simulated_round
from fedreach.simulation.simulation import Simulation
from fedreach.storage import disk

FOLDER = "refit"


@dataclass(frozen=True, eq=False)
class Refit:
    """Trains a run's model once more, from the same seed and start, on all rows of the participants.

    Args:
        simulation: Makes the federation in which participants train on all of their rows, see
            `fedreach.data.all_rows.on_all_rows`, given the folder in which what clients keep is stored.
        checkpoint_seconds: From one checkpoint to the next; there is one in the end, too.
    """

    simulation: Callable[[Path], Simulation]
    checkpoint_seconds: float = 2.0

    def write(self, recorder: Recorder, rounds: int, callbacks: Sequence[Callback] = ()) -> Mapping[str, Any]:
        """Train so many rounds, unless that is done, write the model, and return what that took: see `Result.refit`.

        Args:
            recorder: Of the run's folder, which this process has locked.
            rounds: As many as the best round took.
            callbacks: Get each round of it, see `Callback.refit_round`.

        Raises:
            TrainingError: If a client fails, or the model diverges.
            RunFolderError: If the folder cannot be written to.
        """
        folder, place = recorder.folder, RunFolder(recorder.folder.path / FOLDER)
        stored = folder.stored_tensors(REFIT)
        if stored is not None and (stored[1]["run"], stored[1]["round"]) == (folder.run, rounds):
            took: Mapping[str, Any] = stored[1]["took"]
        else:
            own = Recorder(place, recorder.federation, recorder.layout)
            constants = folder.read_tensors(CONSTANTS)
            start = {} if constants is None else constants[0]
            last = self._trained(own, folder.required(RunRecord), rounds, start, callbacks)
            took = _took(last, radio=recorder.federation.radio is not None)
            record = {"round": rounds, "run": folder.run, "took": took}
            folder.write_tensors(REFIT, own.models(last.state), record)
            folder.sync()
        _remove(place)
        return took

    def _trained(
        self,
        own: Recorder,
        run: RunRecord,
        rounds: int,
        constants: Mapping[str, AnyArray],
        callbacks: Sequence[Callback],
    ) -> Snapshot:
        """Return the training after its last round; an interrupted one goes on."""
        simulation = self.simulation(own.folder.path)
        if constants:
            simulation.engine.start_from(constants)
        snapshot = kept = _checkpoint(own, run, rounds) or _begun(own, run, simulation)
        saved = time.monotonic()
        try:
            for callback in callbacks:
                callback.refit_round(snapshot.state.round, rounds)
            while snapshot.state.round < rounds:
                done = simulated_round(simulation, snapshot.state, own.folder)
                snapshot, row = own.after(snapshot, done.state, done.result)
                snapshot, _ = own.close(snapshot, row, Timing(round=row.round))
                if time.monotonic() - saved >= self.checkpoint_seconds:
                    # What clients kept at the last checkpoint must not be written over before the next one.
                    snapshot = kept = own.save(snapshot)
                    saved = time.monotonic()
                for callback in callbacks:
                    callback.refit_round(row.round, rounds)
        finally:
            snapshot = kept = own.save(snapshot)
        if not np.isfinite(kept.state.models).all():
            raise TrainingError(
                f"The model diverged: trained again on all rows, it is not finite after round {rounds}. {STEADIER}, "
                f"and choose {ANOTHER_FOLDER}; or leave out population.refit."
            )
        return kept


def _checkpoint(own: Recorder, run: RunRecord, rounds: int) -> Snapshot | None:
    """Return the training at its checkpoint; None where there is none of this run and of at most so many rounds."""
    stored = own.folder.read(RunRecord)
    snapshot = own.load() if stored is not None and stored.id == run.id else None
    return None if snapshot is None or snapshot.state.round > rounds else snapshot


def _begun(own: Recorder, run: RunRecord, simulation: Simulation) -> Snapshot:
    """Return the training before its first round, in an empty folder."""
    _remove(own.folder)
    own.folder.write(run)
    snapshot, row = own.begin(simulation.start())
    snapshot, _ = own.close(snapshot, row, Timing(round=0))
    return own.save(snapshot)


def _remove(place: RunFolder) -> None:
    """Remove the folder of the training with all that is in it."""
    place.close()
    with place.disk(""):
        disk.remove_folder(place.path)


def _took(last: Snapshot, *, radio: bool) -> dict[str, Any]:
    """Return rounds and costs of a training, and which model each participant has, where there are several."""
    took: dict[str, Any] = {"rounds": last.state.round, "bytes_total": last.bytes_total}
    if radio:
        took |= {key: float(f"{getattr(last, key):.12g}") for key in ("seconds_total", "joules_total")}
    if len(last.state.models) > 1:
        took["clusters"] = last.state.clusters.tolist()
    return dict(sorted(took.items()))  # as it is read back
