"""FedReach's methods on Flower's Message API, in Flower's simulation and between machines.

The server side is `FedReachStrategy`. The client side is `client_app`, or `share_labels` for an app with its own
training. `FlowerExperiment` creates both sides from one experiment file. `FlowerTables` does so if each client has its
own table. `what_the_server_learns` lists the data about clients that reach the server. This package requires the extra
``fedreach[flower]``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fedreach._util.errors import ConfigError

if TYPE_CHECKING:
    from fedreach.federation.disclosure import what_the_server_learns as what_the_server_learns
    from fedreach.flower.app import client_app as client_app
    from fedreach.flower.app import share_labels as share_labels
    from fedreach.flower.experiment import FlowerExperiment as FlowerExperiment
    from fedreach.flower.local import ClientData as ClientData
    from fedreach.flower.strategy import FedReachStrategy as FedReachStrategy
    from fedreach.flower.tables import FlowerTables as FlowerTables


_WHERE = {
    "ClientData": "fedreach.flower.local",
    "FedReachStrategy": "fedreach.flower.strategy",
    "FlowerExperiment": "fedreach.flower.experiment",
    "FlowerTables": "fedreach.flower.tables",
    "client_app": "fedreach.flower.app",
    "share_labels": "fedreach.flower.app",
    "what_the_server_learns": "fedreach.federation.disclosure",
}

__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'fedreach.flower' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_WHERE[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "flwr":
            raise
        raise ConfigError(
            "fedreach.flower needs flwr, which is not installed. Run: pip install 'fedreach[flower]'"
        ) from error
