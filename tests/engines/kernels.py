"""What tests of the engine in C share: its models beside torch's, compiled in any way, and with faults."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from fedreach._util.errors import ConfigError, TrainingError
from fedreach.engines.engine import TorchEngine
from fedreach.engines.native import library, trainer
from fedreach.engines.native.trainer import Native
from fedreach.engines.protocols import Task
from fedreach.engines.sequential import Sequential
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.solvers import FedAvg, FedProx

from . import images, sequences

SIZES, IDS = (13, 2, 8, 6), np.arange(4)
PLAIN = (LocalSGD(batch_size=4, epochs=2), FedAvg())
CORRECTED = (LocalSGD(batch_size=5, momentum=0.5, weight_decay=0.01, clip_norm=1.0), FedProx(mu=0.1))


class Family(NamedTuple):
    """Small models, and the data and the learning rate that they train with."""

    models: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]]
    kind: str
    unscaled: str  # kind of data that reach the model as they are
    num_classes: int
    lr: float

    def model(self, name):
        """Return a model with the same weights every time, and the shape of its inputs."""
        make, shape = self.models[name]
        torch.manual_seed(1)
        return make(), shape

    def data(self, federated, shape, sizes=SIZES, kind=None):
        return federated(sizes, shape, kind or self.kind, num_classes=self.num_classes)

    def moved(self, kind, module, data, how=PLAIN, ids=IDS):
        made = engine(kind, module, data, *how)
        return made.train(made.initial, ids, 2, self.lr)

    def must_train_as_torch(self, module, data, how):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                trainer.np, "empty", lambda shape, dtype=float: np.full(shape, 7, dtype)
            )  # memory may hold it
            one, other = (self.moved(kind, module, data, how) for kind in (Sequential, Native))
        most = abs(one.update).max()
        assert most > 5e-3
        np.testing.assert_allclose(other.update / most, one.update / most, rtol=0, atol=1e-5)
        np.testing.assert_allclose(other.loss, one.loss, rtol=1e-5)
        np.testing.assert_array_equal(other.steps, one.steps)

    def fingerprints(self, federated):
        """Return the bits that every model comes to."""
        found = {}
        for name in self.models:
            module, shape = self.model(name)
            for how in (PLAIN, CORRECTED):
                made = self.moved(Native, module, self.data(federated, shape), how)
                found[name, how[0].momentum] = made.update.tobytes(), made.loss.tobytes()
        return found


IMAGES = Family(images.MODELS, "image", "features", 3, 0.05)
SEQUENCES = Family(sequences.MODELS, "tokens", "tokens", sequences.CLASSES, 0.5)


def engine(kind, module, data, local=PLAIN[0], solver=PLAIN[1]):
    return TorchEngine(kind, Task(module, data, solver, local, seed=3))


def must_judge_as_torch(found, as_torch, index):
    """Both are engines of the same model and data."""
    (right, loss), (expected, expected_loss) = (e.predict(e.initial, "train", index) for e in (found, as_torch))
    np.testing.assert_allclose(loss, expected_loss, atol=1e-5)
    np.testing.assert_array_equal(right, expected)
    logits, of_torch = (e.logits(e.initial, "train", index) for e in (found, as_torch))
    np.testing.assert_allclose(logits, of_torch, atol=1e-5)
    (own,), (torchs,) = (e.outputs(e.initial, e.initial[None] / 7, IDS[:1], before=True) for e in (found, as_torch))
    np.testing.assert_allclose(own.logits, torchs.logits, atol=1e-5)
    np.testing.assert_allclose(own.before, torchs.before, atol=1e-5)


@contextmanager
def compiled(folder, *, options=(), sources=None):
    """Let engines use a library that is compiled otherwise."""
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(library, "cache_folder", lambda: folder)
            patch.setattr(library, "OPTIONS", ("-O1", *library.OPTIONS[1:]))
            patch.setattr(library, "FOR_THIS_PROCESSOR", (options or ("-march=native",),))
            if sources is not None:
                patch.setattr(library, "SOURCES", sorted(sources.glob("*.c")))
                patch.setattr(library, "FOLDER", sources)
            library._load_once.cache_clear()
            yield
    finally:
        library._load_once.cache_clear()


def is_noticed(planted, checks, folder):
    """Return whether one of the checks fails where (in which file, what, by what) was replaced."""
    file, right, wrong = planted
    sources = folder / "sources"
    shutil.copytree(library.FOLDER, sources)
    text = (sources / file).read_text(encoding="utf-8")
    assert right in text
    (sources / file).write_text(text.replace(right, wrong), encoding="utf-8")
    with compiled(folder / "cache", sources=sources):
        library.library()  # else what does not compile would be noticed by every check
        return any(_fails(check) for check in checks)


def _fails(check):
    try:
        check()
    except (AssertionError, ConfigError, TrainingError):  # the last where it diverges
        return True
    return False
