"""Any optimizer of PyTorch at the clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedreach.errors import ConfigError
from fedreach.federation.torch_optim import optimizer_class, with_tuples

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class TorchSteps:
    """Let an optimizer of PyTorch take a client's steps.

    It is handed the corrected and clipped gradient, and the rate of the round as its ``lr``. It begins again in every
    round, so nothing of its state is sent or kept. The engine `sequential` trains with it.

    When: an optimizer of PyTorch that is not built in, such as RMSprop, NAdam or Adafactor, is to be tried.

    Args:
        optimizer: Class of `torch.optim` that steps from gradients alone, which LBFGS and SparseAdam do not.
        options: Its options other than ``lr``, such as ``{"alpha": 0.9}``; None for torch's defaults.

    Raises:
        ConfigError: If torch has no such optimizer, or it cannot be used here or with these options.

    Example:
        >>> import torch
        >>> weights = torch.nn.Parameter(torch.zeros(2))
        >>> weights.grad = torch.tensor([3.0, -0.5])
        >>> TorchSteps("SGD").begun([weights], rate=0.1).step()
        >>> weights.detach()
        tensor([-0.3000,  0.0500])
    """

    optimizer: str
    options: Mapping[str, Any] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        import torch

        optimizer_class("TorchSteps", self.optimizer)
        if "lr" in (self.options or {}):
            raise ConfigError("TorchSteps.options must not hold 'lr'. It is local.rate.")
        weights = torch.nn.Parameter(torch.zeros(2, 2))
        weights.grad = torch.ones(2, 2)
        try:
            self.begun([weights], 0.01).step()
        except Exception as error:  # torch refuses options and gradients by errors of many types
            raise ConfigError(
                f"TorchSteps cannot step with torch.optim.{self.optimizer} and options {dict(self.options or {})}: "
                f"{error}. Correct the options, or choose another optimizer."
            ) from error

    def begun(self, parameters: Iterable[torch.nn.Parameter], rate: float) -> torch.optim.Optimizer:
        """Return the optimizer at the beginning of a round, of parameters that have their gradients.

        Raises:
            ConfigError: If it does not take parameters of such shapes.
        """
        made = optimizer_class("TorchSteps", self.optimizer)
        try:
            found: torch.optim.Optimizer = made(list(parameters), lr=rate, **with_tuples(self.options))
        except ValueError as error:
            raise ConfigError(
                f"torch.optim.{self.optimizer} does not take this model or these options: {error}. Choose another."
            ) from error
        return found
