"""The visible loop: the rounds of a run, one by one, the same as all at once."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from threadpoolctl import threadpool_info

import fedreach as fr
from fedreach._util.errors import ComponentError, ConfigError

SMALL: dict[str, Any] = {"model": "linear", "rounds": 5, "cohort_size": 3}


def digits() -> fr.PartitionSpec:
    return fr.load("digits").partition("dirichlet_by_class", clients=12, alpha=0.5, participants=6)


def test_rows_are_those_of_a_run_folder(tmp_path):
    rows = list(fr.run(digits(), out=tmp_path / "run", **SMALL))
    stored = [json.loads(line) for line in (tmp_path / "run/rounds.jsonl").read_text(encoding="utf-8").splitlines()]
    assert json.loads(json.dumps(rows)) == stored[1:]
    assert [row["round"] for row in rows] == [1, 2, 3, 4, 5]
    assert all("unseen_accuracy" in row for row in rows)  # it is evaluated after every round


def test_what_is_stopped_goes_on_and_gives_the_same_rows(tmp_path):
    whole = list(fr.run(digits(), **SMALL))
    first = fr.run(digits(), out=tmp_path / "run", **SMALL)
    assert list(islice(first, 2)) == whole[:2]
    assert next(first) == whole[2]  # the same object goes on
    first.close()
    again = fr.run(digits(), out=tmp_path / "run", **SMALL)
    assert list(again) == whole  # those that were run before come first
    assert list(fr.run(digits(), out=tmp_path / "run", **SMALL)) == whole  # a finished run


def test_a_loop_is_the_run_that_a_comparison_makes(tmp_path):
    every = {"evaluation": {"every": 1}}
    comparison = fr.compare(
        digits(), {"scaffold": {"solver": "scaffold"}}, out=tmp_path / "s", progress=False, **SMALL, **every
    )
    rows = list(fr.run(digits(), fr.Method(solver="scaffold"), **SMALL))
    assert [row["unseen_accuracy"] for row in rows] == comparison["scaffold"].rounds()["unseen_accuracy"].tolist()[1:]


def test_a_loop_ends_with_its_budget(tmp_path):
    sent = [row["bytes_total"] / 1e6 for row in fr.run(digits(), **SMALL)]
    assert len(list(fr.run(digits(), **SMALL, budget={"megabytes": sent[1]}))) == 2


@pytest.mark.sampled(3)
@pytest.mark.parametrize("out", [".", ".hidden", "x" * 120])
def test_a_folder_may_be_called_what_a_study_may_not(tmp_path, monkeypatch, out):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    comparison = fr.compare(digits(), {"a": {}}, out=out, progress=False, **SMALL | {"rounds": 1})
    assert comparison.name == ("here" if out == "." else "comparison")
    assert len(list(fr.run(digits(), out=Path(out) / "run" / out, **SMALL | {"rounds": 1}))) == 1


def test_between_rounds_libraries_have_their_threads_again(tmp_path):
    before = {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}
    for _ in islice(fr.run(digits(), **SMALL), 2):
        assert {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"} == before


def test_nothing_is_left_where_no_folder_was_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loop = fr.run(digits(), {"weighting": lambda reports: [1 / len(reports.ids)] * len(reports.ids)}, **SMALL)
    assert len(list(loop)) == 5
    folder = Path(loop.folder)
    assert folder.exists()
    del loop
    assert not folder.exists()
    assert not list(tmp_path.iterdir())


def test_a_users_error_is_told_with_its_place_and_has_the_error_itself(tmp_path):
    def wrong(reports):
        raise RuntimeError("mine")

    with pytest.raises(ComponentError, match=r"^test_run\.py, line \d+, in wrong: RuntimeError: mine\.$") as told:
        list(fr.run(digits(), {"weighting": wrong}, **SMALL))
    assert isinstance(told.value.__cause__, RuntimeError)


def test_mistakes_are_told_before_the_first_round():
    with pytest.raises(ConfigError, match=r"1 mistake in run\(\):\n  method.solver.name: unknown solver 'scafold'"):
        fr.run(digits(), fr.Method(solver="scafold"), **SMALL)
