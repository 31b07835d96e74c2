"""How much each report counts."""

from __future__ import annotations

from fedreach.federation.weighting.base import FunctionWeighting, OwnWeight
from fedreach.federation.weighting.by_examples import ByExamples
from fedreach.federation.weighting.clip import Clip
from fedreach.federation.weighting.disagreement import ByDisagreement
from fedreach.federation.weighting.entropy import ByEntropy
from fedreach.federation.weighting.equal import Equal
from fedreach.federation.weighting.mix import Mix
from fedreach.federation.weighting.product import Product

WEIGHTINGS: dict[str, type] = {
    "by_examples": ByExamples,
    "equal": Equal,
    "entropy": ByEntropy,
    "disagreement": ByDisagreement,
    "product": Product,
    "mix": Mix,
    "clip": Clip,
}

__all__ = [
    "WEIGHTINGS",
    "ByDisagreement",
    "ByEntropy",
    "ByExamples",
    "Clip",
    "Equal",
    "FunctionWeighting",
    "Mix",
    "OwnWeight",
    "Product",
]
