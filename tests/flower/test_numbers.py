"""Clients whose targets are numbers give the simulator's run on Flower, too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from fedreach._util.errors import ConfigError, DataError
from fedreach.experiment.run import run
from fedreach.flower.experiment import FlowerExperiment
from fedreach.flower.local import ClientData

from .in_process import InProcess
from .same import rows_of

NUMBERS = """
name = "numbers"
rounds = 4
[data]
name = "diabetes"
[partition]
name = "iid"
clients = 8
[population]
participants = 5
[model]
name = "mlp"
hidden = [4]
[method]
cohort_size = 3
loss = "mse"
[local]
lr = 0.001
[evaluation]
every = 2
local = false
[engine]
name = "sequential"
"""

PARTS = {
    "unadapted": [],
    "huber, losses of all": ["method.loss={name='huber', delta=10.0}", "method.selection=power_of_choice"],
    "SCAFFOLD": ["method.solver=scaffold"],
    "Oort": ["method.selection=oort"],
    "secure aggregation": ["method.label_statistics=secure_aggregation"],
    "SAFARI": ["method.server={name='safari', client_probability=0.5}", "server_data.examples=50"],
}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.sampled(4)
def test_flower_gives_the_simulators_run(tmp_path: Path, name: str) -> None:
    (tmp_path / "numbers.toml").write_text(NUMBERS)
    setup = FlowerExperiment(tmp_path / "numbers.toml", overrides=tuple(PARTS[name]))
    run(setup.experiment, seed=setup.seed, folder=tmp_path / "simulator", base=setup.base)
    grid = InProcess(setup.client_app(), range(8))
    setup.strategy(tmp_path / "flower", timeout=5, patience=5).run(grid)
    ours, theirs = rows_of(tmp_path / "simulator"), rows_of(tmp_path / "flower")
    assert len(theirs) == setup.experiment.rounds + 1
    hidden = ("weights", "train_loss") if name == "secure aggregation" else ()
    for mine, other in zip(ours, theirs, strict=True):
        assert other.keys() == mine.keys()
        for key in mine.keys() - set(hidden):
            if isinstance(mine[key], float):
                assert other[key] == pytest.approx(mine[key], rel=1e-5, abs=1e-5), key  # evaluated client by client
            elif key != "metrics":
                assert other[key] == mine[key], key
    assert {"participant_mae", "unseen_mae", "test_mae", "participation_gap"} <= theirs[-1].keys()
    for file in ("last.safetensors", "best.safetensors"):
        assert (tmp_path / "flower" / file).read_bytes() == (tmp_path / "simulator" / file).read_bytes(), file


def test_a_client_that_tells_accuracy_of_numbers_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "numbers.toml").write_text(NUMBERS)
    setup = FlowerExperiment(tmp_path / "numbers.toml", overrides=("rounds=2",))

    def answering(client, message, answer):
        reply = answer()
        for record in reply.content.metric_records.values() if reply.has_content() else ():
            if client == 2 and "eval_mae" in record:
                record["eval_acc"] = 0.5
                del record["eval_mae"]
        return reply

    grid = InProcess(setup.client_app(), range(8), answering=answering)
    setup.strategy(tmp_path / "flower", timeout=5, patience=5).run(grid)
    said = rows_of(tmp_path / "flower")[-1]
    assert "eval_mae" in said["refused"]["client 2"]
    assert np.isfinite(said["unseen_mae"])


def test_what_needs_classes_is_refused_before_anybody_trains(tmp_path: Path) -> None:
    (tmp_path / "numbers.toml").write_text(NUMBERS)
    setup = FlowerExperiment(tmp_path / "numbers.toml", overrides=("method.weighting=entropy",))
    with pytest.raises(ConfigError, match=r"weighting .* needs classes as targets"):
        setup.strategy(tmp_path / "flower", timeout=5, patience=5)
    setup = FlowerExperiment(tmp_path / "numbers.toml", overrides=("evaluation.metrics=['auroc']",))
    with pytest.raises(ConfigError, match=r"metric .* needs classes as targets"):
        setup.strategy(tmp_path / "flower", timeout=5, patience=5)


def test_ones_own_data_of_a_client() -> None:
    own = ClientData((np.eye(4), [0.5, 1.5, 2.5, 3.5]), (np.eye(4)[:2], [1.0, 2.0]), num_classes=0).federated(1)
    assert own.dataset.train_y.shape == (6, 1)
    assert own.dataset.outputs == 1
    with pytest.raises(DataError, match="whole numbers"):
        ClientData((np.eye(4), [0.5, 1.5, 2.5, 3.5]), num_classes=2).federated(1)
    with pytest.raises(DataError, match="finite"):
        ClientData((np.eye(4), [0.5, 1.5, np.nan, 3.5]), num_classes=0).federated(1)
