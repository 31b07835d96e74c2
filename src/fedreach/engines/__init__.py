"""Interchangeable ways to train a cohort."""

from __future__ import annotations

from fedreach.engines.chain.engine import Chain
from fedreach.engines.choice import ENGINES, Choice, build_engine, choose
from fedreach.engines.engine import Engine
from fedreach.engines.native import Native
from fedreach.engines.sequential import Sequential
from fedreach.engines.stacked import Compiled, Stacked
from fedreach.federation.values import LocalUpdates

__all__ = [
    "ENGINES",
    "Chain",
    "Choice",
    "Compiled",
    "Engine",
    "LocalUpdates",
    "Native",
    "Sequential",
    "Stacked",
    "build_engine",
    "choose",
]
