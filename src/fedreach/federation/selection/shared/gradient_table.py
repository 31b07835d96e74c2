"""A table of the latest update of each participant, which several policies choose by."""

from dataclasses import dataclass
from typing import ClassVar, Literal, cast, get_args

import numpy as np

from fedreach.arrays import AnyArray, Bools, Float32s, Floats, Ints
from fedreach.errors import PartError, require
from fedreach.federation.selection.base import Policy
from fedreach.federation.values import ClientView, Probe, Reports, Selection, State
from fedreach.storage.float16 import packed, unpacked
from fedreach.storage.rows import Dtype
from fedreach.storage.table import RowTable
from fedreach.streams import generator

Storage = Literal["memory", "disk"]
LARGE = 2**24
"""Bytes from which on a table is not copied whole when some rows change, nor written whole into each checkpoint."""
TOGETHER = 2**16  # bytes of the rows of a large table that are copied, and stored, together


@dataclass(frozen=True, kw_only=True)
class GradientTable(Policy):
    """Remember what each participant last sent; inherit from it and write `choose`.

    The state holds ``ids`` (n,), ``rows`` (n, p), p numbers a client, and ``heard`` (n,), the round of each
    row, 0 for a client never heard from. A row is the trained part of an update, without buffers; no policy here minds
    that the paper's gradients are its negative. Clients never heard from are asked for their update before a cohort
    is chosen: all of them in round 1, later those whose answer was lost or who were away. Afterwards a row is as old
    as the last round in which its client was chosen, unless `refresh` says otherwise. Clients without a row are
    chosen last, the lower id first.

    Args:
        refresh: Also ask those whose row is older than this many rounds, at least 0, which asks everybody in every
            round; None never asks twice. Each client asked costs a model down and a report up.
        explore: Share of the cohort, in [0, 1), that is drawn at random from those not chosen, rounded down to
            whole clients. Their rows are renewed at no further bytes, so that no choice is for ever.
        sketch: Numbers kept of each row, at least 1; None keeps all p. Each number of an update is added, with a random
            sign, to one of `sketch` random buckets (a count-sketch), the same for all clients. Inner products stay
            unbiased, and a cosine is off by about 1 / sqrt(sketch). A model that has no more numbers is kept whole.
        sketch_seed: Which signs and buckets, not negative.
        dtype: In which rows are kept. ``"float16"`` takes half the bytes; a row is then off by at most 2^-11 of its
            length and a cosine by 2^-10, see `fedreach.storage.float16`.
        storage: Where the rows of a table above 16 MiB lie. ``"disk"``: in a file, which takes main memory for those
            that are looked at only; choosing reads all rows that it looks at. The file is that of the run folder's
            checkpoints, and before the first of them a nameless one in the folder for temporary files.

    Only the rows of those that reported change: a large table shares all others with that of the round before, and a
    checkpoint writes what changed. See `rows_of` for reading the rows of a state.

    Raises:
        ConfigError: If an option is out of its range.

    Reference: "Advocating for the Silent" (arXiv 2310.07171), Algorithm 2 and appendix C.2; for the sketch, Charikar,
    Chen and Farach-Colton, "Finding Frequent Items in Data Streams", ICALP 2002.
    """

    reads_updates: ClassVar[bool] = True

    refresh: int | None = None
    explore: float = 0.0
    sketch: int | None = None
    sketch_seed: int = 0
    dtype: Dtype = "float32"
    storage: Storage = "memory"

    def __post_init__(self) -> None:
        require(self, refresh="[0, inf)", explore="[0, 1)", sketch="[1, inf)", sketch_seed="[0, inf)")
        require(self, dtype=get_args(Dtype), storage=get_args(Storage))

    def init(self, view: ClientView) -> State:
        """Return a table of rows without numbers, as their length is not known yet."""
        n = len(view.ids)
        return {"ids": view.ids, "rows": np.empty((n, 0), np.float32), "heard": np.zeros(n, np.int64)}

    def age(self, state: State, round_: int) -> Floats:
        """Return (n,) how many rounds before `round_` each row was heard, infinity where there is none."""
        heard = state["heard"]
        return np.where(heard > 0, round_ - heard, np.inf)

    def probe(self, state: State, view: ClientView, k: int, rng: np.random.Generator) -> Probe | None:
        """Return those available whose row is missing or too old."""
        age = self.age(state, view.round)
        due = np.isinf(age) if self.refresh is None else age > self.refresh
        ids = view.ids[view.available & due]
        return Probe(ids, asks="update") if ids.size else None

    def select(self, state: State, view: ClientView, k: int, rng: np.random.Generator) -> Selection:
        """Return what `choose` finds among the available clients with a row, then those without one if too few.

        Of a share `explore` of the cohort nothing is asked: they are drawn from the rest.
        """
        drawn = int(self.explore * k)
        found = self._found(state, view, k - drawn, rng)
        if not drawn:
            return found
        rest = np.setdiff1d(view.ids[view.available], found.ids)
        lucky = rng.choice(rest, min(drawn, len(rest)), replace=False)
        return Selection(np.concatenate([found.ids, lucky]), found.remark)

    def _found(self, state: State, view: ClientView, k: int, rng: np.random.Generator) -> Selection:
        known = view.available & (state["heard"] > 0)
        count = int(known.sum())
        chosen = Selection(view.ids[:0])
        if count:
            chosen = self._chosen(state, view.ids[known], known, min(k, count), rng)
        silent = view.ids[view.available & ~known][: max(0, k - count)]
        return Selection(np.concatenate([chosen.ids, silent]), chosen.remark)

    def _chosen(self, state: State, ids: Ints, known: Bools, k: int, rng: np.random.Generator) -> Selection:
        rows = rows_of(state)  # a choice of all rows would copy the table
        return self.choose(ids, np.asarray(rows) if len(ids) == len(rows) else rows[known], k, rng)

    def choose(self, ids: Ints, rows: Float32s, k: int, rng: np.random.Generator) -> Selection:
        """Return k of these (a,) clients by their (a, p) rows; 1 <= k <= a."""
        raise NotImplementedError(f"{type(self).__name__} must have a method choose(ids, rows, k, rng).")

    def observe(self, state: State, reports: Reports) -> State:
        """Return the table with the rows of those that reported replaced.

        Raises:
            PartError: If a number of an update is not finite.
        """
        if len(reports.ids) == 0:
            return state
        new = reports.trained if self.sketch is None else sketched(reports.trained, self.sketch, self.sketch_seed)
        lost = reports.ids[~np.isfinite(new).all(axis=1)]
        if lost.size:
            raise PartError(
                f"{type(self).__name__} must be told finite updates; that of client {int(lost[0])} in round "
                f"{reports.round} is not. Report such a client as lost."
            )
        where = np.searchsorted(state["ids"], reports.ids)
        heard = state["heard"].copy()
        heard[where] = reports.round
        return {**state, "rows": self._replaced(state["rows"], where, new), "heard": heard}

    def _replaced(self, rows: AnyArray | RowTable, where: Ints, new: Float32s) -> AnyArray:
        """Return the rows with (r, p) new ones at these positions."""
        if isinstance(rows, RowTable):
            return _as_array(rows.written(where, new))
        kept = packed(new) if self.dtype == "float16" else new
        (n, begun), width = rows.shape, kept.shape[1]
        bytes_each = width * kept.itemsize
        if begun == 0 and n * bytes_each >= LARGE:
            each, on_disk = max(1, TOGETHER // bytes_each), self.storage == "disk"
            empty = RowTable.zeros(n, new.shape[1], dtype=self.dtype, each=each, on_disk=on_disk)
            return _as_array(empty.written(where, new))
        rows = rows.copy() if begun else np.zeros((n, width), kept.dtype)
        rows[where] = kept
        return rows


def rows_of(state: State) -> Float32s:
    """Return the (n, p) rows of a table's state; those of a large one are read as they are sliced."""
    rows = state["rows"]
    return unpacked(rows) if rows.dtype == np.float16 else rows


def those_of(rows: AnyArray | RowTable, some: Bools) -> AnyArray:
    """Return some of the rows; those of a large table are still read as they are sliced."""
    if some.all():
        return cast(AnyArray, rows)
    return _as_array(rows.only(np.flatnonzero(some))) if isinstance(rows, RowTable) else rows[some]


def _as_array(rows: RowTable) -> AnyArray:
    """Let a memory be the array of a state: policies, checkpoints and the mathematics of rows read both alike."""
    return cast(AnyArray, rows)


def sketched(rows: Float32s, size: int, seed: int) -> Float32s:
    """Return (r, min(p, size)) count-sketches of (r, p) rows.

    S(x)_b = sum of s_j x_j over the j with h(j) = b, where bucket h(j) and sign s_j are drawn uniformly. Then
    E<S(x), S(y)> = <x, y>, with a variance of at most (|x|^2 |y|^2 + <x, y>^2) / size.

    Example:
        >>> rows = np.tile(np.array([[1.0], [2.0]], np.float32), 10_000)
        >>> kept = sketched(rows, 1000, seed=0)
        >>> (kept @ kept.T / 10_000).round(0)  # 1 * 1, 1 * 2 and 2 * 2
        array([[1., 2.], [2., 4.]], dtype=float32)
        >>> sketched(rows, 20_000, seed=0) is rows
        True
    """
    p = rows.shape[1]
    if size >= p:
        return rows
    rng = generator(seed, "sketch")
    bucket, sign = rng.integers(size, size=p), rng.integers(2, size=p) * 2.0 - 1.0
    result = np.empty((len(rows), size), np.float32)
    for i, row in enumerate(rows):
        result[i] = np.bincount(bucket, weights=row * sign, minlength=size)
    return result
