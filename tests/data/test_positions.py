"""Labels at each position, and several inputs a sample, are refused at every door with what is possible instead."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import nn

import fedreach as fr
from fedreach.data.datasets import from_npz
from fedreach.data.federated import FederatedData
from fedreach.errors import ConfigError

TOKENS = np.random.default_rng(0).integers(0, 9, (12, 5))
IDS = ["a", "b", "c"] * 4
POSITIONS = "no label at each position; got shape (12, 5). Make samples of positions"
ONE = re.compile(r"one array|takes? apart")


class Samples(torch.utils.data.Dataset):
    """Makes each sample by a function."""

    def __init__(self, make):
        self.make = make

    def __len__(self):
        return 12

    def __getitem__(self, number):
        if number >= 12:
            raise IndexError
        return self.make(number)


def npz(folder):
    np.savez(folder / "mine.npz", x=TOKENS.astype(np.float32), y=TOKENS)
    return from_npz(folder / "mine.npz")


def of_torch(make):
    return FederatedData.from_torch(Samples(make), clients=IDS, kind="tokens")


def hugging(**named):
    datasets = pytest.importorskip("datasets")
    table = {"client": IDS, "tokens": TOKENS.tolist(), "mask": TOKENS.tolist(), "labels": TOKENS.tolist()}
    ds = datasets.Dataset.from_dict({**table, "label": [0, 1] * 6})
    return FederatedData.from_huggingface(ds, client="client", kind="tokens", **named)


def flower(examples):
    pytest.importorskip("flwr")
    from fedreach.flower import ClientData

    return ClientData(examples, num_classes=9).federated(0)


@pytest.mark.parametrize(
    "door",
    [
        lambda folder: fr.from_arrays(TOKENS, TOKENS, kind="tokens"),
        lambda folder: fr.from_arrays(TOKENS, np.where(TOKENS > 4, -100, TOKENS), kind="tokens", num_classes=9),
        npz,
        lambda folder: of_torch(lambda i: (TOKENS[i], torch.from_numpy(TOKENS[i]))),
        lambda folder: FederatedData.from_clients({"a": (TOKENS, TOKENS)}, kind="tokens"),
        lambda folder: hugging(inputs="tokens", label="labels"),
        lambda folder: flower((TOKENS, TOKENS)),
    ],
)
def test_labels_at_each_position_are_refused_with_what_to_do(tmp_path, door):
    with pytest.raises(fr.FedReachError, match=re.escape(POSITIONS)):
        door(tmp_path)


PAIR = torch.zeros(3), torch.zeros(2)


@pytest.mark.parametrize(
    "door",
    [
        lambda: fr.from_arrays({"a": TOKENS}, TOKENS[:, 0]),
        lambda: fr.from_arrays((np.zeros((12, 3)), np.zeros((12, 2))), TOKENS[:, 0]),
        lambda: of_torch(lambda i: (PAIR, i % 2)),
        lambda: of_torch(lambda i: ({"a": PAIR[0], "b": PAIR[1]}, i % 2)),
        lambda: of_torch(lambda i: (*PAIR, i % 2)),
        lambda: of_torch(lambda i: {"input_ids": PAIR[0], "labels": i % 2}),
        lambda: FederatedData.from_clients({"a": ({"q": np.zeros((4, 3))}, [0, 1, 0, 1])}),
        lambda: FederatedData.from_clients({"a": ((np.zeros((4, 3)), np.zeros((4, 2))), [0, 1, 0, 1])}),
        lambda: hugging(inputs=["tokens", "mask"], label="label"),
        lambda: flower(Samples(lambda i: (PAIR, i % 2))),
    ],
)
def test_several_inputs_are_refused_with_what_to_do(door):
    with pytest.raises(fr.FedReachError, match=ONE):
        door()


class EveryPosition(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.last = nn.Embedding(9, 4), nn.Linear(4, 9)

    def forward(self, x):
        return self.last(self.words(x))


def test_a_model_that_predicts_at_each_position_is_refused_with_what_to_do():
    data = fr.from_arrays(TOKENS, TOKENS[:, 0], kind="tokens", num_classes=9).partition("iid", clients=3)
    with pytest.raises(ConfigError, match=r"got \(2, 5, 9\)\. One for each position is not trained: take one"):
        list(fr.run(data, model=EveryPosition, rounds=1, cohort=1))
    assert list(fr.run(data, model={"name": EveryPosition, "output": lambda y: y[:, -1]}, rounds=1, cohort=1))


def test_joined_inputs_are_taken_apart_by_the_model():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Linear(3, 4), nn.Linear(2, 4)

        def forward(self, x):
            return self.one(x[:, :3]) + self.other(x[:, 3:])

    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=(12, 3)), rng.normal(size=(12, 2))], axis=1)
    data = fr.from_arrays(x, TOKENS[:, 0] % 4, num_classes=4).partition("iid", clients=3)
    assert list(fr.run(data, model=Both, rounds=1, cohort=1))
