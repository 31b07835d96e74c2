"""Other ways to choose clients and to allocate, for comparison; `solving.solve` has the optimum and the proof."""

from __future__ import annotations

from fedreach.wireless.allocation.baselines.dc import DC, DCResult
from fedreach.wireless.allocation.baselines.genetic import genetic_selection
from fedreach.wireless.allocation.baselines.sorting import sqrt_sort
from fedreach.wireless.allocation.baselines.steps import BestFrequencies, best_frequencies, best_shares

__all__ = [
    "DC",
    "BestFrequencies",
    "DCResult",
    "best_frequencies",
    "best_shares",
    "genetic_selection",
    "sqrt_sort",
]
