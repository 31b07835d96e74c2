"""The engine in C on images: every layer as torch has it, and faults that are found."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from fedreach.engines.native import library, trainer
from fedreach.engines.native.trainer import Native, layer_table
from fedreach.engines.recognition import NotAChainError, chain_of
from fedreach.engines.sequential import Sequential
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.solvers import FedAvg

from .dropped import Dropped
from .images import MODELS
from .kernels import CORRECTED, IDS, IMAGES, PLAIN, SIZES, engine, is_noticed, must_judge_as_torch

model, moved = IMAGES.model, IMAGES.moved


@pytest.mark.parametrize("how", [PLAIN, CORRECTED], ids=["plain", "corrected"])
@pytest.mark.parametrize("kind", ["features", "image"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.sampled(5)
def test_every_layer_trains_as_torch_trains_it(name, kind, how, federated):
    module, shape = model(name)
    IMAGES.must_train_as_torch(module, IMAGES.data(federated, shape, kind=kind), how)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.sampled(5)
def test_it_judges_images_as_torch_does(name, federated):
    module, shape = model(name)
    data, index = federated((150,), shape, "image"), np.arange(150)  # more than it predicts at a time
    must_judge_as_torch(engine(Native, module, data), engine(Sequential, module, data), index)


def test_a_client_trains_to_the_same_bits_alone_and_beside_others(federated):
    module, shape = model("norms")
    made = engine(Native, module, federated(SIZES, shape))
    together = made.train(made.initial, IDS, 1, 0.1).update
    for some in ([0], [3], [1, 2]):
        assert made.train(made.initial, np.array(some), 1, 0.1).update.tobytes() == together[some].tobytes()


class Counted:
    """The library, which counts what `train` returns: 0 where time was up."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        found = getattr(library.library(), name)
        return found if name != "train" else lambda *given: self.calls.append(found(*given)) or self.calls[-1]


@pytest.mark.parametrize("how", [PLAIN, CORRECTED], ids=["plain", "corrected"])
@pytest.mark.parametrize("look", [1, 10**6])
def test_a_large_client_is_trained_in_parts_to_the_same_bits(how, look, federated, monkeypatch):
    module, shape = model("borders")
    whole, data = moved(Native, module, federated(SIZES, shape), how), federated(SIZES, shape)
    monkeypatch.setattr(trainer, "SECONDS", 0.0)
    monkeypatch.setattr(trainer, "LOOK", look)
    made = engine(Native, module, data, *how)
    made.trainer.library = counted = Counted()
    parts = made.train(made.initial, IDS, 2, 0.05)
    assert counted.calls.count(0) > 5
    assert counted.calls[-1] == 1
    assert parts.update.tobytes() == whole.update.tobytes()
    np.testing.assert_allclose(parts.loss, whole.loss, rtol=1e-12)
    np.testing.assert_array_equal(parts.steps, whole.steps)


def test_between_clients_of_one_step_each_ctrl_c_is_heard_too(federated, monkeypatch):
    module, shape = model("borders")
    monkeypatch.setattr(trainer, "SECONDS", 0.0)
    monkeypatch.setattr(trainer, "LOOK", 1)
    made = engine(Native, module, federated(SIZES, shape), LocalSGD(batch_size=5, steps=1), FedAvg())
    made.trainer.library = counted = Counted()
    made.train(made.initial, IDS, 2, 0.05)
    assert counted.calls.count(0) >= len(IDS) - 1


@pytest.mark.parametrize("name", ["few_filters", "windows", "without_pooling", "norms"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_number_survives_every_layer(name, bad, federated):
    module, shape = model(name)
    data = federated((20, 20), shape)
    data.dataset.train_x[data.train[1][0], :, 1, 1] = bad
    trained = moved(Native, module, data, (LocalSGD(batch_size=20), FedAvg()), ids=np.arange(2))
    assert trained.finite.tolist() == [True, False] == np.isfinite(trained.update).all(axis=1).tolist()


def test_of_equal_places_the_first_passes_the_gradient(federated):
    data = federated(SIZES, (1, 8, 8))
    for pool, numbers in ((nn.MaxPool2d(2), 27), (nn.MaxPool2d(3, 1), 75)):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Conv2d(1, 3, 2), pool, nn.Flatten(), nn.Linear(numbers, 3))
        nn.init.zeros_(module[0].weight)  # all places are equal, and what they have seen is not
        one, other = (
            moved(kind, module, data, (LocalSGD(batch_size=13), FedAvg())).update for kind in (Sequential, Native)
        )
        np.testing.assert_allclose(other, one, rtol=0, atol=1e-6)


# -------------------------------------------------------------------------------------------------------- dropout


def dropping(of_images, of_rows):
    return nn.Sequential(
        nn.Conv2d(2, 5, 3),
        of_images,
        nn.ReLU(),
        nn.Conv2d(5, 4, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 9),
        nn.ReLU(),
        of_rows,
        nn.Linear(9, 3),
    )


def test_what_is_dropped_is_drawn_from_names_and_the_way_back_drops_the_same(federated):
    data, client = federated((5, 5), (2, 8, 8)), 1
    torch.manual_seed(0)
    module = dropping(nn.Dropout(0.3), nn.Dropout(0.5))
    by_names = dropping(Dropped(1, 0.3, client), Dropped(3, 0.5, client))
    by_names.load_state_dict(module.state_dict())
    whole = (LocalSGD(batch_size=10, epochs=1), FedAvg())
    made, oracle = engine(Native, module, data, *whole), engine(Sequential, by_names, data, *whole)
    found, expected = (e.train(e.initial, np.array([client]), 2, 0.05) for e in (made, oracle))
    np.testing.assert_allclose(found.update, expected.update, rtol=0, atol=1e-6)
    assert abs(found.update - made.train(made.initial, np.array([client]), 3, 0.05).update).max() > 1e-4
    plain = engine(Sequential, module, data)
    np.testing.assert_allclose(
        made.predict(made.initial, "train", np.arange(5))[1],
        plain.predict(made.initial, "train", np.arange(5))[1],
        atol=1e-6,
    )


def test_no_probability_no_dropout(federated):
    torch.manual_seed(0)
    data, module = federated(SIZES, (2, 8, 8)), dropping(nn.Dropout(0.0), nn.Dropout(0.0))
    one, other = (moved(kind, module, data).update for kind in (Sequential, Native))
    np.testing.assert_allclose(other, one, rtol=0, atol=1e-6)


# ------------------------------------------------------------------------------------------------ what it refuses


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()), "its last layer is not linear"),
        (nn.Sequential(nn.Dropout(), nn.Flatten(), nn.Linear(256, 3)), "a dropout does not follow"),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Dropout(1.0), nn.Flatten(), nn.Linear(392, 3)), "probability 1"),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2, ceil_mode=True)), "ceil_mode"),
        (nn.Sequential(nn.Conv2d(1, 2, 3, dilation=2)), "dilation"),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), "is not trained"),
        (nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4, 3)), "more than one output position"),
        (nn.Sequential(nn.AvgPool2d(2, divisor_override=3), nn.Conv2d(1, 2, 3)), "does not divide by the size"),
    ],
)
def test_what_c_does_not_know_is_left_to_torch(module, reason):
    with pytest.raises(NotAChainError, match=reason):
        layer_table(chain_of(module, (1, 16, 16)))


# ------------------------------------------------------------------------------------------------- planted faults

FAULTS = {
    "the second row of a window is the first": ("lanes.h", "under = top + low", "under = top"),
    "ties go to the last place": ("lanes.h", "(sum[i][p] > best)", "(sum[i][p] >= best)"),
    "a bias is forgotten": ("lanes.h", "sum[i][p] = *(const LANE *)bias", "sum[i][p] = (LANE){0}"),
    "the last row of a filter moves nothing": (
        "lanes.h",
        "rows - r < pieces ? rows - r : pieces;",
        "rows - r < pieces ? rows - r : pieces - 1;",
    ),
    "gradients pass where max(0, y) is 0": (
        "convolution.h",
        "if (l->relu) keep_where_positive(width * filters, y",
        "if (0) keep_where_positive(width * filters, y",
    ),
    "a pooled gradient goes to the other column": (
        "convolution.h",
        "{0, right / 2, down / 2, down / 2 + right / 2}",
        "{right / 2, 0, down / 2, down / 2 + right / 2}",
    ),
    "pooled gradients pass where max(0, y) is 0": (
        "convolution.h",
        "if (l->relu)\n        for (int64_t i = 0; i < high; i++) keep_where_positive",
        "if (0)\n        for (int64_t i = 0; i < high; i++) keep_where_positive",
    ),
    "strides are forgotten on the way back": (
        "convolution.h",
        "dx.at + (i * l->down + k) * dx.row;",
        "dx.at + (i + k) * dx.row;",
    ),
    "filters are not turned round": ("convolution.h", "(l->rows - 1 - k) * piece", "k * piece"),
    "the zeros around gradients are of the wrong side": (
        "convolution.h",
        "(l->columns - 1 - l->left) * filters",
        "l->left * filters",
    ),
    "a shortcut takes every place": (
        "shortcut.h",
        "i * l->source_down * source.row;\n        float *out",
        "i * source.row;\n        float *out",
    ),
    "a shortcut meets the first channels": ("shortcut.h", "out[j * c + before + k]", "out[j * c + k]"),
    "nothing passes back through a shortcut": ("shortcut.h", "+= g[j * c + k];", "+= 0;"),
    "gradients pass through a shortcut where max(0, y) is 0": ("shortcut.h", "if (l->relu) keep", "if (0) keep"),
    "of a norm only the first vector of channels is summed": (
        "norm.h",
        "*(vector *)(sums + k) = sum;",
        "*(vector *)(sums + k) = k ? (vector){0} : sum;",
    ),
    "biases of filters do not move": (
        "convolution.h",
        "bias[c] += g[j * filters + c]",
        "bias[c] += 0 * g[j * filters + c]",
    ),
    "inputs of a layer get no gradient": (
        "convolution.h",
        "to[j * step + t] += space->products",
        "to[j * step + t] = space->products",
    ),
    "a mean divides by the places within": (
        "pooling.h",
        "float share = 1.0f / (float)(l->rows * l->columns);",
        "float share = 1.0f / (float)(l->rows);",
    ),
    "a maximum forgets the border": (
        "pooling.h",
        "where[k] / l->columns;",
        "where[k] / l->columns + (l->above > 0 && i > 0);",
    ),
    "variances lack what is added": ("norm.h", "sum / all + (float)l->amount", "sum / all + 0.1f"),
    "a norm passes gradients as if it had no mean": ("norm.h", "less = -at(mean_passed + k)", "less = {0}"),
    "the factors of a norm do not move": ("norm.h", "gradient[k] += along[k];", "gradient[k] += 0;"),
    "channels come backwards to the dense layer": (
        "model.h",
        "weights + k * wide, c * wide);",
        "weights + (c - 1 - k) * wide, c * wide);",
    ),
    "gradients of the last batch are kept": (
        "passes.h",
        "memset(gradients, 0, sizeof *to * model->begin[model->images]);",
        "",
    ),
    "gradients of windows are added to those of the last example": (
        "passes.h",
        "kind == MAXIMUM || kind == MEAN ||",
        "",
    ),
    "gradients of maxima are added to the last example's": (
        "passes.h",
        "(kind == CONVOLUTION && !model->space.turned[l])",
        "(kind == CONVOLUTION && !model->layers[l].pooled && !model->space.turned[l])",
    ),
    "gradients far apart are added to the last example's": (
        "passes.h",
        "(kind == CONVOLUTION && !model->space.turned[l])",
        "(kind == CONVOLUTION && model->layers[l].pooled)",
    ),
    "a step begins at the first batch again": ("training.c", "next * batch;", "0;"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_planted_in_a_kernel_is_found(fault, federated, tmp_path, monkeypatch):
    check = test_every_layer_trains_as_torch_trains_it
    checks = [
        *(partial(check, name, "features", PLAIN, federated) for name in MODELS),
        partial(test_of_equal_places_the_first_passes_the_gradient, federated),
        partial(test_a_large_client_is_trained_in_parts_to_the_same_bits, PLAIN, 1, federated, monkeypatch),
    ]
    assert is_noticed(FAULTS[fault], checks, tmp_path), f"nobody noticed that {fault}"
