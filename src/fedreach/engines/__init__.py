"""Interchangeable ways to train a cohort."""

from __future__ import annotations

from fedreach.engines.chain.trainer import Chain
from fedreach.engines.choice import ENGINES, EngineChoice, build_engine, choose
from fedreach.engines.engine import TorchEngine
from fedreach.engines.native import Native
from fedreach.engines.protocols import Engine, Task
from fedreach.engines.sequential import Sequential
from fedreach.engines.stacked import Compiled, Stacked
from fedreach.engines.trainer import GroupTrainer

__all__ = [
    "ENGINES",
    "Chain",
    "Compiled",
    "Engine",
    "EngineChoice",
    "GroupTrainer",
    "Native",
    "Sequential",
    "Stacked",
    "Task",
    "TorchEngine",
    "build_engine",
    "choose",
]
