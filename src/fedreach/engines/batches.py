"""Which examples a client sees in which step: the same for every engine and every method."""

import math
from collections.abc import Sequence

import numpy as np

from fedreach.arrays import Ints
from fedreach.federation.local_sgd import LocalSGD
from fedreach.limits import check_memory
from fedreach.streams import generator


def batch_plan(seed: int, round_: int, client: int, num_examples: int, local: LocalSGD) -> Ints:
    """Return a (steps, batch) table of positions 0 .. num_examples - 1, filled up with -1.

    Every epoch is a fresh permutation cut into batches; its last batch holds what is left, or with
    ``local.drop_last`` there is none of that. With ``local.steps`` the table stops after that many steps, beginning
    new epochs as needed.

    Example:
        >>> plan = batch_plan(0, 1, 7, 5, LocalSGD(batch_size=2, epochs=2))
        >>> plan.shape, sorted(plan[:3].ravel().tolist())
        ((6, 2), [-1, 0, 1, 2, 3, 4])
    """
    batch = min(local.batch_size, num_examples)
    kept = num_examples - num_examples % batch if local.drop_last else num_examples
    steps_per_epoch = -(-kept // batch)
    (steps,) = local.steps_of(np.array([num_examples]), np.array([client]), seed, round_).tolist()
    epochs = -(-steps // steps_per_epoch)
    rng = generator(seed, "batches", round_, client)
    positions = np.broadcast_to(np.arange(num_examples), (epochs, num_examples))
    table = np.full((epochs, steps_per_epoch * batch), -1, np.int64)
    table[:, :kept] = rng.permuted(positions, axis=1)[:, :kept]
    return table.reshape(-1, batch)[:steps]


def batch_plans(seed: int, round_: int, clients: Ints, parts: Sequence[Ints], local: LocalSGD) -> Ints:
    """Return the plans of several clients at once, (k, steps, batch) of their samples; -1 where there is none.

    Row i holds ``parts[i][batch_plan(..., clients[i], len(parts[i]), local)]``, which is the plain twin.

    Example:
        >>> batch_plans(0, 1, np.array([7]), [np.array([30, 31, 32])], LocalSGD(batch_size=2)).shape
        (1, 2, 2)
    """
    sizes = np.array([len(part) for part in parts])
    batches = np.minimum(local.batch_size, sizes).tolist()
    kept, per_epoch = local.examples_per_epoch(sizes).tolist(), local.steps_per_epoch(sizes).tolist()
    steps = local.steps_of(sizes, clients, seed, round_).tolist()
    epochs = [-(-number // count) for number, count in zip(steps, per_epoch, strict=True)]
    shape = len(parts), max(steps), max(batches)
    check_memory(
        f"The batches of {shape[0]} clients in {shape[1]} steps of {shape[2]} examples",
        8 * math.prod(shape),
        "Lower local.epochs or local.steps, or use engine.name = 'native', which draws them epoch by epoch.",
    )
    table = np.full(shape, -1, np.int64)
    for row, part, seen, batch, count, number, all_steps, client in zip(
        table, parts, kept, batches, per_epoch, epochs, steps, clients, strict=True
    ):
        rng = generator(seed, "batches", round_, int(client))
        if number == 1 and count * batch == seen and all_steps == count and batch == table.shape[2]:
            row[:count] = rng.permutation(part)[:seen].reshape(count, batch)
            continue
        own = np.full((number, count * batch), -1, np.int64)
        for epoch in own:
            epoch[:seen] = rng.permutation(part)[:seen]
        row[:all_steps, :batch] = own.reshape(-1, batch)[:all_steps]
    return table
