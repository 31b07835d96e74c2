"""How much each report counts."""

from __future__ import annotations

from fedreach.federation.weighting.by_examples import ByExamples
from fedreach.federation.weighting.entropy import ByEntropy
from fedreach.federation.weighting.equal import Equal
from fedreach.federation.weighting.function import FunctionWeighting

WEIGHTINGS: dict[str, type] = {"by_examples": ByExamples, "equal": Equal, "entropy": ByEntropy}

__all__ = ["WEIGHTINGS", "ByEntropy", "ByExamples", "Equal", "FunctionWeighting"]
