"""Small models of tokens with every kind of LSTM that the engine in C knows, and what it reads of its result."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from fedreach.engines.models.networks import build

CLASSES = 12


class Reads(nn.Module):
    """An embedding, LSTM layers one after the other, and linear layers on the last output."""

    def __init__(self, embedding: int, *layers: nn.LSTM, last: nn.Module, state: bool = False, tokens: int = CLASSES):
        super().__init__()
        self.embed, self.layers, self.last = nn.Embedding(tokens, embedding), nn.ModuleList(layers), last
        self.state = state

    def forward(self, tokens: Tensor) -> Tensor:
        outputs = self.embed(tokens)
        for layer in self.layers:
            outputs, (h, _) = layer(outputs)
        return self.last(h[-1] if self.state else outputs[:, -1, :])


def lstm(inputs: int, outputs: int, **options: object) -> nn.LSTM:
    return nn.LSTM(inputs, outputs, batch_first=True, **options)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int]]] = {
    "as in LEAF": (lambda: build("lstm", (6,), CLASSES, seed=0, options={"embedding": 3, "hidden": 5}), (6,)),
    "more units than a vector": (
        lambda: build("lstm", (9,), CLASSES, seed=0, options={"embedding": 17, "hidden": 37, "layers": 3}),
        (9,),
    ),
    "whole vectors": (
        lambda: build("lstm", (5,), CLASSES, seed=0, options={"embedding": 16, "hidden": 32, "layers": 1}),
        (5,),
    ),
    "narrower and narrower": (
        lambda: Reads(
            8,
            lstm(8, 20, bias=False),
            lstm(20, 9),
            last=nn.Sequential(nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, CLASSES)),
        ),
        (7,),
    ),
    "by its state": (lambda: Reads(4, lstm(4, 18, num_layers=2), last=nn.Linear(18, CLASSES), state=True), (4,)),
    "one token": (lambda: Reads(4, lstm(4, 6, num_layers=2), last=nn.Linear(6, CLASSES)), (1,)),
    "rare tokens": (lambda: Reads(4, lstm(4, 6), last=nn.Linear(6, CLASSES, bias=False), tokens=900), (30,)),
}
