"""Long workloads: federations with published times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

import long_data

FLUTE = "https://github.com/microsoft/msrflute"


class Published(NamedTuple):
    """What somebody published."""

    who: str
    clock: str  # hours, minutes and seconds
    accuracy: str


@dataclass(frozen=True)
class Workload:
    """A federation, named as its case in `cases.py`, which has its model, cohort, batch and learning rate.

    Args:
        data: Makes its data.
        model: FedReach's name of the model, or the function of `cases.py` that makes it.
        rounds: Of the whole.
        every: Rounds from one evaluation on the test set to the next.
        peer_rounds: Rounds that pfl runs.
        flower: Whether Flower runs a few.
        published: What others took for it.
        words: What it is, for the page.
    """

    data: Callable[[np.random.Generator], long_data.Arrays]
    model: str
    rounds: int
    every: int
    peer_rounds: int
    flower: bool
    published: tuple[Published, ...]
    words: str


WORKLOADS = {
    "flute_lr": Workload(
        long_data.two_digits_a_client,
        "linear",
        100,
        20,
        100,
        True,
        (
            Published("FLUTE, CPU", "00:03:20", "~80"),
            Published("FLUTE, GPU", "00:01:35", "~81"),
            Published("FedML 0.7.303, GPU", "00:03:09", "~81"),
            Published("Flower 1.0.0, CPU", "00:30:14", "~80"),
        ),
        "logistic regression, 1000 clients, 10 a round, batch 10, rate 0.03. Theirs puts outputs through a sigmoid "
        "before the cross-entropy; here they are logits, as usual.",
    ),
    "flute_cnn": Workload(
        long_data.writers,
        "make_flute_cnn",
        1500,
        50,
        100,
        True,
        (Published("FLUTE, GPU", "00:08:22", "~83"), Published("FedML 0.7.303, GPU", "05:49:52", "~83")),
        "CNN of 1.2 million parameters, 3400 clients, 10 a round, batch 20, rate 0.1. Accuracies are of other images.",
    ),
    "cifar": Workload(
        long_data.fifty_each,
        "make_cifar_cnn",
        1500,
        10,
        100,
        True,
        (),
        "the benchmark of pfl-research itself: CNN of 1.6 million parameters, 1000 clients of 50, 50 a round, "
        "batch 10, rate 0.1.",
    ),
    "many_clients": Workload(
        long_data.many_clients,
        "linear",
        1000,
        100,
        1000,
        False,
        (),
        "logistic regression, 100,000 clients of 10, 100 a round, batch 10, rate 0.03. Flower's simulation is left "
        "out: it has a node for each client.",
    ),
}
