"""Independent and identically distributed clients."""

import numpy as np
from numpy.typing import ArrayLike

from fedreach.data.partition.assignment import Partition
from fedreach.data.partition.draws import check_enough, checked_arguments


def iid(labels: ArrayLike, num_clients: int, rng: np.random.Generator) -> Partition:
    """Deal shuffled samples to the clients in turn.

    When: as the easy case that the others are measured against: no client differs from another but by chance.

    Cover: every sample once, nothing dropped. Sizes differ by at most one: the first n mod N clients hold
    floor(n / N) + 1 samples, the others floor(n / N).

    Raises:
        DataError: If there are fewer samples than clients.

    Example:
        >>> iid([0, 1, 0, 1, 2], 2, np.random.default_rng(0)).sizes
        array([3, 2])
    """
    checked, num_clients = checked_arguments(labels, num_clients, rng, any_targets=True)
    check_enough(checked.size, num_clients, 1)
    return Partition.from_owner(rng.permutation(np.arange(checked.size) % num_clients), num_clients, "iid")
