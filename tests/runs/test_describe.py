"""Which revision of FedReach made a number."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fedreach.runs.describe import package_revision


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    done = subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "package" / "runs").mkdir(parents=True)
    (tmp_path / "package" / "runs" / "own.py").write_text("x = 1\n")
    (tmp_path / "page.md").write_text("made\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_a_checkout_of_the_package_says_its_revision_and_whether_it_was_changed(checkout: Path) -> None:
    revision = git(checkout, "rev-parse", "HEAD")
    own = checkout / "package" / "runs" / "own.py"
    (checkout / "page.md").write_text("made anew\n")  # is no code
    assert package_revision(own) == revision
    (checkout / "package" / "other.py").write_text("not followed\n")
    assert package_revision(own) == revision
    own.write_text("x = 2\n")
    assert package_revision(own) == f"{revision} (changed)"


def test_a_package_that_is_installed_inside_somebodys_checkout_does_not_take_their_revision(checkout: Path) -> None:
    (checkout / ".venv" / "package").mkdir(parents=True)
    (checkout / ".venv" / "package" / "installed.py").write_text("x = 1\n")
    assert package_revision(checkout / ".venv" / "package" / "installed.py") is None


def test_without_a_checkout_no_revision_is_said(tmp_path: Path) -> None:
    assert package_revision(tmp_path / "own.py") is None
