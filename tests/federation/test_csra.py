"""CSRA's options reach the search for a set."""

from dataclasses import replace

import numpy as np

from fedreach.federation.selection import CSRA
from fedreach.federation.values import ClientView
from fedreach.streams import generator
from fedreach.testing.worlds import with_rates


def many(clients=60):
    """Return clients with as many examples of each of two classes, at whatever distance."""
    rng = generator(0, "clients")
    counts = np.repeat(rng.integers(20, 200, clients), 2).reshape(-1, 2)
    view = replace(ClientView.of(np.arange(clients), counts.sum(axis=1)), label_counts=counts)
    return with_rates(view, rng.uniform(1e6, 2e7, clients)), int(0.3 * counts.sum())


def test_a_proof_ends_at_the_tolerance_and_what_is_left_of_the_gap_is_said():
    view, demand = many()
    loose, tight = (
        CSRA(min_examples=demand, tolerance=tolerance, max_nodes=1).select({}, view, 5, generator(0, "csra"))
        for tolerance in (0.5, 1e-9)
    )
    assert loose.remark == ""
    assert tight.remark.startswith("the allocation's gap is ")
