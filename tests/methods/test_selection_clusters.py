"""Checks of the policies that find clusters of clients."""

from typing import Any

import numpy as np

from fedreach._util.streams import generator
from fedreach.federation.types import ClientResults, ServerView, State
from fedreach.testing.base import Subject, define_check, fail

from .running import each_method, must_pass

ROWS = np.array([[1, 0.1, 0], [0.9, 0, 0.1], [-1, 0.2, 0], [-0.8, -0.1, 0.1], [1.1, 0, 0]], np.float32)
EXAMPLES = np.array([80, 90, 10, 10, 10])
LATE = 100  # a round in which any policy may split its clusters


@define_check()
def golden_split(subject: Subject) -> None:
    """Clients whose updates cancel are split in two by complete linkage of their cosine distances.

    Reference: specification, section 1.6: sides 1, 1, 2, 2, 1; |mean| = .2466, the largest 1.1
    """
    policy, view = subject.make(), _view(5)
    labels = policy.clusters(_after(policy, view, ROWS)).tolist()
    if labels != [0, 0, 1, 1, 0]:
        fail(f"the clusters are {labels} instead of [0, 0, 1, 1, 0]", f"updates {ROWS.tolist()} in round {LATE}")


@define_check()
def who_agrees_stays_together(subject: Subject) -> None:
    """Clients whose updates all point one way, or two clients alone, are not split."""
    policy = subject.make()
    for rows in (np.abs(ROWS), np.array([[1, 0, 0], [-1, 0, 0]], np.float32)):
        labels = policy.clusters(_after(policy, _view(len(rows)), rows)).tolist()
        if set(labels) != {0}:
            fail(f"the clusters are {labels}", f"updates {rows.tolist()} in round {LATE}")


@define_check()
def early_rounds_do_not_split(subject: Subject) -> None:
    """Before its time, no cluster splits, whatever the updates.

    Reference: specification, section 1.6 (round > 20)
    """
    policy = subject.make()
    labels = policy.clusters(_after(policy, _view(5), ROWS, number=1)).tolist()
    if set(labels) != {0}:
        fail(f"the clusters are {labels}", f"updates {ROWS.tolist()} in round 1")


@define_check()
def the_lowest_score_is_best(subject: Subject) -> None:
    """The cluster with the lowest mean score trains; when it is used up, the next.

    Reference: specification, section 6.2: scores .3, .1 | .2, .5 have the means .2 and .35
    """
    update = np.array([[1, 0], [0, 1], [0.9, 0.1], [0.1, 0.9]], np.float32)  # clusters {0, 2} and {1, 3}
    for scores, best, other in (([0.3, 0.2, 0.1, 0.5], {0, 2}, {1, 3}), ([0.5, 0.3, 0.2, 0.1], {1, 3}, {0, 2})):
        case = f"clusters {{0, 2}} and {{1, 3}} with the scores {scores}"
        policy, view = subject.make(n_clusters=2), _view(4)
        answers = ClientResults(view.ids, update, _metrics(4) | {"wlrc": np.array(scores)}, probe=True)
        state = policy.observe(policy.init(view), answers)
        chosen = set(policy.select(state, view, 2, generator(0, "select")).ids.tolist())
        if chosen != best:
            fail(f"it chose {sorted(chosen)} instead of {sorted(best)}", f"{case}, k = 2")
        chosen = set(policy.select(state, view, 3, generator(0, "select")).ids.tolist())
        if not (best < chosen and len(chosen & other) == 1):
            fail(f"it chose {sorted(chosen)} instead of {sorted(best)} and one more", f"{case}, k = 3")


@define_check()
def a_clusters_score_is_the_mean(subject: Subject) -> None:
    """A cluster's score is the mean of its members', which count by their examples with average = "by_examples".

    Neither their sum, which grows with the cluster, nor the best or worst of them.

    Reference: specification, section 6.2
    """
    update = np.array([[1, 0], [0, 1], [0.9, 0.1], [0.1, 0.9], [1, 0.05]], np.float32)  # {0, 2, 4} and {1, 3}
    many, few = {0, 2, 4}, {1, 3}
    for average, scores, best in (
        ("mean", [0.2, 0.25, 0.3, 0.25, 0.1], many),  # means .2 and .25, sums .6 and .5, largest .3 and .25
        ("mean", [0.05, 0.3, 0.5, 0.3, 0.5], few),  # means .35 and .3, smallest .05 and .3
        ("mean", [0.3, 0.2, 0.1, 0.3, 0.1], many),  # means .167 and .25
        ("by_examples", [0.3, 0.2, 0.1, 0.3, 0.1], few),  # .26 and .21
    ):
        policy, view = subject.make(n_clusters=2, average=average), ServerView.of(np.arange(5), EXAMPLES)
        metrics = {"num_examples": EXAMPLES.astype(np.float64), "loss": np.ones(5), "wlrc": np.array(scores)}
        state = policy.observe(policy.init(view), ClientResults(view.ids, update, metrics, probe=True))
        chosen = set(policy.select(state, view, 2, generator(0, "select")).ids.tolist())
        if not chosen <= best:
            fail(
                f"it chose {sorted(chosen)} and not two of {sorted(best)}",
                f"clusters {sorted(many)} and {sorted(few)}, scores {scores}, {EXAMPLES.tolist()} examples, {average}",
            )


@define_check()
def softly_by_inverse_score(subject: Subject) -> None:
    """With use = "soft", a place goes to a cluster with probability proportional to 1 / score: .2 and .6 give 3 : 1."""
    update = np.array([[1, 0], [0, 1], [0.9, 0.1], [0.1, 0.9]], np.float32)
    policy, view, draws = subject.make(use="soft", n_clusters=2), _view(4), 2000
    scores = np.array([0.3, 0.6, 0.1, 0.6])
    state = policy.observe(
        policy.init(view), ClientResults(view.ids, update, _metrics(4) | {"wlrc": scores}, probe=True)
    )
    count = np.zeros(4)
    for seed in range(draws):
        count[policy.select(state, view, 1, generator(seed, "select")).ids] += 1
    share = count[[0, 2]].sum() / draws
    if abs(share - 0.75) > 5 * np.sqrt(0.75 * 0.25 / draws):  # five standard errors
        fail(f"the cluster {{0, 2}} was chosen in {share:.1%} of {draws} rounds instead of 75 %", "scores .2 and .6")


METHOD_CHECKS = {
    "clustered": (golden_split, who_agrees_stays_together, early_rounds_do_not_split),
    "rademacher": (the_lowest_score_is_best, a_clusters_score_is_the_mean, softly_by_inverse_score),
}


def _view(n: int) -> ServerView:
    return ServerView.of(np.arange(n), np.full(n, 10))


def _metrics(n: int) -> dict[str, Any]:
    return {"num_examples": np.full(n, 10.0), "loss": np.ones(n)}


def _after(policy: Any, view: ServerView, rows: Any, number: int = LATE) -> State:
    """Return the state after a round in which everybody sent these updates."""
    state: State = policy.observe(policy.init(view), ClientResults(view.ids, rows, _metrics(len(rows)), round=number))
    return state


@each_method("selection", METHOD_CHECKS)
def test_a_method_passes_its_checks(kind, name, check):
    must_pass(kind, name, check)
