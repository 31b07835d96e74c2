"""Interchangeable ways to train a cohort."""

from __future__ import annotations

from fedreach.engines.base import Engine, Trained
from fedreach.engines.chain import Chain
from fedreach.engines.choice import ENGINES, Choice, build_engine, choose
from fedreach.engines.compiled import Compiled
from fedreach.engines.native import Native
from fedreach.engines.sequential import Sequential
from fedreach.engines.stacked import Stacked

__all__ = [
    "ENGINES",
    "Chain",
    "Choice",
    "Compiled",
    "Engine",
    "Native",
    "Sequential",
    "Stacked",
    "Trained",
    "build_engine",
    "choose",
]
