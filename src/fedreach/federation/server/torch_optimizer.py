"""Any optimiser of PyTorch at the server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fedreach.arrays import Float32s, Floats
from fedreach.errors import ConfigError, require
from fedreach.federation.torch_optim import optimizer_class, with_tuples
from fedreach.federation.values import NO_STATE, State

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class TorchOptimizer:
    """Hand the weighted mean update to an optimiser of PyTorch as if it were a gradient.

    The gradient is -u, with u the weighted mean update, as an optimiser goes down a gradient; so SGD with rate 1 is
    `Average`. It computes in float64, on one thread, and the optimiser's own state is the state of this part: a run
    that is resumed goes on with the same bits.

    When: an optimiser of PyTorch that is not built in shall be tried.

    Args:
        optimizer: A class of `torch.optim`, such as ``"Adam"``; it must step from gradients alone, which L-BFGS and
            SparseAdam do not.
        rate: The optimiser's learning rate, positive.
        options: Its other options, such as ``{"betas": [0.9, 0.99]}``; None for torch's defaults.

    Raises:
        ConfigError: If torch has no such optimiser, or it cannot be used here or with these options.

    Reference: "FedOpt" of Reddi et al., "Adaptive Federated Optimization" (ICLR 2021, arXiv 2003.00295), Algorithm 1.

    Example:
        >>> step = TorchOptimizer("SGD", rate=1.0)
        >>> step.apply(np.zeros(2, np.float32), {}, np.array([1.0, 2.0]))[0]
        array([1., 2.], dtype=float32)
    """

    optimizer: str = "Adam"
    rate: float = 0.01
    options: Mapping[str, Any] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        require(self, rate="(0, inf)")
        if "lr" in (self.options or {}):
            raise ConfigError("TorchOptimizer.options must not hold 'lr'. It is the option `rate`.")
        optimizer_class("TorchOptimizer", self.optimizer)
        try:  # twice, as the second step is the first to read a state
            params, state = np.zeros(2, np.float32), NO_STATE
            for _ in range(2):
                params, state = self.apply(params, state, np.array([1.0, -2.0]))
        except Exception as error:  # torch refuses options and gradients by errors of many types
            raise ConfigError(
                f"TorchOptimizer cannot step with torch.optim.{self.optimizer}, rate {self.rate} and options "
                f"{dict(self.options or {})}: {error}. Correct the options, or choose another optimizer."
            ) from error

    def apply(self, params: Float32s, state: State, mean_update: Floats) -> tuple[Float32s, State]:
        """Return the new (d,) parameters and what the optimiser keeps, by torch's names."""
        import torch

        with _one_thread():
            vector = torch.tensor(params, dtype=torch.float64, requires_grad=True)
            vector.grad = torch.tensor(-mean_update, dtype=torch.float64)
            optimizer: torch.optim.Optimizer = getattr(torch.optim, self.optimizer)(
                [vector], lr=self.rate, **with_tuples(self.options)
            )
            # What is kept between steps is a public attribute; `load_state_dict` would also cast it.
            optimizer.state[vector].update({key: torch.tensor(value) for key, value in state.items()})
            optimizer.step()
        return vector.detach().numpy().astype(np.float32), _arrays(optimizer.state[vector])


def _arrays(kept: Mapping[str, Any]) -> State:
    """Return the tensors of an optimiser's state as arrays; None, as SGD keeps without momentum, is no state."""
    return {key: value.detach().numpy() for key, value in kept.items() if value is not None}


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute on one thread: where a vector is cut among threads can change the last bits."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
