"""What a part says of itself beside its methods."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from fedreach.federation.values import ClientView, Probe, State


def name_of(part: object) -> str:
    """Return what messages call a part."""
    return str(getattr(part, "name", type(part).__name__))


FACTS: Mapping[str, str] = MappingProxyType(
    {
        "label_counts": "number of training examples per class, c numbers a client, sent once",
        "label_entropy": "entropy of the client's labels in nats, one number a client, sent once",
    }
)
"""What a part may ask of clients through its attribute `needs`; 4 bytes a number, counted in round 1."""


def no_probe(self: object, state: State, view: ClientView, k: int, rng: np.random.Generator) -> Probe | None:
    """Ask nobody; a policy whose method `probe` this is need not be asked, and no generator made for it."""
    return None


def is_affine(solver: object) -> bool:
    """Return whether the class that defines a solver's `correct` says that this is affine, see `LocalSolver`."""
    owners = [kind for kind in type(solver).__mro__ if "correct" in vars(kind)]
    return bool(owners) and bool(vars(owners[0]).get("affine", False))
