"""A plain function as a loss."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FunctionLoss:
    """Use ``function(outputs, targets) -> (b,) losses``, of torch tensors (b, c) and (b,).

    Where targets are numbers, both are (b, t). A function for such says ``needs_numbers = True``, and is then tried
    and used with numbers only. It is handed them as they are, as in torch; with ``scales_targets = True`` on the
    participants' scale, see `MSE`.

    Example:
        >>> import torch
        >>> margin = FunctionLoss(lambda outputs, targets: 1 - outputs.gather(1, targets[:, None])[:, 0])
        >>> margin.per_example(torch.tensor([[0.25, 0.5]]), torch.tensor([1]))
        tensor([0.5000])
    """

    function: Callable[[Any, Any], Any]

    @property
    def name(self) -> str:
        """The function's name, for messages."""
        return getattr(self.function, "__name__", "loss")

    def per_example(self, outputs: Any, targets: Any) -> Any:
        return self.function(outputs, targets)
