"""Interchangeable ways to train a cohort."""

from __future__ import annotations

from fedreach.engines.base import Engine, Trained
from fedreach.engines.choice import ENGINES, build_engine
from fedreach.engines.sequential import Sequential
from fedreach.engines.stacked import Stacked

__all__ = ["ENGINES", "Engine", "Sequential", "Stacked", "Trained", "build_engine"]
