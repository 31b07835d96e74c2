"""A checkpoint gives back the state, and writes of large tables and of what clients keep only what changed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedreach._util.files import FileDigest
from fedreach._util.row_store import RowTable
from fedreach.federation.selection import geometry
from fedreach.federation.selection.losses import Minimax
from fedreach.federation.solvers import Scaffold
from fedreach.federation.types import State
from fedreach.runs import checkpoint
from fedreach.runs.checkpoint import MEMORY_FILE, Snapshot
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import CHECKPOINT, Timing
from fedreach.testing.problems import tiny_simulation

ROWS = "selection.rows"


@pytest.fixture
def store(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def simulation_of(policy: Minimax, *, memory: Path | None = None):
    simulation = tiny_simulation()
    federation = replace(simulation.federation, selection=policy)
    return replace(simulation, federation=federation, memory_file=memory)


def snapshot_of(state) -> Snapshot:
    nothing = FileDigest.of(b"")
    return Snapshot(state, 0, 0, np.inf, 0, {"rounds.jsonl": nothing, "clients.jsonl": nothing})


def saved(store: RunFolder, snapshot: Snapshot) -> None:
    """Write a checkpoint with how long the rounds before it took, which the recorder writes."""
    store.cut(Timing.FILE, 0)
    store.append(*(Timing(round=number).checked("") for number in range(snapshot.state.round + 1)))
    checkpoint.save(store, snapshot)


def plain(state: State) -> dict[str, np.ndarray]:
    return {key: np.asarray(value) for key, value in state.items()}


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("options", [{}, {"dtype": "float16"}, {"storage": "disk"}, {"sketch": 5}], ids=str)
def test_a_run_goes_on_from_any_checkpoint_as_if_there_had_been_none(options, large, store, monkeypatch):
    monkeypatch.setattr(geometry, "LARGE", 1 if large else 2**24)
    simulation = simulation_of(Minimax(**options))
    state, through = simulation.start(), simulation.start()
    p = simulation.engine.num_trainable
    held = None
    for _ in range(6):
        state, through = simulation.step(state).state, simulation.step(through).state
        saved(store, snapshot_of(through))
        held = through  # as a run does, so that its places are not written over
        through = checkpoint.load(store, p).state
        assert isinstance(through.selection["rows"], RowTable if large else np.ndarray)
        for key, value in plain(state.selection).items():
            np.testing.assert_array_equal(plain(through.selection)[key], value)
        np.testing.assert_array_equal(through.models, state.models)
    assert held.round == 6
    assert (store.path / ROWS).exists() is large


def test_the_numbers_of_a_run_come_back_to_the_last_digit(store):
    third = 1 / 3
    numbers = {"bytes_total": 2**53 + 1, "best_round": 0, "best_loss": third, "evaluations_since_best": 3}
    numbers |= {"seconds_total": third, "joules_total": 2 * third}
    saved(store, replace(snapshot_of(tiny_simulation().start()), **numbers))
    again = checkpoint.load(store, 3)
    assert {name: getattr(again, name) for name in numbers} == numbers


def test_rows_after_a_checkpoint_are_removed_as_it_is_loaded(store):
    saved(store, snapshot_of(tiny_simulation().start()))
    store.append_json("rounds.jsonl", {"round": 1})
    store.append(Timing(round=1).checked(""))
    checkpoint.load(store, 3)
    assert store.rows("rounds.jsonl") == []
    assert [row["round"] for row in store.rows(Timing.FILE)] == [0]


def test_of_a_large_table_a_checkpoint_writes_what_changed(store, monkeypatch):
    monkeypatch.setattr(geometry, "LARGE", 1)
    monkeypatch.setattr(geometry, "TOGETHER", 1)
    simulation = simulation_of(Minimax())
    state = simulation.step(simulation.start()).state
    saved(store, snapshot_of(state))
    row, clients = 4 * simulation.engine.num_trainable, len(state.clusters)
    assert (store.path / ROWS).stat().st_size == clients * row
    assert (store.path / CHECKPOINT).stat().st_size < 4 * row + 4000  # nothing as long as the model but the model
    done = simulation.step(state)
    saved(store, snapshot_of(done.state))
    assert (store.path / ROWS).stat().st_size == (clients + len(done.result.cohort)) * row
    saved(store, snapshot_of(done.state))
    assert (store.path / ROWS).stat().st_size == (clients + len(done.result.cohort)) * row


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_clients_keep_comes_back_in_its_type(dtype, store):
    tiny = tiny_simulation()
    federation = replace(tiny.federation, solver=Scaffold())
    n, p = len(tiny.first_view.ids), tiny.engine.num_trainable
    memory = RowTable.zeros(n, p, store.path / MEMORY_FILE, dtype=dtype)
    values = np.linspace(-1, 1, 2 * p, dtype=np.float32).reshape(2, p)
    state = replace(tiny.start(), memory=memory.written(np.array([0, 2]), values), round=3)
    assert federation.has_memory
    saved(store, snapshot_of(state))
    again = checkpoint.load(store, p).state.memory
    assert again.layout == memory.layout
    np.testing.assert_array_equal(np.asarray(again), np.asarray(state.memory))


def test_a_checkpoint_of_a_small_table_has_no_word_of_files(store):
    simulation = simulation_of(Minimax())
    saved(store, snapshot_of(simulation.step(simulation.start()).state))
    tensors, record = store.read_tensors(CHECKPOINT)
    assert tensors[ROWS].dtype == np.float32
    assert "layouts" not in record


def test_of_a_finished_run_no_files_of_rows_are_left(store, monkeypatch):
    monkeypatch.setattr(geometry, "LARGE", 1)
    simulation = simulation_of(Minimax())
    state = simulation.step(simulation.start()).state
    memory = RowTable.zeros(4, 3, store.path / MEMORY_FILE).written(np.array([1]), np.ones((1, 3), np.float32))
    snapshot = snapshot_of(replace(state, memory=memory))
    saved(store, snapshot)
    assert {ROWS, MEMORY_FILE} <= {path.name for path in store.path.iterdir()}
    checkpoint.finish(store, snapshot)
    assert {path.name for path in store.path.iterdir()} == {CHECKPOINT, Timing.FILE}
    left = checkpoint.load(store, 3).state
    assert left.memory is None
    assert "rows" not in left.selection
    assert left.selection["heard"].tolist() == state.selection["heard"].tolist()
