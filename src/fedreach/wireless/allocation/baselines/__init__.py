"""Other ways to choose clients and to allocate, for comparison; `solving.solve` has the optimum and the proof."""

from fedreach.wireless.allocation.baselines.dc import DC as DC
from fedreach.wireless.allocation.baselines.dc import DCResult as DCResult
from fedreach.wireless.allocation.baselines.genetic import genetic_selection as genetic_selection
from fedreach.wireless.allocation.baselines.relaxed import check_solver as check_solver
from fedreach.wireless.allocation.baselines.sorting import sqrt_sort as sqrt_sort
from fedreach.wireless.allocation.baselines.steps import BestFrequencies as BestFrequencies
from fedreach.wireless.allocation.baselines.steps import best_frequencies as best_frequencies
from fedreach.wireless.allocation.baselines.steps import best_shares as best_shares
