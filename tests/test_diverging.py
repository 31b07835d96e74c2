"""Training that diverges is told with client, round and cause; what else is run goes on."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from .conftest import Command, Refused, rows


@pytest.fixture
def diverging() -> list[str]:
    return ["run", "tiny.toml", "--set", "model=mlp", "--set", "local.lr=1e6", "--out", "x"]


def test_a_client_whose_training_diverges_is_named_with_round_and_cause(
    refused: Refused, home: Path, diverging: list[str]
) -> None:
    said = refused(1, *diverging)
    assert said.startswith("Client ")
    assert "failed in round 1: its update is not finite" in said
    assert "Lower local.lr or set local.clip_norm; or continue without failing clients" in said
    result = json.loads((home / "x" / "result.json").read_text())
    assert (result["status"], result["error"]) == ("failed", said)
    assert refused(1, *diverging).startswith("Client ")  # again, not "finished"


def test_failing_clients_can_be_left_out_and_the_rows_say_so(fedreach: Command, home: Path) -> None:
    # The user's weighting is an honest one; at this rate some clients of the MLP diverge and others do not.
    options = ["--set", "model=mlp", "--set", "local.lr=100.0", "--set", "run.on_failure=drop", "--set", "rounds=6"]
    result = fedreach("run", "tiny.toml", *options, "--out", "x")
    assert result.exit_code == 0
    table = rows(home / "x")
    lost = [client for row in table for client in row["lost"]]
    assert lost
    assert any(row["cohort"] for row in table)
    assert all(not set(row["lost"]) & set(row["cohort"]) for row in table)
    for client in set(lost):
        assert result.stderr.count(f"client {client} does not count: its update is not finite") == 1


def test_a_run_in_which_nobody_ever_counted_has_failed(refused: Refused, diverging: list[str]) -> None:
    said = refused(1, *diverging, "--set", "run.on_failure=drop")
    assert "No client's update counted in any of the 4 rounds: all 12 were lost or not finite" in said
    assert "No client's update counted" in refused(1, *diverging, "--set", "run.on_failure=drop")


def test_a_run_that_fails_does_not_stop_the_others(fedreach: Command, home: Path) -> None:
    broken = ["--set", "model=mlp", "--set", "methods.entropy.local.lr=1e6"]
    result = fedreach("compare", "tiny.toml", "--out", "c", "--formats", "none", *broken)
    assert result.exit_code == 1
    assert "failed: entropy, seed 0: Client " in result.stderr
    assert "2 of 4 runs failed. Finished runs are kept. Rerun the command to try again." in result.stderr
    states = {
        str(path.parent.relative_to(home / "c" / "runs")): json.loads(path.read_text())["status"]
        for path in (home / "c").glob("runs/*/*/result.json")
    }
    assert states == {
        "uniform/seed-0": "finished",
        "uniform/seed-1": "finished",
        "entropy/seed-0": "failed",
        "entropy/seed-1": "failed",
    }
    assert "uniform" in result.stdout


def test_a_model_that_diverges_although_no_client_does_is_told(refused: Refused, home: Path) -> None:
    """Updates stay finite, and the server's rate of 1e39 takes the outputs beyond float32: nobody counts any more."""
    options = ["--set", "method.server={name='average',lr=1e39}", "--set", "evaluation.every=1"]
    said = refused(1, "run", "tiny.toml", *options, "--out", "x")
    assert re.match(r"The model diverged: \w+ is not finite after round 1\. Lower local\.lr or set", said)
    assert "or continue without failing clients: run.on_failure = 'drop'" in said
    said = refused(1, "run", "tiny.toml", *options, "--set", "run.on_failure=drop", "--out", "y")
    assert "No client's update counted in the last 3 of 4 rounds: all 9 were lost or not finite." in said
    assert json.loads((home / "y" / "result.json").read_text())["status"] == "failed"
    table = rows(home / "y")
    assert [len(row["cohort"]) for row in table] == [0, 3, 0, 0, 0]
    assert table[0]["test_loss"] is not None
    assert table[1]["test_loss"] is None  # not finite has no other word in JSON


def test_a_huge_cell_of_an_unseen_client_is_called_its_data_and_no_divergence(refused: Refused, home: Path) -> None:
    lines = [f"{'abcdef'[i % 6]},{i % 7},{i % 7 * 2 + i % 3}" for i in range(60)]
    (home / "t.csv").write_text("\n".join(["who,age,dose", *lines, "f,1e30,3"]), encoding="utf-8")
    data = ["--data", "t.csv", "--client", "who", "--target", "dose", "--participants", "a,b,c,d,e"]
    said = refused(1, "run", *data, "--set", "rounds=1", "--set", "model=linear", "--quiet", "--out", "x")
    assert "not finite after round 0 on the data of 1 client (f), although it is finite on those of 5" in said
    assert "diverged" not in said


def test_malicious_clients_are_named_where_a_run_diverges_under_an_attack(refused: Refused, home: Path) -> None:
    attack = ["--set", "attack={name='sign_flip', share=0.3, strength=1e6}"]
    said = refused(1, "run", "tiny.toml", "--set", "model=mlp", "--set", "local.lr=1e6", *attack, "--out", "x")
    malicious = re.search(
        r"Malicious clients can be the reason \((\d+, \d+)\)\. Choose another method\.aggregation", said
    )
    assert malicious, said
