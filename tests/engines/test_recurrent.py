"""The engine in C on sequences: LSTM layers as torch has them, and faults that are found."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedreach._util.errors import ConfigError
from fedreach.engines.models.networks import build
from fedreach.engines.native import library, trainer
from fedreach.engines.native.trainer import Native, layer_table
from fedreach.engines.recognition import NotAChainError, chain_of
from fedreach.engines.sequential import Sequential
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.solvers import FedAvg

from .dropped import Dropped
from .kernels import CORRECTED, IDS, PLAIN, SEQUENCES, engine, is_noticed, must_judge_as_torch
from .sequences import CLASSES, MODELS, Reads, lstm

model, moved = SEQUENCES.model, SEQUENCES.moved


@pytest.mark.parametrize("how", [PLAIN, CORRECTED], ids=["plain", "corrected"])
@pytest.mark.parametrize("name", MODELS)
def test_every_lstm_trains_as_torch_trains_it(name, how, federated):
    module, shape = model(name)
    SEQUENCES.must_train_as_torch(module, SEQUENCES.data(federated, shape), how)


def test_long_windows_train_as_torch_trains_them(federated):
    """More rows than stay together in the cache, of batches that are full and that are not."""
    module = build("lstm", (80,), CLASSES, seed=0, options={"hidden": 20})
    data = SEQUENCES.data(federated, (80,), sizes=(40, 3))
    for batch in (7, 100):
        how = (LocalSGD(batch_size=batch, epochs=3), FedAvg())
        one, other = (moved(kind, module, data, how, np.arange(2)).update for kind in (Sequential, Native))
        np.testing.assert_allclose(other, one, rtol=0, atol=1e-5 * abs(one).max())


@pytest.mark.parametrize("name", MODELS)
def test_it_judges_sequences_as_torch_does(name, federated, monkeypatch):
    module, shape = model(name)
    data, index = SEQUENCES.data(federated, shape, (150,)), np.arange(150)  # more than it predicts at a time
    found, as_torch = (engine(kind, module, data) for kind in (Native, Sequential))
    monkeypatch.setattr(trainer, "SECONDS", 0.0)
    must_judge_as_torch(found, as_torch, index)


def test_a_client_trains_to_the_same_bits_alone_and_beside_others(federated):
    module, shape = model("more units than a vector")
    made = engine(Native, module, SEQUENCES.data(federated, shape))
    together = made.train(made.initial, IDS, 1, SEQUENCES.lr).update
    for some in ([0], [3], [1, 2]):
        assert made.train(made.initial, np.array(some), 1, SEQUENCES.lr).update.tobytes() == together[some].tobytes()


@pytest.mark.parametrize("how", [PLAIN, CORRECTED], ids=["plain", "corrected"])
def test_a_large_client_is_trained_in_parts_to_the_same_bits(how, federated, monkeypatch):
    module, shape = model("as in LEAF")
    data = SEQUENCES.data(federated, shape)
    whole = moved(Native, module, data, how)
    monkeypatch.setattr(trainer, "SECONDS", 0.0)
    monkeypatch.setattr(trainer, "LOOK", 1)
    parts = moved(Native, module, data, how)
    assert parts.update.tobytes() == whole.update.tobytes()
    np.testing.assert_allclose(parts.loss, whole.loss, rtol=1e-12)


def test_tokens_may_be_bytes_or_whole_numbers(federated):
    module, shape = model("by its state")
    data = SEQUENCES.data(federated, shape)
    as_bytes = moved(Native, module, data)
    object.__setattr__(data.dataset, "train_x", data.dataset.train_x.astype(np.int64))
    assert moved(Native, module, data).update.tobytes() == as_bytes.update.tobytes()


def test_what_is_no_number_survives_every_gate(federated):
    """Of a token that only one client sees; that row itself is none for all."""
    module, shape = model("by its state")
    data = SEQUENCES.data(federated, shape, (20, 20))
    data.dataset.train_x[data.train[0]] %= CLASSES - 1
    data.dataset.train_x[data.train[1][3], 0] = CLASSES - 1
    made = engine(Native, module, data)
    start = made.initial.copy()
    row = slice((CLASSES - 1) * 4, CLASSES * 4)
    start[row] = np.nan
    trained = made.train(start, np.arange(2), 2, SEQUENCES.lr)
    assert np.isfinite(trained.loss).tolist() == [True, False]
    assert not trained.finite.any()
    others = np.delete(trained.update, np.r_[row], axis=1)
    assert np.isfinite(others[0]).all()
    assert not np.isfinite(others[1][-12 * 19 :]).any()


def test_what_is_dropped_before_the_last_layer_is_drawn_from_names(federated):
    data, client = SEQUENCES.data(federated, (6,), (5, 5)), 1

    def made(dropout):
        torch.manual_seed(0)
        return Reads(4, lstm(4, 20, num_layers=2), last=nn.Sequential(dropout, nn.Linear(20, CLASSES)))

    module, by_names = made(nn.Dropout(0.3)), made(Dropped(2, 0.3, client))
    whole = (LocalSGD(batch_size=10, epochs=1), FedAvg())
    one, other = (
        moved(kind, which, data, whole, np.array([client])).update
        for kind, which in ((Sequential, by_names), (Native, module))
    )
    assert abs(one - moved(Native, made(nn.Dropout(0.0)), data, whole, np.array([client])).update).max() > 1e-4
    np.testing.assert_allclose(other, one, rtol=0, atol=1e-6)


def test_tokens_that_the_model_does_not_know_are_refused(federated):
    (module, shape), client = model("as in LEAF"), 0
    data = SEQUENCES.data(federated, shape)
    data.dataset.train_x[data.train[client].max(), 1] = CLASSES  # torch, which looks at two examples, finds it later
    with pytest.raises(ConfigError, match=r"Tokens must be less than 12, the model's vocabulary size; got 12"):
        engine(Native, module, data)


# --------------------------------------------------------------------------------------------------- what it knows


class Whole(Reads):
    """Uses what else an LSTM gives."""

    def __init__(self, how):
        super().__init__(4, lstm(4, 6), last=nn.Linear(6, CLASSES))
        self.how = how

    def forward(self, tokens):
        return self.last(self.how(self.layers[0](self.embed(tokens))))


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Whole(lambda result: result[0]), "uses more than the last output"),
        (Whole(lambda result: result[0][:, 0]), "uses more than the last output"),
        (Whole(lambda result: result[1][1][-1]), "uses more than the last output"),
        (Whole(lambda result: result[1][0][0]), "uses more than the last output"),
        (Whole(lambda result: result[0].mean(1)), "uses more than the last output"),
        (Whole(lambda result: torch.relu(result[0][:, -1])), "ReLU does not follow"),
        (Whole(lambda result: result[0][:, -1] + result[1][0][-1]), "not a subsampled or zero-padded image"),
        (Reads(4, lstm(4, 6, bidirectional=True), last=nn.Linear(12, CLASSES)), "is bidirectional"),
        (Reads(4, lstm(4, 6, num_layers=2, dropout=0.1), last=nn.Linear(6, CLASSES)), "has dropout"),
        (Reads(4, lstm(4, 6, proj_size=3), last=nn.Linear(3, CLASSES)), "a projection"),
        (Reads(4, nn.LSTM(4, 6), last=nn.Linear(6, CLASSES)), "is not batch_first"),
        (Reads(4, nn.GRU(4, 6, batch_first=True), last=nn.Linear(6, CLASSES)), "GRU"),
        (nn.Sequential(nn.Embedding(9, 4, padding_idx=0)), "unsupported option of nn.Embedding"),
        (nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(24, 3)), "flattening"),
        (nn.Sequential(nn.Embedding(9, 4), nn.ReLU()), "ReLU does not follow"),
        (nn.Sequential(nn.Linear(6, 4), nn.Embedding(9, 4)), "are not tokens"),
        (
            nn.Sequential(nn.Embedding(9, 4), nn.Dropout(), Reads(4, lstm(4, 6), last=nn.Linear(6, 3))),
            "are not tokens",
        ),
        (nn.Sequential(nn.Embedding(9, 4), lstm(4, 6)), "does not end with its last layer"),
        (nn.Sequential(lstm(4, 6), nn.Linear(6, 3)), "not all outputs"),
    ],
)
def test_what_c_does_not_know_is_left_to_torch(module, reason):
    with pytest.raises(NotAChainError, match=reason):
        layer_table(chain_of(module, (6,)))


def test_a_table_of_tokens_used_twice_is_left_to_torch():
    module = Reads(6, lstm(6, 6), last=nn.Linear(6, CLASSES, bias=False))
    module.last.weight = module.embed.weight
    with pytest.raises(NotAChainError, match="shares its weights"):
        chain_of(module, (6,))


# ----------------------------------------------------------------------------------------- gates, and planted faults


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no compiler")
def test_gates_keep_their_digits_and_what_is_no_number(tmp_path):
    made = tmp_path / "gates.so"
    source = Path(__file__).with_name("gates.c")
    folder = f"-I{library.FOLDER}"
    subprocess.run(["cc", *library.OPTIONS, "-march=native", folder, source, "-o", made, "-lm"], check=True)
    size = np.linspace(0, 1, 50_000) ** 4 * 86
    x = np.concatenate(
        [size, -size, [0.0, -0.0, 1e-30, -1e-30, 500, -500, np.inf, -np.inf, np.nan, 0, 0, 0, 0, 0, 0, 0]]
    )
    x = x.astype(np.float32)
    sigmoids, tangents = np.empty_like(x), np.empty_like(x)
    ctypes.CDLL(str(made)).gates(
        ctypes.c_int64(len(x)), *(ctypes.c_void_p(a.ctypes.data) for a in (x, sigmoids, tangents))
    )
    exact, many = x.astype(np.float64), slice(0, 100_000)
    for found, expected in ((sigmoids, 1 / (1 + np.exp(-exact[many]))), (tangents, np.tanh(exact[many]))):
        apart = abs(found[many] - expected) / np.spacing(abs(expected).astype(np.float32))
        assert apart.max() < 3  # units in the last place
    assert sigmoids[100_000:100_009].tolist() == pytest.approx([0.5, 0.5, 0.5, 0.5, 1, 0, 1, 0, np.nan], nan_ok=True)
    assert tangents[100_000:100_009].tolist() == pytest.approx([0, 0, 1e-30, -1e-30, 1, -1, 1, -1, np.nan], nan_ok=True)


FAULTS = {
    "a sigmoid forgets its sign": ("gates.h", "integers below = x < 0.0f;", "integers below = x < -1e9f;"),
    "a tangent forgets its sign": ("gates.h", "| ((integers)x & SIGN));\n}", ");\n}"),
    "a tangent is taken of half its argument": ("gates.h", "power(2.0f * ", "power(1.0f * "),
    "the second bias does not count": ("recurrent.h", "bias[j] + bias[wide + j]", "bias[j] + 0 * bias[wide + j]"),
    "the second bias does not move": (
        "recurrent.h",
        "layer->bias < 0 ? 0 : r->bias",
        "layer->bias < 0 || j >= wide ? 0 : r->bias",
    ),
    "panels of what is across are not filled up": ("panels.h", "if (some < PANEL) memset(", "if (0) memset("),
    "a tile forgets where it began": ("panels.h", "sum[i][j] = d ? ", "sum[i][j] = 0 ? "),
    "the gates are in another order": (
        "recurrent.h",
        "hyperbolic(*(const vector *)(in + 2 * units))",
        "hyperbolic(*(const vector *)(in + units))",
    ),
    "the cell forgets nothing": (
        "recurrent.h",
        "fused_each(forget, *(const vector *)(before + at)",
        "fused_each(0 * forget + 1, *(const vector *)(before + at)",
    ),
    "the last output is that of the time before": (
        "recurrent.h",
        "(times * m + i) * apart(units)",
        "((times - 1) * m + i) * apart(units)",
    ),
    "outputs of the last batch are kept": ("recurrent.h", "memset(outputs, 0, sizeof *last * m * states);", ""),
    "cells of the last batch are kept": ("recurrent.h", "memset(cells, 0, sizeof *last * m * states);", ""),
    "the way back does not pass tanh(c)": ("recurrent.h", "fused_each(-bound, bound, one)", "one"),
    "the way back does not pass through the cells": ("recurrent.h", "= along * forget;", "= 0 * along;"),
    "gradients of cells are kept": ("recurrent.h", "memset(r->dc, 0, sizeof *to * m * states);", ""),
    "an input gate passes what a forget gate does": ("recurrent.h", "along * made * (input", "along * output * (input"),
    "gradients reach into what fills up": ("recurrent.h", "dz[n] = 0; /* vectors", "dz[n] = 1; /* vectors"),
    "gradients of the next times are lost": ("recurrent.h", "memcpy(later, r->z, sizeof *to * m * gates);", ""),
    "outputs meet the gradients of their own time": (
        "recurrent.h",
        "r->outputs[l] + at * states, 1",
        "r->outputs[l] + (at + m) * states, 1",
    ),
    "a layer does not pass gradients below": ("recurrent.h", "r->passed + then : next", "r->passed : next"),
    "tokens that come twice count once": (
        "recurrent.h",
        "sum[j] += r->z[i * gates + j]",
        "sum[j] = r->z[i * gates + j]",
    ),
    "the table is not cleared": ("recurrent.h", "if (l == 1) memset(r->table, 0", "if (0) memset(r->table, 0"),
    "other tokens move": ("recurrent.h", "to + r->different[k] * padded(size) + j", "to + k * padded(size) + j"),
    "gradients of the last batch are kept": ("recurrent.h", "more = end < times;", "more = 1;"),
    "weights come untransposed": (
        "recurrent.h",
        "transposed(deep, l->outputs, flat + l->weight + deep * inputs",
        "transposed(deep, l->outputs, flat + l->weight",
    ),
    "the embedding is read elsewhere": (
        "recurrent.h",
        "flat + l->weight + i * l->outputs",
        "flat + i * l->outputs + 1",
    ),
    "tokens of the last batch are known": ("samples.h", "r->place[r->different[k]] = -1;", "(void)k;"),
    "rows of another example": (
        "samples.h",
        "r->tokens[t * m + i] = r->place[token]",
        "r->tokens[t * m + m - 1 - i] = r->place[token]",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_planted_in_a_kernel_is_found(fault, federated, tmp_path):
    check = test_every_lstm_trains_as_torch_trains_it
    checks = [partial(check, name, how, federated) for name in MODELS for how in (PLAIN, CORRECTED)]
    checks += [partial(test_long_windows_train_as_torch_trains_them, federated)]
    assert is_noticed(FAULTS[fault], checks, tmp_path), f"nobody noticed that {fault}"
