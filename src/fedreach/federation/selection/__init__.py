"""Client selection policies."""

from collections.abc import Mapping
from typing import Any

from fedreach.federation.selection.clustering import IFCA as IFCA
from fedreach.federation.selection.clustering import UpdateKMeans as UpdateKMeans
from fedreach.federation.selection.geometry import GradientTable as GradientTable
from fedreach.federation.selection.labels import Clustered as Clustered
from fedreach.federation.selection.labels import EntropyTopK as EntropyTopK
from fedreach.federation.selection.labels import HiCS as HiCS
from fedreach.federation.selection.labels import KLFilter as KLFilter
from fedreach.federation.selection.losses import Minimax as Minimax
from fedreach.federation.selection.losses import Oort as Oort
from fedreach.federation.selection.losses import PowerOfChoice as PowerOfChoice
from fedreach.federation.selection.losses import Rademacher as Rademacher
from fedreach.federation.selection.radio import CSRA as CSRA
from fedreach.federation.selection.radio import BestChannels as BestChannels
from fedreach.federation.selection.random import Full as Full
from fedreach.federation.selection.random import FunctionSelection as FunctionSelection
from fedreach.federation.selection.random import LeastOften as LeastOften
from fedreach.federation.selection.random import Multinomial as Multinomial
from fedreach.federation.selection.random import Poisson as Poisson
from fedreach.federation.selection.random import Uniform as Uniform
from fedreach.federation.selection.random import UrnsBySize as UrnsBySize
from fedreach.federation.selection.updates import ConvexHull as ConvexHull
from fedreach.federation.selection.updates import DivFL as DivFL
from fedreach.federation.selection.updates import HullDistance as HullDistance
from fedreach.federation.selection.updates import Interior as Interior
from fedreach.federation.selection.updates import MaxSimilarity as MaxSimilarity
from fedreach.federation.selection.updates import UrnsBySimilarity as UrnsBySimilarity

SELECTIONS: Mapping[str, Any] = {
    "uniform": Uniform,
    "full": Full,
    "poisson": Poisson,
    "least_often": LeastOften,
    "power_of_choice": PowerOfChoice,
    "entropy_topk": EntropyTopK,
    "kl_filter": KLFilter,
    "clustered": Clustered,
    "ifca": IFCA,
    "update_kmeans": UpdateKMeans,
    "rademacher": Rademacher,
    "minimax": Minimax,
    "max_similarity": MaxSimilarity,
    "convex_hull": ConvexHull,
    "hull_distance": HullDistance,
    "interior": Interior,
    "divfl": DivFL,
    "oort": Oort,
    "hics": HiCS,
    "multinomial": Multinomial,
    "urns_by_size": UrnsBySize,
    "urns_by_similarity": UrnsBySimilarity,
    "best_channels": BestChannels,
    "csra": CSRA,
}
