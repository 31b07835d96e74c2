"""A tiny experiment and the command, as a user would call it, for the tests of everything that users touch."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from click.testing import CliRunner, Result

from .forking import Popen


def make_papers_importable() -> None:
    """Load the package `papers/`, which is not installed, without its parent folder on the path.

    With that folder a fresh process would seem to find `tests`, too, and classes of tests would be stored by name.
    """
    folder = Path(__file__).parents[1] / "papers"
    if "papers" not in sys.modules and folder.is_dir():
        spec = importlib.util.spec_from_file_location(
            "papers", folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None
        assert spec.loader is not None
        sys.modules["papers"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["papers"])


make_papers_importable()  # before the conftest of tests/papers is read


def pytest_configure() -> None:
    """Give each of several test processes a core: what they start makes do with it, and two do not fight for both."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")  # "gw0", "gw1", ...
    if worker and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})


@pytest.fixture(scope="session", autouse=True)
def forked_workers() -> Iterator[None]:
    """Workers of comparisons in this process are forked. Those of a command in a process of its own are not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", Popen)
        yield


hypothesis.settings.register_profile("quick", max_examples=30)  # where a test does not set its number itself
hypothesis.settings.register_profile("all", max_examples=250)  # `make test-all`
hypothesis.settings.load_profile("quick")


NOT_LATER = ("test_gradient_table.py", "test_table.py")
LATER = ("test_*_benchmark.py", "test_*_table.py")
"""Tests of benchmarks, beside those of the library: `make test-all` runs them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is for later as slow, also all but each n-th case of a sampled test, and begin with the tests of pages.

    These take longest, and at the end all other processes would wait for them.
    On a mutant (see `[tool.mutmut]`) begin with the quickest, as the first that fails ends it.
    """
    cases: Counter[tuple[Path, str]] = Counter()
    for item in items:
        if (sampled := item.get_closest_marker("sampled")) is not None:
            test = item.path, item.nodeid.partition("[")[0]
            if cases[test] % sampled.args[0]:
                item.add_marker(pytest.mark.slow)
            cases[test] += 1
        if any(item.path.match(pattern) for pattern in LATER) and item.path.name not in NOT_LATER:
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: item.path.name != "test_docs.py")
    stats = Path("mutmut-stats.json")  # mutmut runs tests where it writes this
    if os.environ.get("MUTANT_UNDER_TEST") and stats.exists():
        seconds = json.loads(stats.read_text(encoding="utf-8"))["duration_by_test"]
        items.sort(key=lambda item: seconds.get(item.nodeid, 0.0))


TINY = """\
name = "tiny"
rounds = 4
seeds = [0, 1]
baseline = "uniform"

[partition]
clients = 12
alpha = 0.5

[population]
participants = 6

[model]
name = "linear"

[local]
lr = 0.1
batch_size = 16

[evaluation]
every = 2

[method]
cohort_size = 3

[methods.uniform]

[methods.entropy]
weighting = "entropy"
"""

EXACT = (
    "rounds.jsonl",
    "clients.jsonl",
    "checkpoint.safetensors",
    "last.safetensors",
    "best.safetensors",
    "federation.json",
    "result.json",
)
"""Files of a run folder that are the same, byte for byte, however the run came about."""

Command = Callable[..., Result]
Refused = Callable[..., str]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with the experiment ``tiny.toml``."""
    (tmp_path / "tiny.toml").write_text(TINY, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def fedreach(home: Path) -> Command:
    """The command in this process: ``fedreach("run", "tiny.toml")``; with ``--formats none`` it is quicker by far."""
    from fedreach.cli import main

    def call(*arguments: object) -> Result:
        return CliRunner().invoke(main, [str(argument) for argument in arguments])

    return call


@pytest.fixture
def refused(fedreach: Command) -> Refused:
    """The command that must end with this exit code and one message, which is returned."""

    def call(code: int, *arguments: object) -> str:
        result = fedreach(*arguments)
        assert result.exit_code == code, (result.exit_code, result.output, result.exception)
        assert isinstance(result.exception, SystemExit)  # said, not thrown
        assert result.stderr.count("error: ") == 1
        assert "Traceback" not in result.output
        return result.stderr.partition("error: ")[2].strip()

    return call


@pytest.fixture
def start(home: Path) -> Iterator[Start]:
    """Start the command in a process of its own; what still runs at the end of a test is ended."""
    started = []

    # A shell in the background ignores Ctrl-C and hands that on.
    prelude = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"

    def call(*arguments: object, before: str = "") -> subprocess.Popen[str]:
        code = f"{prelude}{before}\nfrom fedreach.cli import main\nmain()"
        process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield call
    for process in started:
        with process:
            process.kill()


def exact(folder: Path) -> dict[str, bytes]:
    """Return what must be the same in two run folders."""
    return {name: (folder / name).read_bytes() for name in EXACT}


def rows(folder: Path, name: str = "rounds.jsonl") -> list[dict[str, Any]]:
    """Return the rows of a run folder."""
    return [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for something that another process does."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)
