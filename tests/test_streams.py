"""Random streams are keyed as numpy's documentation of `SeedSequence` says, whatever shortcut leads there."""

import zlib

import numpy as np
import pytest

from fedreach._util.streams import generator


@pytest.mark.parametrize(
    ("seed", "round_", "client"), [(0, 0, 0), (7, 3, 11), (2**32 - 1, 2**32 - 1, 5), (2**32, 1, 2), (3, 1, 2**40)]
)
def test_a_stream_is_that_of_numpys_spawn_key(seed, round_, client):
    key = (zlib.crc32(b"select"), round_, client)
    ours = generator(seed, "select", round_, client)
    numpys = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=key)))
    for one, other in zip([ours, *ours.spawn(2)], [numpys, *numpys.spawn(2)], strict=True):
        np.testing.assert_array_equal(one.integers(2**62, size=4), other.integers(2**62, size=4))


def test_a_negative_seed_is_refused():
    with pytest.raises(ValueError, match="non-negative"):
        generator(-1, "select")
