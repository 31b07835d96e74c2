"""A federation whose clients bring data of their own; no experiment file.

Each node names its file: ``flower-supernode ... --node-config 'partition-id=0 data="/data/site0.npz"'``. To run it, set
``serverapp = "flower_app.own_data:server"`` and ``clientapp = "flower_app.own_data:client"`` in pyproject.toml.
"""

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch import nn

from fedreach.engines.models.networks import build
from fedreach.federation.federation import Federation
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.selection.losses import PowerOfChoice
from fedreach.federation.server import Average
from fedreach.federation.solvers import FedProx
from fedreach.federation.weighting import ByEntropy
from fedreach.flower.app import client_app
from fedreach.flower.local import ClientData
from fedreach.flower.strategy import FedReachStrategy

FEDERATION = Federation(
    PowerOfChoice(candidates=4), ByEntropy(), FedProx(mu=0.1), LocalSGD(lr=0.1), Average(), cohort_size=2, seed=0
)


def network() -> nn.Module:
    """Return the model, which any torch module can be."""
    return nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))


def own(context: Context) -> ClientData:
    """Return what this client holds; nothing of it leaves the client but what the federation's parts ask for."""
    held = np.load(str(context.node_config["data"]))
    return ClientData((held["x"], held["y"]), (held["test_x"], held["test_y"]), num_classes=10)


client = client_app(FEDERATION, network, own)
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Train with those that are online."""
    config = context.run_config
    model = build(network, (64,), 10, seed=0)
    strategy = FedReachStrategy(
        FEDERATION, model, rounds=3, folder=str(config["out"]), min_clients=int(config["min-clients"])
    )
    strategy.run(grid)
