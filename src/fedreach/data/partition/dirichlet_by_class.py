"""Label skew: each class is split over the clients by a Dirichlet draw."""

import numpy as np
from numpy.typing import ArrayLike

from fedreach.arrays import Ints
from fedreach.data.partition import draws
from fedreach.data.partition.assignment import Partition


def dirichlet_by_class(
    labels: ArrayLike, num_clients: int, rng: np.random.Generator, *, alpha: float, min_size: int = 2
) -> Partition:
    """Split each class over the clients in Dirichlet proportions; sizes follow from that.

    For each class c: q_c ~ Dir(alpha * 1_N), and client k gets q_ck * n_c of its n_c samples, rounded up or down.
    Not to be mixed up with `dirichlet_by_client`, where each client draws its mix of classes.

    When: the usual benchmark of label skew; sizes become uneven along with the classes.

    Cover: every sample once. Clients below `min_size` are then filled up with random samples of the largest clients,
    in one pass; `parameters["moved"]` says how many samples that took. The usual remedy, drawing everything again
    until all clients are large enough, may never end.

    Rounding: the cuts are floor(cumsum(q_c) * n_c + u_c) with one u_c ~ U[0, 1) per class, so that a count is within
    one of q_ck * n_c and equals it on average. With u_c = 0, as in common code, the last client takes all the
    rounding: with N above n_c and a large alpha it would hold a sample of every class and most others none.

    Args:
        alpha: Concentration, from 1e-100 to 1e100. Towards 0 each class goes to a single client; towards infinity
            each client gets 1/N of every class.
        min_size: Fewest samples of a client; 2 allows a held-out part, 0 allows empty clients.

    Raises:
        DataError: If n < N * min_size.
        ConfigError: If an option is outside its range.

    Reference:
        Hsu, Qi and Brown 2019 (arXiv 1909.06335) and, split per class as here, Yurochkin et al. 2019
        (arXiv 1905.12022).

    Example:
        >>> p = dirichlet_by_class(np.arange(100) % 4, 5, np.random.default_rng(0), alpha=1e6)
        >>> p.sizes.sum(), bool((abs(p.label_counts(np.arange(100) % 4, 4) - 5) <= 1).all())
        (np.int64(100), True)
    """
    checked, num_clients = draws.checked_arguments(labels, num_clients, rng)
    alpha = draws.checked_number("alpha of dirichlet_by_class", alpha, *draws.ALPHA_RANGE)
    min_size = draws.checked_count("min_size of dirichlet_by_class", min_size, 0)
    draws.check_enough(checked.size, num_clients, min_size)
    classes, class_sizes = draws.classes_of(checked)
    owner = draws.deal(classes, split_classes(class_sizes, num_clients, alpha, rng), rng)
    owner, moved = draws.topped_up(owner, num_clients, min_size, rng)
    parameters = {"alpha": alpha, "min_size": min_size, "moved": moved}
    return Partition.from_owner(owner, num_clients, "dirichlet_by_class", parameters)


def split_classes(class_sizes: Ints, num_clients: int, alpha: float, rng: np.random.Generator) -> Ints:
    """Return (N, C) counts, with column sums `class_sizes`, of classes split in Dirichlet proportions."""
    draws.check_table(num_clients, class_sizes.size, draws.DRAWN)
    totals = class_sizes[:, None]
    shares = draws.normalised(draws.log_dirichlet(alpha, (class_sizes.size, num_clients), rng))
    inner = np.floor(np.cumsum(shares, axis=1)[:, :-1] * totals + rng.random(totals.shape)).astype(np.int64)
    cuts = np.hstack([np.zeros_like(totals), np.minimum(inner, totals), totals])
    return np.diff(cuts, axis=1).T
