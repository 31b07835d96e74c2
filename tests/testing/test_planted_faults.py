"""There are planted faults of every kind, and those below a part are caught, too."""

from __future__ import annotations

import numpy as np

from fedreach import registry
from fedreach.federation.labels import released
from fedreach.testing import trial

from . import test_planted_allocation as allocation
from . import test_planted_selection as selection
from . import test_planted_server as server
from . import test_planted_serving as serving
from . import test_planted_solvers as solvers
from . import test_planted_weighting as weighting

FAULTS = [fault for module in (allocation, selection, server, serving, solvers, weighting) for fault in module.FAULTS]


def test_a_fault_below_a_part_is_caught_through_the_part(monkeypatch):
    def unclamped(mean, variance, distance):
        shift = np.square(np.asarray(distance))
        return ((1 - shift) * mean - np.sqrt(shift * (2 - shift) * variance)) ** 2 / np.maximum(mean, 1e-12)

    monkeypatch.setattr("fedreach.theory.disagreement._shrunk", unclamped)
    found = trial.verdict_of_built_in("measurement", "disagreement")
    assert "bounds are clamped" in {breach.law for breach in found.broken}
    monkeypatch.undo()

    in_nats = released.label_entropy
    monkeypatch.setattr(released, "label_entropy", lambda counts: in_nats(counts) / np.log(2))
    found = trial.verdict_of_built_in("weighting", "entropy")
    assert "golden entropy" in {breach.law for breach in found.broken}
    found = trial.verdict_of_built_in("label_statistics", "exact")
    assert "entropies in range" in {breach.law for breach in found.broken}


def test_there_are_faults_of_every_kind():
    assert {fault.values[0] for fault in FAULTS} == set(registry.VERIFIED)
    assert len(FAULTS) >= 50
