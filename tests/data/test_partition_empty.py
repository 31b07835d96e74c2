"""Empty clients: refuse or drop."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedreach._util.errors import ConfigError, DataError
from fedreach.data.assignment import Partition, without_empty

owners = st.lists(st.integers(0, 14), min_size=1, max_size=40)


def with_sizes(*sizes: int) -> Partition:
    return Partition.from_owner(np.repeat(np.arange(len(sizes)), sizes), len(sizes), "natural", {"made": "by hand"})


def test_the_error_lists_the_ids():
    with pytest.raises(DataError, match=r"2 of 4 clients have no examples: 1, 3\."):
        without_empty(with_sizes(2, 0, 1, 0), "error")
    with pytest.raises(DataError, match="examples: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 5 more"):
        without_empty(with_sizes(*[0] * 15, 3), "error")


@pytest.mark.parametrize("policy", ["error", "drop"])
def test_a_partition_without_empty_clients_is_returned_as_it_is(policy):
    full = with_sizes(2, 1, 3)
    assert without_empty(full, policy) is full


def test_dropping_renumbers_without_gaps_and_says_so():
    handled = without_empty(with_sizes(0, 2, 0, 3), "drop")
    assert handled.sizes.tolist() == [2, 3]
    assert handled.parameters == {"made": "by hand", "empty": "drop"}


@settings(deadline=None, derandomize=True)
@given(owner=owners)
def test_every_sample_follows_its_client(owner):
    handled = without_empty(Partition.from_owner(owner, 15, "natural"), "drop")
    assert handled.owner().tolist() == np.unique(owner, return_inverse=True)[1].tolist()
    assert handled.sizes.min() >= 1


def test_an_unknown_policy_is_refused():
    with pytest.raises(ConfigError, match="Did you mean 'drop'"):
        without_empty(with_sizes(1, 2), "drops")
