"""Bounds from whole covers, for nodes in which few clients are still free: tighter than fractional ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedreach.arrays import Bools, Floats, Ints
from fedreach.wireless.allocation.kernel import priced
from fedreach.wireless.allocation.search.candidates import Candidates
from fedreach.wireless.allocation.search.incumbent import Incumbent, repaired
from fedreach.wireless.allocation.search.knapsack import (
    FractionalCover,
    cheapest_covers,
    coarser,
    cover_table,
    covers_below,
)
from fedreach.wireless.allocation.search.relaxation import Point, ascend

STEPS = 8  # prices of the band that are tried at most


@dataclass(frozen=True, eq=False)
class WholeCovers:
    """The covers of some clients by whole ones: those who must, and of the others, in order of worth, some."""

    clients: Candidates
    free: Ints  # (f,) who is free
    sizes: Ints  # (f,) in the unit of the table
    short: int  # demand that those who must leave open, in that unit

    @classmethod
    def of(cls, clients: Candidates, T: float, mu: float, cells: int) -> WholeCovers | None:
        """Return them, in the order of c/d at T and mu, if a table of so many cells can hold them."""
        free = np.flatnonzero(~clients.forced)
        worth = priced(clients.needs, T, mu).cost / np.maximum(clients.sizes, 0.5)
        free = free[np.argsort(worth[free], kind="stable")]
        fitting = coarser(clients.sizes[free], clients.short, cells)
        return None if fitting is None else cls(clients, free, *fitting)

    def table(self, costs: Floats) -> Floats:
        """Return the table of the free clients under m costs (m, n)."""
        return cover_table(costs[:, self.free], self.sizes, self.short)

    def values(self, costs: Floats, table: Floats) -> Floats:
        """Return (m,), what the cheapest covers cost."""
        return np.asarray(costs[:, self.clients.forced].sum(axis=1) + table[0, :, self.short])

    def with_forced(self, chosen: Bools) -> Bools:
        """Return sets of free clients (s, f), and those who must, as flags (s, n)."""
        sets = np.tile(self.clients.forced, (len(chosen), 1))
        sets[:, self.free] = chosen
        return sets

    def band_needed(self, T: float) -> float:
        """Return the least band that a whole cover needs by T."""
        shares = self.clients.least_shares(T)[None]
        return float(self.values(shares, self.table(shares))[0])

    def ascend(self, T: float, start: float, best: Incumbent, limit: float, tolerance: float) -> Point:
        """Return the best bound at T over prices of the band, and offer the covers that are met on the way."""
        clients = self.clients

        def at(mu: float) -> Point:
            costs = priced(clients.needs, T, mu)
            table = self.table(costs.cost[None])
            chosen = self.with_forced(cheapest_covers(table, self.sizes))[0]
            cover = repaired(chosen, costs.cost, clients.sizes, clients.demand)
            best.offer([clients.rows[cover]])
            band = float((clients.needs.tau[chosen] / costs.upload_seconds[chosen]).sum())
            value = float(self.values(costs.cost[None], table)[0])
            bound = clients.seconds_price * T - mu + value
            return Point(bound, mu, band - 1.0, FractionalCover(value, chosen.astype(np.float64), 0.0), costs)

        return ascend(at, start, limit, tolerance, STEPS)

    def below(self, costs: Floats, table: Floats, limits: Floats, max_sets: int) -> list[Ints] | None:
        """Return, as rows of the problem, all covers below the limits under at least one of the costs; None: too many.

        Of equal clients the first are taken first: leaving out the others loses no cost that can be attained.
        """
        limits = limits - costs[:, self.clients.forced].sum(axis=1)
        sets = covers_below(table, costs[:, self.free], self.sizes, limits, max_sets, self._twins())
        return None if sets is None else [self.clients.rows[chosen] for chosen in self.with_forced(sets)]

    def _twins(self) -> Ints:
        """Return (f,): for each free client the place of an earlier one that is its equal in all, or -1."""
        needs, free = self.clients.needs, self.free
        table = np.stack([needs.tau, needs.A, needs.Q, needs.min_seconds, self.clients.sizes])[:, free].T
        last: dict[bytes, int] = {}
        twins = np.full(len(free), -1)
        for place, key in enumerate(row.tobytes() for row in table):
            twins[place] = last.get(key, -1)
            last[key] = place
        return twins
