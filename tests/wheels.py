"""An environment that holds FedReach's wheel, as pip installs it, beside what FedReach needs and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence, Set
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest
from packaging.version import Version

from .installed import ROOT, brought

SOURCES = ("pyproject.toml", "README.md", "LICENSE")  # of a wheel, beside src


@dataclass(frozen=True)
class Home:
    """An environment of its own."""

    path: Path

    @property
    def bin(self) -> Path:
        return self.path / "bin"

    @property
    def site(self) -> Path:
        (site,) = self.path.glob("lib/python*/site-packages")
        return site

    def installed(self) -> set[str]:
        """Return the packages that pip installed in it."""
        return {path.name.partition("-")[0] for path in self.site.glob("*.dist-info")}

    def run(self, command: Sequence[str | Path], folder: Path) -> str:
        """Return what a command prints; it must end well, and sees neither the sources nor a machine's pip settings."""
        seen = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        seen["PIP_CONFIG_FILE"] = os.devnull
        done = subprocess.run(command, cwd=folder, env=seen, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def python(self, program: str) -> str:
        return self.run([self.bin / "python", "-c", program], self.path)


def home_with_wheel(folder: Path, more: Set[str] = frozenset()) -> Home:
    """Build a wheel of the sources and have pip install it, without network, where all that it needs is there.

    There are also the packages in `more`, and what these need.
    """
    pytest.importorskip("pip", reason="pip builds and installs the wheel")
    if Version(metadata.version("setuptools")) < Version("77"):
        pytest.skip("setuptools from 77 on builds the wheel")
    sources, home = folder / "sources", Home(folder / "home")
    beside = folder / "beside" / "site-packages"  # so called, as some libraries look for that in the path of a module
    for name in ("src", "papers"):  # of which only the first is to be in the wheel
        shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in SOURCES:
        shutil.copy(ROOT / name, sources)
    beside.mkdir(parents=True)
    for package in brought(set(), more) - {"fedreach"}:
        for file in metadata.files(package) or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (beside / top).exists():
                (beside / top).symlink_to(Path(str(metadata.distribution(package).locate_file(top))))
    venv.create(home.path)
    (home.site / "beside.pth").write_text(f"{beside}\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--isolated", "--quiet"]
    home.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, sources], folder)
    there = ["--python", home.bin / "python", "install", "--no-index", "--find-links", folder]
    home.run([*pip, *there, "fedreach"], folder)
    return home
