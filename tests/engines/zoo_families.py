"""Members of the zoo that come from well-known families: Hugging Face's transformers, ResNet, U-Net, adapters.

All are made from a configuration, with random weights and without downloads.
"""

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreach.engines.models.outputs import TakeOutput

from .zoo import CLASSES, FEATURES, IMAGE, TOKENS, WithBody, member

# ------------------------------------------------------------------------------------------------ Hugging Face

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
TINY = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}


def classifier(name: str, **options: Any) -> nn.Module:
    """Return a classifier of Hugging Face by the first part of its class name; its output is the logits."""
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{name}Config")(num_labels=CLASSES, **options)
    kind = "ForImageClassification" if name == "ViT" else "ForSequenceClassification"
    module = getattr(transformers, f"{name}{kind}")(config)
    module.register_forward_hook(TakeOutput("logits"))
    return module


@member(TOKENS, slow=True)
def bert(**dropout):
    return classifier("Bert", vocab_size=CLASSES, max_position_embeddings=6, **TINY, **(dropout or NO_DROPOUT))


@member(TOKENS, slow=True)
def distilbert():
    sizes = {"dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 16, "max_position_embeddings": 6}
    return classifier(
        "DistilBert", vocab_size=CLASSES, dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0, **sizes
    )


@member(TOKENS, slow=True)
def gpt2():
    """A decoder, which takes the last position that is no padding."""
    sizes = {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 6, "pad_token_id": 0}
    return classifier("GPT2", vocab_size=CLASSES, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **sizes)


@member(IMAGE, slow=True)
def vit():
    return classifier("ViT", image_size=8, patch_size=4, num_channels=1, **TINY, **NO_DROPOUT)


# ------------------------------------------------------------------------------------------------ images


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut, which a 1 x 1 convolution projects where the size changes."""

    def __init__(self, before: int, after: int, stride: int):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        self.conv2, self.bn2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        self.downsample = None
        if stride > 1 or before != after:
            self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + shortcut)


class ResNet18(nn.Module):
    """He et al. (CVPR 2016), table 1, with shortcuts of option B, as torchvision has it."""

    def __init__(self, channels: int, classes: int):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        widths = [64, 64, 128, 256, 512]
        self.layers = nn.Sequential(
            *(
                nn.Sequential(ResidualBlock(before, after, 1 if after == before else 2), ResidualBlock(after, after, 1))
                for before, after in pairwise(widths)
            )
        )
        self.fc = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        return self.fc(self.layers(x).mean((2, 3)))


class TwoConvolutions(nn.Sequential):
    def __init__(self, before: int, after: int):
        super().__init__(
            nn.Conv2d(before, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1),
            nn.ReLU(),
        )


@member(IMAGE)
class DeepUNet(nn.Module):
    """Ronneberger et al. (2015), figure 1, with two levels: each up-convolution meets the features of its level."""

    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList([TwoConvolutions(1, 4), TwoConvolutions(4, 8)])
        self.bottom = TwoConvolutions(8, 16)
        self.up = nn.ModuleList([nn.ConvTranspose2d(16, 8, 2, stride=2), nn.ConvTranspose2d(8, 4, 2, stride=2)])
        self.joined = nn.ModuleList([TwoConvolutions(16, 8), TwoConvolutions(8, 4)])
        self.head = nn.Conv2d(4, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        skipped = []
        for level in self.down:
            skipped.append(x := level(x))
            x = F.max_pool2d(x, 2)
        x = self.bottom(x)
        for up, joined in zip(self.up, self.joined, strict=True):
            x = joined(torch.cat([skipped.pop(), up(x)], 1))
        return self.head(x).mean((2, 3))


# ------------------------------------------------------------------------------------------------ adapters


@member(FEATURES, slow=True)
def lora_by_peft():
    """Adapters of rank 2 around the layer of a frozen body; its head is trained whole."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["body.0"], modules_to_save=["head"])
    return peft.get_peft_model(WithBody(), config)


# ------------------------------------------------------------------------------------------------ normalized weights


@member(FEATURES)
def old_weight_norm():
    with warnings.catch_warnings(action="ignore"):  # torch: it is deprecated
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(8, 12)), nn.ReLU(), nn.Linear(12, CLASSES))


@member(FEATURES)
def old_spectral_norm():
    return nn.Sequential(nn.utils.spectral_norm(nn.Linear(8, 12)), nn.ReLU(), nn.Linear(12, CLASSES))


# ------------------------------------------------------------------------------------------------ narrow types


class Narrow(WithBody):
    """All of its parameters are of a narrow type, and it casts its inputs."""

    dtype = torch.bfloat16

    def __init__(self):
        super().__init__()
        self.to(self.dtype)

    def forward(self, x):
        return super().forward(x.to(self.dtype))


@member(FEATURES)
def bfloat16():
    return Narrow()


@member(FEATURES)
class Float16(Narrow):
    dtype = torch.float16


@member(FEATURES)
class NarrowBody(WithBody):
    """Its body is bfloat16, with a BatchNorm layer whose statistics are, too; its head is float32."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(self.body, nn.BatchNorm1d(12)).bfloat16()

    def forward(self, x):
        return self.head(self.body(x.bfloat16()).float())
