"""Random streams, keyed by seed, purpose, round and client.

This module creates all generators. A stream depends only on its key. Resuming a run or changing the number of workers
therefore does not change the numbers. All methods of a comparison share the partition, the initial model and the batch
order.
"""

import hashlib
import zlib
from collections.abc import Sequence

import numpy as np

from fedreach._util.arrays import AnyArray, Floats, Ints
from fedreach._util.errors import ConfigError

GAMMA = np.uint64(0x9E3779B97F4A7C15)  # SplitMix64's increment, 2^64 divided by the golden ratio


def generator(seed: int, purpose: str, round_: int = 0, client: int = 0) -> np.random.Generator:
    """Return the NumPy generator for a purpose, round and client.

    Args:
        seed: Seed of the run, at least 0.
        purpose: Purpose of the numbers, such as ``"partition"`` or ``"batches"``.
        round_: Round number; 0 outside of rounds.
        client: Client id; 0 for numbers that do not belong to a client.

    Raises:
        ConfigError: If the seed is not a whole number or is negative.

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
    else:  # the words that NumPy computes from these, in half the time: each round needs a generator per client
        sequence = np.random.SeedSequence(np.array((seed, 0, 0, 0, *key), np.uint32))
    return np.random.Generator(np.random.Philox(sequence))


def number_of(name: str) -> int:
    """Return the client number for the random streams of a client with this name.

    A name that is a whole number maps to that number, so the client with id 7 and a client named "7" share a stream.

    Example:
        >>> number_of("7"), number_of("007") > 2**63, number_of("north") == number_of("north")
        (7, True, True)
    """
    if name.isascii() and name.isdecimal() and (len(name) == 1 or name[0] != "0") and len(name) < 19:
        return int(name)
    return 2**63 | int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def uniforms(seed: int, purpose: str, clients: Sequence[int], sizes: Ints) -> Floats:
    """Return random numbers in [0, 1), `sizes[i]` for the i-th client, concatenated in the order of the clients.

    The random numbers of a client depend on the seed, the purpose and the client's number. A larger size extends the
    same sequence. The generator is SplitMix64 (Steele et al., 2014) with one state per client. One NumPy generator per
    client would take a minute for a million clients.

    Example:
        >>> uniforms(0, "held-out", [7, 2], np.array([2, 1])).round(3)
        array([0.734, 0.092, 0.707])
        >>> uniforms(0, "held-out", [2], np.array([3])).round(3)[0]
        np.float64(0.707)
    """
    start = generator(seed, purpose).integers(2**64, dtype=np.uint64)
    states = np.repeat(_mix(start ^ _mix(np.array(clients, np.uint64))), sizes)
    rank = np.arange(len(states)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    numbers: AnyArray = _mix(states + GAMMA * (rank + 1).astype(np.uint64))
    return np.asarray((numbers >> np.uint64(11)) * 2.0**-53, np.float64)


def _mix(words: AnyArray) -> AnyArray:
    """Apply the output function of SplitMix64, a one-to-one mapping of 64-bit words."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: AnyArray = words ^ (words >> np.uint64(31))
    return mixed


def check_seed(seed: object) -> None:
    """Raise ConfigError unless the seed is a whole number of at least 0."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ConfigError(f"seed must be a non-negative whole number; got {seed!r:.100}.")


def torch_seed(seed: int, purpose: str, round_: int = 0, client: int = 0) -> int:
    """Return a 63-bit seed for torch from the key of a stream (see `generator`)."""
    return int(generator(seed, purpose, round_, client).integers(2**63 - 1))


def fresh() -> np.random.Generator:
    """Return a generator with an unpredictable seed, for privacy noise on a real client."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence()))
