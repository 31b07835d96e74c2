"""FedAU: rare clients count more, as much as the past says."""

from dataclasses import replace

import numpy as np
import pytest

from fedreach._util.errors import ComponentError, ConfigError
from fedreach._util.streams import generator
from fedreach.federation.aggregation import MIFA, FedVARP, Mean
from fedreach.federation.federation import Federation
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.round import conclude_round
from fedreach.federation.selection.random import Full
from fedreach.federation.server import Average
from fedreach.federation.solvers import FedAvg
from fedreach.federation.state import initial_state
from fedreach.federation.types import ClientResults, Cohort, ServerView
from fedreach.federation.weighting import Equal, FedAU

from .small import conclude, federation, make_reports, make_view, start

N, ROUNDS, RATE = 5, 80, 0.05
OPTIMUM = np.linspace(-2, 2, N)
CHANCE = np.array([0.9, 0.7, 0.5, 0.3, 0.15])


def there(number):
    """Return who takes part in a round."""
    return np.flatnonzero(generator(0, "there", number).random(N) < CHANCE)


def update_of(x, clients):
    """Return what three steps on (x - b_i)^2 / 2 add to x."""
    return (1 - (1 - RATE) ** 3) * (OPTIMUM[clients] - x)


def trajectory(weighting, aggregation=None):
    """Return the (rounds,) model of one number after each round, as a federation trains it."""
    chosen = Federation(Full(), weighting, FedAvg(), LocalSGD(), Average(), cohort_size=N, seed=0)
    chosen = replace(chosen, aggregation=aggregation or Mean())
    view = ServerView.of(np.arange(N), np.full(N, 10))
    state, found = initial_state(chosen, np.zeros(1, np.float32), view), []
    for number in range(1, ROUNDS + 1):
        ids = there(number)
        update = update_of(state.params[0], ids).astype(np.float32)[:, None]
        metrics = {"num_examples": np.full(len(ids), 10.0), "loss": np.ones(len(ids))}
        reports = ClientResults(ids, update, metrics, round=number)
        state, _ = conclude_round(chosen, state, view, Cohort(ids), reports)
        found.append(float(state.params[0]))
    return np.array(found)


@pytest.mark.parametrize("cutoff", [1, 3, 50])
def test_the_trajectory_is_that_of_a_plain_loop(cutoff):
    """Algorithms 1 and 2 of the paper, client by client and round by round."""
    x, expected = 0.0, []
    weight, intervals, length = np.ones(N), np.zeros(N, int), np.zeros(N, int)
    for number in range(1, ROUNDS + 1):
        step = np.zeros(N)
        step[there(number)] = update_of(x, there(number))
        x += (weight * step).sum() / N
        expected.append(x)
        for i in range(N):
            length[i] += 1
            if i in there(number) or length[i] == cutoff:
                weight[i] = (intervals[i] * weight[i] + length[i]) / (intervals[i] + 1)  # the first 1 is no interval
                intervals[i] += 1
                length[i] = 0
    np.testing.assert_allclose(trajectory(FedAU(cutoff)), expected, rtol=0, atol=1e-6)


def program(method, cutoff=10**5, *, moves_alone=False):
    """Return what github.com/IBM/fedau, `main.py` at 6e9cce9, makes of the same rounds with ``-weighting METHOD``.

    Clients one after the other, each with its list of intervals and the rounds that it has been away; K is `cutoff`.
    Where nobody is there their MIFA still steps along the mean that it has (`moves_alone`); ours leaves the model.
    """
    x, found = 0.0, []
    away, intervals, sent, mean_sent = [0] * N, [[] for _ in range(N)], np.zeros(N), 0.0
    for number in range(1, ROUNDS + 1):
        total, heard = 0.0, 0
        for i in range(N):
            if i in there(number):
                update, heard = update_of(x, i), heard + 1
                old, sent[i] = sent[i], update
                if method == "adaptive" and intervals[i]:
                    update *= np.mean(intervals[i])
                if method == "fedvarp":
                    update -= old
                total += update
                intervals[i].append(away[i] + 1)
                away[i] = 0
            else:
                away[i] += 1
                if away[i] >= cutoff:
                    intervals[i].append(away[i])
                    away[i] = 0
        if method == "mifa" and (heard or moves_alone):
            x += sent.mean()
        elif heard:
            x += total / (N if method == "adaptive" else heard) + mean_sent
        mean_sent = sent.mean() if method == "fedvarp" else 0.0
        found.append(x)
    return np.array(found)


@pytest.mark.parametrize(
    ("method", "cutoff", "weighting", "aggregation"),
    [
        ("adaptive", 10**5, FedAU(10**5), Mean()),
        ("adaptive", 3, FedAU(3), Mean()),
        ("average_participating", 10**5, Equal(), Mean()),
        ("fedvarp", 10**5, Equal(), FedVARP()),
        ("mifa", 10**5, Equal(), MIFA()),
    ],
)
def test_the_trajectory_is_that_of_the_authors_program(method, cutoff, weighting, aggregation):
    np.testing.assert_allclose(trajectory(weighting, aggregation), program(method, cutoff), rtol=0, atol=1e-6)


def test_where_nobody_is_there_the_model_stays_though_the_authors_mifa_moves_on():
    empty = next(number for number in range(1, ROUNDS + 1) if not len(there(number)))
    ours, theirs = trajectory(Equal(), MIFA()), program("mifa", moves_alone=True)
    np.testing.assert_allclose(ours[: empty - 1], theirs[: empty - 1], rtol=0, atol=1e-6)
    assert ours[empty - 1] == ours[empty - 2]
    assert abs(theirs[empty - 1] - theirs[empty - 2]) > 1e-5


def test_it_ends_near_the_mean_of_all_where_equal_weights_end_near_those_that_are_there():
    """The optimum of sum_i p_i (x - b_i)^2 is -0.74 with these chances, that of the plain sum 0."""
    half = ROUNDS // 2
    biased = (CHANCE * OPTIMUM).sum() / CHANCE.sum()
    assert abs(trajectory(Equal())[half:].mean() - biased) < 0.25
    assert abs(trajectory(FedAU())[half:].mean()) < 0.25


def test_if_all_are_there_in_every_round_it_is_the_plain_mean():
    chosen, plain = federation(weighting=FedAU(), cohort_size=6), federation(weighting=Equal(), cohort_size=6)
    a, _ = conclude(chosen, range(6))
    b, _ = conclude(plain, range(6))
    np.testing.assert_allclose(a.params, b.params, rtol=1e-6)


def test_buffers_take_the_weighted_mean_as_it_is():
    chosen, view = federation(weighting=FedAU()), make_view()
    state = start(chosen, view)
    new, result = conclude_round(chosen, state, view, Cohort(np.array([0, 2])), make_reports([0, 2], trainable=3))
    assert result.weights == (0.5, 0.5)
    np.testing.assert_allclose(new.params, [4 / 6] * 3 + [2] * 2, rtol=1e-6)  # (1 + 3) / n, and (1 + 3) / 2


class Negative(FedAU):
    """A scale that would turn around."""

    def mean_scale(self, state, reports, n):
        return -1.0


def test_a_scale_that_is_none_is_refused():
    with pytest.raises(
        ComponentError, match=r"Negative.mean_scale must return a number that is finite and not negative"
    ):
        conclude(federation(weighting=Negative()), [0, 1])


def test_a_cutoff_of_no_rounds_is_refused():
    with pytest.raises(ConfigError, match=r"FedAU.cutoff must be at least 1; got 0"):
        FedAU(0)
