"""Clients that hold no data, or too little: refuse, drop or merge, before round 1."""

import heapq
from dataclasses import dataclass

import numpy as np

from fedreach.arrays import Ints
from fedreach.data.partition.assignment import Partition
from fedreach.data.partition.draws import checked_count
from fedreach.errors import ConfigError, DataError, nearest

POLICIES = ("error", "drop", "merge")


@dataclass(frozen=True, eq=False)
class Renumbered:
    """A partition without short clients, and where the former clients are in it."""

    partition: Partition
    new_id: Ints  # (N,) id that each former client now has; -1 where it was dropped


def handle_empty(partition: Partition, policy: str, *, min_size: int = 1) -> Renumbered:
    """Deal with the clients that hold fewer than `min_size` samples; by default, the empty ones.

    - "error": refuse, with the ids in the message.
    - "drop": leave them out. Only empty clients can be dropped, as every sample keeps a client.
    - "merge": join the smallest client with the next smallest (ties: lowest id) until none is short. A merged client
      stands where the lowest of its former ids stood.

    The clients that remain keep their order and are numbered from 0 without gaps.

    Raises:
        DataError: With "error" if a client is short; with "drop" if a short client holds samples; with "merge" if all
            samples together are fewer than `min_size`.
        ConfigError: If the policy is unknown.

    Example:
        >>> three = Partition.from_owner([0, 2, 2], num_clients=3, kind="natural")
        >>> handle_empty(three, "drop").new_id
        array([ 0, -1,  1])
        >>> handle_empty(three, "merge").new_id
        array([0, 0, 1])
    """
    if policy not in POLICIES:
        raise ConfigError(f"policy for empty clients is unknown: {policy!r}.{nearest(str(policy), POLICIES)}")
    min_size = checked_count("min_size of handle_empty", min_size, 1)
    sizes = partition.sizes
    short = np.flatnonzero(sizes < min_size)
    if short.size == 0:
        return Renumbered(partition, np.arange(partition.num_clients))
    if policy == "error":
        raise DataError(
            f"{short.size} of {partition.num_clients} clients hold fewer than {min_size} samples: "
            f"clients {_listed(short)}. Choose the policy 'drop' or 'merge', or partition into fewer clients."
        )
    if policy == "drop":
        holding = short[sizes[short] > 0]
        if holding.size:
            raise DataError(
                f"only empty clients can be dropped; clients {_listed(holding)} hold {sizes[holding].sum()} samples, "
                f"fewer than min_size = {min_size} each. Use the policy 'merge', or leave those samples out."
            )
        heads = np.where(sizes > 0, np.arange(partition.num_clients), -1)
    else:
        heads = _merged(sizes, min_size)
    kept = np.unique(heads[heads >= 0])
    new_id = np.where(heads >= 0, np.searchsorted(kept, heads), -1)
    parameters = {**partition.parameters, "empty": policy, "empty_min_size": min_size}
    owner = new_id[partition.owner()]
    return Renumbered(Partition.from_owner(owner, int(kept.size), partition.kind, parameters), new_id)


def _merged(sizes: Ints, min_size: int) -> Ints:
    """Return the (N,) lowest id of the group in which each client ends."""
    if sizes.sum() < min_size:
        raise DataError(f"merge: all {sizes.sum()} samples together are below min_size = {min_size}. Lower min_size.")
    heads = np.arange(sizes.size)
    groups = [(int(size), client) for client, size in enumerate(sizes)]
    heapq.heapify(groups)
    while groups[0][0] < min_size:
        (a, first), (b, second) = heapq.heappop(groups), heapq.heappop(groups)
        head = min(first, second)
        heads[max(first, second)] = head
        heapq.heappush(groups, (a + b, head))
    # A head always points to a lower id, so one pass upwards resolves every chain.
    for client in range(heads.size):
        heads[client] = heads[heads[client]]
    return heads


def _listed(clients: Ints, max_shown: int = 10) -> str:
    shown = ", ".join(str(client) for client in clients[:max_shown])
    return shown if clients.size <= max_shown else f"{shown} and {clients.size - max_shown} more"
