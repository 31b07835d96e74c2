"""FedAvg and MOON as Algorithm 1 of MOON's paper has them: loops in plain torch, which import nothing of FedReach.

Li, He and Song, "Model-Contrastive Federated Learning", CVPR 2021: eq. 3 is the contrast, eq. 4 the objective, and
the network is that of their section 4.1 with its projection head. `moon.py` compares FedReach with these loops.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Weights = dict[str, Tensor]
PROJECTED = 256  # numbers that the projection head returns


def projection_cnn(num_classes: int = 10) -> nn.Sequential:
    """Return MOON's network for CIFAR-10: two convolutions, layers of 120 and 84, the head of 84 and 256, the output.

    What the last layer is given is the head's output, which the contrast compares. 92,626 parameters.
    """
    return nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(),
        nn.Linear(84, 84), nn.ReLU(), nn.Linear(84, PROJECTED),
        nn.Linear(PROJECTED, num_classes),
    )  # fmt: skip


@dataclass(frozen=True)
class Options:
    """What local training goes by; with `mu` = 0 it is that of FedAvg."""

    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 1e-5
    mu: float = 0.0
    temperature: float = 0.5


class PlainLoop:
    """The server's side of Algorithm 1: every client trains in every round, weighed by its number of examples.

    Args:
        model: The network with its initial weights; it is copied.
        x: (n, C, H, W) normalized images.
        y: (n,) classes.
        sizes: Client -> number of its examples.
        options: Of local training.
    """

    def __init__(self, model: nn.Sequential, x: Tensor, y: Tensor, sizes: Mapping[int, int], options: Options) -> None:
        self.model = copy.deepcopy(model)
        self.x, self.y, self.sizes, self.options = x, y, sizes, options
        self.previous: dict[int, nn.Sequential] = {}  # each client's model after its last round

    def run_round(self, batches: Mapping[int, Sequence[Any]]) -> Weights:
        """Train all clients on their batches, arrays of positions in x, and average; return the global weights."""
        local_models = {client: self.train_client(client, indices) for client, indices in batches.items()}
        total = sum(self.sizes[client] for client in batches)
        average: Weights = {}
        for client, local_model in local_models.items():
            for name, value in local_model.state_dict().items():
                average[name] = average.get(name, 0.0) + value.double() * (self.sizes[client] / total)
        self.model.load_state_dict({name: value.float() for name, value in average.items()})
        self.previous = local_models
        return self.model.state_dict()

    def train_client(self, client: int, batches: Sequence[Any]) -> nn.Sequential:
        """Return a client's model after local training, `PartyLocalTraining` of Algorithm 1."""
        options, model = self.options, copy.deepcopy(self.model)
        previous = self.previous.get(client)
        optimizer = torch.optim.SGD(
            model.parameters(), lr=options.lr, momentum=options.momentum, weight_decay=options.weight_decay
        )
        for indices in batches:
            x, y = self.x[indices], self.y[indices]
            z = model[:-1](x)
            loss = F.cross_entropy(model[-1](z), y)
            if options.mu and previous is not None:
                loss = loss + options.mu * self._contrast(z, previous, x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return model

    def _contrast(self, z: Tensor, previous: nn.Sequential, x: Tensor) -> Tensor:
        """Return eq. 3, the global model's features against those of the client's previous model."""
        with torch.no_grad():
            z_global, z_previous = self.model[:-1](x), previous[:-1](x)
        near = torch.exp(F.cosine_similarity(z, z_global) / self.options.temperature)
        away = torch.exp(F.cosine_similarity(z, z_previous) / self.options.temperature)
        return -torch.log(near / (near + away)).mean()
