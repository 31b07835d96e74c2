"""Partitions: which client holds which example."""

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedreach._util.arrays import Bools, Floats, Ints
from fedreach._util.errors import ConfigError, DataError, nearest
from fedreach.data import assignment
from fedreach.data.assignment import Partition, check_enough, checked_arguments
from fedreach.data.checks import check_option_names

# ---- Independent and identically distributed clients


def iid(labels: ArrayLike, num_clients: int, rng: np.random.Generator) -> Partition:
    """Deal shuffled examples to the clients in turn.

    When: as the baseline without heterogeneity: clients differ only by chance.

    Cover: every example once. Sizes differ by at most 1: the first n mod N clients hold floor(n / N) + 1 examples,
    the others floor(n / N).

    Raises:
        DataError: If there are fewer examples than clients.

    Example:
        >>> iid([0, 1, 0, 1, 2], 2, np.random.default_rng(0)).sizes
        array([3, 2])
    """
    checked, num_clients = checked_arguments(labels, num_clients, rng, any_targets=True)
    check_enough(checked.size, num_clients, 1)
    return Partition.from_owner(rng.permutation(np.arange(checked.size) % num_clients), num_clients, "iid")


# ---- Natural clients: writers, speakers, devices


def natural(labels: ArrayLike, num_clients: int, rng: np.random.Generator, *, owners: ArrayLike) -> Partition:
    """Keep each example with the client that it came from. Nothing is random; `rng` is not used.

    When: the data name the client of each example, such as a hospital, writer or speaker. Prefer it if they do.

    Cover: every example once. A client without examples stays, empty: see `fedreach.data.assignment.without_empty`.

    Args:
        owners: (n,) client of each example, from 0 to N - 1.

    Raises:
        DataError: If the number of owners is not n, or an owner is not below N.

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


# ---- Label skew: each client gets p shards, each of a single class


def shards(labels: ArrayLike, num_clients: int, rng: np.random.Generator, *, classes_per_client: int = 2) -> Partition:
    """Cut the classes into N * p shards of one class each and deal p random shards to each client.

    Each class is cut into N * p / C shards. If that is not a whole number, the largest classes give one more shard. A
    class with fewer examples than shards gives one shard per example. Shards of a class differ by at most one example.
    A client may get two shards of one class, so that it holds *at most* p classes.

    When: each client should hold few classes, the hardest label skew with equal sizes.

    Cover: every example once; no client is empty.

    Args:
        classes_per_client: p, at least 1, with C <= N * p <= n.

    Raises:
        DataError: If there are fewer shards than classes or more shards than examples.
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
    checked, num_clients = assignment.checked_arguments(labels, num_clients, rng)
    per_client = assignment.checked_count("classes_per_client of shards", classes_per_client, 1)
    total = num_clients * per_client
    classes, class_sizes = assignment.classes_of(checked)
    assignment.check_enough(checked.size, num_clients, 1)
    if not class_sizes.size <= total <= checked.size:
        raise DataError(
            f"shards: {num_clients} clients * classes_per_client = {per_client} make {total} shards, which must be at "
            f"least the {class_sizes.size} classes and at most the {checked.size} samples."
        )
    cuts = assignment.filled_evenly(class_sizes, total)
    within = assignment.rank_in_run(class_sizes) * np.repeat(cuts, class_sizes) // np.repeat(class_sizes, class_sizes)
    shard = np.repeat(np.cumsum(cuts) - cuts, class_sizes) + within
    owner = np.empty_like(checked)
    owner[assignment.shuffled_by(classes, rng)] = rng.permutation(np.arange(total) % num_clients)[shard]
    return Partition.from_owner(owner, num_clients, "shards", {"classes_per_client": per_client})


# ---- Clients with given numbers of examples per class


def class_counts(
    labels: ArrayLike, num_clients: int, rng: np.random.Generator, *, counts: Sequence[Sequence[int]]
) -> Partition:
    """Give the first clients these numbers of random examples per class; deal the rest to the other clients in turn.

    When: a paper or a census defines what a client holds. Let clients that should not matter get the rest and never
    train.

    Cover: every example once.

    Args:
        counts: A list per client, for the first clients: numbers of examples of class 0, 1, ...; further classes get 0.

    Raises:
        DataError: If there are more lists than clients, a class has too few examples, the rest leaves a client empty,
            or no client remains for the rest.
        ConfigError: If a list holds anything but counts, or only 0.

    Example:
        >>> labels = np.arange(30) % 3
        >>> class_counts(labels, 2, np.random.default_rng(0), counts=[[5, 0, 1]]).label_counts(labels, 3)
        array([[ 5,  0,  1],
               [ 5, 10,  9]])
    """
    checked, num_clients = assignment.checked_arguments(labels, num_clients, rng)
    if not isinstance(counts, list | tuple):
        raise ConfigError(
            f"counts of class_counts must be a list for each of some clients, as [[100, 50], [0, 30]]; got {counts!r}."
        )
    if len(counts) > num_clients:
        raise DataError(f"class_counts: counts are for {len(counts)} clients; there are {num_clients}.")
    rows = [_check_counts(row) for row in counts]
    present, (classes, supply) = np.unique(checked), assignment.classes_of(checked)
    requested = np.array([[dict(enumerate(row)).get(label, 0) for label in present.tolist()] for row in rows], np.int64)
    requested = requested.reshape(len(rows), present.size)
    _check_supply(rows, dict(zip(present.tolist(), supply.tolist(), strict=True)))
    owner = assignment.deal(classes, np.vstack([requested, supply - requested.sum(axis=0)]), rng)
    remaining, num_others = np.flatnonzero(owner == len(rows)), num_clients - len(rows)
    if not num_others and remaining.size:
        raise DataError(f"class_counts: {remaining.size} samples are left, and no client to hold them. Add one.")
    assignment.check_enough(remaining.size, num_others, 1)
    owner[rng.permutation(remaining)] = len(rows) + np.arange(remaining.size) % max(num_others, 1)
    return Partition.from_owner(owner, num_clients, "class_counts", {"counts": rows})


def _check_counts(row: Sequence[int]) -> list[int]:
    if not isinstance(row, list | tuple) or not row:
        raise ConfigError(f"counts of class_counts: each client's must be a list of numbers; got {row!r}.")
    checked_counts = [assignment.checked_count("counts of class_counts", count, 0) for count in row]
    if not sum(checked_counts):
        raise ConfigError("counts of class_counts: each of these clients must hold a sample; got a list of 0 only.")
    return checked_counts


def _check_supply(rows: list[list[int]], supply: dict[int, int]) -> None:
    for label in range(max(map(len, rows), default=0)):
        requested, available = sum(row[label] for row in rows if label < len(row)), supply.get(label, 0)
        if requested > available:
            raise DataError(
                f"class_counts: {requested} samples of class {label} are asked for, and {available} are there."
            )


# ---- Label skew: a Dirichlet draw splits each class over the clients


def dirichlet_by_class(
    labels: ArrayLike, num_clients: int, rng: np.random.Generator, *, alpha: float, min_size: int = 2
) -> Partition:
    """Split each class over the clients in Dirichlet proportions; sizes follow from that.

    For each class c: q_c ~ Dir(alpha * 1_N), and client k gets q_ck * n_c of its n_c examples, rounded up or down.
    In `dirichlet_by_client`, by contrast, each client draws its own label distribution.

    When: the usual benchmark of label skew; sizes become uneven along with the classes.

    Cover: every example once. Clients below `min_size` are then filled with random examples of the largest clients, in
    one pass; `parameters["moved"]` is the number of these examples. The usual remedy, to draw again until all clients
    are large enough, may never end.

    Rounding: the cuts are floor(cumsum(q_c) * n_c + u_c) with one u_c ~ U[0, 1) per class, so that a count is within
    1 of q_ck * n_c and equals it on average. With u_c = 0, as in common code, the last client gets all of the rounding:
    for N above n_c and a large alpha, it would hold an example of every class and most other clients none.

    Args:
        alpha: Concentration, from 1e-100 to 1e100. Towards 0, each class goes to a single client; towards infinity,
            each client gets 1/N of every class.
        min_size: Smallest number of examples per client; 2 allows a held-out part, 0 allows empty clients.

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
    checked, num_clients = assignment.checked_arguments(labels, num_clients, rng)
    alpha = assignment.checked_number("alpha of dirichlet_by_class", alpha, *assignment.ALPHA_RANGE)
    min_size = assignment.checked_count("min_size of dirichlet_by_class", min_size, 0)
    assignment.check_enough(checked.size, num_clients, min_size)
    classes, class_sizes = assignment.classes_of(checked)
    owner = assignment.deal(classes, split_classes(class_sizes, num_clients, alpha, rng), rng)
    owner, moved = assignment.top_up(owner, num_clients, min_size, rng)
    parameters = {"alpha": alpha, "min_size": min_size, "moved": moved}
    return Partition.from_owner(owner, num_clients, "dirichlet_by_class", parameters)


def split_classes(class_sizes: Ints, num_clients: int, alpha: float, rng: np.random.Generator) -> Ints:
    """Return (N, C) counts, with column sums `class_sizes`, of classes split in Dirichlet proportions."""
    assignment.check_table(num_clients, class_sizes.size)
    totals = class_sizes[:, None]
    shares = assignment.normalized_rows(assignment.log_dirichlet(alpha, (class_sizes.size, num_clients), rng))
    inner = np.floor(np.cumsum(shares, axis=1)[:, :-1] * totals + rng.random(totals.shape)).astype(np.int64)
    cuts = np.hstack([np.zeros_like(totals), np.minimum(inner, totals), totals])
    return np.diff(cuts, axis=1).T


# ---- Label skew and quantity skew: each client draws its label distribution and its size


def dirichlet_by_client(
    labels: ArrayLike,
    num_clients: int,
    rng: np.random.Generator,
    *,
    alpha: float,
    sigma: float = 0.0,
    min_size: int = 2,
) -> Partition:
    """Give each client a lognormal size and a Dirichlet label distribution, as FedDyn does.

    1. sizes: s_k = n exp(sigma z_k) / sum_j exp(sigma z_j), z ~ N(0, 1), rounded (`rounded_sizes`) and raised to
       `min_size` (`raised_sizes`: the largest sizes pay).
    2. priors: p_k ~ Dir(alpha * 1_C), one per client.
    3. until all sizes are used: a uniformly chosen client that is not yet full draws a class from its prior,
       renormalized over the remaining classes, and gets one example of it (`fill`).

    In `dirichlet_by_class`, by contrast, each class is split over the clients.

    When: label skew with controlled sizes, and to compare with papers that follow FedDyn.

    Cover: every example once. Sizes are exact, label distributions are not: when a class has run out, clients draw
    other classes.

    Differences from the reference: it redraws until an available class comes up, which has the same distribution as
    step 3, but may take practically for ever. With sigma = 0, it drops the n mod N remaining examples; here each of the
    first clients gets one. It gives the rounding of all sizes to client 0.

    Args:
        alpha: Concentration, from 1e-100 to 1e100. Towards 0, a client holds one class while it lasts; towards
            infinity, every client draws all classes with equal probability.
        sigma: Standard deviation of the logarithm of the sizes, from 0 (equal sizes) to 100.
        min_size: Smallest number of examples per client; 2 allows a held-out part, 0 allows empty clients.

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
    checked, num_clients = assignment.checked_arguments(labels, num_clients, rng)
    alpha = assignment.checked_number("alpha of dirichlet_by_client", alpha, *assignment.ALPHA_RANGE)
    sigma = assignment.checked_number("sigma of dirichlet_by_client", sigma, 0, 100)
    min_size = assignment.checked_count("min_size of dirichlet_by_client", min_size, 0)
    assignment.check_enough(checked.size, num_clients, min_size)
    logs = sigma * rng.standard_normal(num_clients)
    sizes = assignment.raised_sizes(assignment.rounded_sizes(np.exp(logs - logs.max()), checked.size), min_size)
    classes, class_sizes = assignment.classes_of(checked)
    assignment.check_table(num_clients, class_sizes.size)
    log_priors = assignment.log_dirichlet(alpha, (num_clients, class_sizes.size), rng)
    owner = assignment.deal(classes, fill(sizes, class_sizes, log_priors, rng), rng)
    parameters = {"alpha": alpha, "sigma": sigma, "min_size": min_size}
    return Partition.from_owner(owner, num_clients, "dirichlet_by_client", parameters)


def fill(sizes: Ints, supply: Ints, log_priors: Floats, rng: np.random.Generator) -> Ints:
    """Run step 3 for all n examples at once, with exactly its distribution; return the (N, C) counts.

    All steps draw their class as if none had run out. The draws are valid up to the first step that finds its class
    empty. After it, a draw of a remaining class stays valid: given that it is a remaining class, a draw from the prior
    follows the renormalized prior. Only the other steps draw again. Each pass uses up a class, so that there are at
    most C passes.

    Args:
        sizes: (N,) number of examples of each client.
        supply: (C,) number of examples of each class, with the same sum.
        log_priors: (N, C) logarithms of the priors, up to a constant per client. So even a prior that lies entirely on
            classes without examples can be renormalized.
        rng: Generator of the draws.
    """
    counts = np.zeros((sizes.size, supply.size), dtype=np.int64)
    client = visiting_order(sizes, rng)
    chosen = _draw(client, log_priors, supply > 0, rng)
    while True:
        by_class, demand = assignment.ordered_by(chosen), np.bincount(chosen, minlength=supply.size)
        over = np.flatnonzero(demand > supply)
        first_of = np.cumsum(demand) - demand
        good = int(by_class[first_of[over] + supply[over]].min()) if over.size else client.size
        np.add.at(counts, (client[:good], chosen[:good]), 1)
        if good == client.size:
            return counts
        supply = supply - np.bincount(chosen[:good], minlength=supply.size)
        client, chosen = client[good:], chosen[good:]
        to_redraw = np.flatnonzero(supply[chosen] == 0)
        chosen[to_redraw] = _draw(client[to_redraw], log_priors, supply > 0, rng)


def visiting_order(sizes: Ints, rng: np.random.Generator) -> Ints:
    """Return the (n,) sequence of clients: each step visits one of the clients that are not yet full, uniformly.

    Every client has a Poisson process of rate 1 that ends when the client is full. Each of the remaining processes is
    equally likely to have the next event.
    """
    clock = np.cumsum(rng.standard_exponential(int(sizes.sum())))
    before = np.concatenate([[0.0], clock])[np.cumsum(sizes) - sizes]
    return np.repeat(np.arange(sizes.size), sizes)[np.argsort(clock - np.repeat(before, sizes), kind="stable")]


def _draw(client: Ints, log_priors: Floats, available: Bools, rng: np.random.Generator) -> Ints:
    """Draw a class for each step, from the prior of its client renormalized over the available classes."""
    # Late passes redo few steps, so only their clients are used.
    who, row, steps = np.unique(client, return_inverse=True, return_counts=True)
    # Counts per class first, then their order: the same distribution as successive draws.
    often = rng.multinomial(steps, assignment.normalized_rows(log_priors[np.ix_(who, np.flatnonzero(available))]))
    chosen = np.empty_like(client)
    chosen[assignment.shuffled_by(row, rng)] = np.repeat(np.tile(np.flatnonzero(available), who.size), often.ravel())
    return chosen


# ---- A few clients with balanced classes among clients with label skew


def hybrid(
    labels: ArrayLike,
    num_clients: int,
    rng: np.random.Generator,
    *,
    share: float = 0.1,
    alpha: float = 0.5,
    min_size: int = 2,
) -> Partition:
    """Give the first ceil(share * K) clients equally many examples of every class; split the rest by Dirichlet.

    A balanced client holds m = floor(n / (K C)) examples of each of the C classes, so that it is about as large as the
    average client. It holds at least 1 and enough to reach `min_size`, and at most what the rarest class can give to
    all balanced clients. The rest is split over the other clients as in `dirichlet_by_class`.

    When: a few clients hold all classes and most hold few, as if many users shared some devices.

    Cover: every example once. Clients below `min_size` are filled from the largest of the *other* clients, so that the
    balanced clients stay balanced; `parameters["moved"]` is the number of these examples.

    Args:
        share: Share of the clients that are balanced, from 0 to 1.
        alpha: Dirichlet concentration of the other clients, from 1e-100 to 1e100.
        min_size: Smallest number of examples per client; 2 allows a held-out part, 0 allows empty clients.

    Raises:
        DataError: If there are too few examples, or if examples remain and there are no other clients.
        ConfigError: If an option is outside its range.

    Reference:
        CSRA, "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", section on
        evaluation: share 0.1, alpha 0.5, 80 clients. The paper leaves open the size of the balanced clients and the
        kind of Dirichlet split; they are FedReach's choice.

    Example:
        >>> labels = np.arange(120) % 3
        >>> hybrid(labels, 10, np.random.default_rng(0), share=0.2).label_counts(labels, 3)[:2]
        array([[4, 4, 4],
               [4, 4, 4]])
    """
    checked, num_clients = assignment.checked_arguments(labels, num_clients, rng)
    share = assignment.checked_number("share of hybrid", share, 0, 1)
    alpha = assignment.checked_number("alpha of hybrid", alpha, *assignment.ALPHA_RANGE)
    min_size = assignment.checked_count("min_size of hybrid", min_size, 0)
    assignment.check_enough(checked.size, num_clients, min_size)
    classes, class_sizes = assignment.classes_of(checked)
    num_classes = class_sizes.size
    balanced = math.ceil(share * num_clients - 1e-9)  # 0.28 * 25 is 7.000000000000001
    num_others = num_clients - balanced

    per_class = 0
    if balanced:
        fair = max(checked.size // (num_clients * num_classes), -(-min_size // num_classes), 1)
        per_class = min(fair, int(class_sizes.min()) // balanced)
        if per_class * num_classes < max(min_size, 1):
            raise DataError(
                f"hybrid: {balanced} balanced clients need equally many samples of each of {num_classes} classes; the "
                f"rarest class has {class_sizes.min()}. Lower share or min_size."
            )
    remaining = class_sizes - balanced * per_class
    if num_others == 0 and remaining.any():
        raise DataError(
            f"hybrid: share = {share:g} leaves {remaining.sum()} samples without a client. Lower it, or use 'iid'."
        )
    assignment.check_enough(int(remaining.sum()), num_others, min_size)

    counts = np.full((num_clients, num_classes), per_class, dtype=np.int64)
    if num_others:
        counts[balanced:] = split_classes(remaining, num_others, alpha, rng)
    owner = assignment.deal(classes, counts, rng)
    is_other = owner >= balanced
    refilled, moved = (
        assignment.top_up(owner[is_other] - balanced, num_others, min_size, rng) if num_others else (owner[is_other], 0)
    )
    owner[is_other] = refilled + balanced
    parameters = {"share": share, "alpha": alpha, "min_size": min_size, "balanced_clients": balanced, "moved": moved}
    return Partition.from_owner(owner, num_clients, "hybrid", parameters)


# ---- Partitions by name
# Each is called as ``kind(labels, num_clients, rng, **options)`` with the (n,) classes of the examples, the number N of
# clients, and the generator of all random draws.

PARTITIONS: Mapping[str, Any] = {
    "iid": iid,
    "dirichlet_by_class": dirichlet_by_class,
    "dirichlet_by_client": dirichlet_by_client,
    "shards": shards,
    "hybrid": hybrid,
    "class_counts": class_counts,
    "natural": natural,
}


def partition(kind: str, labels: ArrayLike, num_clients: int, rng: np.random.Generator, **options: Any) -> Partition:
    """Make a partition of a kind in `PARTITIONS`.

    Raises:
        ConfigError: If the kind or an option is unknown (the message suggests the nearest), or an option is missing.
        DataError: If the examples cannot be partitioned in this way.

    Example:
        >>> partition("shards", [0, 0, 1, 1], 2, np.random.default_rng(0), classes_per_client=1).sizes
        array([2, 2])
    """
    if kind not in PARTITIONS:
        raise ConfigError(f"kind of partition is unknown: {kind!r}.{nearest(str(kind), PARTITIONS)}")
    known_options = {
        name: option
        for name, option in inspect.signature(PARTITIONS[kind]).parameters.items()
        if option.kind is inspect.Parameter.KEYWORD_ONLY
    }
    check_option_names(f"partition {kind!r}", options, known_options)
    for name, option in known_options.items():
        if option.default is inspect.Parameter.empty and name not in options:
            raise ConfigError(f"partition {kind!r} needs the option {name!r}.")
    result: Partition = PARTITIONS[kind](labels, num_clients, rng, **options)
    return result
