"""Which clusters the cohort comes from, who is asked for a score, and when."""

from dataclasses import replace

import numpy as np
import pytest

from fedreach._util.errors import ComponentError, ConfigError
from fedreach._util.streams import generator
from fedreach.federation.measurements import WLRC
from fedreach.federation.selection.geometry import principal_points
from fedreach.federation.selection.labels import by_first_member, kmeans
from fedreach.federation.selection.losses import Rademacher
from fedreach.federation.types import ClientResults, ServerView

UPDATE = np.array([[1, 0.0], [0.9, 0.1], [0, 1], [0.1, 1]], np.float32)  # two clusters: 0, 1 and 2, 3
SCORES = np.array([0.3, 0.1, 0.2, 0.5])  # design/algorithms.md, section 6.2: means .2, .35; by examples .15, .35
EXAMPLES = np.array([10, 30, 20, 20])


def make_view(examples=EXAMPLES, available=None, round_=1):
    examples = np.asarray(examples)
    return replace(ServerView.of(np.arange(len(examples)) * 2 + 3, examples, available=available), round=round_)


def answers(view, positions, update, scores, round_=1, probe=True):
    arrays = np.asarray(update, np.float32), np.asarray(scores, np.float64)
    for array in arrays:
        array.setflags(write=False)
    return ClientResults(view.ids[np.asarray(positions)], arrays[0], {"wlrc": arrays[1]}, round=round_, probe=probe)


def heard(policy, view, update=UPDATE, scores=SCORES):
    """Return the state after everybody has answered the first probe."""
    return policy.observe(policy.init(view), answers(view, range(len(view.ids)), update, scores))


def chosen(policy, state, view, k, seed=0):
    ids = policy.select(state, view, k, generator(seed, "select")).ids
    assert len(ids) == k
    return sorted(view.rows(ids).tolist())


def three_clusters(each=5):
    """Return a view, updates in three directions, and scores .2, .1 and .4 of the clusters, on average."""
    rng = generator(0, "updates")
    group = np.tile(np.arange(3), each)
    update = (np.eye(3)[group] + 0.05 * rng.normal(size=(3 * each, 3))).astype(np.float32)
    scores = np.array([0.2, 0.1, 0.4])[group] + np.repeat(np.linspace(-0.02, 0.02, each), 3)
    return make_view(np.full(3 * each, 10)), update, scores, group


def test_scores_of_clusters_are_the_golden_ones_and_the_best_is_trained():
    view = make_view()
    for average, expected in [("mean", [0.2, 0.35]), ("by_examples", [0.15, 0.35])]:
        policy = Rademacher(average=average)
        state = heard(policy, view)
        assert state["cluster"].tolist() == [0, 0, 1, 1]
        np.testing.assert_allclose(policy.scores(state, view), expected, atol=1e-12)
        assert chosen(policy, state, view, 2) == [0, 1]


def test_a_best_cluster_that_is_too_small_is_filled_up_from_the_next_best():
    view, update, scores, group = three_clusters()
    policy = Rademacher()
    state = heard(policy, view, update, scores)
    assert (state["cluster"] == group).all()
    order = [1, 0, 2]  # of the clusters, by score
    for k in (5, 10, 15):
        assert chosen(policy, state, view, k) == np.flatnonzero(np.isin(group, order[: k // 5])).tolist()
    drawn = chosen(policy, state, view, 7)
    assert (group[drawn] == 1).sum() == 5
    assert (group[drawn] == 0).sum() == 2


def test_within_a_cluster_everybody_is_drawn_equally_often():
    view, update, scores, group = three_clusters()
    policy = Rademacher()
    state = heard(policy, view, update, scores)
    count = np.zeros(15)
    for seed in range(600):
        count[chosen(policy, state, view, 2, seed)] += 1
    assert (count[group != 1] == 0).all()
    assert (abs(count[group == 1] - 240) < 4.5 * np.sqrt(600 * 0.4 * 0.6)).all()


def test_only_available_members_are_chosen_but_all_of_them_make_the_score():
    view = make_view(available=np.array([True, False, True, True]))
    policy = Rademacher()
    state = heard(policy, make_view())
    np.testing.assert_allclose(policy.scores(state, view), [0.2, 0.35], atol=1e-12)
    assert chosen(policy, state, view, 1) == [0]
    assert chosen(policy, state, view, 3) == [0, 2, 3]


def test_soft_choice_draws_clusters_in_inverse_proportion_to_their_scores():
    view, update, scores, group = three_clusters()
    policy = Rademacher(use="soft")
    state = heard(policy, view, update, scores)
    count = np.zeros(3)
    for seed in range(1500):
        count[group[chosen(policy, state, view, 1, seed)]] += 1
    p = np.array([1 / 0.2, 1 / 0.1, 1 / 0.4])
    p /= p.sum()
    assert (abs(count - 1500 * p) < 4.5 * np.sqrt(1500 * p * (1 - p))).all()


def test_soft_choice_goes_on_with_the_others_when_a_cluster_is_used_up():
    view, update, scores, _ = three_clusters()
    policy = Rademacher(use="soft")
    state = heard(policy, view, update, scores)
    assert chosen(policy, state, view, 15) == list(range(15))
    assert len(set(chosen(policy, state, view, 14))) == 14


def test_a_score_of_zero_takes_all_places_that_its_cluster_can_fill():
    view = make_view()
    policy = Rademacher(use="soft")
    state = heard(policy, view, scores=[0.3, 0.1, 0.0, 0.0])
    assert chosen(policy, state, view, 2) == [2, 3]
    assert {2, 3} < set(chosen(policy, state, view, 3))


def test_equal_scores_go_to_the_cluster_of_the_lowest_id():
    view = make_view()
    policy = Rademacher()
    # 0.1 + 0.2 and 0.3 differ by rounding only.
    state = heard(policy, view, UPDATE[[2, 0, 1, 3]], [0.3, 0.1 + 0.2, 0.3, 0.3])
    assert state["cluster"].tolist() == [0, 1, 1, 0]
    assert chosen(policy, state, view, 2) == [0, 3]


@pytest.mark.parametrize("average", ["mean", "by_examples"])
def test_renaming_the_clients_renames_the_choice(average):
    view, update, scores, _ = three_clusters()
    examples, rng = np.arange(15) % 4 + 1, generator(1, "order")
    policy = Rademacher(average=average)
    view = make_view(examples)
    before = heard(policy, view, update, scores)
    for _ in range(3):
        order = rng.permutation(15)
        renamed = make_view(examples[order])
        after = heard(policy, renamed, update[order], scores[order])
        assert sorted(policy.scores(after, renamed)) == sorted(policy.scores(before, view))
        for k in (5, 10, 15):
            assert sorted(order[chosen(policy, after, renamed, k)]) == chosen(policy, before, view, k)


def test_everybody_is_asked_at_first_and_then_every_so_many_rounds():
    policy, view = Rademacher(every=3), make_view()
    state, rng = policy.init(view), generator(0, "probe")
    assert policy.probe(state, view, 2, rng).asks == "update"
    state = heard(policy, view)
    asked = [policy.probe(state, replace(view, round=number), 2, rng) for number in range(1, 9)]
    assert [probe is None for probe in asked] == [False, True, True, False, True, True, False, True]
    assert asked[3].ids.tolist() == view.ids.tolist()


def test_those_never_heard_from_are_asked_in_between_and_chosen_last():
    view = make_view(available=np.array([True, True, False, True]))
    policy, rng = Rademacher(every=None), generator(0, "probe")
    state = policy.init(view)
    assert policy.probe(state, view, 2, rng).ids.tolist() == [3, 5, 9]
    state = policy.observe(state, answers(view, [0, 1], UPDATE[:2], SCORES[:2]))  # 3 did not answer
    assert state["cluster"].tolist() == [0, 0, -1, -1]
    back = make_view(round_=2)
    assert policy.probe(state, back, 2, rng).ids.tolist() == [7, 9]
    for k in (1, 2):
        assert set(chosen(policy, state, back, k)) <= {0, 1}
    assert {0, 1} < set(chosen(policy, state, back, 3))
    state = policy.observe(state, answers(view, [2, 3], UPDATE[2:], SCORES[2:], 2))
    assert state["cluster"].tolist() == [0, 0, 1, 1]
    assert policy.probe(state, replace(back, round=3), 2, rng) is None


def test_before_anybody_was_heard_the_cohort_is_drawn_from_all():
    policy, view = Rademacher(), make_view()
    count = np.zeros(4)
    for seed in range(400):
        count[chosen(policy, policy.init(view), view, 1, seed)] += 1
    assert (abs(count - 100) < 4.5 * np.sqrt(400 * 0.25 * 0.75)).all()
    soft = Rademacher(use="soft")
    assert chosen(soft, soft.init(view), view, 4) == [0, 1, 2, 3]


def test_reports_of_a_round_change_nothing_and_answers_to_a_probe_replace_scores():
    view, policy = make_view(), Rademacher()
    state = heard(policy, view)
    trained = answers(view, [0, 1], -UPDATE[:2], [9.0, 9.0], 2, probe=False)
    assert policy.observe(state, trained) is state
    later = policy.observe(state, answers(view, [0, 1], UPDATE[:2], [0.8, 0.9], 11))
    np.testing.assert_allclose(later["score"], [0.8, 0.9, 0.2, 0.5])
    assert chosen(policy, later, view, 2) == [2, 3]
    np.testing.assert_allclose(state["score"], SCORES)  # the old state was not written to


def test_the_number_of_clusters_can_be_given():
    view, update, scores, group = three_clusters()
    for count in (1, 2, 3, 15):
        state = heard(Rademacher(n_clusters=count), view, update, scores)
        assert len(np.unique(state["cluster"])) == count
    assert (heard(Rademacher(n_clusters=3), view, update, scores)["cluster"] == group).all()


def test_clusters_are_of_directions_not_of_lengths():
    view, update, scores, group = three_clusters()
    longer = update * generator(2, "lengths").uniform(0.01, 100, (15, 1)).astype(np.float32)
    assert (heard(Rademacher(), view, longer, scores)["cluster"] == group).all()


def test_plain_updates_are_clustered_as_by_k_means_on_local_models():
    """Of all 32,767 pairs of clusters, the one with the least sum of squares |x|^2 - |sum of the cluster|^2 / size.

    Ten axes, or directions alone, would give other clusters.
    """
    rng = generator(51, "plain")
    update = (1e-3 * rng.normal(size=(16, 30)) * rng.uniform(0.8, 1.2, (16, 1))).astype(np.float32)
    models = rng.normal(size=30) + update.astype(np.float64)
    sides = np.arange(1, 2**15)[:, None] >> np.arange(16) & 1
    parts = [((side @ models) ** 2).sum(axis=1) / side.sum(axis=1) for side in (sides, 1 - sides)]
    expected = sides[(parts[0] + parts[1]).argmax()]
    view, scores = make_view(np.full(16, 10)), np.linspace(0.1, 0.2, 16)
    cluster = heard(Rademacher(n_clusters=2, plain=True), view, update, scores)["cluster"]
    assert cluster.tolist() == by_first_member(expected).tolist()
    for plain in (principal_points(update, 10), principal_points(update, 16, normalize=True)):
        assert (kmeans(plain / abs(plain).max(), 2) != cluster).any()
    assert (heard(Rademacher(n_clusters=2), view, update, scores)["cluster"] != cluster).any()


def test_a_sketch_of_the_updates_gives_the_same_clusters():
    rng = generator(0, "updates")
    group = np.tile(np.arange(3), 5)
    update = rng.normal(size=(3, 4000))[group] + 0.3 * rng.normal(size=(15, 4000))
    view, scores = make_view(np.full(15, 10)), np.linspace(0.1, 0.2, 15)
    state = heard(Rademacher(sketch=400), view, update, scores)
    assert state["rows"].shape == (15, 400)
    assert (state["cluster"] == group).all()


def test_clients_measure_what_the_options_say():
    policy = Rademacher(outputs="logits", draws=7, estimator="closed_form", batch_size=9)
    assert policy.measures == (WLRC("logits", 7, "closed_form", 9),)


@pytest.mark.parametrize("metrics", [{}, {"wlrc": np.array([0.1, np.nan])}, {"wlrc": np.array([0.1, -0.1])}])
def test_an_answer_without_a_score_is_refused(metrics):
    view, policy = make_view(), Rademacher()
    reports = ClientResults(view.ids[:2], UPDATE[:2], metrics, round=4, probe=True)
    with pytest.raises(ComponentError, match=r"Rademacher requires a measurement 'wlrc'.* in round 4"):
        policy.observe(policy.init(view), reports)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"use": "bset"}, r"Rademacher\.use must be 'best' or 'soft'; got 'bset'\. Did you mean 'best'\?"),
        ({"average": "median"}, r"Rademacher\.average must be 'mean' or 'by_examples'; got 'median'"),
        ({"every": 0}, r"Rademacher\.every must be at least 1; got 0"),
        ({"n_clusters": 0}, r"Rademacher\.n_clusters must be at least 1; got 0"),
        ({"sketch": 0}, r"Rademacher\.sketch must be at least 1; got 0"),
        ({"draws": 0}, r"WLRC\.draws must be at least 1; got 0"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Rademacher(**options)
