"""Label skew and quantity skew: each client draws its mix of classes and its size."""

import numpy as np
from numpy.typing import ArrayLike

from fedreach.arrays import Bools, Floats, Ints
from fedreach.data.partition import draws
from fedreach.data.partition.assignment import Partition


def dirichlet_by_client(
    labels: ArrayLike,
    num_clients: int,
    rng: np.random.Generator,
    *,
    alpha: float,
    sigma: float = 0.0,
    min_size: int = 2,
) -> Partition:
    """Give each client a lognormal size and a Dirichlet mix of classes, as FedDyn does.

    1. sizes: s_k = n exp(sigma z_k) / sum_j exp(sigma z_j), z ~ N(0, 1), rounded (`rounded_sizes`) and raised to
       `min_size` (`raised_sizes`: the largest sizes pay).
    2. priors: p_k ~ Dir(alpha * 1_C), one per client.
    3. until all sizes are used: a client that is not yet full, chosen uniformly, draws a class from its prior
       renormalised over the classes that are left, and gets one sample of it (`fill`).

    Not to be mixed up with `dirichlet_by_class`, where each class is split over the clients.

    When: label skew with sizes under control, and to compare with FedDyn's line of papers.

    Cover: every sample once. Sizes are exact, the mixes are not: whoever comes when a class has run out takes others.

    Where we differ from the reference: it redraws a class that has run out until another one comes up, which has the
    same law as step 3 but may take practically for ever; with sigma = 0 it drops the n mod N samples left over,
    which here go one each to the first clients; and it hands the rounding of all sizes to client 0.

    Args:
        alpha: Concentration, from 1e-100 to 1e100. Towards 0 a client holds one class while it lasts; towards
            infinity every client draws all classes alike.
        sigma: Standard deviation of the logarithm of the sizes, from 0 (equal sizes) to 100.
        min_size: Fewest samples of a client; 2 allows a held-out part, 0 allows empty clients.

    Raises:
        DataError: If n < N * min_size.
        ConfigError: If an option is outside its range.

    Reference:
        Acar et al. 2021 (FedDyn, arXiv 2111.04263), public code: `unbalanced_sgm` is sigma, `rule_arg` is alpha.

    Example:
        >>> labels = np.arange(300) % 3
        >>> p = dirichlet_by_client(labels, 3, np.random.default_rng(0), alpha=1e-6)
        >>> (p.label_counts(labels, 3) > 0).sum(axis=1), p.sizes    # one class each, as far as the classes last
        (array([1, 1, 1]), array([100, 100, 100]))
    """
    checked, num_clients = draws.checked_arguments(labels, num_clients, rng)
    alpha = draws.checked_number("alpha of dirichlet_by_client", alpha, *draws.ALPHA_RANGE)
    sigma = draws.checked_number("sigma of dirichlet_by_client", sigma, 0, 100)
    min_size = draws.checked_count("min_size of dirichlet_by_client", min_size, 0)
    draws.check_enough(checked.size, num_clients, min_size)
    logs = sigma * rng.standard_normal(num_clients)
    sizes = draws.raised_sizes(draws.rounded_sizes(np.exp(logs - logs.max()), checked.size), min_size)
    classes, class_sizes = draws.classes_of(checked)
    draws.check_table(num_clients, class_sizes.size, draws.DRAWN)
    log_priors = draws.log_dirichlet(alpha, (num_clients, class_sizes.size), rng)
    owner = draws.deal(classes, fill(sizes, class_sizes, log_priors, rng), rng)
    parameters = {"alpha": alpha, "sigma": sigma, "min_size": min_size}
    return Partition.from_owner(owner, num_clients, "dirichlet_by_client", parameters)


def fill(sizes: Ints, supply: Ints, log_priors: Floats, rng: np.random.Generator) -> Ints:
    """Run step 3 for all n samples at once, with exactly its law; return the (N, C) counts.

    Let every step of the sequence draw its class before any has run out. The draws are right up to the first step that
    finds its class empty. From there on, a draw of a class that is still there stays right, because a draw from the
    prior, given that it is one of the classes left, follows the renormalised prior; only the others draw again. Each
    pass ends with one class fewer, so that there are at most C of them. The N clients take `sizes` (N,), the C classes
    offer as many, `supply` (C,). Priors (N, C) come as logarithms, up to a constant per client: so even one that lies
    wholly on classes that have run out can be renormalised.
    """
    counts = np.zeros((sizes.size, supply.size), dtype=np.int64)
    client = visiting_order(sizes, rng)
    chosen = _draw(client, log_priors, supply > 0, rng)
    while True:
        by_class, asked = draws.ordered_by(chosen), np.bincount(chosen, minlength=supply.size)
        over = np.flatnonzero(asked > supply)
        first_of = np.cumsum(asked) - asked
        good = int(by_class[first_of[over] + supply[over]].min()) if over.size else client.size
        np.add.at(counts, (client[:good], chosen[:good]), 1)
        if good == client.size:
            return counts
        supply = supply - np.bincount(chosen[:good], minlength=supply.size)
        client, chosen = client[good:], chosen[good:]
        again = np.flatnonzero(supply[chosen] == 0)
        chosen[again] = _draw(client[again], log_priors, supply > 0, rng)


def visiting_order(sizes: Ints, rng: np.random.Generator) -> Ints:
    """Return the (n,) sequence in which each step visits, uniformly, one of the clients that are not yet full.

    Every client rings at the times of its own Poisson process of rate 1 until it is full; of those still ringing,
    each is equally likely to be next.
    """
    clock = np.cumsum(rng.standard_exponential(int(sizes.sum())))
    before = np.concatenate([[0.0], clock])[np.cumsum(sizes) - sizes]
    return np.repeat(np.arange(sizes.size), sizes)[np.argsort(clock - np.repeat(before, sizes), kind="stable")]


def _draw(client: Ints, log_priors: Floats, left: Bools, rng: np.random.Generator) -> Ints:
    """Return a class for each step, from the prior of its client renormalised over the classes that are left."""
    # Late passes redo few steps, so only the clients in them are looked at.
    who, row, steps = np.unique(client, return_inverse=True, return_counts=True)
    # How often each class, then in which order: the same law as one draw after another.
    often = rng.multinomial(steps, draws.normalised(log_priors[np.ix_(who, np.flatnonzero(left))]))
    chosen = np.empty_like(client)
    chosen[draws.shuffled_by(row, rng)] = np.repeat(np.tile(np.flatnonzero(left), who.size), often.ravel())
    return chosen
