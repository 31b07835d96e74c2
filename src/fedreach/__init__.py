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
    from fedreach import testing as testing
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
    from fedreach.data import shifts as shift  # noqa: F401
    from fedreach.data.datasets import Dataset as Dataset
    from fedreach.data.datasets import PartitionSpec as PartitionSpec
    from fedreach.data.datasets import from_arrays as from_arrays
    from fedreach.data.federated import FederatedData as FederatedData
    from fedreach.data.sets import load as load
    from fedreach.data.shifts import Shift as Shift
    from fedreach.evaluation import metrics as metric  # noqa: F401
    from fedreach.evaluation.metrics import Metric as Metric
    from fedreach.federation import adaptation as adaptation
    from fedreach.federation import aggregation as aggregation
    from fedreach.federation import attacks as attack  # noqa: F401
    from fedreach.federation import augmentations as augmentation  # noqa: F401
    from fedreach.federation import labels as label_statistics  # noqa: F401
    from fedreach.federation import losses as loss  # noqa: F401
    from fedreach.federation import measurements as measurement  # noqa: F401
    from fedreach.federation import participation as participation
    from fedreach.federation import selection as selection
    from fedreach.federation import server as server
    from fedreach.federation import solvers as solver  # noqa: F401
    from fedreach.federation import types as types
    from fedreach.federation import weighting as weighting
    from fedreach.federation.attacks import Attack as Attack
    from fedreach.federation.augmentations import Augmentation as Augmentation
    from fedreach.federation.base import Adaptation as Adaptation
    from fedreach.federation.base import Aggregator as Aggregator
    from fedreach.federation.base import LabelStatistics as LabelStatistics
    from fedreach.federation.base import LocalSolver as LocalSolver
    from fedreach.federation.base import Loss as Loss
    from fedreach.federation.base import Measurement as Measurement
    from fedreach.federation.base import Selection as Selection
    from fedreach.federation.base import ServerOptimizer as ServerOptimizer
    from fedreach.federation.base import Weighting as Weighting
    from fedreach.federation.participation import Participation as Participation
    from fedreach.federation.types import ClientResults as ClientResults
    from fedreach.federation.types import Cohort as Cohort
    from fedreach.federation.types import ServerView as ServerView
    from fedreach.runs.callbacks import Callback as Callback
    from fedreach.wireless import rules as allocation  # noqa: F401
    from fedreach.wireless.rules import AllocationRule as AllocationRule

__version__ = "0.1.0"

_NAMES = {
    "_util.errors": (
        "ComponentError",
        "ConfigError",
        "DataError",
        "FedReachError",
        "InfeasibleError",
        "RunFolderError",
        "TrainingError",
    ),
    "api.compare": ("Method", "compare"),
    "api.comparison": ("Comparison",),
    "api.open": ("Run", "open"),
    "api.run": ("run",),
    "api.sweep": ("Sweep", "sweep"),
    "data.datasets": ("Dataset", "PartitionSpec", "from_arrays"),
    "data.federated": ("FederatedData",),
    "data.sets": ("load",),
    "data.shifts": ("Shift",),
    "evaluation.metrics": ("Metric",),
    "federation.augmentations": ("Augmentation",),
    "federation.base": (
        "Adaptation",
        "Aggregator",
        "LabelStatistics",
        "LocalSolver",
        "Loss",
        "Measurement",
        "Selection",
        "ServerOptimizer",
        "Weighting",
    ),
    "federation.attacks": ("Attack",),
    "federation.participation": ("Participation",),
    "federation.types": ("ClientResults", "Cohort", "ServerView"),
    "runs.callbacks": ("Callback",),
    "wireless.rules": ("AllocationRule",),
}
"""Module -> names that it provides, which are imported when they are first used."""

_MODULES = {
    "errors": "_util.errors",
    "types": "federation.types",
    "testing": "testing",
    "selection": "federation.selection",
    "weighting": "federation.weighting",
    "solver": "federation.solvers",
    "server": "federation.server",
    "aggregation": "federation.aggregation",
    "loss": "federation.losses",
    "adaptation": "federation.adaptation",
    "label_statistics": "federation.labels",
    "measurement": "federation.measurements",
    "metric": "evaluation.metrics",
    "participation": "federation.participation",
    "attack": "federation.attacks",
    "augmentation": "federation.augmentations",
    "allocation": "wireless.rules",
    "shift": "data.shifts",
}
"""Name -> module: the errors, the values of a round, the checks, and the components of each type."""

_WHERE = {name: module for module, names in _NAMES.items() for name in names}

MODULE_OF = _WHERE | _MODULES
"""Name -> module that has it or is it."""

__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"fedreach.{_MODULES[name]}")
    if name not in _WHERE:
        raise AttributeError(f"module 'fedreach' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fedreach.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES, "__version__"])
