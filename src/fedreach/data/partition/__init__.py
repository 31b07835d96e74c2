"""Partitions: which client holds which sample. A table of kinds, each called as
``kind(labels, num_clients, rng, **options)`` with the (n,) class of each of n samples, the number N of clients, and the
generator that all randomness comes from.
"""

import inspect
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedreach.data.partition.assignment import Partition as Partition
from fedreach.data.partition.class_counts import class_counts as class_counts
from fedreach.data.partition.dirichlet_by_class import dirichlet_by_class as dirichlet_by_class
from fedreach.data.partition.dirichlet_by_client import dirichlet_by_client as dirichlet_by_client
from fedreach.data.partition.divide import divided as divided
from fedreach.data.partition.divide import without_empty as without_empty
from fedreach.data.partition.empty import Renumbered as Renumbered
from fedreach.data.partition.empty import handle_empty as handle_empty
from fedreach.data.partition.hybrid import hybrid as hybrid
from fedreach.data.partition.iid import iid as iid
from fedreach.data.partition.natural import natural as natural
from fedreach.data.partition.shards import shards as shards
from fedreach.data.partition.statistics import PartitionStatistics as PartitionStatistics
from fedreach.data.partition.statistics import statistics as statistics
from fedreach.errors import ConfigError, nearest
from fedreach.registry import NameTable

PARTITIONS = NameTable(
    __name__,
    iid="iid:iid",
    dirichlet_by_class="dirichlet_by_class:dirichlet_by_class",
    dirichlet_by_client="dirichlet_by_client:dirichlet_by_client",
    shards="shards:shards",
    hybrid="hybrid:hybrid",
    class_counts="class_counts:class_counts",
    natural="natural:natural",
)


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
    made: Partition = PARTITIONS[kind](labels, num_clients, rng, **options)
    return made
