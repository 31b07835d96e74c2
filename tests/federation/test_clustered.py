"""When clusters split, and who goes where."""

from dataclasses import replace

import numpy as np
import pytest

from fedreach._util.errors import ConfigError
from fedreach._util.streams import generator
from fedreach.federation.checks import check_clusters
from fedreach.federation.selection.labels import Clustered
from fedreach.federation.types import ClientResults, ServerView

# design/algorithms.md, section 1.6: ||mean|| .2465765601, largest norm 1.1; sides 1, 1, 2, 2, 1
ROWS = np.array([[1, 0.1, 0], [0.9, 0, 0.1], [-1, 0.2, 0], [-0.8, -0.1, 0.1], [1.1, 0, 0]], np.float32)
SIDES = [0, 0, 1, 1, 0]


def make_view(n, available=None, round_=1):
    return replace(ServerView.of(np.arange(n) * 2 + 3, np.full(n, 10), available=available), round=round_)


def reported(view, positions, update, round_=1, probe=False):
    positions = np.asarray(positions)
    update = np.asarray(update, np.float32)
    update.setflags(write=False)
    return ClientResults(view.ids[positions], update, {}, round=round_, probe=probe)


def after(policy, view, *rounds):
    """Return the state after rounds of (positions, updates), numbered from 1."""
    state = policy.init(view)
    for number, (positions, update) in enumerate(rounds, start=1):
        before = {name: array.copy() for name, array in state.items()}
        new = policy.observe(state, reported(view, positions, update, number))
        assert all((state[name] == before[name]).all() for name in state)  # nothing was written to
        models = int(policy.clusters(state).max()) + 1
        check_clusters(policy, policy.clusters(new), len(view.ids), models)
        state = new
    return state


def test_the_golden_updates_split_into_the_golden_sides():
    view = make_view(5)
    policy = Clustered(first_round=1)
    assert policy.clusters(policy.init(view)).tolist() == [0] * 5
    assert policy.clusters(after(policy, view, (range(5), ROWS))).tolist() == SIDES


# .2465765601 / 1.1 = .22416: between 0.224 and 0.225
@pytest.mark.parametrize(
    ("options", "splits"),
    [
        ({"eps1": 0.225}, True),
        ({"eps1": 0.224}, False),
        ({"eps2": 0.99}, True),
        ({"eps2": 1.0}, False),  # of the first round's largest, which this is
        ({"thresholds": "absolute", "eps1": 0.2466, "eps2": 1.09}, True),
        ({"thresholds": "absolute", "eps1": 0.2465, "eps2": 1.09}, False),
        ({"thresholds": "absolute", "eps1": 0.2466, "eps2": 1.11}, False),
    ],
)
def test_a_cluster_splits_if_its_mean_is_small_and_one_of_its_updates_is_large(options, splits):
    view = make_view(5)
    state = after(Clustered(first_round=1, **options), view, (range(5), ROWS))
    assert state["clusters"].tolist() == (SIDES if splits else [0] * 5)


def test_relative_thresholds_do_not_see_the_scale_of_the_model_and_absolute_ones_do():
    view = make_view(5)
    for scale in (1e-3, 1e3):
        assert after(Clustered(first_round=1), view, (range(5), scale * ROWS))["clusters"].tolist() == SIDES
    absolute = Clustered(first_round=1, thresholds="absolute", eps2=1.0)
    assert after(absolute, view, (range(5), ROWS))["clusters"].tolist() == SIDES
    assert after(absolute, view, (range(5), 1e-3 * ROWS))["clusters"].tolist() == [0] * 5


def test_clients_that_have_almost_stopped_are_not_split():
    view = make_view(5)
    for scale, expected in [(0.71, SIDES), (0.69, [0] * 5)]:  # of the first round's largest
        agreed = np.tile(ROWS[4], (5, 1))  # the first round: everybody wants the same
        state = after(Clustered(first_round=2), view, (range(5), agreed), (range(5), scale * ROWS))
        assert state["clusters"].tolist() == expected


def test_nothing_splits_before_its_time():
    view = make_view(5)
    policy = Clustered(first_round=3)
    assert after(policy, view, *[(range(5), ROWS)] * 2)["clusters"].tolist() == [0] * 5
    assert after(policy, view, *[(range(5), ROWS)] * 3)["clusters"].tolist() == SIDES


def test_two_reports_are_not_enough_to_split():
    view = make_view(2)
    opposite = np.array([[1, 0], [-1, 0]])
    assert after(Clustered(first_round=1), view, (range(2), opposite))["clusters"].tolist() == [0, 0]
    view = make_view(3)
    three = np.array([[1, 0], [-1, 0], [-1, 0.1]])
    assert after(Clustered(first_round=1), view, (range(3), three))["clusters"].tolist() == [1, 0, 0]


def test_each_cluster_splits_by_its_own_updates_and_new_numbers_follow():
    view, (x, y) = make_view(8), np.eye(2)
    first = np.array([x, x, x, x, x, -x, -x, -x])
    second = np.array([y, y, y, -y, -y, x, x, -2 * x])
    policy = Clustered(first_round=1)
    assert after(policy, view, (range(8), first))["clusters"].tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    state = after(policy, view, (range(8), first), (range(8), second))
    assert state["clusters"].tolist() == [0, 0, 0, 2, 2, 1, 1, 3]


def test_members_without_a_new_update_follow_their_last_one():
    view = make_view(9)
    common = np.array([0.0, 0.0, 3.0])  # what everybody wants at first
    early = np.array([[1, 0, 0], [-1, 0, 0], [1, 0.2, 0], [-0.9, 0, 0]]) + common
    state = after(Clustered(first_round=2, eps2=0.3), view, (range(5, 9), early), (range(5), ROWS))
    assert state["clusters"].tolist() == [*SIDES, 0, 1, 0, 1]


def test_a_member_whose_update_is_zero_joins_the_part_with_more_reports():
    view = make_view(6)
    state = after(Clustered(first_round=2), view, ([5], np.zeros((1, 3))), (range(5), ROWS))
    assert state["clusters"].tolist() == [*SIDES, 0]


def test_a_split_waits_for_those_never_heard_from_who_are_asked_once():
    view, policy = make_view(7), Clustered(first_round=1)
    rng = generator(0, "probe")
    assert policy.probe(policy.init(view), view, 2, rng) is None
    state = after(policy, view, (range(5), ROWS))
    assert state["clusters"].tolist() == [0] * 7  # 5 and 6 were never heard

    away = replace(view, available=view.ids != view.ids[6], round=2)
    probe = policy.probe(state, away, 2, rng)
    assert (probe.ids.tolist(), probe.asks) == ([view.ids[5]], "update")
    state = policy.observe(state, reported(view, [5], [[-1, 0, 0.1]], 2, probe=True))
    assert state["clusters"].tolist() == [0] * 7  # an answer to a probe is no round

    state = policy.observe(state, reported(view, range(5), ROWS, 2))
    assert state["clusters"].tolist() == [*SIDES, 1, 0]  # the one who could not be asked joins the larger part
    assert policy.probe(state, replace(view, round=3), 2, rng) is None


def test_a_split_does_not_wait_for_members_of_other_clusters():
    view, policy = make_view(6), Clustered(first_round=1)
    first = [[1, 0, 0]] * 3 + [[-1, 0, 0]] * 2
    state = policy.observe(after(policy, view, (range(5), first)), reported(view, range(5), first, 2))
    assert state["clusters"].tolist() == [0, 0, 0, 1, 1, 0]
    second = [[0, 0, 1], [0, 0, -1.0]]
    with_probe = policy.observe(state, reported(view, [5], [[0, 0, 1]], 3, probe=True))
    state = policy.observe(with_probe, reported(view, [0, 1, 2], [*second, [0, 0, 1]], 3))
    assert state["clusters"].tolist() == [0, 2, 0, 1, 1, 0]


def test_renaming_the_clients_renames_the_clusters():
    view, rng = make_view(12), generator(0, "rows")
    groups = np.repeat(np.eye(3), 4, axis=0)
    updates = [groups - groups.mean(axis=0) + 0.05 * rng.normal(size=(12, 3)) for _ in range(3)]
    policy = Clustered(first_round=1, eps1=0.5, eps2=0.1)
    before = after(policy, view, *[(range(12), u) for u in updates])["clusters"]
    assert len(np.unique(before)) == 3
    for _ in range(4):
        order = rng.permutation(12)
        renamed = after(policy, view, *[(range(12), u[order]) for u in updates])["clusters"]
        same = before[order][:, None] == before[order]
        assert ((renamed[:, None] == renamed) == same).all()


def test_a_sketch_of_the_updates_splits_alike():
    view, rng = make_view(20), generator(0, "rows")
    direction = rng.normal(size=3000)
    sides = np.arange(20) % 3 == 0
    update = np.where(sides, -1, 0.5)[:, None] * direction + 0.3 * rng.normal(size=(20, 3000))
    for sketch in (None, 300):
        state = after(Clustered(first_round=1, sketch=sketch), view, (range(20), update))
        assert state["clusters"].tolist() == (~sides if sides.sum() > 10 else sides).astype(int).tolist()
    assert state["rows"].shape == (20, 300)


def test_the_cohort_is_drawn_from_those_available_each_equally_often():
    view = make_view(5, available=np.array([True, True, False, True, True]))
    policy, rng = Clustered(), generator(0, "select")
    count = np.zeros(5)
    for _ in range(1000):
        ids = policy.select(policy.init(view), view, 2, rng).ids
        count[view.rows(ids)] += 1
    assert count[2] == 0
    assert count.sum() == 2000
    assert (abs(count[[0, 1, 3, 4]] - 500) < 4.5 * np.sqrt(1000 / 4)).all()


def test_a_round_without_reports_changes_nothing():
    view, policy = make_view(3), Clustered(first_round=1)
    state = policy.init(view)
    assert policy.observe(state, reported(view, np.empty(0, np.int64), np.empty((0, 3)), 1)) is state


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eps1": 0.0}, r"Clustered\.eps1 must be positive; got 0\.0"),
        ({"eps2": -1.0}, r"Clustered\.eps2 must be not negative; got -1\.0"),
        ({"first_round": 0}, r"Clustered\.first_round must be at least 1; got 0"),
        ({"thresholds": "relativ"}, r"'relative' or 'absolute'; got 'relativ'\. Did you mean 'relative'\?"),
        ({"sketch": 0}, r"Clustered\.sketch must be at least 1; got 0"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Clustered(**options)
