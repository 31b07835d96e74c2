"""A strategy, an app or data that cannot work are refused with words about what to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from fedreach._util.errors import ConfigError, DataError, TrainingError
from fedreach.data.splits import Population
from fedreach.engines.models.networks import build
from fedreach.federation.server import Safari
from fedreach.flower.app import client_app, share_labels
from fedreach.flower.experiment import FlowerExperiment
from fedreach.flower.local import ClientData, server_engine
from fedreach.flower.strategy import FedReachStrategy
from fedreach.testing.problems import tiny_federation

from .faulty import MINIMAX, SCAFFOLD, TIMEOUT, experiment
from .in_process import InProcess
from .same import SIX_CLIENTS


def strategy_with(folder: Path, **options: Any) -> FedReachStrategy:
    federation = options.pop("federation", tiny_federation())
    return FedReachStrategy(federation, nn.Linear(2, 2), **{"rounds": 2, "folder": folder, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, r"FedReachStrategy.rounds must be .*got 0\."),
        ({"rounds": -1}, r"FedReachStrategy.rounds must be .*got -1\."),
        ({"min_clients": 0}, r"FedReachStrategy.min_clients must be .*got 0\."),
        ({"evaluate_every": 0}, r"FedReachStrategy.evaluate_every must be .*got 0\."),
        ({"timeout": 0}, r"FedReachStrategy.timeout must be .*got 0\."),
        ({"timeout": float("nan")}, r"FedReachStrategy.timeout must be .*got nan\."),
        ({"population": Population(np.empty(0, np.int64), np.arange(3))}, "must have a participant|min_clients"),
        (
            {"population": Population(np.arange(2), np.empty(0, np.int64)), "min_clients": 3},
            r"min_clients must be at most the 2 participants .*got 3\.",
        ),
        ({"federation": replace(tiny_federation(), server=Safari())}, r"Safari trains on server data.*Pass engine="),
    ],
)
def test_a_strategy_that_cannot_run_is_refused_with_a_remedy(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        strategy_with(tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


X, Y = np.zeros((5, 2), np.float32), np.array([0, 1, 0, 1, 1])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (ClientData((X, Y[:4]), num_classes=2), "5.*4|4.*5"),
        (ClientData((X, Y + 5), num_classes=2), "must be 0 to 1; got 6"),
        (ClientData((X, Y - 1), num_classes=2), "must be 0 to 1; got -1"),
        (
            ClientData((X, Y), (np.zeros((2, 3), np.float32), [0, 1]), num_classes=2),
            r"held_out must have .*\(2,\).*\(3,\)",
        ),
        (ClientData((np.full((5, 2), np.nan, np.float32), Y), num_classes=2), "finite|NaN|nan"),
    ],
    ids=["lengths", "labels too large", "negative labels", "shapes", "NaN"],
)
def test_data_of_a_client_that_cannot_be_used_are_refused(data: ClientData, message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        data.federated(0)


def test_a_server_engine_without_data_is_refused() -> None:
    with pytest.raises(DataError, match="server_engine requires `test`, `own` or both; got neither"):
        server_engine(tiny_federation(), nn.Linear(2, 2), num_classes=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "lineer"}, "Did you mean 'linear'"),
        ({"engine": "sequentiel"}, "sequential"),
        ({"model": 3}, "callable"),
    ],
)
def test_a_client_app_that_cannot_train_says_so_to_the_server(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"model": "linear", **options}

    def run() -> None:
        own = ClientData((X, Y), num_classes=2)
        app = client_app(tiny_federation(), given.pop("model"), lambda context: own, **given)
        strategy_with(tmp_path, patience=0.1, timeout=TIMEOUT).run(InProcess(app, range(2)))

    with pytest.raises((ConfigError, TrainingError), match=message):
        run()


def test_what_the_data_function_raises_is_told_to_the_server(tmp_path: Path) -> None:
    def load(context: Any) -> ClientData:
        raise FileNotFoundError("no scans in this hospital")

    grid = InProcess(client_app(tiny_federation(), "linear", load), range(2))
    with pytest.raises(TrainingError, match=r"Node 1000 was rejected: it failed: .*no scans in this hospital"):
        strategy_with(tmp_path, patience=0.1, timeout=TIMEOUT).run(grid)


def app_of_its_own() -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Any) -> Message:
        arrays = message.content.array_records["arrays"]
        metrics = MetricRecord({"train_loss": 1.0, "num-examples": 5})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Any) -> Message:
        metrics = MetricRecord({"eval_loss": 1.0, "eval_acc": 0.5, "num-examples": 5})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (lambda context: [0, 1, 2], "num_classes|class|label"),
        (lambda context: [0, -1], "negative|class|label"),
        (lambda context: [0.5, 1.0], "whole|class|label"),
        (lambda context: [[0, 1]], "1-D|1d|shape|one|label"),
        (lambda context: None, "label|None"),
    ],
    ids=["too many classes", "negative", "fractions", "a matrix", "nothing"],
)
def test_labels_that_cannot_be_counted_are_told_to_the_server(labels: Any, message: str, tmp_path: Path) -> None:
    app = app_of_its_own()
    share_labels(app, labels, num_classes=2)
    federation = experiment(MINIMAX).simulation.federation
    with pytest.raises((ConfigError, TrainingError), match=rf"it failed: .*({message})"):
        strategy_with(tmp_path, federation=federation, patience=0.1, timeout=TIMEOUT).run(InProcess(app, range(5)))


def test_an_app_that_trains_by_itself_is_refused_where_clients_keep_something(tmp_path: Path) -> None:
    app = app_of_its_own()
    share_labels(app, lambda context: Y, num_classes=2)
    federation = experiment(SCAFFOLD).simulation.federation
    with pytest.raises(TrainingError, match=r"it uses a custom app, but .* need fedreach.flower.app.client_app"):
        strategy_with(tmp_path, federation=federation, patience=0.1, timeout=TIMEOUT).run(InProcess(app, range(5)))


def test_an_app_that_told_nothing_is_refused_and_told_what_to_add(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"Node 1000 was rejected: it failed: .*query"):
        strategy_with(tmp_path, patience=0.1, timeout=TIMEOUT).run(InProcess(app_of_its_own(), range(3)))


def test_a_model_of_another_shape_cannot_be_sent(tmp_path: Path) -> None:
    app = app_of_its_own()
    share_labels(app, lambda context: Y, num_classes=2)
    strategy = strategy_with(tmp_path, timeout=TIMEOUT)
    other = ArrayRecord(build("linear", (3,), 2, seed=0).state_dict())
    with pytest.raises(ConfigError, match="model"):
        strategy.start(InProcess(app, range(3)), other, num_rounds=2)


def test_pictures_and_loaders_are_taken_or_refused_as_from_torch_does() -> None:
    from PIL import Image
    from torch.utils.data import DataLoader, TensorDataset

    rng = np.random.default_rng(0)
    pictures = [(Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)), i % 2) for i in range(6)]
    found = ClientData(pictures, num_classes=2).federated(0).dataset
    assert (found.kind, found.train_x.shape) == ("image", (6, 3, 8, 8))
    unequal = [(np.zeros((1, 8 + i, 8), np.uint8), i % 2) for i in range(3)]
    with pytest.raises(DataError, match="all inputs must have the same shape and type"):
        ClientData(unequal, num_classes=2).federated(0)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="must be a Dataset with `__len__` and `__getitem__`"):
        ClientData(DataLoader(TensorDataset(torch.zeros(4, 3))), num_classes=2).federated(0)  # type: ignore[arg-type]


def test_pixels_and_the_same_between_0_and_1_are_not_put_together() -> None:
    pixels, labels = np.zeros((4, 1, 8, 8), np.uint8), np.arange(4) % 2
    with pytest.raises(DataError, match=r"of the same type as train, uint8; got float32.*a factor of 255"):
        ClientData((pixels, labels), ((pixels / 255).astype(np.float32), labels), num_classes=2).federated(0)


def test_an_engine_that_flower_does_not_use_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", logger="flwr"):
        for name in ("auto", "sequential", "native"):
            FlowerExperiment(overrides=(*SIX_CLIENTS, f"engine.name={name}")).strategy(tmp_path / name)
    assert [record.getMessage() for record in caplog.records] == [
        "engine sequential: engine.name = 'native' has no effect on Flower, where each client trains separately"
    ]
