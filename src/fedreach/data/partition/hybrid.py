"""A few clients with balanced classes among clients with label skew."""

import math

import numpy as np
from numpy.typing import ArrayLike

from fedreach.data.partition import draws
from fedreach.data.partition.assignment import Partition
from fedreach.data.partition.dirichlet_by_class import split_classes
from fedreach.errors import DataError


def hybrid(
    labels: ArrayLike,
    num_clients: int,
    rng: np.random.Generator,
    *,
    share: float = 0.1,
    alpha: float = 0.5,
    min_size: int = 2,
) -> Partition:
    """Give the first ceil(share * K) clients equally many samples of every class; split the rest by Dirichlet.

    A balanced client holds m = floor(n / (K C)) samples of each of the C classes that occur, so that it is about as
    large as the average client: at least enough to reach `min_size`, at least 1, and at most what the rarest class can
    give to all of them. What remains is split over the other clients as in `dirichlet_by_class`.

    When: a few clients have everything and most have little, as where some devices are shared by many.

    Cover: every sample once. Clients below `min_size` are filled up from the largest of the *other* clients, so the
    balanced ones stay balanced; `parameters["moved"]` says how many samples that took.

    Args:
        share: Part of the clients that are balanced, from 0 to 1.
        alpha: Dirichlet concentration of the others, from 1e-100 to 1e100.
        min_size: Fewest samples of a client; 2 allows a held-out part, 0 allows empty clients.

    Raises:
        DataError: If the samples do not suffice, or if samples remain and no other client is there to hold them.
        ConfigError: If an option is outside its range.

    Reference:
        CSRA, "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", section on
        evaluation: share 0.1, alpha 0.5, 80 clients. The size of the balanced clients and the kind of Dirichlet
        split are not given there and are our choice.

    Example:
        >>> labels = np.arange(120) % 3
        >>> hybrid(labels, 10, np.random.default_rng(0), share=0.2).label_counts(labels, 3)[:2]
        array([[4, 4, 4],
               [4, 4, 4]])
    """
    checked, num_clients = draws.checked_arguments(labels, num_clients, rng)
    share = draws.checked_number("share of hybrid", share, 0, 1)
    alpha = draws.checked_number("alpha of hybrid", alpha, *draws.ALPHA_RANGE)
    min_size = draws.checked_count("min_size of hybrid", min_size, 0)
    draws.check_enough(checked.size, num_clients, min_size)
    classes, class_sizes = draws.classes_of(checked)
    num_classes = class_sizes.size
    balanced = math.ceil(share * num_clients - 1e-9)  # 0.28 * 25 is 7.000000000000001
    others = num_clients - balanced

    each = 0
    if balanced:
        fair = max(checked.size // (num_clients * num_classes), -(-min_size // num_classes), 1)
        each = min(fair, int(class_sizes.min()) // balanced)
        if each * num_classes < max(min_size, 1):
            raise DataError(
                f"hybrid: {balanced} balanced clients need equally many samples of each of the {num_classes} "
                f"classes and at least min_size = {min_size} in all; the rarest class has "
                f"{class_sizes.min()}. Lower share or min_size."
            )
    remaining = class_sizes - balanced * each
    if others == 0 and remaining.any():
        raise DataError(
            f"hybrid: share = {share:g} balances all {num_clients} clients and leaves {remaining.sum()} samples "
            "without a client. Lower share, or use 'iid'."
        )
    draws.check_enough(int(remaining.sum()), others, min_size)

    counts = np.full((num_clients, num_classes), each, dtype=np.int64)
    if others:
        counts[balanced:] = split_classes(remaining, others, alpha, rng)
    owner = draws.deal(classes, counts, rng)
    rest = owner >= balanced
    refilled, moved = draws.topped_up(owner[rest] - balanced, others, min_size, rng) if others else (owner[rest], 0)
    owner[rest] = refilled + balanced
    parameters = {"share": share, "alpha": alpha, "min_size": min_size, "balanced_clients": balanced, "moved": moved}
    return Partition.from_owner(owner, num_clients, "hybrid", parameters)
