"""What FedReach brings along may be used by anybody, and has no hole that is publicly known."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PERMISSIVE = {
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "HPND",
    "ISC",
    "LLVM-exception",
    "MIT",
    "MIT-0",
    "MIT-CMU",
    "PSF-2.0",
    "Public Domain",
    "Python-2.0",
    "Unlicense",
    "Zlib",
}
"""Of the Open Source Initiative's list, or a dedication to the public, that ask for no more than a notice."""

WORDS = {
    "apache": "Apache-2.0",
    "bsd": "BSD-3-Clause",
    "expat": "MIT",
    "historical permission": "HPND",
    "isc": "ISC",
    "matplotlib": "PSF-2.0",  # a form of Python's own
    "mit": "MIT",
    "psf": "PSF-2.0",
    "public domain": "Public Domain",
    "python software foundation": "PSF-2.0",
    "unlicense": "Unlicense",
    "zlib": "Zlib",
}
"""How packages that do not write SPDX name these, in their field or a classifier."""

EXCEPTIONS = {
    "axe-playwright-python": "MIT, and MPL-2.0 of the axe that it brings: runs in tests only",
    "certifi": "MPL-2.0, which asks to share changes of its files: a list of certificates, passed on unchanged",
    "hypothesis": "MPL-2.0: runs in tests only",
    "tqdm": "MPL-2.0 AND MIT: brought by datasets, passed on unchanged",
    "regex": "CNRI-Python beside Apache-2.0, a notice in other words: brought by transformers, for tests only",
    "pathspec": "MPL-2.0: brought by mypy, and runs beside the tests only",
}
"""Distribution -> why it may be there though its licence asks for more than a notice."""

PROPRIETARY = re.compile(r"nvidia-|cuda-")
"""NVIDIA's libraries, which builds of torch for CUDA bring: their licence lets anybody use them and pass them on."""

HEADINGS = ("DFSG approved", "OSI Approved")  # classifiers of licences that name none

NOT_OURS = ("pip", "setuptools")  # what installs packages is no part of one


def requirements(name: str, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield the distributions that one needs here, each with the extras of it that are asked for."""
    for line in metadata.requires(name) or ():
        wanted = Requirement(line)
        environments = [{"extra": extra} for extra in extras or ("",)]
        if wanted.marker is None or any(wanted.marker.evaluate(one) for one in environments):
            yield _canonical(wanted.name), frozenset(wanted.extras)


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def dependencies() -> dict[str, str]:
    """Return what the wheel needs with all extras, as far as it is here: distribution -> a package that requires it."""
    extras = frozenset(metadata.metadata("fedreach").get_all("Provides-Extra") or ())
    found, todo = dict[str, str](), [("fedreach", extras)]
    seen = set[tuple[str, frozenset[str]]]()
    while todo:
        name, wanted = todo.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        for other, more in requirements(name, wanted):
            try:
                metadata.distribution(other)
            except metadata.PackageNotFoundError:
                continue  # an extra that is not installed
            found.setdefault(other, name)
            todo.append((other, more))
    return {name: by for name, by in found.items() if name not in ("fedreach", *NOT_OURS)}


def licences(name: str) -> set[str]:
    """Return the licences of a distribution, by SPDX where they can be told; of alternatives, all."""
    about = metadata.metadata(name)
    if expression := about.get("License-Expression"):
        return {word for word in re.findall(r"[\w.+-]+", expression) if word not in ("AND", "OR", "WITH")}
    classified = [c.rpartition(" :: ")[2] for c in about.get_all("Classifier") or () if c.startswith("License :: ")]
    named = [c for c in classified if c not in HEADINGS] or (about.get("License") or "").splitlines()[:1]
    return {_spdx(words) for words in named or _first_lines(name)}


def _first_lines(name: str) -> list[str]:
    """Return the titles of the licence files of a distribution whose metadata name no licence."""
    files = [path for path in metadata.files(name) or () if path.name.upper().startswith(("LICENSE", "LICENCE"))]
    return [path.locate().read_text(encoding="utf-8").strip().splitlines()[0] for path in files]


def _spdx(words: str) -> str:
    if words in PERMISSIVE:
        return words
    found = [spdx for word, spdx in WORDS.items() if re.search(rf"\b{word}", words.lower())]
    copyleft = re.search(r"\b(gpl|lgpl|agpl|mpl|mozilla|eupl|gnu)\b", words.lower())
    return found[0] if found and not copyleft else words


def test_the_walk_finds_what_the_wheel_needs_and_what_that_needs() -> None:
    found = dependencies()
    assert {"numpy", "torch", "pydantic"} <= found.keys()
    assert {"markupsafe", "pydantic-core", "contourpy"} <= found.keys()  # which those need
    assert "fedreach" not in found


@pytest.mark.parametrize(
    ("words", "spdx"),
    [
        ("MIT License", "MIT"),
        ("Apache Software License", "Apache-2.0"),
        ("BSD 3-Clause", "BSD-3-Clause"),
        ("GNU General Public License v3 (GPLv3)", "GNU General Public License v3 (GPLv3)"),
        ("LGPL, not MIT", "LGPL, not MIT"),
        ("Commercial; all rights reserved", "Commercial; all rights reserved"),
    ],
)
def test_words_are_taken_for_a_licence_only_if_they_are_one(words: str, spdx: str) -> None:
    assert _spdx(words) == spdx


def test_every_dependency_asks_for_no_more_than_a_notice() -> None:
    """Or is an exception, with its reason: a new one of either kind is a decision, and not an accident."""
    wrong = {
        f"{name} (for {by})": sorted(licences(name))
        for name, by in dependencies().items()
        if not (licences(name) and licences(name) <= PERMISSIVE)
        and name not in EXCEPTIONS
        and not PROPRIETARY.match(name)
    }
    assert not wrong, f"choose another package, or state a reason in EXCEPTIONS: {wrong}"


@pytest.mark.slow
def test_no_dependency_has_a_hole_that_is_publicly_known(tmp_path: Path) -> None:
    """By pip-audit, of the versions that are installed here. It asks a service on the network.

    Where that cannot be had it finds nothing, or says that it looked at nothing: then this is skipped, and not passed.
    """
    if importlib.util.find_spec("pip_audit") is None:
        pytest.skip("pip-audit is not installed: pip install pip-audit")
    pinned, versions = tmp_path / "requirements.txt", {name: metadata.version(name) for name in dependencies()}
    pinned.write_text("".join(f"{name}=={version.partition('+')[0]}\n" for name, version in versions.items()))
    options = ["--no-deps", "--disable-pip", "--format=json", "--progress-spinner=off"]
    done = subprocess.run(
        [sys.executable, "-m", "pip_audit", "--requirement", pinned, *options],
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.stdout.strip():
        pytest.skip(f"the advisory service cannot be reached: {''.join(done.stderr.strip().splitlines()[-1:])}")
    found = json.loads(done.stdout)["dependencies"]
    assert not {each["name"]: each["vulns"] for each in found if each.get("vulns")}
    if unknown := [each["name"] for each in found if "skip_reason" in each]:
        pytest.skip(f"{len(unknown)} of {len(found)} could not be audited, such as {unknown[0]}")
