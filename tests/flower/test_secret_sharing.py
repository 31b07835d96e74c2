"""Shares of secrets, and what fewer shares than the threshold tell."""

from __future__ import annotations

import contextlib
from collections import Counter
from itertools import combinations, product

import numpy as np
import pytest

pytest.importorskip("flwr")

from fedreach.flower.secret_sharing import (
    PRIME,
    common_key,
    derived_key,
    is_public_key,
    join,
    new_private_key,
    pad,
    polynomial,
    public_key,
    seal,
    split,
    unseal,
    value_at_zero,
)


@pytest.mark.parametrize(("n", "t"), [(2, 2), (3, 2), (5, 4), (6, 3)])
def test_any_t_shares_recover_the_secret_and_fewer_do_not(n: int, t: int) -> None:
    secret = new_private_key()
    shares = split(secret, [*range(1, n + 1)], t)
    for places in combinations(shares, t):
        assert join({place: shares[place] for place in places}) == secret
    for places in combinations(shares, t - 1):
        with contextlib.suppress(ValueError):  # the value at 0 may be above all keys
            assert join({place: shares[place] for place in places}) != secret


@pytest.mark.parametrize("t", [2, 3])
def test_fewer_than_t_shares_leave_all_secrets_equally_likely(t: int) -> None:
    """In a field of 5 numbers: over all polynomials of a secret, t - 1 shares have the same distribution."""
    prime = 5
    for places in combinations(range(1, prime), t - 1):
        seen = [
            Counter(
                tuple(polynomial([secret, *random], place, prime) for place in places)
                for random in product(range(prime), repeat=t - 1)
            )
            for secret in range(prime)
        ]
        assert all(counts == seen[0] for counts in seen)
        assert set(seen[0].values()) == {1}
    values = {place: polynomial([4, *range(1, t)], place, prime) for place in range(1, t + 1)}
    assert value_at_zero(values, prime) == 4


def test_all_keys_are_below_the_prime_and_the_largest_is_recovered() -> None:
    assert PRIME > 2**256
    assert all(pow(base, PRIME - 1, PRIME) == 1 for base in (2, 3, 5, 7, 11, 13))
    assert join(split(b"\xff" * 32, [1, 2, 3], 2)) == b"\xff" * 32


def test_wrong_shares_are_noticed_if_they_belong_to_no_key() -> None:
    with pytest.raises(ValueError, match="belong to no key"):
        join({1: (2**256 + 5).to_bytes(33, "big")})


def test_two_clients_have_one_pad_for_a_purpose_and_other_clients_do_not() -> None:
    ann, bob, eve = (new_private_key() for _ in range(3))
    shared = pad(common_key(ann, public_key(bob), "sum 1"), 4096)
    np.testing.assert_array_equal(shared, pad(common_key(bob, public_key(ann), "sum 1"), 4096))
    for private, public, purpose in ((ann, bob, "sum 2"), (ann, eve, "sum 1"), (eve, bob, "sum 1")):
        other = pad(common_key(private, public_key(public), purpose), 4096)
        assert not (shared == other).any()  # 4096 words of 64 bits
    assert not (shared == pad(derived_key(ann, "sum 1"), 4096)).any()
    bits = np.unpackbits(shared.view(np.uint8))
    assert abs(bits.mean() - 0.5) < 5 * 0.5 / np.sqrt(len(bits))


def test_a_sealed_share_is_read_by_its_receiver_only_and_unchanged() -> None:
    key, content = new_private_key(), bytes(66)
    sealed = seal(key, content, "1 to 2")
    assert unseal(key, sealed, "1 to 2") == content
    assert seal(key, content, "1 to 2") != sealed  # the nonce differs
    changed = sealed[:-1] + bytes([sealed[-1] ^ 1])
    for other in ((new_private_key(), sealed, "1 to 2"), (key, sealed, "2 to 1"), (key, changed, "1 to 2")):
        with pytest.raises(ValueError, match="changed or has another key"):
            unseal(*other)


def test_a_key_that_hides_nothing_is_none() -> None:
    """Of points of small order every secret is zeros; the honest clients would fail on it, round after round."""
    order_8 = bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800")
    for key in (bytes(32), (1).to_bytes(32, "little"), order_8, b"short", b""):
        assert not is_public_key(key)
