"""What stopped newcomers in their first hour is told, with what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..conftest import Command, Refused  # noqa: TID252 (tests are no package that has a name)

FAST = ["--set", "rounds=2", "--set", "engine.name=sequential"]
CLIENT = ["--data", "rows.csv", "--client", "site", "--label", "ill"]


def write_rows(sites: list[str], labels: list[str], each: int = 8) -> None:
    rows = [f"{site},{i + j},{labels[(i * 7 + j) % len(labels)]}" for j, site in enumerate(sites) for i in range(each)]
    Path("rows.csv").write_text("site,age,ill\n" + "\n".join(rows) + "\n", encoding="utf-8")


def test_with_few_participants_half_of_them_train_so_that_methods_differ(fedreach: Command, home: Path) -> None:
    write_rows(list("abcdefgh"), ["no", "yes"])
    assert fedreach("run", *CLIENT, *FAST, "--out", "r").exit_code == 0
    config = json.loads((home / "r" / "run.json").read_text(encoding="utf-8"))["config"]
    assert (config["population"]["participants"], config["method"]["cohort_size"]) == (3, 2)


def test_numbers_as_classes_and_clients_of_one_row_are_noted_before_the_first_round(
    fedreach: Command, home: Path
) -> None:
    write_rows(list("abcdefgh"), [str(n) for n in range(18, 43)], each=50)
    said = fedreach("run", *CLIENT, *FAST, "--out", "a").stderr
    assert "the 25 classes are numbers. To predict the number, use --target, not --label" in said
    write_rows([f"person {n}" for n in range(40)], ["no", "yes"], each=1)
    said = fedreach("run", *CLIENT, *FAST, "--out", "b").stderr
    assert "half of the clients have a single row. Check that each row" in said
    assert "40 with 1 example each" in said


def test_a_run_shows_what_the_adapted_model_scores(fedreach: Command, home: Path) -> None:
    done = fedreach("run", "--set", "method.adaptation=label_shift", *FAST, "--out", "r", "-q")
    scores = json.loads((home / "r" / "adaptation.json").read_text(encoding="utf-8"))["columns"]["last"]
    line = next(line for line in done.stdout.splitlines() if line.startswith("this model, adapted"))
    assert line.split()[3:5] == [
        f"{100 * scores[f'{people}_adapted_accuracy']:.1f}%" for people in ("participant", "unseen")
    ]
    assert "with run" not in done.stdout


def test_a_run_of_the_default_file_is_not_refused_for_methods_that_it_does_not_run(
    fedreach: Command, refused: Refused, home: Path
) -> None:
    robust = ["--set", "method.aggregation=median", "--set", "method.weighting=equal"]
    assert fedreach("run", *robust, *FAST, "--out", "r", "-q").exit_code == 0
    assert "methods.entropy" in refused(2, "compare", *robust)
    assert "ByEntropy" in refused(2, "run", "--method", "entropy", *robust)


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet", "rows.tsv"])
def test_a_table_in_place_of_an_experiment_file_is_told_with_its_option(
    refused: Refused, home: Path, name: str
) -> None:
    (home / name).write_bytes(b"site,age\na,1\n\xff\n")
    assert f"{name} is a table, not an experiment file. Use --data {name}." in refused(2, "compare", name)


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ("method.lr=0.1", "'local.lr'"),
        ("local.rounds=3", "'rounds' or 'tune.rounds'"),
        ("every=2", "'evaluation.every'"),
    ],
)
def test_a_key_of_another_table_is_told_with_its_table(refused: Refused, home: Path, setting: str, hint: str) -> None:
    assert f"unknown key. Did you mean {hint}?" in refused(2, "run", "--set", setting)


def test_a_function_of_one_argument_is_checked_and_no_crash(fedreach: Command, home: Path) -> None:
    (home / "mine.py").write_text("def f(batch):\n    return batch\n", encoding="utf-8")
    done = fedreach("verify", "mine.py:f")
    assert done.exit_code == 1
    assert 'mine.py:f fails the check "simplex"' in done.stdout


def test_a_policy_with_its_own_generator_fails_no_check_but_that_of_reproducibility(
    fedreach: Command, home: Path
) -> None:
    source = "import numpy as np\nrng_ = np.random.default_rng()\n\n\ndef f(view, k, rng):\n"
    source += "    return rng_.choice(view.available_ids, k, replace=False)\n"
    (home / "mine.py").write_text(source, encoding="utf-8")
    done = fedreach("verify", "mine.py:f")
    assert done.exit_code == 1
    assert "1 of 8 checks failed" in done.stdout
    assert 'fails the check "reproducible"' in done.stdout
