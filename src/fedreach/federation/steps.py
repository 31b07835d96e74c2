"""Steps of a round that the simulator and Flower share."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedreach.arrays import Float32s, Ints
from fedreach.federation.federation import Federation
from fedreach.federation.state import FederationState
from fedreach.federation.values import Trained
from fedreach.storage.table import RowTable

NUMBERS = 2**21  # of clients' memories that are worked on at a time


def remembered(
    federation: Federation, state: FederationState, memory: RowTable, rows: Ints, trained: Trained, rate: float
) -> tuple[RowTable, Float32s | None]:
    """Return what clients keep after local training, and the (r, p) change of it if the solver has them send it.

    Args:
        federation: With a solver that has clients keep something.
        state: Before the round.
        memory: Before the round.
        rows: (r,) where the clients whose reports count stand among the participants.
        trained: What they did.
        rate: Step size of the round.
    """
    solver = federation.memory_solver
    assert solver is not None  # or there were no memory
    steps = federation.local.moved_steps(trained.steps)
    old = memory.read(rows)
    new = np.empty_like(old)
    together = max(1, NUMBERS // max(1, old.shape[1]))  # arithmetic on a whole cohort would hold it several times
    for model, mine in by_model(state, rows):
        for some in np.split(mine, range(together, len(mine), together)):
            update = trained.update[some, : trained.trainable]
            kept = solver.remember(old[some], state.solver[model], update, steps[some], rate)
            new[some] = memory.kept(kept)  # the server is told the change of what is kept, rounded as that is
    change = np.subtract(new, old, out=old)
    return memory.written(rows, new), change if solver.sends_note else None


def by_model(state: FederationState, rows: Ints) -> Iterator[tuple[int, Ints]]:
    """Yield each model and where the participants that train it stand among these rows."""
    if len(state.models) == 1:
        if len(rows):
            yield 0, np.arange(len(rows))
        return
    own = state.clusters[rows]
    for model in np.unique(own):
        yield int(model), np.flatnonzero(own == model)
