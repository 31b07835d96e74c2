"""FedReach: federated learning for the clients who train and for those who never do.

The names below are imported when they are first used, so that ``import fedreach`` is quick and torch is loaded only
where tensors are.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedreach.data.datasets import Dataset as Dataset
    from fedreach.data.datasets import from_arrays as from_arrays
    from fedreach.data.federated import FederatedData as FederatedData
    from fedreach.data.federated import federate as federate
    from fedreach.data.sets.catalogue import load as load
    from fedreach.engines import build_engine as build_engine
    from fedreach.evaluation import Evaluator as Evaluator
    from fedreach.federation.federation import Federation as Federation
    from fedreach.federation.local_sgd import LocalSGD as LocalSGD
    from fedreach.federation.values import ClientView as ClientView
    from fedreach.federation.values import Reports as Reports
    from fedreach.federation.values import Selection as Selection
    from fedreach.simulation.simulation import Simulation as Simulation
    from fedreach.simulation.simulation import simulate as simulate

__version__ = "0.1.0"

_WHERE = {
    "load": "fedreach.data.sets.catalogue",
    "Dataset": "fedreach.data.datasets",
    "from_arrays": "fedreach.data.datasets",
    "FederatedData": "fedreach.data.federated",
    "federate": "fedreach.data.federated",
    "build_engine": "fedreach.engines",
    "Simulation": "fedreach.simulation.simulation",
    "simulate": "fedreach.simulation.simulation",
    "Evaluator": "fedreach.evaluation",
    "ClientView": "fedreach.federation.values",
    "Federation": "fedreach.federation.federation",
    "Reports": "fedreach.federation.values",
    "Selection": "fedreach.federation.values",
    "LocalSGD": "fedreach.federation.solvers",
}

__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'fedreach' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)
