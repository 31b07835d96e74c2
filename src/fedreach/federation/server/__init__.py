"""What the server does with the weighted mean of the updates, and in which rounds it trains itself."""

from __future__ import annotations

from fedreach.federation.server.adaptive import FedAdam, FedYogi
from fedreach.federation.server.average import Average
from fedreach.federation.server.safari import Safari
from fedreach.federation.server.server_only import ServerOnly
from fedreach.federation.server.torch_optimizer import TorchOptimizer

SERVERS: dict[str, type] = {
    "average": Average,
    "adam": FedAdam,
    "yogi": FedYogi,
    "torch_optim": TorchOptimizer,
    "safari": Safari,
    "server_only": ServerOnly,
}

__all__ = ["SERVERS", "Average", "FedAdam", "FedYogi", "Safari", "ServerOnly", "TorchOptimizer"]
