"""Adaptation at the end of a run: trained once for all rules, and the same bytes however it came about."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tests.conftest import EXACT, TINY, Command, rows

from fedreach._util.errors import ConfigError, RunFolderError
from fedreach.cli import main
from fedreach.deploy.adapter import Adapter
from fedreach.deploy.fitted_rule import load
from fedreach.federation.adaptation.label_shift import LabelShift
from fedreach.federation.labels import DiscreteLaplace
from fedreach.runs.folder import ADAPTATION_FILE
from fedreach.runs.schema import AdaptationRecord, AdaptedLine
from fedreach.testing.problems import tiny_federation

ADAPTED = """
[methods.shift]
adaptation = "label_shift"

[methods.bbse]
adaptation = "bbse"

[methods.truth]
adaptation = "oracle_prior"
"""
FILES = (*EXACT, AdaptationRecord.FILE, AdaptedLine.FILE, ADAPTATION_FILE)


class Comparison:
    """One comparison on which several tests look; run where the first of them runs."""

    def __init__(self, home: Path) -> None:
        (home / "tiny.toml").write_text(TINY + ADAPTED, encoding="utf-8")
        self.folder = home / "out"
        more = ["--seeds", "1", "--workers", "2", "--formats", "none", "--set", "evaluation.inputs=[3]", "--json"]
        done = CliRunner().invoke(main, ["compare", str(home / "tiny.toml"), *more, "--out", str(self.folder)])
        assert done.exit_code == 0, done.output
        self.answer = json.loads(done.stdout)

    def records(self, method: str) -> list[Path]:
        return sorted(self.folder.glob(f"runs/{method}/*/{AdaptationRecord.FILE}"))


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return Comparison(tmp_path_factory.mktemp("comparison"))


def add(home: Path, text: str) -> None:
    path = home / "tiny.toml"
    path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")


def compare(fedreach: Command, *more: str) -> None:
    done = fedreach("compare", "tiny.toml", "--seeds", "1", "--formats", "none", "--out", "out", *more)
    assert done.exit_code == 0, done.output


def rounds_trained(out: Path) -> dict[str, list[float]]:
    """Return the seconds of each round of each method, which no two trainings have in common."""
    found = {}
    for folder in (out / "runs").iterdir():
        found[folder.name] = [row.get("train_seconds", 0.0) for row in rows(folder / "seed-0", "timing.jsonl")]
    return found


def test_methods_that_differ_in_adaptation_alone_are_trained_once(comparison: Comparison) -> None:
    trained = rounds_trained(comparison.folder)
    assert trained["shift"] == trained["bbse"] == trained["truth"] == trained["uniform"]
    assert trained["entropy"] != trained["uniform"]


def test_runs_that_take_the_training_of_others_are_counted(fedreach: Command, home: Path) -> None:
    add(home, '\n[methods.bbse]\nadaptation = "bbse"\n')
    run = ("compare", "tiny.toml", "--seeds", "1", "--formats", "none", "--workers", "1", "--out", "out")
    lines = fedreach(*run).stderr.splitlines()
    assert any(line.startswith("  Training  3/3 runs, ") for line in lines)
    add(home, '\n[methods.rlls]\nadaptation = "rlls"\n')
    lines = fedreach(*run).stderr.splitlines()
    assert "  Resumed   3/4 runs were already finished" in lines
    assert any(line.startswith("  Training  4/4 runs, ") for line in lines)


@pytest.mark.slow
def test_a_rule_that_is_added_later_trains_nothing_and_leaves_the_bytes_of_one_trained_alone(
    fedreach: Command, home: Path
) -> None:
    compare(fedreach)
    before = rounds_trained(home / "out")
    folder = home / "out" / "runs" / "uniform" / "seed-0"
    assert not any((folder / name).exists() for name in (AdaptationRecord.FILE, AdaptedLine.FILE, ADAPTATION_FILE))
    add(home, ADAPTED)
    compare(fedreach)
    assert rounds_trained(home / "out")["shift"] == before["uniform"]
    alone = fedreach("run", "tiny.toml", "--method", "shift", "--out", "alone")
    assert alone.exit_code == 0, alone.output
    for name in FILES:
        assert (home / "alone" / name).read_bytes() == (home / "out" / "runs" / "shift" / "seed-0" / name).read_bytes()


def test_the_modes_say_what_they_are(comparison: Comparison) -> None:
    folder = comparison.folder / "runs" / "shift" / "seed-0"
    record = json.loads((folder / AdaptationRecord.FILE).read_text(encoding="utf-8"))
    columns, last = record["columns"]["last"], rows(folder)[-1]
    # Plain is the model as it is evaluated after its last round, logits one client at a time.
    for name in ("participant", "unseen"):
        assert columns[f"{name}_unadapted_accuracy"] == pytest.approx(last[f"{name}_accuracy"], abs=1e-6)
        assert columns[f"{name}_unadapted_loss"] == pytest.approx(last[f"{name}_loss"], rel=1e-4)
    modes = ("calibrated", "adapted", "online", "oracle_prior", "adapted_3")
    assert {f"unseen_{mode}_accuracy" for mode in modes} <= set(columns)
    assert record["exchanges"] > 2
    assert record["bytes_up"] > 0
    assert "needs_labels" not in record
    truth = json.loads(
        (comparison.folder / "runs" / "truth" / "seed-0" / AdaptationRecord.FILE).read_text(encoding="utf-8")
    )
    assert truth["needs_labels"]
    assert (
        truth["columns"]["last"]["unseen_adapted_accuracy"] == truth["columns"]["last"]["unseen_oracle_prior_accuracy"]
    )
    lines = rows(folder, AdaptedLine.FILE)
    one = next(line for line in lines if line["population"] == "unseen" and line["mode"] == "adapted")
    assert np.mean(one["accuracy"]) == pytest.approx(columns["unseen_adapted_accuracy"], abs=1e-6)


def test_the_report_shows_modes_gain_and_the_gap_taken_apart(comparison: Comparison) -> None:
    done = CliRunner().invoke(main, ["report", str(comparison.folder), "--formats", "none"])
    assert "(“adapted”)" in done.output
    page = (comparison.folder / "report" / "index.html").read_text(encoding="utf-8")
    table = (comparison.folder / "report" / "table.md").read_text(encoding="utf-8")
    for text in (page, table):
        assert "Accuracy on unseen clients before and after adaptation, %" in text
        assert "Parts of the participation gap of the unadapted model" in text
        assert "(needs labels)" in text
    marked = [line for line in table.splitlines() if line.startswith("| truth") and "labels" in line]
    assert marked, "the reference is marked as needing labels"


def test_machines_read_how_clients_are_adapted(comparison: Comparison) -> None:
    methods = {record["method"]: record for record in comparison.answer["methods"]}
    shift, plain = methods["shift"], methods["uniform"]
    assert shift["adapted_gain_mean"] == pytest.approx(
        shift["adapted_adapted_accuracy_mean"] - shift["adapted_unadapted_accuracy_mean"]
    )
    assert shift["adapted_rule"].startswith("LabelShift(")
    assert plain["adapted_rule"] is None
    assert len({tuple(method) for method in methods.values()}) == 1  # the same keys, whatever modes a rule has
    columns = [json.loads(path.read_text(encoding="utf-8"))["columns"]["last"] for path in comparison.records("shift")]
    with_3 = [column["unseen_adapted_3_accuracy"] - column["unseen_unadapted_3_accuracy"] for column in columns]
    assert shift["adapted_gain_with_3_mean"] == pytest.approx(np.mean(with_3))
    assert shift["adapted_adapted_clients"] == pytest.approx(np.mean([column["unseen_adapted"] for column in columns]))
    assert methods["truth"]["adapted_gain_with_3_mean"] is None


def test_secure_aggregation_stands_in_for_the_sum(fedreach: Command, home: Path) -> None:
    add(home, '\n[methods.shift]\nadaptation = "label_shift"\n')
    for out, more in (("open", []), ("sums", ["--set", "method.label_statistics=secure_aggregation"])):
        done = fedreach("run", "tiny.toml", "--method", "shift", "--out", out, *more)
        assert done.exit_code == 0, done.output
    (a, _), (b, _) = (_fitted(home / out) for out in ("open", "sums"))
    for name, value in a.items():
        np.testing.assert_allclose(b[name], value, rtol=1e-3, atol=1e-4, err_msg=name)  # models differ by rounding


def _fitted(folder: Path) -> tuple[dict[str, object], str]:
    adapter = load(folder)
    return dict(adapter.state), repr(adapter.rule)


def test_noised_label_counts_and_adaptation_do_not_go_together() -> None:
    from dataclasses import replace

    with pytest.raises(ConfigError, match=r"adds no noise\. Use label_statistics = 'secure_aggregation'"):
        replace(tiny_federation(), adaptation=LabelShift(), label_statistics=DiscreteLaplace(epsilon=1.0))


def test_an_adapter_serves_as_the_run_did(fedreach: Command, home: Path) -> None:
    add(home, '\n[methods.shift]\nadaptation = { name = "label_shift", guard = false, strength = 1.0 }\n')
    done = fedreach("run", "tiny.toml", "--method", "shift", "--out", "adapted")
    assert done.exit_code == 0, done.output
    adapter, rng = load(home / "adapted"), np.random.default_rng(0)
    logits = rng.standard_normal((30, 10)) + 4.0 * np.eye(10)[rng.integers(2, size=30)]
    adapter.fit(logits[:20]).partial_fit(logits[20:])
    whole = Adapter(adapter.rule, adapter.state, adapter.model).fit(logits)
    np.testing.assert_allclose(adapter.prior_, whole.prior_, atol=1e-12)
    np.testing.assert_allclose(adapter.predict_proba(logits).sum(axis=1), 1.0)
    assert (adapter.predict(logits) == adapter.predict_proba(logits).argmax(axis=1)).all()
    assert adapter.prior_[:2].sum() > 0.8
    assert not adapter.guarded_


def test_an_adapter_says_what_is_wrong(fedreach: Command, home: Path) -> None:
    done = fedreach("run", "tiny.toml", "--method", "uniform", "--out", "unadapted")
    assert done.exit_code == 0, done.output
    with pytest.raises(RunFolderError, match=r"has no adaptation rule.*Run with method\.adaptation"):
        load(home / "unadapted")
    adapter = Adapter(
        LabelShift(), {"a": np.ones(1), "b": np.zeros(2), "base": np.full(2, 0.5), "pseudo_counts": np.ones(1)}
    )
    with pytest.raises(ConfigError, match=r"must be finite numbers of shape \(m, 2\); got shape \(1, 3\)"):
        adapter.fit([[1.0, 2.0, 3.0]])
    with pytest.raises(ConfigError, match=r"has no inputs yet\. Call fit first"):
        adapter.prior_  # noqa: B018
    adapter.fit(np.zeros((3, 2)))
    with pytest.raises(
        ConfigError, match=r"features must be given as in fit.*got inputs with features\. Call fit again"
    ):
        adapter.partial_fit(np.zeros((3, 2)), np.zeros((3, 4)))
    adapter.fit(np.zeros((3, 2)), np.zeros((3, 4)))
    with pytest.raises(ConfigError, match="got inputs without features"):
        adapter.partial_fit(np.zeros((3, 2)))


def test_with_a_radio_seconds_and_joules_of_fitting_are_counted_and_shown(fedreach: Command, home: Path) -> None:
    add(home, "\n[radio]\n" + ADAPTED)
    done = fedreach("compare", "tiny.toml", "--seeds", "1", "--formats", "none", "--out", "out", "--json")
    assert done.exit_code == 0, done.output
    record = json.loads((home / "out" / "runs" / "bbse" / "seed-0" / AdaptationRecord.FILE).read_text(encoding="utf-8"))
    assert record["exchanges"] == 1
    assert record["seconds"] > 0
    assert record["joules"] > 0
    (told,) = [row for row in json.loads(done.stdout)["methods"] if row["method"] == "bbse"]
    assert told["adapted_seconds"] == record["seconds"]
    assert told["adapted_joules"] == record["joules"]
    assert told["adapted_kilobytes_up"] == record["bytes_up"] / 1000
    table = (home / "out" / "report" / "table.md").read_text(encoding="utf-8")
    page = (home / "out" / "report" / "index.html").read_text(encoding="utf-8")
    for text in (table, page):
        assert "time to fit" in text
        assert "energy to fit" in text


def test_without_a_radio_nothing_is_said_of_seconds_and_joules(fedreach: Command, home: Path) -> None:
    add(home, '\n[methods.bbse]\nadaptation = "bbse"\n')
    compare(fedreach)
    folder = home / "out" / "runs" / "bbse" / "seed-0"
    assert not {"seconds", "joules"} & set(json.loads((folder / AdaptationRecord.FILE).read_text(encoding="utf-8")))
    assert "energy to fit" not in (home / "out" / "report" / "table.md").read_text(encoding="utf-8")
