"""Who trains."""

from __future__ import annotations

from fedreach.federation.selection.base import FunctionSelection, Policy
from fedreach.federation.selection.best_channels import BestChannels
from fedreach.federation.selection.clustered import Clustered
from fedreach.federation.selection.convex_hull import ConvexHull
from fedreach.federation.selection.csra import CSRA
from fedreach.federation.selection.entropy_topk import EntropyTopK
from fedreach.federation.selection.full import Full
from fedreach.federation.selection.hull_distance import HullDistance
from fedreach.federation.selection.interior import Interior
from fedreach.federation.selection.kl_filter import KLFilter
from fedreach.federation.selection.max_similarity import MaxSimilarity
from fedreach.federation.selection.minimax import Minimax
from fedreach.federation.selection.power_of_choice import PowerOfChoice
from fedreach.federation.selection.rademacher import Rademacher
from fedreach.federation.selection.shared.gradient_table import GradientTable
from fedreach.federation.selection.uniform import Uniform

SELECTIONS: dict[str, type] = {
    "uniform": Uniform,
    "full": Full,
    "power_of_choice": PowerOfChoice,
    "entropy_topk": EntropyTopK,
    "kl_filter": KLFilter,
    "clustered": Clustered,
    "rademacher": Rademacher,
    "minimax": Minimax,
    "max_similarity": MaxSimilarity,
    "convex_hull": ConvexHull,
    "hull_distance": HullDistance,
    "interior": Interior,
    "best_channels": BestChannels,
    "csra": CSRA,
}

__all__ = [
    "CSRA",
    "SELECTIONS",
    "BestChannels",
    "Clustered",
    "ConvexHull",
    "EntropyTopK",
    "Full",
    "FunctionSelection",
    "GradientTable",
    "HullDistance",
    "Interior",
    "KLFilter",
    "MaxSimilarity",
    "Minimax",
    "Policy",
    "PowerOfChoice",
    "Rademacher",
    "Uniform",
]
