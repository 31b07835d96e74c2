"""Partitions: which client holds which sample. A table of kinds, each called as
``kind(labels, num_clients, rng, **options)``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedreach.data.partition.assignment import Partition
from fedreach.data.partition.dirichlet_by_class import dirichlet_by_class
from fedreach.data.partition.dirichlet_by_client import dirichlet_by_client
from fedreach.data.partition.empty import Renumbered, handle_empty
from fedreach.data.partition.hybrid import hybrid
from fedreach.data.partition.iid import iid
from fedreach.data.partition.natural import natural
from fedreach.data.partition.shards import shards
from fedreach.data.partition.statistics import PartitionStatistics, statistics
from fedreach.errors import ConfigError, nearest

PARTITIONS: dict[str, Callable[..., Partition]] = {
    "iid": iid,
    "dirichlet_by_class": dirichlet_by_class,
    "dirichlet_by_client": dirichlet_by_client,
    "shards": shards,
    "hybrid": hybrid,
    "natural": natural,
}


def partition(kind: str, labels: ArrayLike, num_clients: int, rng: np.random.Generator, **options: Any) -> Partition:
    """Make a partition of the kind with that name in `PARTITIONS`.

    Raises:
        ConfigError: If the kind or an option is unknown (the nearest right name is given), or a needed one is missing.
        DataError: If these samples cannot be partitioned as asked.

    Example:
        >>> partition("shards", [0, 0, 1, 1], 2, np.random.default_rng(0), classes_per_client=1).sizes
        array([2, 2])
    """
    if kind not in PARTITIONS:
        raise ConfigError(f"kind of partition is unknown: {kind!r}.{nearest(str(kind), PARTITIONS)}")
    known = {
        name: option
        for name, option in inspect.signature(PARTITIONS[kind]).parameters.items()
        if option.kind is inspect.Parameter.KEYWORD_ONLY
    }
    for name in options:
        if name not in known:
            hint = nearest(name, known) if known else " It has no options."
            raise ConfigError(f"partition {kind!r} has no option {name!r}.{hint}")
    for name, option in known.items():
        if option.default is inspect.Parameter.empty and name not in options:
            raise ConfigError(f"partition {kind!r} needs the option {name!r}.")
    return PARTITIONS[kind](labels, num_clients, rng, **options)


__all__ = [
    "PARTITIONS",
    "Partition",
    "PartitionStatistics",
    "Renumbered",
    "dirichlet_by_class",
    "dirichlet_by_client",
    "handle_empty",
    "hybrid",
    "iid",
    "natural",
    "partition",
    "shards",
    "statistics",
]
