"""Label skew: each client gets p shards, each of a single class."""

import numpy as np
from numpy.typing import ArrayLike

from fedreach.data.partition import draws
from fedreach.data.partition.assignment import Partition
from fedreach.errors import DataError


def shards(labels: ArrayLike, num_clients: int, rng: np.random.Generator, *, classes_per_client: int = 2) -> Partition:
    """Cut the classes into N * p shards of one class each and deal p random shards to each client.

    Each class is cut into N * p / C shards. Where that is no whole number the largest classes give one more, and a
    class with fewer samples than shards gives one shard per sample. Shards of a class differ by at most one sample.
    A client may be dealt two shards of one class, so that it holds *at most* p classes.

    When: each client shall know few classes and no more, the hardest label skew with equal sizes.

    Cover: every sample once; no client is empty.

    Args:
        classes_per_client: p, at least 1, with C <= N * p <= n.

    Raises:
        DataError: If N * p shards are fewer than the classes or more than the samples.
        ConfigError: If `classes_per_client` is not a whole number above 0.

    Reference:
        McMahan et al. 2017 (arXiv 1602.05629), section 3; dealt at random as in the setting of SAFARI
        (arXiv 2405.02745).

    Example:
        >>> labels = np.repeat([0, 1, 2], 10)
        >>> p = shards(labels, 6, np.random.default_rng(0), classes_per_client=1)
        >>> (p.label_counts(labels, 3) > 0).sum(axis=1), p.sizes
        (array([1, 1, 1, 1, 1, 1]), array([5, 5, 5, 5, 5, 5]))
    """
    checked, num_clients = draws.checked_arguments(labels, num_clients, rng)
    per_client = draws.checked_count("classes_per_client of shards", classes_per_client, 1)
    total = num_clients * per_client
    classes, class_sizes = draws.classes_of(checked)
    draws.check_enough(checked.size, num_clients, 1)
    if not class_sizes.size <= total <= checked.size:
        raise DataError(
            f"shards: {num_clients} clients * classes_per_client = {per_client} make {total} shards, which must be at "
            f"least the {class_sizes.size} classes and at most the {checked.size} samples. "
            f"{'Raise' if total < class_sizes.size else 'Lower'} classes_per_client."
        )
    cuts = draws.filled_evenly(class_sizes, total)
    within = draws.rank_in_run(class_sizes) * np.repeat(cuts, class_sizes) // np.repeat(class_sizes, class_sizes)
    shard = np.repeat(np.cumsum(cuts) - cuts, class_sizes) + within
    owner = np.empty_like(checked)
    owner[draws.shuffled_by(classes, rng)] = rng.permutation(np.arange(total) % num_clients)[shard]
    return Partition.from_owner(owner, num_clients, "shards", {"classes_per_client": per_client})
