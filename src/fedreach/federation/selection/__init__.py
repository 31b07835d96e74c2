"""Who trains."""

from fedreach.federation.selection.base import FunctionSelection as FunctionSelection
from fedreach.federation.selection.base import Policy as Policy
from fedreach.federation.selection.best_channels import BestChannels as BestChannels
from fedreach.federation.selection.clustered import Clustered as Clustered
from fedreach.federation.selection.convex_hull import ConvexHull as ConvexHull
from fedreach.federation.selection.csra import CSRA as CSRA
from fedreach.federation.selection.divfl import DivFL as DivFL
from fedreach.federation.selection.entropy_topk import EntropyTopK as EntropyTopK
from fedreach.federation.selection.full import Full as Full
from fedreach.federation.selection.hics import HiCS as HiCS
from fedreach.federation.selection.hull_distance import HullDistance as HullDistance
from fedreach.federation.selection.interior import Interior as Interior
from fedreach.federation.selection.kl_filter import KLFilter as KLFilter
from fedreach.federation.selection.max_similarity import MaxSimilarity as MaxSimilarity
from fedreach.federation.selection.minimax import Minimax as Minimax
from fedreach.federation.selection.multinomial import Multinomial as Multinomial
from fedreach.federation.selection.oort import Oort as Oort
from fedreach.federation.selection.power_of_choice import PowerOfChoice as PowerOfChoice
from fedreach.federation.selection.rademacher import Rademacher as Rademacher
from fedreach.federation.selection.shared.gradient_table import GradientTable as GradientTable
from fedreach.federation.selection.uniform import Uniform as Uniform
from fedreach.federation.selection.urns_by_similarity import UrnsBySimilarity as UrnsBySimilarity
from fedreach.federation.selection.urns_by_size import UrnsBySize as UrnsBySize
from fedreach.registry import NameTable

SELECTIONS = NameTable(
    __name__,
    uniform="uniform:Uniform",
    full="full:Full",
    power_of_choice="power_of_choice:PowerOfChoice",
    entropy_topk="entropy_topk:EntropyTopK",
    kl_filter="kl_filter:KLFilter",
    clustered="clustered:Clustered",
    rademacher="rademacher:Rademacher",
    minimax="minimax:Minimax",
    max_similarity="max_similarity:MaxSimilarity",
    convex_hull="convex_hull:ConvexHull",
    hull_distance="hull_distance:HullDistance",
    interior="interior:Interior",
    divfl="divfl:DivFL",
    oort="oort:Oort",
    hics="hics:HiCS",
    multinomial="multinomial:Multinomial",
    urns_by_size="urns_by_size:UrnsBySize",
    urns_by_similarity="urns_by_similarity:UrnsBySimilarity",
    best_channels="best_channels:BestChannels",
    csra="csra:CSRA",
)
