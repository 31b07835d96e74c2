"""The template in examples/flower_app: what it holds fits together, and a client with data of its own trains."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Context, RecordDict
from flwr.cli.build import build_fab_from_disk

import fedreach
from fedreach.runs.adaptation import adaptation_table
from fedreach.runs.folder import ADAPTATION_FILE, RunFolder
from fedreach.runs.schema import AdaptationRecord, AdaptedLine

from .deployment import APP, BIN, end
from .in_process import InProcess
from .same import METHODS, check_same, rows_of, simulated

CONFIG = tomllib.loads((APP / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"]["config"]


class Node(InProcess):
    """A grid whose clients know the run's config, and have node config of their own."""

    def __init__(self, app: Any, clients: range, run_config: dict[str, Any], **own: list[str]) -> None:
        self.run_config, self.own = run_config, own
        super().__init__(app, clients)

    def new_context(self, client: int) -> Context:
        node_config = {"partition-id": client, **{name: values[client] for name, values in self.own.items()}}
        return Context(1, self.node_of[client], node_config, RecordDict(), self.run_config)


@pytest.fixture
def template(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Import a module of the app as Flower does, and forget it afterwards."""
    monkeypatch.syspath_prepend(str(APP))

    def module(name: str) -> ModuleType:
        return __import__(f"flower_app.{name}", fromlist=["app"])

    yield module
    for name in [name for name in sys.modules if name.split(".")[0] == "flower_app"]:
        del sys.modules[name]


def server_context(run_config: dict[str, Any]) -> Context:
    return Context(1, 0, {}, RecordDict(), run_config)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("method", [*METHODS, "adapted"])
def test_each_method_of_the_template_is_the_simulators(method: str, template: Any, tmp_path: Path) -> None:
    config = {**CONFIG, "out": str(tmp_path / "out"), "method": method, "timeout": 5.0}
    grid = Node(template("client_app").app, range(5), config)
    template("server_app").app(grid, server_context(config))
    check_same(simulated(APP / "flower_app" / "experiment.toml", method, tmp_path / "simulated"), tmp_path / "out")
    for name in (AdaptationRecord.FILE, AdaptedLine.FILE, ADAPTATION_FILE) if method == "adapted" else ():
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "simulated" / name).read_bytes(), name


def test_the_readme_shows_the_table_that_ends_a_run(tmp_path: Path) -> None:
    simulated(APP / "flower_app" / "experiment.toml", "adapted", tmp_path)
    shown = re.search(r"^```text\n(.*?)^```", (APP / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert shown is not None
    for ours, theirs in zip(shown[1].splitlines(), adaptation_table(RunFolder(tmp_path)), strict=True):
        numbers = r"[+-]?\d+\.\d$|[+-]?\d+\.\d(?= )"
        assert re.sub(numbers, "", ours).split() == re.sub(numbers, "", theirs).split()
        there = [float(number) for number in re.findall(numbers, theirs)]
        assert [float(number) for number in re.findall(numbers, ours)] == pytest.approx(there, abs=2)


def test_without_a_run_folder_the_template_says_how_to_name_one(template: Any) -> None:
    config = dict(CONFIG)
    with pytest.raises(ValueError, match="out="):
        template("server_app").app(Node(template("client_app").app, range(5), config), server_context(config))


def test_clients_with_data_of_their_own_train(template: Any, tmp_path: Path) -> None:
    digits = fedreach.load("digits")
    x, y = np.asarray(digits.train_x).reshape(len(digits.train_y), -1), np.asarray(digits.train_y)
    files = []
    for client in range(4):
        mine = np.flatnonzero(np.isin(y, [client, client + 1, client + 2]))
        path = tmp_path / f"site{client}.npz"
        train, test = mine[40:], mine[:40]
        np.savez(path, x=x[train].astype(np.float32), y=y[train], test_x=x[test].astype(np.float32), test_y=y[test])
        files.append(str(path))
    own, config = template("own_data"), {**CONFIG, "out": str(tmp_path / "out"), "min-clients": 4}
    grid = Node(own.client, range(4), config, data=files)
    own.server(grid, server_context(config))
    rows = rows_of(tmp_path / "out")
    assert [len(row["cohort"]) for row in rows] == [0, 2, 2, 2]
    assert rows[-1]["participant_accuracy"] > rows[0]["participant_accuracy"] + 0.2


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own
def test_the_experiment_travels_with_the_app_and_keys_and_runs_do_not(tmp_path: Path) -> None:
    app = copied(tmp_path)
    subprocess.run([sys.executable, "make_keys.py", "keys", "1"], cwd=app, check=True)
    (app / "runs").mkdir()
    (app / "runs" / "result.json").write_text("{}", encoding="utf-8")
    names = set(zipfile.ZipFile(io.BytesIO(build_fab_from_disk(app))).namelist())
    assert {"flower_app/client_app.py", "flower_app/server_app.py", "flower_app/experiment.toml"} <= names
    assert not [name for name in names if name.startswith(("keys", "runs"))]


def copied(tmp_path: Path) -> Path:
    app = tmp_path / "flower_app"
    shutil.copytree(APP, app, ignore=shutil.ignore_patterns("__pycache__", "keys", "runs"))
    return app


@pytest.mark.slow
def test_every_command_of_the_readme_does_what_it_says(tmp_path: Path) -> None:
    app, home = copied(tmp_path), Path(tempfile.mkdtemp(prefix="fl"))
    readme = (app / "README.md").read_text(encoding="utf-8")
    script = "".join(re.findall(r"^```sh\n(.*?)^```", readme, re.DOTALL | re.MULTILINE))
    assert len(re.findall("^flwr run ", script, re.MULTILINE)) == 3
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FLWR", "RAY", "OMP"))}
    # The home of the shell is its own, and by FLWR_HOME all that it starts is found again.
    environment |= {
        "HOME": str(home),
        "FLWR_HOME": str(home / ".flwr"),
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    }
    try:
        done = subprocess.run(
            ["bash", "-euxc", script],
            cwd=app,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        logs = "".join(f"----- {log}\n{log.read_text(encoding='utf-8')[-3000:]}" for log in app.glob("runs/*.log"))
        assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-6000:]}\n{logs}"
    finally:
        end(home / ".flwr")
        shutil.rmtree(home, ignore_errors=True)
    for name in ("simulated", "real", "ours"):
        assert json.loads((app / "runs" / name / "result.json").read_text(encoding="utf-8"))["status"] == "finished"
    check_same(app / "runs" / "ours", app / "runs" / "real")
    check_same(app / "runs" / "ours", app / "runs" / "simulated")
    # The run that was started again added nothing.
    assert done.stdout.count("Successfully started run") == 3
    assert "3 of 3 rounds are done" in done.stdout
    assert [row["round"] for row in lines(app / "runs" / "real" / "timing.jsonl")] == [0, 1, 2, 3]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
