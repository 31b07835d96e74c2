"""Which rows are held out: by client alone, by group, and by time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedreach._util.errors import ConfigError, DataError
from fedreach._util.streams import generator, number_of, uniforms
from fedreach.data.assignment import Partition
from fedreach.data.federated import FederatedData
from fedreach.data.own import of_frame
from fedreach.data.samples import of_clients, of_torch
from fedreach.data.splits import ClientIndex, Together, draws, split_held_out
from fedreach.data.stored import open_stored, store
from fedreach.data.validation import for_validation

# A client's own classes and cells are numbers; those of others make words of the same columns.
ROW = st.tuples(st.sampled_from(["9", "10"]), st.sampled_from(["7", "7.00"]), st.integers(0, 2), st.integers(0, 3))
OTHER = st.tuples(st.sampled_from(["9", "yes"]), st.sampled_from(["7", "x"]), st.integers(-1, 3), st.integers(0, 12))


def table(rows, clients):
    """Return a table of rows (label, word, number, patient); each also says which row it is, as a column to drop."""
    label, word, number, patient = zip(*rows, strict=True)
    number = [str(each) for each in number]
    return {"who": clients, "label": label, "word": word, "number": number, "patient": [f"p{one}" for one in patient]}


def sides(rows, clients, who, **options):
    """Return what a client trains on and what it holds out, as sorted rows."""
    own = of_frame(table(rows, clients), "who", "label", "t", **options)
    partition = Partition.from_owner(own.owners, len(own.owner_names), "natural")
    parts = split_held_out(partition, 0.4, draws(partition, 3, "held-out", own.owner_names), own.together)
    client = own.owner_names.index(who)
    found = [[rows[place] for place in own.places[part[client]].tolist()] for part in parts]
    return [sorted((label, float(word), *rest) for label, word, *rest in part) for part in found]


@settings(deadline=None, derandomize=True)
@given(
    mine=st.lists(ROW, min_size=2, max_size=8),
    others=st.lists(st.tuples(st.sampled_from(["10", "a", "z"]), OTHER), max_size=8),
    options=st.sampled_from([{}, {"group": "patient"}, {"time": "number"}, {"group": "patient", "time": "number"}]),
    data=st.data(),
)
def test_rows_and_clients_added_elsewhere_and_another_order_move_nobodys_split(mine, others, options, data):
    alone = sides(mine, ["9"] * len(mine), "9", **options)
    rows = [("9", row) for row in mine] + others
    rows = data.draw(st.permutations(rows))
    assert sides([row for _, row in rows], [client for client, _ in rows], "9", **options) == alone


def test_a_client_without_a_name_has_the_split_of_one_that_is_called_by_its_number():
    rows = [("yes", "7", value, 0) for value in range(8)] * 2
    numbered = sides(rows, ["0"] * 8 + ["1"] * 8, "1")
    assert sides([*rows, rows[0]], ["0"] * 8 + ["1"] * 8 + ["north"], "1") == numbered


def test_drawn_partitions_keep_the_one_stream_that_their_numbers_were_made_with():
    partition = Partition(np.arange(10), np.array([0, 4, 10]), kind="iid", parameters={})
    assert (draws(partition, 5, "held-out") == generator(5, "held-out").random(10)).all()


def test_streams_of_many_clients_look_uniform_and_independent():
    numbers = uniforms(0, "held-out", range(20_000), np.full(20_000, 4)).reshape(-1, 4)
    assert abs(numbers.mean(axis=0) - 0.5).max() < 4.5 * (1 / 12 / 20_000) ** 0.5
    both = np.corrcoef(np.column_stack([numbers[1:], numbers[:-1]]).T) - np.eye(8)
    assert abs(both[:4, 4:]).max() < 0.032
    assert abs(np.corrcoef(numbers.T) - np.eye(4)).max() < 0.032
    assert len({number_of(name) for name in ("7", "07", "7.0", "", "seven", str(10**18))}) == 6


GROUPS = st.lists(st.integers(0, 5), min_size=1, max_size=25)


@settings(deadline=None, derandomize=True)
@given(groups=GROUPS, seed=st.integers(0, 20), share=st.floats(0.05, 0.9))
def test_a_group_is_never_on_both_sides_and_about_the_share_is_held_out(groups, seed, share):
    groups, m = np.array(groups), len(groups)
    ranges = ClientIndex(np.arange(m), np.array([0, m]))
    train, held = split_held_out(ranges, share, draws(ranges, seed, "held-out"), Together(groups=groups))
    assert sorted([*train.order, *held.order]) == list(range(m))
    assert not set(groups[train.order]) & set(groups[held.order])
    counts = np.unique(groups, return_counts=True)[1]
    if len(counts) == 1:
        assert len(train.order) == m  # it takes part, and holds nothing out
    else:
        wanted = min(max(round(share * m), 1), m - 1)
        assert len(train.order)
        assert 0 < len(held.order) < max(wanted + counts.max() / 2, counts.min()) + 1


def test_large_groups_are_not_drawn_first():
    # By the least of its rows' numbers a group of 8 would come before a single row in 8 of 9 cases.
    groups, first = np.repeat([0, 1], [8, 8]), 0
    ranges = ClientIndex(np.arange(24), np.array([0, 24]))
    groups = np.concatenate([np.zeros(8, int), np.arange(1, 17)])
    for seed in range(400):
        held = split_held_out(ranges, 8 / 24, draws(ranges, seed, "held-out"), Together(groups=groups))[1]
        first += 0 in groups[held.order]
    # The group of 8 is taken while fewer than 4 of 17 groups were taken before it: 4/17.
    assert abs(first / 400 - 4 / 17) < 4.5 * (4 / 17 * 13 / 17 / 400) ** 0.5


@settings(deadline=None, derandomize=True)
@given(moments=st.lists(st.integers(0, 6), min_size=1, max_size=20), share=st.floats(0.05, 0.9))
def test_the_latest_rows_are_held_out_and_a_moment_is_never_parted(moments, share):
    moments, m = np.array(moments, float), len(moments)
    ranges = ClientIndex(np.arange(m), np.array([0, m]))
    train, held = split_held_out(ranges, share, draws(ranges, 0, "held-out"), Together(moments=moments))
    if len(set(moments)) == 1:
        assert len(train.order) == m
    else:
        assert moments[train.order].max() < moments[held.order].min()
        wanted, sizes = min(max(round(share * m), 1), m - 1), [int((moments >= one).sum()) for one in set(moments)]
        assert abs(len(held.order) - wanted) == min(abs(size - wanted) for size in sizes if size < m)


def test_with_both_nothing_is_trained_on_that_is_later_than_the_last_row_of_a_held_out_group():
    groups, moments = np.array([0, 0, 1, 2, 2]), np.array([9.0, 1.0, 5.0, 4.0, 6.0])
    ranges = ClientIndex(np.arange(5), np.array([0, 5]))
    train, held = split_held_out(ranges, 0.4, draws(ranges, 0, "h"), Together(groups=groups, moments=moments))
    assert (sorted(held.order), sorted(train.order)) == ([0, 1], [2, 3, 4])


VISITS = {
    "hospital": ["a"] * 8 + ["b"] * 8,
    "patient": [f"p{row // 2}" for row in range(16)],
    "admitted": [f"2024-01-{row + 1:02d}" for row in range(16)],
    "age": [30 + 7 * row % 11 for row in range(16)],
    "ill": ["no", "yes", "yes", "no"] * 4,
}


def visits(**options):
    return FederatedData.from_frame(VISITS, client="hospital", label="ill", participants=["a"], **options)


def test_the_group_is_no_input_and_the_time_is_one_unless_it_is_dropped():
    data = visits(group="patient", time="admitted")
    assert [column.name for column in data.schema.used] == ["admitted", "age"]
    assert "patient   group" in str(data.schema)
    dropped = visits(group="patient", time="admitted", columns={"drop": ["admitted"]})
    assert [column.name for column in dropped.schema.used] == ["age"]
    # Rows are sorted by what they hold, dropped columns aside: the very rows are held out that were before.
    assert dropped.dataset.train_y[dropped.held_out[0]].tolist() == data.dataset.train_y[data.held_out[0]].tolist()


def test_settings_are_chosen_by_whole_groups_too(tmp_path):
    own = of_frame(VISITS, "hospital", "ill", "t", group="patient", time="admitted")
    again = open_stored(store(own, tmp_path))
    assert again.together.groups.tolist() == own.together.groups.tolist()
    assert (again.together.group, again.together.time) == ("patient", "admitted")
    data = visits(group="patient")
    inner = for_validation(data, 0.3, seed=0)
    groups = data.together.groups
    assert len(inner.held_out[0])
    assert not set(groups[inner.train[0]]) & set(groups[inner.held_out[0]])


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"group": "patients"}, ConfigError, "unknown column 'patients'. Did you mean 'patient'"),
        ({"group": "hospital"}, ConfigError, "group: column 'hospital' is already the client"),
        ({"time": "ill"}, ConfigError, "time: column 'ill' is already the label"),
        ({"group": "patient", "time": "patient"}, ConfigError, "time: column 'patient' is already the group"),
        ({"time": "patient"}, DataError, "got other values in 16 rows, first in row 0: 'p0'"),
        ({"group": "patient", "columns": {"drop": ["patient"]}}, ConfigError, "'patient' is already the group"),
    ],
)
def test_what_cannot_say_it_is_refused(options, error, words):
    with pytest.raises(error, match=words):
        visits(**options)


@pytest.mark.parametrize("column", ["patient", "admitted"])
def test_an_empty_cell_of_either_column_is_refused(column):
    gone = VISITS | {column: [None, *VISITS[column][1:]]}
    key = {"patient": "group", "admitted": "time"}[column]
    with pytest.raises(DataError, match=rf"column '{column}'.*row 0"):
        FederatedData.from_frame(gone, client="hospital", label="ill", participants=["a"], **{key: column})


def test_a_table_with_an_unseen_client_more_trains_and_tests_participants_on_the_very_rows():
    one = visits()
    more = {name: [*values, *values[:3]] for name, values in VISITS.items()}
    more["hospital"][-3:] = ["0", "0", "c"]
    other = FederatedData.from_frame(more, client="hospital", label="ill", participants=["a"])
    for part in ("train", "held_out"):
        rows = [getattr(data, part)[data.client_names.index("a")] for data in (one, other)]
        x = [data.dataset.train_x[index] for data, index in zip((one, other), rows, strict=True)]
        assert x[0].tobytes() == x[1].tobytes()


# ---------------------------------------------------------------------------------- torch Datasets and arrays

EXAMPLE = st.tuples(st.sampled_from([0, 2, 10]), st.sampled_from(["9", "10", "1"]), st.integers(0, 4))
CLIENTS = {"a": "9", "b": "10", "c": "north"}
CHOSEN = st.sampled_from([("patient",), ("day",), ("patient", "day")])


def held_of(own, numbers):
    """Return by client the numbers of the rows that it holds out, given the number of each row as it now lies."""
    partition = Partition.from_owner(own.owners, len(own.owner_names), "natural")
    held = split_held_out(partition, 0.4, draws(partition, 3, "held-out", own.owner_names), own.together)[1]
    return {name: sorted(numbers[held[client]].tolist()) for client, name in enumerate(own.owner_names)}


@settings(deadline=None, derandomize=True)
@given(
    rows=st.lists(st.tuples(st.sampled_from("abc"), EXAMPLE), min_size=2, max_size=24), chosen=CHOSEN, data=st.data()
)
def test_a_table_a_torch_dataset_and_arrays_of_the_same_rows_have_the_same_split(rows, chosen, data):
    who = [CLIENTS[client] for client, _ in rows]
    labels, patients, days = (list(column) for column in zip(*(row for _, row in rows), strict=True))
    columns = {"patient": patients, "day": days}
    frame = {"who": who, "label": labels, "number": list(range(len(rows))), **columns}
    names = {"patient": "group", "day": "time"}
    of_table = of_frame(frame, "who", "label", "t", **{names[column]: column for column in chosen})
    wanted = held_of(of_table, of_table.places)

    order = data.draw(st.permutations(range(len(rows))))
    said = {names[column]: [columns[column][row] for row in order] for column in chosen}
    pairs = [([float(row)], labels[row]) for row in order]
    of_dataset = of_torch(pairs, [who[row] for row in order], None, 11, "t", **said)
    assert held_of(of_dataset, of_dataset.plain.train_x[:, 0].astype(int)) == wanted

    mine = {client: [row for row in order if who[row] == client] for client in data.draw(st.permutations([*set(who)]))}
    arrays = {
        client: (np.array([[float(row)] for row in own]), [labels[row] for row in own]) for client, own in mine.items()
    }
    said = {names[c]: {client: [columns[c][row] for row in own] for client, own in mine.items()} for c in chosen}
    of_arrays = of_clients(arrays, None, 11, "t", **said)
    assert held_of(of_arrays, of_arrays.plain.train_x[:, 0].astype(int)) == wanted


def test_targets_and_words_as_labels_have_the_split_of_their_table():
    rng, n = np.random.default_rng(0), 60
    patients, x = [f"p{one}" for one in rng.integers(0, 12, n)], np.arange(n, dtype=float)[:, None]
    for labels, named in ((rng.normal(size=n), "target"), (rng.choice(["b", "a", "c"], n), "label")):
        frame = {"who": ["a"] * n, "y": labels.tolist(), "number": range(n), "patient": patients}
        label, target = (None, "y") if named == "target" else ("y", None)
        of_table = of_frame(frame, "who", label, "t", target, group="patient")
        arrays = of_clients({"a": (x, labels)}, None, None, "t", group={"a": patients})
        assert held_of(arrays, arrays.plain.train_x[:, 0].astype(int)) == held_of(of_table, of_table.places)


def test_samples_stay_with_their_labels_and_without_groups_where_they_were():
    x = np.arange(8, dtype=np.float32)[:, None]
    pairs = [(row, int(row[0]) % 3) for row in x]
    arguments = {"clients": ["a", "b"] * 4, "participants": ["a"]}
    grouped = FederatedData.from_torch(pairs, **arguments, group=[0, 0, 1, 1, 2, 2, 3, 3]).dataset
    assert (grouped.train_x[:, 0] % 3 == grouped.train_y).all()
    assert sorted(grouped.train_x[:, 0].tolist()) == x[:, 0].tolist()
    plain, timed = (FederatedData.from_torch(pairs, **arguments, **more) for more in ({}, {"time": range(8)}))
    np.testing.assert_array_equal(plain.dataset.train_x, timed.dataset.train_x)
    assert timed.held_out[0].tolist() == [6]
    assert str(timed.together) == "the latest by 'time'"


def test_groups_of_samples_are_stored_with_them(tmp_path):
    x, dates = np.arange(12, dtype=np.float32)[:, None], np.array("2024-01-01", "datetime64[D]") + np.arange(12)
    said = {"group": np.arange(12) // 2, "time": dates}
    own = of_torch(list(zip(x, [0, 1] * 6, strict=True)), ["a", "b"] * 6, None, None, "t", **said)
    back = open_stored(store(own, tmp_path))
    assert (str(back.together), back.together.group) == (str(own.together), "group")
    np.testing.assert_array_equal(back.together.groups, own.together.groups)
    np.testing.assert_array_equal(back.together.moments, own.together.moments)
    assert back.plain.sha256 == own.plain.sha256


ONE = (np.zeros((3, 2)), [0, 1, 0])


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"group": [1, 2]}, "group must have one entry for each of the 3 examples; got 2"),
        ({"time": range(4)}, "time must have one entry for each of the 3 examples; got 4"),
        ({"group": ["p", None, "q"]}, "'group' must not be empty; got 1 empty cells, the first in row 1"),
        ({"time": ["2024-01-31", "soon", "2024-01-30"]}, "'time' must contain only numbers, or only dates"),
        ({"time": "now"}, "time must be a list or an array"),
    ],
)
def test_a_group_or_time_that_does_not_fit_the_dataset_is_refused(said, words):
    with pytest.raises(DataError, match=words):
        FederatedData.from_torch(list(zip(*ONE, strict=True)), clients=["a"] * 3, **said)


@pytest.mark.parametrize(
    ("said", "error", "words"),
    [
        ({"group": [1, 2, 3]}, ConfigError, "group must be a dictionary with the clients"),
        (
            {"time": {"a": range(3)}},
            ConfigError,
            r"time must be a dictionary with the clients \['a', 'b'\]; got \['a'\]",
        ),
        (
            {"group": {"a": [1] * 3, "b": [1] * 3, "c": []}},
            ConfigError,
            r"group must be a dictionary with the clients.*got \['a', 'b', 'c'\]",
        ),
        (
            {"time": {"a": range(3), "b": range(4)}},
            DataError,
            "time of b must have one entry for each of its 3 examples; got 4",
        ),
        (
            {"group": {"a": [1] * 3, "b": [1, None, 1]}},
            DataError,
            "'group' must not be empty; got 1 empty cells, the first in row 4",
        ),
    ],
)
def test_a_group_or_time_that_does_not_fit_the_clients_is_refused(said, error, words):
    with pytest.raises(error, match=words):
        FederatedData.from_clients({"a": ONE, "b": ONE}, **said)
