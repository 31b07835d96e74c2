"""Augmented training batches: each seeded by run, round, client and step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedreach.errors import ConfigError, PartError
from fedreach.federation.augmentations import Augmentation
from fedreach.federation.traits import name_of
from fedreach.models.draws import seeded
from fedreach.streams import torch_seed


def augmented(augmentation: Augmentation, x: Tensor, seed: int, round_: int, client: int, step: int) -> Tensor:
    """Return the inputs of a client's training batch as the model is to see them.

    Args:
        augmentation: Changes them; it draws from generators that are seeded, see `fedreach.models.draws`.
        x: (b, ...) inputs, which it may not write to.
        seed: Of the run.
        round_: The round.
        client: Its id.
        step: Of the client in the round, 1 the first.

    Raises:
        PartError: If what it returns has another shape or type.

    Example:
        >>> from fedreach.federation.augmentations import FlipAndCrop
        >>> x = torch.arange(16.0).view(1, 1, 4, 4)
        >>> one, same = (augmented(FlipAndCrop(padding=2), x, 0, 1, 7, 3) for _ in range(2))
        >>> torch.equal(one, same), one.shape
        (True, torch.Size([1, 1, 4, 4]))
    """
    with seeded(torch_seed(seed, f"augmentation {step}", round_, client), x.device), torch.no_grad():
        found: Any = augmentation.augment(x.clone())
    if not isinstance(found, Tensor) or found.shape != x.shape or found.dtype != x.dtype:
        got = f"{tuple(found.shape)} of {found.dtype}" if isinstance(found, Tensor) else type(found).__name__
        raise PartError(
            f"The augmentation {name_of(augmentation)} must return inputs as it was given them, {tuple(x.shape)} of "
            f"{x.dtype}; got {got}."
        )
    return found


def check_augmentation(augmentation: Augmentation, x: Tensor) -> None:
    """Try an augmentation twice on some inputs, before the first round.

    Raises:
        ConfigError: If it fails on them, or two calls with one seed differ.
        PartError: If it returns another shape or type.
    """
    name = name_of(augmentation)
    try:
        one, same = (augmented(augmentation, x, 0, 1, 0, 1) for _ in range(2))
    except (ConfigError, PartError):
        raise
    except Exception as error:  # whatever the user's code does
        raise ConfigError(
            f"The augmentation {name} does not take this data, inputs of shape {tuple(x.shape)} and type {x.dtype}: "
            f"{error}"
        ) from error
    if not torch.equal(one, same):
        raise PartError(
            f"The augmentation {name} must draw from torch, numpy.random or random, which FedReach seeds; two calls "
            "with one seed differ. Use torch.rand, torch.randint and the like."
        )
