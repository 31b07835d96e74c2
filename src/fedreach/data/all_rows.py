"""The same clients, where participants train on all of their rows: what a model is trained on once it is scored."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedreach.data.federated import FederatedData
from fedreach.data.population import Ranges


def on_all_rows(data: FederatedData) -> FederatedData:
    """Return the data in which participants train on what they trained on and, after it, on what they held out.

    A participant with m training rows and h held-out rows has m + h training rows and no held-out row. Labels are those
    that participants see: where training labels are noisy, those of held-out rows are true. Inputs and targets stay on
    the scale that was measured on the m rows. Unseen clients keep what they have.

    Example:
        >>> from fedreach.data.sets.catalogue import load
        >>> data = FederatedData.from_recipe(load("digits").partition("iid", clients=4, participants=[0, 2]))
        >>> every = on_all_rows(data)
        >>> data.train.sizes, data.held_out.sizes
        (array([288, 287, 287, 287]), array([72, 72, 72, 72]))
        >>> every.train.sizes, every.held_out.sizes
        (array([360, 287, 359, 287]), array([ 0, 72,  0, 72]))
    """
    takes_part = np.zeros(data.num_clients, np.bool_)
    takes_part[data.population.participants] = True
    train, held = data.train, data.held_out
    moves = takes_part[held.owner()]
    owner = np.concatenate([train.owner(), held.owner()[moves]])
    order = np.concatenate([train.order, held.order[moves]])[np.argsort(owner, kind="stable")]
    sizes = train.sizes + np.where(takes_part, held.sizes, 0)
    return replace(data, train=Ranges.of_sizes(order, sizes), held_out=held.without(moves))
