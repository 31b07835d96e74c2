"""Clusters that are formed again in every round: IFCA and k-means of updates, and how often they change."""

from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest

from fedreach._util.errors import ComponentError, ConfigError
from fedreach._util.streams import generator
from fedreach.evaluation.evaluator import Evaluator
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.round import plan_probe
from fedreach.federation.selection.clustering import IFCA, UpdateKMeans, cluster_changes, keep_numbers
from fedreach.federation.selection.labels import Clustered
from fedreach.federation.selection.losses import Rademacher
from fedreach.federation.state import initial_models, initial_state
from fedreach.federation.steps import AskLosses, AskUpdates, after_losses, next_request, run_round
from fedreach.federation.types import ClientResults, Probe, ServerView
from fedreach.federation.weighting import Equal
from fedreach.testing.problems import tiny_simulation

from .small import D, federation, make_view

K = 3


def simulation(policy, cohort_size=3, lr=0.5):
    """Return full-batch gradient descent of a linear model, one step a round; half the clients exchange the labels."""
    made = tiny_simulation()
    labels = made.data.labels.copy()
    for client in (2, 3):
        labels[made.data.train[client]] = 1 - labels[made.data.train[client]]
    data = replace(made.data, labels=labels)
    local = LocalSGD(lr=lr, batch_size=100)
    chosen = replace(made.federation, selection=policy, weighting=Equal(), local=local, cohort_size=cohort_size)
    engine = type(made.engine)(type(made.engine.trainer), replace(made.engine.task, local=local, data=data))
    return replace(made, federation=chosen, engine=engine, data=data)


def loss_and_gradient(model, x, y):
    """Return the mean cross-entropy of the model (W, b) in one vector, and its gradient."""
    logits = x @ model[:4].reshape(2, 2).T + model[4:]
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    loss = -np.log(p[np.arange(len(y)), y]).mean()
    p[np.arange(len(y)), y] -= 1
    return loss, np.concatenate([(p.T @ x / len(y)).ravel(), p.mean(axis=0)])


def test_ifca_is_the_loop_of_algorithm_1():
    made = simulation(IFCA(n_clusters=K))
    state = made.start()
    models = state.models.astype(np.float64)  # theta_j
    chosen = {}
    counted = set()
    for _ in range(8):
        state, result, _ = made.step(state)
        members = {j: [] for j in range(K)}
        for i in result.cohort:
            index = made.data.train[i]
            x, y = made.data.dataset.train_x[index].astype(np.float64), made.data.labels[index]
            chosen[i] = min(range(K), key=lambda j: loss_and_gradient(models[j], x, y)[0])
            local = models[chosen[i]] - 0.5 * loss_and_gradient(models[chosen[i]], x, y)[1]
            members[chosen[i]].append(local)
        models = np.array([np.mean(members[j], axis=0) if members[j] else models[j] for j in range(K)])
        np.testing.assert_allclose(state.models, models, atol=1e-6)
        assert [state.clusters[i] for i in chosen] == [*chosen.values()]
        counted |= {*chosen.values()}
    assert len(counted) > 1


def test_ifca_sends_all_models_to_the_cohort_and_counts_their_bytes():
    made = simulation(IFCA(n_clusters=K))
    state = made.start()
    steps = run_round(made.federation, state, made.view(state), rounds=10)
    request, asked = next_request(steps), []
    while isinstance(request, AskLosses):
        assert set(request.state.clusters.tolist()) == {len(asked)}
        asked.append(request.probe.ids.tolist())
        request = next_request(steps, made.losses(request))
    assert isinstance(request, AskUpdates)
    assert asked == [request.selection.ids.tolist()] * K
    result = next_request(steps, made.updates(request)).result
    d = state.models.shape[1]
    assert result.bytes_down == 4 * 3 * K * d
    assert result.bytes_up == 4 * 3 * (K + d + 2)  # losses, update, number of examples and training loss
    assert result.probe_bytes == 4 * 3 * (K * d + K)


def test_a_client_whose_losses_do_not_all_arrive_keeps_its_model():
    made = simulation(IFCA(n_clusters=2))
    state = made.start()
    state = replace(state, selection={**state.selection, "cluster": np.array([1, 0, 1, -1])})
    state, loss = after_losses(made.federation, state, [{0: 0.1, 1: 0.2, 3: np.nan}, {0: 0.3, 2: 0.0, 3: 9.0}])
    assert state.selection["cluster"].tolist() == [0, 0, 1, 1]
    assert state.clusters.tolist() == [0, 0, 1, 1]
    assert loss == {0: 0.1, 3: pytest.approx(np.nan, nan_ok=True)}  # unknown, as it was before
    state, loss = after_losses(made.federation, state, [{}, {0: 0.3}])
    assert (state.clusters.tolist(), loss) == ([0, 0, 1, 1], {})


def test_initial_models_are_the_first_one_with_the_numbers_of_each_tensor_in_another_order():
    chosen, params = federation(IFCA(n_clusters=4)), np.arange(12, dtype=np.float32)
    models = initial_models(chosen, params, [5, 4])
    assert models[0].tolist() == params.tolist()
    for begin, end in ((0, 5), (5, 9)):
        assert (np.sort(models[:, begin:end], axis=1) == params[begin:end]).all()
    assert (models[:, 9:] == params[9:]).all()  # buffers
    assert len(np.unique(models, axis=0)) == 4
    assert (models == initial_models(chosen, params, [5, 4])).all()
    assert (models != initial_models(replace(chosen, seed=4), params, [5, 4])).any()
    assert initial_models(federation(), params, [5, 4]).tolist() == [params.tolist()]
    with pytest.raises(ConfigError, match=r"IFCA needs 4 different initial models, but each trained tensor"):
        initial_models(chosen, np.zeros(12, np.float32), [5, 4])


def test_a_model_that_nobody_uses_is_kept_and_has_no_share_in_the_score_of_unseen_clients():
    made = simulation(IFCA(n_clusters=K), cohort_size=4)
    state = made.start()
    certain = np.array([0, 0, 0, 0, -99, 99], np.float32)  # that all examples have one class
    state = replace(state, models=np.stack([state.models[0], state.models[1], certain]))
    state, _, _ = made.step(state)
    assert 2 not in state.clusters
    assert (state.models[2] == certain).all()
    columns, _ = Evaluator(made.engine, made.data).evaluate(state.models, 1, state.clusters)
    unused = replace(state, models=state.models * np.array([[1], [1], [0]], np.float32))
    again, _ = Evaluator(made.engine, made.data).evaluate(unused.models, 1, state.clusters)
    assert columns == again


def test_a_probe_refers_to_one_model_or_to_all():
    class Some(IFCA):
        def probe(self, state, view, k, rng):
            return Probe(view.ids, models=2)

    chosen, view = federation(Some(n_clusters=3)), make_view()
    state = initial_state(chosen, np.zeros((3, D), np.float32), view)
    with pytest.raises(ComponentError, match="the losses of 1 model or of all 3; got 2 and asks = 'loss'"):
        plan_probe(chosen, state, view)


def test_numbers_above_the_first_models_are_refused():
    chosen, view = federation(IFCA(n_clusters=3)), make_view()
    state = initial_state(chosen, np.zeros((2, D), np.float32), view)
    with pytest.raises(ComponentError, match=r"`first_models` = 3 models; got the numbers \[2\] and 2"):
        after_losses(chosen, state, [{0: 1.0}, {0: 2.0}, {0: 0.5}])


# -------------------- k-means of updates


def sent(view, ids, update, round_=1):
    return ClientResults(np.asarray(ids), np.asarray(update, np.float32), {}, round=round_)


def best_partition(rows):
    """Return the division of the rows in two with the least sum of squared distances to the means, by trying all."""
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def cost(labels):
        parts = [unit[np.array(labels) == side] for side in (0, 1)]
        return sum(((part - part.mean(axis=0)) ** 2).sum() for part in parts)

    return min((labels for labels in product((0, 1), repeat=len(rows)) if 0 < sum(labels) < len(rows)), key=cost)


def test_update_kmeans_is_the_best_division_of_all_latest_updates_with_the_fewest_changes():
    view, rng = ServerView.of(np.arange(7), np.full(7, 10)), generator(0, "updates")
    policy, latest, old = UpdateKMeans(), {}, {}
    state = policy.init(view)
    moved = 0
    for round_ in range(1, 9):
        ids = np.sort(rng.choice(7, 4, replace=False))
        sides = rng.choice([-1, 1], (4, 1)) * rng.uniform(0.1, 9, (4, 1))
        update = sides * ([1, 1, 1] + 0.5 * rng.normal(size=(4, 3)))
        latest |= dict(zip(ids.tolist(), update.astype(np.float32), strict=True))
        before, state = state, policy.observe(state, sent(view, ids, update, round_))
        heard = sorted(latest)
        labels = best_partition(np.array([latest[i] for i in heard], np.float64))
        numbered = [{i: order[label] for i, label in zip(heard, labels, strict=True)} for order in permutations((0, 1))]
        fewest = min(sum(new[i] != old[i] for i in old) for new in numbered)
        got = {i: int(state["cluster"][i]) for i in heard}
        assert got in numbered
        assert sum(got[i] != old[i] for i in old) == fewest
        assert cluster_changes(policy, before, state) == pytest.approx(fewest / len(old) if old else 0.0)
        assert policy.clusters(state).tolist() == [got.get(i, 0) for i in range(7)]
        old, moved = got, moved + fewest
    assert moved > 0


def test_update_kmeans_waits_for_enough_directions_and_keeps_its_clusters():
    view = ServerView.of(np.arange(3), np.full(3, 10))
    policy = UpdateKMeans()
    state = policy.observe(policy.init(view), sent(view, [0, 1], [[1, 0], [2, 0]]))
    assert policy.clusters(state).tolist() == [0, 0, 0]
    state = policy.observe(state, sent(view, [2], [[0, 1]], 2))
    assert policy.clusters(state).tolist() == [0, 0, 1]
    state = policy.observe(state, sent(view, [2], [[3, 0]], 3))  # all alike
    assert policy.clusters(state).tolist() == [0, 0, 1]
    assert policy.observe(state, sent(view, [], np.empty((0, 2)), 4)) is state


def test_each_cluster_of_updates_trains_a_model_of_its_own():
    made = simulation(UpdateKMeans(), cohort_size=4)
    state = made.start()
    for _ in range(4):
        state = made.step(state).state
    assert len(state.models) == 2
    assert np.abs(state.models[0] - state.models[1]).max() > 1e-3


# -------------------- Changes


def test_numbers_are_kept_as_a_search_over_all_orders_keeps_them():
    rng = generator(0, "labels")
    for _ in range(50):
        new, old = rng.integers(-1, 4, 9), rng.integers(-1, 4, 9)
        if new.max() < 0:
            continue
        kept = keep_numbers(new, old)
        both = (new >= 0) & (old >= 0)
        most = max((np.array(order)[new[both]] == old[both]).sum() for order in permutations(range(5)))
        assert (kept[both] == old[both]).sum() == most
        assert ((kept[:, None] == kept) == (new[:, None] == new)).all()


def test_a_split_changes_the_clusters_of_those_who_leave():
    view, policy = ServerView.of(np.arange(5), np.full(5, 10)), Clustered(first_round=1)
    rows = np.array([[1, 0.1, 0], [0.9, 0, 0.1], [-1, 0.2, 0], [-0.8, -0.1, 0.1], [1.1, 0, 0]])
    before = policy.init(view)
    after = policy.observe(before, sent(view, range(5), rows))
    assert cluster_changes(policy, before, after) == 0.4
    assert cluster_changes(policy, after, after) == 0.0


def test_clusters_without_models_are_compared_whatever_their_numbers():
    policy = Rademacher(n_clusters=2)
    before, after = np.array([0, 0, 1, 1, -1]), np.array([1, 1, 0, 1, 0])
    assert cluster_changes(policy, {"cluster": before}, {"cluster": after}) == 0.25
    assert cluster_changes(policy, {"cluster": np.full(5, -1)}, {"cluster": after}) == 0.0


def test_a_policy_without_clusters_has_no_changes():
    assert cluster_changes(federation().selection, {}, {}) is None


def test_clients_that_exchange_their_models_have_changed():
    assert cluster_changes(IFCA(), {"cluster": np.array([0, 0, 1])}, {"cluster": np.array([1, 1, 0])}) == 1.0


@pytest.mark.parametrize("policy", [IFCA, UpdateKMeans])
def test_one_cluster_is_refused(policy):
    with pytest.raises(ConfigError, match=rf"{policy.__name__}\.n_clusters must be at least 2; got 1"):
        policy(n_clusters=1)
