"""Benchmarks with a model a seed measure each model once, and change no section of a record but their own."""

from __future__ import annotations

import json
import sys

import pytest

from .benchmarked import benchmarks


@pytest.fixture(params=["batchnorm", "harm"])
def benchmark(request, tmp_path, monkeypatch):
    """A benchmark that trains nothing: `measured` are the models in turn; its record lists the seeds of the rows."""
    measured = []

    def measure(*model):
        measured.append(model)
        return [{"unadapted": 50.0}]

    with benchmarks(request.param, "page") as (module, page):
        module.measured = measured
        for name, made_up in {"measure": measure, "text": lambda rows: str([row["seed"] for row in rows])}.items():
            monkeypatch.setattr(module, name, made_up)
        monkeypatch.setattr(module.fedreach, "load", lambda name, download: name)
        monkeypatch.setattr(page, "RECORDS", tmp_path)
        before = "# Results\n\n<!-- other -->\nkept\n<!-- /other -->\n"
        (tmp_path / f"{request.param}.md").write_text(before, encoding="utf-8")
        yield module


def called(benchmark, monkeypatch, folder, *words):
    monkeypatch.setattr(sys, "argv", ["benchmark.py", "--rows", str(folder / "runs" / "rows.jsonl"), *words])
    benchmark.main()


def test_further_seeds_cost_only_themselves(benchmark, monkeypatch, tmp_path, capsys):
    sets = {"batchnorm": 1, "harm": 4}[benchmark.__name__]
    called(benchmark, monkeypatch, tmp_path, "--first", "7", "--seeds", "2")
    assert json.loads(capsys.readouterr().out) == sorted([7, 8] * sets)
    called(benchmark, monkeypatch, tmp_path, "--first", "8", "--seeds", "2")
    assert json.loads(capsys.readouterr().out) == sorted([8, 9] * sets)
    assert sorted(model[-1] for model in benchmark.measured) == sorted([7, 8, 9] * sets)
    rows = [json.loads(line) for line in (tmp_path / "runs" / "rows.jsonl").read_text().splitlines()]
    assert [row["seed"] for row in rows] == sorted([7, 8, 9] * sets)
    assert {row.get("data") for row in rows} == (
        {None} if sets == 1 else {"fashion_mnist", "mnist", "cifar10", "cifar10, LeNet"}
    )


def test_the_record_is_written_on_request(benchmark, monkeypatch, tmp_path, capsys):
    page = tmp_path / f"{benchmark.__name__}.md"
    before = page.read_text()
    called(benchmark, monkeypatch, tmp_path, "--seeds", "1")
    assert page.read_text() == before
    called(benchmark, monkeypatch, tmp_path, "--seeds", "1", "--write")
    text = capsys.readouterr().out.splitlines()[-1]
    name = benchmark.__name__
    assert page.read_text() == f"{before}\n<!-- {name} -->\n{text}\n<!-- /{name} -->\n"
