"""Weightings made of weightings: what they ask of clients, what they keep, and how they are asked."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedreach.arrays import AnyArray, Floats
from fedreach.errors import ConfigError
from fedreach.federation.answers import checked_weights
from fedreach.federation.protocols import Weighting
from fedreach.federation.traits import kinds_of
from fedreach.federation.values import Reports, State


def checked_parts(owner: str, parts: Any) -> tuple[Weighting, ...]:
    """Return the parts as a tuple, or say which of them is no weighting.

    Raises:
        ConfigError: If there is none, or one has no method `weights`.
    """
    listed = isinstance(parts, Iterable) and not isinstance(parts, str)
    found: tuple[Any, ...] = tuple(parts) if listed else (parts,)
    if not found:
        raise ConfigError(f"{owner} must have at least one weighting in it; got none.")
    for part in found:
        if "weighting" not in kinds_of(part) or isinstance(part, type):
            raise ConfigError(
                f"{owner} must be made of weightings, such as ByEntropy(); got {part!r}. Names of weightings stand for "
                "them in experiment files only."
            )
    return found


def checked_factors(owner: str, factors: Sequence[float] | None, parts: Sequence[Weighting]) -> tuple[float, ...]:
    """Return one number for each part, 1 for all where they are left out.

    Raises:
        ConfigError: If there are not as many as parts, or one is negative or not finite, or all are 0.
    """
    found = (1.0,) * len(parts) if factors is None else tuple(factors)
    if len(found) != len(parts):
        raise ConfigError(f"{owner} must have one number for each of the {len(parts)} parts; got {list(found)}.")
    if not (np.isfinite(found).all() and min(found) >= 0 and max(found) > 0):
        raise ConfigError(f"{owner} must be finite, not negative and not all 0; got {list(found)}.")
    return found


def weights_of(parts: Mapping[str, Weighting], state: State, reports: Reports) -> tuple[list[Floats], State]:
    """Return each part's (r,) weights, and the new state of all.

    Parts go by the name under which their state is kept, in arrays called ``"NAME.KEY"``.
    """
    found: list[Floats] = []
    kept: dict[str, AnyArray] = {}
    for name, part in parts.items():
        prefix = f"{name}."
        own = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
        weights, new = checked_weights(part, part.weights(own, reports), len(reports.ids))
        found.append(weights)
        kept |= {prefix + key: value for key, value in new.items()}
    return found, kept
