"""The compiled stack trains as the plain engine does; torch.compile takes most of the time here."""

import numpy as np
import pytest

from fedreach.engines.engine import TorchEngine
from fedreach.engines.models.networks import build
from fedreach.engines.protocols import Task
from fedreach.engines.sequential import Sequential
from fedreach.engines.vmap import Compiled
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.solvers import FedAvg, FedProx, Scaffold

pytestmark = pytest.mark.slow


@pytest.mark.filterwarnings("ignore")  # torch.compile warns of what is torch's own
@pytest.mark.parametrize(("name", "shape", "kind"), [("mlp", (5,), "features"), ("lenet", (1, 16, 16), "image")])
@pytest.mark.parametrize("solver", [FedAvg(), FedProx(mu=0.3), Scaffold()])
def test_the_compiled_engine_trains_as_the_sequential_one(name, shape, kind, solver, federated):
    data = federated((9, 9, 5), shape, kind)
    engines = [
        TorchEngine(made, Task(build(name, shape, 3, seed=1), data, solver, LocalSGD(batch_size=4), 3))
        for made in (Sequential, Compiled)
    ]
    p, ids = engines[0].num_trainable, np.arange(3)
    memory = np.random.Generator(np.random.Philox(5)).standard_normal((3, p)).astype(np.float32) * 0.1
    terms = solver.prepare(memory, {}, np.ones(3)) if solver.is_stateful else {}
    one, other = (engine.train(engine.initial, ids, 1, 0.05, terms) for engine in engines)
    assert abs(one.update).max() > 1e-4
    np.testing.assert_allclose(other.update, one.update, rtol=0, atol=1e-5)
    np.testing.assert_allclose(other.loss, one.loss, rtol=1e-5)
