"""Small modules of every kind that people write, each on data of one shape; `ZOO` lists them.

A module is made by a function of the number of classes; those that drop numbers take the share `p`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from types import MethodType
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

FEATURES, IMAGE, TOKENS = ((8,), "features"), ((1, 8, 8), "image"), ((6,), "tokens")
CLASSES = 5  # words, too


class Member(NamedTuple):
    """One module of the zoo."""

    make: Callable[..., nn.Module]
    shape: tuple[int, ...]
    kind: str
    drops: bool  # takes `p`
    draws: bool  # random numbers other than dropout's, or in evaluation
    slow: bool


ZOO: dict[str, Member] = {}


def member(data, *, drops=False, draws=False, slow=False):
    """Add what makes a module to the zoo, under its name."""

    def add(make):
        ZOO[make.__name__] = Member(make, *data, drops, draws, slow)
        return make

    return add


def body(width=12):
    return nn.Sequential(nn.Linear(8, width), nn.ReLU())


class WithBody(nn.Module):
    """A body, a head, and what a subclass does with them."""

    def __init__(self, classes=CLASSES):
        super().__init__()
        self.body, self.head = body(), nn.Linear(12, classes)

    def forward(self, x):
        return self.head(self.body(x))


# ------------------------------------------------------------------------------------------------ plain networks


@member(FEATURES)
def linear():
    return nn.Linear(8, CLASSES)


@member(FEATURES)
def mlp():
    return nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, CLASSES))


@member(FEATURES)
def tanh():
    return nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, CLASSES))


@member(FEATURES)
def gelu_and_layer_norm():
    return nn.Sequential(nn.Linear(8, 12), nn.LayerNorm(12), nn.GELU(), nn.Linear(12, CLASSES))


@member(FEATURES)
class Residual(WithBody):
    def forward(self, x):
        z = self.body(x)
        return self.head(z + torch.sigmoid(z))


@member(FEATURES)
class Temperature(WithBody):
    """Has a number that is learned, and a parameter that nothing uses."""

    def __init__(self):
        super().__init__()
        self.scale, self.unused = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.ones(3))

    def forward(self, x):
        return super().forward(x) * self.scale


@member(FEATURES)
class Gated(nn.Module):
    """A mixture of two experts."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(8, CLASSES) for _ in range(2)])
        self.gate = nn.Linear(8, 2)

    def forward(self, x):
        outputs = torch.stack([expert(x) for expert in self.experts], dim=-1)
        return torch.einsum("bce,be->bc", outputs, self.gate(x).softmax(-1))


@member(IMAGE)
def tutorial():
    """The network of many tutorials."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(36, 16),
        nn.ReLU(),
        nn.Linear(16, CLASSES),
    )


@member(IMAGE)
class Viewed(nn.Module):
    """Flattens by a view of what a convolution made."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 3, 3), nn.Conv2d(3, 4, 3)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.second(F.relu(self.first(x)))), 2)
        return self.head(x.view(-1, 16))


@member(IMAGE)
def depthwise():
    mixed = [nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, groups=4), nn.ReLU(), nn.Conv2d(4, 6, 1)]
    return nn.Sequential(*mixed, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, CLASSES))


@member(IMAGE)
class SqueezeAndExcite(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.gate, self.head = nn.Conv2d(1, 4, 3), nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, x):
        z = F.relu(self.conv(x))
        z = z * torch.sigmoid(self.gate(z.mean((2, 3))))[:, :, None, None]
        return self.head(z.amax((2, 3)))


@member(IMAGE)
class UNet(nn.Module):
    """Down, up again, and both put together."""

    def __init__(self):
        super().__init__()
        self.down, self.deep = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 4, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(4, 3, 2, stride=2), nn.Conv2d(6, 3, 3, padding=1)
        self.head = nn.Linear(3, CLASSES)

    def forward(self, x):
        x = F.relu(self.down(x))
        z = self.up(F.relu(self.deep(F.max_pool2d(x, 2))))
        return self.head(F.relu(self.last(torch.cat([x, z], 1))).mean((2, 3)))


@member(IMAGE)
class Shortcut(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = (
            nn.Conv2d(1, 4, 3, padding=1),
            nn.Conv2d(4, 4, 3, padding=1),
            nn.Linear(4, 5),
        )

    def forward(self, x):
        x = F.relu(self.first(x))
        return self.head((x + F.relu(self.second(x))).mean((2, 3)))


# ------------------------------------------------------------------------------------------------ sequences


@member(TOKENS)
class BagOfWords(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(CLASSES, 4, padding_idx=0), nn.Linear(4, CLASSES)

    def forward(self, tokens):
        return self.head(self.embed(tokens).mean(-2))


@member(TOKENS)
class Renormalized(BagOfWords):
    """Its embedding is scaled in place where a row is longer than allowed."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(CLASSES, 4, max_norm=0.5)


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.embed, self.layer = nn.Embedding(CLASSES, 4), kind(4, 6, batch_first=True, **options)
        self.head = nn.Linear(12 if options.get("bidirectional") else 6, CLASSES)

    def forward(self, tokens):
        return self.head(self.layer(self.embed(tokens))[0][:, -1])


@member(TOKENS)
def lstm():
    return Recurrent(nn.LSTM)


@member(TOKENS)
def gru():
    return Recurrent(nn.GRU)


@member(TOKENS)
def rnn():
    return Recurrent(nn.RNN)


@member(TOKENS, slow=True)
def both_ways():
    return Recurrent(nn.LSTM, bidirectional=True)


@member(TOKENS, drops=True)
def lstm_with_dropout(p=0.5):
    return Recurrent(nn.LSTM, num_layers=2, dropout=p)


@member(TOKENS, drops=True)
class Transformer(nn.Module):
    def __init__(self, p=0.1):
        super().__init__()
        self.embed, self.place = nn.Embedding(CLASSES, 8), nn.Parameter(torch.randn(6, 8) / 9)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=p, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, tokens):
        return self.head(self.layer(self.embed(tokens) + self.place).mean(1))


@member(TOKENS, drops=True)
class Attention(nn.Module):
    def __init__(self, p=0.3):
        super().__init__()
        self.embed, self.three, self.head = nn.Embedding(CLASSES, 8), nn.Linear(8, 24), nn.Linear(8, CLASSES)
        self.p = p

    def forward(self, tokens):
        q, k, v = self.three(self.embed(tokens)).chunk(3, -1)
        dropped = self.p if self.training else 0.0
        return self.head(F.scaled_dot_product_attention(q, k, v, dropout_p=dropped).mean(1))


# ------------------------------------------------------------------------------------------------ normalization


@member(FEATURES)
def batch_norm():
    return nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, CLASSES))


@member(FEATURES)
def batch_norm_without_weights():
    return nn.Sequential(nn.BatchNorm1d(8, affine=False, momentum=0.3), nn.Linear(8, CLASSES))


@member(FEATURES)
def batch_norm_without_statistics():
    return nn.Sequential(nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, CLASSES))


@member(IMAGE)
def batch_norm_of_images():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(36, CLASSES)
    )


@member(IMAGE)
def group_norm():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, CLASSES))


@member(IMAGE)
def instance_norm():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.Flatten(), nn.Linear(144, CLASSES))


# ------------------------------------------------------------------------------------------------ dropout


@member(FEATURES, drops=True)
def dropout(p=0.5):
    return nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Dropout(p), nn.Linear(12, CLASSES))


@member(FEATURES, drops=True)
class DropoutFunction(WithBody):
    def __init__(self, p=0.5):
        super().__init__()
        self.p = p

    def forward(self, x):
        return self.head(F.dropout(self.body(x), self.p, self.training))


@member(FEATURES, drops=True)
def alpha_dropout(p=0.3):
    return nn.Sequential(nn.Linear(8, 12), nn.SELU(), nn.AlphaDropout(p), nn.Linear(12, CLASSES))


@member(IMAGE, drops=True)
def dropout_of_channels(p=0.4):
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Dropout2d(p), nn.Flatten(), nn.Linear(144, CLASSES))


@member(FEATURES, drops=True, draws=True)
class AlwaysDropping(WithBody):
    """Drops in evaluation, too."""

    def __init__(self, p=0.5):
        super().__init__()
        self.p = p

    def forward(self, x):
        return self.head(F.dropout(self.body(x), self.p))


# ------------------------------------------------------------------------------------------------ chance


@member(FEATURES, draws=True)
class FlippedByChance(WithBody):
    def forward(self, x):
        return super().forward(x.flip(-1) if self.training and torch.rand(()) < 0.5 else x)


@member(FEATURES, draws=True)
class FlippedByPython(WithBody):
    def forward(self, x):
        return super().forward(x.flip(-1) if self.training and random.random() < 0.5 else x)


@member(FEATURES, draws=True)
class NoiseByNumpy(WithBody):
    def forward(self, x):
        noise = np.random.normal(size=tuple(x.shape)).astype(np.float32)  # noqa: NPY002 (as people write it)
        return super().forward(x + torch.from_numpy(noise) if self.training else x)


@member(FEATURES, draws=True)
class Noise(WithBody):
    def forward(self, x):
        return super().forward(x + 0.1 * torch.randn_like(x) if self.training else x)


@member(FEATURES, draws=True)
class NoiseInEvaluation(WithBody):
    def forward(self, x):
        return super().forward(x + 0.1 * torch.randn_like(x))


@member(FEATURES, draws=True)
class StochasticDepth(WithBody):
    def forward(self, x):
        z = self.body(x)
        kept = torch.bernoulli(torch.full((len(x), 1), 0.5)) if self.training else 0.5
        return self.head(z + kept * torch.tanh(z))


# ------------------------------------------------------------------------------------------------ branches


@member(FEATURES)
class BranchByData(WithBody):
    def forward(self, x):
        return super().forward(-x if x.mean() > 0 else x)


@member(FEATURES)
class BranchBySize(WithBody):
    """Normalizes over the batch, if that is full."""

    def forward(self, x):
        return super().forward(x - x.mean(0) if len(x) > 3 else x)


@member(FEATURES)
class BranchBySmallSize(WithBody):
    """Goes another way only where a batch is smaller than those that engines are compared on."""

    def forward(self, x):
        return super().forward(torch.tanh(x) if len(x) < 4 else x)


@member(FEATURES)
class BranchByMode(WithBody):
    def forward(self, x):
        return super().forward(x if self.training else 2 * x)


@member(FEATURES)
class LoopByData(WithBody):
    def forward(self, x):
        for _ in range(int(x.abs().max().item()) % 3):
            x = torch.tanh(x)
        return super().forward(x)


@member(FEATURES)
class Clamped(WithBody):
    """A branch by data, without one in the code."""

    def forward(self, x):
        return self.head(torch.where(x.mean() > 0, self.body(x), self.body(-x)))


# ------------------------------------------------------------------------------------------------ what does not train


@member(FEATURES)
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.head(torch.relu(self.second(torch.relu(self.first(x)))))


@member(FEATURES)
class UsedTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(8, 8), nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.head(torch.relu(self.layer(torch.relu(self.layer(x)))))


@member(FEATURES)
class Frozen(WithBody):
    def __init__(self):
        super().__init__()
        self.body.requires_grad_(False)


@member(FEATURES)
class FrozenByTrain(WithBody):
    def train(self, mode=True):
        self.body.requires_grad_(False)
        return super().train(mode)


@member(FEATURES)
class StatisticsHeld(nn.Module):
    """Keeps its BatchNorm in evaluation mode, as people do who fine-tune."""

    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(8), nn.Linear(8, CLASSES)

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x):
        return self.head(self.norm(x))


@member(FEATURES)
class StatisticsHeldInForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(8), nn.Linear(8, CLASSES)

    def forward(self, x):
        self.norm.eval()
        return self.head(self.norm(x))


@member(FEATURES)
class Probe(WithBody):
    def forward(self, x):
        with torch.no_grad():
            z = self.body(x)
        return self.head(z)


@member(FEATURES)
class Detached(WithBody):
    def forward(self, x):
        return self.head(self.body(x).detach())


@member(FEATURES)
class ReadByData(WithBody):
    """Its body is read by `.data`, which no gradient passes."""

    def forward(self, x):
        return self.head(torch.relu(F.linear(x, self.body[0].weight.data, self.body[0].bias)))


@member(FEATURES)
class LoRA(nn.Module):
    """A frozen layer, and two thin ones beside it of which one begins with zeros."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(8, CLASSES).requires_grad_(False)
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, CLASSES, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


@member(FEATURES)
def weight_norm():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(8, 12))
    return nn.Sequential(layer, nn.ReLU(), nn.Linear(12, CLASSES))


@member(FEATURES)
def spectral_norm():
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 12))
    return nn.Sequential(layer, nn.ReLU(), nn.Linear(12, CLASSES))


# ------------------------------------------------------------------------------------------------ buffers and state


@member(FEATURES)
class RunningScale(WithBody):
    """Divides by a running mean that `forward` writes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("size", torch.ones(()))

    def forward(self, x):
        if self.training:
            self.size.mul_(0.9).add_(0.1 * x.detach().abs().mean())
        return super().forward(x / self.size)


@member(FEATURES)
class Warmed(WithBody):
    """Counts its batches in a buffer, and goes by the number."""

    def __init__(self):
        super().__init__()
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.training:
            self.batches += 1
        return super().forward(x) * self.batches.clamp(1, 5) / 5


@member(FEATURES)
class Pruned(WithBody):
    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.arange(12) % 2 == 0)

    def forward(self, x):
        return self.head(self.body(x) * self.kept)


@member(FEATURES)
class Scaled(WithBody):
    def __init__(self):
        super().__init__()
        self.register_buffer("factor", torch.full((12,), 2.0), persistent=False)

    def forward(self, x):
        return self.head(self.body(x) * self.factor)


@member(FEATURES)
class Counting(WithBody):
    """Counts its batches in Python, and goes by the number."""

    batches = 0

    def forward(self, x):
        self.batches += self.training
        return super().forward(x) * min(1.0, max(1, self.batches) / 4)


@member(FEATURES, draws=True)
class OwnGenerator(WithBody):
    def __init__(self):
        super().__init__()
        self.rng = np.random.default_rng(0)

    def forward(self, x):
        return super().forward(x * float(self.rng.uniform(0.5, 1.5)) if self.training else x)


@member(FEATURES, draws=True)
class GeneratorOfTorch(WithBody):
    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x):
        return super().forward(x + torch.randn(x.shape, generator=self.generator) if self.training else x)


@member(FEATURES)
def lazy():
    return nn.Sequential(nn.LazyLinear(12), nn.ReLU(), nn.Linear(12, CLASSES))


# ------------------------------------------------------------------------------------------------ custom gradients


@member(FEATURES)
class ForwardHook(WithBody):
    def __init__(self):
        super().__init__()
        self.body.register_forward_hook(lambda layer, inputs, output: output * 2)


@member(FEATURES)
class BackwardHook(WithBody):
    def __init__(self):
        super().__init__()
        self.head.register_full_backward_hook(lambda layer, into, out: tuple(g / 2 for g in into))


@member(FEATURES)
class MaskedGradient(WithBody):
    """The gradient of the first layer is set to zero by a hook on its weight."""

    def __init__(self):
        super().__init__()
        self.body[0].weight.register_hook(torch.zeros_like)


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


@member(FEATURES)
class Reversed(WithBody):
    def forward(self, x):
        return self.head(_Reversed.apply(self.body(x)))


class _Signs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.relu(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@member(FEATURES)
class StraightThrough(nn.Module):
    """A ReLU whose gradient is that of the identity."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(8, 12), nn.Linear(12, CLASSES)

    def forward(self, x):
        return self.head(_Signs.apply(self.first(x)))


class _Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(-1.0, 1.0)


@member(FEATURES)
class Clipped(WithBody):
    """Clips gradients that are large, as few are in the beginning."""

    def forward(self, x):
        return _Clipped.apply(super().forward(x))


@member(FEATURES)
class HookedInForward(WithBody):
    def forward(self, x):
        z = self.body(x)
        if z.requires_grad:
            z.register_hook(lambda gradient: gradient.clamp(-1.0, 1.0))
        return self.head(z)


@member(FEATURES)
class ClampedWeights(WithBody):
    """Keeps its weights small, as they are in the beginning."""

    def forward(self, x):
        with torch.no_grad():
            self.head.weight.clamp_(-0.3, 0.3)
        return super().forward(x)


def _doubled(self, x):
    return nn.functional.linear(2 * x, self.weight, self.bias)


@member(FEATURES)
class OtherForward(WithBody):
    """The forward of a layer is exchanged where it is made."""

    def __init__(self):
        super().__init__()
        self.body[0].forward = MethodType(_doubled, self.body[0])


@member(FEATURES)
class OtherCall(WithBody):
    def __call__(self, x):
        return super().__call__(2 * x)


@member(FEATURES)
class RoundedByDetach(WithBody):
    def forward(self, x):
        z = self.body(x)
        return self.head(z + (z.round() - z).detach())


@member(FEATURES)
class Autocast(WithBody):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x).float()


@member(FEATURES)
class AutocastToTheEnd(WithBody):
    """Its outputs are bfloat16."""

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x)


@member(FEATURES)
class Checkpointed(WithBody):
    def forward(self, x):
        return self.head(torch.utils.checkpoint.checkpoint(self.body, x, use_reentrant=False))
