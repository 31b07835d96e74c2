"""A model that draws random numbers, by whatever generator, gives the simulator's run on Flower, and after loading."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from fedreach.deploy.saved import load
from fedreach.experiment.run import run
from fedreach.flower.experiment import FlowerExperiment

from .in_process import InProcess
from .same import rows_of

EXPERIMENT = """
name = "draws"
rounds = 2
[data]
name = "digits"
[partition]
name = "iid"
clients = 12
[population]
participants = 3
[model]
name = "drawing.py:Drawing"
[method]
cohort_size = 2
[local]
batch_size = 32
[evaluation]
every = 1
local = false
[engine]
name = "sequential"
"""

MODEL = '''
import random

import numpy as np
import torch
from torch import nn


class Drawing(nn.Module):
    """Noise by numpy and by torch, flips by `random`, in evaluation, too."""

    def __init__(self, sample_shape, num_classes):
        super().__init__()
        size = int(np.prod(sample_shape))
        self.layer = nn.Linear(size, num_classes)
        with torch.no_grad():
            self.layer.weight.add_(torch.from_numpy(np.random.normal(size=(num_classes, size)).astype(np.float32) / 9))

    def forward(self, x):
        x = x.flatten(1)
        if random.random() < 0.3:
            x = x.flip(-1)
        noise = torch.from_numpy(np.random.normal(size=tuple(x.shape)).astype(np.float32))
        return self.layer(x + noise / 9) + torch.rand(len(x), 1)
'''


@pytest.mark.slow
def test_flower_and_the_loaded_model_draw_what_the_simulator_draws(tmp_path: Path) -> None:
    (tmp_path / "drawing.py").write_text(MODEL, encoding="utf-8")
    (tmp_path / "draws.toml").write_text(EXPERIMENT, encoding="utf-8")
    setup = FlowerExperiment(tmp_path / "draws.toml")
    run(setup.experiment, seed=setup.seed, folder=tmp_path / "simulator", base=setup.base)
    run(setup.experiment, seed=setup.seed, folder=tmp_path / "again", base=setup.base)
    assert (tmp_path / "again" / "rounds.jsonl").read_bytes() == (tmp_path / "simulator" / "rounds.jsonl").read_bytes()
    grid = InProcess(setup.client_app(), range(12))
    setup.strategy(tmp_path / "flower", timeout=5, patience=5).run(grid)
    for mine, other in zip(rows_of(tmp_path / "simulator"), rows_of(tmp_path / "flower"), strict=True):
        for key in mine:
            if isinstance(mine[key], float):
                assert other[key] == pytest.approx(mine[key], rel=1e-5, abs=1e-5), key
    assert (tmp_path / "flower" / "last.safetensors").read_bytes() == (
        tmp_path / "simulator" / "last.safetensors"
    ).read_bytes()

    data = setup.simulation.data
    model = load(tmp_path / "simulator", "last", base=tmp_path)
    index, raw = np.arange(20), data.dataset.train_x[:20]
    said = model.logits(raw)
    assert said.tobytes() == model.logits(raw).tobytes()
    assert said[5:8].tobytes() == model.logits(raw[5:8]).tobytes()
    engine = setup.simulation.engine
    tensors = dict(model.net.named_parameters())
    vector = torch.zeros(engine.layout.size)
    for name, view in engine.layout.views(vector).items():
        view.copy_(tensors[name])
    np.testing.assert_array_equal(engine.logits(vector.numpy(), "true", index), said.astype(np.float32))
