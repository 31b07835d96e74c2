"""The law of rules that are calibrated with more classes than Newton's method is used for."""

from __future__ import annotations

import numpy as np

from fedreach.federation.serving.softmax import log_softmax
from fedreach.testing.law import Subject, broken, law
from fedreach.testing.served import world

CLASSES = 120


@law()
def many_classes_are_matched(subject: Subject) -> None:
    """With 120 classes the mean calibrated prediction lies within .1 of base in total variation.

    Base is of the held-out labels. The training labels have other shares.
    """
    if subject.part.calibration != "bias":
        return
    counts = np.arange(1.0, CLASSES + 1)
    given = world(f"5 participants, {CLASSES} classes", CLASSES, (200,) * 5, counts=lambda rng, c, k: counts)
    state = given.fitted(subject.part).state
    outputs = [given.model.of(one.inputs, all_there_is=False) for one in given.participants]
    predicted = [np.exp(log_softmax(state["a"] * one.logits + state["b"])) for one in outputs]
    held = np.bincount(np.concatenate([one.labels for one in given.participants]), minlength=CLASSES) + 0.5
    off = float(np.abs(np.concatenate(predicted).mean(axis=0) - held / held.sum()).sum() / 2)
    if off > 0.1:
        broken(f"the mean calibrated prediction lies {off:.3g} from base in total variation", str(given))
