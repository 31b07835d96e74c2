"""Masks that two clients share and the server does not know: see `fedreach.federation.aggregation.secure_sum`.

Each client has a key pair of its own for the run, and the server passes the public halves on: X25519 gives two clients
a common secret, HKDF a key for the round, ChaCha20 the words of the mask. This hides clients from a server that looks
at what it gets; one that cheats could pass on public keys of its own making. If a report is missing, the masks of the
others do not cancel, and the round counts for nobody.

Reference: Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017, section 4.
"""

from collections.abc import Mapping, MutableMapping
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedreach.errors import ConfigError, TrainingError
from fedreach.federation.aggregation.secure_sum import Words, mask
from fedreach.federation.federation import Federation
from fedreach.federation.traits import name_of

MIN_CLIENTS = 2  # clients in a sum: that of one is its report


def new_private_key() -> bytes:
    """Return 32 random bytes that never leave the client."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(private: bytes) -> bytes:
    """Return the 32 bytes that all may know."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def is_public_key(key: bytes) -> bool:
    """Return whether two clients can share a secret by this key: of some, all that comes out is zeros.

    Example:
        >>> is_public_key(public_key(new_private_key())), is_public_key(bytes(32)), is_public_key(b"short")
        (True, False, False)
    """
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(key))
    except ValueError:
        return False
    return True


def pad(private: bytes, other: bytes, run: str, round_: int, count: int) -> Words:
    """Return what two clients share in a round, from the private key of one and the public key of the other.

    Example:
        >>> ann, bob = new_private_key(), new_private_key()
        >>> bool((pad(ann, public_key(bob), "run", 3, 5) == pad(bob, public_key(ann), "run", 3, 5)).all())
        True
        >>> bool((pad(ann, public_key(bob), "run", 3, 5) == pad(ann, public_key(bob), "run", 4, 5)).any())
        False
    """
    secret = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(other))
    key = HKDF(SHA256(), 32, salt=None, info=f"fedreach mask {run} {round_}".encode()).derive(secret)
    stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * count))
    return np.frombuffer(stream, "<u8").astype(np.uint64)


def masked(
    words: Words,
    client: int,
    public: Mapping[int, bytes],
    private: bytes,
    run: str,
    round_: int,
    used: MutableMapping[str, Any],
) -> Words:
    """Return a client's words under the masks that it shares with the others of a sum, if that hides them.

    Args:
        words: (n,) of this client.
        public: Client -> public key, of all in the sum.
        private: The client's own key.
        run: Of which there are rounds.
        round_: Later than all in which masks of this run were used.
        used: Run -> the last round of it; it is noted here.

    Raises:
        TrainingError: If others could see the words through these masks.
    """
    ids = list(public)
    if client not in public or len(set(public.values())) < MIN_CLIENTS or len(set(public.values())) != len(ids):
        raise TrainingError(f"a secure sum needs {MIN_CLIENTS} clients at least, each with a key of its own; got {ids}")
    if round_ <= int(used.get(run, 0)):
        raise TrainingError(f"the masks of round {round_} were used before: a second report would show the difference")
    used[run] = round_  # an entry a run: the server chooses its name
    return mask(
        words, client, ids, lambda low, high, n: pad(private, public[high if low == client else low], run, round_, n)
    )


def keys_of(record: Mapping[str, Any]) -> dict[int, bytes]:
    """Return client -> public key, as the server hands them out."""
    return dict(zip(record["ids"], record["keys"], strict=True))


def refuse_more_than_a_sum(federation: Federation) -> None:
    """Refuse parts that a secure sum on Flower cannot serve.

    Raises:
        ConfigError: If clusters of clients, or a solver's memory, or a cohort of one ask for more than one sum.
    """
    if federation.cohort < MIN_CLIENTS:
        raise ConfigError(
            f"SecureSum needs a cohort of at least {MIN_CLIENTS}, as a sum over one client is its report; got "
            f"{federation.cohort}."
        )
    if federation.has_memory:
        keeper = federation.loss if federation.memory_solver is None else federation.solver
        raise ConfigError(
            f"SecureSum hides single updates from the server, and on Flower {type(keeper).__name__} "
            f"has it look at them. Use a {'loss' if keeper is federation.loss else 'solver'} without memory, such as "
            f"{'FedNTD' if keeper is federation.loss else 'FedProx'}."
        )
    if federation.traits["selection"].clusters:
        raise ConfigError(
            f"SecureSum on Flower is one sum over the whole cohort, and {name_of(federation.selection)} gives clusters "
            "of clients a model each. Use a selection without clusters."
        )
