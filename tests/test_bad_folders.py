"""A run folder that is damaged, or of another experiment, is refused with a message and left as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import TINY, Command, Refused, exact


@pytest.fixture
def done(fedreach: Command, home: Path) -> Path:
    """A finished run."""
    assert fedreach("run", "tiny.toml", "--out", "done", "-q").exit_code == 0
    return home / "done"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def damage(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "change", "finished", "message"),
    [
        ("run.json", lambda b: b.replace(b'"format": 4', b'"format": 7'), True, "got format 7. Use the version"),
        ("run.json", lambda b: b[:50], True, "run.json is not valid JSON"),
        ("result.json", lambda b: b"{", True, "result.json is not valid JSON"),
        ("rounds.jsonl", lambda b: b[:1000], True, "rounds.jsonl was altered"),
        ("rounds.jsonl", lambda b: b"", True, "rounds.jsonl was altered"),
        ("clients.jsonl", lambda b: b[:-1], True, "clients.jsonl was altered"),
        ("rounds.jsonl", lambda b: b[:1000], False, "rounds.jsonl was altered"),
        ("checkpoint.safetensors", lambda b: b[:100], False, "cannot be read"),
        ("checkpoint.safetensors", lambda b: b[:-5] + bytes([b[-5] ^ 64]) + b[-4:], False, "was altered"),
        (
            "checkpoint.safetensors",
            lambda b: b.replace(b'\\"round\\": 4', b'\\"round\\": 2'),
            False,
            "was altered",
        ),
        ("checkpoint.safetensors", lambda b: b.replace(b'format\\": 4', b'format\\": 7'), False, "got format 7"),
    ],
)
def test_a_damaged_run_folder_is_refused_and_left_alone(
    refused: Refused,
    fedreach: Command,
    done: Path,
    name: str,
    change: Callable[[bytes], bytes],
    finished: bool,
    message: str,
) -> None:
    whole = exact(done)
    before = (done / name).read_bytes()
    damage(done / name, change)
    assert (done / name).read_bytes() != before
    if not finished:
        (done / "result.json").unlink()
    left = contents(done)
    assert message in refused(3, "run", "tiny.toml", "--out", "done")
    assert contents(done) == left
    (done / name).write_bytes(before)  # the remedy that most of the messages name
    assert fedreach("run", "tiny.toml", "--out", "done").exit_code == 0
    assert exact(done) == whole


def test_rounds_without_their_checkpoint_are_not_started_over(refused: Refused, done: Path) -> None:
    (done / "checkpoint.safetensors").unlink()
    (done / "result.json").unlink()
    left = contents(done)
    assert "checkpoint.safetensors is missing." in refused(3, "run", "tiny.toml", "--out", "done")
    assert contents(done) == left


def test_a_folder_of_another_experiment_is_left_alone(refused: Refused, done: Path) -> None:
    left = contents(done)
    said = refused(3, "run", "tiny.toml", "--out", "done", "--set", "rounds=5", "--set", "local.lr=0.2")
    assert "config.local.lr: stored 0.1, now 0.2; config.rounds: stored 4, now 5." in said
    assert "Choose another folder with --out (in Python, out), or move this folder to another place." in said
    dropped = refused(3, "run", "tiny.toml", "--out", "done", "--set", "local.drop_last=true")
    assert "config.local.drop_last: stored False, now True." in dropped
    assert "seed: stored 0, now 1" in refused(3, "run", "tiny.toml", "--out", "done", "--seed", "1")
    assert contents(done) == left


def test_what_changes_no_number_may_differ(fedreach: Command, done: Path) -> None:
    left = exact(done)
    again = fedreach("run", "tiny.toml", "--out", "done", "--set", "name=other", "--set", "run.checkpoint_seconds=9.0")
    assert again.exit_code == 0
    assert exact(done) == left


def test_a_comparison_of_another_experiment_is_left_alone(refused: Refused, fedreach: Command, home: Path) -> None:
    assert fedreach("compare", "tiny.toml", "--out", "c", "--formats", "none", "-q").exit_code == 0
    before = (home / "c" / "comparison.json").read_bytes()
    said = refused(3, "compare", "tiny.toml", "--out", "c", "--set", "rounds=5")
    assert "has results of another experiment. config.rounds: stored 4, now 5." in said
    assert (home / "c" / "comparison.json").read_bytes() == before


def test_a_file_in_the_place_of_the_folder_is_named(refused: Refused, home: Path) -> None:
    message = "a parent folder is a file. Choose another folder with --out (in Python, out)."
    assert message in refused(3, "run", "tiny.toml", "--out", "tiny.toml")
    assert message in refused(3, "run", "tiny.toml", "--out", "tiny.toml/deeper")
    assert message in refused(3, "compare", "tiny.toml", "--out", "tiny.toml")
    assert (home / "tiny.toml").read_text() == TINY


def test_to_insist_on_going_on_needs_a_checkpoint(refused: Refused, fedreach: Command, done: Path) -> None:
    said = refused(2, "run", "tiny.toml", "--resume", "--out", "new")
    assert said == "--resume: new has no checkpoint. Without --resume, the run starts at round 0."
    assert fedreach("run", "tiny.toml", "--resume", "--out", "done").exit_code == 0
