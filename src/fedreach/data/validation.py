"""Validation splits, and training on all examples of participants."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedreach.data.federated import FederatedData, stream_names
from fedreach.data.splits import ClientIndex, Population, draws, split_held_out

# ---- Data for the choice of options


def for_validation(data: FederatedData, share: float, seed: int) -> FederatedData:
    """Keep only the participants, and hold out a share of their training examples for validation.

    The result contains no held-out examples of `data`, no unseen clients and no test set. So you can choose options
    with it without using the data of the final evaluation. Labels include label noise.

    Args:
        data: Federated data of the comparison.
        share: Share of each participant's training examples that is held out, in (0, 1).
        seed: Seed of the draw.

    Example:
        >>> from fedreach.data.sets import load
        >>> spec = load("digits").partition("iid", clients=4, participants=2)
        >>> data = FederatedData.from_spec(spec)
        >>> some = for_validation(data, 0.25, seed=0)
        >>> data.train.sizes, data.held_out.sizes, some.train.sizes, some.held_out.sizes
        (array([288, 287, 287, 287]), array([72, 72, 72, 72]), array([  0,   0, 215, 215]), array([ 0,  0, 72, 72]))
        >>> some.population.unseen, len(some.dataset.test_y)
        (array([], dtype=int64), 0)
    """
    participants, d = data.population.participants, data.dataset
    training = data.train.without(~data.takes_part[data.train.owner()])
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


# ---- Training on all examples after the evaluation


def on_all_rows(data: FederatedData) -> FederatedData:
    """Add the participants' held-out examples to their training examples.

    A participant with m training and h held-out examples then has m + h training examples and no held-out examples.
    Label noise, the scale of inputs and targets, and unseen clients do not change.

    Example:
        >>> from fedreach.data.sets import load
        >>> data = FederatedData.from_spec(load("digits").partition("iid", clients=4, participants=[0, 2]))
        >>> every = on_all_rows(data)
        >>> data.train.sizes, data.held_out.sizes
        (array([288, 287, 287, 287]), array([72, 72, 72, 72]))
        >>> every.train.sizes, every.held_out.sizes
        (array([360, 287, 359, 287]), array([ 0, 72,  0, 72]))
    """
    train, held_out = data.train, data.held_out
    moves = data.takes_part[held_out.owner()]
    owner = np.concatenate([train.owner(), held_out.owner()[moves]])
    order = np.concatenate([train.order, held_out.order[moves]])[np.argsort(owner, kind="stable")]
    sizes = train.sizes + np.where(data.takes_part, held_out.sizes, 0)
    return replace(data, train=ClientIndex.of_sizes(order, sizes), held_out=held_out.without(moves))
