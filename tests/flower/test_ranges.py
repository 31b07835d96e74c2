"""Clipped steps, and numbers of steps, are what they can be and no more."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr")

from torch import nn

from fedreach.engines.models.flat import Layout
from fedreach.federation.local_sgd import LocalSGD, UnevenSteps
from fedreach.flower.agreement import Checks, ClientStatistics
from fedreach.flower.messages import ReplyError
from fedreach.runs.simulation import simulate
from fedreach.testing.problems import tiny_data, tiny_federation


def checks(classes: int | None = 10, **parts) -> Checks:
    return Checks(replace(tiny_federation(), **parts), Layout.of(nn.Linear(4, 10)), 5, classes)


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


def test_a_client_takes_the_steps_that_are_drawn_for_it_and_no_others():
    local = LocalSGD(steps=UnevenSteps(1, 50))
    own, facts = checks(local=local), ClientStatistics(30, 0, trains_as_asked=True)
    seed = tiny_federation().seed
    for client, round_ in ((0, 1), (0, 2), (7, 1)):
        (drawn,) = local.steps_of(np.array([30]), np.array([client]), seed, round_).tolist()
        assert own.steps({"steps": drawn}, facts, client, round_) == drawn
        with pytest.raises(ReplyError, match=rf"its 'steps' must be {drawn}, as it was asked for; got {drawn + 1}"):
            own.steps({"steps": drawn + 1}, facts, client, round_)
