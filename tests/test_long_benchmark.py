"""The benchmark of long workloads: its data are what it says, and a part of a run stands for the whole."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from .benchmarked import benchmarks


@pytest.fixture(scope="module")
def bench():
    """The benchmark's modules."""
    names = ("cases", "long", "long_data", "long_workloads")
    with benchmarks(*names, folders=("", "peers")) as modules:
        yield SimpleNamespace(**dict(zip(names, modules, strict=True)))


def test_every_workload_has_a_case_of_its_size(bench):
    assert set(bench.long.WORKLOADS) <= set(bench.cases.CASES)
    for name, work in bench.long.WORKLOADS.items():
        model = bench.cases.CASES[name].make_model()
        assert (
            work.model == "linear"
            or getattr(bench.cases, work.model)().state_dict().keys() == model.state_dict().keys()
        )


def test_clients_are_sorted_and_hold_one_example_more_than_they_train_on(bench, monkeypatch):
    monkeypatch.setattr(bench.long_data, "known", lambda name: None)
    rng = np.random.default_rng(0)
    for make in (bench.long_data.two_digits_a_client, bench.long_data.fifty_each, bench.long_data.many_clients):
        arrays = make(rng, 20)
        assert (np.diff(arrays.client) >= 0).all()
        assert np.bincount(arrays.client, minlength=20).min() > 1
        assert len(arrays.x) == len(arrays.y) == len(arrays.client)


def test_mnist_is_divided_into_two_digits_a_client(bench, monkeypatch):
    y = np.repeat(np.arange(10), 600)
    x = y.astype(np.uint8)[:, None, None, None] * np.ones((1, 1, 2, 2), np.uint8)
    monkeypatch.setattr(
        bench.long_data, "known", lambda name: SimpleNamespace(train_x=x, train_y=y, test_x=x, test_y=y)
    )
    arrays = bench.long_data.two_digits_a_client(np.random.default_rng(0), 100)
    assert (arrays.x[:, 0, 0, 0] == arrays.y).all()  # images go with their labels
    for client in range(100):
        own = np.unique(arrays.y[arrays.client == client], return_counts=True)
        assert set(own[0]) == {client % 10, (client + 1) % 10}
        assert own[1].min() >= 5
    # Mixed: one digit after the other would be one turn a client, and one more where the next client begins.
    assert np.count_nonzero(np.diff(arrays.y)) > 5 * 100
    assert len(np.unique(np.bincount(arrays.client))) > 20  # most differ in size
    assert 0.95 * len(y) < len(arrays.y) <= len(y)


def test_synthetic_images_can_be_learnt_and_no_pattern_is_a_client_s(bench):
    arrays = bench.long_data.synthetic(np.random.default_rng(0), np.full(50, 40), 3, 300, (1, 8, 8), strength=40)
    x, test = arrays.x.reshape(len(arrays.x), -1).astype(float), arrays.x_test.reshape(300, -1).astype(float)
    centres = np.stack([x[arrays.y == c].mean(0) for c in range(3)])
    nearest = ((test[:, None] - centres) ** 2).sum(-1).argmin(1)
    assert (nearest == arrays.y_test).mean() > 0.95


def test_what_was_not_run_is_as_the_steady_rounds(bench):
    work = replace(bench.long.WORKLOADS["flute_lr"], rounds=10, every=5)
    assert bench.long.whole(9.0, [1.0] * 10, [0.5] * 3, work) == 9.0
    # Two rounds warm up; six are missing, and of evaluations before round 1, after 5 and after 10 one was made.
    assert bench.long.whole(20.0, [9.0, 5.0, 1.0, 1.0], [2.0], work) == 20.0 + 6 * 1.0 + 2 * 2.0


def test_the_table_says_what_was_worked_out_and_what_others_published(bench):
    run = bench.long.Run
    found = [
        run("FedReach, `native`", 5.0, 100, 0.01, 0.85, 400.0),
        run("pfl", 20.0, 50, 0.1, 0.5, 900.0),
    ]
    lines = [line.strip("| ").split(" | ") for line in bench.long.results("flute_lr", found).splitlines()[2:]]
    assert lines[0] == ["FedReach, `native`", "100", "00:00:05.0", "1.0", "10", "85.0", "400"]
    assert lines[1] == ["pfl", "50", "~00:00:20.0", "4.0", "100", "-", "900"]  # half-trained, so no accuracy
    assert lines[2] == ["FLUTE, CPU (published)", "-", "00:03:20", "40.0", "-", "~80", "-"]


@pytest.mark.slow
def test_a_short_run_of_the_command(bench, tmp_path, monkeypatch, capsys):
    work = replace(bench.long.WORKLOADS["many_clients"], data=lambda rng: bench.long_data.many_clients(rng, 120))
    monkeypatch.setitem(bench.long.WORKLOADS, "many_clients", work)
    monkeypatch.setattr("sys.argv", ["long.py", "--only", "many_clients", "--rounds", "3", "--peers"])
    bench.long.main()
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| FedReach"))
    assert "| ~00:" in row
    assert json.loads(row.split(" | ")[4]) > 0
