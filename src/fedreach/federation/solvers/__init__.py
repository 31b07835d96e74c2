"""How clients train: local SGD, with one correction of the gradient per solver."""

from __future__ import annotations

from fedreach.federation.local_sgd import LocalSGD, Schedule
from fedreach.federation.protocols import LocalSolver, MemorySolver
from fedreach.federation.solvers.fedavg import FedAvg
from fedreach.federation.solvers.feddyn import FedDyn
from fedreach.federation.solvers.fedprox import FedProx
from fedreach.federation.solvers.scaffold import Scaffold

SOLVERS: dict[str, type] = {"fedavg": FedAvg, "fedprox": FedProx, "scaffold": Scaffold, "feddyn": FedDyn}

__all__ = [
    "SOLVERS",
    "FedAvg",
    "FedDyn",
    "FedProx",
    "LocalSGD",
    "LocalSolver",
    "MemorySolver",
    "Scaffold",
    "Schedule",
]
