"""Batches drawn in C (`batches.c`), and whether they are what NumPy draws."""

import zlib
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fedreach.arrays import Ints
from fedreach.data.population import Ranges
from fedreach.engines.batches import batch_plans
from fedreach.engines.native.library import library
from fedreach.federation.local_sgd import LocalSGD


def batch_plan_in_c(seed: int, round_: int, client: int, train: Ranges, local: LocalSGD) -> Ints:
    """Return the (steps, batch) table of a client's samples, as `batch_plans` does, drawn in C."""
    own = np.ascontiguousarray(train[client], np.int64)
    size, words = len(own), words_of(seed, round_)
    words[-1] = client
    batch = min(local.batch_size, size)
    (steps,) = local.steps_of(np.array([size]), np.array([client]), seed, round_).tolist()
    per_epoch = int(local.steps_per_epoch(np.array(size)))
    spare, plan = np.empty(size, np.int64), np.empty((steps, batch), np.int64)
    places = own.ctypes.data, batch, per_epoch, steps, spare.ctypes.data, plan.ctypes.data
    library().draw_plan(len(words), words.ctypes.data, size, *places)
    return plan


def words_of(seed: int, round_: int) -> NDArray[np.uint32]:
    """Return the words that a generator of batches is made of, see `fedreach.streams`; the client is still to come."""
    seed = int(seed)
    own = [seed >> place & 0xFFFFFFFF for place in range(0, max(1, seed.bit_length()), 32)]
    return np.array([*own, *[0] * (4 - len(own)), zlib.crc32(b"batches"), round_, 0], np.uint32)


@cache
def draws_as_numpy_does() -> bool:
    """Return whether C draws the numbers that this release of NumPy draws: releases may change them."""
    sizes = np.array([1, 2, 5, 64, 300, 1000])
    train = Ranges(np.arange(sizes.sum()), np.concatenate([[0], np.cumsum(sizes)]))
    local = LocalSGD(batch_size=7, epochs=2)
    return all(
        np.array_equal(
            batch_plan_in_c(seed, 3, client, train, local),
            batch_plans(seed, 3, np.array([client]), [train[client]], local)[0],
        )
        for seed in (0, 1, 2**40 + 5)
        for client in range(len(sizes))
    )
