"""Who trains."""

from __future__ import annotations

from fedreach.federation.selection.base import Policy
from fedreach.federation.selection.entropy_topk import EntropyTopK
from fedreach.federation.selection.full import Full
from fedreach.federation.selection.function import FunctionSelection
from fedreach.federation.selection.power_of_choice import PowerOfChoice
from fedreach.federation.selection.uniform import Uniform

SELECTIONS: dict[str, type] = {
    "uniform": Uniform,
    "full": Full,
    "power_of_choice": PowerOfChoice,
    "entropy_topk": EntropyTopK,
}

__all__ = ["SELECTIONS", "EntropyTopK", "Full", "FunctionSelection", "Policy", "PowerOfChoice", "Uniform"]
