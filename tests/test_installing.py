"""The documented installation, asked of pip with made-up packages and no network: a torch that is there stays."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import venv
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from .installed import EXTRAS, PROJECT, ROOT

pytest.importorskip("pip", reason="pip is asked what it would install")

README = (ROOT / "README.md").read_text(encoding="utf-8")
(DOCUMENTED,) = re.findall(r"^pip install (.*?)\s*(?:#.*)?$", README, re.MULTILINE)
PINS = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE))
PINS = {canonicalize_name(name): version for name, version in PINS.items()}
REQUIRED = [canonicalize_name(Requirement(text).name) for text in PROJECT["dependencies"]]


def described(name: str, version: str) -> str:
    """Return the METADATA of a package; that of FedReach is by pyproject.toml."""
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    if name == "fedreach":
        lines += [f"Requires-Dist: {text}" for text in PROJECT["dependencies"]]
        for extra, requirements in EXTRAS.items():
            lines += [f"Provides-Extra: {extra}"]
            lines += [f"Requires-Dist: {text}; extra == '{extra}'" for text in requirements]
    return "\n".join(lines) + "\n"


def wheel(folder: Path, name: str, version: str) -> Path:
    """Write an empty package."""
    stem = f"{name.replace('-', '_')}-{version}"
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{stem}.dist-info/METADATA", described(name, version))
        file.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{stem}.dist-info/RECORD", "")
    return path


def brought(folder: Path, command: str, there: Mapping[str, str]) -> dict[str, str]:
    """Return what ``pip install COMMAND`` would install, name -> version, beside what is there.

    All packages but FedReach are to be had as constraints.txt pins them; the checkout is a wheel of its requirements.
    """
    index, home = folder / "index", folder / "home"
    index.mkdir()
    checkout = wheel(folder, "fedreach", PROJECT["version"])
    for name, version in PINS.items():
        wheel(index, name, version)
    venv.create(home)
    (site,) = home.glob("lib/python*/site-packages")
    for name, version in there.items():
        stored = site / f"{name.replace('-', '_')}-{version}.dist-info"
        stored.mkdir()
        (stored / "METADATA").write_text(described(name, version), encoding="utf-8")
    words = [re.sub(r"^\.(?=\[|$)", str(checkout), word) for word in shlex.split(command) if word != "-e"]
    report = folder / "report.json"
    asked = ["install", "--dry-run", "--no-index", f"--find-links={index}", f"--report={report}", *words]
    program = [sys.executable, "-m", "pip", "--isolated", "--python", str(home / "bin" / "python")]
    done = run([*program, *asked], ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(report.read_text(encoding="utf-8"))
    found = [entry["metadata"] for entry in told["install"]]
    return {canonicalize_name(entry["name"]): entry["version"] for entry in found}


def run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PIP_CONFIG_FILE"] = os.devnull  # a machine's own constraints are none of ours; --isolated heeds them
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("torch", ["2.6.0+cu999", "2.99.0+rocm9"])
def test_a_torch_that_is_there_stays(torch: str, tmp_path: Path) -> None:
    assert brought(tmp_path, DOCUMENTED, {"torch": torch}).keys() == {"fedreach", *REQUIRED} - {"torch"}


@pytest.mark.slow
def test_where_there_is_none_or_too_old_a_one_torch_is_brought(tmp_path: Path) -> None:
    for number, there in enumerate([{}, {"torch": "2.3.1+cu999"}]):
        (tmp_path / str(number)).mkdir()
        assert brought(tmp_path / str(number), DOCUMENTED, there)["torch"] == PINS["torch"]


def test_with_our_own_constraints_it_would_be_exchanged(tmp_path: Path) -> None:
    """They are for who works on FedReach, in an environment of its own."""
    assert brought(tmp_path, "-c constraints.txt .", {"torch": "2.6.0+cu999"})["torch"] == PINS["torch"]


def test_an_extra_brings_what_it_says_beside_a_fedreach_that_is_there(tmp_path: Path) -> None:
    there = {name: PINS[name] for name in REQUIRED} | {"torch": "2.6.0+cu999", "fedreach": PROJECT["version"]}
    assert brought(tmp_path, "'fedreach[reproduce]'", there).keys() == {"clarabel"}
