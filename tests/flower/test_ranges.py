"""Clipped steps go as far as they can and no further."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedreach.federation.local_sgd import LocalSGD
from fedreach.runs.simulation import simulate
from fedreach.testing.problems import tiny_data, tiny_federation


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("engine", ["sequential", "native"])
def test_clipped_steps_go_as_far_as_they_can_and_no_further(engine, momentum):
    """Gradients that are far above the clip norm and all point one way reach the bound."""
    local = LocalSGD(lr=0.5, clip_norm=1e-3, batch_size=4, epochs=3, momentum=momentum)
    simulation = simulate(tiny_data(), "linear", replace(tiny_federation(), local=local), rounds=1, engine=engine)
    ids = simulation.data.population.participants
    trained = simulation.engine.train(simulation.engine.initial, ids, 1, local.lr, {})
    steps = local.steps_of(simulation.data.train.sizes[ids], ids, 0, 1)
    assert trained.steps.tolist() == steps.tolist()
    size = float(np.linalg.norm(simulation.engine.initial))
    furthest = [local.furthest(int(k), local.lr, size) for k in steps]
    norms = np.linalg.norm(trained.update.astype(np.float64), axis=1)
    assert (norms <= furthest).all()
    assert (norms >= 0.5 * np.array(furthest)).any()  # the bound says something
