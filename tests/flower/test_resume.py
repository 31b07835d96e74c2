"""A server that is killed goes on from its run folder, with nodes that remember nothing: the same bytes in the end."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Result

from fedreach._util import files
from fedreach._util.errors import RunFolderError, TrainingError
from fedreach.flower.experiment import FlowerExperiment
from fedreach.flower.strategy import FedReachStrategy
from fedreach.runs.folder import RunFolder
from fedreach.runs.identity import OtherExperimentError

from ..conftest import exact, rows  # noqa: TID252
from .in_process import InProcess
from .same import SIX_CLIENTS, anew

CLIENTS, ROUNDS = 6, 3
SMALL = (*SIX_CLIENTS, f"rounds={ROUNDS}", "evaluation.every=1")
SPLITTING = "method.selection={name='clustered',first_round=1,eps1=1.0,eps2=0.0}"
METHODS = {
    "fedavg": (),
    "scaffold": ("method.solver=scaffold",),
    "feddyn": ("method.solver=feddyn",),
    "moon": ("method.loss={name='moon',mu=5.0}", "model=mlp"),
    "minimax": ("method.selection={name='minimax',refresh=1}", "method.weighting=entropy"),  # probes for updates
    "choice": ("method.selection=power_of_choice",),  # probes for losses
    "safari": ("method.server={name='safari',client_probability=0.5}", "server_data.examples=100"),
    "feddf": ("method.server=feddf", "server_data.examples=100"),
    "clustered": (SPLITTING,),
    "clustered scaffold": (SPLITTING, "method.solver=scaffold"),  # who changes its cluster forgets
    "private": ("method.weighting=entropy", "method.label_statistics={name='discrete_laplace',epsilon=1.0}"),
}
KNOWN = [name for name in METHODS if name != "private"]  # all but what draws noise that nobody can repeat


@cache
def read(method: str, *more: str) -> FlowerExperiment:
    return FlowerExperiment(overrides=(*SMALL, *METHODS[method], *more))


def setup_of(method: str, *more: str) -> FlowerExperiment:
    return anew(read(method, *more))


@cache
def app_of(method: str) -> ClientApp:
    """The app keeps data and model loaded, and nothing that it learns: that stands in the contexts."""
    return setup_of(method).client_app()


def strategy_of(method: str, folder: Path, *more: str) -> FedReachStrategy:
    return setup_of(method, *more).strategy(folder, timeout=0.5, patience=0.5)


@cache
def undisturbed(method: str) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """The files of a run, and the kinds of its messages in turn."""
    with TemporaryDirectory() as name:
        grid = InProcess(app_of(method), range(CLIENTS))
        strategy_of(method, Path(name)).run(grid)
        return exact(Path(name)), tuple(kind for _, kind in grid.sent)


def stages(method: str) -> list[int]:
    """One message in the midst of each stage of each round: which one it is."""
    sent, at = undisturbed(method)[1], 0
    chosen = []
    for _, kinds in groupby(sent):
        count = len(list(kinds))
        chosen.append(at + count // 2)
        at += count
    return chosen


class Stop(BaseException):
    """As a signal would: nothing that the run could take for a failure."""


def stopping(at: int, error: type[BaseException] = Stop, *, after: bool = False) -> tuple[list[int], Any]:
    """An `Answering` in which the server's process ends with the n-th message, or when it was answered."""
    count = [0]

    def answering(client: int, message: Message, answer: Callable[[], Message]) -> Message:
        count[0] += 1
        if count[0] == at + 1 and not after:
            raise error
        reply = answer()
        if count[0] == at + 1:
            raise error
        return reply

    return count, answering


def interrupt(
    method: str, folder: Path, at: int, error: type[BaseException] = Stop, *, after: bool = False, plain: bool = False
) -> None:
    _, answering = stopping(at, error, after=after)
    grid, strategy = InProcess(app_of(method), range(CLIENTS), answering=answering), strategy_of(method, folder)
    with pytest.raises(error):
        start_plainly(strategy, grid, method) if plain else strategy.run(grid)
    assert not (folder / "last.safetensors").exists()


def start_plainly(strategy: FedReachStrategy, grid: InProcess, method: str) -> Result:
    """As Flower's own quickstart does."""
    arrays = ArrayRecord(setup_of(method).simulation.engine.task.module.state_dict())
    return strategy.start(grid, arrays, num_rounds=ROUNDS)


def go_on(method: str, folder: Path) -> InProcess:
    """A new process on the same folder, with other nodes: none remembers anything."""
    rounds = set()

    def answering(client: int, message: Message, answer: Callable[[], Message]) -> Message:
        if message.metadata.message_type == "train":
            rounds.add(message.content.config_records["config"]["server-round"])
        return answer()

    there = max([0, *(row["round"] for row in rows(folder))]) if (folder / "rounds.jsonl").exists() else 0
    grid = InProcess(app_of(method), range(CLIENTS), first_node=5000, answering=answering)
    strategy_of(method, folder).run(grid)
    assert rounds <= set(range(there + 1, ROUNDS + 1))  # what is in the folder is not done again
    return grid


@pytest.mark.parametrize("method", KNOWN)
@pytest.mark.sampled(6)
def test_a_run_that_is_stopped_in_any_stage_goes_on_as_if_nothing_had_happened(method: str, tmp_path: Path) -> None:
    expected, sent = undisturbed(method)
    probes = {"minimax": ["train"] * ROUNDS, "choice": ["query.loss", "train"] * ROUNDS}.get(method, ["train"])
    assert set(probes) <= set(sent)
    for at in stages(method):
        folder = tmp_path / f"{at}"
        interrupt(method, folder, at)
        go_on(method, folder)
        assert exact(folder) == expected, (at, sent[at])


@pytest.mark.parametrize("method", ["clustered", "clustered scaffold"])
def test_the_clusters_of_these_runs_split(method: str) -> None:
    table = [json.loads(line) for line in undisturbed(method)[0]["rounds.jsonl"].decode().splitlines()]
    assert len(set(table[-1]["clusters"])) > 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ConnectionError])
def test_it_does_not_matter_how_the_server_ended(error: type[BaseException], tmp_path: Path) -> None:
    interrupt("scaffold", tmp_path, stages("scaffold")[-3], error)
    failed = (tmp_path / "result.json").exists()
    assert failed == issubclass(error, Exception)  # a run that failed says so; one that was killed cannot
    go_on("scaffold", tmp_path)
    assert exact(tmp_path) == undisturbed("scaffold")[0]


@pytest.mark.parametrize("method", ["scaffold", "minimax"])
def test_a_run_that_is_stopped_again_and_again_comes_to_the_same_end(method: str, tmp_path: Path) -> None:
    times = 0
    while not (tmp_path / "last.safetensors").exists():
        _, answering = stopping(CLIENTS * 2 + 8)  # one round further each time, mostly
        grid = InProcess(app_of(method), range(CLIENTS), answering=answering, first_node=1000 * (times + 1))
        try:
            strategy_of(method, tmp_path).run(grid)
        except Stop:
            times += 1
        assert times < 10
    assert times > 1
    assert exact(tmp_path) == undisturbed(method)[0]


@pytest.mark.parametrize("name", ["rounds.jsonl", "clients.jsonl", "timing.jsonl"])
def test_a_server_killed_as_it_writes_its_rows_writes_them_once(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = RunFolder.append_json

    def append(self: RunFolder, file: str, *found: dict[str, Any]) -> None:
        whole(self, file, *found)
        if file == name and found[-1]["round"] == 2:
            raise Stop

    monkeypatch.setattr(RunFolder, "append_json", append)
    with pytest.raises(Stop):
        strategy_of("scaffold", tmp_path).run(InProcess(app_of("scaffold"), range(CLIENTS)))
    monkeypatch.undo()
    strategy_of("scaffold", tmp_path).run(InProcess(app_of("scaffold"), range(CLIENTS), first_node=5000))
    assert exact(tmp_path) == undisturbed("scaffold")[0]
    assert [row["round"] for row in rows(tmp_path, "timing.jsonl")] == list(range(ROUNDS + 1))


def test_nodes_that_remember_more_than_the_server_go_back_with_it(tmp_path: Path) -> None:
    """The link keeps nodes and their contexts while the server is killed after a round was trained, not written."""
    sent = undisturbed("scaffold")[1]
    last_of_training = max(at for at in stages("scaffold") if sent[at] == "train") + 1
    grid = InProcess(app_of("scaffold"), range(CLIENTS), answering=stopping(last_of_training, after=True)[1])
    with pytest.raises(Stop):
        strategy_of("scaffold", tmp_path).run(grid)
    grid.answering = lambda client, message, answer: answer()
    strategy_of("scaffold", tmp_path).run(grid)
    assert exact(tmp_path) == undisturbed("scaffold")[0]


# ------------------------------------------------------------------------------------------------ Flower's own call


@pytest.mark.parametrize("method", KNOWN)
@pytest.mark.sampled(4)
def test_flowers_own_call_runs_the_same(method: str, tmp_path: Path) -> None:
    result = start_plainly(strategy_of(method, tmp_path), InProcess(app_of(method), range(CLIENTS)), method)
    assert exact(tmp_path) == undisturbed(method)[0]
    assert result.arrays


@pytest.mark.slow
@pytest.mark.parametrize("method", ["scaffold", "safari"])
@pytest.mark.sampled(2)
def test_flowers_own_call_goes_on_with_a_run(method: str, tmp_path: Path) -> None:
    for at in stages(method):
        folder = tmp_path / f"{at}"
        interrupt(method, folder, at, plain=True)
        gc.collect()  # in a new process nobody would hold the folder any more
        grid = InProcess(app_of(method), range(CLIENTS), first_node=5000)
        result = start_plainly(strategy_of(method, folder), grid, method)
        assert exact(folder) == undisturbed(method)[0]
        assert result.arrays


def test_more_rounds_than_the_run_has_change_nothing(tmp_path: Path) -> None:
    strategy, grid = strategy_of("scaffold", tmp_path), InProcess(app_of("scaffold"), range(CLIENTS))
    arrays = ArrayRecord(setup_of("scaffold").simulation.engine.task.module.state_dict())
    strategy.start(grid, arrays, num_rounds=ROUNDS + 4)
    assert exact(tmp_path) == undisturbed("scaffold")[0]
    assert tuple(kind for _, kind in grid.sent) == undisturbed("scaffold")[1]


def test_fewer_rounds_leave_a_run_that_can_be_gone_on_with(tmp_path: Path) -> None:
    strategy, grid = strategy_of("scaffold", tmp_path), InProcess(app_of("scaffold"), range(CLIENTS))
    arrays = ArrayRecord(setup_of("scaffold").simulation.engine.task.module.state_dict())
    strategy.start(grid, arrays, num_rounds=1)
    assert [row["round"] for row in rows(tmp_path)] == [0, 1]
    assert not (tmp_path / "result.json").exists()
    del strategy
    gc.collect()
    go_on("scaffold", tmp_path)
    assert exact(tmp_path) == undisturbed("scaffold")[0]


# ----------------------------------------------------------------------------------------------------- what is refused


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    go_on("scaffold", tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("[!.]*")}
    for plain in (False, True):
        grid, strategy = InProcess(app_of("scaffold"), range(CLIENTS)), strategy_of("scaffold", tmp_path)
        result = start_plainly(strategy, grid, "scaffold") if plain else strategy.run(grid)
        assert grid.sent == []
        assert {path.name: path.read_bytes() for path in tmp_path.glob("[!.]*")} == before
        if plain:
            assert set(result.arrays) == set(setup_of("scaffold").simulation.engine.task.module.state_dict())
        del strategy
        gc.collect()


@pytest.mark.parametrize("begun", ["interrupted", "finished"])
@pytest.mark.parametrize("option", ["seeds=[7]", "local.lr=0.05", "method.solver=fedavg", "rounds=5"])
@pytest.mark.sampled(3)
def test_another_experiment_in_the_same_folder_is_refused(begun: str, option: str, tmp_path: Path) -> None:
    if begun == "finished":
        go_on("scaffold", tmp_path)
    else:
        interrupt("scaffold", tmp_path, stages("scaffold")[-2])
    before = {path.name: path.read_bytes() for path in tmp_path.glob("[!.]*")}
    grid = InProcess(app_of("scaffold"), range(CLIENTS))
    with pytest.raises(OtherExperimentError, match="has results of another experiment") as refused:
        strategy_of("scaffold", tmp_path, option).run(grid)
    assert refused.value.exit_code == 3
    assert grid.sent == []
    assert {path.name: path.read_bytes() for path in tmp_path.glob("[!.]*")} == before


def test_a_strategy_of_ones_own_refuses_another_federation_too(tmp_path: Path) -> None:
    for option, refused in (((), False), (("seeds=[7]",), True)):
        made = setup_of("fedavg", *option).simulation
        strategy = FedReachStrategy(
            made.federation, made.engine.task.module, rounds=2, folder=tmp_path, min_clients=4, timeout=0.5
        )
        grid = InProcess(app_of("fedavg"), range(4))
        if not refused:
            strategy.run(grid)
            continue
        with pytest.raises(OtherExperimentError, match="seed: stored 0, now 7"):
            strategy.run(grid)


def test_two_servers_do_not_write_to_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LOCK_SECONDS", 0.1)
    refused: list[str] = []

    def answering(client: int, message: Message, answer: Callable[[], Message]) -> Message:
        if message.metadata.message_type == "train" and not refused:
            with pytest.raises(RunFolderError, match="another process is writing to") as error:
                strategy_of("scaffold", tmp_path).run(InProcess(app_of("scaffold"), range(CLIENTS)))
            refused.append(str(error.value))
        return answer()

    strategy_of("scaffold", tmp_path).run(InProcess(app_of("scaffold"), range(CLIENTS), answering=answering))
    assert refused
    assert exact(tmp_path) == undisturbed("scaffold")[0]


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("checkpoint.safetensors", cut),
        ("checkpoint.safetensors", Path.unlink),
        ("rounds.jsonl", cut),
        ("clients.jsonl", cut),
        ("memory.rows", Path.unlink),
        ("memory.rows", lambda path: path.write_bytes(b"")),
        ("client_statistics.json", cut),
        ("client_statistics.json", Path.unlink),
        ("run.json", cut),
    ],
)
def test_a_damaged_folder_is_refused_and_not_begun_anew(
    name: str, damage: Callable[[Path], object], tmp_path: Path
) -> None:
    interrupt("scaffold", tmp_path, stages("scaffold")[-1])
    damage(tmp_path / name)
    grid = InProcess(app_of("scaffold"), range(CLIENTS))
    with pytest.raises(RunFolderError, match=r"(?i)move (the run folder|it) away|restore (the file|it)"):
        strategy_of("scaffold", tmp_path).run(grid)
    assert "train" not in {kind for _, kind in grid.sent}


# ------------------------------------------------------------------------------------------- who is there afterwards


def test_a_run_goes_on_with_those_that_are_there(tmp_path: Path) -> None:
    interrupt("scaffold", tmp_path, stages("scaffold")[-3])
    before = rows(tmp_path)
    gone = before[-1]["cohort"][0]
    grid = InProcess(app_of("scaffold"), range(CLIENTS))
    grid.absent.add(gone)
    strategy_of("scaffold", tmp_path).run(grid)
    after = rows(tmp_path)
    assert after[: len(before)] == before
    assert all(gone not in row["cohort"] + row["lost"] for row in after[len(before) :])
    assert all(len(row["cohort"]) == 3 for row in after[1:])


def test_a_run_does_not_go_on_with_too_few(tmp_path: Path) -> None:
    interrupt("scaffold", tmp_path, stages("scaffold")[-3])
    grid = InProcess(app_of("scaffold"), range(CLIENTS))
    grid.absent |= {2, 3, 4}
    with pytest.raises(TrainingError, match="Start more SuperNodes"):
        setup_of("scaffold").strategy(tmp_path, min_clients=3, timeout=0.5, patience=0.1).run(grid)
    go_on("scaffold", tmp_path)
    assert exact(tmp_path) == undisturbed("scaffold")[0]


def test_a_server_that_goes_on_does_not_ask_for_labels_again(tmp_path: Path) -> None:
    """Each answer spends privacy."""
    stops = stages("private")
    interrupt("private", tmp_path, stops[-2])
    told = json.loads((tmp_path / "client_statistics.json").read_text())["clients"]
    assert any(facts["label_entropy"] is not None for facts in told.values())
    grid = go_on("private", tmp_path)
    assert "query.labels" not in {kind for _, kind in grid.sent}
    assert json.loads((tmp_path / "client_statistics.json").read_text())["clients"] == told


def test_a_client_tells_the_same_noisy_labels_however_often_it_is_asked(tmp_path: Path) -> None:
    """A server that was killed before it wrote down what it was told asks again, in the same run of the app."""
    answers: list[bytes] = []

    def answering(client: int, message: Message, answer: Callable[[], Message]) -> Message:
        reply = answer()
        if (client, message.metadata.message_type) == (3, "query.labels"):
            (record,) = reply.content.array_records.values()
            answers.append(b"".join(array.data for array in record.values()))
        if message.metadata.message_type == "evaluate" and len(answers) == 1:
            raise Stop
        return reply

    grid = InProcess(app_of("private"), range(CLIENTS), answering=answering)
    with pytest.raises(Stop):
        strategy_of("private", tmp_path / "a").run(grid)
    strategy_of("private", tmp_path / "b").run(grid)
    assert len(answers) == 2
    assert answers[0] == answers[1]


# ---------------------------------------------------------------------------------------------------------- slow part


@pytest.mark.slow
@pytest.mark.parametrize("method", KNOWN)
def test_a_run_that_is_stopped_at_any_message_goes_on_as_if_nothing_had_happened(method: str, tmp_path: Path) -> None:
    expected, sent = undisturbed(method)
    for at in range(len(sent)):
        folder, last = tmp_path / f"{at}", at == len(sent) - 1
        interrupt(method, folder, at, after=last)
        go_on(method, folder)
        assert exact(folder) == expected, (at, sent[at])


SERVER = """\
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from in_process import InProcess
from fedreach.flower.experiment import FlowerExperiment

def slowly(client, message, answer):
    time.sleep(0.02)
    return answer()

setup = FlowerExperiment(overrides=tuple(sys.argv[3:]))
grid = InProcess(setup.client_app(), range(6), answering=slowly)
setup.strategy(Path(sys.argv[2]), timeout=5, patience=5).run(grid)
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["scaffold", "minimax"])
def test_a_server_process_that_is_killed_at_any_moment_goes_on(method: str, tmp_path: Path) -> None:
    folder, kills = tmp_path / "run", 0
    command = [sys.executable, "-c", SERVER, str(Path(__file__).parent), str(folder), *SMALL, *METHODS[method]]
    for moment in (0.05, 0.3, 0.6, 0.9):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            until = time.monotonic() + 60
            while not (folder / "run.json").exists() and server.poll() is None and time.monotonic() < until:
                time.sleep(0.005)
            time.sleep(moment)
            if server.poll() is None:
                server.send_signal(signal.SIGKILL)
                kills += 1
    assert kills > 1
    strategy_of(method, folder).run(InProcess(app_of(method), range(CLIENTS), first_node=5000))
    assert exact(folder) == undisturbed(method)[0]
