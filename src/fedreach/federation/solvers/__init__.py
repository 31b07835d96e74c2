"""How clients train: local SGD, with one correction of the gradient per solver."""

from __future__ import annotations

from fedreach.federation.solvers.fedavg import FedAvg
from fedreach.federation.solvers.fedprox import FedProx
from fedreach.federation.solvers.local import LocalSGD, LocalSolver, Schedule

SOLVERS: dict[str, type] = {"fedavg": FedAvg, "fedprox": FedProx}

__all__ = ["SOLVERS", "FedAvg", "FedProx", "LocalSGD", "LocalSolver", "Schedule"]
