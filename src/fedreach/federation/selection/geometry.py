"""Distances between updates, nearest clients and convex hulls."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple, cast

import numpy as np

from fedreach._util.arrays import AnyArray, Bools, Dtype, Float32s, Floats, Ints, pack_rows, unpack_rows, weighted_sum
from fedreach._util.errors import ComponentError
from fedreach._util.row_store import RowTable
from fedreach._util.streams import generator
from fedreach.federation.base import Selection
from fedreach.federation.types import ClientResults, Cohort, Probe, ServerView, State

# -------------------- Table of the latest updates

LARGE = 2**24
"""Size of a table, in bytes, above which FedReach copies and stores only changed rows."""
TOGETHER = 2**16  # bytes of the rows of a large table that are copied, and stored, together


@dataclass(frozen=True, kw_only=True)
class GradientTable(Selection):
    """Base class of policies that store the last update of each participant; implement `choose`.

    The state contains ``ids`` (n,), ``rows`` (n, p), and ``heard`` (n,), the round of each row, or 0 without a row. A
    row is the trained part of an update, without buffers. The paper uses gradients, which are negative updates. The
    policies do not depend on the sign. Before the selection, clients without a row are probed for their update. In
    round 1 these are all clients, and later clients that were unavailable or whose reply was lost. After that, a row
    dates from the last round in which its client was selected, unless `refresh` is set. Clients without a row are
    selected last, in order of their ids.

    Args:
        refresh: Largest age of a row in rounds, at least 0. Clients with older rows are probed again, at the cost of
            one download and one reply each. 0: probe all clients in every round. None: do not probe a client again.
        explore: Share of the cohort, in [0, 1), drawn at random from the clients that the policy did not choose,
            rounded down to whole clients. It updates rows at no extra cost.
        sketch: Number of values stored per row, at least 1. Each value of an update is added, with a random sign, to
            one of `sketch` random buckets (a count-sketch), the same for all clients. Inner products remain unbiased,
            and the error of a cosine is about 1 / sqrt(sketch). None: store all p values, as for models with p <=
            `sketch`.
        sketch_seed: Seed of signs and buckets, at least 0.
        dtype: Type of the rows. ``"float16"`` halves the memory. The error of a row is then at most 2^-11 of its
            length, and the error of a cosine at most 2^-10, see `fedreach._util.arrays`.
        storage: Storage of a table above 16 MiB. ``"disk"``: a file in the run folder's checkpoints; before the first
            checkpoint, a temporary file.

    Only rows of clients that replied change. A large table shares all other rows with the table of the previous round,
    and a checkpoint writes only changed rows. `rows_of` reads the rows of a state.

    Raises:
        ConfigError: If an option is out of range.

    Reference: "Advocating for the Silent" (arXiv 2310.07171), Algorithm 2 and appendix C.2; for the sketch, Charikar,
    Chen and Farach-Colton, "Finding Frequent Items in Data Streams", ICALP 2002.
    """

    reads_updates = True

    refresh: Annotated[int | None, "[0, inf)"] = None
    explore: Annotated[float, "[0, 1)"] = 0.0
    sketch: Annotated[int | None, "[1, inf)"] = None
    sketch_seed: Annotated[int, "[0, inf)"] = 0
    dtype: Dtype = "float32"
    storage: Literal["memory", "disk"] = "memory"

    def init(self, view: ServerView) -> State:
        """Return a table with empty rows, because the length of a row is not known yet."""
        n = len(view.ids)
        return {"ids": view.ids, "rows": np.empty((n, 0), np.float32), "heard": np.zeros(n, np.int64)}

    def age(self, state: State, round_: int) -> Floats:
        """Return (n,) the age of each row in rounds before `round_`, infinity for clients without a row."""
        heard = state["heard"]
        return np.where(heard > 0, round_ - heard, np.inf)

    def probe(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Probe | None:
        """Return a probe of the available clients whose row is missing or too old."""
        age = self.age(state, view.round)
        due = np.isinf(age) if self.refresh is None else age > self.refresh
        ids = view.ids[view.available & due]
        return Probe(ids, asks="update") if ids.size else None

    def select(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Cohort:
        """Return the cohort of `choose` among the available clients with a row; clients without a row if too few.

        A share `explore` of the cohort is drawn from the remaining clients.
        """
        drawn = int(self.explore * k)
        selection = self._select_by_rows(state, view, k - drawn, rng)
        if not drawn:
            return selection
        unchosen = np.setdiff1d(view.ids[view.available], selection.ids)
        lucky = rng.choice(unchosen, min(drawn, len(unchosen)), replace=False)
        return Cohort(np.concatenate([selection.ids, lucky]), selection.remark)

    def _select_by_rows(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Cohort:
        has_row = view.available & (state["heard"] > 0)
        count = int(has_row.sum())
        chosen = Cohort(view.ids[:0])
        if count:
            chosen = self._choose_from(state, view.ids[has_row], has_row, min(k, count), rng)
        silent = view.ids[view.available & ~has_row][: max(0, k - count)]
        return Cohort(np.concatenate([chosen.ids, silent]), chosen.remark)

    def _choose_from(self, state: State, ids: Ints, has_row: Bools, k: int, rng: np.random.Generator) -> Cohort:
        rows = rows_of(state)  # a choice of all rows would copy the table
        return self.choose(ids, np.asarray(rows) if len(ids) == len(rows) else rows[has_row], k, rng)

    def choose(self, ids: Ints, rows: Float32s, k: int, rng: np.random.Generator) -> Cohort:
        """Return k of these (a,) clients, given their (a, p) rows; 1 <= k <= a."""
        raise NotImplementedError(f"{type(self).__name__} must have a method choose(ids, rows, k, rng).")

    def observe(self, state: State, reports: ClientResults) -> State:
        """Return the table with new rows of the clients that replied.

        Raises:
            ComponentError: If an update contains a number that is not finite.
        """
        if len(reports.ids) == 0:
            return state
        new = reports.trained if self.sketch is None else count_sketch(reports.trained, self.sketch, self.sketch_seed)
        lost = reports.ids[~np.isfinite(new).all(axis=1)]
        if lost.size:
            raise ComponentError(
                f"{type(self).__name__} requires finite updates; the update of client {int(lost[0])} in round "
                f"{reports.round} is not finite. Report this client as lost."
            )
        where = np.searchsorted(state["ids"], reports.ids)
        heard = state["heard"].copy()
        heard[where] = reports.round
        return {**state, "rows": self._replace_rows(state["rows"], where, new), "heard": heard}

    def _replace_rows(self, rows: AnyArray | RowTable, where: Ints, new: Float32s) -> AnyArray:
        """Return the rows with (r, p) new rows at these positions."""
        if isinstance(rows, RowTable):
            return _as_array(rows.written(where, new))
        stored = pack_rows(new) if self.dtype == "float16" else new
        (n, begun), width = rows.shape, stored.shape[1]
        bytes_each = width * stored.itemsize
        if begun == 0 and n * bytes_each >= LARGE:
            rows_per_part, on_disk = max(1, TOGETHER // bytes_each), self.storage == "disk"
            empty = RowTable.zeros(n, new.shape[1], dtype=self.dtype, each=rows_per_part, on_disk=on_disk)
            return _as_array(empty.written(where, new))
        rows = rows.copy() if begun else np.zeros((n, width), stored.dtype)
        rows[where] = stored
        return rows


class KeepsUpdates(Selection):
    """Base class of policies with a `GradientTable` of latest updates and the option `sketch`."""

    reads_updates = True
    sketch: int | None

    @property
    def _table(self) -> GradientTable:
        return GradientTable(sketch=self.sketch)

    def init(self, view: ServerView) -> State:
        return self._table.init(view)

    def observe(self, state: State, reports: ClientResults) -> State:
        return self._table.observe(state, reports)


def rows_of(state: State) -> Float32s:
    """Return the (n, p) rows of a table's state. Rows of a large table are read from disk when they are sliced."""
    rows = state["rows"]
    return unpack_rows(rows) if rows.dtype == np.float16 else rows


def rows_at_flags(rows: AnyArray | RowTable, flags: Bools) -> AnyArray:
    """Return the flagged rows. Rows of a large table are read from disk when they are sliced."""
    if flags.all():
        return cast(AnyArray, rows)
    return _as_array(rows.only(np.flatnonzero(flags))) if isinstance(rows, RowTable) else rows[flags]


def _as_array(rows: RowTable) -> AnyArray:
    """Return a stored table as an array of a state."""
    return cast(AnyArray, rows)


def count_sketch(rows: Float32s, size: int, seed: int) -> Float32s:
    """Return (r, min(p, size)) count-sketches of (r, p) rows.

    S(x)_b is the sum of s_j x_j over all j with h(j) = b, for uniformly drawn buckets h(j) and signs s_j. Then
    E<S(x), S(y)> = <x, y>, with a variance of at most (|x|^2 |y|^2 + <x, y>^2) / size.

    Example:
        >>> rows = np.tile(np.array([[1.0], [2.0]], np.float32), 10_000)
        >>> kept = count_sketch(rows, 1000, seed=0)
        >>> (kept @ kept.T / 10_000).round(0)  # 1 * 1, 1 * 2 and 2 * 2
        array([[1., 2.], [2., 4.]], dtype=float32)
        >>> count_sketch(rows, 20_000, seed=0) is rows
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


# -------------------- Nearest rows, without holding all n x n cosines

ROWS = 1024  # rows on either side of a block of products
COLUMNS = 2048  # numbers of a row that are turned into float64 at a time
NUMBERS = 2**24  # products held at once where some rows meet all others
ORDERED = ">u8"  # big-endian: bytes sort as the numbers do
DECIMALS = 12  # of a cosine; the rest is rounding and must not decide


def nearest_similarity(rows: AnyArray) -> Floats:
    """Return (n,) the largest cosine of each row with another row, minus infinity for a single row.

    Two rows that are nearest to each other have exactly the same value. A row of zeros has value 1 and is never the
    nearest row of another row. Cosines are computed in float64.

    Raises:
        ComponentError: If a number is not finite.

    Example:
        >>> nearest_similarity(np.array([[1.0, 0.0], [0.0, 2.0], [0.0, -3.0], [3.0, 4.0], [0.0, 0.0]]))
        array([0.6, 0.8, 0. , 0.8, 1. ])
    """
    return nearest_of_all(rows, lengths(rows)).cosine


class Nearest(NamedTuple):
    """Largest cosine of each row with another row, and this other row; for a row of zeros, 1 and the row itself."""

    cosine: Floats  # (n,) minus infinity if the row is the only one
    whom: Ints  # (n,) -1 if the row is the only one


def nearest_of_all(rows: AnyArray, length: Floats) -> Nearest:
    """Return the nearest row of each row, from a comparison of all pairs.

    Example:
        >>> rows = np.array([[1.0, 0.0], [0.0, 2.0], [0.0, -3.0], [3.0, 4.0], [0.0, 0.0]])
        >>> nearest_of_all(rows, lengths(rows)).whom
        array([3, 3, 0, 1, 4])
    """
    n, still = len(rows), length == 0
    cosine, whom = np.full(n, -np.inf), np.full(n, -1)
    for a, b, cosines in blocks(rows, scale=inverse(length)):
        cosines[still[a]] = cosines[:, still[b]] = -np.inf
        if a == b:
            np.fill_diagonal(cosines, -np.inf)
        else:
            take_nearer(cosine, whom, np.arange(b.start, b.stop), cosines.T, a.start)
        take_nearer(cosine, whom, np.arange(a.start, a.stop), cosines, b.start)
    cosine[still], whom[still] = 1.0, np.flatnonzero(still)
    return Nearest(cosine, whom)


def take_nearer(cosine: Floats, whom: Ints, where: Ints, cosines: Floats, begin: int) -> None:
    """Update the nearest rows with the (r, c) cosines between r rows and the c rows that start at position `begin`."""
    best = cosines.max(axis=1)
    better = np.flatnonzero(best > cosine[where])  # few, after the first blocks: looking up whose it is costs more
    cosine[where[better]] = best[better]
    whom[where[better]] = cosines[better].argmax(axis=1) + begin


def first_by_similarity(rows: AnyArray, k: int, *, most_similar: bool = False, nearest: Floats | None = None) -> Ints:
    """Return the positions of the k rows with the farthest nearest row, or with the nearest one if `most_similar`.

    Mutually nearest rows are tied. Then the second nearest rows decide, then the third, and so on, with cosines rounded
    to 12 decimals. If all are equal, the lower position wins. `nearest` is the result of `nearest_similarity`, if
    known.

    Example:
        >>> first_by_similarity(np.array([[1.0, 0.0], [1.0, 0.1], [-1.0, 0.1], [0.0, 1.0]]), 2)
        array([2, 3])
    """
    sign = -1.0 if most_similar else 1.0
    score = (sign * (nearest_similarity(rows) if nearest is None else nearest)).round(DECIMALS)
    cut = np.partition(score, k - 1)[k - 1]
    sure, tied = np.flatnonzero(score < cut), np.flatnonzero(score == cut)
    if len(sure) + len(tied) > k:
        keys = _similarity_keys(rows, tied, sign)
        tied = tied[sorted(range(len(tied)), key=keys.__getitem__)[: k - len(sure)]]  # stable: then by position
    return np.sort(np.concatenate([sure, tied]))


def _similarity_keys(rows: AnyArray, positions: Ints, sign: float) -> list[bytes]:
    """Return sort keys of some rows, bytes that compare like ``sign`` times the row's cosines, largest cosine first.

    Equal keys are stored once, because many rows with equal cosines are usually copies of each other.
    """
    length = lengths(rows)
    still, scale = length == 0, inverse(length)
    stored: dict[bytes, bytes] = {}
    keys = []
    step = max(1, NUMBERS // len(rows))
    for begin in range(0, len(positions), step):
        part = positions[begin : begin + step]
        cosines = products(rows, part, slice(0, len(rows)), scale)
        cosines[still[part]] = cosines[:, still] = 1.0
        cosines[np.arange(len(part)), part] = np.inf  # itself, first in its row and then left out
        falling = -np.sort(-cosines, axis=1)[:, 1:]
        rounded = np.rint((1.0 + sign * falling) * 10**DECIMALS).clip(0)
        keys += [stored.setdefault(key, key) for key in map(bytes, rounded.astype(ORDERED))]
    return keys


# ------------------------------------------------------------------------------------------------- inner products


def lengths(rows: AnyArray) -> Floats:
    """Return the (n,) Euclidean lengths of the rows; raise an error if a row is not finite."""
    parts = (rows[begin : begin + ROWS] for begin in range(0, len(rows), ROWS))
    result = np.array([np.linalg.norm(row.astype(np.float64)) for part in parts for row in part])
    wrong = np.flatnonzero(~np.isfinite(result))
    if wrong.size:
        raise ComponentError(f"Compared rows must contain only finite numbers; row {int(wrong[0])} has other values.")
    return result


def inverse(length: Floats) -> Floats:
    """Return 1 / length, or 0 if the length is 0."""
    return np.divide(1.0, length, out=np.zeros_like(length), where=length > 0)


def blocks(
    rows: AnyArray, scale: Floats | None = None, shift: Floats | None = None
) -> Iterator[tuple[slice, slice, Floats]]:
    """Yield slices a <= b and the inner products of the rows a and b, until all pairs of the table are covered."""
    slices = [slice(begin, min(begin + ROWS, len(rows))) for begin in range(0, len(rows), ROWS)]
    for i, a in enumerate(slices):
        for b in slices[i:]:
            yield a, b, products(rows, a, b, scale, shift)


def gram(rows: AnyArray, scale: Floats | None = None, shift: Floats | None = None) -> Floats:
    """Return the (n, n) inner products of scale_i rows_i - shift, in float64.

    Example:
        >>> gram(np.array([[1.0, 2.0], [3.0, 4.0]], np.float32))
        array([[ 5., 11.], [11., 25.]])
    """
    result = np.empty((len(rows), len(rows)))
    for a, b, block in blocks(rows, scale, shift):
        result[a, b] = block
        result[b, a] = block.T
    return result


def products(
    rows: AnyArray, a: slice | Ints, b: slice | Ints, scale: Floats | None = None, shift: Floats | None = None
) -> Floats:
    """Return the (a, b) inner products of scale_i rows_i - shift over the rows a and b, summed in float64."""

    def prepare(positions: slice | Ints, columns: slice) -> Floats:
        part: Floats = rows[positions, columns].astype(np.float64)
        if scale is not None:
            part *= scale[positions, None]
        if shift is not None:
            part -= shift[columns]
        return part

    total: Floats | None = None
    for begin in range(0, max(1, rows.shape[1]), COLUMNS):
        block_a = prepare(a, slice(begin, begin + COLUMNS))
        block_b = (
            block_a if a is b else prepare(b, slice(begin, begin + COLUMNS))
        )  # one array: symmetric to the last bit
        total = block_a @ block_b.T if total is None else np.add(total, block_a @ block_b.T, out=total)
    assert total is not None  # even rows without numbers are one piece
    return total


# -------------------- Nearest rows, updated as rows change
# After a round only the rows of the cohort are new. So the state keeps each client's largest cosine and its nearest
# client. A new row is compared with all others. A client whose nearest row moved away searches again. With n clients,
# k new rows and rows of p numbers that is about k n p products per round; comparing all with all takes n^2 p.

RECOMPUTE_SHARE = 0.25  # part of all rows from which on all are compared with all again
MOST = 4096  # rows that are compared with all at a time, as their cosines with each other are held


def update_nearest(rows: AnyArray, length: Floats, old: Nearest, changed: Ints) -> Nearest:
    """Return the nearest rows in an (n, p) table with these lengths, after some rows changed."""
    if len(changed) > min(RECOMPUTE_SHARE * len(rows), MOST):
        return nearest_of_all(rows, length)
    cosine, whom = old.cosine.copy(), old.whom.copy()
    is_new, still = np.zeros(len(rows), np.bool_), length == 0
    is_new[changed] = True
    orphaned = np.isin(whom, changed) & ~is_new  # their nearest row is another now
    cosine[changed], whom[changed] = -np.inf, -1
    for columns, cosines in _cosines_with_all(rows, length, changed):
        take_nearer(cosine, whom, changed, cosines, columns.start)
        cosines[:, is_new[columns] | still[columns]] = -np.inf
        best = cosines.max(axis=0)
        # All others are at most as near as the one that left, so that a new row at least as near is the nearest.
        replaced = orphaned[columns] & (best >= cosine[columns])
        orphaned[columns] &= ~replaced
        better = replaced | (best > cosine[columns])
        cosine[columns] = np.where(better, best, cosine[columns])
        whom[columns] = np.where(better, changed[cosines.argmax(axis=0)], whom[columns])
    cosine[changed[still[changed]]], whom[changed[still[changed]]] = 1.0, changed[still[changed]]
    return _search_again(rows, length, Nearest(cosine, whom), orphaned)


def nearest_among(rows: AnyArray, length: Floats, nearest: Nearest, flags: Bools) -> Nearest:
    """Return the nearest rows among the flagged rows; entries of other rows are meaningless."""
    gone = (nearest.whom >= 0) & ~flags[nearest.whom]
    return _search_again(rows, length, nearest, gone & flags, flags)


def _search_again(rows: AnyArray, length: Floats, nearest: Nearest, lost: Bools, flags: Bools | None = None) -> Nearest:
    """Compare the rows that lost their nearest row with all rows, or with the flagged rows."""
    everybody = np.flatnonzero(lost)
    if not len(everybody):
        return nearest
    cosine, whom = nearest.cosine.copy(), nearest.whom.copy()
    cosine[everybody], whom[everybody] = -np.inf, -1
    for begin in range(0, len(everybody), MOST):
        who = everybody[begin : begin + MOST]
        place = np.full(len(rows), -1)
        place[who] = np.arange(len(who))
        for columns, cosines in _cosines_with_all(rows, length, who):
            if flags is not None:
                cosines[:, ~flags[columns]] = -np.inf
            take_nearer(cosine, whom, who, cosines, columns.start)
            # Mutually nearest rows must have the same cosine to the last bit, as computed now.
            outside = (whom[columns] >= 0) & (place[columns] < 0)
            partners = np.flatnonzero(outside & (place[whom[columns]] >= 0))
            cosine[columns.start + partners] = cosines[place[whom[columns][partners]], partners]
    return Nearest(cosine, whom)


def _cosines_with_all(rows: AnyArray, length: Floats, who: Ints) -> Iterator[tuple[slice, Floats]]:
    """Yield slices of all rows and some rows' cosines with them; minus infinity with themselves and rows of zeros."""
    scale, still = inverse(length), length == 0
    cosines_within = products(rows, who, who, scale)  # symmetric to the last bit
    place = np.full(len(rows), -1)
    place[who] = np.arange(len(who))
    step = max(1, NUMBERS // max(1, len(who)))
    for begin in range(0, len(rows), step):
        columns = slice(begin, min(begin + step, len(rows)))
        cosines = products(rows, who, columns, scale)
        members = np.flatnonzero(place[columns] >= 0)
        cosines[:, members] = cosines_within[:, place[columns][members]]
        cosines[:, still[columns]] = cosines[still[who]] = -np.inf
        cosines[place[columns][members], members] = -np.inf
        yield columns, cosines


@dataclass(frozen=True, kw_only=True)
class NearestTable(GradientTable):
    """Base class of policies that also store nearest rows: `Minimax` and `MaxSimilarity`.

    In addition to the table, the state contains ``length``, ``nearest`` and ``whom`` (n,), see `Nearest`.
    """

    most_similar: ClassVar[bool]  # of which end the clients are chosen

    def _choose_from(self, state: State, ids: Ints, has_row: Bools, k: int, rng: np.random.Generator) -> Cohort:
        if "nearest" not in state or len(ids) < 2:
            return super()._choose_from(state, ids, has_row, k, rng)
        rows = rows_of(state)
        nearest = nearest_among(rows, state["length"], Nearest(state["nearest"], state["whom"]), has_row)
        return self.choose(ids, rows_at_flags(rows, has_row), k, rng, nearest.cosine[has_row])

    def choose(
        self, ids: Ints, rows: Float32s, k: int, rng: np.random.Generator, nearest: Floats | None = None
    ) -> Cohort:
        """Return k clients, given the (n,) largest cosines if they are known."""
        return Cohort(ids[first_by_similarity(rows, k, most_similar=self.most_similar, nearest=nearest)])

    def observe(self, state: State, reports: ClientResults) -> State:
        """Return the table with new rows of the clients that replied, and the new nearest rows."""
        new = super().observe(state, reports)
        if new is state:
            return state
        changed = np.searchsorted(state["ids"], reports.ids)
        rows, has_nearest = rows_of(new), "nearest" in state
        length = state["length"].copy() if has_nearest else lengths(rows)
        length[changed] = lengths(rows[changed])
        old = Nearest(state["nearest"], state["whom"]) if has_nearest else None
        nearest = nearest_of_all(rows, length) if old is None else update_nearest(rows, length, old, changed)
        return {**new, "length": length, "nearest": nearest.cosine, "whom": nearest.whom}


# -------------------- Convex hull of the rows

MOST_COMPONENTS = 5  # in 7 dimensions Qhull calls 13% of interior points vertices; up to 5, none in 300
FULL_EIGEN = 2000  # largest matrix of which all eigenvectors are computed to use a few
NO_EXTENT = 3e-7  # of rows along an axis, relative to their lengths: the resolution of float32
FLAT = 1e-9  # extent, relative to the largest, below which points have none in a direction


def principal_points(rows: AnyArray, components: int, *, normalize: bool = False) -> Floats:
    """Return (n, r) coordinates of the rows along their r principal axes, r <= `components`.

    Let X denote the centered rows and X X' = U L U' their eigendecomposition. The coordinates are U L^(1/2) for the
    largest eigenvalues in L. The function computes the smaller of X X' (n, n) and X' X (p, p). It omits axes along
    which rows differ by less than float32 rounding, so r = 0 for copies of one row. On each axis the largest coordinate
    is positive. With `normalize`, rows are first divided by their length; rows of zeros do not change.

    Example:
        >>> principal_points(np.array([[1.0, 1.0], [3.0, 3.0], [8.0, 8.0]]), 2).round(3)
        array([[-4.243],
               [-1.414],
               [ 5.657]])
    """
    length = lengths(rows)
    scale = inverse(length) if normalize else np.ones(len(rows))
    mean = weighted_sum(scale / len(rows), rows)
    if rows.shape[1] < len(rows):
        centred = rows * scale[:, None] - mean
        values, axes = _leading(centred.T @ centred, components)
        points = centred @ axes
    else:
        values, vectors = _leading(gram(rows, scale, mean), components)
        points = vectors * np.sqrt(values.clip(0))
    counts = values > NO_EXTENT**2 * ((scale * length) ** 2).sum()
    points = points[:, counts]
    largest = points[np.abs(points).argmax(axis=0), np.arange(points.shape[1])]
    return points * np.where(largest < 0, -1.0, 1.0)


def _leading(matrix: Floats, count: int) -> tuple[Floats, Floats]:
    """Return the largest eigenvalues of a symmetric matrix and their eigenvectors, largest first."""
    count = min(count, len(matrix))
    if len(matrix) > FULL_EIGEN and 2 * count < len(matrix) and matrix.any():
        from scipy.sparse.linalg import eigsh

        # A start that renaming the clients renames; not ones, which centering takes to 0.
        values, vectors = eigsh(matrix, count, which="LA", v0=matrix[matrix.diagonal().argmax()])
    else:
        values, vectors = np.linalg.eigh(matrix)
    order = np.argsort(-values)[:count]
    return values[order], vectors[:, order]


def vertices(points: Floats) -> Ints:
    """Return the sorted positions of the (n, r) points that are vertices of their convex hull.

    Of equal points, at most the first is a vertex. Points in a subspace are processed in this subspace. If Qhull still
    considers the input degenerate, it moves the points slightly (option QJ).

    Example:
        >>> vertices(np.array([[0.0, 0], [4, 0], [4, 3], [0, 3], [2, 1], [1, 1], [2, 3]]))
        array([0, 1, 2, 3])
    """
    from scipy.spatial import ConvexHull, KDTree, QhullError

    centred = points - points.mean(axis=0)
    _, extents, axes = np.linalg.svd(centred, full_matrices=False)
    if extents.max(initial=0.0) == 0:
        return np.array([0])
    flat = centred @ axes[extents > FLAT * extents[0]].T
    n, r = flat.shape
    if r == 1:
        corners = np.array([flat.argmin(), flat.argmax()])
    elif n <= r + 1:
        corners = np.arange(n)
    else:
        try:
            corners = ConvexHull(flat).vertices
        except QhullError:
            corners = ConvexHull(flat, qhull_options="QJ").vertices
    same = KDTree(flat).query_ball_point(flat[corners], FLAT * extents[0])
    return np.unique([min(copies) for copies in same])


def spanning_points(points: Floats, k: int) -> Ints:
    """Return the positions of exactly k of the (n, r) points, outermost first.

    The function selects the vertices of the hull, then the vertices of the hull of the remaining points, and so on, in
    layers. `farthest_first` selects from the last layer. If this is the first layer, it starts with the point farthest
    from the mean.

    Example:
        >>> points = np.array([[0.0, 0], [4, 0], [4, 3], [0, 3], [2, 1], [1, 1], [2, 3]])
        >>> [sorted(spanning_points(points, k).tolist()) for k in (2, 5, 6)]
        [[1, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 6]]
    """
    out = np.linalg.norm(points - points.mean(axis=0), axis=1)

    def distance(i: int) -> Floats:
        return np.asarray(np.linalg.norm(points - points[i], axis=1))

    chosen: list[int] = []
    inner = np.arange(len(points))
    while len(chosen) < k:
        layer = inner[vertices(points[inner])]
        if len(layer) > k - len(chosen):
            return farthest_first(distance, out, layer, chosen, k)
        chosen += layer.tolist()
        inner = np.setdiff1d(inner, layer)
    return np.array(chosen)


def farthest_first(
    distance: Callable[[int], Floats], out: Floats, candidates: Ints, chosen: Sequence[int], k: int
) -> Ints:
    """Extend the chosen points to k points, always by the candidate that is farthest from all chosen points.

    Distances are compared after rounding to 1e-9 of the largest distance. Ties go to the first candidate.

    Args:
        distance: Function from a point i to the (n,) distances to it.
        out: (n,) distances to the mean, whose largest determines the first point if no point is chosen yet.
        candidates: Positions of the candidates, at least k minus the number of chosen points.
    """
    size = float(out.max()) or 1.0
    result = list(chosen)
    nearest = np.min([distance(i) for i in chosen], axis=0) if chosen else out
    while len(result) < k:
        i = int(candidates[(nearest[candidates] / size).round(9).argmax()])
        candidates = candidates[candidates != i]
        nearest = np.minimum(nearest, distance(i)) if result else distance(i)
        result.append(i)
    return np.array(result)
