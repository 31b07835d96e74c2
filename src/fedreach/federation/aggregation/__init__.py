"""How updates become one: the weighted mean, in the open or under a secure sum."""

from fedreach.federation.aggregation.mean import Mean as Mean
from fedreach.registry import NameTable

AGGREGATIONS = NameTable(__name__, mean="mean:Mean")
