"""Adaptation many clients without holding all that they have."""

import numpy as np
import pytest

from fedreach.evaluation.modes import GROUP_SIZE, MAX_GROUP_BYTES, Client, in_groups
from fedreach.federation.types import Outputs


@pytest.mark.parametrize(
    ("share", "sizes"),
    [(None, [GROUP_SIZE, GROUP_SIZE, 2]), (0.3, [4, 4, 4, 4, 4]), (0.5, [2] * 10), (1.5, [1] * 20)],
)
def test_clients_with_large_inputs_are_held_few_at_a_time(share, sizes):
    """`share` of the bytes that are held at most; None: logits alone, of which there can be many."""
    inputs = None if share is None else np.broadcast_to(np.float32(0), (round(share * MAX_GROUP_BYTES / 4), 1))
    clients = [Client(i, Outputs(np.zeros((1, 2)), None, inputs), np.zeros(1, np.int64)) for i in range(sum(sizes))]
    groups = list(in_groups(iter(clients)))
    assert [len(group) for group in groups] == sizes
    assert [client.id for group in groups for client in group] == list(range(len(clients)))
