"""How much each report counts."""

from fedreach.federation.weighting.base import FunctionWeighting as FunctionWeighting
from fedreach.federation.weighting.base import OwnWeight as OwnWeight
from fedreach.federation.weighting.by_draws import ByDraws as ByDraws
from fedreach.federation.weighting.by_examples import ByExamples as ByExamples
from fedreach.federation.weighting.clip import Clip as Clip
from fedreach.federation.weighting.disagreement import ByDisagreement as ByDisagreement
from fedreach.federation.weighting.entropy import ByEntropy as ByEntropy
from fedreach.federation.weighting.equal import Equal as Equal
from fedreach.federation.weighting.fedau import FedAU as FedAU
from fedreach.federation.weighting.fednova import FedNova as FedNova
from fedreach.federation.weighting.mix import Mix as Mix
from fedreach.federation.weighting.product import Product as Product
from fedreach.registry import NameTable

WEIGHTINGS = NameTable(
    __name__,
    by_examples="by_examples:ByExamples",
    equal="equal:Equal",
    by_draws="by_draws:ByDraws",
    entropy="entropy:ByEntropy",
    disagreement="disagreement:ByDisagreement",
    fedau="fedau:FedAU",
    fednova="fednova:FedNova",
    product="product:Product",
    mix="mix:Mix",
    clip="clip:Clip",
)
