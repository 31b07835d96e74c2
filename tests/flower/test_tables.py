"""Hospitals with a table each on Flower: what they agree on, and that it is what one table of all rows gives."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ConfigRecord, Context, Message
from tests.data.test_table_agreement import NAMES, hospitals

from fedreach._util.errors import ConfigError, DataError, TrainingError
from fedreach.data import table_agreement
from fedreach.data.table_source import read_table
from fedreach.deploy.saved import load
from fedreach.experiment.run import run
from fedreach.flower.experiment import FlowerExperiment
from fedreach.flower.tables import FlowerTables
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import FederationRecord

from .deployment import APP
from .in_process import Answering, InProcess
from .same import check_same, rows_of

FILE = """
rounds = 3
[data]
name = "all.csv"
client = "site"
label = "ill"
columns = { drop = ["note"] }
[partition]
name = "natural"
[population]
participants = ["ash", "birch", "cedar"]
[model]
name = "mlp"
[local]
lr = 0.3
[method]
cohort_size = 2
adaptation = { name = "label_shift", guard = false }
[evaluation]
every = 1
local = false
[engine]
name = "sequential"
"""


class Hospitals(InProcess):
    """Nodes whose config names a file each."""

    def __init__(self, setup: FlowerTables, folder: Path, **more: Answering) -> None:
        self.folder = folder
        super().__init__(setup.client_app(), range(len(NAMES)), **more)

    def new_context(self, client: int) -> Context:
        context = super().new_context(client)
        context.node_config |= {"data": str(self.folder / f"{NAMES[client]}.csv"), "name": NAMES[client]}
        return context


def written(folder: Path, change: Callable[[dict[str, pd.DataFrame]], None] = lambda parts: None) -> Path:
    """Write the file of the experiment, a table for each hospital, and the joined one."""
    frame = hospitals()
    parts = {name: frame[frame["site"] == name].copy() for name in NAMES}
    change(parts)
    for name, part in parts.items():
        part.drop(columns="site").to_csv(folder / f"{name}.csv", index=False)
    pd.concat(parts.values()).to_csv(folder / "all.csv", index=False)
    (folder / "ill.toml").write_text(FILE, encoding="utf-8")
    return folder / "ill.toml"


def trained(file: Path, *overrides: str, **more: Answering) -> Path:
    setup, folder = FlowerTables(file, overrides=overrides), file.parent / "flower"
    setup.run(Hospitals(setup, file.parent, **more), folder, min_clients=2, patience=5, timeout=1)
    return folder


def with_prices(
    folder: Path, change: Callable[[dict[str, pd.DataFrame]], None] = lambda parts: None, targets: str = '["price"]'
) -> Path:
    """Write an experiment that predicts numbers, on tables of which some rows lack them."""

    def priced(parts: dict[str, pd.DataFrame]) -> None:
        rng = np.random.default_rng(1)
        for part in parts.values():
            part["price"] = (10_000 + 300 * part["age"] + rng.normal(0, 999, len(part))).round(2)
            part["days"] = rng.integers(0, 40, len(part)).astype(float)
            part.loc[part.index[:2], "price"] = None
        change(parts)

    file = written(folder, priced)
    text = FILE.replace('label = "ill"', f"target = {targets}").replace("lr = 0.3", "lr = 0.05")
    adaptation = 'adaptation = { name = "label_shift", guard = false }'
    file.write_text(text.replace(adaptation, 'loss = "mse"'), encoding="utf-8")
    return file


def uneven(parts: dict[str, pd.DataFrame]) -> None:
    """A column that one hospital lacks, and a category that only the unseen one has."""
    del parts["birch"]["age"]
    parts["dogwood"].loc[parts["dogwood"].index[:3], "ward"] = "rare"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("change", [lambda parts: None, uneven], ids=["alike", "uneven"])
def test_training_and_adaptation_are_those_of_the_joined_table_in_bits(
    tmp_path: Path, change: Callable[[dict[str, pd.DataFrame]], None]
) -> None:
    file = written(tmp_path, change)
    found = trained(file)
    joined = FlowerExperiment(file)
    run(joined.experiment, seed=joined.seed, folder=tmp_path / "ours", base=joined.base)
    check_same(tmp_path / "ours", found)
    ours, theirs = (RunFolder(folder).required(FederationRecord) for folder in (tmp_path / "ours", found))
    assert theirs.client_names == ours.client_names
    assert theirs.class_names == ours.class_names
    assert (found / "adaptation.safetensors").read_bytes() == (
        tmp_path / "ours" / "adaptation.safetensors"
    ).read_bytes()


@pytest.mark.parametrize("change", [lambda parts: None, uneven], ids=["alike", "uneven"])
@pytest.mark.parametrize("targets", ['"price"', '["price", "days"]'], ids=["one", "two"])
@pytest.mark.parametrize("loss", ["mse", "huber", "{name='mse', scale=false}"])
@pytest.mark.sampled(5)
def test_numbers_are_learned_as_on_the_joined_table_in_bits(
    tmp_path: Path, change: Callable[[dict[str, pd.DataFrame]], None], targets: str, loss: str
) -> None:
    more = (f"method.loss={loss}", *(["local.lr=1e-6"] if "false" in loss else []))
    file = with_prices(tmp_path, change, targets)
    found = trained(file, *more)
    joined = FlowerExperiment(file, overrides=more)
    run(joined.experiment, seed=joined.seed, folder=tmp_path / "ours", base=joined.base)
    ours, theirs = (RunFolder(folder).required(FederationRecord) for folder in (tmp_path / "ours", found))
    assert theirs.target_scale == ours.target_scale
    assert (ours.target_scale is None) == ("false" in loss)
    assert (theirs.targets, theirs.class_names) == (ours.targets, ours.class_names)
    for mine, other in zip(rows_of(tmp_path / "ours"), rows_of(found), strict=True):
        assert other["cohort"] == mine["cohort"]
        assert {"participant_mae", "unseen_mae", "participant_loss"} <= mine.keys() & other.keys()
        for name in ("participant_mae", "unseen_mae", "participant_loss", "participation_gap"):
            assert other[name] == pytest.approx(mine[name], rel=1e-5), name  # clients are evaluated one by one
    for name in ("last.safetensors", "best.safetensors"):
        assert (found / name).read_bytes() == (tmp_path / "ours" / name).read_bytes()


def test_classes_that_are_their_numbers_have_no_names_as_in_a_simulation(tmp_path: Path) -> None:
    def numbered(parts: dict[str, pd.DataFrame]) -> None:
        for part in parts.values():
            part["ill"] = part["ill"].map({"no": 0, "yes": 1, "maybe": 2})

    file = written(tmp_path, numbered)
    found = trained(file, "rounds=1", "method.adaptation=none")
    assert RunFolder(found).required(FederationRecord).class_names is FlowerExperiment(file).data.dataset.class_names


def test_what_it_leaves_of_numbers_predicts_in_their_units(tmp_path: Path) -> None:
    file = with_prices(tmp_path)
    found = trained(file, "rounds=10")
    frame = pd.read_csv(tmp_path / "all.csv")
    model, known = load(found), frame["price"].notna().to_numpy()
    said = model.predict(frame)
    off = np.abs(said.ravel()[known] - frame["price"][known])
    assert off.mean() < (frame["price"] - frame["price"].mean()).abs().mean()


@pytest.mark.slow
def test_numbers_are_predicted_by_command_and_by_export_in_their_units(tmp_path: Path) -> None:
    trained(with_prices(tmp_path))
    fedreach = [sys.executable, "-m", "fedreach"]
    for call in (
        [*fedreach, "predict", "flower", "all.csv", "--out", "said.csv"],
        [*fedreach, "export", "flower", "--to", "torch", "--out", "model"],
        [sys.executable, "model/predict.pyz", "all.csv", "--out", "again.csv"],
    ):
        done = subprocess.run(call, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    frame, said, again = (pd.read_csv(tmp_path / name) for name in ("all.csv", "said.csv", "again.csv"))
    wanted = load(tmp_path / "flower").predict(frame).ravel()
    assert said["prediction"].to_numpy() == pytest.approx(wanted, rel=1e-6)
    assert again["prediction"].to_numpy() == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("targets", ["[]", '["price", "price"]'])
def test_no_number_to_predict_or_one_twice_is_refused(tmp_path: Path, targets: str) -> None:
    with pytest.raises(ConfigError, match=r"data\.target must name different columns, at least one"):
        FlowerTables(with_prices(tmp_path, targets=targets))


def no_price(parts: dict[str, pd.DataFrame]) -> None:
    del parts["cedar"]["price"]


def a_price_in_words(parts: dict[str, pd.DataFrame]) -> None:
    parts["cedar"]["price"] = parts["cedar"]["price"].astype(object)
    parts["cedar"].loc[parts["cedar"].index[9], "price"] = "a lot"


@pytest.mark.parametrize("change", [no_price, a_price_in_words])
def test_a_hospital_without_numbers_to_predict_is_named_and_the_others_train(
    tmp_path: Path, change: Callable[[dict[str, pd.DataFrame]], None]
) -> None:
    setup = FlowerTables(with_prices(tmp_path, change))
    with pytest.raises(TrainingError, match=r"Missing: cedar\..*client 'cedar': .*column 'price'"):
        setup.run(Hospitals(setup, tmp_path), tmp_path / "three", min_clients=3, patience=0.5, timeout=1)
    setup.run(Hospitals(setup, tmp_path), tmp_path / "flower", min_clients=2, patience=0.5, timeout=1)
    assert RunFolder(tmp_path / "flower").required(FederationRecord).participants.tolist() == [0, 1]


def test_a_number_that_is_the_same_for_all_participants_ends_the_run_in_words(tmp_path: Path) -> None:
    def same_price(parts: dict[str, pd.DataFrame]) -> None:
        for name in NAMES[:3]:
            parts[name]["price"] = 9.5

    setup = FlowerTables(with_prices(tmp_path, same_price))
    with pytest.raises(
        DataError, match=r"target 'price' must vary between the participants' 72 training rows; got 9\.5"
    ):
        setup.run(Hospitals(setup, tmp_path), tmp_path / "flower", min_clients=2, patience=5, timeout=1)


def test_under_secure_aggregation_the_scale_of_numbers_is_that_of_the_plain_sum(tmp_path: Path) -> None:
    secure = ("method.label_statistics=secure_aggregation", "method.weighting=equal")
    hidden = RunFolder(trained(with_prices(tmp_path), *secure)).required(FederationRecord).target_scale
    plain = tmp_path / "unadapted"
    plain.mkdir()
    other = RunFolder(trained(with_prices(plain))).required(FederationRecord).target_scale
    assert hidden == pytest.approx({"mean": pytest.approx(other["mean"]), "sd": pytest.approx(other["sd"])})


def spoiled_sums(step: str, value: float) -> Answering:
    """Let client 1 answer a question on tables with another last number."""

    def answering(client: int, message: Message, answer: Callable[[], Message]) -> Message:
        reply = answer()
        if client == 1 and message.metadata.message_type == "query.table":
            asked = json.loads(message.content.config_records["fedreach"]["question"])
            if asked["step"] == step:
                sums = reply.content.array_records["sums"]["sums"].numpy().copy()
                sums.ravel()[-1] = value
                reply.content.array_records["sums"]["sums"] = Array(sums)
        return reply

    return answering


@pytest.mark.parametrize(("step", "value"), [("totals", 1e308), ("squares", np.nan), ("squares", 1e308)])
def test_sums_of_numbers_that_no_table_has_leave_their_client_out(tmp_path: Path, step: str, value: float) -> None:
    found = trained(with_prices(tmp_path), answering=spoiled_sums(step, value))
    assert RunFolder(found).required(FederationRecord).participants.tolist() == [0, 2]


@pytest.mark.slow
def test_a_process_reads_a_table_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[object] = []
    monkeypatch.setattr(table_agreement, "read_table", lambda source: read.append(source) or read_table(source))
    trained(written(tmp_path))
    assert sorted(read) == [str(tmp_path / f"{name}.csv") for name in NAMES]


@pytest.mark.slow
def test_what_it_leaves_predicts_a_raw_table_and_adapts(tmp_path: Path) -> None:
    file = written(tmp_path)
    trained(file)
    call = [sys.executable, "-m", "fedreach", "predict", "flower", "all.csv", "--out", "said.csv"]
    done = subprocess.run(call, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert len(pd.read_csv(tmp_path / "said.csv")) == 120


@pytest.mark.parametrize("step", ["counts", "totals", "squares"])
@pytest.mark.sampled(3)
def test_a_client_that_leaves_the_agreement_is_not_in_it(step: str, tmp_path: Path) -> None:
    file = written(tmp_path)

    def answering(client: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        is_table = message.metadata.message_type == "query.table"
        asked = json.loads(message.content.config_records["fedreach"]["question"])["step"] if is_table else ""
        return None if client == 1 and asked == step else answer()

    found = trained(file, 'population.participants=["ash","birch","cedar"]', answering=answering)
    record = RunFolder(found).required(FederationRecord)
    assert record.participants.tolist() == [0, 2]
    alone = tmp_path / "without"
    alone.mkdir()
    other = trained(written(alone), 'population.participants=["ash","cedar"]')
    assert RunFolder(other).required(FederationRecord).preparation == record.preparation
    assert (other / "last.safetensors").read_bytes() == (found / "last.safetensors").read_bytes()


@pytest.mark.slow
def test_a_node_that_begins_anew_is_told_what_was_agreed_on(tmp_path: Path) -> None:
    file = written(tmp_path)
    calm = trained(file)
    setup, forgot = FlowerTables(file), []

    def answering(client: int, message: Message, answer: Callable[[], Message]) -> Message:
        if client == 1 and message.metadata.message_type == "train":
            grid.contexts[1] = grid.new_context(1)  # as after a restart under the same key
            forgot.append(1)
        return answer()

    grid = Hospitals(setup, tmp_path, answering=answering)
    setup.run(grid, tmp_path / "again", min_clients=2, patience=5, timeout=1)
    assert forgot
    assert (tmp_path / "again" / "last.safetensors").read_bytes() == (calm / "last.safetensors").read_bytes()


@pytest.mark.slow
def test_a_run_that_goes_on_does_not_ask_for_tables_again(tmp_path: Path) -> None:
    file = written(tmp_path)
    calm = trained(file)
    setup, asked = FlowerTables(file), []

    def failing(client: int, message: Message, answer: Callable[[], Message]) -> Message:
        kind = message.metadata.message_type
        asked.append(kind)
        if kind == "train" and asked.count("train") > 2:
            raise KeyboardInterrupt
        return answer()

    with pytest.raises(KeyboardInterrupt):
        setup.run(Hospitals(setup, tmp_path, answering=failing), tmp_path / "again", patience=5, timeout=1)
    asked.clear()
    again = FlowerTables(file)

    def noting(client: int, message: Message, answer: Callable[[], Message]) -> Message:
        asked.append(message.metadata.message_type)
        return answer()

    again.run(Hospitals(again, tmp_path, answering=noting), tmp_path / "again", patience=5, timeout=1)
    assert "query.table" not in asked
    assert (tmp_path / "again" / "last.safetensors").read_bytes() == (calm / "last.safetensors").read_bytes()


def test_under_secure_aggregation_the_server_sees_no_client_s_numbers(tmp_path: Path) -> None:
    file, seen = written(tmp_path), []

    def answering(client: int, message: Message, answer: Callable[[], Message]) -> Message:
        reply = answer()
        if message.metadata.message_type == "query.table" and "secure" in message.content.config_records:
            seen.append(reply.content.array_records["sums"]["sums"].numpy())
        return reply

    secure = ("method.label_statistics=secure_aggregation", "method.weighting=equal", "method.adaptation=none")
    hidden = trained(file, *secure, answering=answering)
    assert len(seen) == 9
    assert all(each.dtype == "uint64" and (each > 2**40).any() for each in seen)
    record = RunFolder(hidden).required(FederationRecord)
    plain = tmp_path / "unadapted"
    plain.mkdir()
    other = RunFolder(trained(written(plain), "method.adaptation=none")).required(FederationRecord)
    for mine, theirs in zip(record.preparation or (), other.preparation or (), strict=True):
        assert {**mine, "mean": 0, "sd": 0} == {**theirs, "mean": 0, "sd": 0}
        assert mine.get("mean") == pytest.approx(theirs.get("mean"))


def test_a_node_without_a_table_is_named_with_what_to_do(tmp_path: Path) -> None:
    file = written(tmp_path)
    (tmp_path / "cedar.csv").unlink()
    setup = FlowerTables(file)
    with pytest.raises(TrainingError, match=r"Missing: cedar\..*cedar\.csv"):
        setup.run(Hospitals(setup, tmp_path), tmp_path / "flower", min_clients=3, patience=0.5, timeout=1)


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("method.adaptation=label_shift", r"adaptation .* needs classes as targets.* are numbers"),
        ("method.loss=cross_entropy", r"loss .* needs classes as targets"),
        ("evaluation.metrics=['auroc']", r"metric .* needs classes as targets"),
    ],
)
def test_what_needs_classes_is_refused_where_numbers_are_predicted(tmp_path: Path, override: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        FlowerTables(with_prices(tmp_path), overrides=(override,))


def test_a_client_that_tells_nonsense_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path)

    def answering(client: int, message: Message, answer: Callable[[], Message]) -> Message:
        reply = answer()
        if client == 2 and message.metadata.message_type == "query.table":
            reply.content["fedreach"] = ConfigRecord({"told": "[1, 2"})
        return reply

    setup = FlowerTables(file, overrides=('population.participants=["ash","birch"]',))
    setup.run(Hospitals(setup, tmp_path, answering=answering), tmp_path / "flower", patience=5, timeout=1)
    assert RunFolder(tmp_path / "flower").required(FederationRecord).participants.tolist() == [0, 1]


@pytest.mark.slow
def test_a_participant_that_is_misspelt_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    setup = FlowerTables(written(tmp_path), overrides=('population.participants=["ash","birch","ceder"]',))
    with caplog.at_level("WARNING", logger="flwr"):
        setup.run(Hospitals(setup, tmp_path), tmp_path / "flower", min_clients=2, patience=0.5, timeout=1)
    assert "Participant 'ceder' is unknown and does not train. Did you mean 'cedar'?" in caplog.text


def test_a_run_that_ends_before_its_first_round_says_so_in_its_result(tmp_path: Path) -> None:
    setup = FlowerTables(written(tmp_path), overrides=('data.columns={drop=["nto"]}',))
    with pytest.raises(ConfigError, match="unknown column 'nto'"):
        setup.run(Hospitals(setup, tmp_path), tmp_path / "flower", patience=5, timeout=1)
    result = json.loads((tmp_path / "flower" / "result.json").read_text(encoding="utf-8"))
    assert result["status"] == "failed"
    assert "unknown column 'nto'" in result["error"]


def test_a_table_of_another_hospital_than_the_node_says_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path)
    hospitals().query("site == 'dogwood'").to_csv(tmp_path / "cedar.csv", index=False)
    setup = FlowerTables(file)
    with pytest.raises(TrainingError, match="column 'site' must be 'cedar'; got 'dogwood'"):
        setup.run(Hospitals(setup, tmp_path), tmp_path / "flower", min_clients=3, patience=0.5, timeout=1)


@pytest.mark.slow
def test_the_example_s_hospitals_train_on_tables_of_their_own(tmp_path: Path) -> None:
    sys.path.insert(0, str(APP))
    try:
        from flower_app.hospitals import setup
    finally:
        sys.path.remove(str(APP))
    patients = pd.read_csv(APP.parent / "patients.csv")
    names = sorted(patients["hospital"].unique())
    for name, part in patients.groupby("hospital"):
        part.to_csv(tmp_path / f"{name}.csv", index=False)

    class Nodes(InProcess):
        def new_context(self, client: int) -> Context:
            context = super().new_context(client)
            context.node_config |= {"data": str(tmp_path / f"{names[client]}.csv")}  # which name their hospital
            return context

    setup.run(Nodes(setup.client_app(), range(len(names))), tmp_path / "flower", patience=5, timeout=5)
    record = RunFolder(tmp_path / "flower").required(FederationRecord)
    assert record.client_names == names
    assert [names[client] for client in record.participants.tolist()] == ["alder", "birch"]
