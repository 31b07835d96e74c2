"""Checks of the policies that draw one client from each of k urns: unbiased, and never more varied than multinomial."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from fedreach._util.arrays import AnyArray, Bools, Floats, Ints
from fedreach._util.streams import generator
from fedreach.federation.types import NO_STATE, ClientResults, Cohort, ServerView, State
from fedreach.federation.weighting import ByDraws
from fedreach.testing.base import Subject, define_check, fail, must_be_close, shown

from .running import each_method, must_pass

DRAWS = 300


@dataclass(frozen=True, eq=False)
class Sizes:
    """Clients of which some are there, and how many are drawn."""

    num_examples: Ints  # (n,)
    available: Bools  # (n,)
    k: int

    def __str__(self) -> str:
        away = np.flatnonzero(~self.available).tolist()
        return f"{self.num_examples.tolist()} examples{f', {away} away' if away else ''}, k = {self.k}"

    def view(self) -> ServerView:
        n = len(self.num_examples)
        return ServerView.of(np.arange(n), self.num_examples, available=self.available)

    def state(self, policy: Any) -> State:
        """Return what a policy knows after all but the last client sent updates, no two of them alike."""
        n = len(self.num_examples)
        update = generator(0, "urns").standard_normal((n - 1, 5)).astype(np.float32)
        metrics = {"num_examples": self.num_examples[:-1].astype(np.float64), "loss": np.ones(n - 1)}
        state: State = policy.observe(policy.init(self.view()), ClientResults(np.arange(n - 1), update, metrics))
        return state

    def shares(self) -> Floats:
        """Return (a,) p_i = m_i / sum_j m_j of those who are there."""
        there = self.num_examples[self.available]
        return np.asarray(there / there.sum())


def sizes() -> Iterator[Sizes]:
    """Yield clients of all sizes."""
    everybody = np.ones(6, np.bool_)
    yield Sizes(np.array([10, 20, 30, 40]), np.ones(4, np.bool_), 3)
    yield Sizes(np.array([7, 7, 7, 7, 7, 7]), everybody, 4)
    yield Sizes(np.array([1, 2, 1, 90, 5, 1]), everybody, 3)  # one is in nearly every place
    yield Sizes(np.array([30, 11, 13, 30, 17, 19]), everybody, 4)  # two fill an urn alone
    yield Sizes(np.array([5, 50, 8, 9, 40, 3]), np.array([True, False, True, True, True, True]), 2)
    yield Sizes(np.array([3, 4]), np.ones(2, np.bool_), 1)


@define_check(sizes)
def balls_are_examples(subject: Subject, case: Sizes) -> None:
    """Each of k urns is equally full, and each client has k times as many balls in all as an urn has of its share.

    Reference: Fraboni et al. 2021, section 3
    """
    urns, there = _urns(subject.component, case), case.num_examples[case.available]
    if urns.shape != (case.k, len(there)) or urns.dtype.kind not in "iu" or (urns < 0).any():
        fail(f"urns must be {case.k} x {len(there)} whole numbers that are not negative; got {shown(urns)}")
    held, full = urns.sum(axis=0), urns.sum(axis=1)
    if (full != full[0]).any() or (held * there.sum() != case.k * there * full[0]).any():
        fail(f"the urns {urns.tolist()} hold {full.tolist()} balls, and the clients have {held.tolist()} in all")


@define_check(sizes)
def on_average_all_together(subject: Subject, case: Sizes) -> None:
    """Over all draws from its urns, with `by_draws` the mean update is on average sum_i p_i u_i, exactly.

    Reference: Fraboni et al. 2021, section 3
    """
    urns, view, p = _urns(subject.component, case), case.view(), case.shares()
    update = generator(1, "urns").standard_normal((len(p), 3))
    chance, mean = urns / urns.sum(axis=1, keepdims=True), np.zeros(3)
    for drawn in product(range(len(p)), repeat=case.k):
        likely = chance[np.arange(case.k), list(drawn)].prod()
        selection = Cohort.drawn(view.available_ids[list(drawn)])
        rows = np.searchsorted(view.available_ids, selection.ids)
        mean += likely * (_weights(selection) @ update[rows])
    must_be_close("the expected mean update", mean, p @ update, str(case), 1e-12)


@define_check(sizes)
def never_varies_more_than_multinomial(subject: Subject, case: Sizes) -> None:
    """Client i's weight is p_i on average, and varies by at most p_i (1 - p_i) / k: what independent draws would give.

    Reference: Fraboni et al. 2021, section 3
    """
    policy, view, p = subject.component, case.view(), case.shares()
    state, weights = case.state(policy), np.zeros((DRAWS, len(p)))
    for seed in range(DRAWS):
        selection = policy.select(state, view, case.k, generator(seed, "select"))
        weights[seed, np.searchsorted(view.available_ids, np.sort(selection.ids))] = _weights(selection)
    most = p * (1 - p) / case.k
    error = 5 * np.sqrt(most / DRAWS)  # five standard errors; of the variance, an upper bound of them
    if (np.abs(weights.mean(axis=0) - p) > error + 1e-12).any():
        fail(f"the mean weights in {DRAWS} rounds are {shown(weights.mean(axis=0))} instead of {shown(p)}")
    if (weights.var(axis=0) > most + error).any():
        fail(f"the weights vary by {shown(weights.var(axis=0))} in {DRAWS} rounds, with multinomial by {shown(most)}")


@define_check()
def every_place_alike(subject: Subject) -> None:
    """Each place is drawn from all clients, with probability m_i / sum_j m_j."""
    case = Sizes(np.array([10, 20, 70]), np.ones(3, np.bool_), 2)
    urns = _urns(subject.component, case)
    chance = urns / urns.sum(axis=1, keepdims=True)
    must_be_close("the probabilities", chance, [[0.1, 0.2, 0.7]] * 2, str(case), 1e-12)


@define_check()
def the_largest_is_poured_first(subject: Subject) -> None:
    """Clients fill the urns in the order of their size, and what an urn cannot take goes on into the next.

    Three urns of 10: clients of 4, 3, 2 and 1 examples have 12, 9, 6 and 3 balls.

    Reference: Fraboni et al. 2021, Algorithm 1
    """
    case = Sizes(np.array([1, 4, 2, 3]), np.ones(4, np.bool_), 3)
    urns, wanted = _urns(subject.component, case).tolist(), [[0, 10, 0, 0], [0, 2, 0, 8], [3, 0, 6, 1]]
    if urns != wanted:
        fail(f"the urns are {urns} instead of {wanted}", str(case))


@define_check()
def one_of_each_kind(subject: Subject) -> None:
    """Where clients are of k kinds with equally many examples, each kind has one of its own in every cohort.

    Reference: Fraboni et al. 2021, Algorithm 2
    """
    kind, k = np.array([0, 1, 2, 0, 1, 2, 0, 2]), 3
    num_examples = np.array([10, 30, 5, 25, 15, 20, 10, 20])  # 45 of each kind
    for measure in ("angle", "l2", "l1"):
        policy = subject.make(measure=measure)
        update = 10 * np.eye(3)[kind] + generator(0, "kinds").normal(0, 0.1, (8, 3))
        case = f"updates of kinds {kind.tolist()}, {num_examples.tolist()} examples, k = 3, measure = {measure!r}"
        for seed in range(20):
            drawn = _drawn(policy, update, num_examples, k, seed)
            if sorted(kind[drawn].tolist()) != [0, 1, 2]:
                fail(f"it drew {drawn.tolist()}, of the kinds {kind[drawn].tolist()}", case)


@define_check()
def by_its_own_measure(subject: Subject) -> None:
    """Angles join clients that pull one way, however far; l2 and l1 those whose updates end close to each other.

    Of (3, 3) and (-5, 0) the first is nearer to the origin by l2, 4.24 against 5, and the second by l1, 5 against 6.
    """
    even, spread = np.full(4, 10), [[0, 0], [3, 3], [-5, 0], [0, -99]]
    for measure, update, together in (
        ("angle", [[1, 0], [9, 0.1], [0, 1], [0.1, 9]], [[0, 1], [2, 3]]),
        ("l2", [[1, 0], [9, 9], [0, 1], [9, 8]], [[0, 2], [1, 3]]),
        ("l2", spread, [[0, 1], [2, 3]]),
        ("l1", spread, [[0, 2], [1, 3]]),
    ):
        policy, view = subject.make(measure=measure), ServerView.of(np.arange(4), even)
        state = policy.observe(policy.init(view), ClientResults(view.ids, np.array(update, np.float32), _metrics(even)))
        found = sorted(np.flatnonzero(urn).tolist() for urn in policy.urns(state, view, 2))
        if found != together:
            fail(f"the urns hold the clients {found} instead of {together}", f"updates {update}, {measure!r}")


@define_check()
def by_the_latest_updates(subject: Subject) -> None:
    """A client that turned round stands with those it now pulls with; one that was not heard again, where it was."""
    policy, view, even = subject.component, ServerView.of(np.arange(4), np.full(4, 10)), np.full(4, 10)
    first, later = np.array([[1, 0], [1, 0.1], [0, 1], [0.1, 1]]), np.array([[0, 1], [1, 0]])
    state = policy.observe(policy.init(view), ClientResults(view.ids, first.astype(np.float32), _metrics(even)))
    told = ClientResults(np.array([0, 2]), later.astype(np.float32), _metrics(even[:2]), round=2)
    found = sorted(np.flatnonzero(urn).tolist() for urn in policy.urns(policy.observe(state, told), view, 2))
    if found != [[0, 3], [1, 2]]:
        fail(
            f"the urns hold the clients {found} instead of [[0, 3], [1, 2]]",
            f"{first.tolist()}, then of 0 and 2 {later}",
        )


ALL = (balls_are_examples, on_average_all_together, never_varies_more_than_multinomial)

METHOD_CHECKS = {
    "multinomial": (*ALL, every_place_alike),
    "urns_by_size": (*ALL, the_largest_is_poured_first),
    "urns_by_similarity": (*ALL, one_of_each_kind, by_its_own_measure, by_the_latest_updates),
}


def _urns(policy: Any, case: Sizes) -> AnyArray:
    return np.asarray(policy.urns(case.state(policy), case.view(), case.k))


def _weights(selection: Cohort) -> Floats:
    """Return the (k,) weights of those that were drawn, by increasing id, if all reply."""
    order = np.argsort(selection.ids)
    draws = np.ones(len(order)) if selection.draws is None else selection.draws[order].astype(np.float64)
    metrics = {"num_examples": np.ones(len(order)), "draws": draws}
    return ByDraws().weights(
        NO_STATE, ClientResults(selection.ids[order], np.zeros((len(order), 1), np.float32), metrics)
    )[0]


def _drawn(policy: Any, update: AnyArray, num_examples: Ints, k: int, seed: int) -> Ints:
    """Return the clients that were drawn, each as often as it was, once all sent these updates."""
    view = ServerView.of(np.arange(len(update)), num_examples)
    reports = ClientResults(view.ids, update.astype(np.float32), _metrics(num_examples))
    selection = policy.select(policy.observe(policy.init(view), reports), view, k, generator(seed, "select"))
    return np.repeat(selection.ids, 1 if selection.draws is None else selection.draws)


def _metrics(num_examples: Ints) -> dict[str, Floats]:
    return {"num_examples": num_examples.astype(np.float64), "loss": np.ones(len(num_examples))}


@each_method("selection", METHOD_CHECKS)
def test_a_method_passes_its_checks(kind, name, check):
    must_pass(kind, name, check)
