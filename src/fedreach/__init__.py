"""FedReach: federated learning for the clients who train and for those who never do.

Here is what a study needs: data of clients, methods, and the functions that compare or run them. The names are imported
when they are first used, so that ``import fedreach`` is quick, and torch is loaded only where tensors are.

    import fedreach as fr

    data = fr.FederatedData.from_frame(table, client="hospital", label="ill", participants=["north", "south"])
    study = fr.compare(data, {"fedavg": {}, "ours": fr.Method(server="adam", serving="label_shift")}, seeds=10)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedreach.data.datasets import Dataset as Dataset
    from fedreach.data.datasets import Recipe as Recipe
    from fedreach.data.datasets import from_arrays as from_arrays
    from fedreach.data.federated import FederatedData as FederatedData
    from fedreach.data.sets.catalogue import load as load
    from fedreach.errors import FedReachError as FedReachError
    from fedreach.federation.values import ClientView as ClientView
    from fedreach.federation.values import Reports as Reports
    from fedreach.federation.values import Selection as Selection
    from fedreach.runs.callbacks import Callback as Callback
    from fedreach.study.compare import compare as compare
    from fedreach.study.method import Method as Method
    from fedreach.study.opening import Run as Run
    from fedreach.study.opening import open as open  # noqa: A004  # fedreach.open
    from fedreach.study.run import run as run
    from fedreach.study.study import Study as Study
    from fedreach.study.sweep import Sweep as Sweep
    from fedreach.study.sweep import sweep as sweep

__version__ = "0.1.0"

_WHERE = {
    "load": "fedreach.data.sets.catalogue",
    "from_arrays": "fedreach.data.datasets",
    "Dataset": "fedreach.data.datasets",
    "Recipe": "fedreach.data.datasets",
    "FederatedData": "fedreach.data.federated",
    "Method": "fedreach.study.method",
    "compare": "fedreach.study.compare",
    "sweep": "fedreach.study.sweep",
    "Sweep": "fedreach.study.sweep",
    "run": "fedreach.study.run",
    "open": "fedreach.study.opening",
    "Run": "fedreach.study.opening",
    "Study": "fedreach.study.study",
    "ClientView": "fedreach.federation.values",
    "Reports": "fedreach.federation.values",
    "Selection": "fedreach.federation.values",
    "Callback": "fedreach.runs.callbacks",
    "FedReachError": "fedreach.errors",
}

__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'fedreach' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
