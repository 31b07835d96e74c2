"""Random streams keyed by (seed, purpose, round, client).

Generators are made here and nowhere else. A stream depends only on its key, so a round never depends on
how it was executed: resume is exact, any number of workers gives the same numbers, and all methods of a
comparison share partition, initial model and batch order.
"""

import zlib

import numpy as np

from fedreach.errors import ConfigError


def generator(seed: int, purpose: str, round_: int = 0, client: int = 0) -> np.random.Generator:
    """Return the numpy generator of one purpose, round and client.

    Args:
        seed: Seed of the run, not negative.
        purpose: What the numbers are for, such as ``"partition"`` or ``"batches"``.
        round_: Round number; 0 outside rounds.
        client: Client id; 0 where no single client is meant.

    Example:
        >>> a = generator(0, "select", round_=3)
        >>> b = generator(0, "select", round_=3)
        >>> bool(a.random() == b.random())
        True
    """
    check_seed(seed)
    key = (zlib.crc32(purpose.encode()), round_, client)
    if (seed | round_ | client) >> 32:
        sequence = np.random.SeedSequence(seed, spawn_key=key)
    else:  # the words that numpy would make of these, in half the time: a round needs a generator for each client
        sequence = np.random.SeedSequence(np.array((seed, 0, 0, 0, *key), np.uint32))
    return np.random.Generator(np.random.Philox(sequence))


def check_seed(seed: object) -> None:
    """Raise ConfigError unless it is a whole number, not negative."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ConfigError(f"seed must be a non-negative whole number; got {seed!r:.100}.")


def torch_seed(seed: int, purpose: str, round_: int = 0, client: int = 0) -> int:
    """Return a 63-bit seed for torch, from the same keys."""
    return int(generator(seed, purpose, round_, client).integers(2**63 - 1))


def fresh() -> np.random.Generator:
    """Return a generator that nobody can repeat, for noise that hides something on a real client."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence()))
