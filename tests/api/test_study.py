"""Python says what TOML says: one check, one set of run folders, the same bytes; and what came out can be asked."""

from __future__ import annotations

import csv
import filecmp
import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedreach as fr
from fedreach._util.errors import ComponentError, ConfigError, RunFolderError, TrainingError
from fedreach._util.streams import generator
from fedreach.data.assignment import Partition
from fedreach.data.federated import federate
from fedreach.data.partition import iid
from fedreach.deploy.export import predict_file
from fedreach.experiment.load import load as load_experiment
from fedreach.federation.adaptation.base import Unadapted, log_softmax
from fedreach.federation.weighting import Equal

from ..data.hospitals import table  # noqa: TID252

SMALL: dict[str, Any] = {
    "model": "linear",
    "rounds": 4,
    "cohort_size": 3,
    "progress": False,
    "evaluation": {"every": 2},
}
DIFFERS = {"timing.jsonl", "index.html"}  # by the seconds that rounds took


def digits(**options: Any) -> fr.PartitionSpec:
    given = {"clients": 12, "alpha": 0.5, "participants": 6} | options
    return fr.load("digits").partition("dirichlet_by_class", **given)


def hospitals(**options: Any) -> fr.FederatedData:
    return fr.FederatedData.from_frame(table(), client="hospital", label="readmitted", **options)


def same_files(one: Path, other: Path) -> int:
    """Check that two folders hold the same, but for seconds, and return how many files that are."""
    names = sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file() and path.name not in DIFFERS)
    others = sorted(path.relative_to(other) for path in other.rglob("*") if path.is_file() and path.name not in DIFFERS)
    assert names == others
    different = [name for name in names if not filecmp.cmp(one / name, other / name, shallow=False)]
    assert not different
    return len(names)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


TOML = """\
name = "python"
rounds = 4
seeds = [0, 1]
model = "linear"

[partition]
name = "dirichlet_by_class"
clients = 12
alpha = 0.5

[population]
participants = 6

[evaluation]
every = 2

[method]
cohort_size = 3

[methods.uniform]

[methods.ours]
weighting = { name = "entropy" }
local = { lr = 0.05 }
adaptation = "label_shift"
"""


@pytest.mark.slow
def test_python_and_toml_of_the_same_study_give_the_same_bytes(here):
    (here / "comparison.toml").write_text(TOML, encoding="utf-8")
    ours = fr.Method(weighting="entropy", local={"lr": 0.05}, adaptation="label_shift")
    comparison = fr.compare(digits(), {"uniform": {}, "ours": ours}, seeds=2, out=here / "python", **SMALL)
    comparison.page()
    command = [sys.executable, "-m", "fedreach", "compare", "comparison.toml", "--out", "toml", "--quiet"]
    subprocess.run(command, check=True, capture_output=True)
    assert same_files(here / "python", here / "toml") > 40


@pytest.mark.slow
def test_what_has_no_name_runs_by_its_toml_to_the_same_bytes(here):
    def half(reports):
        return np.full(len(reports.ids), 1 / len(reports.ids))

    comparison = fr.compare(
        hospitals(participants=["north", "south", "east"]),
        {"half": {"weighting": half}, "equal": fr.Method(weighting=Equal())},
        seeds=2,
        out="runs/mine",
        **SMALL,
    )
    (here / "elsewhere").mkdir()
    text = comparison.to_toml("elsewhere/mine.toml")
    assert text == (here / "elsewhere/mine.toml").read_text(encoding="utf-8")
    assert "half-" in text
    command = [sys.executable, "-m", "fedreach", "compare", "elsewhere/mine.toml", "--out", "other", "--quiet"]
    subprocess.run(command, check=True, capture_output=True)
    for method in comparison:  # an equal mean by any name
        for seed in comparison.seeds:
            assert filecmp.cmp(
                comparison[method].folder(seed) / "rounds.jsonl",
                here / "other/runs" / method / f"seed-{seed}/rounds.jsonl",
            )
    record = json.loads((here / "runs/mine/runs/half/seed-0/federation.json").read_text(encoding="utf-8"))
    assert record["client_names"][0] == "east"
    assert record["participants"] == [0, 3, 4]


def test_to_toml_says_what_was_asked_and_nothing_else(here):
    comparison = fr.compare(
        digits(), {"uniform": {}, "adam": {"server": {"name": "adam", "lr": 0.05}}}, out="s", **SMALL
    )
    text = comparison.to_toml()
    assert load_experiment_text(here, text).model_dump() == {**comparison.record.config} | {}
    assert 'server = { name = "adam"' in text or "[methods.adam.server]" in text
    assert "secure" not in text
    assert "by_examples" not in text


def load_experiment_text(folder: Path, text: str) -> Any:
    (folder / "again.toml").write_text(text, encoding="utf-8")
    return load_experiment(folder / "again.toml")


def test_all_mistakes_are_told_at_once_by_their_keys_and_nothing_is_written(here):
    with pytest.raises(ConfigError) as refused:
        fr.compare(
            digits(alpha=-1.0),
            {"a": {"selection": "unifrom"}, "b": {"server": 3, "local": {"epoch": 1}}, "c": {"cohort_size": 7}},
            model="mlpp",
            metrics=["acuracy"],
            rounds=0,
            out="nowhere",
            engine={"nam": "native"},
        )
    said = str(refused.value)
    for wanted in (
        "8 mistakes in compare()",
        "methods.a.selection.name: unknown selection 'unifrom'. Did you mean 'uniform'?",
        "methods.b.server: must be a name, or a table with a `name`",
        "methods.b.local.epoch: unknown key. Did you mean 'epochs'?",
        "model.name: unknown model 'mlpp'. Did you mean 'mlp'?",
        "evaluation.metrics[2].name: unknown metric 'acuracy'. Did you mean 'accuracy'?",
        "engine.nam: unknown key. Did you mean 'name'?",
        "rounds: must be greater than or equal to 1; got 0.",
    ):
        assert wanted in said
    assert "alpha of dirichlet_by_class must be" in said
    assert not (here / "nowhere").exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            lambda: fr.load("digits"),
            r"digits has no natural clients\. Divide it among clients, for example with\s+data.partition",
        ),
        (lambda: [1, 2], r"data must be FederatedData, or a data set with .partition\(...\); got list"),
        (
            lambda: federate(fr.load("digits"), iid(fr.load("digits").train_y, 5, generator(0, "partition"))),
            r"were changed after they were created.*`noise`, `shift` and `server_data`",
        ),
    ],
)
def test_data_that_no_other_seed_could_draw_are_refused_with_what_to_do(here, data, message):
    with pytest.raises(ConfigError, match=message):
        fr.compare(data(), {"a": {}}, **SMALL)


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({}, "needs methods by name"),
        ({"a": 3}, "methods.a must be a Method or a dictionary"),
        ({"a": {"servr": "adam"}}, "server"),
    ],
)
def test_methods_that_are_none_are_refused(here, methods, message):
    with pytest.raises(ConfigError, match=message):
        fr.compare(digits(), methods, **SMALL)


# -------------------------------------------------------------------------------------------------- seeds


def participants(comparison: fr.Comparison) -> set[tuple[int, ...]]:
    name = next(iter(comparison))
    records = [json.loads((comparison[name].folder(seed) / "federation.json").read_text()) for seed in comparison.seeds]
    return {tuple(record["participants"]) for record in records}


@pytest.mark.slow
def test_a_seed_draws_who_takes_part_unless_they_are_named(here):
    drawn = fr.compare(hospitals(participants=2), {"a": {}}, seeds=4, out="drawn", **SMALL | {"cohort_size": 2})
    named = fr.compare(
        hospitals(participants=["hill", "west"]), {"a": {}}, seeds=4, out="named", **SMALL | {"cohort_size": 2}
    )
    assert len(participants(drawn)) > 1
    assert participants(named) == {(1, 5)} or len(participants(named)) == 1
    page = named.page().read_text(encoding="utf-8")
    assert (
        "All seeds share the same partition and participants (partition.seed = 0, population.participants lists them)"
        in page
    )
    assert "population.participants lists them" not in drawn.page().read_text(encoding="utf-8")


def test_the_data_of_a_seed_are_those_that_redrawn_shows(here):
    data = hospitals(participants=2, seed=3)
    comparison = fr.compare(data, {"a": {}}, seeds=[5], out="one", **SMALL | {"cohort_size": 2})
    record = json.loads((comparison["a"].folder(5) / "federation.json").read_text(encoding="utf-8"))
    assert record["hash"] == data.redrawn(5).digest()
    spec = digits()
    drawn = fr.compare(spec, {"a": {}}, seeds=[5], out="two", **SMALL)
    record = json.loads((drawn["a"].folder(5) / "federation.json").read_text(encoding="utf-8"))
    assert record["hash"] == fr.FederatedData.from_spec(spec, seed=5).digest()


# ------------------------------------------------------------------------------------------------- going on


def test_a_study_goes_on_where_it_was_and_repeats_nothing(here, capfd):
    methods = {"a": {}, "b": {"weighting": "equal"}}
    fr.compare(digits(), {"a": {}}, out="s", **SMALL)
    before = (here / "s/runs/a/seed-0/timing.jsonl").read_bytes()
    comparison = fr.compare(digits(), methods, out="s", **SMALL | {"progress": True})
    assert "1/2 runs were already finished" in capfd.readouterr().err
    assert (here / "s/runs/a/seed-0/timing.jsonl").read_bytes() == before
    assert comparison.methods == ("a", "b")
    with pytest.raises(RunFolderError, match=r"rounds: stored 4, now 3"):
        fr.compare(digits(), methods, out="s", **SMALL | {"rounds": 3})


def test_a_warning_is_shown_once_and_again_in_what_is_opened_later(here, capfd):
    slow = SMALL | {"progress": True, "local": {"lr": 1e-7}}
    comparison = fr.compare(digits(), {"a": {}}, out="slow", **slow)
    assert "Warning: " in capfd.readouterr().err
    assert "Warning: " not in str(comparison)
    assert "Warning: " in str(fr.open("slow"))


def test_the_same_call_from_another_folder_finds_its_runs(here, monkeypatch, capfd):
    mine = made()
    fr.compare(hospitals(), {"a": {"weighting": mine}}, out=here / "s", **SMALL | {"cohort_size": 2})
    (here / "deeper").mkdir()
    monkeypatch.chdir(here / "deeper")
    fr.compare(hospitals(), {"a": {"weighting": mine}}, out=here / "s", **SMALL | {"cohort_size": 2, "progress": True})
    assert "1/1 runs were already finished" in capfd.readouterr().err


def made(error: str = "") -> Any:
    def mine(reports):
        if error:
            raise RuntimeError(error)
        return np.ones(len(reports.ids)) / len(reports.ids)

    return mine


def test_a_failed_run_is_told_and_begins_anew_once_its_code_is_mended(here):
    with pytest.raises(TrainingError, match=r"1 of 2 runs failed. fedreach.open.*\n  b, seed 0: .*no, not so"):
        fr.compare(digits(), {"a": {}, "b": {"weighting": made("no, not so")}}, out="s", **SMALL)
    assert [fr.open("s").table()["seeds"][name] for name in "ab"] == [1, 0]
    comparison = fr.compare(digits(), {"a": {}, "b": {"weighting": made()}}, out="s", **SMALL)
    assert comparison.table()["seeds"].tolist() == [1, 1]
    with pytest.raises(
        RunFolderError, match=r"config.method.weighting.name: stored 's/parts/mine-"
    ):  # now it has results
        fr.compare(digits(), {"a": {}, "b": {"weighting": made("never")}}, out="s", **SMALL)


# ------------------------------------------------------------------------------------------- what came out


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> fr.Comparison:
    out = tmp_path_factory.mktemp("comparison") / "hospitals"
    data = hospitals(participants=["north", "south", "east"])
    return fr.compare(
        data, {"fedavg": {}, "ours": {"server": "adam", "adaptation": "label_shift"}}, seeds=3, out=out, **SMALL
    )


@pytest.mark.slow
def test_the_table_has_the_numbers_of_the_page(comparison):
    command = [sys.executable, "-m", "fedreach", "report", str(comparison.path), "--formats", "none", "--json"]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    frame = comparison.table()
    for row in told["methods"]:
        assert frame.loc[row["method"], "unseen_mean"] == row["unseen_mean"]
        p = row["difference_p"]
        assert (
            np.isnan(frame.loc[row["method"], "difference_p"])
            if p is None
            else frame.loc[row["method"], "difference_p"] == p
        )
    assert comparison.contrasts()["first"].tolist() == [each["first"] for each in told["contrasts"]]
    page = comparison.page()
    assert page == comparison.path / "report" / "index.html"
    assert f"{100 * frame.loc['ours', 'unseen_mean']:.1f}" in page.read_text(encoding="utf-8")


def in_turn(labels, clients, rng, shift=0):
    return Partition.from_owner((np.arange(len(labels)) + shift) % clients, num_clients=clients, kind="in_turn")


def test_samples_are_divided_by_a_function_of_ones_own(tmp_path):
    spec = fr.load("digits").partition(in_turn, clients=12, participants=4, shift=1)
    assert repr(spec) == "PartitionSpec(digits: in_turn, 12 clients, shift=1, participants=4)"
    drawn = fr.FederatedData.from_spec(spec, seed=1)
    assert drawn.partition[0][:3].tolist() == [11, 23, 35]
    comparison = fr.compare(spec, {"a": {}}, seeds=2, out=tmp_path / "s", **SMALL)
    assert set(comparison["a"].clients(1).query("population == 'participants'").id) == set(
        drawn.population.participants
    )
    again = fr.compare(spec, {"a": {}}, seeds=2, out=tmp_path / "s", **SMALL)
    assert again["a"].rounds(1).equals(comparison["a"].rounds(1))
    assert again.record.runs == comparison.record.runs
    with pytest.raises(ComponentError, match=r"partition '<lambda>' must return a .*Partition; got int"):
        fr.FederatedData.from_spec(fr.load("digits").partition(lambda labels, clients, rng: 3))
    with pytest.raises(ConfigError, match=r"partition.shfit: .* has no such option. Did you mean 'shift'"):
        fr.compare(fr.load("digits").partition(in_turn, shfit=1), {"a": {}}, out=tmp_path / "t", **SMALL)
    assert not (tmp_path / "t").exists()


def test_clients_have_their_names_and_rounds_their_rows(comparison):
    clients = comparison["ours"].clients(seed=1)
    assert set(clients.index) == {"north", "south", "east", "west", "harbour", "hill"}
    assert set(clients.loc[["north", "east"], "population"]) == {"participants"}
    rounds = comparison["ours"].rounds(seed=1)
    assert rounds.index.tolist() == [0, 1, 2, 3, 4]
    mean = clients[clients["population"] == "unseen"]["accuracy"].mean()
    assert mean == pytest.approx(rounds.loc[4, "unseen_accuracy"], abs=1e-6)


def test_clients_say_how_each_is_adapted_as_the_table_says_on_the_mean(comparison):
    by_seed = [comparison["ours"].clients(seed) for seed in comparison.seeds]
    for key in ("adapted_unadapted_accuracy", "adapted_adapted_accuracy", "adapted_adapted_loss"):
        means = [clients[clients["population"] == "unseen"][key].mean() for clients in by_seed]
        assert np.mean(means) == pytest.approx(comparison.table().loc["ours", f"{key}_mean"], abs=1e-6)
    assert not [key for key in comparison["fedavg"].clients() if key.startswith("adapted")]


def test_without_pandas_tables_are_lists_of_rows(comparison, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    rows = comparison.table()
    assert [row["method"] for row in rows] == ["fedavg", "ours"]
    assert comparison["ours"].rounds()[-1]["round"] == 4


def test_a_notebook_is_shown_the_table_and_the_main_figure(comparison):
    shown = comparison._repr_html_()
    assert shown.startswith("<table>")
    assert shown.count("<tr>") == 5  # the heading, two methods and two baselines
    assert "<svg" in shown
    assert repr(comparison) == "Comparison(hospitals: fedavg, ours; 3 seeds)"


@pytest.mark.parametrize("width", [100, 140])
def test_a_study_is_printed_as_wide_as_the_terminal_with_how_clients_are_adapted(comparison, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    told = comparison.table().loc["ours"]
    lines = str(comparison).splitlines()
    assert max(map(len, lines)) <= width
    scores = next(line for line in lines if line.startswith("ours"))
    assert f" {100 * told['unseen_mean']:.1f} ±" in scores
    assert f" {100 * told['adapted_adapted_accuracy_mean']:.1f} ±" in scores


class OwnPlain(Unadapted):
    """A rule of one's own that is written on top of the one that does nothing."""

    def predict(self, state, client, outputs):
        return log_softmax(-outputs.logits)


def test_an_adaptation_rule_that_builds_on_plain_is_adapted(tmp_path):
    comparison = fr.compare(digits(), {"mine": {"adaptation": OwnPlain}}, out=tmp_path / "s", **SMALL)
    told = comparison.table().loc["mine"]
    assert (
        told["adapted_adapted_accuracy_mean"] < told["adapted_unadapted_accuracy_mean"]
    )  # it names the least likely class


def test_what_is_not_in_a_study_is_told_with_the_nearest(comparison):
    with pytest.raises(ConfigError, match=r"Unknown method 'our' in this comparison. Did you mean 'ours'?"):
        comparison["our"]
    with pytest.raises(ConfigError, match=r"Unknown seed 9 in this comparison; its seeds are 0, 1, 2."):
        comparison["ours"].folder(9)
    with pytest.raises(RunFolderError, match=r"nowhere must contain a run, a comparison or a sweep"):
        fr.open("nowhere")


# ---------------------------------------------------------------------------------------------- the names


def test_the_top_level_lists_what_it_has_and_all_of_it_is_there():
    assert dir(fr) == sorted([*fr.__all__, *fr._MODULES, "__version__"])
    for name in fr.__all__:
        assert getattr(fr, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'comparee'"):
        fr.comparee  # noqa: B018


def test_a_method_has_a_field_for_each_part_and_what_a_file_may_say_of_one():
    from dataclasses import fields

    from fedreach.experiment.schema import MethodSection as InFile

    assert {each.name for each in fields(fr.Method)} == {*InFile.model_fields}


def test_pandas_is_not_needed_to_import_any_of_it():
    assert importlib.util.find_spec("fedreach.api.comparison") is not None
    program = (
        "import sys; sys.modules['pandas'] = None; import fedreach as fr; fr.compare, fr.open, fr.run, fr.Comparison"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# ---------------------------------------------------------------------------------------------- the model


def test_columns_of_client_and_label_go_with_a_run_made_in_python(comparison, tmp_path):
    rows = tmp_path / "rows.csv"
    with rows.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([table(), *zip(*table().values(), strict=True)])
    found, about = predict_file(comparison["ours"].model(seed=1), rows)
    assert (about["client_column"], about["label_columns"]) == ("hospital", ["readmitted"])
    clients = comparison["ours"].clients(seed=1)
    for client in found.clients:
        assert client.decision is not None  # each is adapted by itself
        if client.name in ("west", "hill"):  # all of whose rows the run has scored
            assert client.scores["unadapted_accuracy"] == pytest.approx(clients.loc[client.name, "accuracy"], abs=1e-6)
    assert {client.name for client in found.clients} == set(table()["hospital"])
    assert not [note for note in found.rows.notes if "not used" in note]


def test_the_model_takes_a_table_and_names_its_classes(comparison):
    model = comparison["ours"].model(seed=1)
    rows = table()
    named = model.predict(rows)
    assert set(named) <= {"no", "yes"}
    right = np.array(named) == np.array(rows["readmitted"])
    clients = comparison["ours"].clients(seed=1)
    for hospital in ("west", "hill"):  # all of whose rows the run has scored
        own = np.array(rows["hospital"]) == hospital
        assert right[own].mean() == pytest.approx(clients.loc[hospital, "accuracy"], abs=1e-6)


def test_a_module_without_a_name_is_found_again_from_anywhere(here, monkeypatch):
    from torch import nn

    class Net(nn.Module):
        def __init__(self, sample_shape, num_classes):
            super().__init__()
            self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))

        def forward(self, x):
            return self.layers(x)

    digits_ = fr.load("digits")
    comparison = fr.compare(digits(), {"a": {}}, out="s", **SMALL | {"model": Net})
    before = comparison["a"].model().predict_proba(digits_.test_x[:5])
    (here / "s").rename(here / "moved")
    (here / "deeper").mkdir()
    monkeypatch.chdir(here / "deeper")
    from fedreach._util import registry

    registry.LOADED_OBJECTS.clear()
    with pytest.raises(ConfigError, match=r"names the code '.*Net', which would run on this machine"):
        fr.open("../moved")["a"].model()
    after = fr.open("../moved")["a"].model(trust_code=True).predict_proba(digits_.test_x[:5])
    assert (before == after).all()
    with fr.run(digits(), model=Net, rounds=2, cohort_size=3) as loop:
        rows = [*loop]
        right = loop.model().predict(digits_.test_x) == digits_.test_y
        assert right.mean() == pytest.approx(rows[-1]["test_accuracy"], abs=1e-6)


# --------------------------------------------------------------------------------- what was changed in Python


@pytest.mark.slow
def test_data_that_were_changed_after_they_were_loaded_are_not_loaded_again(here):
    plain = fr.load("digits")
    upside_down = replace(plain, train_x=np.ascontiguousarray(plain.train_x[:, :, ::-1]), name="turned")
    assert plain.section == {"name": "digits"}
    assert upside_down.section is None
    given = {"clients": 12, "alpha": 0.5, "participants": 6}
    comparison = fr.compare(upside_down.partition("dirichlet_by_class", **given), {"a": {}}, out="turned", **SMALL)
    same = fr.compare(plain.partition("dirichlet_by_class", **given), {"a": {}}, out="plain", **SMALL)
    turned, upright = comparison["a"].rounds(), same["a"].rounds()
    assert turned.loc[4, "train_loss"] != upright.loc[4, "train_loss"]
    assert comparison.record.config["data"]["name"].startswith("turned/data/turned-")


def test_federated_data_that_were_changed_are_refused(here):
    data = fr.FederatedData.from_spec(digits())
    with pytest.raises(ConfigError, match="were changed after they were created"):
        fr.compare(replace(data, labels=np.zeros_like(data.labels)), {"a": {}}, **SMALL)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"evaluation": "often"}, r"  evaluation: must be a table; got 'often'"),
        ({"local": [1]}, r"  local: must be a table; got \[1\]"),
        ({"method": {"selection": dict}}, r"dict' must have a readable signature.*Wrap it in a Python function"),
        ({"method": {"selection": object()}}, r"must be an instance of a subclass of fedreach.Selection"),
        ({"model": 3}, r"  model: must be a name, or a table with a `name`; got 3"),
        ({"metrics": [lambda y, s: 1.0]}, r"got '<lambda>'. Define the function with"),
    ],
)
def test_what_is_of_the_wrong_sort_is_told_and_never_a_traceback(here, options, message):
    with pytest.raises(ConfigError, match=message):
        fr.compare(digits(), {"a": {}}, **{"progress": False, **options})


def test_a_recipe_tells_a_wrong_option_when_it_is_drawn():
    with pytest.raises(ConfigError, match=r"Unknown option 'alhpa' of partition 'dirichlet_by_class'. Did you mean"):
        fr.FederatedData.from_spec(fr.load("digits").partition("dirichlet_by_class", clients=5, alhpa=1))


def test_metrics_and_seeds_are_taken_as_people_write_them(here):
    def top_two(y_true, scores):
        return (scores.argsort(axis=1)[:, -2:] == y_true[:, None]).any(axis=1).mean()

    given = {**SMALL, "evaluation": {"every": 2, "metrics": [top_two]}}
    comparison = fr.compare(digits(), {"a": {}}, metrics="macro_f1", seeds=np.int64(2), out="s", **given)
    assert comparison.seeds == (0, 1)
    assert {"participant_macro_f1", "unseen_top_two"} <= set(comparison["a"].rounds().columns)
    for seeds in (0, -1, [], True, "two"):
        with pytest.raises(ConfigError, match=r"1 mistake in compare\(\):\n  seeds: must "):
            fr.compare(digits(), {"a": {}}, seeds=seeds, out="t", **SMALL)


def test_a_study_on_disk_is_read_without_torch(comparison):
    program = (
        f"import sys, fedreach as fr; fr.open({str(comparison.path)!r}).table(); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
