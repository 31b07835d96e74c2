"""Which loss power-of-choice compares, and among whom."""

from dataclasses import replace

import numpy as np
import pytest

from fedreach._util.errors import ConfigError
from fedreach._util.streams import generator
from fedreach.federation.selection.losses import PowerOfChoice
from fedreach.federation.types import ServerView

LOSS = np.array([0.3, 0.9, 0.1, 0.9, 0.5])  # design/algorithms.md, section 1.5


def make_view(loss=LOSS, sizes=None, available=None):
    sizes = np.full(len(loss), 10) if sizes is None else np.asarray(sizes)
    return ServerView.of(np.arange(len(loss)), sizes, loss=np.asarray(loss), available=available)


def select(policy, view, k, seed=0):
    return np.sort(policy.select({}, view, k, generator(seed, "select")).ids).tolist()


def test_each_variant_asks_for_its_own_loss():
    view, rng = make_view(), generator(0, "probe")
    full = PowerOfChoice().probe({}, view, 2, rng)
    batch = PowerOfChoice(loss="batch").probe({}, view, 2, rng)
    small = PowerOfChoice(3, loss="batch", batch_size=7).probe({}, view, 2, rng)
    assert full.asks == "loss"
    assert (batch.asks, batch.batch_size, len(batch.ids)) == ("batch_loss", 64, 5)
    assert (small.asks, small.batch_size, len(small.ids)) == ("batch_loss", 7, 3)
    assert PowerOfChoice(loss="last").probe({}, view, 2, rng) is None


@pytest.mark.parametrize("loss", ["full", "batch"])
@pytest.mark.parametrize(("probed", "chosen"), [([0, 1, 2, 3, 4], [1, 3]), ([0, 2, 4], [0, 4])])  # section 1.5
def test_the_largest_losses_of_those_asked_are_chosen(loss, probed, chosen):
    view = replace(make_view(), probed=np.isin(np.arange(5), probed))
    assert select(PowerOfChoice(loss=loss), view, 2) == chosen


def test_the_last_known_loss_decides_where_nobody_is_asked():
    assert select(PowerOfChoice(loss="last"), make_view(), 2) == [1, 3]
    assert select(PowerOfChoice(loss="last"), make_view(), 3) == [1, 3, 4]


def test_a_client_never_heard_from_goes_first():
    view = make_view([np.nan, 0.9, 0.1, np.nan, 99.0])
    assert select(PowerOfChoice(loss="last"), view, 1) == [0]
    assert select(PowerOfChoice(loss="last"), view, 3) == [0, 3, 4]


def test_only_available_clients_are_candidates():
    view = make_view(available=np.array([True, False, True, False, True]))
    assert select(PowerOfChoice(loss="last"), view, 2) == [0, 4]
    assert select(PowerOfChoice(2, loss="last"), view, 3) == [0, 2, 4]


def test_without_a_probe_candidates_are_drawn_in_proportion_to_their_examples():
    sizes, draws = np.array([1, 2, 3, 4]), 4000
    view = make_view(np.arange(4.0), sizes)
    policy = PowerOfChoice(1, loss="last")
    count = np.zeros(4)
    rng = generator(0, "select")
    for _ in range(draws):
        count[policy.select({}, view, 1, rng).ids] += 1
    p = sizes / sizes.sum()  # one candidate, who is then chosen
    assert (abs(count / draws - p) < 4.5 * np.sqrt(p * (1 - p) / draws)).all()


def test_among_few_candidates_the_largest_loss_is_chosen():
    view, policy = make_view(np.arange(4.0), [1, 1, 1, 1]), PowerOfChoice(2, loss="last")
    count = np.zeros(4)
    rng = generator(0, "select")
    for _ in range(3000):
        count[policy.select({}, view, 1, rng).ids] += 1
    # Client i is chosen if it is drawn with one of the i lower ones: i of the 6 pairs.
    p = np.arange(4) / 6
    assert (abs(count / 3000 - p) <= 4.5 * np.sqrt(p * (1 - p) / 3000)).all()


def test_renaming_the_clients_renames_the_choice():
    loss, order = np.array([0.4, np.nan, 0.1, 0.8, 0.5]), generator(1, "order").permutation(5)
    for k in (1, 2, 4):
        before = select(PowerOfChoice(loss="last"), make_view(loss), k)
        after = select(PowerOfChoice(loss="last"), make_view(loss[order]), k)
        assert sorted(order[after]) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "lst"}, r"PowerOfChoice\.loss must be 'full', 'batch' or 'last'; got 'lst'\. Did you mean 'last'\?"),
        ({"batch_size": 0}, r"PowerOfChoice\.batch_size must be at least 1; got 0"),
        ({"candidates": 0}, r"PowerOfChoice\.candidates must be at least 1; got 0"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        PowerOfChoice(**options)
