"""Which engine trains: by name, or the faster one."""

from __future__ import annotations

from torch import nn

from fedreach.data.federated import FederatedData
from fedreach.engines.base import Engine
from fedreach.engines.sequential import Sequential
from fedreach.engines.stacked import Stacked
from fedreach.errors import ConfigError, nearest
from fedreach.federation.solvers import LocalSGD, LocalSolver

ENGINES: dict[str, type[Engine]] = {"sequential": Sequential, "stacked": Stacked}


def build_engine(
    name: str,
    module: nn.Module,
    data: FederatedData,
    solver: LocalSolver,
    local: LocalSGD,
    seed: int,
    device: str = "cpu",
    threads: int = 1,
) -> Engine:
    """Return the engine of this name, with the arguments of `Engine`; ``"auto"`` takes the faster one.

    A stack of convolutions runs as a grouped convolution, which on a CPU is slower than one client after the
    other (`benchmarks/engine.py` shows it); everything else, and everything on a GPU, is faster stacked.
    """
    if name == "auto":
        convolutional = any(isinstance(layer, nn.modules.conv._ConvNd) for layer in module.modules())
        name = "sequential" if convolutional and device == "cpu" else "stacked"
    if name not in ENGINES:
        raise ConfigError(f"engine.name must be known; got {name!r}." + nearest(name, [*ENGINES, "auto"]))
    return ENGINES[name](module, data, solver, local, seed, device, threads)
