"""Trained models and adapters: loading, prediction and export."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedreach.deploy.adapter import Adapter as Adapter
    from fedreach.deploy.model import TrainedModel as TrainedModel
    from fedreach.deploy.saved import load as load

_WHERE = {
    "Adapter": "fedreach.deploy.adapter",
    "TrainedModel": "fedreach.deploy.model",
    "load": "fedreach.deploy.saved",
}

__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'fedreach.deploy' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)
