"""Empty and short clients: refuse, drop, merge."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedreach._util.errors import ConfigError, DataError
from fedreach.data.assignment import Partition, handle_empty

owners = st.lists(st.integers(0, 14), min_size=1, max_size=40)


def with_sizes(*sizes: int) -> Partition:
    return Partition.from_owner(np.repeat(np.arange(len(sizes)), sizes), len(sizes), "natural", {"made": "by hand"})


def test_the_error_lists_the_ids():
    with pytest.raises(DataError, match=r"2 of 4 clients hold fewer than 1 samples: clients 1, 3\."):
        handle_empty(with_sizes(2, 0, 1, 0), "error")
    with pytest.raises(DataError, match="clients 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 5 more"):
        handle_empty(with_sizes(*[0] * 15, 3), "error")


@pytest.mark.parametrize("policy", ["error", "drop", "merge"])
def test_a_partition_without_empty_clients_is_returned_as_it_is(policy):
    full = with_sizes(2, 1, 3)
    handled = handle_empty(full, policy)
    assert handled.partition is full
    assert handled.new_id.tolist() == [0, 1, 2]


def test_dropping_renumbers_without_gaps_and_says_so():
    handled = handle_empty(with_sizes(0, 2, 0, 3), "drop")
    assert handled.new_id.tolist() == [-1, 0, -1, 1]
    assert handled.partition.sizes.tolist() == [2, 3]
    assert handled.partition.parameters == {"made": "by hand", "empty": "drop", "empty_min_size": 1}


def test_only_empty_clients_can_be_dropped():
    with pytest.raises(DataError, match="clients 2 hold 1 samples, fewer than min_size = 2"):
        handle_empty(with_sizes(0, 2, 1), "drop", min_size=2)


def test_the_smallest_client_joins_the_next_smallest_until_none_is_short():
    # 5 clients, least 4: (1, id 2) + (2, id 0) -> 3 at id 0; 3 + (3, id 4) -> 6 at id 0; then 5, 6, 9: none is short.
    handled = handle_empty(with_sizes(2, 9, 1, 5, 3), "merge", min_size=4)
    assert handled.new_id.tolist() == [0, 1, 0, 2, 0]
    assert handled.partition.sizes.tolist() == [6, 9, 5]


@settings(deadline=None, derandomize=True)
@given(owner=owners, policy=st.sampled_from(["drop", "merge"]), least=st.integers(1, 8))
def test_every_sample_follows_its_client(owner, policy, least):
    before = Partition.from_owner(owner, 15, "natural")
    try:
        handled = handle_empty(before, policy, min_size=least)
    except DataError:
        assert (policy == "drop" and least > 1) or len(owner) < least
        return
    assert handled.partition.owner().tolist() == handled.new_id[before.owner()].tolist()
    assert handled.partition.sizes.min() >= least
    if policy == "merge":
        assert (handled.new_id >= 0).all()
        first_of = [handled.new_id.tolist().index(k) for k in range(handled.partition.num_clients)]
        assert first_of == sorted(first_of)


def test_ten_thousand_empty_clients_are_merged_into_one():
    handled = handle_empty(with_sizes(*[0] * 10_000, 4), "merge")
    assert handled.partition.sizes.tolist() == [4]


def test_what_cannot_be_done_is_refused():
    with pytest.raises(DataError, match="all 3 samples together are below min_size = 4"):
        handle_empty(with_sizes(1, 2), "merge", min_size=4)
    with pytest.raises(ConfigError, match="Did you mean 'merge'"):
        handle_empty(with_sizes(1, 2), "merged")
    with pytest.raises(ConfigError, match="min_size of handle_empty"):
        handle_empty(with_sizes(1, 2), "drop", min_size=0)
