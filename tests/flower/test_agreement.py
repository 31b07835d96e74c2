"""Server and clients that do not mean the same, or meet again, and what a client tells nobody."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message, RecordDict
from torch import nn

from fedreach._util.errors import ConfigError, RunFolderError, TrainingError
from fedreach.engines.models.flat import Layout
from fedreach.federation.losses import FunctionLoss
from fedreach.flower.agreement import ClientStatistics, first_difference, record_of, training_terms
from fedreach.flower.app import client_app
from fedreach.flower.experiment import FlowerExperiment, run_experiment
from fedreach.flower.strategy import FedReachStrategy
from fedreach.runs.recorder import Recorder
from fedreach.testing.problems import tiny_federation

from .in_process import InProcess
from .same import rows_of
from .test_equal import TINY

SECURE = "method.label_statistics=secure_aggregation"


def experiment(folder: Path, *overrides: str) -> FlowerExperiment:
    (folder / "tiny.toml").write_text(TINY)
    return FlowerExperiment(folder / "tiny.toml", overrides=overrides)


def grid_of(setup: FlowerExperiment) -> InProcess:
    return InProcess(setup.client_app(), range(8))


def test_in_secure_aggregation_all_must_weigh_alike(tmp_path: Path) -> None:
    server = experiment(tmp_path, SECURE, "method.weighting=equal")
    client = experiment(tmp_path, SECURE, "method.weighting=by_examples")
    with pytest.raises(TrainingError, match=r"its weighting is ByExamples\(\), not Equal\(\)"):
        server.strategy(tmp_path / "run", patience=0.1, timeout=0.5).run(grid_of(client))


def test_a_model_of_which_a_client_trains_only_a_part_is_another_model(tmp_path: Path) -> None:
    setup = experiment(tmp_path)

    def frozen(num_classes: int) -> nn.Module:
        module = nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
        module[1].bias.requires_grad_(False)
        return module

    app = client_app(setup.simulation.federation, frozen, lambda context: setup.data)
    with pytest.raises(TrainingError, match=r"its model is 640 numbers, 640 of them trained"):
        setup.strategy(tmp_path / "run", patience=0.1, timeout=0.5).run(InProcess(app, range(8)))


@pytest.mark.parametrize(
    ("weighting", "asked", "told"),
    [("entropy", "label_entropy", True), ("entropy", "label_counts", False), ("equal", "label_entropy", False)],
)
def test_a_client_tells_of_its_labels_only_what_its_own_federation_needs(
    weighting: str, asked: str, told: bool, tmp_path: Path
) -> None:
    grid = grid_of(experiment(tmp_path, f"method.weighting={weighting}"))
    content = RecordDict({"fedreach": ConfigRecord({"fact": asked})})
    (reply,) = grid.send_and_receive([Message(content, grid.node_of[3], "query.labels")])
    assert reply.has_content() == told


@pytest.mark.parametrize("method", [("method.solver=scaffold",), (SECURE, "method.weighting=entropy")])
def test_a_second_run_in_the_same_contexts_is_the_first_run_again(method: tuple[str, ...], tmp_path: Path) -> None:
    setup = experiment(tmp_path, *method)
    grid = grid_of(setup)
    for name in ("first", "second"):
        setup.strategy(tmp_path / name, timeout=0.5).run(grid)
    assert rows_of(tmp_path / "second") == rows_of(tmp_path / "first")
    first, second = ((tmp_path / name / "last.safetensors").read_bytes() for name in ("first", "second"))
    assert first == second


def test_a_run_that_was_killed_before_it_wrote_its_result_is_finished_without_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = experiment(tmp_path)

    def killed(self: Recorder, *arguments: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(Recorder, "finish", killed)
        with pytest.raises(SystemExit):
            setup.strategy(tmp_path / "run", timeout=0.5).run(grid_of(setup))
    assert not (tmp_path / "run" / "result.json").exists()
    setup.strategy(tmp_path / "run", patience=0.1, timeout=0.5).run(InProcess(setup.client_app(), []))
    assert '"finished"' in (tmp_path / "run" / "result.json").read_text()
    setup.strategy(tmp_path / "whole", timeout=0.5).run(grid_of(setup))
    for name in ("last.safetensors", "rounds.jsonl"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_record_has_label_counts_only_if_all_clients_reported_exact_ones() -> None:
    told = {client: ClientStatistics(3, 8, True, label_counts=[1.0, 2.0]) for client in range(2)}
    assert record_of([0], [1], told, exact=True).label_counts.tolist() == [[1, 2], [1, 2]]
    assert record_of([0], [1], told, exact=False).label_counts.shape == (2, 0)
    for silent in (0, 1):
        some = told | {silent: ClientStatistics(3, 8, True)}
        assert record_of([0], [1], some, exact=True).label_counts.shape == (2, 0)


def test_a_run_is_not_gone_on_with_on_other_data(tmp_path: Path) -> None:
    setup = experiment(tmp_path)
    strategy = setup.strategy(tmp_path / "run", timeout=0.5)
    strategy.run(grid_of(setup))
    assert strategy.record is not None
    again = setup.strategy(tmp_path / "run", timeout=0.5)
    again.record = replace(strategy.record, hash="of other data")
    with pytest.raises(RunFolderError, match="belongs to another federation"):
        again.run(grid_of(setup))


def test_clients_without_examples_are_not_waited_for_and_never_train(tmp_path: Path) -> None:
    """Of eight nodes, five take part; one of them has nothing to train on, and four rounds do without it."""
    setup = experiment(tmp_path)
    empty, shares = int(setup.data.population.participants[0]), dict[int, float]()

    def without(client: int, message: Message, answer) -> Message:  # type: ignore[no-untyped-def]
        reply = answer()
        if message.metadata.message_type == "train":
            shares[client] = float(message.content["fedreach"]["share"])  # type: ignore[arg-type]
        if client == empty and message.metadata.message_type == "query":
            reply.content["metrics"]["num-examples"] = 0
        return reply

    def strategy(folder: str, min_clients: int) -> FedReachStrategy:
        return FedReachStrategy(
            setup.simulation.federation,
            setup.simulation.engine.task.module,
            rounds=4,
            folder=tmp_path / folder,
            population=setup.data.population,
            min_clients=min_clients,
            patience=1.0,
            timeout=0.5,
        )

    grid = InProcess(setup.client_app(), range(8), answering=without)
    strategy("run", 4).run(grid)
    assert (empty, "train") not in grid.sent
    sizes = {int(client): int(setup.data.train.sizes[client]) for client in setup.data.population.participants[1:]}
    mean = np.mean([*sizes.values()])  # of those that have examples
    assert shares == pytest.approx({client: sizes[client] / mean for client in shares})
    with pytest.raises(TrainingError, match=r"may train and have examples must be at least 5; got 4 after"):
        strategy("none", 5).run(InProcess(setup.client_app(), range(8), answering=without))
    cohorts = [row["cohort"] for row in rows_of(tmp_path / "run")[1:]]
    assert all(len(cohort) == 3 for cohort in cohorts)
    assert np.isfinite([row["train_loss"] for row in rows_of(tmp_path / "run")[1:]]).all()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"min-clients": "two"}, "min-clients in the run config must be a number; got 'two'"),
        ({"timeout": "soon"}, "timeout in the run config must be a number"),
        ({"timeout": -1}, "timeout must be positive and finite; got -1"),
        ({"timeout": float("inf")}, "timeout must be positive and finite; got inf"),
        ({"patience": -3}, "patience must be finite and not negative; got -3"),
        ({"min-clients": 99}, "min_clients must be at most the 5 participants"),
        ({"out": ""}, "out: must be the run folder"),
    ],
    ids=str,
)
def test_a_wrong_run_config_is_refused_before_anybody_is_asked(
    config: dict[str, object], message: str, tmp_path: Path
) -> None:
    setup = experiment(tmp_path)
    grid = grid_of(setup)
    context = grid.new_context(0)
    context.run_config = {"out": str(tmp_path / "run"), **config}
    with pytest.raises(ConfigError, match=message):
        run_experiment(grid, context, setup)
    assert not grid.sent
    assert not (tmp_path / "run").exists()


def test_a_negative_seed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    with pytest.raises(ConfigError, match="seed of a run must be at least 0; got -1"):
        FlowerExperiment(tmp_path / "tiny.toml", seed=-1)


def test_clients_that_train_by_another_loss_are_told_apart():
    ours, layout = tiny_federation(), Layout.of(nn.Linear(2, 2))
    theirs = replace(ours, loss=FunctionLoss(len))
    assert first_difference(training_terms(ours, layout), training_terms(theirs, layout)).startswith(
        "its loss is FunctionLoss("
    )


@pytest.mark.parametrize("option", ["evaluation.patience=3", "budget.megabytes=1.0"])
def test_what_would_end_a_run_early_is_refused(option: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no effect on Flower: the number of rounds is fixed"):
        experiment(tmp_path, option)


def test_training_again_on_all_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"population\.refit has no effect on Flower: each client trains on the same"):
        experiment(tmp_path, "population.refit=true")


def test_log_loss_is_the_loss_that_clients_send(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text('[evaluation]\nmetrics = ["log_loss"]\n', encoding="utf-8")
    assert FlowerExperiment(tmp_path / "x.toml").experiment.evaluation.metrics[0].name == "log_loss"
