"""One simulated round of a run whose large tables lie in its folder."""

from __future__ import annotations

import traceback

from fedreach.federation.state import FederationState
from fedreach.federation.steps import Done
from fedreach.registry import is_installed
from fedreach.runs.checkpoint import MEMORY, SENT
from fedreach.runs.folder import RunFolder
from fedreach.simulation.simulation import Simulation


def simulated_round(simulation: Simulation, state: FederationState, folder: RunFolder) -> Done:
    """Simulate one round.

    Args:
        simulation: The federation.
        state: After the round before.
        folder: Of the run, in which what clients keep is stored.

    Raises:
        RunFolderError: If that cannot be written.
    """
    try:
        return simulation.step(state)
    except OSError as error:
        if not _by_storage(error):  # by a part, which may open files of its own
            raise
        raise folder.cannot_write(SENT if state.memory is None and state.sent is not None else MEMORY, error) from error


def _by_storage(error: OSError) -> bool:
    """Say whether it was raised where FedReach keeps what does not fit into main memory."""
    modules = [frame.f_globals.get("__name__") or "" for frame, _ in traceback.walk_tb(error.__traceback__)]
    ours = [place for place, name in enumerate(modules) if name.startswith("fedreach.storage.")]
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(ours) and all(map(is_installed, files[ours[-1] + 1 :]))
