"""What a newcomer sees first: `make demo` prints one screen, and installs in silence."""

from __future__ import annotations

import html
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from ..conftest import Command  # noqa: TID252 (tests are no package that has a name)

ROOT = Path(__file__).parents[2]
SHORT = ["--set", "rounds=2", "--set", "evaluation.every=2", "--seeds", "2", "--formats", "none"]
MAX_LINES, MAX_LOG_LINES, MAX_NUMERIC = 25, 40, 6


def command_of_demo() -> list[str]:
    line = next(line for line in (ROOT / "Makefile").read_text().splitlines() if "/fedreach compare" in line)
    return shlex.split(line)[1:]


@pytest.mark.slow
def test_the_demo_prints_one_table_and_the_findings_of_its_page_on_one_screen(fedreach: Command, home: Path) -> None:
    done = fedreach(*command_of_demo(), *SHORT)
    assert done.exit_code == 0, done.output
    progress = [line for line in done.stderr.splitlines() if line.startswith("  Training")]
    setup = ["Setting up .venv ...", "FedReach demo: ..."]
    shown = len(done.stderr.splitlines()) + len(done.stdout.splitlines())
    assert 1 <= len(progress) <= 10
    lines = done.stdout.splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith(("Warning: ", "1. ")))
    warned = next(number for number, line in enumerate(lines) if line.startswith("1. ")) - begin
    assert shown - len(progress) + 1 <= MAX_LINES + max(0, warned - 2)  # few rounds give more warnings
    assert shown + len(setup) <= MAX_LOG_LINES
    assert max(map(len, done.stdout.splitlines())) <= 120
    (rule,) = (line for line in done.stdout.splitlines() if line.startswith("─"))
    assert 4 <= len(rule.split()) - 1 <= MAX_NUMERIC
    assert re.search(r"^Report  runs/digits/report/index\.html     All columns: --verbose$", done.stdout, re.MULTILINE)
    page = html.unescape(Path("runs/digits/report/index.html").read_text(encoding="utf-8"))
    flat = " ".join(done.stdout.partition("comparisons).")[2].partition("Report  ")[0].split())
    findings = [text.strip() for text in re.split(r"\s?\b[12]\. |Warning: ", flat) if text.strip()]
    assert len(findings) >= 2
    for finding in findings:
        assert f"<li>{finding}</li>" in page, finding


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize("works", [True, False])
def test_pip_is_silent_unless_it_fails(tmp_path: Path, works: bool) -> None:
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, ending in (("pip", 0 if works else 1), ("fedreach", 0)):
        (programs / name).write_text(f'#!/bin/sh\necho {name} "$@"\nexit {ending}\n')
        (programs / name).chmod(0o755)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(["make", "demo"], cwd=tmp_path, env=clean, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) is works
    assert "pip install" in (tmp_path / ".venv" / "install.log").read_text()
    assert ("pip install" in done.stderr) is not works
    assert "pip install" not in done.stdout
    if works:
        setup, title, command = done.stdout.splitlines()
        assert setup.endswith("(first run only) ... done")
        assert title.startswith("FedReach demo: ")
        assert command.startswith("fedreach compare ")
