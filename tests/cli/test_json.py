"""With --json a command prints one JSON document, whatever becomes of it, and ends with the same code as without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from fedreach.cli import main, options

from ..conftest import Command  # noqa: TID252 (tests are no package that has a name)

FAILING = ["--set", "model=mlp", "--set", "local.lr=1e6"]


def document(fedreach: Command, code: int, *arguments: object) -> dict[str, Any]:
    done = fedreach(*arguments, "--json")
    assert done.exit_code == code, done.output
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["error"] in done.stderr  # people read it there as ever
    assert fedreach(*arguments).exit_code == code
    return told


@pytest.mark.parametrize(
    ("code", "arguments", "said"),
    [
        (2, ["run", "tiny.toml", "--set", "rounds=none"], "rounds: must be a valid integer"),
        (2, ["run", "absent.toml"], "absent.toml cannot be read"),
        (2, ["run", "tiny.toml", "--sed", 1], "No such option"),
        (2, ["run", "tiny.toml", "--seed", "one"], "Invalid value for '--seed'"),
        (2, ["compare", "tiny.toml", "--max-seeds", 3], "--max-seeds needs --detect"),
        (2, ["report"], "Missing argument"),
        (2, ["cmopare"], "Unknown command 'cmopare'."),
        (3, ["report", "nothing"], "nothing"),
        (3, ["run", "tiny.toml", "--set", "data=absent.npz"], "absent.npz"),
        (1, ["run", "tiny.toml", *FAILING], "its update is not finite"),
    ],
)
def test_an_error_is_a_document(fedreach: Command, home: Path, code: int, arguments: list[object], said: str) -> None:
    assert said in document(fedreach, code, *arguments)["error"]


def test_runs_that_fail_stand_beside_those_that_do_not(fedreach: Command, home: Path) -> None:
    broken = ["--set", "model=mlp", "--set", "methods.entropy.local.lr=1e6"]
    told = document(fedreach, 1, "compare", "tiny.toml", "--out", "c", "--formats", "none", "--seeds", 1, *broken)
    assert told["error"] == "1 of 2 runs failed. Finished runs are kept. Rerun the command to try again."
    (failed,) = told["failed"]
    assert (failed["method"], failed["seed"]) == ("entropy", 0)
    assert "its update is not finite" in failed["error"]
    assert [method["method"] for method in told["methods"]] == ["uniform", "entropy"]


def test_a_component_that_fails_a_check_is_reported_whole(fedreach: Command, home: Path) -> None:
    (home / "own.py").write_text("def nobody(view, k, rng):\n    return view.ids[:k] + 1000\n", encoding="utf-8")
    told = document(fedreach, 1, "verify", "own.py:nobody")
    assert told["passed"] is False
    assert told["components"][0]["failures"]
    assert told["error"].endswith("a check.")


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "Interrupted."),
        (MemoryError(), 1, "Out of memory."),
        (KeyError("x"), 1, "KeyError: 'x'"),
    ],
)
def test_what_nobody_foresaw_is_a_document_too(
    fedreach: Command, monkeypatch: pytest.MonkeyPatch, raised: BaseException, code: int, said: str
) -> None:
    def load(*arguments: object, **options: object) -> None:
        raise raised

    monkeypatch.setattr("fedreach.cli.options.load", load)
    done = fedreach("run", "tiny.toml", "--json")
    assert done.exit_code == code
    assert said in json.loads(done.stdout)["error"]
    assert isinstance(done.exception, KeyError if isinstance(raised, KeyError) else SystemExit)


def test_help_is_no_error(fedreach: Command) -> None:
    done = fedreach("run", "--json", "--help")
    assert done.exit_code == 0
    assert "{" not in done.stdout.partition("\n")[0]
    assert "error" not in done.stderr


def test_a_number_that_is_not_finite_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    with click.Context(main) as context:
        options.promise_json(context)
        options.set_json({"a": float("nan"), "b": [float("inf"), 0.1]})
        options.say_json(context)
        options.say_json(context, "not again")
    assert capsys.readouterr().out == '{"a": null, "b": [null, 0.1]}\n'
