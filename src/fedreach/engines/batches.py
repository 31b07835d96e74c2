"""Which examples a client sees in which step: the same for every engine and every method."""

from __future__ import annotations

import numpy as np

from fedreach.arrays import Ints
from fedreach.federation.solvers import LocalSGD
from fedreach.streams import generator


def batch_plan(seed: int, round_: int, client: int, num_examples: int, local: LocalSGD) -> Ints:
    """Return a (steps, batch) table of positions 0 .. num_examples - 1, filled up with -1.

    Every epoch is a fresh permutation cut into batches; its last batch holds what is left. With ``local.steps``
    the table stops after that many steps, beginning new epochs as needed.

    Example:
        >>> plan = batch_plan(0, 1, 7, 5, LocalSGD(batch_size=2, epochs=2))
        >>> plan.shape, sorted(plan[:3].ravel().tolist())
        ((6, 2), [-1, 0, 1, 2, 3, 4])
    """
    batch = min(local.batch_size, num_examples)
    steps_per_epoch = -(-num_examples // batch)
    epochs = local.epochs if local.steps is None else -(-local.steps // steps_per_epoch)
    rng = generator(seed, "batches", round_, client)
    positions = np.broadcast_to(np.arange(num_examples), (epochs, num_examples))
    table = np.full((epochs, steps_per_epoch * batch), -1, np.int64)
    table[:, :num_examples] = rng.permuted(positions, axis=1)
    return table.reshape(-1, batch)[: local.steps]
