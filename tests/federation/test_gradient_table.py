"""What the server remembers of each client's update, whom it asks, and how well a sketch remembers it."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from safetensors.numpy import load, save

import fedreach as fr
from fedreach._util.arrays import pack_rows, unpack_rows
from fedreach._util.errors import ComponentError, ConfigError
from fedreach._util.row_store import RowTable
from fedreach._util.streams import generator
from fedreach.federation.round import plan_probe, plan_round
from fedreach.federation.secure_aggregation import SecureAggregation
from fedreach.federation.selection import geometry
from fedreach.federation.selection.geometry import GradientTable, count_sketch, gram, rows_of
from fedreach.federation.selection.labels import Clustered
from fedreach.federation.selection.losses import Minimax, Rademacher
from fedreach.federation.selection.updates import ConvexHull, HullDistance, Interior, MaxSimilarity
from fedreach.federation.types import ClientResults, Cohort, ServerView
from fedreach.testing import check

from .small import D, federation, make_reports, observe_probe, start
from .small import make_view as small_view

IDS = np.array([2, 3, 5, 7, 11])


@dataclass(frozen=True, kw_only=True)
class Longest(GradientTable):
    """The k longest updates."""

    def choose(self, ids, rows, k, rng):
        assert 1 <= k <= len(ids) == len(rows)
        return Cohort(ids[np.argsort(-np.linalg.norm(rows, axis=1), kind="stable")[:k]], f"of {len(ids)}")


def view_of(available=(True,) * 5, round_=1):
    view = ServerView.of(IDS, np.full(5, 10), available=np.array(available))
    for array in (view.ids, view.available, view.num_examples):
        array.setflags(write=False)
    return replace(view, round=round_)


def told(policy, state, ids, update, round_=1, **more):
    """Return the state after reports whose arrays, like the state's, cannot be written to."""
    update = np.asarray(update, np.float32)
    for array in (update, *state.values()):
        array.setflags(write=False)
    return policy.observe(state, ClientResults(np.asarray(ids), update, {}, round=round_, **more))


def chosen(policy, state, view, k):
    return policy.select(state, view, k, generator(0, "select")).ids.tolist()


# ------------------------------------------------------------------------------------------------ whom it asks


def test_all_who_are_available_are_asked_for_an_update_before_the_first_round():
    policy, view = Longest(), view_of([True, False, True, True, True])
    probe = policy.probe(policy.init(view), view, 2, generator(0, "probe"))
    assert (probe.asks, probe.ids.tolist()) == ("update", [2, 5, 7, 11])


def test_who_was_away_or_lost_is_asked_later_and_nobody_twice():
    policy = Longest()
    state = told(policy, policy.init(view_of()), [2, 5, 7], np.eye(3))
    away = view_of([True, False, True, True, True], round_=2)
    assert policy.probe(state, away, 2, generator(0, "probe")).ids.tolist() == [11]
    state = told(policy, state, [3, 11], np.ones((2, 3)), round_=2)
    assert policy.probe(state, view_of(round_=99), 2, generator(0, "probe")) is None


@pytest.mark.parametrize(("refresh", "asked"), [(0, [2, 3, 5, 7, 11]), (1, [2, 7, 11]), (2, [2, 11]), (3, [11])])
def test_rows_older_than_refresh_are_asked_for_again(refresh, asked):
    policy = Longest(refresh=refresh)
    state = told(policy, policy.init(view_of()), [2, 3, 5, 7], np.ones((4, 2)), round_=1)
    state = told(policy, state, [3, 5], np.ones((2, 2)), round_=3)
    state = told(policy, state, [7], np.ones((1, 2)), round_=2)
    assert policy.age(state, 4).tolist() == [3, 1, 1, 2, np.inf]
    probe = policy.probe(state, view_of(round_=4), 2, generator(0, "probe"))
    assert probe.ids.tolist() == asked


def test_in_a_round_the_probe_is_asked_answered_and_chosen_by():
    parts = federation(selection=Longest(), cohort_size=2)
    view = small_view()
    state = start(parts, view)
    probe = plan_probe(parts, state, view)
    assert probe.ids.tolist() == list(range(6))
    answers = replace(make_reports([0, 1, 2, 3, 4]), probe=True)  # client 5 was lost; client i sends (i + 1) ones
    state = observe_probe(parts, state, answers)
    assert plan_round(parts, state, view).ids.tolist() == [3, 4]
    assert plan_probe(parts, state, replace(view, round=2)).ids.tolist() == [5]


def test_a_policy_that_reads_updates_is_refused_where_the_server_sees_sums_only():
    with pytest.raises(ConfigError, match="Minimax reads labels, updates or measurements of single clients"):
        replace(federation(selection=Minimax()), label_statistics=SecureAggregation())


# ------------------------------------------------------------------------------------------------ what it remembers


def test_a_report_replaces_its_own_row_only():
    policy = Longest()
    first = told(policy, policy.init(view_of()), [2, 7], [[1, 2], [3, 4]], round_=1)
    assert first["rows"].tolist() == [[1, 2], [0, 0], [0, 0], [3, 4], [0, 0]]
    assert first["heard"].tolist() == [1, 0, 0, 1, 0]
    second = told(policy, first, [3, 7], [[5, 6], [7, 8]], round_=4)
    assert second["rows"].tolist() == [[1, 2], [5, 6], [0, 0], [7, 8], [0, 0]]
    assert second["heard"].tolist() == [1, 4, 0, 4, 0]
    assert second["rows"].dtype == np.float32
    nobody = told(policy, second, np.empty(0, np.int64), np.empty((0, 2)), round_=5)
    assert nobody["heard"].tolist() == second["heard"].tolist()


def test_buffers_are_left_out():
    policy = Longest()
    state = told(policy, policy.init(view_of()), [2], [[1, 2, 9, 9]], trainable=2)
    assert state["rows"].shape == (5, 2)
    assert state["rows"][0].tolist() == [1, 2]
    policy = Longest(sketch=3)
    state = told(policy, policy.init(view_of()), [2], [[1, 2, 3, 9, 9]], trainable=3)
    assert state["rows"][0].tolist() == [1, 2, 3]


@pytest.mark.parametrize("heard", [False, True])
def test_the_table_can_be_saved_even_before_anything_was_heard(heard):
    policy = Longest()
    state = policy.init(view_of())
    if heard:
        state = told(policy, state, [2, 7], [[1, 2], [3, 4]])
    again = load(save(dict(state)))
    assert {name: (a.shape, a.dtype, a.tobytes()) for name, a in again.items()} == {
        name: (a.shape, a.dtype, a.tobytes()) for name, a in state.items()
    }


@pytest.mark.parametrize("sketch", [None, 2])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_update_that_is_not_finite_is_refused_with_client_and_round(bad, sketch):
    policy = Longest(sketch=sketch)
    with pytest.raises(ComponentError, match="Longest requires finite updates; the update of client 7 in round 3"):
        told(policy, policy.init(view_of()), [2, 7], [[1, 2, 3], [3, 4, bad]], round_=3)


# ------------------------------------------------------------------------------------------------ whom it chooses


def test_only_those_who_are_available_are_looked_at():
    policy = Longest()
    state = told(policy, policy.init(view_of()), IDS, np.diag([5.0, 4, 3, 2, 1]))
    view = view_of([False, True, True, False, True])
    assert chosen(policy, state, view, 2) == [3, 5]
    assert policy.select(state, view, 2, generator(0, "select")).remark == "of 3"


def test_clients_without_a_row_come_last_and_the_lower_id_first():
    policy = Longest()
    state = told(policy, policy.init(view_of()), [5, 7], [[1, 0], [2, 0]])
    assert [chosen(policy, state, view_of(), k) for k in (1, 2, 3, 5)] == [[7], [7, 5], [7, 5, 2], [7, 5, 2, 3, 11]]
    assert chosen(policy, policy.init(view_of()), view_of(), 2) == [2, 3]
    assert chosen(policy, state, view_of([False, False, False, True, True]), 2) == [7, 11]


def test_a_row_of_zeros_that_was_heard_is_a_row():
    policy = Longest()
    state = told(policy, policy.init(view_of()), [11], [[0, 0]])
    assert chosen(policy, state, view_of(), 1) == [11]


# ------------------------------------------------------------------------------------------------ the sketch


def random_rows(n, p, seed=0):
    return generator(seed, "rows").standard_normal((n, p)).astype(np.float32)


def test_a_sketch_is_linear_and_the_same_for_all_clients_and_rounds():
    x, y = random_rows(2, 500)
    both = count_sketch(np.stack([x, y, x + y]), 64, seed=3)
    assert both.shape == (3, 64)
    np.testing.assert_allclose(both[0] + both[1], both[2], atol=1e-5)  # float32 sums of 8 numbers near 1
    assert count_sketch(y[None], 64, seed=3).tobytes() == both[1].tobytes()
    assert count_sketch(y[None], 64, seed=4).tobytes() != both[1].tobytes()


def test_inner_products_of_sketches_are_unbiased_with_the_stated_variance():
    """E = <x, y> and Var <= (|x|^2 |y|^2 + <x, y>^2) / size, over 1000 hash functions; also for one heavy number."""
    size, draws = 32, 1000
    x, y = random_rows(2, 300).astype(np.float64)
    y[0] = x[0] = 30.0
    rows = np.stack([x, y]).astype(np.float32)
    found = np.array([np.dot(*count_sketch(rows, size, seed).astype(np.float64)) for seed in range(draws)])
    variance = (x @ x * (y @ y) + (x @ y) ** 2) / size
    assert abs(found.mean() - x @ y) < 4.5 * np.sqrt(variance / draws)
    assert found.var() < 1.2 * variance


@pytest.mark.parametrize("size", [64, 256, 1024])
def test_cosines_of_sketches_are_off_by_about_one_over_the_root_of_their_size(size):
    rows = random_rows(30, 20_000)
    small = count_sketch(rows, size, seed=0)

    def cosines(table):
        lengths = np.linalg.norm(table.astype(np.float64), axis=1)
        return (gram(table) / np.outer(lengths, lengths))[np.triu_indices(len(table), 1)]

    error = np.sqrt(np.mean((cosines(small) - cosines(rows)) ** 2)) * np.sqrt(size)
    assert 0.8 < error < 1.2  # 435 pairs: the standard error of a root mean square is 1 / sqrt(870), and 6 of them 0.2


def test_a_model_with_no_more_numbers_than_the_sketch_is_kept_whole():
    rows = random_rows(4, 50)
    for size in (50, 51):
        assert count_sketch(rows, size, seed=0) is rows
    assert Longest(sketch=D).observe(Longest().init(small_view()), make_reports([1]))["rows"][1].tolist() == [2.0] * D


def test_a_sketched_table_holds_that_many_numbers_a_client():
    policy = Longest(sketch=8)
    state = told(policy, policy.init(view_of()), IDS, random_rows(5, 100))
    assert state["rows"].shape == (5, 8)


# ------------------------------------------------------------------------------------------------ large tables


TABLES = [
    Minimax(),
    Minimax(refresh=2, sketch=9),
    MaxSimilarity(),
    ConvexHull(components=2),
    HullDistance(),
    Interior(components=2),
    Clustered(first_round=2, eps1=10.0, eps2=0.01),
    Rademacher(every=2),
]


def played(policy, rounds=8, n=17, seed=0, sent=lambda update: update):
    """Return whom a policy chooses, and the rows of its table before and after each round."""
    rng = generator(seed, "played")
    view = ServerView.of(np.arange(n) * 3, np.full(n, 10))
    state, cohorts, tables = policy.init(view), [], []
    for number in range(1, rounds + 1):
        view = replace(view, round=number, available=rng.random(n) < 0.8)
        probe = policy.probe(state, view, 4, generator(number, "probe"))
        if probe is not None:
            state = heard(policy, state, probe.ids, number, rng, sent, probe=True)
        cohort = np.sort(policy.select(state, view, 4, generator(number, "select")).ids)
        before = state["rows"], np.array(state["rows"])
        state = heard(policy, state, cohort, number, rng, sent, probe=False)
        np.testing.assert_array_equal(np.asarray(before[0]), before[1])  # nothing handed in is written to
        cohorts.append(cohort.tolist())
        tables.append(np.array(rows_of(state)))
    return cohorts, tables, state


def heard(policy, state, ids, number, rng, sent, *, probe):
    update = sent(rng.standard_normal((len(ids), 12)).astype(np.float32))
    return policy.observe(state, ClientResults(ids, update, {"wlrc": rng.random(len(ids))}, round=number, probe=probe))


@pytest.fixture
def all_tables_are_large(monkeypatch):
    monkeypatch.setattr(geometry, "LARGE", 1)
    monkeypatch.setattr(geometry, "TOGETHER", 3 * 12 * 4)  # three rows of 12 float32


@pytest.mark.parametrize("storage", ["memory", "disk"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("policy", TABLES, ids=repr)
@pytest.mark.sampled(5)
def test_a_large_table_holds_and_chooses_what_a_small_one_does(policy, dtype, storage, request):
    if hasattr(policy, "dtype"):
        policy = replace(policy, dtype=dtype, storage=storage)
    cohorts, tables, small = played(policy)
    request.getfixturevalue("all_tables_are_large")
    large_cohorts, large_tables, large = played(policy)
    assert isinstance(small["rows"], np.ndarray)
    assert isinstance(large["rows"], RowTable)
    assert large_cohorts == cohorts
    np.testing.assert_array_equal(large_tables, tables)


@pytest.mark.parametrize("policy", [Minimax(), HullDistance(), ConvexHull(components=2)], ids=repr)
def test_halves_choose_as_updates_that_were_rounded_to_them(policy):
    cohorts, tables, state = played(replace(policy, dtype="float16"))
    assert state["rows"].nbytes == 17 * 13 * 2
    rounded, rounded_tables, _ = played(policy, sent=lambda update: unpack_rows(pack_rows(update)))
    assert cohorts == rounded
    np.testing.assert_array_equal(tables, rounded_tables)


def test_a_table_of_halves_keeps_the_laws_of_a_policy():
    check(Minimax(dtype="float16"))


def test_a_table_becomes_large_at_16_mib_and_shares_what_did_not_change():
    n, p = 2**13, 2**9
    view = ServerView.of(np.arange(n), np.full(n, 10))
    policy = GradientTable()
    for clients, kind in ((n, RowTable), (n - 1, np.ndarray)):
        some = ServerView.of(view.ids[:clients], view.num_examples[:clients])
        state = policy.observe(policy.init(some), ClientResults(np.array([1, 5000]), random_rows(2, p), {}))
        assert isinstance(state["rows"], kind)
        if kind is RowTable:
            later = policy.observe(state, ClientResults(np.array([5000]), random_rows(1, p, seed=1), {}, round=2))
            old, new = state["rows"].blocks, later["rows"].blocks
            assert [i for i in range(len(old)) if old[i] is not new[i]] == [5000 // 32]  # 2^16 bytes are 32 rows
            assert sum(part is not None for part in new) == 2


# ------------------------------------------------------------------------------------------------ options


@pytest.mark.parametrize(
    ("option", "value", "rule"),
    [("refresh", -1, "not negative"), ("sketch", 0, "at least 1"), ("sketch_seed", -1, "not negative")],
)
def test_options_have_ranges(option, value, rule):
    with pytest.raises(ConfigError, match=rf"Minimax\.{option} must be {rule}; got {value}"):
        Minimax(**{option: value})


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("dtype", "float61", "Minimax.dtype must be 'float32' or 'float16'; got 'float61'. Did you mean 'float16'?"),
        ("storage", "disc", "Minimax.storage must be 'memory' or 'disk'; got 'disc'. Did you mean 'disk'?"),
    ],
)
def test_a_misspelt_option_is_answered_with_the_nearest(option, value, said):
    with pytest.raises(ConfigError) as refused:
        Minimax(**{option: value})
    assert str(refused.value) == said
    assert refused.value.exit_code == 2


def test_a_table_alone_cannot_choose():
    state = told(GradientTable(), GradientTable().init(view_of()), IDS, np.ones((5, 2)))
    with pytest.raises(NotImplementedError, match="GradientTable must have a method choose"):
        chosen(GradientTable(), state, view_of(), 2)
    assert isinstance(GradientTable(), fr.Selection)


# ------------------------------------------------------------------------------------------------ chance


def test_a_share_of_the_cohort_is_drawn_from_those_not_chosen_and_no_client_stays_out_for_ever():
    policy, view, everybody = Longest(explore=0.5), view_of(round_=2), set()
    state = told(policy, policy.init(view_of()), IDS, np.diag([5.0, 4.0, 3.0, 2.0, 1.0]))
    for seed in range(40):
        ids = policy.select(state, view, 3, generator(seed, "select")).ids.tolist()  # half of 3, rounded down, is 1
        assert ids[:2] == [2, 3]
        assert len(set(ids)) == 3
        everybody |= set(ids)
    assert everybody == set(IDS.tolist())


def test_nobody_away_is_drawn_and_too_few_are_all_taken():
    policy, away = Longest(explore=0.5), view_of([True, True, False, False, True], round_=2)
    state = told(policy, policy.init(view_of()), IDS, np.diag([5.0, 4.0, 3.0, 2.0, 1.0]))
    assert sorted(chosen(policy, state, away, 4)) == [2, 3, 11]


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_not_all_of_the_cohort_can_be_drawn(share):
    with pytest.raises(ConfigError, match="explore"):
        Longest(explore=share)
