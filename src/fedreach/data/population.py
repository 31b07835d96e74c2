"""Who takes part and who never does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedreach.arrays import Ints
from fedreach.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Population:
    """The clients that may train and those that never train; ids increasing, together all clients."""

    participants: Ints  # (n,)
    unseen: Ints  # (N - n,)


def draw_population(
    label_counts: Ints,
    rng: np.random.Generator,
    *,
    participants: int | Sequence[int] | None = None,
    exclude_clients: Sequence[int] = (),
    exclude_labels: Sequence[int] = (),
) -> Population:
    """Divide N clients into participants and unseen clients.

    Args:
        label_counts: (N, c) examples per client and class.
        rng: Draws the participants where only their number is given.
        participants: How many take part, drawn at random; or the ids of those that do; or None for all that are
            not excluded.
        exclude_clients: Ids of clients that never train.
        exclude_labels: Clients with an example of one of these classes never train.

    Raises:
        ConfigError: If an id or label does not exist, or fewer clients are left than shall take part.

    Example:
        >>> draw_population(np.array([[5, 0], [0, 5], [5, 0]]), None, exclude_labels=[1]).unseen
        array([1])
    """
    num_clients, num_classes = label_counts.shape
    _check_range("population.exclude_clients", exclude_clients, num_clients, "clients")
    _check_range("population.exclude_labels", exclude_labels, num_classes, "classes")
    barred = np.zeros(num_clients, np.bool_)
    barred[list(exclude_clients)] = True
    barred |= label_counts[:, list(exclude_labels)].any(axis=1)
    eligible = np.flatnonzero(~barred)

    if participants is None:
        chosen = eligible
    elif isinstance(participants, int | np.integer):
        if not 1 <= participants <= len(eligible):
            raise ConfigError(
                f"population.participants must be between 1 and the {len(eligible)} clients that are not excluded "
                f"(of {num_clients}); got {participants}."
            )
        chosen = np.sort(rng.choice(eligible, size=participants, replace=False))
    else:
        _check_range("population.participants", participants, num_clients, "clients")
        chosen = np.unique(np.asarray(participants, dtype=np.int64))
        clash = chosen[barred[chosen]]
        if clash.size:
            raise ConfigError(f"population.participants lists client {clash[0]}, which is excluded. Take it off one.")
    if len(chosen) == 0:
        raise ConfigError("population: no client is left to take part. Exclude fewer clients or labels.")
    return Population(chosen, np.delete(np.arange(num_clients), chosen))


def _check_range(name: str, values: Sequence[int], limit: int, what: str) -> None:
    for value in values:
        if not 0 <= value < limit:
            raise ConfigError(f"{name} must name {what} from 0 to {limit - 1}; got {value}.")
