"""Who takes part in a round, with which bandwidth and CPU frequency, solved to a proven gap."""

from fedreach.wireless.allocation.exact import allocate
from fedreach.wireless.allocation.problem import Allocation, AllocationProblem, Solution
from fedreach.wireless.allocation.search.solve import solve

__all__ = ["Allocation", "AllocationProblem", "Solution", "allocate", "solve"]
