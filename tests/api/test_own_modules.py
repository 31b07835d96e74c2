"""The table of docs/components.md: which engine trains which custom modules."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedreach as fr

PAGE = (Path(__file__).parents[2] / "docs" / "components.md").read_text(encoding="utf-8")
HEAD, *ROWS = re.findall(
    r"^\| (.*?) \| (.*?) \| (.*?) \| (.*?) \| (.*?) \|$", PAGE[PAGE.index("| a module with |") :], re.M
)
ENGINES = HEAD[1:]
CAN = {row[0]: dict(zip(ENGINES, row[1:], strict=True)) for row in ROWS if row[0] != "---"}


class Dense(nn.Module):
    """Two layers, with something between them."""

    def __init__(self, between: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.between, self.last = nn.Linear(64, 12), between or nn.Identity(), nn.Linear(12, 10)

    def forward(self, x):
        return self.last(self.between(torch.relu(self.first(x.flatten(1)))))


class Functional(Dense):
    def forward(self, x):
        return self.last(F.dropout(torch.relu(self.first(x.flatten(1))), 0.3, self.training))


class Asking(Dense):
    def forward(self, x):
        hidden = torch.relu(self.first(x.flatten(1)))
        return self.last(hidden if hidden.sum() > 0 else -hidden)


class Noisy(Dense):
    def forward(self, x):
        return super().forward(x + torch.rand_like(x) / 9 if self.training else x)


class Hooked(Dense):
    def __init__(self) -> None:
        super().__init__()
        self.first.register_forward_hook(lambda layer, inputs, output: output / 2)


class Probe(Dense):
    def forward(self, x):
        with torch.no_grad():
            hidden = torch.relu(self.first(x.flatten(1)))
        return self.last(hidden)


class Images(nn.Sequential):
    def __init__(self, norm: bool = False) -> None:
        between = [nn.GroupNorm(2, 4)] if norm else []
        conv = nn.Conv2d(1, 4, 3, padding=1)
        super().__init__(conv, *between, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm, self.last = nn.Embedding(16, 8), nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 10)

    def forward(self, x):
        return self.last(self.lstm(self.embedding(x))[0][:, -1])


MODULES: dict[str, Any] = {
    "`Linear`, `ReLU`": Dense,
    "`Conv2d`, `MaxPool2d`": Images,
    "`Dropout`": lambda: Dense(nn.Dropout(0.3)),
    "`F.dropout(x, p, self.training)`": Functional,
    "`GroupNorm`": lambda: Images(norm=True),
    "`LayerNorm`": lambda: Dense(nn.LayerNorm(12)),
    "`BatchNorm1d`, with `drop_last`": lambda: Dense(nn.BatchNorm1d(12)),
    "`LSTM`": Words,
    "`if` on tensor values": Asking,
    "random numbers other than dropout": Noisy,
    "hooks, custom `train()` or gradients": Hooked,
    "code under `torch.no_grad()`": Probe,
}
LOCAL: dict[str, dict[str, Any]] = {
    "plain": {},
    "steps": {"steps": 3},
    "momentum": {"momentum": 0.9, "weight_decay": 1e-3},
    "clip": {"clip_norm": 0.5},
    "exponential": {"schedule": "exponential", "decay": 0.5},
    "cosine": {"schedule": "cosine", "decay": 0.1},
}


def data(words: bool) -> fr.PartitionSpec:
    if not words:
        return fr.load("digits").partition("iid", clients=8, participants=4)
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 16, (200, 6)).astype(np.uint8)
    return fr.from_arrays(tokens, tokens[:, -1] % 10, kind="tokens").partition("iid", clients=8, participants=4)


def last(module: str, engine: str, **local: Any) -> float:
    """Return the loss of unseen clients after two rounds."""
    given = {"batch_size": 16, **local} | ({"drop_last": True} if "BatchNorm" in module else {})
    spec = data(module == "`LSTM`")
    rounds = fr.run(spec, model=MODULES[module], rounds=2, cohort_size=4, engine={"name": engine}, local=given)
    return float([*rounds][-1]["unseen_loss"])


def tried(module: str, engine: str) -> float | fr.FedReachError:
    """Return the same, or how it is refused."""
    try:
        return last(module, engine)
    except fr.FedReachError as error:
        return error


def test_the_table_names_the_modules_that_are_tried():
    assert list(CAN) == list(MODULES)
    assert list(ENGINES) == ["native", "manual", "sequential", "vmap"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("module", CAN)
def test_engines_train_what_the_table_says_and_refuse_the_rest_with_a_reason(module):
    losses = {"sequential": last(module, "sequential")}
    for engine, can in CAN[module].items():
        if can == "yes":
            losses[engine] = last(module, engine)
            continue
        found = tried(module, engine)
        if isinstance(found, fr.FedReachError):
            assert re.search(r"engine.name = |vmap", str(found))
        else:  # it gives way to `sequential`
            assert found == losses["sequential"]
    assert last(module, "auto") == pytest.approx(losses["sequential"], rel=0.1)
    if "ropout" not in module:  # its streams differ
        assert [*losses.values()] == pytest.approx([losses["sequential"]] * len(losses), rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("module", ["`Linear`, `ReLU`", "`Dropout`", "`LSTM`", "`GroupNorm`"])
def test_each_way_to_train_goes_with_each_engine_and_changes_what_is_trained(module):
    for engine in (engine for engine, can in CAN[module].items() if can == "yes"):
        losses = {name: last(module, engine, **options) for name, options in LOCAL.items()}
        assert len(set(losses.values())) == len(LOCAL), (engine, losses)
