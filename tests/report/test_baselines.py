"""Baselines are rows of every table with accuracy, and what they or a column beat is said."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedreach.report.adaptation import _majority as majority
from fedreach.report.analysis import baselines_of as summarized_of
from fedreach.report.concerns import chance_accuracy, concerns
from fedreach.report.findings import find
from fedreach.report.formats import full_text
from fedreach.report.numbers import RunSet
from fedreach.report.overview import analyse
from fedreach.report.read import read
from fedreach.report.records import as_document
from fedreach.report.tables import tabulate
from fedreach.report.write import write_report
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import BaselinesRecord, FederationRecord

from .made_up import baselines_of, compared, edit, federation, write_comparison, write_run

LEAK = {"column": "discharge", "measure": "AUROC", "value": 0.99871}


def one_run(path: Path, *, level: float = 0.7, clients: int = 50, **options: object) -> RunSet:
    """Return a run that reaches about `level` on participants and 6 points less on unseen clients."""
    held = federation(clients)
    record = baselines_of(held, **options) if options else None  # type: ignore[arg-type]
    return read([write_run(path / "run", level=level, held=held, rounds=60, baselines=record)])


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods and two seeds, each seed with a federation and with baselines of its own."""
    out, runs = tmp_path_factory.mktemp("several"), {}
    for method in ("one", "two"):
        for seed in (0, 1):
            held, folder = federation(seed=seed), f"runs/{method}/seed-{seed}"
            runs.setdefault(method, {})[str(seed)] = folder
            record = baselines_of(held, 0.2 + 0.02 * seed, 0.6 + 0.04 * seed)
            write_run(out / folder, method, seed, held=held, baselines=record, rounds=24)
    compared(out, runs)
    return out


def test_chance_and_majority_are_counted_client_by_client() -> None:
    """Participants hold (8, 0) and (1, 3) labels, a third one tells none, and the unseen client holds (0, 9)."""
    counts, participants = np.array([[8, 0], [1, 3], [0, 0], [0, 9]]), np.arange(3)
    held = replace(federation(4, 1), label_counts=counts, participants=participants, unseen=np.array([3]))
    assert chance_accuracy(held) == (1 + 1 / 4) / 2  # one class for all of them: the first
    run = SimpleNamespace(partition=held)
    assert majority(run, "participant") == (1 + 3 / 4) / 2  # a class for each of them
    assert majority(run, "unseen") == 1


def test_baselines_stand_below_the_methods_with_their_spread_over_federations(several: Path) -> None:
    table = tabulate(analyse(read([several])))
    assert [row[0] for row in table.rows] == ["one", "two", "majority class", "pooled logistic regression"]
    unseen = table.header.index("unseen clients")
    assert [row[unseen] for row in table.rows[2:]] == ["21.0 ± 1.4", "62.0 ± 2.8"]
    assert "Majority class: computed from the participants' training rows." in table.details
    assert not any(i >= 2 for i, _ in table.bold)


def test_they_are_counted_once_a_federation_however_many_methods_share_it(several: Path) -> None:
    comparison = read([several])
    assert len(comparison.all_counted) == 4
    assert len(summarized_of(comparison)) == 2


def test_every_file_and_the_page_have_them(several: Path, tmp_path: Path) -> None:
    written = write_report([several], tmp_path)
    for path in (written.page, *written.tables):
        text = path.read_text(encoding="utf-8")
        assert "pooled logistic regression" in text, path
        assert "majority class" in text, path
    rows = list(csv.DictReader(io.StringIO((tmp_path / "report/table.csv").read_text(encoding="utf-8"))))
    assert [(row["method"], row["unseen_mean"]) for row in rows[2:]] == [
        ("majority class", "0.21000000000000002"),
        ("pooled logistic regression", "0.62"),
    ]
    document = as_document(written.analysis)
    assert [row["method"] for row in document["methods"]] == ["one", "two"]
    assert [row["unseen_mean"] for row in document["baselines"]] == [pytest.approx(0.21), pytest.approx(0.62)]
    assert "majority class" in full_text(tabulate(written.analysis), width=80)


def test_without_baselines_nothing_is_shown_of_them(tmp_path: Path) -> None:
    analysis = analyse(read([write_comparison(tmp_path, ["one"], [0], rounds=12)]))
    assert analysis.baselines == ()
    assert "pooled" not in tabulate(analysis).note
    assert as_document(analysis)["baselines"] == []


def test_why_there_is_no_pooled_model_is_said(tmp_path: Path) -> None:
    analysis = analyse(one_run(tmp_path, majority=0.2, pooled=None))
    assert [row.method for row in analysis.baselines] == ["majority class"]
    assert "No pooled linear model: it would take too long." in tabulate(analysis).note


# ---------------------------------------------------------------------------------------------------- concerns


def test_a_model_that_does_better_than_all_baselines_gives_no_concern(tmp_path: Path) -> None:
    assert concerns(one_run(tmp_path, majority=0.2, pooled=0.5)) == ()


def test_one_below_the_majority_is_told_with_both_numbers_and_what_to_do(tmp_path: Path) -> None:
    comparison = one_run(tmp_path, majority=0.9, pooled=0.95)
    comparison.runs[0].baselines.columns["majority"]["train_accuracy"] = 0.99  # type: ignore[union-attr, index]
    value = 100 * comparison.runs[0].column("unseen_accuracy")[-1]
    assert concerns(comparison) == (
        f"Worse than no model: {value:.1f}% on unseen clients (majority class: 90.0%). Try more rounds, "
        "more local.epochs or another local.lr, or model = 'linear'.",
    )
    assert concerns(comparison)[0] in find(analyse(comparison)).warnings


def test_under_an_attack_the_malicious_clients_are_the_advice(tmp_path: Path) -> None:
    comparison = one_run(tmp_path, majority=0.9, pooled=0.95)
    comparison.runs[0].config["attack"] = {"name": "sign_flip", "share": 0.2}  # type: ignore[index]
    (said,) = concerns(comparison)
    assert "local.lr" not in said
    assert said.endswith(
        "20% of the participants are malicious (attack sign_flip) and can be the reason. Try another "
        "method.aggregation, or run without [attack]."
    )


def test_one_below_it_on_participants_alone_is_told_too(tmp_path: Path) -> None:
    held = federation()
    record = baselines_of(held, 0.2, 0.5)
    record.columns["majority"]["participant_accuracy"] = 0.99  # type: ignore[index]
    set_all(record, "participants", 0.99)
    (said,) = concerns(read([write_run(tmp_path / "run", held=held, baselines=record)]))
    assert said.startswith("Worse than no model: ")
    assert "on participants' held-out data (majority class: 99.0%)" in said


def set_all(record: BaselinesRecord | None, people: str, score: float) -> None:
    """Give each client of a population this score by the majority class."""
    assert record is not None
    line = record.clients["majority"][people]
    line["accuracy"] = [score] * len(line["ids"])  # type: ignore[index]


def test_what_clients_do_not_decide_is_no_better_and_not_worse(tmp_path: Path) -> None:
    reached = float(one_run(tmp_path, majority=0.2, pooled=0.5).runs[0].column("unseen_accuracy")[-1])
    (said,) = concerns(one_run(tmp_path / "again", majority=reached + 0.01, pooled=0.2))  # clients are 15 points apart
    assert said.startswith("Not better than no model: ")


def test_one_clearly_below_the_pooled_model_is_told(tmp_path: Path) -> None:
    comparison = one_run(tmp_path, majority=0.2, pooled=0.9)
    comparison.runs[0].baselines.columns["pooled"]["train_accuracy"] = 0.99  # type: ignore[union-attr, index]
    (said,) = concerns(comparison)
    assert said.startswith("Clearly worse than a linear model: ")
    assert "on unseen clients (pooled logistic regression: 90.0%). Try more rounds" in said


@pytest.mark.parametrize(("lack", "told"), [(0.019, 0), (0.021, 1)])
def test_what_all_clients_lack_is_clear_from_two_points_on(tmp_path: Path, lack: float, told: int) -> None:
    comparison = one_run(tmp_path, majority=0.2, pooled=0.5)
    (run,) = comparison.runs
    assert run.baselines is not None
    run.baselines.columns["pooled"]["unseen_accuracy"] = run.column("unseen_accuracy")[-1] + lack  # type: ignore[index]
    line = run.baselines.clients["pooled"]["unseen"]
    line["accuracy"] = run.clients["unseen"].score + lack + [0.001, -0.001, *[0] * 13]  # type: ignore[index]
    assert len(concerns(comparison)) == told


@pytest.mark.parametrize(("lack", "told"), [(0.03, 0), (0.15, 1)])
def test_what_clients_disagree_on_is_not_clear(tmp_path: Path, lack: float, told: int) -> None:
    reached = float(one_run(tmp_path, majority=0.2, pooled=0.5).runs[0].column("unseen_accuracy")[-1])
    assert len(concerns(one_run(tmp_path / "again", majority=0.2, pooled=reached + lack))) == told  # 15, 9 points apart


def test_methods_are_named_where_there_are_several(several: Path) -> None:
    comparison = read([several])
    for run in comparison.runs:
        run.baselines.columns["majority"]["unseen_accuracy"] = 0.99  # type: ignore[union-attr, index]
        set_all(run.baselines, "unseen", 0.99)
    (said,) = concerns(comparison)
    one, two = (
        np.mean([run.column("unseen_accuracy")[-1] for run in comparison.counted(method)]) for method in ("one", "two")
    )
    assert said.startswith(f"Worse than no model: one {100 * one:.1f}%, two {100 * two:.1f}% on unseen clients")


def test_a_linear_model_is_not_told_to_be_one(tmp_path: Path) -> None:
    held = federation()
    config = {"model": {"name": "linear"}}
    run = write_run(tmp_path / "run", held=held, baselines=baselines_of(held, 0.9, 0.95), config=config)
    (said,) = concerns(read([run]))
    assert "model = 'linear'" not in said


def test_one_that_is_better_on_the_rows_it_trains_on_is_not_told_to_train_longer(tmp_path: Path) -> None:
    for name, level in {"less": 0.1, "more": 0.99}.items():
        comparison = one_run(tmp_path / name, majority=0.9, pooled=0.95)
        comparison.runs[0].baselines.columns["majority"]["train_accuracy"] = level  # type: ignore[union-attr, index]
        (said,) = concerns(comparison)
        assert ("Try fewer rounds or local.weight_decay" in said) is (name == "less")
        assert ("Try more rounds" in said) is (name == "more")


def test_where_training_rows_were_not_scored_neither_longer_nor_shorter_training_is_advised(tmp_path: Path) -> None:
    (said,) = concerns(one_run(tmp_path, majority=0.9, pooled=0.95))
    assert "another number of rounds or local.weight_decay" in said


def test_near_chance_is_told_where_no_pooled_model_can_tell(tmp_path: Path) -> None:
    for name, options in {"none": {}, "left out": {"majority": 0.05, "pooled": None}}.items():
        (said,) = concerns(one_run(tmp_path / name, level=0.2, **options))
        assert said.startswith("Near chance: ")
    assert concerns(one_run(tmp_path / "both", level=0.2, majority=0.05, pooled=0.1)) == ()


def test_a_column_that_gives_the_label_away_is_named_with_its_number(tmp_path: Path) -> None:
    comparison = one_run(tmp_path, majority=0.2, pooled=0.5, leaks=[LEAK])
    assert concerns(comparison) == (
        "One column alone predicts the label: 'discharge' (AUROC 0.999), on participants' training rows. If its value "
        "is known only after the label, remove it from the data and rerun.",
    )
    two = one_run(tmp_path / "two", majority=0.2, pooled=0.5, leaks=[LEAK, LEAK | {"column": "code"}])
    assert "Each of these columns alone predicts" in concerns(two)[0]
    assert "'discharge' (AUROC 0.999), 'code' (AUROC 0.999)" in concerns(two)[0]


# ------------------------------------------------------------------------------------------------- two classes


def two_classes(path: Path, *, undefined: float | None) -> RunSet:
    held = federation(20, unseen=8)
    write_run(path / "run", held=held, rounds=4, baselines=baselines_of(held, 0.2, 0.5))
    edit(path / "run" / FederationRecord.FILE, num_classes=2)
    comparison = read([path / "run"])
    columns = comparison.runs[0].rounds
    columns["unseen_auroc"] = np.full(5, 0.75)  # type: ignore[index]
    if undefined is not None:
        columns["unseen_auroc_undefined"] = np.full(5, undefined)  # type: ignore[index]
    return comparison


def test_two_classes_have_auroc_and_log_loss_with_the_clients_that_have_one(tmp_path: Path) -> None:
    analysis = analyse(two_classes(tmp_path, undefined=3.0))
    table = tabulate(analysis)
    auroc, loss = table.header.index("AUROC"), table.header.index("log loss")
    assert table.rows[0][auroc] == "0.750"
    assert table.rows[0][loss] == f"{analysis.comparison.runs[0].column('unseen_loss')[-1]:.3f}"
    assert [row[loss] for row in table.rows[1:]] == ["1.000", "1.000"]
    assert (
        "AUROC and log loss are from unseen clients; AUROC is the mean over clients with both classes (5 of 8)."
        in table.note
    )
    record = as_document(analysis)["methods"][0]
    assert record["auroc_mean"] == record["metric_auroc_unseen_mean"] == 0.75


def test_clients_are_not_counted_where_all_have_both_classes(tmp_path: Path) -> None:
    assert (
        "AUROC and log loss are from unseen clients." in tabulate(analyse(two_classes(tmp_path, undefined=None))).note
    )


def test_more_classes_have_neither(tmp_path: Path) -> None:
    assert not {"AUROC", "log loss"} & {*tabulate(analyse(one_run(tmp_path, majority=0.2, pooled=0.5))).header}


def test_baselines_of_another_run_are_refused(tmp_path: Path) -> None:
    from fedreach._util.errors import RunFolderError

    one_run(tmp_path, majority=0.2, pooled=0.5)
    folder = RunFolder(tmp_path / "run")
    folder.write(replace(folder.required(BaselinesRecord), left_out="edited"))
    with pytest.raises(RunFolderError, match=r"baselines\.json was altered, or belongs to another run"):
        read([tmp_path / "run"])


def test_methods_that_all_of_the_participants_train_by_are_told_to_be_the_same(several: Path) -> None:
    comparison = read([several])
    assert not [said for said in concerns(comparison) if "identical numbers" in said]
    one = {run.seed: run.rounds for run in comparison.counted("one")}
    runs = [
        replace(run, rounds=one[run.seed], config={"method": {"cohort_size": 99, "selection": run.method}})
        for run in comparison.runs
    ]
    (said,) = [each for each in concerns(replace(comparison, runs=tuple(runs))) if "identical" in each]
    assert said == (
        "one, two have identical numbers in every round, because all participants train in every round. Lower "
        "method.cohort_size."
    )


def test_methods_that_differ_in_adaptation_alone_train_the_same_and_that_is_no_concern(several: Path) -> None:
    comparison = read([several])
    one = {run.seed: run.rounds for run in comparison.counted("one")}
    adapted = ({"cohort_size": 5, "adaptation": None}, {"cohort_size": 5, "adaptation": "label_shift"})
    runs = [
        replace(run, rounds=one[run.seed], config={"method": adapted[run.method == "two"]}) for run in comparison.runs
    ]
    assert not [said for said in concerns(replace(comparison, runs=tuple(runs))) if "Identical" in said]
