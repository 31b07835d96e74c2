"""Results as data: the same type and columns for one run, a comparison and a sweep; the numbers are the files'."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedreach as fr
from fedreach._util.errors import ConfigError, RunFolderError
from fedreach.api.comparison import CLIENT_COLUMNS, ROUND_COLUMNS

pandas = pytest.importorskip("pandas")
SMALL: dict[str, Any] = {
    "model": "linear",
    "rounds": 4,
    "cohort_size": 3,
    "progress": False,
    "evaluation": {"every": 2},
}


def digits() -> fr.PartitionSpec:
    return fr.load("digits").partition("dirichlet_by_class", clients=12, alpha=0.5, participants=6)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> fr.Comparison:
    methods = {"fedavg": {}, "ours": fr.Method(adaptation="label_shift")}
    return fr.compare(digits(), methods, seeds=2, out=tmp_path_factory.mktemp("frames") / "digits", **SMALL)


def test_rounds_are_methods_times_seeds_times_rounds(comparison: fr.Comparison) -> None:
    rounds = comparison.rounds()
    assert isinstance(rounds, pandas.DataFrame)
    assert tuple(rounds.columns[: len(ROUND_COLUMNS)]) == ROUND_COLUMNS
    keys = [(method, seed, number) for method in ("fedavg", "ours") for seed in (0, 1) for number in range(5)]
    assert list(zip(rounds["method"], rounds["seed"], rounds["round"], strict=True)) == keys
    assert rounds["unseen_accuracy"].isna().tolist() == [number % 2 == 1 for _, _, number in keys]
    assert (rounds["train_seconds"].isna() == (rounds["round"] == 0)).all()
    text = (comparison["ours"].folder(1) / "rounds.jsonl").read_text().splitlines()
    assert rounds.iloc[-1]["unseen_accuracy"] == json.loads(text[-1])["unseen_accuracy"]
    assert rounds.iloc[-1]["cohort"] == json.loads(text[-1])["cohort"]


def test_one_run_has_the_columns_and_types_of_many(comparison: fr.Comparison) -> None:
    run = fr.open(comparison["ours"].folder(1))
    assert isinstance(run, fr.Run)
    assert (run.method, run.seed) == ("ours", 1)
    for one, many in ((run.rounds(), comparison.rounds()), (run.clients(), comparison.clients())):
        assert list(one.dtypes.items()) == list(many.dtypes.items())
        mine = many[(many["method"] == "ours") & (many["seed"] == 1)].reset_index(drop=True)
        pandas.testing.assert_frame_equal(one, mine)


def test_a_run_by_itself_is_opened_and_has_the_same_fixed_columns(tmp_path: Path, comparison: fr.Comparison) -> None:
    for _ in fr.run(digits(), model="linear", rounds=2, cohort_size=3, out=tmp_path / "alone"):
        pass
    run = fr.open(tmp_path / "alone")
    assert isinstance(run, fr.Run)
    rounds, several = run.rounds(), comparison.rounds()
    assert rounds["round"].tolist() == [0, 1, 2]
    fixed = list(ROUND_COLUMNS)
    assert rounds[fixed].dtypes.equals(several[fixed].dtypes)
    assert run.model().predict(np.zeros((1, 1, 8, 8), np.uint8)) is not None


def test_clients_have_a_row_for_each_evaluation(comparison: fr.Comparison) -> None:
    clients = comparison.clients()
    assert tuple(clients.columns[: len(CLIENT_COLUMNS)]) == CLIENT_COLUMNS
    assert {"accuracy", "loss"} <= set(clients.columns)
    assert set(clients["round"]) == {0, 2, 4}
    rounds = comparison.rounds().set_index(["method", "seed", "round"])
    unseen = clients[clients["population"] == "unseen"]
    for key, group in unseen.groupby(["method", "seed", "round"]):
        assert group["accuracy"].mean() == pytest.approx(rounds.loc[key, "unseen_accuracy"], abs=1e-6)


def test_how_clients_are_adapted_stands_in_rows_of_the_last_round_alone(comparison: fr.Comparison) -> None:
    clients = comparison.clients()
    there = clients["adapted_adapted_accuracy"].notna()
    assert set(clients[there]["method"]) == {"ours"}
    assert set(clients[there]["round"]) == {4}
    assert set(clients[there]["population"]) == {"participants", "unseen"}


def test_a_sweep_is_opened_and_says_its_setting_in_each_row(tmp_path: Path) -> None:
    made = fr.sweep(digits(), {"fedavg": {}}, {"local.lr": [0.1, 0.2]}, out=tmp_path / "s", **SMALL)
    sweep = fr.open(made.path)
    assert isinstance(sweep, fr.Sweep)
    rounds = sweep.rounds()
    assert rounds.columns[0] == "local.lr"
    assert tuple(rounds.columns[1 : 1 + len(ROUND_COLUMNS)]) == ROUND_COLUMNS
    assert rounds["local.lr"].tolist() == [0.1] * 5 + [0.2] * 5
    assert sweep.clients().columns[0] == "local.lr"


def test_a_comparison_is_opened(comparison: fr.Comparison) -> None:
    assert isinstance(fr.open(comparison.path), fr.Comparison)


def test_a_folder_without_results_is_refused_with_what_belongs_there(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"a run, a comparison or a sweep: run.json, comparison.json and"):
        fr.open(tmp_path)


def test_without_pandas_it_is_named(comparison: fr.Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="pip install pandas"):
        comparison.rounds()
