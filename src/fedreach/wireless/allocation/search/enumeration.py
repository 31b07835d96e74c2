"""All sets of clients that are worth a look, where these are few."""

import numpy as np

from fedreach.arrays import Ints


def minimal_covers(sizes: Ints, demand: int, max_sets: int) -> list[Ints] | None:
    """Return every set whose sizes sum to the demand and from which nobody can be left out; None beyond `max_sets`.

    Who takes part adds to the cost, never the contrary, so that one of these sets is the best of all. Clients are taken
    in falling order of size: the one that completes a set is then its smallest, and without it, or anybody else, the
    set falls short.

    Example:
        >>> [rows.tolist() for rows in minimal_covers(np.array([3, 1, 2]), 3, max_sets=10)]
        [[0], [1, 2]]
    """
    order = np.argsort(-sizes, kind="stable")
    falling = sizes[order].tolist()
    left = np.cumsum(falling[::-1])[::-1].tolist()  # what an item and all after it hold
    found: list[list[int]] = []
    items: list[int] = []
    missing, j = demand, 0
    while items or (j < len(falling) and left[j] >= missing):
        if j == len(falling) or left[j] < missing:  # nothing comes of these items: go on without the last
            j = items.pop()
            missing += falling[j]
        elif falling[j] >= missing:
            found.append([*items, j])
            if len(found) > max_sets:
                return None
        else:
            items.append(j)
            missing -= falling[j]
        j += 1
    return [np.sort(order[items]) for items in found]
