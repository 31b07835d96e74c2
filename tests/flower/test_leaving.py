"""What a run on Flower leaves is loaded, exported and predicted by, as what any run leaves."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("flwr")

from flwr.app import Context

import fedreach
from fedreach.deploy.saved import load as load_model
from fedreach.federation import selection, server, solvers, weighting
from fedreach.federation.adaptation.label_shift import LabelShift
from fedreach.federation.federation import Federation
from fedreach.federation.local_sgd import LocalSGD
from fedreach.flower.app import client_app
from fedreach.flower.local import ClientData
from fedreach.flower.strategy import FedReachStrategy
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import FederationRecord, RoundRow

from .in_process import InProcess

DIGITS = fedreach.load("digits")
PARTS = selection.Uniform(), weighting.ByExamples(), solvers.FedAvg(), LocalSGD(lr=0.1), server.Average()
FEDERATION = Federation(*PARTS, cohort_size=3, seed=0, adaptation=LabelShift(strength=1.0))


class Net(nn.Module):
    """A class of a file that no other process imports by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.last = nn.Linear(64, 8), nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.hidden(x.flatten(1))))


def own(context: Context, **scale: tuple[float, ...]) -> ClientData:
    mine = np.arange(len(DIGITS.train_y)) % 5 == context.node_config["partition-id"]
    x, y = DIGITS.train_x[mine], DIGITS.train_y[mine]
    return ClientData((x[::2], y[::2]), (x[1::2], y[1::2]), num_classes=10, **scale)


def trained(folder: Path) -> Path:
    grid = InProcess(client_app(FEDERATION, Net, own), range(5))
    FedReachStrategy(FEDERATION, Net(), rounds=2, folder=folder, min_clients=5, patience=1, timeout=5).run(grid)
    return folder


@pytest.mark.slow
def test_a_program_s_run_is_loaded_without_the_class_that_made_its_model(tmp_path: Path) -> None:
    folder = trained(tmp_path / "run")
    model = load_model(folder)
    with torch.no_grad():
        expected = model.net(torch.from_numpy(DIGITS.train_x[:7]).float() / 255)
    np.testing.assert_allclose(model.logits(DIGITS.train_x[:7]), expected, atol=1e-6)
    adapter = model.adapter().fit(*model.answers(DIGITS.train_x[:50]))
    assert adapter.predict(*model.answers(DIGITS.train_x[:7])).shape == (7,)


@pytest.mark.slow
def test_another_process_predicts_and_exports_by_it(tmp_path: Path) -> None:
    folder = trained(tmp_path / "run")
    moved = folder.rename(tmp_path / "moved")
    np.savez(tmp_path / "rows.npz", x=DIGITS.train_x[:40], y=DIGITS.train_y[:40])
    for words in (
        ["predict", "moved", "rows.npz", "--label", "y", "--trust-code"],
        ["export", "moved", "--to", "torch", "--out", "out", "--force", "--trust-code"],
    ):
        call = [sys.executable, "-m", "fedreach", *words]
        done = subprocess.run(call, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    assert moved.exists()
    call = [sys.executable, str(tmp_path / "out" / "predict.pyz"), "rows.npz"]
    done = subprocess.run(call, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 41


def test_a_client_whose_images_are_on_another_scale_is_refused(tmp_path: Path) -> None:
    apps = {client: client_app(FEDERATION, Net, own) for client in range(4)}
    apps[4] = client_app(FEDERATION, Net, lambda context: own(context, mean=(0.5,), std=(0.5,)))
    strategy = FedReachStrategy(FEDERATION, Net(), rounds=1, folder=tmp_path, min_clients=4, patience=1, timeout=5)
    strategy.run(InProcess(apps, range(5)))
    row = next(iter(RunFolder(tmp_path).records(RoundRow)))
    assert row.refused is not None
    assert re.match(r'its examples are .*"mean": \[0\.5\].* most clients.* "mean": \[0\.0\]', row.refused["client 4"])
    assert RunFolder(tmp_path).required(FederationRecord).participants.tolist() == [0, 1, 2, 3]
