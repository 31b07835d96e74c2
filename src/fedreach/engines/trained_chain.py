"""Chains of layers all of whose numbers are trained."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from fedreach.engines.layers import Layer
from fedreach.engines.recognition import NotAChainError, chain_of
from fedreach.models.copying import copied
from fedreach.models.state import constants_of, counts_batches


def trained_chain_of(module: nn.Module, sample: Sequence[int]) -> list[Layer]:
    """Return the layers of a model, see `chain_of`; the model stays as it is, whatever its code changes when traced.

    Raises:
        NotAChainError: If the model has constants, see `fedreach.models.state`, or anything else that is not known.

    Example:
        >>> len(trained_chain_of(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), (4,)))
        2
    """
    held = [name for name in constants_of(module) if not counts_batches(name)]
    if held:
        raise NotAChainError(f"{held[0]} is not trained")
    return chain_of(copied(module), sample)
