"""How near the nearest other row of a table is, without ever holding all n x n cosines."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fedreach.arrays import AnyArray, Floats, Ints
from fedreach.errors import PartError

ROWS = 1024  # rows on either side of a block of products
COLUMNS = 2048  # numbers of a row that are turned into float64 at a time
NUMBERS = 2**24  # products held at once where some rows meet all others
ORDERED = ">u8"  # big-endian: bytes sort as the numbers do
DECIMALS = 12  # of a cosine; the rest is rounding and must not decide


def nearest_similarity(rows: AnyArray) -> Floats:
    """Return (n,) each row's largest cosine with another row, minus infinity where there is no other.

    Two rows that are each other's nearest have exactly the same one. A row of zeros has no direction: its own is 1, as
    if it were a copy of another row, and it is no neighbour to others. Whatever the type of the rows, cosines are
    computed in float64.

    Raises:
        PartError: If a number is not finite.

    Example:
        >>> nearest_similarity(np.array([[1.0, 0.0], [0.0, 2.0], [0.0, -3.0], [3.0, 4.0], [0.0, 0.0]]))
        array([0.6, 0.8, 0. , 0.8, 1. ])
    """
    return nearest_of_all(rows, lengths(rows)).cosine


class Nearest(NamedTuple):
    """Each row's largest cosine with another, and with which; a row of zeros has 1, with itself."""

    cosine: Floats  # (n,) minus infinity where there is no other
    whom: Ints  # (n,) -1 where there is no other


def nearest_of_all(rows: AnyArray, length: Floats) -> Nearest:
    """Compare all rows with all.

    Example:
        >>> rows = np.array([[1.0, 0.0], [0.0, 2.0], [0.0, -3.0], [3.0, 4.0], [0.0, 0.0]])
        >>> nearest_of_all(rows, lengths(rows)).whom
        array([3, 3, 0, 1, 4])
    """
    n, still = len(rows), length == 0
    cosine, whom = np.full(n, -np.inf), np.full(n, -1)
    for a, b, found in blocks(rows, scale=inverse(length)):
        found[still[a]] = found[:, still[b]] = -np.inf
        if a == b:
            np.fill_diagonal(found, -np.inf)
        else:
            take_nearer(cosine, whom, np.arange(b.start, b.stop), found.T, a.start)
        take_nearer(cosine, whom, np.arange(a.start, a.stop), found, b.start)
    cosine[still], whom[still] = 1.0, np.flatnonzero(still)
    return Nearest(cosine, whom)


def take_nearer(cosine: Floats, whom: Ints, where: Ints, found: Floats, begin: int) -> None:
    """Write what is nearer than before; `found` (r, c): cosines of r rows with c others, from position `begin` on."""
    best = found.max(axis=1)
    better = np.flatnonzero(best > cosine[where])  # few, after the first blocks: looking up whose it is costs more
    cosine[where[better]] = best[better]
    whom[where[better]] = found[better].argmax(axis=1) + begin


def first_by_similarity(rows: AnyArray, k: int, *, most_similar: bool = False, nearest: Floats | None = None) -> Ints:
    """Return the positions of the k rows whose nearest row is farthest, or, with `most_similar`, nearest.

    Each closest pair ties. Ties go to the row whose second nearest is farther (or nearer), then the third, and so on,
    cosines rounded to 12 decimals, and at last to the lower position. `nearest` is what `nearest_similarity` would
    return, where that is known.

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


def _similarity_keys(rows: AnyArray, some: Ints, sign: float) -> list[bytes]:
    """Return for some rows bytes that compare like ``sign`` times their cosines with the others, largest cosine first.

    Equal ones are stored once: what many rows have in common is mostly that they are copies.
    """
    length = lengths(rows)
    still, scale = length == 0, inverse(length)
    stored: dict[bytes, bytes] = {}
    keys = []
    step = max(1, NUMBERS // len(rows))
    for begin in range(0, len(some), step):
        part = some[begin : begin + step]
        cosines = products(rows, part, slice(0, len(rows)), scale)
        cosines[still[part]] = cosines[:, still] = 1.0
        cosines[np.arange(len(part)), part] = np.inf  # itself, first in its row and then left out
        falling = -np.sort(-cosines, axis=1)[:, 1:]
        whole = np.rint((1.0 + sign * falling) * 10**DECIMALS).clip(0)
        keys += [stored.setdefault(key, key) for key in map(bytes, whole.astype(ORDERED))]
    return keys


# ------------------------------------------------------------------------------------------------- inner products


def lengths(rows: AnyArray) -> Floats:
    """Return the (n,) Euclidean lengths, or say which row is not finite."""
    parts = (rows[begin : begin + ROWS] for begin in range(0, len(rows), ROWS))
    result = np.array([np.linalg.norm(row.astype(np.float64)) for part in parts for row in part])
    wrong = np.flatnonzero(~np.isfinite(result))
    if wrong.size:
        raise PartError(f"rows that are compared must hold finite numbers; row {int(wrong[0])} does not.")
    return result


def inverse(length: Floats) -> Floats:
    """Return 1 / length, 0 where that is 0."""
    return np.divide(1.0, length, out=np.zeros_like(length), where=length > 0)


def blocks(
    rows: AnyArray, scale: Floats | None = None, shift: Floats | None = None
) -> Iterator[tuple[slice, slice, Floats]]:
    """Yield (a, b, products of the rows a and b) for slices a <= b that together cover the table."""
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

    def prepared(some: slice | Ints, columns: slice) -> Floats:
        part: Floats = rows[some, columns].astype(np.float64)
        if scale is not None:
            part *= scale[some, None]
        if shift is not None:
            part -= shift[columns]
        return part

    total: Floats | None = None
    for begin in range(0, max(1, rows.shape[1]), COLUMNS):
        left = prepared(a, slice(begin, begin + COLUMNS))
        right = left if a is b else prepared(b, slice(begin, begin + COLUMNS))  # one array: symmetric to the last bit
        total = left @ right.T if total is None else np.add(total, left @ right.T, out=total)
    assert total is not None  # even rows without numbers are one piece
    return total
