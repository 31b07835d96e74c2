"""Transforms of torchvision, where it is installed."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fedreach.errors import ConfigError, nearest
from fedreach.federation.torch_optim import with_tuples


@dataclass(frozen=True)
class Torchvision:
    """Apply transforms of `torchvision.transforms.v2` to the batch, one after another.

    They draw once per batch: all images of a batch are flipped, or none. torchvision must be installed.

    When: torchvision has the transform that you need.

    Args:
        transforms: Tables with the ``name`` of a class of `torchvision.transforms.v2` and its options, such as
            ``{"name": "RandomErasing", "p": 0.2}``.

    Raises:
        ConfigError: If torchvision is missing, or it has no such transform or option.

    See https://docs.pytorch.org/vision/stable/transforms.html for what there is.
    """

    transforms: tuple[Mapping[str, Any], ...] = field(hash=False)

    def __post_init__(self) -> None:
        if not self.transforms:
            raise ConfigError("Torchvision.transforms must name at least one transform; got none.")
        _ = self._made

    @cached_property
    def _made(self) -> list[Any]:
        try:
            v2 = importlib.import_module("torchvision.transforms.v2")
        except ImportError as error:
            raise ConfigError(
                f"The augmentation 'torchvision' needs torchvision: {error}. Install it for your torch, or take "
                "'flip_and_crop'."
            ) from error
        return [_transform(v2, dict(table)) for table in self.transforms]

    def augment(self, inputs: Any) -> Any:
        for transform in self._made:
            inputs = transform(inputs)
        return inputs


def _transform(v2: Any, options: dict[str, Any]) -> Any:
    name = str(options.pop("name", ""))
    known = [key for key, thing in vars(v2).items() if isinstance(thing, type)]
    if name not in known:
        raise ConfigError(
            f"Torchvision.transforms must name classes of torchvision.transforms.v2; got {name!r}."
            + nearest(name, known)
        )
    try:
        return getattr(v2, name)(**with_tuples(options))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"torchvision's {name} does not take the options {options}: {error}.") from error
