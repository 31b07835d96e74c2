"""How the band and the CPU frequencies are set for clients that are already chosen."""

from __future__ import annotations

from fedreach.wireless.allocation.rules.base import AllocationRule
from fedreach.wireless.allocation.rules.equal import Equal
from fedreach.wireless.allocation.rules.exact import Exact
from fedreach.wireless.allocation.rules.greedy import Greedy
from fedreach.wireless.allocation.rules.random import Random

RULES: dict[str, type] = {"equal": Equal, "random": Random, "greedy": Greedy, "exact": Exact}

__all__ = ["RULES", "AllocationRule", "Equal", "Exact", "Greedy", "Random"]
