"""A selection policy with a memory, and a weighting; in an experiment file: `12_own_policy.py:LongestWaiting`.

python examples/deeper/12_own_policy.py
"""

from dataclasses import dataclass

import numpy as np

import fedreach as fr


@dataclass(frozen=True)
class LongestWaiting(fr.Selection):
    """Choose the clients that have waited longest; `rest` rounds pass before a client counts as waiting."""

    rest: int = 0

    def init(self, view):
        return {"waited": np.full(len(view.ids), self.rest), "ids": view.ids}

    def select(self, state, view, k, rng):
        waited = state["waited"] + rng.random(len(view.ids))  # ties are drawn
        return fr.Cohort(view.ids[view.available][np.argsort(-waited[view.available])[:k]])

    def observe(self, state, reports):
        return {**state, "waited": np.where(np.isin(state["ids"], reports.ids), 0, state["waited"] + 1)}


def by_loss(reports):
    """Weigh clients with a higher training loss more."""
    return reports.metrics["loss"]


if __name__ == "__main__":
    digits = fr.load("digits").partition("dirichlet_by_class", clients=50, alpha=0.1, participants=20)
    methods = {"uniform": {}, "waiting": {"selection": LongestWaiting(rest=1)}, "by_loss": {"weighting": by_loss}}
    print(fr.compare(digits, methods, model="linear", rounds=20, cohort_size=5, seeds=2, out="runs/own-policy"))
