"""What clients' models are trained to make small."""

from fedreach.federation.losses.base import FunctionLoss as FunctionLoss
from fedreach.federation.losses.cross_entropy import CrossEntropy as CrossEntropy
from fedreach.federation.losses.logit_adjusted import LogitAdjusted as LogitAdjusted
from fedreach.registry import NameTable

LOSSES = NameTable(__name__, cross_entropy="cross_entropy:CrossEntropy", logit_adjusted="logit_adjusted:LogitAdjusted")
