"""With two classes one prior moves thresholds and probabilities, and never the order of a client's examples."""

from __future__ import annotations

import numpy as np
import pytest

from fedreach._util.arrays import Floats, Ints
from fedreach._util.streams import generator
from fedreach.data.partition import dirichlet_by_class
from fedreach.data.sets import load
from fedreach.data.splits import draws, split_held_out
from fedreach.federation.adaptation.fitting import HeldOut, fit
from fedreach.federation.adaptation.label_shift import LabelShift
from fedreach.federation.adaptation.methods import BBSE, RLLS, OraclePrior
from fedreach.federation.base import Adaptation
from fedreach.federation.types import Outputs

HOSPITALS, PARTICIPANTS = 12, 5
RULES = [
    LabelShift(strength=1.0),
    LabelShift(guard=False, strength=1.0),
    LabelShift(calibration="none", guard=False, odds=0.0, strength=1.0),
    BBSE(),
    RLLS(strength=0.1),
    OraclePrior(),
]


def hospitals() -> tuple[list[HeldOut], list[tuple[Outputs, Ints]]]:
    """Return what participants hold out and what others hold, by a linear model that is right in most cases."""
    data = load("breast_cancer", download=False)
    partition = dirichlet_by_class(data.train_y, HOSPITALS, generator(0, "partition"), alpha=1.0, min_size=15)
    train, held_out = split_held_out(partition, 0.3, draws(partition, 0, "held-out"))
    x, y = data.train_x.astype(np.float64), data.train_y
    own = np.concatenate([train[k] for k in range(PARTICIPANTS)])
    low, high = (x[own][y[own] == c].mean(axis=0) for c in (0, 1))
    score = x @ (high - low) / 6 - 0.5  # towards the mean of the benign ones

    def outputs(index: Ints) -> Outputs:
        logits = np.stack([-score[index], score[index]], axis=1).astype(np.float32)
        return Outputs(logits, data.train_x[index], data.train_x[index])

    counts = train.label_counts(y, 2).astype(np.float64)
    asked = [HeldOut(outputs(held_out[k]), y[held_out[k]], counts[k]) for k in range(PARTICIPANTS)]
    return asked, [(outputs(partition[k]), y[partition[k]]) for k in range(PARTICIPANTS, HOSPITALS)]


def area_under_the_curve(scores: Floats, labels: Ints) -> float:
    """Return the share of pairs of two classes that stand in the right order; a tie is half a pair."""
    apart = scores[labels == 1][:, None] - scores[labels == 0][None, :]
    return float(((apart > 0) + (apart == 0) / 2).mean())


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_thresholds_move_and_the_order_of_a_hospitals_tumours_does_not(rule: Adaptation) -> None:
    asked, clients = hospitals()
    state, before, moved = fit(rule, asked).state, [], 0.0
    for outputs, labels in clients:
        if isinstance(rule, OraclePrior):
            assert rule.knows_prior
            kept = rule.with_prior(state, (np.bincount(labels, minlength=2) + 0.1) / (len(labels) + 0.2))
        else:
            kept = rule.update(state, rule.start(state), outputs)
        log_p = rule.predict(state, kept, outputs)
        plain, adapted = np.diff(outputs.logits.astype(np.float64))[:, 0], np.diff(log_p)[:, 0]
        np.testing.assert_array_equal(np.argsort(adapted), np.argsort(plain))
        if len(np.unique(labels)) == 2:
            before.append(area_under_the_curve(plain, labels))
            assert area_under_the_curve(adapted, labels) == before[-1]
        moved = max(moved, float(np.abs(1 / (1 + np.exp(-adapted)) - 1 / (1 + np.exp(-plain))).max()))
    assert min(before) < 1, "an order that is perfect could only get worse"
    assert moved > 0.1, "some tumour's probability changes by a tenth at least"
