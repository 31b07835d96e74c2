"""Who is nearest to whom in a table of updates, kept up to date as rows change.

After a round only the rows of the cohort are new. So each client's largest cosine, and whom it has it with, are kept in
the state: a new row is compared with all others, and a client whose nearest row is replaced by one that is farther away
looks for another. With n clients, k new rows and rows of p numbers that is some k n p products a round, where
comparing all with all is n^2 p.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedreach.arrays import AnyArray, Bools, Float32s, Floats, Ints
from fedreach.federation.selection.shared.gradient_table import GradientTable, rows_of, those_of
from fedreach.federation.selection.shared.similarity import (
    NUMBERS,
    Nearest,
    inverse,
    lengths,
    nearest_of_all,
    products,
    take_nearer,
)
from fedreach.federation.values import Reports, Selection, State

MANY = 0.25  # part of all rows from which on all are compared with all again
MOST = 4096  # rows that are compared with all at a time, as their cosines with each other are held


def renewed(rows: AnyArray, length: Floats, old: Nearest, changed: Ints) -> Nearest:
    """Return who is nearest to whom in a table (n, p), with rows of these lengths, of which some rows changed."""
    if len(changed) > min(MANY * len(rows), MOST):
        return nearest_of_all(rows, length)
    cosine, whom = old.cosine.copy(), old.whom.copy()
    is_new, still = np.zeros(len(rows), np.bool_), length == 0
    is_new[changed] = True
    left = np.isin(whom, changed) & ~is_new  # their nearest row is another now
    cosine[changed], whom[changed] = -np.inf, -1
    for columns, found in _met(rows, length, changed):
        take_nearer(cosine, whom, changed, found, columns.start)
        found[:, is_new[columns] | still[columns]] = -np.inf
        best = found.max(axis=0)
        # All others are at most as near as the one that left, so that a new row at least as near is the nearest.
        kept = left[columns] & (best >= cosine[columns])
        left[columns] &= ~kept
        better = kept | (best > cosine[columns])
        cosine[columns] = np.where(better, best, cosine[columns])
        whom[columns] = np.where(better, changed[found.argmax(axis=0)], whom[columns])
    cosine[changed[still[changed]]], whom[changed[still[changed]]] = 1.0, changed[still[changed]]
    return _searched(rows, length, Nearest(cosine, whom), left)


def among(rows: AnyArray, length: Floats, found: Nearest, some: Bools) -> Nearest:
    """Return who is nearest to whom among some rows; what it says of the others means nothing."""
    gone = (found.whom >= 0) & ~some[found.whom]
    return _searched(rows, length, found, gone & some, some)


def _searched(rows: AnyArray, length: Floats, found: Nearest, lost: Bools, some: Bools | None = None) -> Nearest:
    """Return it with those who lost their nearest row compared with all rows, or with some."""
    everybody = np.flatnonzero(lost)
    if not len(everybody):
        return found
    cosine, whom = found.cosine.copy(), found.whom.copy()
    cosine[everybody], whom[everybody] = -np.inf, -1
    for begin in range(0, len(everybody), MOST):
        who = everybody[begin : begin + MOST]
        place = np.full(len(rows), -1)
        place[who] = np.arange(len(who))
        for columns, cosines in _met(rows, length, who):
            if some is not None:
                cosines[:, ~some[columns]] = -np.inf
            take_nearer(cosine, whom, who, cosines, columns.start)
            # Whoever is each other's nearest must have the same cosine to the last bit, as it was computed now.
            others = (whom[columns] >= 0) & (place[columns] < 0)
            mine = np.flatnonzero(others & (place[whom[columns]] >= 0))
            cosine[columns.start + mine] = cosines[place[whom[columns][mine]], mine]
    return Nearest(cosine, whom)


def _met(rows: AnyArray, length: Floats, who: Ints) -> Iterator[tuple[slice, Floats]]:
    """Yield slices of all rows, and the cosines of some rows with them; minus infinity with themselves and zeros."""
    scale, still = inverse(length), length == 0
    own = products(rows, who, who, scale)  # symmetric to the last bit
    place = np.full(len(rows), -1)
    place[who] = np.arange(len(who))
    step = max(1, NUMBERS // max(1, len(who)))
    for begin in range(0, len(rows), step):
        columns = slice(begin, min(begin + step, len(rows)))
        found = products(rows, who, columns, scale)
        mine = np.flatnonzero(place[columns] >= 0)
        found[:, mine] = own[:, place[columns][mine]]
        found[:, still[columns]] = found[still[who]] = -np.inf
        found[place[columns][mine], mine] = -np.inf
        yield columns, found


@dataclass(frozen=True, kw_only=True)
class NearestTable(GradientTable):
    """Remember updates, and who is nearest to whom; `Minimax` and `MaxSimilarity` choose by it.

    Beside the table the state holds ``length``, ``nearest`` and ``whom`` (n,), see `Nearest`.
    """

    def _chosen(self, state: State, ids: Ints, known: Bools, k: int, rng: np.random.Generator) -> Selection:
        if "nearest" not in state or len(ids) < 2:
            return super()._chosen(state, ids, known, k, rng)
        rows = rows_of(state)
        found = among(rows, state["length"], Nearest(state["nearest"], state["whom"]), known)
        return self.choose(ids, those_of(rows, known), k, rng, found.cosine[known])

    def choose(
        self, ids: Ints, rows: Float32s, k: int, rng: np.random.Generator, nearest: Floats | None = None
    ) -> Selection:
        """Return k of these (a,) clients; `nearest` (a,) are their largest cosines, where these are known."""
        raise NotImplementedError(f"{type(self).__name__} must have a method choose(ids, rows, k, rng, nearest).")

    def observe(self, state: State, reports: Reports) -> State:
        """Return the table with the rows of those that reported replaced, and who is nearest to whom now."""
        new = super().observe(state, reports)
        if new is state:
            return state
        changed = np.searchsorted(state["ids"], reports.ids)
        rows, known = rows_of(new), "nearest" in state
        length = state["length"].copy() if known else lengths(rows)
        length[changed] = lengths(rows[changed])
        old = Nearest(state["nearest"], state["whom"]) if known else None
        found = nearest_of_all(rows, length) if old is None else renewed(rows, length, old, changed)
        return {**new, "length": length, "nearest": found.cosine, "whom": found.whom}
