"""Commands print names that strangers chose without any character that commands a terminal."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from click.testing import Result

import fedreach as package
from fedreach._util.progress import progress_bars

from ..conftest import TINY, Command  # noqa: TID252 (tests are no package that has a name)
from ..terminals import on_terminal  # noqa: TID252

STRANGE = "[red]\x1b[2Jw\r\x1b]8;;http://x\x1b\\ard\u202e"
CLI = Path(package.__file__).parent / "cli"


def check_plain(done: Result, *, seen: bool = True) -> None:
    text = done.stdout + done.stderr
    assert text.replace("\n", "").isprintable(), ascii(text)
    assert ("[red]" in text) is seen


@pytest.mark.parametrize("path", sorted(CLI.glob("*.py")), ids=lambda path: path.stem)
def test_only_the_helpers_of_options_print(path: Path) -> None:
    functions = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.FunctionDef)]
    printing = {
        function.name
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Name | ast.Attribute)
        and ast.unparse(node) in ("print", "click.echo", "click.secho", "sys.stdout.write", "sys.stderr.write")
    }
    assert printing <= ({"echo", "echo_file"} if path.stem == "options" else set())


@pytest.mark.slow
def test_run_compare_and_report_show_strange_names_plainly(fedreach: Command, home: Path) -> None:
    short = TINY.replace("[0, 1]", "[0]").replace("rounds = 4", "rounds = 1").partition("[methods")[0]
    config = home / f"{STRANGE.replace('/', '')}.toml"
    config.write_text(short.replace('name = "tiny"', "") + "\n[methods.uniform]\n", encoding="utf-8")
    out = home / STRANGE.replace("/", "")
    run = fedreach("run", config, "--method", "uniform", "--set", "evaluation.every=1", "--out", out / "run")
    assert run.exit_code == 0, run.output
    check_plain(run)
    done = fedreach("compare", config, "--set", "evaluation.every=1", "--out", out, "--formats", "none", "--workers", 1)
    assert done.exit_code == 0, done.output
    check_plain(done)
    check_plain(fedreach("report", out, "--formats", "none", "--verbose"))


@pytest.mark.parametrize(
    "command", [["run", f"--{STRANGE}"], ["run", "a", STRANGE], [STRANGE], ["predict", STRANGE, "x"]]
)
def test_usage_errors_show_what_was_typed_plainly(fedreach: Command, command: list[str]) -> None:
    done = fedreach(*command)
    assert done.exit_code
    check_plain(done)


def test_a_bar_shows_strange_names_plainly() -> None:
    with on_terminal(120) as terminal, progress_bars() as add:
        bar = add(STRANGE, total=2)
        bar.show(1, 2, "\x1bafter", "[red]count\r")
        bar.rename(f"{STRANGE}!")
    text = terminal.text
    assert r"[red]\x1b[2Jw\r\x1b]8;;http://x\x1b\ard\u202e!" in text
    assert r"[red]count\r" in text
    assert r"\x1bafter" in text
