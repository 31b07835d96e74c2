"""Who takes part in a round, with which bandwidth and CPU frequency, solved to a proven gap."""

from fedreach.wireless.allocation.problem import Allocation, AllocationProblem, Solution

__all__ = ["Allocation", "AllocationProblem", "Solution"]
