"""From prices to a set of clients: whole ones, where the relaxation takes one in part."""

import numpy as np

from fedreach.arrays import Bools, Floats, Ints
from fedreach.wireless.allocation.kernel import Needs, priced
from fedreach.wireless.allocation.search.incumbent import Incumbent, repaired
from fedreach.wireless.allocation.search.knapsack import cheapest_covers, coarser, cover_table, fractional_cover

CORE = 24  # clients to either side of the one taken in part that are chosen anew
CELLS = 1_000_000  # cells of the table of that choice
STEPS = 6  # rounds of choosing by prices and pricing by choice; most end after 2 or 3, at a set that repeats


def round_core(costs: Floats, sizes: Ints, demand: int, *, core: int = CORE) -> Bools | None:
    """Return a cheap cover (n,) of whole items; None: there is none of finite cost.

    In the order of c/d all items before the `core` nearest the break are taken, and none after them; among those near
    it, the best are found by dynamic programming. Most optimal covers differ from the fractional one only there.
    """
    relaxed = fractional_cover(costs, sizes, demand)
    if not np.isfinite(relaxed.value):
        return None
    whole = np.flatnonzero((costs < np.inf) & (sizes > 0))
    order = whole[np.argsort(costs[whole] / sizes[whole], kind="stable")]
    middle = int(np.count_nonzero(relaxed.taken[order]))
    head, near = order[: max(0, middle - core)], order[max(0, middle - core) : middle + core]
    chosen = np.zeros(len(sizes), bool)
    chosen[head] = True
    short = demand - int(sizes[head].sum())
    fitting = coarser(sizes[near], short, CELLS, enough=True) if short > 0 else None
    table = None if fitting is None else cover_table(costs[None, near], *fitting)
    if table is None or fitting is None or not np.isfinite(table[0, 0, -1]):
        chosen |= relaxed.taken > 0
    else:
        chosen[near] = cheapest_covers(table, fitting[0])[0]
    return repaired(chosen, costs, sizes, demand)


def settle(best: Incumbent, needs: Needs, T: float, band_price: float) -> None:
    """Offer what the prices T and mu lead to: the set they choose, the set that its own T and mu choose, and so on.

    Stops where a set repeats or is no better than the one before.
    """
    own = Incumbent(best.problem, best.min_examples)  # of this start alone
    for _ in range(STEPS):
        chosen = round_core(priced(needs, T, band_price).cost, best.problem.num_examples, best.min_examples)
        if chosen is None or not own.offer([np.flatnonzero(chosen)]):
            break
        T, band_price = own.deadline, own.band_price
    if len(own.rows):
        best.offer([own.rows])
