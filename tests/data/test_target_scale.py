"""Numbers are learned on the participants' scale, and everything that people see is in the units of the column."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.conftest import Command, Refused

import fedreach as fr
from fedreach._util.errors import DataError
from fedreach.data.assignment import Partition
from fedreach.data.datasets import from_arrays
from fedreach.data.federated import FederatedData, federate
from fedreach.data.own import of_frame
from fedreach.data.preparation import TargetScale
from fedreach.deploy.saved import load
from fedreach.experiment.schema import Choice, Experiment
from fedreach.federation.losses import MSE, FunctionLoss, Huber
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import FederationRecord

COLUMNS = ["--data", "houses.csv", "--client", "town", "--target", "price"]
SHORT = ["--set", "rounds=20", "--set", "engine.name=sequential"]


def houses(towns: int = 6, rows: int = 30) -> dict[str, list]:
    """Return synthetic houses whose prices follow from their size."""
    rng = np.random.default_rng(0)
    size = rng.uniform(50, 200, towns * rows)
    price = 1000 * size + rng.normal(0, 5000, len(size)) + 50_000
    return {"town": [f"t{n % towns}" for n in range(len(size))], "size": size.tolist(), "price": price.tolist()}


@pytest.fixture
def at_home(home: Path) -> Path:
    columns = houses()
    with (home / "houses.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([[*columns], *zip(*columns.values(), strict=True)])
    return home


def test_the_scale_is_that_of_the_participants_training_rows_alone():
    data = FederatedData.from_frame(houses(), client="town", target="price", participants=["t0", "t1"])
    own = np.concatenate([data.dataset.train_y[data.train[client]] for client in (0, 1)]).astype(np.float64)
    assert data.dataset.target_scale.mean == pytest.approx(own.mean(axis=0))
    assert data.dataset.target_scale.sd == pytest.approx(own.std(axis=0))
    table = houses()  # nobody reads what unseen towns have
    table["price"] = [p if t in ("t0", "t1") else -1e6 for t, p in zip(table["town"], table["price"], strict=True)]
    other = FederatedData.from_frame(table, client="town", target="price", participants=["t0", "t1"])
    assert other.dataset.target_scale == data.dataset.target_scale


def test_sums_of_participants_are_enough_and_their_order_does_not_matter():
    rng = np.random.default_rng(1)
    parts = [rng.normal(1e6, [1.0, 100.0], (m, 2)) for m in (5, 1, 8)]
    mean = sum(p.sum(axis=0) for p in parts) / 14
    squares = sum(((p - mean) ** 2).sum(axis=0) for p in parts)
    scale = TargetScale.of_clients(parts)
    by_sums = TargetScale.of(14, mean * 14, squares)
    assert by_sums.sd == pytest.approx(scale.sd)
    assert by_sums.mean == pytest.approx(scale.mean)
    assert TargetScale.of_clients([p[::-1] for p in parts[::-1]]) == scale


def test_a_target_that_is_the_same_for_all_participants_is_refused():
    table = houses()
    table["price"] = [0.1 if town == "t0" else p for town, p in zip(table["town"], table["price"], strict=True)]
    with pytest.raises(
        DataError, match=r"target 'price' must vary between the participants' 24 training rows; got 0\.1"
    ):
        FederatedData.from_frame(table, client="town", target="price", participants=["t0"])


def test_a_users_loss_sees_what_torch_would_give_it_unless_it_asks_for_the_scale():
    def own(outputs, targets):
        return (outputs - targets).abs().mean(-1)

    assert not FunctionLoss(own).scales_targets
    own.scales_targets = True
    assert FunctionLoss(own).scales_targets
    assert [loss.scales_targets for loss in (MSE(), Huber(), MSE(scale=False))] == [True, True, False]


def test_units_do_not_change_what_is_learned():
    """A price in thousands gives the same model: its errors are a thousandth, to rounding."""
    table, last = houses(), {}
    for factor in (1.0, 1000.0):
        data = FederatedData.from_frame(
            {**table, "price": [p / factor for p in table["price"]]},
            client="town",
            target="price",
            participants=["t0", "t1", "t2"],
        )
        rows = fr.run(data, fr.Method(loss="mse"), rounds=3, cohort_size=2, engine={"name": "sequential"})
        last[factor] = [*rows][-1]
    assert last[1.0]["unseen_mae"] / 1000 == pytest.approx(last[1000.0]["unseen_mae"], rel=1e-3)
    assert last[1.0]["unseen_loss"] == pytest.approx(last[1000.0]["unseen_loss"], rel=1e-3)


@pytest.mark.parametrize("engine", ["sequential", "manual", "vmap"])
def test_engines_train_on_the_same_scale(engine):
    data = FederatedData.from_frame(houses(), client="town", target="price", participants=["t0", "t1", "t2"])
    *_, last = fr.run(data, fr.Method(loss="mse"), rounds=2, cohort_size=2, engine={"name": engine}, local={"lr": 0.01})
    assert last["unseen_mae"] < 200_000  # not by the prices themselves
    assert last["unseen_loss"] < 3


def test_huber_probes_and_metrics_of_numbers_are_on_their_own_sides():
    """Power of choice probes losses on the scale; r2 compares in units."""
    data = FederatedData.from_frame(houses(), client="town", target="price", participants=["t0", "t1", "t2"])
    method = fr.Method(loss="huber", selection={"name": "power_of_choice", "candidates": 3})
    *_, last = fr.run(
        data, method, rounds=20, cohort_size=2, metrics=["r2"], local={"lr": 0.05}, engine={"name": "sequential"}
    )
    assert last["unseen_r2"] > 0.5


def test_the_command_learns_by_default_and_says_on_what_scale(fedreach: Command, at_home: Path) -> None:
    result = fedreach("run", *COLUMNS, *SHORT, "--out", "r")
    assert result.exit_code == 0, result.output
    assert "price: mean 1" in result.stderr
    assert "mse and huber train in these units" in result.stderr
    record = RunFolder(at_home / "r").read(FederationRecord)
    assert record.target_scale["mean"][0] == pytest.approx(175_000, rel=0.1)
    last = json.loads((at_home / "r" / "rounds.jsonl").read_text().splitlines()[-1])
    assert last["unseen_mae"] < record.mean_mae / 2
    assert "Worse than no model" not in result.stdout


def test_saved_models_and_exports_predict_in_the_units_of_the_column(fedreach: Command, at_home: Path) -> None:
    assert fedreach("run", *COLUMNS, *SHORT, "--out", "r").exit_code == 0
    model = load("r")
    said = model.predict({"size": [60.0, 190.0]})
    assert said == pytest.approx([110_000, 240_000], rel=0.2)
    assert model(model.raw({"size": [60.0, 190.0]}))[:, 0].tolist() == pytest.approx(said.tolist())
    assert fedreach("export", "r", "--to", "safetensors", "--out", "s").exit_code == 0
    assert load("s").predict({"size": [60.0, 190.0]}).tolist() == said.tolist()
    model.save("m.pt2")
    graph = torch.export.load("m.pt2").module()
    assert graph(model.raw({"size": [60.0, 190.0]}))[:, 0].tolist() == pytest.approx(said.tolist())
    result = fedreach("predict", "r", "houses.csv", "--out", "p.csv", "--json")
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in (at_home / "r" / "clients.jsonl").read_text().splitlines()]
    last = [line for line in lines if line["population"] == "unseen"][-1]
    mae = {each["name"]: each["scores"]["mae"] for each in json.loads(result.stdout)["clients"]}
    assert [mae[name] for name in last["names"]] == pytest.approx(last["mae"], rel=1e-4)


def test_two_targets_each_have_their_scale(fedreach: Command, at_home: Path) -> None:
    columns = ["--data", "houses.csv", "--client", "town", "--target", "price", "--target", "size"]
    text = (at_home / "houses.csv").read_text().splitlines()
    more = [f"{line},{'rooms' if not n else n % 5}" for n, line in enumerate(text)]
    (at_home / "houses.csv").write_text("\n".join(more) + "\n")
    result = fedreach("run", *columns, *SHORT, "--out", "r")
    assert result.exit_code == 0, result.output
    assert "size: mean 1" in result.stderr
    assert load("r").predict({"rooms": [1, 2]}).shape == (2, 2)


def test_a_diverged_model_fails_with_what_to_change(refused: Refused, at_home: Path) -> None:
    """One step at an absurd server learning rate: all is finite, and far beyond the mean."""
    options = ["--set", "method.server={name='average',lr=1000}", "--set", "rounds=1"]
    said = refused(1, "run", *COLUMNS, *options, "--set", "evaluation.every=1", "--out", "r")
    assert "The model diverged: after round 1 its predictions for participants' held-out data are" in said
    assert "Lower local.lr" in said
    assert json.loads((at_home / "r" / "result.json").read_text())["status"] == "failed"


def test_a_model_worse_than_the_mean_is_told(fedreach: Command, at_home: Path) -> None:
    result = fedreach("run", *COLUMNS, *SHORT, "--set", "local.lr=1e-9", "--set", "model=mlp", "--out", "r")
    assert result.exit_code == 0, result.output
    assert "mean of the targets" in result.stdout
    last = json.loads((at_home / "r" / "rounds.jsonl").read_text().splitlines()[-1])
    baselines = json.loads((at_home / "r" / "baselines.json").read_text())
    told = "Worse than no model" in result.stdout
    assert told is (last["unseen_mae"] > baselines["columns"]["mean"]["unseen_mae"])


def test_without_the_scale_numbers_are_trained_on_as_they_are(fedreach: Command, at_home: Path) -> None:
    options = ["--set", "method.loss={name='mse',scale=false}", "--set", "local.lr=1e-6", "--out", "r"]
    result = fedreach("run", *COLUMNS, *SHORT, *options)
    assert result.exit_code == 0, result.output
    assert RunFolder(at_home / "r").read(FederationRecord).target_scale is None
    assert load("r").scale is None
    assert "Worse than no model" in result.stdout


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--target", "price"], "--target needs --data"),
        ([*COLUMNS, "--label", "size"], "either --label (the class)"),
        (["--data", "houses.csv", "--client", "town"], "or --target (a number to predict)"),
        (["--data", "houses.csv", "--client", "town", "--label", "price"], "use --target price instead of --label"),
    ],
)
@pytest.mark.parametrize("command", ["run", "compare"])
def test_which_of_label_and_target_is_meant_is_said(
    refused: Refused, at_home: Path, command: str, given: list[str], message: str
) -> None:
    assert message in refused(2 if "price" not in message or "goes" in message else 3, command, *given, "--out", "x")


def test_methods_are_compared_on_numbers_by_one_command(fedreach: Command, at_home: Path) -> None:
    short = ["--seeds", 1, "--set", "rounds=2", "--formats", "none", "--out", "c"]
    result = fedreach("compare", *COLUMNS, *short)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("values", "meant"),
    [
        ([v for v in range(0, 3000, 7) for _ in range(1 + v % 3)], True),  # prices, of which many occur once
        ([v for v in range(1000, 1150) for _ in range(3)], False),  # codes of classes
        ([v for v in range(0, 3000, 20) for _ in range(3)], False),  # with gaps
        ([v / 4 for v in range(60) for _ in range(3)], True),
    ],
    ids=["prices", "codes", "codes with gaps", "decimals"],
)
def test_labels_with_many_numbers_ask_whether_a_target_is_meant(values, meant):
    sites = ["abc"[row % 3] for row in range(len(values))]
    table = {"site": sites, "x": [row / 2 for row in range(len(values))], "y": [str(v) for v in values]}
    if not meant:
        assert of_frame(table, "site", "y", "t").num_classes == 150
        return
    with pytest.raises(DataError, match="use --target y instead of --label"):
        of_frame(table, "site", "y", "t")


def test_arrays_have_the_same_scale_and_stay_as_they_are():
    data = from_arrays(np.eye(6), [1.0, 2.0, 3.0, 4.0, 5.0, 60.0])
    made = federate(data, Partition.from_owner([0, 1, 0, 1, 0, 1], 2, "natural"), participants=1)
    assert made.dataset.target_scale is not None
    assert made.dataset.train_y.tolist() == data.train_y.tolist()
    assert replace(made.dataset, target_scale=None).train_y is made.dataset.train_y


def test_a_column_named_as_target_is_trained_by_squared_error_without_a_word(at_home: Path):
    data = FederatedData.from_frame(houses(), client="town", target="price")
    said, named = ([*fr.run(data, fr.Method(loss=loss), rounds=2, cohort_size=2)] for loss in (None, "mse"))
    assert said == named
    in_a_file = Experiment.model_validate({"data": {"name": "houses.csv", "client": "town", "target": "price"}})
    assert in_a_file.method.loss == Choice(name="mse")


def test_another_loss_that_is_named_beside_a_target_stays():
    raw = {"data": {"name": "houses.csv", "client": "town", "target": "price"}, "method": {"loss": "huber"}}
    assert Experiment.model_validate(raw).method.loss == Choice(name="huber")
    labelled = {"data": {"name": "houses.csv", "client": "town", "label": "price"}}
    assert Experiment.model_validate(labelled).method.loss == Choice(name="cross_entropy")
