"""The clients that the data came with: writers, speakers, devices."""

import numpy as np
from numpy.typing import ArrayLike

from fedreach.data.partition.assignment import Partition
from fedreach.data.partition.draws import checked_arguments
from fedreach.errors import DataError


def natural(labels: ArrayLike, num_clients: int, rng: np.random.Generator, *, owners: ArrayLike) -> Partition:
    """Leave each sample with the client that it came from. Nothing is random; `rng` is not drawn from.

    When: the data say who holds what: hospitals, writers, speakers. Prefer it wherever they do.

    Cover: every sample once. A client that owns no sample is there and empty: see `handle_empty`.

    Args:
        owners: (n,) client of each sample, from 0 to N - 1.

    Raises:
        DataError: If there is not one owner per sample, or an owner is not below N.

    Example:
        >>> natural([0, 1, 1], 2, np.random.default_rng(0), owners=[1, 0, 1])[1]
        array([0, 2])
    """
    checked, num_clients = checked_arguments(labels, num_clients, rng, any_targets=True)
    partition = Partition.from_owner(owners, num_clients, "natural")
    if partition.num_samples != checked.size:
        raise DataError(
            f"natural: owners must be one client for each of the {checked.size} samples; got {partition.num_samples}."
        )
    return partition
