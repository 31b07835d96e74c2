"""Serving at the end of a run: trained once for all rules, and the same bytes however it came about."""

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
from fedreach.runs.folder import SERVING
from fedreach.runs.schema import AdaptationRecord, AdaptedLine
from fedreach.testing.problems import tiny_federation

SERVED = """
[methods.shift]
serving = "label_shift"

[methods.bbse]
serving = "bbse"

[methods.truth]
serving = "true_prior"
"""
FILES = (*EXACT, AdaptationRecord.FILE, AdaptedLine.FILE, SERVING)


class Study:
    """One comparison on which several tests look; run where the first of them runs."""

    def __init__(self, home: Path) -> None:
        (home / "tiny.toml").write_text(TINY + SERVED, encoding="utf-8")
        self.folder = home / "out"
        more = ["--seeds", "1", "--workers", "2", "--formats", "none", "--set", "evaluation.inputs=[3]", "--json"]
        done = CliRunner().invoke(main, ["compare", str(home / "tiny.toml"), *more, "--out", str(self.folder)])
        assert done.exit_code == 0, done.output
        self.answer = json.loads(done.stdout)

    def records(self, method: str) -> list[Path]:
        return sorted(self.folder.glob(f"runs/{method}/*/{AdaptationRecord.FILE}"))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study(tmp_path_factory.mktemp("study"))


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


def test_methods_that_differ_in_serving_alone_are_trained_once(study: Study) -> None:
    trained = rounds_trained(study.folder)
    assert trained["shift"] == trained["bbse"] == trained["truth"] == trained["uniform"]
    assert trained["entropy"] != trained["uniform"]


def test_a_run_that_takes_the_training_of_another_says_whose(fedreach: Command, home: Path) -> None:
    add(home, '\n[methods.bbse]\nserving = "bbse"\n')
    run = ("compare", "tiny.toml", "--seeds", "1", "--formats", "none", "--workers", "1", "--out", "out")
    lines = fedreach(*run).stderr.splitlines()
    (trained,) = [line for line in lines if " uniform, seed 0: " in line]
    (served,) = [line for line in lines if " bbse, seed 0: " in line]
    scores = trained.partition("seed 0: ")[2].partition("  (")[0]
    assert scores.startswith("participants ")
    assert f"bbse, seed 0: served, trained as uniform ({scores})  (" in served
    add(home, '\n[methods.rlls]\nserving = "rlls"\n')
    lines = fedreach(*run).stderr.splitlines()  # its twin was finished before, with scores that this command never saw
    assert any("rlls, seed 0: served, trained as uniform  (" in line for line in lines)


def test_a_rule_that_is_added_later_trains_nothing_and_leaves_the_bytes_of_one_trained_alone(
    fedreach: Command, home: Path
) -> None:
    compare(fedreach)
    before = rounds_trained(home / "out")
    folder = home / "out" / "runs" / "uniform" / "seed-0"
    assert not any((folder / name).exists() for name in (AdaptationRecord.FILE, AdaptedLine.FILE, SERVING))
    add(home, SERVED)
    compare(fedreach)
    assert rounds_trained(home / "out")["shift"] == before["uniform"]
    alone = fedreach("run", "tiny.toml", "--method", "shift", "--out", "alone")
    assert alone.exit_code == 0, alone.output
    for name in FILES:
        assert (home / "alone" / name).read_bytes() == (home / "out" / "runs" / "shift" / "seed-0" / name).read_bytes()


def test_the_rungs_say_what_they_are(study: Study) -> None:
    folder = study.folder / "runs" / "shift" / "seed-0"
    record = json.loads((folder / AdaptationRecord.FILE).read_text(encoding="utf-8"))
    columns, last = record["columns"]["last"], rows(folder)[-1]
    # Plain is the model as it is evaluated after its last round, logits one client at a time.
    for name in ("id", "unseen"):
        assert columns[f"{name}_plain_accuracy"] == pytest.approx(last[f"{name}_accuracy"], abs=1e-6)
        assert columns[f"{name}_plain_loss"] == pytest.approx(last[f"{name}_loss"], rel=1e-4)
    rungs = ("calibrated", "served", "online", "true_prior", "served_3")
    assert {f"unseen_{rung}_accuracy" for rung in rungs} <= set(columns)
    assert record["exchanges"] > 2
    assert record["bytes_up"] > 0
    assert "needs_labels" not in record
    truth = json.loads((study.folder / "runs" / "truth" / "seed-0" / AdaptationRecord.FILE).read_text(encoding="utf-8"))
    assert truth["needs_labels"]
    assert truth["columns"]["last"]["unseen_served_accuracy"] == truth["columns"]["last"]["unseen_true_prior_accuracy"]
    lines = rows(folder, AdaptedLine.FILE)
    one = next(line for line in lines if line["population"] == "unseen" and line["rung"] == "served")
    assert np.mean(one["accuracy"]) == pytest.approx(columns["unseen_served_accuracy"], abs=1e-6)


def test_the_report_shows_rungs_gain_and_the_gap_taken_apart(study: Study) -> None:
    done = CliRunner().invoke(main, ["report", str(study.folder), "--formats", "none"])
    assert "how unseen clients are served" in done.output
    page = (study.folder / "report" / "index.html").read_text(encoding="utf-8")
    table = (study.folder / "report" / "table.md").read_text(encoding="utf-8")
    for text in (page, table):
        assert "How unseen clients are served" in text
        assert "The participation gap taken apart" in text
        assert "true prior, needs labels" in text
    marked = [line for line in table.splitlines() if line.startswith("| truth") and "labels" in line]
    assert marked, "the reference is marked as needing labels"


def test_machines_read_how_clients_are_served(study: Study) -> None:
    methods = {record["method"]: record for record in study.answer["methods"]}
    shift, plain = methods["shift"], methods["uniform"]
    assert shift["served_gain_mean"] == pytest.approx(
        shift["served_served_accuracy_mean"] - shift["served_plain_accuracy_mean"]
    )
    assert shift["served_rule"].startswith("LabelShift(")
    assert plain["served_rule"] is None
    assert len({tuple(method) for method in methods.values()}) == 1  # the same keys, whatever rungs a rule has
    columns = [json.loads(path.read_text(encoding="utf-8"))["columns"]["last"] for path in study.records("shift")]
    with_3 = [column["unseen_served_3_accuracy"] - column["unseen_plain_3_accuracy"] for column in columns]
    assert shift["served_gain_with_3_mean"] == pytest.approx(np.mean(with_3))
    assert shift["served_adapted_clients"] == pytest.approx(np.mean([column["unseen_adapted"] for column in columns]))
    assert methods["truth"]["served_gain_with_3_mean"] is None


def test_a_secure_sum_stands_in_for_the_sum(fedreach: Command, home: Path) -> None:
    add(home, '\n[methods.shift]\nserving = "label_shift"\n')
    for out, more in (("open", []), ("sums", ["--set", "method.label_statistics=secure_sum"])):
        done = fedreach("run", "tiny.toml", "--method", "shift", "--out", out, *more)
        assert done.exit_code == 0, done.output
    (a, _), (b, _) = (_fitted(home / out) for out in ("open", "sums"))
    for name, value in a.items():
        np.testing.assert_allclose(b[name], value, rtol=1e-3, atol=1e-4, err_msg=name)  # models differ by rounding


def _fitted(folder: Path) -> tuple[dict[str, object], str]:
    adapter = load(folder)
    return dict(adapter.state), repr(adapter.rule)


def test_noised_label_counts_and_serving_do_not_go_together() -> None:
    from dataclasses import replace

    with pytest.raises(ConfigError, match=r"would not noise that\. Use label_statistics = 'secure_sum'"):
        replace(tiny_federation(), serving=LabelShift(), label_statistics=DiscreteLaplace(epsilon=1.0))


def test_an_adapter_serves_as_the_run_did(fedreach: Command, home: Path) -> None:
    add(home, '\n[methods.shift]\nserving = { name = "label_shift", guard = false, strength = 1.0 }\n')
    done = fedreach("run", "tiny.toml", "--method", "shift", "--out", "served")
    assert done.exit_code == 0, done.output
    adapter, rng = load(home / "served"), np.random.default_rng(0)
    logits = rng.standard_normal((30, 10)) + 4.0 * np.eye(10)[rng.integers(2, size=30)]
    adapter.fit(logits[:20]).partial_fit(logits[20:])
    whole = Adapter(**adapter.get_params()).fit(logits)
    np.testing.assert_allclose(adapter.prior_, whole.prior_, atol=1e-12)
    np.testing.assert_allclose(adapter.predict_proba(logits).sum(axis=1), 1.0)
    assert (adapter.predict(logits) == adapter.predict_proba(logits).argmax(axis=1)).all()
    assert adapter.prior_[:2].sum() > 0.8
    assert not adapter.guarded_


def test_an_adapter_says_what_is_wrong(fedreach: Command, home: Path) -> None:
    done = fedreach("run", "tiny.toml", "--method", "uniform", "--out", "plain")
    assert done.exit_code == 0, done.output
    with pytest.raises(RunFolderError, match=r"holds no serving rule.*Run with method\.serving"):
        load(home / "plain")
    adapter = Adapter(
        LabelShift(), {"a": np.ones(1), "b": np.zeros(2), "base": np.full(2, 0.5), "pseudo_counts": np.ones(1)}
    )
    with pytest.raises(ConfigError, match=r"must be finite numbers of shape \(m, 2\); got shape \(1, 3\)"):
        adapter.fit([[1.0, 2.0, 3.0]])
    with pytest.raises(ConfigError, match=r"has seen no inputs yet\. Call fit first"):
        adapter.prior_  # noqa: B018
    adapter.fit(np.zeros((3, 2)))
    with pytest.raises(ConfigError, match=r"given features as fit was.*these came with features\. Call fit anew"):
        adapter.partial_fit(np.zeros((3, 2)), np.zeros((3, 4)))
    adapter.fit(np.zeros((3, 2)), np.zeros((3, 4)))
    with pytest.raises(ConfigError, match="these came without features"):
        adapter.partial_fit(np.zeros((3, 2)))


def test_with_a_radio_seconds_and_joules_of_fitting_are_counted_and_shown(fedreach: Command, home: Path) -> None:
    add(home, "\n[radio]\n" + SERVED)
    done = fedreach("compare", "tiny.toml", "--seeds", "1", "--formats", "none", "--out", "out", "--json")
    assert done.exit_code == 0, done.output
    record = json.loads((home / "out" / "runs" / "bbse" / "seed-0" / AdaptationRecord.FILE).read_text(encoding="utf-8"))
    assert record["exchanges"] == 1
    assert record["seconds"] > 0
    assert record["joules"] > 0
    (told,) = [row for row in json.loads(done.stdout)["methods"] if row["method"] == "bbse"]
    assert told["served_seconds"] == record["seconds"]
    assert told["served_joules"] == record["joules"]
    assert told["served_kilobytes_up"] == record["bytes_up"] / 1000
    table = (home / "out" / "report" / "table.md").read_text(encoding="utf-8")
    page = (home / "out" / "report" / "index.html").read_text(encoding="utf-8")
    for text in (table, page):
        assert "time to fit" in text
        assert "energy to fit" in text


def test_without_a_radio_nothing_is_said_of_seconds_and_joules(fedreach: Command, home: Path) -> None:
    add(home, '\n[methods.bbse]\nserving = "bbse"\n')
    compare(fedreach)
    folder = home / "out" / "runs" / "bbse" / "seed-0"
    assert not {"seconds", "joules"} & set(json.loads((folder / AdaptationRecord.FILE).read_text(encoding="utf-8")))
    assert "energy to fit" not in (home / "out" / "report" / "table.md").read_text(encoding="utf-8")
