"""How the band and the CPU frequencies are set for clients that are already chosen."""

from fedreach.registry import NameTable
from fedreach.wireless.allocation.rules.base import AllocationRule as AllocationRule
from fedreach.wireless.allocation.rules.equal import Equal as Equal
from fedreach.wireless.allocation.rules.exact import Exact as Exact
from fedreach.wireless.allocation.rules.greedy import Greedy as Greedy
from fedreach.wireless.allocation.rules.random import Random as Random

RULES = NameTable(
    __name__,
    equal="equal:Equal",
    random="random:Random",
    greedy="greedy:Greedy",
    exact="exact:Exact",
)
