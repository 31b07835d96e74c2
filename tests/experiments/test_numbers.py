"""A comparison whose targets are numbers, from data to page: less is better everywhere."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import fedreach as fr
from fedreach._util.errors import ConfigError
from fedreach._util.streams import generator
from fedreach.cli import main
from fedreach.data.assignment import Partition
from fedreach.data.datasets import from_arrays
from fedreach.data.federated import federate
from fedreach.engines.engine import TorchEngine
from fedreach.engines.models.networks import build
from fedreach.engines.protocols import Task
from fedreach.engines.sequential import Sequential
from fedreach.evaluation.evaluator import Evaluator
from fedreach.evaluation.metrics import AUROC, R2, Accuracy, MeanLoss
from fedreach.evaluation.scores import ACCURACY, MAE, main_score_of
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.losses import MSE
from fedreach.federation.solvers import FedAvg
from fedreach.report.findings import best_of, find
from fedreach.report.formats import summary_text
from fedreach.report.overview import analyse
from fedreach.report.read import read
from fedreach.runs.folder import RunFolder

NUMBERS = """
name = "numbers"
rounds = 6
seeds = [0, 1, 2, 3]
[data]
name = "diabetes"
[partition]
name = "iid"
clients = 8
[population]
participants = 4
[model]
name = "linear"
[method]
loss = "mse"
cohort_size = 2
[local]
lr = 0.05
[evaluation]
every = 2
metrics = ["r2"]
[engine]
name = "sequential"
[methods.slow]
server = {name = "average", lr = 0.01}
[methods.quick]
selection = "full"
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("numbers")
    (home / "n.toml").write_text(NUMBERS)
    done = CliRunner().invoke(main, ["compare", str(home / "n.toml"), "--out", str(home / "out"), "--quiet"])
    assert done.exit_code == 0, done.output
    return home / "out"


@pytest.mark.slow
def test_the_method_with_smaller_errors_is_the_better_one(study: Path) -> None:
    analysis = analyse(read([study]))
    comparison = analysis.comparison
    assert comparison.score is MAE
    assert comparison.primary == "unseen_mae"
    slow, quick = analysis.last
    assert quick.at["unseen"].mean < slow.at["unseen"].mean
    assert quick.difference.mean < 0
    assert quick.difference.conclusion == "better"
    assert best_of(comparison, [slow, quick]) is quick
    found = find(analysis)
    assert found.headline.startswith("quick is best on unseen clients: mean absolute error ")
    assert " lower than slow" in found.headline
    everything = " ".join([found.headline, *found.bullets, *(f"{c.value} {c.unit} {c.detail}" for c in found.cards)])
    assert "%" not in re.sub(r"95%|80% power|\d+% more communication", "", everything)
    assert "points" not in everything
    assert "accuracy" not in everything
    assert comparison.margin is None


@pytest.mark.slow
def test_the_worst_decile_is_that_with_the_largest_errors_and_the_gap_is_turned_round(study: Path) -> None:
    row = RunFolder(fr.open(study)["quick"].folder()).kept_rows("rounds.jsonl")[-1]
    assert row["unseen_mae_worst_decile"] >= row["unseen_mae_p90"] >= row["unseen_mae"]
    assert row["participation_gap"] == pytest.approx(row["unseen_mae"] - row["participant_mae"], abs=1e-8)
    assert "train_mae" not in row  # which nobody asked for
    assert {"participant_r2", "unseen_r2_pooled", "test_r2", "test_mae"} <= row.keys()
    assert not any("accuracy" in key for key in row)


@pytest.mark.slow
def test_the_page_and_tables_speak_of_errors(study: Path) -> None:
    for command in (["report", str(study), "--formats", "svg"], ["report", str(study), "--json"]):
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 0, done.output
    page = (study / "report" / "index.html").read_text(encoding="utf-8")
    assert "Mean absolute error over rounds" in page
    assert "the mean absolute error of unseen clients minus the mean absolute error of participants" in page
    assert "their accuracy" not in page
    table = analyse(read([study]))
    assert "Mean absolute error" in summary_text(table, 100).partition("─")[0]


def test_a_model_of_numbers_predicts_them(study: Path) -> None:
    x = np.zeros((3, 10), np.float32)
    model = fr.open(study)["quick"].model()
    found = model.predict(x)
    assert found.shape == (3,)
    assert found.dtype == np.float64
    assert model.predict(x[:0]).shape == (0,)
    with pytest.raises(ConfigError, match="no class probabilities"):
        model.predict_proba(x)


@pytest.mark.parametrize("method", [{"loss": "mse"}, {"loss": "huber", "solver": "scaffold", "selection": "oort"}])
def test_a_run_that_was_interrupted_goes_on_to_the_same_bytes(tmp_path: Path, method: dict[str, str]) -> None:
    recipe = fr.load("diabetes").partition("iid", clients=6, participants=4)
    how = {"model": "linear", "rounds": 6, "cohort_size": 2, "engine": {"name": "sequential"}, "local": {"lr": 0.01}}
    list(fr.run(recipe, method, out=tmp_path / "whole", **how))
    rounds = iter(fr.run(recipe, method, out=tmp_path / "parts", **how))
    for _ in range(3):
        next(rounds)
    rounds.close()
    list(fr.run(recipe, method, out=tmp_path / "parts", **how))
    for file in ("rounds.jsonl", "clients.jsonl", "last.safetensors", "best.safetensors"):
        assert (tmp_path / "parts" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes(), file


def test_clients_in_another_order_are_scored_alike() -> None:
    rng = generator(0, "order")
    x = rng.standard_normal((40, 3)).astype(np.float32)
    y, owner = x @ np.ones((3, 1), np.float32) + 1, np.arange(40) % 5
    columns = []
    for order in (np.arange(5), np.array([3, 1, 4, 0, 2])):
        data = federate(
            from_arrays(x, y), Partition.from_owner(order[owner], 5, "natural"), participants=list(order[:3])
        )
        module = build("linear", (3,), 1, seed=0)
        engine = TorchEngine(Sequential, Task(module, data, FedAvg(), LocalSGD(), 0, MSE(scale=False)))
        found, _ = Evaluator(engine, data, metrics=[R2()]).evaluate(engine.initial, 0)
        columns.append(
            {
                key: found[key]
                for key in ("unseen_mae", "unseen_loss", "unseen_r2", "unseen_mae_pooled", "unseen_mae_worst_decile")
            }
        )
    assert columns[0] == pytest.approx(columns[1], rel=1e-6)


def test_metrics_of_classes_refuse_numbers_and_the_other_way_round(tmp_path: Path) -> None:
    data = federate(from_arrays(np.eye(4), [1.0, 2.0, 3.0, 4.0]), Partition.from_owner([0, 1, 0, 1], 2, "natural"))
    engine = TorchEngine(Sequential, Task(build("linear", (4,), 1, seed=0), data, FedAvg(), LocalSGD(), 0, MSE()))
    Evaluator(engine, data, metrics=[Accuracy(), MeanLoss()])  # what is asked for by default
    with pytest.raises(ConfigError, match="metric auroc needs classes as targets"):
        Evaluator(engine, data, metrics=[AUROC()])
    with pytest.raises(ConfigError, match="metric r2 needs numbers as targets"):
        list(fr.run(fr.load("digits").partition("iid", clients=4), model="linear", rounds=1, metrics=["r2"]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "method.loss=cross_entropy"], "Use loss = 'mse' or 'huber'"),
        (["--set", "method.selection=entropy_topk"], "selection .* needs classes as targets"),
        (["--set", "method.adaptation=label_shift"], "adaptation LabelShift needs classes as targets"),
        (["--set", "target_accuracy=0.5"], "target_accuracy needs classes as targets"),
        (["--set", "partition.name=shards"], "Use the partition 'iid' or 'natural'"),
        (["--set", "noise={name='symmetric', rate=0.1}"], "noise: "),
    ],
)
def test_what_is_about_classes_is_told(tmp_path: Path, options: list[str], message: str) -> None:
    (tmp_path / "n.toml").write_text(NUMBERS.split("[methods.slow")[0])
    done = CliRunner().invoke(
        main, ["run", str(tmp_path / "n.toml"), "--out", str(tmp_path / "out"), "--quiet", *options]
    )
    assert done.exit_code != 0
    assert re.search(message, " ".join(done.output.split())), done.output


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("method.selection=hics", "error: methods.slow: selection HiCS needs classes as targets"),
        ("methods.slow.server=feddf", "error: methods.slow: server FedDF needs classes as targets"),
        ('evaluation.metrics=["auroc"]', "error: metric auroc needs classes as targets"),
    ],
)
def test_a_comparison_refuses_them_once_and_before_anything_runs(tmp_path: Path, option: str, message: str) -> None:
    (tmp_path / "n.toml").write_text(NUMBERS + "\n[server_data]\nexamples = 20\n")
    out = tmp_path / "out"
    done = CliRunner().invoke(
        main, ["compare", str(tmp_path / "n.toml"), "--out", str(out), "--quiet", "--set", option]
    )
    assert done.exit_code != 0
    assert done.output.count("as targets") == 1
    assert done.output.startswith(message)
    assert not (out / "runs").exists()


@pytest.mark.slow
def test_what_is_asked_for_by_default_passes_on_the_command_line_and_in_python(tmp_path: Path) -> None:
    (tmp_path / "n.toml").write_text(NUMBERS.replace('metrics = ["r2"]\n', ""))
    options = ["--seeds", "1", "--set", "rounds=2", "--formats", "none", "--quiet", "--out", str(tmp_path / "toml")]
    done = CliRunner().invoke(main, ["compare", str(tmp_path / "n.toml"), *options])
    assert done.exit_code == 0, done.output
    recipe = fr.load("diabetes").partition("iid", clients=4, participants=2)
    asked = {"method": {"loss": "mse"}, "model": "linear", "rounds": 2, "progress": False}
    python = fr.compare(recipe, {"a": {}}, **asked, metrics=["r2"], out=tmp_path / "python")
    assert {"mae", "r2"} <= set(python["a"].clients())  # columns


def test_partitions_are_shown_without_classes(tmp_path: Path) -> None:
    (tmp_path / "n.toml").write_text(NUMBERS)
    done = CliRunner().invoke(main, ["partition", str(tmp_path / "n.toml")])
    assert done.exit_code == 0, done.output
    assert "1 number to predict" in done.output
    assert (
        CliRunner().invoke(main, ["partition", str(tmp_path / "n.toml"), "--plot", str(tmp_path / "w.svg")]).exit_code
    )


def test_one_place_says_which_direction_is_better() -> None:
    assert main_score_of(["round", "participant_mae_low", "participant_mae"]) is MAE
    assert main_score_of(["round", "participant_accuracy"]) is ACCURACY
    assert (MAE.rank(1.0) < MAE.rank(0.5), ACCURACY.rank(1.0) > ACCURACY.rank(0.5)) == (True, True)
    assert MAE.reached(np.array([3.0, 1.0]), 2.0).tolist() == [False, True]
