"""Data by which settings are chosen: a part of what participants train on, and nothing that results are told of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedreach.arrays import Bools
from fedreach.data.federated import FederatedData, stream_names
from fedreach.data.held_out import draws, split_held_out
from fedreach.data.population import Population, Ranges


def for_validation(data: FederatedData, share: float, seed: int) -> FederatedData:
    """Return the participants alone, with a share of each one's training samples held out.

    What they held out before, all that unseen clients have, and the test set are in no part of it: whoever is handed
    this cannot look at them. Labels are those that participants see: where they are noisy, nobody knows better.

    Args:
        data: Of the comparison.
        share: Of each participant's training samples, in (0, 1).
        seed: Of the draw.

    Example:
        >>> from fedreach.data.sets.catalogue import load
        >>> recipe = load("digits").partition("iid", clients=4, participants=2)
        >>> data = FederatedData.from_recipe(recipe)
        >>> some = for_validation(data, 0.25, seed=0)
        >>> data.train.sizes, data.held_out.sizes, some.train.sizes, some.held_out.sizes
        (array([288, 287, 287, 287]), array([72, 72, 72, 72]), array([  0,   0, 215, 215]), array([ 0,  0, 72, 72]))
        >>> some.population.unseen, len(some.dataset.test_y)
        (array([], dtype=int64), 0)
    """
    participants, d = data.population.participants, data.dataset
    takes_part = np.zeros(data.num_clients, np.bool_)
    takes_part[participants] = True
    mine = _only(data.train, takes_part)
    drawn = draws(mine, seed, "validation", stream_names(data.partition, data.client_names))
    train, held_out = split_held_out(mine, share, drawn, data.together)
    gone = data.train.sizes + data.held_out.sizes - mine.sizes
    return replace(
        data,
        dataset=replace(d, test_x=d.test_x[:0], test_y=d.test_y[:0], train_y=data.labels),
        population=Population(participants, np.empty(0, np.int64)),
        train=train,
        held_out=held_out,
        left_out=gone,
    )


def _only(ranges: Ranges, clients: Bools) -> Ranges:
    """Return the samples of these clients; the others have none."""
    sizes = np.where(clients, ranges.sizes, 0)
    order = ranges.order[np.repeat(clients, ranges.sizes)]
    return Ranges(order, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))
