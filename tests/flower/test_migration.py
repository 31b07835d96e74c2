"""A Flower app moves to FedReach as docs/flower.md says: few lines change, and the app does what it is said to do."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from .in_process import InProcess

PAGE = Path(__file__).parents[2] / "docs" / "flower.md"
FILES = ("task.py", "client_app.py", "server_app.py")
CLIENTS, COHORT, ROUNDS = 10, 5, 3
SIMULATE = f"""\
import json, sys
from flwr.simulation import run_simulation
import client_app, server_app

if __name__ == "__main__":
    init = {{"num_cpus": 2, "_temp_dir": sys.argv[1], "log_to_driver": False, "logging_level": 40}}
    resources = {{"num_cpus": 2, "num_gpus": 0.0}}
    config = {{"init_args": init, "client_resources": resources}}
    run_simulation(server_app.app, client_app.app, {CLIENTS}, backend_config=config)
"""


def programs() -> dict[str, str]:
    """Return the files that the page shows, by name."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.findall(r"^```(?:python|toml)\n# (\S+\.(?:py|toml))\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return {name: f"# {name}\n{code}" for name, code in found}


def shown() -> dict[str, str]:
    """Return the app of the page before the change."""
    return {name: code for name, code in programs().items() if name in FILES}


def diffs() -> dict[str, list[list[str]]]:
    """Return file -> hunks, each as its lines."""
    (block,) = re.findall(r"^```diff\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    found: dict[str, list[list[str]]] = {}
    for line in block.splitlines():
        if line.startswith("--- "):
            hunks = found.setdefault(line[4:], [])
        elif line.startswith("@@"):
            hunks.append([])
        elif not line.startswith("+++ "):
            hunks[-1].append(line or " ")  # editors take the blank of an empty line away
    return found


def changed() -> dict[str, str]:
    """Return the app after the change: each hunk's old lines, which must be there once, become its new ones."""
    files = shown()
    for name, hunks in diffs().items():
        for hunk in hunks:
            old, new = ("".join(f"{line[1:]}\n" for line in hunk if line[0] in kind) for kind in (" -", " +"))
            assert files[name].count(old) == 1, f"{name} does not hold once:\n{old}"
            files[name] = files[name].replace(old, new)
    return files


Write = Callable[[Mapping[str, str]], dict[str, Any]]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write files into a folder and import them; return the modules by name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    written: list[str] = []

    def call(files: Mapping[str, str]) -> dict[str, Any]:
        for name, code in files.items():
            (tmp_path / name).write_text(code, encoding="utf-8")
            written.append(name.removesuffix(".py"))
        return {name: import_module(name) for name in written if not name.endswith(".toml")}

    yield call
    for name in written:
        sys.modules.pop(name, None)


def start(server: Any, grid: InProcess) -> None:
    server(grid, Context(1, 1, {}, RecordDict(), {}))


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]


def test_at_most_ten_lines_change_and_none_in_model_and_data() -> None:
    lines = [line for hunks in diffs().values() for hunk in hunks for line in hunk]
    assert 1 <= sum(line[0] in "+-" for line in lines) <= 10
    assert set(diffs()) == {"client_app.py", "server_app.py"}
    assert set(shown()) == set(FILES)
    before, after = shown(), changed()
    assert before["task.py"] == after["task.py"]
    assert "FedReachStrategy(" in after["server_app.py"]
    assert "share_labels(" in after["client_app.py"]


def test_the_app_runs_before_the_change(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    app = write(shown())
    grid = InProcess(app["client_app"].app, range(CLIENTS))
    start(app["server_app"].app, grid)
    assert "eval_acc" in capsys.readouterr().out
    assert [kind for _, kind in grid.sent].count("train") == ROUNDS * CLIENTS // 2


def test_after_the_change_minimax_chooses_and_entropy_weighs(write: Write, tmp_path: Path) -> None:
    app = write(changed())
    trained: list[tuple[int, np.ndarray, np.ndarray]] = []  # client, model sent, model received

    def vector(message: Message) -> np.ndarray:
        arrays = message.content["arrays"].to_numpy_ndarrays()
        return np.concatenate([array.ravel() for array in arrays]).astype(np.float64)

    def listening(who: int, message: Message, answer: Callable[[], Message]) -> Message:
        reply = answer()
        if message.metadata.message_type == "train":
            trained.append((who, vector(message), vector(reply)))
        return reply

    grid = InProcess(app["client_app"].app, range(CLIENTS), answering=listening)
    start(app["server_app"].app, grid)
    rows = lines_of(tmp_path / "run")
    assert [row["round"] for row in rows] == list(range(ROUNDS + 1))

    # Selection, from what clients sent: all are asked in round 1, and those go on that are least like their nearest.
    first = sorted(trained[:CLIENTS], key=lambda one: one[0])
    assert [who for who, _, _ in first] == list(range(CLIENTS))
    updates = np.array([after - before for _, before, after in first])
    unit = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    # Two clients may be each other's nearest: then the second largest cosine decides, and so on.
    order = sorted(range(CLIENTS), key=lambda i: [round(float(c), 12) for c in sorted(cosines[i])[::-1]])
    cohort = sorted(order[:COHORT])
    assert sorted(rows[1]["cohort"]) == cohort

    # Weights, from the labels themselves: proportional to exp(entropy in nats).
    raw = []
    for who in cohort:
        labels = app["task"].load_data(grid.new_context(who))[1].numpy()
        p = np.unique(labels, return_counts=True)[1] / len(labels)
        raw.append(math.exp(-(p * np.log(p)).sum()))
    expected = np.array(raw) / sum(raw)
    assert len(set(np.round(expected, 6))) > 1  # else any weights would do
    np.testing.assert_allclose(rows[1]["weights"], expected, rtol=1e-6)

    # The next model is the one sent plus the weighted mean of the updates: what round 2 sends.
    second = trained[CLIENTS][1]
    np.testing.assert_allclose(second, first[0][1] + expected @ updates[cohort], atol=1e-6)


def test_clients_with_their_own_data_and_model_train_as_shown(write: Write, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for client in range(5):
        y = np.arange(40) % (client + 2)
        x = (rng.normal(size=(40, 1, 8, 8)) + y[:, None, None, None]).astype(np.float32)
        np.savez(tmp_path / f"client{client}.npz", x=x[:30], y=y[:30], test_x=x[30:], test_y=y[30:])
    app = write({name: code for name, code in programs().items() if name.startswith("own_")})
    start(app["own_server"].app, InProcess(app["own_client"].app, range(5)))
    rows = lines_of(tmp_path / "run")
    assert [len(row["cohort"]) for row in rows[1:]] == [2, 2, 2]
    assert rows[-1]["participant_loss"] < rows[0]["participant_loss"]
    told = json.loads((tmp_path / "run" / "client_statistics.json").read_text())["clients"]
    assert [told[str(client)]["num_examples"] for client in range(5)] == [30] * 5
    # The page: entropy is asked for, counts are not.
    np.testing.assert_allclose(told["0"]["label_entropy"], np.log(2), rtol=1e-6)
    assert told["0"]["label_counts"] is None


@pytest.mark.slow
def test_the_experiment_of_the_page_gives_the_simulators_bits(write: Write, tmp_path: Path) -> None:
    named = {name: code for name, code in programs().items() if name.startswith("experiment")}
    app = write(named)["experiment_app"]
    start(app.server, InProcess(app.client, range(8)))
    simulated = subprocess.run(
        [sys.executable, "-m", "fedreach", "run", "experiment.toml", "--out", "runs/simulated", "--quiet"],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    assert simulated.returncode == 0, simulated.stderr
    real, ours = tmp_path / "runs" / "flower", tmp_path / "runs" / "simulated"
    assert (real / "last.safetensors").read_bytes() == (ours / "last.safetensors").read_bytes()
    for a, b in zip(lines_of(real), lines_of(ours), strict=True):
        assert (a.get("cohort"), a.get("weights")) == (b.get("cohort"), b.get("weights"))
        for key in b:
            if key.endswith("_accuracy") and key != "local_accuracy":
                assert a[key] == b[key]
            elif key.endswith("_loss"):
                assert a[key] == pytest.approx(b[key], abs=1e-6)


def test_flowers_wrapper_adds_the_noise_of_equal_weights_whatever_the_weights() -> None:
    # What the page says of Flower's DP: noise z C / n = 1/3 for n = 3, though one client weighs 0.98.
    weights, model = (0.01, 0.01, 0.98), np.zeros((100, 100), np.float32)
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        moved = ArrayRecord({"w": Array(message.content["arrays"]["w"].numpy() + np.float32(1e-5))})
        metrics = MetricRecord({"weight": weights[int(context.node_config["partition-id"])]})
        return Message(RecordDict({"arrays": moved, "metrics": metrics}), reply_to=message)

    plain = FedAvg(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3, weighted_by_key="weight")
    wrapped = DifferentialPrivacyServerSideFixedClipping(plain, 1.0, 1.0, 3)
    result = wrapped.start(InProcess(app, range(3)), ArrayRecord({"w": Array(model)}), num_rounds=1)
    assert result.arrays is not None
    assert np.std(result.arrays["w"].numpy()) == pytest.approx(1 / 3, rel=0.05)


@pytest.mark.slow
def test_the_changed_app_runs_in_flowers_simulation(tmp_path: Path) -> None:
    for name, code in (changed() | {"simulate.py": SIMULATE}).items():
        (tmp_path / name).write_text(code, encoding="utf-8")
    off = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    with tempfile.TemporaryDirectory(prefix="fr") as short:  # Ray puts sockets there, whose paths must be short
        environment = {**os.environ, **off, "FLWR_HOME": short, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "simulate.py", short]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=240
        )
    assert (tmp_path / "run" / "result.json").exists(), done.stdout[-3000:] + done.stderr[-3000:]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    rows = lines_of(tmp_path / "run")
    assert (result["status"], len(rows)) == ("finished", ROUNDS + 1)
    assert all(len(row["cohort"]) == COHORT and not row["lost"] for row in rows[1:])
    assert rows[-1]["participant_accuracy"] > rows[0]["participant_accuracy"]
