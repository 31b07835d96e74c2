"""Classes of `torch.optim`: which there are, and their options as an experiment file says them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from fedreach.errors import ConfigError, nearest


def optimizer_class(part: str, name: str) -> Any:
    """Return a class of `torch.optim` that steps from gradients alone.

    Args:
        part: That asks, for errors.
        name: Of the class.

    Raises:
        ConfigError: If torch has none of this name, or it calls for the loss itself, as L-BFGS does.
    """
    import torch

    known = {
        key: thing
        for key, thing in vars(torch.optim).items()
        if inspect.isclass(thing) and issubclass(thing, torch.optim.Optimizer) and thing is not torch.optim.Optimizer
    }
    if name not in known:
        raise ConfigError(f"{part}.optimizer must be a class of torch.optim; got {name!r}." + nearest(name, known))
    if inspect.signature(known[name].step).parameters["closure"].default is inspect.Parameter.empty:
        raise ConfigError(
            f"{part}.optimizer must step from a gradient alone; {name} calls for the loss itself, several times a "
            "step. Choose another, such as 'Adam'."
        )
    return known[name]


def with_tuples(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options with tuples for the lists that an experiment file has in their place."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in (options or {}).items()}
