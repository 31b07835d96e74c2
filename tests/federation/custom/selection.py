"""A custom selection: the clients that waited longest."""

from dataclasses import dataclass

import numpy as np

import fedreach as fr


@dataclass(frozen=True)
class LongestWaiting(fr.Selection):
    """Select the available clients that waited longest, with chance in proportion to a power of their wait."""

    power: float = 2.0

    def init(self, view):
        return {"ids": view.ids, "waited": np.ones(len(view.ids))}

    def select(self, state, view, k, rng):
        chance = state["waited"][view.available] ** self.power
        return fr.Cohort(rng.choice(view.available_ids, size=k, replace=False, p=chance / chance.sum()))

    def observe(self, state, results):
        waited = np.where(np.isin(state["ids"], results.ids), 1, state["waited"] + 1)
        return {**state, "waited": waited}
