"""How updates become one: the weighted mean, in the open or under a secure sum, or with what clients sent before."""

from fedreach.federation.aggregation.fedvarp import FedVARP as FedVARP
from fedreach.federation.aggregation.mean import Mean as Mean
from fedreach.federation.aggregation.mifa import MIFA as MIFA
from fedreach.registry import NameTable

AGGREGATIONS = NameTable(__name__, mean="mean:Mean", fedvarp="fedvarp:FedVARP", mifa="mifa:MIFA")
