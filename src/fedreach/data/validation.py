"""Validation splits, and training on all rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedreach._util.arrays import Bools
from fedreach.data.federated import FederatedData, stream_names
from fedreach.data.splits import Population, Ranges, draws, split_held_out

# --- Data by which settings are chosen: a part of what participants train on, and nothing that results are told of


def for_validation(data: FederatedData, share: float, seed: int) -> FederatedData:
    """Return the participants alone, with a share of each one's training samples held out.

    What they held out before, all that unseen clients have, and the test set are in no part of it: whoever is handed
    this cannot look at them. Labels are those that participants see: where they are noisy, nobody knows better.

    Args:
        data: Of the comparison.
        share: Of each participant's training samples, in (0, 1).
        seed: Of the draw.

    Example:
        >>> from fedreach.data.sets import load
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
    training = _only(data.train, takes_part)
    drawn = draws(training, seed, "validation", stream_names(data.partition, data.client_names))
    train, held_out = split_held_out(training, share, drawn, data.together)
    gone = data.train.sizes + data.held_out.sizes - training.sizes
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


# --- The same clients, where participants train on all of their rows: what a model is trained on once it is scored


def on_all_rows(data: FederatedData) -> FederatedData:
    """Return the data in which participants train on what they trained on and, after it, on what they held out.

    A participant with m training rows and h held-out rows has m + h training rows and no held-out row. Labels are those
    that participants see: where training labels are noisy, those of held-out rows are true. Inputs and targets stay on
    the scale that was measured on the m rows. Unseen clients keep what they have.

    Example:
        >>> from fedreach.data.sets import load
        >>> data = FederatedData.from_recipe(load("digits").partition("iid", clients=4, participants=[0, 2]))
        >>> every = on_all_rows(data)
        >>> data.train.sizes, data.held_out.sizes
        (array([288, 287, 287, 287]), array([72, 72, 72, 72]))
        >>> every.train.sizes, every.held_out.sizes
        (array([360, 287, 359, 287]), array([ 0, 72,  0, 72]))
    """
    takes_part = np.zeros(data.num_clients, np.bool_)
    takes_part[data.population.participants] = True
    train, held_out = data.train, data.held_out
    moves = takes_part[held_out.owner()]
    owner = np.concatenate([train.owner(), held_out.owner()[moves]])
    order = np.concatenate([train.order, held_out.order[moves]])[np.argsort(owner, kind="stable")]
    sizes = train.sizes + np.where(takes_part, held_out.sizes, 0)
    return replace(data, train=Ranges.of_sizes(order, sizes), held_out=held_out.without(moves))
