"""FedReach: federated learning for the clients who train and for those who never do.

Here is what a comparison needs: data of clients, methods, and the functions that compare or run them. The names are
imported when they are first used, so that ``import fedreach`` is quick, and torch is loaded only where tensors are.

    import fedreach as fr

    data = fr.FederatedData.from_frame(table, client="hospital", label="ill", participants=["north", "south"])
    comparison = fr.compare(data, {"fedavg": {}, "ours": fr.Method(server="adam", adaptation="label_shift")}, seeds=10)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedreach._util import errors as errors
    from fedreach._util.errors import ComponentError as ComponentError
    from fedreach._util.errors import ConfigError as ConfigError
    from fedreach._util.errors import DataError as DataError
    from fedreach._util.errors import FedReachError as FedReachError
    from fedreach._util.errors import InfeasibleError as InfeasibleError
    from fedreach._util.errors import RunFolderError as RunFolderError
    from fedreach._util.errors import TrainingError as TrainingError
    from fedreach.api.compare import Method as Method
    from fedreach.api.compare import compare as compare
    from fedreach.api.comparison import Comparison as Comparison
    from fedreach.api.open import Run as Run
    from fedreach.api.open import open as open  # noqa: A004  # fedreach.open
    from fedreach.api.run import run as run
    from fedreach.api.sweep import Sweep as Sweep
    from fedreach.api.sweep import sweep as sweep
    from fedreach.data.datasets import Dataset as Dataset
    from fedreach.data.datasets import PartitionSpec as PartitionSpec
    from fedreach.data.datasets import from_arrays as from_arrays
    from fedreach.data.federated import FederatedData as FederatedData
    from fedreach.data.sets import load as load
    from fedreach.federation.types import ClientResults as ClientResults
    from fedreach.federation.types import Cohort as Cohort
    from fedreach.federation.types import ServerView as ServerView
    from fedreach.runs.callbacks import Callback as Callback

__version__ = "0.1.0"

_WHERE = {
    "load": "fedreach.data.sets",
    "from_arrays": "fedreach.data.datasets",
    "Dataset": "fedreach.data.datasets",
    "PartitionSpec": "fedreach.data.datasets",
    "FederatedData": "fedreach.data.federated",
    "Method": "fedreach.api.compare",
    "compare": "fedreach.api.compare",
    "sweep": "fedreach.api.sweep",
    "Sweep": "fedreach.api.sweep",
    "run": "fedreach.api.run",
    "open": "fedreach.api.open",
    "Run": "fedreach.api.open",
    "Comparison": "fedreach.api.comparison",
    "ServerView": "fedreach.federation.types",
    "ClientResults": "fedreach.federation.types",
    "Cohort": "fedreach.federation.types",
    "Callback": "fedreach.runs.callbacks",
    "FedReachError": "fedreach._util.errors",
    "ConfigError": "fedreach._util.errors",
    "ComponentError": "fedreach._util.errors",
    "InfeasibleError": "fedreach._util.errors",
    "DataError": "fedreach._util.errors",
    "RunFolderError": "fedreach._util.errors",
    "TrainingError": "fedreach._util.errors",
}

__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    if name == "errors":  # all of them, as in `except fr.errors.DataError`
        return importlib.import_module("fedreach._util.errors")
    if name not in _WHERE:
        raise AttributeError(f"module 'fedreach' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
