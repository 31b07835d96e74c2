"""Mistakes below a component, in functions that it calls: they are caught through the component."""

from __future__ import annotations

import numpy as np
import pytest

from fedreach._util import registry
from fedreach.federation import labels
from fedreach.testing.base import Subject

from .planted import checks_of_method

pytestmark = pytest.mark.planted


def failed(kind, name):
    """Return the names of the checks of a method that it fails."""
    subject = Subject.of(kind, registry.table(kind)[name](), {}, name)
    return {check.name for check in checks_of_method(kind, name) if check.failure_of(subject) is not None}


def test_bounds_that_turn_back_are_caught(monkeypatch):
    def unclamped(mean, variance, distance):
        shift = np.square(np.asarray(distance))
        return ((1 - shift) * mean - np.sqrt(shift * (2 - shift) * variance)) ** 2 / np.maximum(mean, 1e-12)

    assert not failed("measurement", "disagreement")
    monkeypatch.setattr("fedreach.federation.convergence._shrunk", unclamped)
    assert "bounds are clamped" in failed("measurement", "disagreement")


def test_an_entropy_in_bits_is_caught(monkeypatch):
    in_nats = labels.label_entropy
    monkeypatch.setattr(labels, "label_entropy", lambda counts: in_nats(counts) / np.log(2))
    assert "golden entropy" in failed("weighting", "entropy")
