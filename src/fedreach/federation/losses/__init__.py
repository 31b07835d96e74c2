"""What clients' models are trained to make small."""

from fedreach.federation.losses.base import FunctionLoss as FunctionLoss
from fedreach.federation.losses.cross_entropy import CrossEntropy as CrossEntropy
from fedreach.registry import NameTable

LOSSES = NameTable(__name__, cross_entropy="cross_entropy:CrossEntropy")
