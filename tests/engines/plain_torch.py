"""Training as any tutorial writes it: what engines and whole runs are compared with."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch.nn import functional as F

from fedreach._util.streams import torch_seed
from fedreach.engines.batches import batch_plan
from fedreach.engines.models.draws import preserve_generators


def numbers(module):
    """Return parameters and floating-point buffers by name."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: tensor.detach().clone().float() for name, tensor in tensors.items() if tensor.is_floating_point()}


def inputs(data, index):
    """Return what a module is given of some training examples."""
    x = torch.from_numpy(data.dataset.train_x[index])
    if data.dataset.kind == "tokens":
        return x.long()
    if data.dataset.kind != "image":
        return x
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (data.dataset.mean, data.dataset.std))
    return (x.float() / 255 - mean) / std


def train(module, data, client, local, *, seed, round_, lr):
    """Train a client by torch alone; return how far each tensor moved, and the mean loss over all batches."""
    optimizer, samples, before = torch.optim.SGD(module.parameters(), lr=lr), data.train[client], numbers(module)
    total = seen = 0
    module.train()
    with preserve_generators():
        drawn_by = torch_seed(seed, "dropout", round_, client)
        torch.manual_seed(drawn_by)
        np.random.seed(drawn_by % 2**32)  # noqa: NPY002 (modules draw from it)
        random.seed(drawn_by)
        for batch in batch_plan(seed, round_, client, len(samples), local):
            index = samples[batch[batch >= 0]]
            x, y = inputs(data, index), torch.from_numpy(data.labels[index])
            optimizer.zero_grad()
            loss = F.cross_entropy(module(x), y)
            loss.backward()
            optimizer.step()
            total, seen = total + loss.item() * len(index), seen + len(index)
    return {name: tensor - before[name] for name, tensor in numbers(module).items()}, total / seen
