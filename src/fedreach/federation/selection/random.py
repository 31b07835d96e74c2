"""Random client selection, custom functions, urns, and the filter by label distributions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np

from fedreach._util.arrays import AnyArray, Floats, Ints
from fedreach._util.divergence import Direction, label_divergences
from fedreach.federation.base import OfFunction, Selection
from fedreach.federation.types import ClientResults, Cohort, ServerView, State


def largest(ids: Ints, score: AnyArray, k: int) -> Ints:
    """Return the k ids with the largest scores; ties go to the lower id.

    Example:
        >>> largest(np.array([0, 1, 2, 3, 4]), np.array([0.3, 0.9, 0.1, 0.9, 0.5]), 2)
        array([1, 3])
    """
    return ids[np.lexsort((ids, -score))[:k]]


@dataclass(frozen=True)
class FunctionSelection(OfFunction, Selection):
    """Selection by ``function(view, k, rng) -> ids``, including the function's attributes, such as ``needs``.

    Example:
        >>> most_data = FunctionSelection(lambda view, k, rng: view.ids[np.argsort(-view.num_examples)[:k]])
        >>> most_data.select({}, ServerView.of(np.arange(3), np.array([5, 9, 7])), 2, None).ids
        array([1, 2])
    """

    def select(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Cohort:
        return Cohort(np.asarray(self.function(view, k, rng)))


# -------------------- Uniform selection


@dataclass(frozen=True)
class Uniform(Selection):
    """Uniform random selection of k available clients; each set of k clients is equally likely.

    Use when: you need a baseline. It is unbiased and needs no information about clients.

    Example:
        >>> view = ServerView.of(np.arange(5), np.full(5, 10))
        >>> len(Uniform().select({}, view, 2, np.random.Generator(np.random.Philox(0))).ids)
        2
    """

    def select(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Cohort:
        return Cohort(rng.choice(view.available_ids, size=k, replace=False))


# -------------------- Cohorts for differential privacy


@dataclass(frozen=True)
class Poisson(Selection):
    """Poisson sampling: each available client with probability k / n, independently of the others.

    n is the number of participants and k the cohort size. So cohorts have k clients on average, and some are empty.

    Use when: the aggregation is `dp_fedavg`. Its accounting is tightest for this policy, also if clients are offline.

    Reference: Mironov, Talwar and Zhang, "Rényi Differential Privacy of the Sampled Gaussian Mechanism", 2019,
    arXiv:1908.10530.

    Example:
        >>> view = ServerView.of(np.arange(5), np.full(5, 10))
        >>> Poisson().select({}, view, 2, np.random.Generator(np.random.Philox(0))).ids
        array([0, 1, 3])
    """

    ignores_cohort = True
    may_be_empty = True

    def select(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Cohort:
        return Cohort(view.ids[view.available & (rng.random(len(view.ids)) < k / len(view.ids))])


@dataclass(frozen=True)
class LeastOften(Selection):
    """The k available clients with the fewest participations so far, ties in random order.

    Each request to train counts as a participation, also if the reply is lost, so that the order does not depend on the
    clients' data.

    Use when: the aggregation is `dp_ftrl`, or all clients should participate equally often.

    Args:
        max_participations: Largest number of participations of a client, at least 1. None: no limit.
        min_gap: Smallest number of rounds from one participation of a client to its next, at least 1. With the number
            of participants divided by the cohort size, all passes have the order of the first.

    Example:
        >>> policy, view = LeastOften(), ServerView.of(np.array([3, 5]), np.array([10, 10]))
        >>> state = {**policy.init(view), "participations": np.array([1, 0])}
        >>> policy.select(state, view, 1, np.random.Generator(np.random.Philox(0))).ids
        array([5])
    """

    may_be_empty = True

    max_participations: Annotated[int | None, "[1, inf)"] = None
    min_gap: Annotated[int, "[1, inf)"] = 1

    def init(self, view: ServerView) -> State:
        never = np.full(len(view.ids), -self.min_gap)
        return {"ids": view.ids, "participations": np.zeros(len(view.ids), np.int64), "last": never}

    def select(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Cohort:
        counts = state["participations"]
        limit = np.inf if self.max_participations is None else self.max_participations
        is_allowed = (counts < limit) & (view.round - state["last"] >= self.min_gap)
        rows = rng.permutation(np.flatnonzero(view.available & is_allowed))
        chosen = rows[np.argsort(counts[rows], kind="stable")[:k]]
        return Cohort(view.ids[chosen], "" if len(chosen) == k else f"{len(chosen)} clients within the limits")

    def observe(self, state: State, reports: ClientResults) -> State:
        requested = np.isin(state["ids"], [*reports.ids.tolist(), *reports.lost])
        last = np.where(requested, reports.round, state["last"])
        return {**state, "participations": state["participations"] + requested, "last": last}


# -------------------- All available clients


@dataclass(frozen=True)
class Full(Selection):
    """Full participation: all available participants, regardless of the cohort size.

    Use when: there are few clients, or you need a reference that shows the cost of selection in accuracy.

    Example:
        >>> Full().select({}, ServerView.of(np.arange(3), np.full(3, 10)), 1, None).ids
        array([0, 1, 2])
    """

    ignores_cohort = True

    def select(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Cohort:
        return Cohort(view.ids[view.available])


# -------------------- Urns with whole numbers of balls, so that nothing is rounded


class Urns(Selection):
    """Base class of policies that draw one client from each of k urns, with replacement; implement `urns`.

    Each urn contains M = sum_i m_i balls, where m_i is the number of examples of client i. If client i has k m_i balls
    in all urns together, the expected mean of the k updates is sum_i (m_i / M) u_i, the mean over all clients. The
    weighting `by_draws` computes the mean of the k updates.
    """

    def urns(self, state: State, view: ServerView, k: int) -> Ints:
        """Return (k, a) the number of each available client's balls in each urn; all urns contain equally many."""
        raise NotImplementedError(f"{type(self).__name__} must have a method urns(state, view, k).")

    def select(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Cohort:
        drawn = [
            np.searchsorted(urn.cumsum(), rng.integers(urn.sum()), side="right") for urn in self.urns(state, view, k)
        ]
        return Cohort.drawn(view.available_ids[np.array(drawn)])


def fill_urns(balls: Ints, groups: Sequence[Sequence[int]], k: int) -> Ints:
    """Return k equally full urns: each of the largest groups starts an urn, and the other groups fill remaining space.

    Args:
        balls: (a,) number of balls of each client, k times its number of examples. For a client in a group with other
            clients, this is at most the size of an urn.
        groups: Positions of the clients in each group.
        k: Number of urns, at most the number of groups unless a single client fills several urns.

    Example:
        >>> fill_urns(np.array([3, 3, 2, 4]), [[0, 2], [1], [3]], 2)
        array([[3, 1, 2, 0],
               [0, 2, 0, 4]])
    """
    full = int(balls.sum()) // k
    urns, room, unplaced = np.zeros((k, len(balls)), np.int64), np.full(k, full), balls.copy()
    first = 0
    for client in np.flatnonzero(balls >= full).tolist():  # clients that fill urns alone
        for _ in range(int(unplaced[client]) // full):
            urns[first, client], room[first] = full, 0
            unplaced[client] -= full
            first += 1
    order = sorted(groups, key=lambda group: (-unplaced[group].sum(), min(group)))
    for urn, group in enumerate(order[: k - first], start=first):
        urns[urn, group] = unplaced[group]
        room[urn] -= unplaced[group].sum()
    urn = first
    for client in (client for group in order[k - first :] for client in group):
        while unplaced[client]:
            urn += int(room[urn] == 0)
            moved = int(min(unplaced[client], room[urn]))
            urns[urn, client] += moved
            unplaced[client] -= moved
            room[urn] -= moved
    return urns


def groups_within(tree: AnyArray, balls: Ints, max_balls: int) -> list[list[int]]:
    """Return the largest groups of a merge tree with at most `max_balls` balls; single clients may have more.

    Args:
        tree: (a - 1, 4) merges in the format of scipy's `linkage`.

    Example:
        >>> tree = np.array([[0, 1, 1.0, 2], [2, 3, 1.0, 2], [4, 5, 9.0, 4]])
        >>> groups_within(tree, np.array([2, 2, 1, 5]), max_balls=4)
        [[2], [3], [0, 1]]
    """
    groups, ball_counts = [[i] for i in range(len(balls))], balls.tolist()
    for first, second in tree[:, :2].astype(np.int64).tolist():
        together = ball_counts[first] + ball_counts[second]
        ball_counts.append(together)
        groups.append(groups[first] + groups[second] if together <= max_balls else [])
        if together <= max_balls:
            groups[first] = groups[second] = []
    return [sorted(group) for group in groups if group]


# -------------------- Multinomial sampling


@dataclass(frozen=True)
class Multinomial(Urns):
    """Multinomial (MD) sampling: k draws of a client, with probability p_i = m_i / sum_j m_j for client i.

    m_i is the number of examples of client i. With the weighting `by_draws`, the expected mean update is sum_i p_i u_i,
    and the weight of client i has variance p_i (1 - p_i) / k. The weighting `by_examples` would favor large clients
    twice.

    Use when: you need the unbiased baseline of theory. `urns_by_size` is also unbiased and has a smaller variance. Use
    the weighting `by_draws`.

    Reference: Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, "Federated Optimization in Heterogeneous Networks", MLSys
    2020, Algorithm 1; "MD sampling" in Fraboni et al., ICML 2021.

    Example:
        >>> view = ServerView.of(np.array([4, 6]), np.array([10, 990]))
        >>> chosen = Multinomial().select({}, view, 3, np.random.Generator(np.random.Philox(0)))
        >>> chosen.ids, chosen.draws
        (array([6]), array([3]))
    """

    def urns(self, state: State, view: ServerView, k: int) -> Ints:
        balls = view.num_examples[view.available]
        return np.broadcast_to(balls, (k, len(balls)))


# -------------------- Clustered sampling by size


@dataclass(frozen=True)
class UrnsBySize(Urns):
    """Clustered sampling by size (Fraboni et al., 2021): one client from each of k urns.

    Client i has k m_i balls, where m_i is its number of examples. Each urn contains M = sum_j m_j balls. Clients fill
    the urns by decreasing size (ties: lower id). Balls that do not fit into an urn are put into the next urn. Client i
    is drawn from urn l with probability r_li, its share of the balls in this urn. So sum_i r_li = 1 and sum_l r_li = k
    p_i with p_i = m_i / M. With the weighting `by_draws`, the expected mean update is sum_i p_i u_i. The weight of each
    client has variance sum_l r_li (1 - r_li) / k^2, never more than with `multinomial`.

    M is the number of examples of all available clients. A client with m_i > M / k is drawn in every round.

    Use when: clients differ much in size, and the goal is the mean over all examples. The policy needs only numbers of
    examples, so it supports secure aggregation. Use the weighting `by_draws`.

    Reference: Fraboni, Vidal, Kameni and Lorenzi, "Clustered Sampling: Low-Variance and Improved Representativity for
    Clients Selection in Federated Learning", ICML 2021, Algorithm 1. The policy `clustered` is a different method.

    Example:
        >>> view = ServerView.of(np.arange(4), np.array([10, 20, 10, 20]))
        >>> UrnsBySize().urns({}, view, 2)
        array([[ 0, 40,  0, 20],
               [20,  0, 20, 20]])
    """

    def urns(self, state: State, view: ServerView, k: int) -> Ints:
        balls = k * view.num_examples[view.available].astype(np.int64)
        return fill_urns_in_order(balls, k)


def fill_urns_in_order(balls: Ints, k: int) -> Ints:
    """Return k equally full urns, filled by clients with decreasing numbers of balls; extra balls fill the next urn.

    Example:
        >>> fill_urns_in_order(np.array([3, 3, 2, 4]), 2)
        array([[2, 0, 0, 4],
               [1, 3, 2, 0]])
    """
    order, full = np.argsort(-balls, kind="stable"), int(balls.sum()) // k
    before = np.concatenate([[0], balls[order].cumsum()])  # balls poured before each client, and after the last
    begin = full * np.arange(k)[:, None]
    urns = np.empty((k, len(balls)), np.int64)
    urns[:, order] = np.diff(np.clip(before, begin, begin + full), axis=1)
    return urns


# -------------------- Filter by label divergence


class AdmittedClients(NamedTuple):
    """Clients that a filter admits to the selection."""

    ids: Ints  # (a,) increasing
    min_examples: int  # that were asked for
    enough: bool  # whether they hold as many
    kept: bool  # whether all of them are within the threshold
    said: str  # how many are, and how many others were admitted
    divergence: Floats  # (n,) of all available clients, in the order of their ids
    max_divergence: float  # the threshold, or the largest divergence of an admitted client


@dataclass(frozen=True)
class DivergenceFilter(Selection):
    """Base class of `KLFilter` and `CSRA`, which explain the options: a filter of clients by label distribution."""

    threshold: Annotated[float, "[0, inf]"] = 0.2
    direction: Direction = "global_to_local"
    smoothing: Annotated[float, "[0, inf]"] = 1.0
    min_examples: Annotated[int | None, "[0, inf]"] = 0
    needs = ("label_counts",)

    def admitted(self, view: ServerView, k: int) -> AdmittedClients:
        """Return the available clients within the threshold, and further clients if these have too few examples."""
        assert view.label_counts is not None  # because of `needs`
        needed = self.min_examples
        if needed is None:
            needed = int(np.ceil(k * view.num_examples.mean()))
        # Rounded, so that the order of summation decides neither ties nor clients exactly at the threshold.
        divergence = label_divergences(view.label_counts, self.direction, self.smoothing).round(12)[view.available]
        ids, examples = view.ids[view.available], view.num_examples[view.available]
        order = np.lexsort((ids, divergence))
        far, examples_up_to = divergence[order], np.cumsum(examples[order])  # nearest first
        within = int(np.searchsorted(far, self.threshold, side="right"))
        enough = int(np.searchsorted(examples_up_to, needed)) + 1  # this many of the nearest hold enough examples
        admitted = min(max(within, enough), len(ids))
        remark = f"{within} of {len(far)} clients within {self.threshold:g} nats"
        if admitted > within:
            remark += f"; admitted {admitted}, up to {far[admitted - 1]:.4g}"
        if examples_up_to[admitted - 1] < needed:
            remark += f", with {examples_up_to[admitted - 1]} of {needed} examples"
        is_enough = bool(examples_up_to[admitted - 1] >= needed)
        limit = max(self.threshold, float(far[admitted - 1]))
        nearest = np.sort(ids[order[:admitted]])
        return AdmittedClients(nearest, needed, is_enough, admitted <= within, remark, divergence, limit)
