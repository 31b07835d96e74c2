"""Who takes part in a round, with which bandwidth and CPU frequency, solved to a proven gap."""

from fedreach.wireless.allocation.exact import allocate as allocate
from fedreach.wireless.allocation.problem import Allocation as Allocation
from fedreach.wireless.allocation.problem import AllocationProblem as AllocationProblem
from fedreach.wireless.allocation.problem import Solution as Solution
from fedreach.wireless.allocation.search.solve import solve as solve
