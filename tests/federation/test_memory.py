"""What is written for a client comes back, whatever lies where, and an earlier memory stays as it was."""

import numpy as np
import pytest

from fedreach._util.arrays import pack_rows, unpack_rows
from fedreach._util.errors import RunFolderError
from fedreach._util.row_store import RowTable
from fedreach._util.streams import generator

N, P = 23, 7
KINDS = [
    {"each": each, "dtype": dtype, "on_disk": on_disk}
    for each in (1, 4)  # 23 is no multiple of 4
    for dtype in ("float32", "float16")
    for on_disk in (False, True)
]


def rows(k, p=P, seed=0):
    return generator(seed, "rows").standard_normal((k, p)).astype(np.float32)


def twin(dtype, values):
    """What a plain array holds where a memory keeps it in this type."""
    return values if dtype == "float32" else unpack_rows(pack_rows(values))


def history(memory, rounds=12, seed=0):
    """Return memories after each write of some clients, and plain arrays that say what each must hold."""
    rng, plain = generator(seed, "history"), np.zeros(memory.shape, np.float32)
    kept = [(memory, plain)]
    for number in range(rounds):
        who, values = rng.choice(len(memory), size=5, replace=False), rows(5, memory.shape[1], seed=number)
        plain = plain.copy()
        plain[who] = twin(memory.layout.dtype, values)
        memory = memory.written(who, values)
        kept.append((memory, plain))
    return kept


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_earlier_memory_still_holds_what_it_held(kind):
    for memory, plain in history(RowTable.zeros(N, P, **kind)):
        np.testing.assert_array_equal(np.asarray(memory), plain)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_it_is_read_like_an_array(kind):
    memory, plain = history(RowTable.zeros(N, P, **kind))[-1]
    some, mask = np.array([22, 0, 5, 5, 3]), plain[:, 0] > 0
    assert (memory.shape, len(memory), memory.dtype) == (plain.shape, N, plain.dtype)
    for index in (some, mask, slice(None), slice(3, 21), slice(5, 6), slice(9, 9), slice(-4, None), slice(20, 2, -3)):
        np.testing.assert_array_equal(memory[index], plain[index])
        for columns in (slice(2, 5), slice(0, 1), slice(3, None), slice(4, 99), slice(5, 5)):
            np.testing.assert_array_equal(memory[index, columns], plain[index, columns])
    np.testing.assert_array_equal(memory.read(some), plain[some])
    np.testing.assert_array_equal(np.asarray(memory.only(some)), plain[some])


@pytest.mark.parametrize("index", [3, (3, 4), (slice(None), 2), [1, 2]])
def test_what_an_array_would_read_and_this_does_not_is_said(index):
    with pytest.raises(TypeError, match="must be an array or a slice of clients, and a slice of columns"):
        RowTable.zeros(N, P)[index]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_two_memories_may_come_from_one(kind):
    start, plain = history(RowTable.zeros(N, P, **kind), rounds=3)[-1]
    who = np.array([1, 2])
    left, right = start.written(who, np.ones((2, P), np.float32)), start.written(who, rows(2))
    assert (left.read(who) == 1).all()
    np.testing.assert_array_equal(right.read(who), twin(kind["dtype"], rows(2)))
    np.testing.assert_array_equal(np.asarray(start), plain)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_who_is_forgotten_has_zeros_and_nobody_else(kind):
    memory, plain = history(RowTable.zeros(N, P, **kind))[-1]
    forgotten, gone = memory.forget(np.array([0, 5, 22])), plain.copy()
    gone[[0, 5, 22]] = 0
    np.testing.assert_array_equal(np.asarray(forgotten), gone)
    np.testing.assert_array_equal(np.asarray(memory), plain)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_what_was_handed_in_may_be_changed_afterwards(kind):
    values = rows(3)
    memory = RowTable.zeros(N, P, **kind).written(np.array([4, 5, 6]), values)
    values[:] = 99
    assert memory.read(np.array([4, 5, 6])).max() < 10


# ------------------------------------------------------------------------------------------------ files


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_it_comes_back_from_its_file(kind, tmp_path):
    path = tmp_path / "rows"
    memory, plain = history(RowTable.zeros(N, P, **kind))[-1]
    again = RowTable.stored(path, P, memory.places(path), memory.digest(), n=N, **kind)
    np.testing.assert_array_equal(np.asarray(again), plain)
    later, plain_later = again.written(np.array([0]), rows(1)), plain.copy()
    plain_later[0] = twin(kind["dtype"], rows(1))
    np.testing.assert_array_equal(np.asarray(later), plain_later)
    np.testing.assert_array_equal(np.asarray(again), plain)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_rounds_after_a_checkpoint_leave_what_it_refers_to(kind, tmp_path):
    """A run that is killed at any moment goes on from its last checkpoint, whose memory somebody holds."""
    path, copy = tmp_path / "rows", tmp_path / "copy"
    memory, rng = RowTable.zeros(N, P, **kind), generator(0, "rounds")
    for number in range(40):
        memory = memory.written(rng.choice(N, size=5, replace=False), rows(5, seed=number))
        if number % 3 == 0:
            saved = (
                memory.places(path),
                memory.digest(),
                np.asarray(memory),
                memory,
            )  # which is held, as a run holds it
        copy.write_bytes(path.read_bytes())  # what a process that is killed now leaves behind
        again = RowTable.stored(copy, P, saved[0], saved[1], n=N, **kind)
        np.testing.assert_array_equal(np.asarray(again), saved[2])
    bytes_each = kind["each"] * memory.layout.stored_width * np.dtype(kind["dtype"]).itemsize
    most = 2 * len(memory.blocks) + 5  # those of the checkpoint, of now, and of the round that is being written
    assert path.stat().st_size <= most * bytes_each  # places that nobody refers to are used again


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_checkpoint_writes_only_what_changed(on_disk, tmp_path):
    path, everybody = tmp_path / "rows", np.arange(1000)
    memory = RowTable.zeros(1000, P, on_disk=on_disk).written(everybody, rows(1000))
    first = memory.places(path)
    later = memory.written(np.array([7, 8]), rows(2, seed=1))
    second = later.places(path)
    assert np.flatnonzero(first != second).tolist() == [7, 8]
    assert path.stat().st_size == 1002 * P * 4


def test_clients_that_never_trained_take_no_room(tmp_path):
    path = tmp_path / "rows"
    memory = RowTable.zeros(10**6, 1000, path).written(np.array([3, 999_999]), rows(2, 1000))
    assert (memory.places() >= 0).sum() == 2
    assert path.stat().st_size == 2 * 4000
    assert not memory.read(np.array([0, 500_000])).any()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_file_that_is_too_short_is_refused(dtype, tmp_path):
    path = tmp_path / "rows"
    memory = RowTable.zeros(N, P, path, dtype=dtype).written(np.arange(3), rows(3))
    places = memory.places()
    needed = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RunFolderError, match=f"must have {needed} bytes .* got {needed - 1} bytes. Restore it"):
        RowTable.stored(path, P, places, memory.digest(), dtype=dtype)


# ------------------------------------------------------------------------------------------------ float16


@pytest.mark.parametrize("size", [1e-44, 1e-38, 1e-20, 1e-6, 1.0, 1e5, 1e30, 3e38])
def test_halves_are_off_by_no_more_than_they_say(size):
    """2^-11 of a number, or 2^-39 of the largest of its row, whatever that is; 2^-150 is half the least float32."""
    rng = generator(0, "halves")
    spread = 10.0 ** rng.uniform(-12, 0, (40, 500))
    x = (size * spread * rng.choice([-1, 1], (40, 500))).clip(-3.4e38, 3.4e38).astype(np.float32)
    off = np.abs(unpack_rows(pack_rows(x)).astype(np.float64) - x)
    largest = np.abs(x).max(axis=1, keepdims=True).astype(np.float64)
    assert (off <= np.maximum(np.maximum(2.0**-11 * np.abs(x), 2.0**-39 * largest), 2.0**-150)).all()
    assert off.any() or size < 1e-40


def test_cosines_of_halves_are_off_by_at_most_two_to_the_minus_ten():
    x = rows(40, 300) * 10.0 ** generator(1, "size").uniform(-8, 4, (40, 1)).astype(np.float32)

    def cosines(table):
        unit = table / np.linalg.norm(table.astype(np.float64), axis=1, keepdims=True)
        return unit @ unit.T

    off = np.abs(cosines(unpack_rows(pack_rows(x))) - cosines(x.astype(np.float64)))
    assert 0 < off.max() < 2.0**-10


def test_what_halves_hold_exactly_comes_back_exactly():
    x = np.array([[1, -2, 0.5, 2047], [0, 0, 0, 0], [2.0**-120, -(2.0**-126), 0, 2.0**-130]], np.float32)
    np.testing.assert_array_equal(unpack_rows(pack_rows(x)), x)
    once = unpack_rows(pack_rows(rows(9)))
    np.testing.assert_array_equal(unpack_rows(pack_rows(once)), once)


def test_what_is_kept_is_what_is_read():
    for kind in KINDS:
        memory, who = RowTable.zeros(N, P, **kind), np.array([3, 9])
        np.testing.assert_array_equal(memory.written(who, rows(2)).read(who), memory.kept(rows(2)))
