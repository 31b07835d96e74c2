"""Kinds of partitions. A partition assigns each example to one client."""

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
    """Partition examples at random into clients of equal size.

    Each example belongs to one client. The first n mod N clients hold floor(n / N) + 1 examples, and the other clients
    hold floor(n / N).

    Use when: you need a baseline without heterogeneity, in which clients differ only by chance.

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
    """Assign each example to the client that it comes from. This partition does not use `rng`.

    Each example belongs to one client. A client that owns no example is empty, see
    `fedreach.data.assignment.without_empty`.

    Use when: the data contain the client of each example, such as a hospital, writer or speaker. Then prefer this
    partition to all others.

    Args:
        owners: (n,) client of each example, from 0 to N - 1.

    Raises:
        DataError: If the number of owners is not n, or an owner is N or larger.

    Example:
        >>> natural([0, 1, 1], 2, np.random.default_rng(0), owners=[1, 0, 1])[1]
        array([0, 2])
    """
    checked, num_clients = checked_arguments(labels, num_clients, rng, any_targets=True)
    partition = Partition.from_owner(owners, num_clients, "natural")
    if partition.num_samples != checked.size:
        raise DataError(
            f"natural: owners must be one client for each of the {checked.size} examples; got {partition.num_samples}."
        )
    return partition


# ---- Label skew: each client gets p shards, each with examples of one class


def shards(labels: ArrayLike, num_clients: int, rng: np.random.Generator, *, classes_per_client: int = 2) -> Partition:
    """Partition each class into shards, and assign p random shards to each client (McMahan et al., 2017).

    Each of the C classes is divided into N * p / C shards. If this is not a whole number, it is rounded down, and the
    largest classes are divided into one more shard. A class with fewer examples than shards has one shard per example.
    The shards of a class differ in size by at most one example. A client can receive two shards of the same class, so
    it holds *at most* p classes.

    Each example belongs to one client, and no client is empty.

    Use when: each client should hold few classes and about the same number of examples.

    Args:
        classes_per_client: Number of shards p per client, at least 1, with C <= N * p <= n. Default: 2.

    Raises:
        DataError: If there are fewer shards than classes, or more shards than examples.
        ConfigError: If `classes_per_client` is not a whole number of at least 1.

    Reference:
        McMahan et al. (2017), arXiv 1602.05629, section 3. The random assignment follows SAFARI (arXiv 2405.02745).

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
            f"shards: clients * classes_per_client must be at least {class_sizes.size} (classes) and at most "
            f"{checked.size} (examples); got {num_clients} * {per_client} = {total}. Change classes_per_client."
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
    """Assign given numbers of random examples per class to the first clients, and the remaining ones to the others.

    The remaining examples are assigned to the other clients in turn, in random order. Each example belongs to one
    client.

    Use when: a paper or a survey specifies the examples of each client. If you do not need the other clients, exclude
    them from training.

    Args:
        counts: One list for each of the first clients, with the number of examples of class 0, class 1, and so on.
            Classes that are missing in a list count as 0.

    Raises:
        DataError: If there are more lists than clients, a class has too few examples, another client remains empty, or
            examples remain without a client.
        ConfigError: If a list contains values other than whole numbers, or only zeros.

    Example:
        >>> labels = np.arange(30) % 3
        >>> class_counts(labels, 2, np.random.default_rng(0), counts=[[5, 0, 1]]).label_counts(labels, 3)
        array([[ 5,  0,  1],
               [ 5, 10,  9]])
    """
    checked, num_clients = assignment.checked_arguments(labels, num_clients, rng)
    if not isinstance(counts, list | tuple):
        raise ConfigError(
            f"counts of class_counts must be one list per client, such as [[100, 50], [0, 30]]; got {counts!r}."
        )
    if len(counts) > num_clients:
        raise DataError(f"class_counts: counts must be for at most {num_clients} clients; got {len(counts)} lists.")
    rows = [_check_counts(row) for row in counts]
    present, (classes, supply) = np.unique(checked), assignment.classes_of(checked)
    requested = np.array([[dict(enumerate(row)).get(label, 0) for label in present.tolist()] for row in rows], np.int64)
    requested = requested.reshape(len(rows), present.size)
    _check_supply(rows, dict(zip(present.tolist(), supply.tolist(), strict=True)))
    owner = assignment.deal(classes, np.vstack([requested, supply - requested.sum(axis=0)]), rng)
    remaining, num_others = np.flatnonzero(owner == len(rows)), num_clients - len(rows)
    if not num_others and remaining.size:
        raise DataError(f"class_counts: {remaining.size} examples remain without a client. Add a client.")
    assignment.check_enough(remaining.size, num_others, 1)
    owner[rng.permutation(remaining)] = len(rows) + np.arange(remaining.size) % max(num_others, 1)
    return Partition.from_owner(owner, num_clients, "class_counts", {"counts": rows})


def _check_counts(row: Sequence[int]) -> list[int]:
    if not isinstance(row, list | tuple) or not row:
        raise ConfigError(f"counts of class_counts: each client must have a list of numbers; got {row!r}.")
    checked_counts = [assignment.checked_count("counts of class_counts", count, 0) for count in row]
    if not sum(checked_counts):
        raise ConfigError("counts of class_counts: each list must contain a number above 0; got only 0.")
    return checked_counts


def _check_supply(rows: list[list[int]], supply: dict[int, int]) -> None:
    for label in range(max(map(len, rows), default=0)):
        requested, available = sum(row[label] for row in rows if label < len(row)), supply.get(label, 0)
        if requested > available:
            raise DataError(
                f"class_counts: the counts require {requested} examples of class {label}; the data have {available}."
            )


# ---- Label skew: each class is split over the clients in Dirichlet proportions


def dirichlet_by_class(
    labels: ArrayLike, num_clients: int, rng: np.random.Generator, *, alpha: float, min_size: int = 2
) -> Partition:
    """Split each class among the clients in Dirichlet proportions (Hsu et al., 2019; Yurochkin et al., 2019).

    For each class c, q_c is drawn from Dir(alpha * 1_N). Client k receives q_ck * n_c of the n_c examples, rounded up
    or down. The client sizes result from these draws. In contrast, `dirichlet_by_client` draws a label distribution for
    each client.

    Each example belongs to one client. After the split, random examples of the largest clients move to clients with
    fewer than `min_size` examples. `parameters["moved"]` is the number of moved examples. In contrast, the usual method
    repeats the draw until all clients are large enough, which may never end.

    Class c is cut at the positions floor(cumsum(q_c) * n_c + u_c) with one u_c ~ U[0, 1). So each count differs from
    q_ck * n_c by less than 1 and equals it on average. Most published code uses u_c = 0, which adds all rounding
    remainders to the last client.

    Use when: you need the most common benchmark of label skew, and client sizes may be unequal too.

    Args:
        alpha: Dirichlet concentration, from 1e-100 to 1e100. With small values, one client holds almost all examples of
            a class. With large values, each client holds about 1 / N of each class.
        min_size: Smallest number of examples per client. With at least 2, each client can hold out an example. With 0,
            clients can be empty. Default: 2.

    Raises:
        DataError: If n < N * min_size.
        ConfigError: If an option is outside its range.

    Reference:
        Hsu, Qi and Brown (2019), arXiv 1909.06335; Yurochkin et al. (2019), arXiv 1905.12022, for the split by class.

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
    """Draw the (N, C) label counts of the clients; column c has the sum class_sizes[c]."""
    assignment.check_table(num_clients, class_sizes.size)
    totals = class_sizes[:, None]
    shares = assignment.normalized_rows(assignment.log_dirichlet(alpha, (class_sizes.size, num_clients), rng))
    inner = np.floor(np.cumsum(shares, axis=1)[:, :-1] * totals + rng.random(totals.shape)).astype(np.int64)
    cuts = np.hstack([np.zeros_like(totals), np.minimum(inner, totals), totals])
    return np.diff(cuts, axis=1).T


# ---- Label skew and quantity skew: each client draws its size and its label distribution


def dirichlet_by_client(
    labels: ArrayLike,
    num_clients: int,
    rng: np.random.Generator,
    *,
    alpha: float,
    sigma: float = 0.0,
    min_size: int = 2,
) -> Partition:
    """Draw a lognormal size and a Dirichlet label distribution for each client (FedDyn; Acar et al., 2021).

    1. Sizes: s_k = n exp(sigma z_k) / sum_j exp(sigma z_j) with z ~ N(0, 1), rounded (`rounded_sizes`). Then sizes
       below `min_size` are raised, and the largest sizes are lowered (`raised_sizes`).
    2. Label distributions: p_k ~ Dir(alpha * 1_C) for each client.
    3. Repeat until all clients have their sizes (`fill`): draw a client uniformly from the clients that are not full
       yet. This client draws a class from p_k, renormalized over the classes that still have examples, and receives one
       example of this class.

    In contrast, `dirichlet_by_class` splits each class among the clients.

    Each example belongs to one client. Clients have exactly the drawn sizes. Their label distributions are approximate:
    if a class has no examples left, clients draw other classes.

    FedDyn's code differs in three ways. It repeats the draw of a class until the class has examples. This has the same
    distribution as step 3, but can take extremely long. With sigma = 0, it drops n mod N examples; FedReach assigns one
    of them to each of the first clients. FedDyn's code adds the rounding remainders of all sizes to client 0.

    Use when: you need label skew with controlled client sizes, or compare with papers that follow FedDyn.

    Args:
        alpha: Dirichlet concentration, from 1e-100 to 1e100. With small values, each client holds one class, as long as
            this class has examples. With large values, each client holds all classes equally.
        sigma: Standard deviation of the logarithm of the client sizes, from 0 (equal sizes) to 100. Default: 0.
        min_size: Smallest number of examples per client. With at least 2, each client can hold out an example. With 0,
            clients can be empty. Default: 2.

    Raises:
        DataError: If n < N * min_size.
        ConfigError: If an option is outside its range.

    Reference:
        Acar et al. (2021), arXiv 2111.04263. In its code, sigma is `unbalanced_sgm` and alpha is `rule_arg`.

    Example:
        >>> labels = np.arange(300) % 3
        >>> p = dirichlet_by_client(labels, 3, np.random.default_rng(0), alpha=1e-6)
        >>> (p.label_counts(labels, 3) > 0).sum(axis=1), p.sizes    # one class per client
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
    """Perform step 3 of `dirichlet_by_client` for all n examples at once; return the (N, C) label counts.

    First, all steps draw a class as if every class had enough examples. These draws are valid up to the first step
    whose class has no examples left. After this step, draws of the other classes remain valid, because they follow the
    renormalized distribution. Only the steps that drew an exhausted class draw again. Each pass exhausts at least one
    class, so there are at most C passes. The result has exactly the distribution of step 3.

    Args:
        sizes: (N,) number of examples of each client.
        supply: (C,) number of examples of each class; its sum equals the sum of `sizes`.
        log_priors: (N, C) logarithms of the label distributions, up to a constant per client. Logarithms can be
            renormalized even if exhausted classes have almost all of the probability.
        rng: Random generator.
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
    """Return the (n,) client of each step, drawn uniformly from the clients that are not yet full.

    Each client has a Poisson process of rate 1 that ends when the client is full. All processes that have not ended are
    equally likely to have the next event.
    """
    clock = np.cumsum(rng.standard_exponential(int(sizes.sum())))
    before = np.concatenate([[0.0], clock])[np.cumsum(sizes) - sizes]
    return np.repeat(np.arange(sizes.size), sizes)[np.argsort(clock - np.repeat(before, sizes), kind="stable")]


def _draw(client: Ints, log_priors: Floats, available: Bools, rng: np.random.Generator) -> Ints:
    """Draw the class of each step from the label distribution of its client, renormalized over available classes."""
    # Late passes have few steps, so only their clients are used.
    who, row, steps = np.unique(client, return_inverse=True, return_counts=True)
    # Draws of counts per class in random order have the same distribution as successive draws.
    often = rng.multinomial(steps, assignment.normalized_rows(log_priors[np.ix_(who, np.flatnonzero(available))]))
    chosen = np.empty_like(client)
    chosen[assignment.shuffled_by(row, rng)] = np.repeat(np.tile(np.flatnonzero(available), who.size), often.ravel())
    return chosen


# ---- Some clients with balanced classes, the others with label skew


def hybrid(
    labels: ArrayLike,
    num_clients: int,
    rng: np.random.Generator,
    *,
    share: float = 0.1,
    alpha: float = 0.5,
    min_size: int = 2,
) -> Partition:
    """Balance the classes of the first ceil(share * N) clients, and split all other examples in Dirichlet proportions.

    Each balanced client holds m = floor(n / (N C)) examples of each of the C classes. So it is about as large as the
    average client. FedReach raises m to reach `min_size`, and limits m to what the rarest class allows. The remaining
    examples are split among the other clients as in `dirichlet_by_class`.

    Each example belongs to one client. After the split, random examples of the largest unbalanced clients move to
    unbalanced clients with fewer than `min_size` examples. `parameters["moved"]` is the number of moved examples.

    Use when: you need a few clients that hold all classes, while the other clients hold few.

    Args:
        share: Share of the clients that are balanced, from 0 to 1. Default: 0.1.
        alpha: Dirichlet concentration of the other clients, from 1e-100 to 1e100. Default: 0.5.
        min_size: Smallest number of examples per client. With at least 2, each client can hold out an example. With 0,
            clients can be empty. Default: 2.

    Raises:
        DataError: If there are too few examples, or if all clients are balanced and examples remain.
        ConfigError: If an option is outside its range.

    Reference:
        CSRA, "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", section on
        evaluation: share 0.1, alpha 0.5, 80 clients. The paper states neither the size of the balanced clients nor the
        kind of Dirichlet split, so both are FedReach's choices.

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
                f"hybrid: each of {balanced} balanced clients needs examples of all {num_classes} classes; the rarest "
                f"class has {class_sizes.min()}. Lower share or min_size."
            )
    remaining = class_sizes - balanced * per_class
    if num_others == 0 and remaining.any():
        raise DataError(
            f"hybrid: share = {share:g} leaves {remaining.sum()} examples without a client. Lower share, or use 'iid'."
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
# Each function is called as ``kind(labels, num_clients, rng, **options)`` with the (n,) classes of the examples, the
# number of clients N and the random generator.

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
    """Draw a partition whose kind is listed in `PARTITIONS`.

    Raises:
        ConfigError: If the kind or an option is unknown, or a required option is missing.
        DataError: If the data do not allow this partition.

    Example:
        >>> partition("shards", [0, 0, 1, 1], 2, np.random.default_rng(0), classes_per_client=1).sizes
        array([2, 2])
    """
    if kind not in PARTITIONS:
        raise ConfigError(f"Unknown partition: {kind!r}.{nearest(str(kind), PARTITIONS)}")
    known_options = {
        name: option
        for name, option in inspect.signature(PARTITIONS[kind]).parameters.items()
        if option.kind is inspect.Parameter.KEYWORD_ONLY
    }
    check_option_names(f"partition {kind!r}", options, known_options)
    for name, option in known_options.items():
        if option.default is inspect.Parameter.empty and name not in options:
            raise ConfigError(f"partition {kind!r} requires the option {name!r}.")
    result: Partition = PARTITIONS[kind](labels, num_clients, rng, **options)
    return result
