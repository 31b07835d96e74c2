"""The engine in C on images: every layer as torch has it, the same bits whatever compiled it, faults that are found."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import zlib
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedreach.engines import Native, Sequential, Task, TorchEngine
from fedreach.engines.native import library
from fedreach.engines.native import trainer as native
from fedreach.engines.native.table import layer_table
from fedreach.engines.recognition import NotAChainError, chain_of
from fedreach.errors import ConfigError, TrainingError
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.solvers import FedAvg, FedProx

from .images import MODELS

SIZES, IDS = (13, 2, 8, 6), np.arange(4)
PLAIN = (LocalSGD(batch_size=4, epochs=2), FedAvg())
CORRECTED = (LocalSGD(batch_size=5, momentum=0.5, weight_decay=0.01, clip_norm=1.0), FedProx(mu=0.1))


def model(name):
    make, shape = MODELS[name]
    torch.manual_seed(1)
    return make(), shape


def engine(kind, module, data, local=PLAIN[0], solver=PLAIN[1]):
    return TorchEngine(kind, Task(module, data, solver, local, seed=3))


def moved(kind, module, data, how=PLAIN, ids=IDS):
    made = engine(kind, module, data, *how)
    return made.train(made.initial, ids, 2, 0.05)


@pytest.mark.parametrize("how", [PLAIN, CORRECTED], ids=["plain", "corrected"])
@pytest.mark.parametrize("kind", ["features", "image"])
@pytest.mark.parametrize("name", MODELS)
def test_every_layer_trains_as_torch_trains_it(name, kind, how, federated, monkeypatch):
    monkeypatch.setattr(native.np, "empty", lambda shape, dtype=float: np.full(shape, 7, dtype))  # what memory may hold
    module, shape = model(name)
    data = federated(SIZES, shape, kind)
    one, other = (moved(kind_, module, data, how) for kind_ in (Sequential, Native))
    most = abs(one.update).max()
    assert most > 5e-3
    np.testing.assert_allclose(other.update / most, one.update / most, rtol=0, atol=1e-5)
    np.testing.assert_allclose(other.loss, one.loss, rtol=1e-5)
    np.testing.assert_array_equal(other.steps, one.steps)


@pytest.mark.parametrize("name", MODELS)
def test_it_judges_images_as_torch_does(name, federated):
    module, shape = model(name)
    data, index = federated((150,), shape, "image"), np.arange(150)  # more than it predicts at a time
    found, as_torch = (engine(kind, module, data) for kind in (Native, Sequential))
    (right, loss), (expected, expected_loss) = (e.predict(e.initial, "train", index) for e in (found, as_torch))
    np.testing.assert_allclose(loss, expected_loss, atol=1e-5)
    np.testing.assert_array_equal(right, expected)
    logits, of_torch = (e.logits(e.initial, "train", index) for e in (found, as_torch))
    np.testing.assert_allclose(logits, of_torch, atol=1e-5)
    (own,), (torchs,) = (e.outputs(e.initial, e.initial[None] / 7, IDS[:1], before=True) for e in (found, as_torch))
    np.testing.assert_allclose(own.logits, torchs.logits, atol=1e-5)
    np.testing.assert_allclose(own.before, torchs.before, atol=1e-5)


def test_a_client_trains_to_the_same_bits_alone_and_beside_others(federated):
    module, shape = model("norms")
    made = engine(Native, module, federated(SIZES, shape))
    together = made.train(made.initial, IDS, 1, 0.1).update
    for some in ([0], [3], [1, 2]):
        assert made.train(made.initial, np.array(some), 1, 0.1).update.tobytes() == together[some].tobytes()


@pytest.mark.parametrize("how", [PLAIN, CORRECTED], ids=["plain", "corrected"])
def test_a_large_client_is_trained_in_parts_to_the_same_bits(how, federated, monkeypatch):
    module, shape = model("borders")
    whole, data = moved(Native, module, federated(SIZES, shape), how), federated(SIZES, shape)
    monkeypatch.setattr(native, "MAX_PRODUCTS", 3 * 10**6)
    calls, made = [], engine(Native, module, data, *how)

    class Counted:
        def __getattr__(self, name):
            found = getattr(library.library(), name)
            return found if name != "train" else lambda *given: calls.append(given[6:8]) or found(*given)

    made.trainer.library = Counted()
    parts = made.train(made.initial, IDS, 2, 0.05)
    assert len(calls) > 5
    assert {begin for begin, _ in calls} > {0}
    assert parts.update.tobytes() == whole.update.tobytes()
    np.testing.assert_allclose(parts.loss, whole.loss, rtol=1e-12)
    np.testing.assert_array_equal(parts.steps, whole.steps)


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


class Dropped(nn.Module):
    """Drops what the engine in C drops in step 0 of round 2, drawn by NumPy."""

    def __init__(self, layer, probability, client, rows=1):
        super().__init__()
        words = [3, 0, 0, 0, zlib.crc32(b"dropout"), 2, client]
        self.key = np.random.Philox(np.random.SeedSequence(words)).state["state"]["key"]
        self.layer, self.probability, self.rows = layer, probability, rows

    def _of(self, layer, example, numbers):
        kept = []
        for block in range(-(-numbers // 8)):
            counter = [block, example, 0, layer]
            generator = np.random.Philox(key=self.key, counter=_before(counter))
            words = generator.random_raw(4)
            kept += [int(word) >> shift & 0xFFFFFFFF for word in words for shift in (0, 32)]
        return np.array(kept[:numbers]) >= int(self.probability * 2**32)

    def forward(self, x):
        flat = x if x.ndim == 2 else x.permute(0, 2, 3, 1)  # channels last there
        kept = np.zeros(flat.shape, bool)
        for example in range(len(x)):
            if x.ndim == 2:
                kept[example] = self._of(self.layer, example, x.shape[1])
            else:
                for row in range(flat.shape[1]):
                    numbers = self._of(self.layer + 64 * (row + 1), example, flat[0, 0].numel())
                    kept[example, row] = numbers.reshape(flat.shape[2:])
        mask = torch.from_numpy(kept).float() / (1 - self.probability)
        return x * (mask if x.ndim == 2 else mask.permute(0, 3, 1, 2))


def _before(counter):
    """NumPy adds one to the counter before it draws."""
    number = sum(word << 64 * place for place, word in enumerate(counter)) - 1
    return np.array([number % 2**256 >> 64 * place & 2**64 - 1 for place in range(4)], np.uint64)


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
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Dropout(1.0), nn.Flatten(), nn.Linear(392, 3)), "leaves nothing"),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2, ceil_mode=True)), "a last window that is cut off"),
        (nn.Sequential(nn.Conv2d(1, 2, 3, dilation=2)), "dilation"),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), "is not trained"),
        (nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4, 3)), "more than one place"),
        (nn.Sequential(nn.AvgPool2d(2, divisor_override=3), nn.Conv2d(1, 2, 3)), "divides by another number"),
    ],
)
def test_what_c_does_not_know_is_left_to_torch(module, reason):
    with pytest.raises(NotAChainError, match=reason):
        layer_table(chain_of(module, (1, 16, 16)))


# ------------------------------------------------------------------------------- the same bits, and planted faults


@contextmanager
def compiled(monkeypatch, folder, *, options=(), sources=None):
    """Let engines use a library that is compiled otherwise."""
    with monkeypatch.context() as patch:
        patch.setattr(library, "_cache_folder", lambda: folder)
        patch.setattr(library, "OPTIONS", ("-O1", *library.OPTIONS[1:]))
        patch.setattr(library, "FOR_THIS_PROCESSOR", (options or ("-march=native",),))
        if sources is not None:
            patch.setattr(library, "SOURCES", sorted(sources.glob("*.c")))
            patch.setattr(library, "FOLDER", sources)
        library._found.cache_clear()
        yield
    library._found.cache_clear()


def fingerprints(federated):
    found = {}
    for name in MODELS:
        module, shape = model(name)
        for how in (PLAIN, CORRECTED):
            made = moved(Native, module, federated(SIZES, shape, "image"), how)
            found[name, how[0].momentum] = made.update.tobytes(), made.loss.tobytes()
    return found


needs_fma = pytest.mark.skipif(
    platform.machine() != "x86_64" or shutil.which("gcc") is None, reason="these are options of gcc for x86"
)


@needs_fma
@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [("-mavx2", "-mfma"), ("-march=native", "-O2"), ("-march=native", "-funroll-loops")]
)
def test_the_bits_do_not_depend_on_vectors_or_options(options, federated, tmp_path, monkeypatch):
    expected = fingerprints(federated)
    with compiled(monkeypatch, tmp_path, options=options):
        assert fingerprints(federated) == expected


@pytest.mark.slow
def test_the_bits_do_not_depend_on_the_compiler(federated, tmp_path, monkeypatch):
    pytest.importorskip("ziglang", reason="ziglang brings another compiler")
    expected = fingerprints(federated)
    monkeypatch.setenv("CC", f"{sys.executable} -m ziglang cc")
    with compiled(monkeypatch, tmp_path):
        assert fingerprints(federated) == expected


EMULATOR = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")


@pytest.mark.slow
@pytest.mark.parametrize("here", [True, False], ids=["here", "arm64"])
def test_arm64_gives_the_same_bits(here, federated, tmp_path):
    pytest.importorskip("ziglang", reason="ziglang compiles for other processors")
    if not here and EMULATOR is None:
        pytest.skip("qemu-aarch64 is not installed")
    zig, program = [sys.executable, "-m", "ziglang", "cc"], tmp_path / "program"
    target = ["-march=native"] if here else ["-target", "aarch64-linux-musl", "-static"]
    files = [Path(__file__).with_name("elsewhere.c"), *library.SOURCES]
    options = [word for word in library.OPTIONS if word not in ("-shared", "-fPIC")]
    subprocess.run([*zig, *options, *target, "-o", program, *files, "-lm"], check=True, capture_output=True)
    for name in MODELS:
        module, shape = model(name)
        for how in (PLAIN, CORRECTED):
            data = federated(SIZES, shape)
            made = engine(Native, module, data, *how)
            expected = made.train(made.initial, IDS, 2, 0.05).update
            given = asked(made.trainer, *how)
            command = [program] if here else [EMULATOR, program]
            done = subprocess.run(command, input=given, check=True, capture_output=True)
            assert done.stdout == expected.tobytes(), name


def asked(trainer, local, solver):
    """Return what `elsewhere.c` reads, for all clients."""
    table, ranges, samples = trainer.table, trainer.ranges, trainer.samples["train"]
    sizes = np.diff(ranges.offsets)
    x = ((samples.x * samples.factor + samples.offset) if samples.factor is not None else samples.x).numpy()
    x = x.astype(np.int64 if samples.kind == "tokens" else np.float32)
    words = native.words_of(3, 2)
    most = native.plan_size(int(sizes.max()), local)
    batch = min(local.batch_size, int(sizes.max()))
    heads = [
        *table.shape,
        len(x),
        x[0].nbytes // 4,
        batch,
        local.epochs,
        most,
        len(sizes),
        len(trainer.initial),
        len(words),
    ]
    order = np.resize(ranges.order, len(x))
    rates = [0.05, local.momentum, local.weight_decay, local.clip_norm or 0.0]
    pull = np.full(len(sizes), getattr(solver, "mu", 0.0), np.float32)
    parts = [np.array(heads, np.int64), table, x, samples.y.numpy(), np.array(rates), pull]
    parts += [order, ranges.offsets, words, trainer.initial]
    return b"".join(np.ascontiguousarray(part).tobytes() for part in parts)


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
    "a step begins at the first batch again": ("training.c", "plan += begin * batch;", ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_planted_in_a_kernel_is_found(fault, federated, tmp_path, monkeypatch):
    file, right, wrong = FAULTS[fault]
    sources = tmp_path / "sources"
    shutil.copytree(library.FOLDER, sources)
    text = (sources / file).read_text(encoding="utf-8")
    assert right in text
    (sources / file).write_text(text.replace(right, wrong), encoding="utf-8")
    with compiled(monkeypatch, tmp_path / "cache", sources=sources):
        found = 0
        for name, test in (
            *((name, test_every_layer_trains_as_torch_trains_it) for name in MODELS),
            ("", test_of_equal_places_the_first_passes_the_gradient),
            ("", test_a_large_client_is_trained_in_parts_to_the_same_bits),
        ):
            try:
                if name:
                    test(name, "features", PLAIN, federated, monkeypatch)
                elif "parts" in test.__name__:
                    test(PLAIN, federated, monkeypatch)
                else:
                    test(federated)
            except (AssertionError, ConfigError):
                found += 1
            except TrainingError:  # it diverges
                found += 1
            finally:
                monkeypatch.undo()  # what the test has changed
    assert found, f"nobody noticed that {fault}"
