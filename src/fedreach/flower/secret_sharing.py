"""Secret sharing, keys and pads of secure aggregation, see `fedreach.flower.secure`."""

import os
import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedreach.federation.secure_aggregation import Words

# -------------------- Shamir's secret sharing
# A secret is the value at 0 of a random polynomial of degree t - 1 over a prime field, and a share is the value at
# another place. Flower's function splits a key among 100 clients in half a second, and joins it in a second. Each
# client splits two keys a round, and the server joins a hundred, so this field has whole numbers of Python.
#
# Reference: Shamir, "How to Share a Secret", Communications of the ACM 22(11), 1979.

PRIME = 2**256 + 297  # the smallest prime above all keys of 32 bytes
SECRET_BYTES, SHARE_BYTES, NONCE_BYTES, TAG_BYTES = 32, 33, 12, 16


def split(secret: bytes, places: Sequence[int], threshold: int) -> dict[int, bytes]:
    """Return a share of 33 bytes of a secret of 32 bytes for each place, a positive whole number.

    Any `threshold` shares recover the secret, and fewer shares leave all secrets equally likely.

    Example:
        >>> shares = split(bytes(range(32)), places=[1, 2, 5], threshold=2)
        >>> join({1: shares[1], 5: shares[5]}) == bytes(range(32))
        True
    """
    coefficients = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return {place: polynomial(coefficients, place, PRIME).to_bytes(SHARE_BYTES, "big") for place in places}


def polynomial(coefficients: Sequence[int], place: int, prime: int) -> int:
    """Return the value of the polynomial at a place, modulo a prime; the first coefficient is the value at 0."""
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * place + coefficient) % prime
    return value


def join(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret of these shares by place, as many as the threshold.

    Raises:
        ValueError: If these shares belong to no secret of 32 bytes.
    """
    values = {place: int.from_bytes(share, "big") for place, share in shares.items()}
    secret = value_at_zero(values, PRIME)
    if secret.bit_length() > 8 * SECRET_BYTES:
        raise ValueError("The shares belong to no key.")
    return secret.to_bytes(SECRET_BYTES, "big")


def value_at_zero(values: Mapping[int, int], prime: int) -> int:
    """Return the value at 0 of the polynomial of lowest degree with these values by place, modulo a prime."""
    factors = _lagrange_factors(tuple(values), prime)
    return sum(factor * value for factor, value in zip(factors, values.values(), strict=True)) % prime


@lru_cache(maxsize=8)  # all secrets of a sum have the same places
def _lagrange_factors(places: tuple[int, ...], prime: int) -> list[int]:
    """Return the factor of each value in the value at 0."""
    factors = []
    for place in places:
        numerator = denominator = 1
        for x in places:
            if x != place:
                numerator, denominator = numerator * x % prime, denominator * (x - place) % prime
        factors.append(numerator * pow(denominator, -1, prime) % prime)
    return factors


# -------------------- Keys, pads and sealed messages: X25519, HKDF, ChaCha20


def new_private_key() -> bytes:
    """Return 32 random bytes that never leave the client."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(private: bytes) -> bytes:
    """Return the 32 bytes of the public key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def is_public_key(key: bytes) -> bool:
    """Return whether two clients can share a secret with this key; some keys yield a secret of zeros.

    Example:
        >>> is_public_key(public_key(new_private_key())), is_public_key(bytes(32)), is_public_key(b"short")
        (True, False, False)
    """
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(key))
    except ValueError:
        return False
    return True


def common_key(private: bytes, other_key: bytes, purpose: str) -> bytes:
    """Return the 32 bytes that only the owners of two key pairs know, from one private key and the other public key.

    Example:
        >>> ann, bob = new_private_key(), new_private_key()
        >>> by_ann, by_bob = common_key(ann, public_key(bob), "sum 3"), common_key(bob, public_key(ann), "sum 3")
        >>> by_ann == by_bob, by_ann == common_key(ann, public_key(bob), "sum 4")
        (True, False)
    """
    secret = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(other_key))
    return derived_key(secret, purpose)


def derived_key(secret: bytes, purpose: str) -> bytes:
    """Return 32 bytes for one purpose from a secret."""
    return HKDF(SHA256(), 32, salt=None, info=f"fedreach {purpose}".encode()).derive(secret)


def pad(key: bytes, count: int) -> Words:
    """Return pseudorandom words of a key, which has no other use."""
    stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * count))
    return np.frombuffer(stream, "<u8").astype(np.uint64)


def seal(key: bytes, content: bytes, label: str) -> bytes:
    """Return content that only the owners of the key can read, and of which they notice any change."""
    nonce = os.urandom(NONCE_BYTES)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, content, label.encode())


def unseal(key: bytes, sealed: bytes, label: str) -> bytes:
    """Return the content that `seal` encrypted under the same key and label.

    Raises:
        ValueError: If it was changed, or encrypted under another key or label.
    """
    try:
        return ChaCha20Poly1305(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], label.encode())
    except InvalidTag as error:
        raise ValueError("The content was changed or has another key.") from error
