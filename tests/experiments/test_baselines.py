"""Runs leave baselines beside them: once a federation, whatever interrupts, and without changing a number."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import EXACT, TINY, Command, exact, rows

from fedreach.experiment import run as experiments_run
from fedreach.experiment.compare import compare
from fedreach.experiment.load import load
from fedreach.experiment.run import run
from fedreach.runs import describe
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import BaselinesRecord

from .inline import Inline

ADAPTED = '\n[methods.adapted]\nadaptation = "label_shift"\n'
FILE = BaselinesRecord.FILE


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Federations whose baselines were fitted, in this order."""
    found: list[str] = []
    original = describe.score_baselines

    def counting(data: Any, *others: Any) -> Any:
        found.append(data.digest())
        return original(data, *others)

    monkeypatch.setattr(describe, "score_baselines", counting)
    return found


def compared(home: Path, *overrides: str) -> Path:
    status = compare(load(home / "tiny.toml", [*overrides]), out=home / "out", base=home, executor=Inline())
    assert not status.failed
    return home / "out"


def alone(home: Path, out: str, *overrides: str) -> Path:
    run(load(home / "tiny.toml", [*overrides]).resolved("uniform"), seed=0, folder=home / out, base=home)
    return home / out


def stored(folder: Path) -> dict[str, Any]:
    return RunFolder(folder).required(BaselinesRecord).to_json()


def test_a_comparison_fits_them_once_a_federation_and_each_run_has_them(home: Path, fitted: list[str]) -> None:
    out = compared(home)
    assert len(fitted) == len({*fitted}) == 2  # of two methods with two seeds
    for seed in (0, 1):
        assert stored(out / f"runs/uniform/seed-{seed}") == stored(out / f"runs/entropy/seed-{seed}")
    assert len(list(out.glob("baselines/*.json"))) == 2
    compared(home, "methods.more={}")
    assert len(fitted) == 2  # a method that is added later fits nothing


def test_a_run_by_itself_finds_the_same(home: Path) -> None:
    assert stored(compared(home) / "runs/uniform/seed-0") == stored(alone(home, "alone"))


def test_no_other_number_depends_on_them(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone(home, "with")
    monkeypatch.setattr(experiments_run, "_baselines", lambda *arguments: None)
    alone(home, "without")
    for name in {*EXACT} - {"result.json"}:  # which has the digest of their file
        assert (home / "with" / name).read_bytes() == (home / "without" / name).read_bytes()
    assert not (home / "without" / FILE).exists()


def test_a_run_that_is_stopped_while_they_are_fitted_goes_on_to_the_same_bytes(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = exact(alone(home, "whole"))
    with monkeypatch.context() as stopping:

        def stop(*arguments: Any) -> None:
            raise KeyboardInterrupt

        stopping.setattr(describe, "score_baselines", stop)
        with pytest.raises(KeyboardInterrupt):
            alone(home, "stopped")
    assert not (home / "stopped" / FILE).exists()
    assert exact(alone(home, "stopped")) == whole


def test_a_training_that_is_taken_from_another_run_has_them_too(home: Path, fitted: list[str]) -> None:
    (home / "tiny.toml").write_text(TINY + ADAPTED, encoding="utf-8")
    out = compared(home, "seeds=[0]")
    assert stored(out / "runs/adapted/seed-0") == stored(out / "runs/uniform/seed-0")
    assert len(fitted) == 1


def test_what_only_tries_a_setting_has_none(home: Path, fitted: list[str]) -> None:
    out = compared(home, "seeds=[0]", 'tune={"local.lr"=[0.1, 0.3]}')
    assert len(fitted) == 1
    assert [path.parent.parent.parent.parent for path in out.rglob(FILE)] == [out, out]  # uniform and entropy


# ------------------------------------------------------------------------------------------------- two classes


def last(folder: Path) -> dict[str, Any]:
    return rows(folder)[-1]


def test_two_classes_are_scored_by_auroc_unless_metrics_are_named(home: Path) -> None:
    medical = 'data.name="breast_cancer"'
    assert {"participant_auroc", "unseen_auroc", "test_auroc"} & {*last(alone(home, "two", medical))}
    assert not any("auroc" in name for name in last(alone(home, "ten")))
    named = last(alone(home, "named", medical, 'evaluation.metrics=["accuracy", "balanced_accuracy"]'))
    assert "unseen_balanced_accuracy" in named
    assert not any("auroc" in name for name in named)


def test_auroc_by_default_changes_no_other_number(home: Path) -> None:
    medical = 'data.name="breast_cancer"'
    with_, without = (
        rows(alone(home, out, medical, *more)) for out, more in {"a": [], "b": ['evaluation.metrics=["loss"]']}.items()
    )
    assert [{k: v for k, v in row.items() if "auroc" not in k} for row in with_] == without


# ----------------------------------------------------------------------------------------------- on the terminal


def test_a_run_ends_with_its_baselines_and_json_has_their_numbers(fedreach: Command, home: Path) -> None:
    done = fedreach("run", "tiny.toml", "--out", "x", "--quiet")
    columns = stored(home / "x")["columns"]
    line = next(line for line in done.stdout.splitlines() if line.startswith("pooled logistic regression"))
    shown = [f"{100 * columns['pooled'][f'{name}_accuracy']:.1f}%" for name in ("participant", "unseen", "test")]
    assert line.split("  ")[0] == "pooled logistic regression"
    assert [cell.strip() for cell in line.split("  ")[1:] if cell] == shown
    answer = json.loads(fedreach("run", "tiny.toml", "--out", "x", "--json").stdout)
    assert answer["baselines"] == columns
    assert answer["findings"][0] in " ".join(done.stdout.split())  # four rounds do worse than a linear model


def test_a_comparison_of_a_table_names_the_column_that_gives_the_label_away(fedreach: Command, home: Path) -> None:
    text = (Path(__file__).parents[2] / "examples/patients.csv").read_text(encoding="utf-8")
    patients = list(csv.DictReader(text.splitlines()))
    with (home / "patients.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*patients[0], "letter"])
        writer.writeheader()
        writer.writerows(row | {"letter": {"yes": "readmission", "no": "none"}[row["readmitted"]]} for row in patients)
    columns = ["--data", "patients.csv", "--client", "hospital", "--label", "readmitted"]
    short = ["--seeds", 1, "--set", "rounds=1", "--formats", "none", "--quiet"]
    done = fedreach("compare", *columns, *short, "--json")
    assert done.exit_code == 0, done.output
    (said,) = [each for each in json.loads(done.stdout)["findings"] if "predicts the label" in each]
    assert "One column alone predicts the label: 'letter' (accuracy 1.000), on participants' training rows" in said
    assert f"Warning: {said}" in " ".join(fedreach("compare", *columns, *short).stdout.split())
