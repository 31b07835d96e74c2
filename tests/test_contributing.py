"""The recipes of CONTRIBUTING.md, followed to the letter in a copy of the sources: what they add is there and works."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
RECIPES = dict(re.findall(r"^## (A new .*?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def add_file(copy: Path, block: str) -> None:
    """Write a block whose first line names its file."""
    (name,) = re.findall(r"\A# (\S+)\n", block)
    path = copy / name
    assert not path.exists(), f"{name} is there already"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.partition("\n")[2], encoding="utf-8")


def change(copy: Path, block: str) -> int:
    """Apply a diff, and return how many lines it adds; what it changes must stand in the file once."""
    header, _, body = block.partition("\n")
    path = copy / header.removeprefix("--- ")
    text, lines = path.read_text(encoding="utf-8"), body.splitlines()
    before = "\n".join(line[1:] for line in lines if line[:1] != "+")
    after = "\n".join(line[1:] for line in lines if line[:1] != "-")
    assert before, f"{header}: say beside which line"
    assert text.count(before) == 1, f"{header} has these lines {text.count(before)} times:\n{before}"
    path.write_text(text.replace(before, after), encoding="utf-8")
    return sum(line[:1] == "+" for line in lines)


DATA = os.environ.get("FEDREACH_DATA") or str(ROOT.parent / "shared" / "data")


def follow(copy: Path, block: str) -> None:
    """Run each command, and look for the lines that shall be printed; ``...`` stands for some that are left out."""
    for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        line, _, shown = step.partition("\n")
        words = shlex.split(line, comments=True)
        if "reads Fashion-MNIST" in line and not Path(DATA, "FashionMNIST").exists():
            print(f"left out, as the files are not here: {line}")
            continue
        if words[:2] == ["python", "-m"]:
            del words[:2]
        assert words[0] in ("fedreach", "papers", "pytest", "ruff", "mypy"), line
        done = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy / "src"), "FEDREACH_DATA": DATA},
            capture_output=True,
            text=True,
            check=False,
        )
        said = done.stdout + done.stderr
        assert done.returncode == 0, f"{line}\n{said}"
        missing = [wanted for wanted in shown.splitlines() if wanted.strip(" .") and wanted.strip() not in said]
        assert not missing, f"{line} did not print {missing}, but\n{said}"


LONG = ("A new figure", "A new recipe", "A new engine")  # they draw a report, read a large data set, compile


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [pytest.param(r, marks=pytest.mark.slow) if r in LONG else r for r in RECIPES])
def test_a_recipe_works_to_the_letter(recipe: str, tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("src", "papers", "tests", "pyproject.toml"):
        from_, to = ROOT / name, tmp_path / name
        shutil.copytree(from_, to, ignore=ignored) if from_.is_dir() else shutil.copy(from_, to)
    steps = {"python": add_file, "toml": add_file, "diff": change, "console": follow}
    blocks = BLOCK.findall(RECIPES[recipe])
    assert blocks[-1][0] == "console"
    for language, block in blocks:
        steps[language](tmp_path, block)


def test_a_new_component_is_one_class_an_import_a_row_and_one_test() -> None:
    blocks = BLOCK.findall(RECIPES["A new component"])
    assert [language for language, _ in blocks] == ["python", "diff", "diff", "python", "console"]
    assert sum(line.startswith("+") for _, block in blocks[1:3] for line in block.splitlines()) == 2


def test_a_new_kind_is_its_file_one_row_one_field_and_one_line() -> None:
    blocks = BLOCK.findall(RECIPES["A new component type"])
    added = [[line for line in block.splitlines() if line[:1] == "+"] for kind, block in blocks if kind == "diff"]
    row, its_import, field, call = added
    assert (len(its_import), len(field), len(call)) == (1, 1, 1)
    assert "".join(row).count("ComponentType(") == 1
