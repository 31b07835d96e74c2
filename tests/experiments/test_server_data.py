"""Data of the server's own in an experiment: written, checked, drawn, recorded, and used in a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from fedreach.runs.folder import RunFolder

Command = Callable[..., Result]
Refused = Callable[..., str]

SAFARI = ["--set", "methods.entropy.server={name='safari',client_probability=0.5,lr=0.1}"]
EXAMPLES = ["--set", "server_data.examples=30"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["server_data={}"], "server_data: must have either `examples` or `file`."),
        (["server_data={examples=3,file='a.npz'}"], "server_data: must have either `examples` or `file`."),
        (["server_data.examples=0"], "server_data.examples: must be greater than or equal to 1; got 0."),
        (["server_data.example=3"], "server_data.example: unknown key. Did you mean 'examples'?"),
        (["server_data=3"], "server_data: must be a table; got 3."),
    ],
)
def test_a_wrong_section_is_refused_before_data_are_read(refused: Refused, options: list[str], message: str) -> None:
    assert message in refused(2, "compare", "tiny.toml", *(word for o in options for word in ("--set", o)))


@pytest.mark.parametrize("step", ["safari", "server_only", "fine_tune", "feddf"])
def test_a_method_that_trains_on_the_server_needs_data_there(refused: Refused, home: Path, step: str) -> None:
    kind = {"safari": "Safari", "server_only": "ServerOnly", "fine_tune": "FineTune", "feddf": "FedDF"}[step]
    rule = "trains on server data; got none. Add `[server_data] examples = 100`."
    told = refused(2, "compare", "tiny.toml", "--set", f"methods.entropy.server={step}")
    assert f"methods.entropy.server: {kind} {rule}" in told
    told = refused(2, "compare", "tiny.toml", "--set", f"method.server={step}")
    assert told.count(f"method.server: {kind} {rule}") == 1  # once for both methods
    assert not (home / "runs").exists()


@pytest.mark.parametrize("when", ["end", "each_round"])
def test_a_run_that_may_end_early_is_not_tuned_at_the_end(fedreach: Command, home: Path, when: str) -> None:
    tuned = ["--set", f"method.server={{name='fine_tune',when='{when}'}}", *EXAMPLES]
    said = fedreach("run", "tiny.toml", *tuned, "--set", "evaluation.patience=3", "--out", "x")
    rule = "method.server: FineTune tunes the model after the last round, but evaluation.patience may end the run"
    assert (said.exit_code, rule in said.stderr) == ((2, True) if when == "end" else (0, False))


def test_feddf_and_secure_aggregation_do_not_go_together(refused: Refused) -> None:
    told = refused(
        2,
        "run",
        "tiny.toml",
        "--set",
        "method.server=feddf",
        *EXAMPLES,
        "--set",
        "method.label_statistics=secure_aggregation",
    )
    assert "SecureAggregation shows the server only sums, but FedDF reads labels, updates or measurements" in told


def test_more_than_the_clients_can_give_is_refused(refused: Refused) -> None:
    told = refused(2, "run", "tiny.toml", "--set", "server_data.examples=100000")
    assert "server_data.examples must be at most " in told


def test_a_run_trains_on_the_server_in_some_rounds_and_says_so(fedreach: Command, home: Path) -> None:
    run = ["run", "tiny.toml", "--method", "entropy", *SAFARI, *EXAMPLES, "--set", "rounds=8"]
    result = fedreach(*run, "--out", "x")
    assert result.exit_code == 0, result.output
    assert "the server holds 30 examples, taken from the clients' training data" in result.stderr
    table = RunFolder(Path("x")).rows("rounds.jsonl")[1:]
    by_server = [row.get("by_server", False) for row in table]
    assert any(by_server)
    assert not all(by_server)
    for row in table:
        if row.get("by_server"):
            facts = 4 * 6 if row["round"] == 1 else 0  # the entropy of each participant's labels, sent once
            assert (row["cohort"], row["bytes_down"], row["bytes_up"]) == ([], 0, facts)
        else:
            assert len(row["cohort"]) == 3
    record = json.loads(Path("x/federation.json").read_text())
    assert record["server_data"]["examples"] == sum(record["server_data"]["label_counts"]) == 30
    assert sum(record["server_data"]["taken"]) == 30
    assert any(record["server_data"]["taken"][client] for client in record["unseen"])
    assert fedreach(*run, "--out", "x").exit_code == 0  # the same experiment is finished


def test_with_probability_1_a_run_has_the_numbers_of_one_without_safari(fedreach: Command, home: Path) -> None:
    certain = ["--set", "methods.entropy.server={name='safari',client_probability=1.0}"]
    for out, options in {"x": certain, "y": []}.items():
        run = fedreach("run", "tiny.toml", "--method", "entropy", *options, *EXAMPLES, "--out", out)
        assert run.exit_code == 0, run.output
    for name in ("rounds.jsonl", "clients.jsonl", "last.safetensors", "federation.json"):
        assert Path("x", name).read_bytes() == Path("y", name).read_bytes()


def test_a_file_of_ones_own_is_used_and_leaves_the_clients_as_they_are(fedreach: Command, home: Path) -> None:
    np.savez(home / "mine.npz", x=np.zeros((5, 1, 8, 8), np.uint8), y=[0, 1, 2, 3, 3])
    shown = fedreach("partition", "tiny.toml", "--set", "server_data.file=mine.npz")
    assert "the server holds 5 examples" in shown.stdout
    record = json.loads(fedreach("partition", "tiny.toml", "--set", "server_data.file=mine.npz", "--json").stdout)
    assert record["server_data"]["label_counts"][:5] == [1, 1, 1, 2, 0]
    assert set(record["server_data"]["taken"]) == {0}
    plain = json.loads(fedreach("partition", "tiny.toml", "--json").stdout)
    assert plain["server_data"] is None
    assert (record["participants"], record["sizes"]) == (plain["participants"], plain["sizes"])
    assert record["hash"] != plain["hash"]


def test_a_file_that_does_not_fit_is_refused(refused: Refused, home: Path) -> None:
    np.savez(home / "mine.npz", x=np.zeros((5, 1, 9, 9), np.uint8), y=[0, 1, 2, 3, 3])
    told = refused(3, "partition", "tiny.toml", "--set", "server_data.file=mine.npz")
    assert "mine.npz must have the form of digits, (1, 8, 8) uint8 with labels (); got (1, 9, 9)" in told
    told = refused(3, "partition", "tiny.toml", "--set", "server_data.file=nothere.npz")
    assert "nothere.npz" in told
