"""An adaptation rule of one's own that is right, for tests that spoil it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import fedreach as fr
from fedreach.federation.adaptation.base import log_softmax
from fedreach.federation.types import NO_STATE


@dataclass(frozen=True)
class Own(fr.Adaptation):
    """A rule of one's own: a bias that makes the mean prediction that of the class shares, then running means.

    Args:
        strength: How many inputs the source prior counts for.
    """

    strength: float = 20.0

    def query(self, state):
        if not state:
            return NO_STATE
        return None if state["asked"] == 30 else {"bias": state["bias"]}

    def contribute(self, query, outputs, labels, counts):
        if not query:
            return {"held": np.bincount(labels, minlength=len(counts)).astype(np.float64)}
        return {"predicted": np.exp(log_softmax(outputs.logits + query["bias"])).sum(axis=0)}

    def fold(self, state, sums):
        if not state:
            share = (sums["held"] + 0.5) / (sums["held"] + 0.5).sum()
            return {"base": share, "bias": np.zeros(len(share)), "asked": np.zeros((), np.int64)}
        predicted = (sums["predicted"] + 0.5) / (sums["predicted"] + 0.5).sum()
        bias = state["bias"] + np.log(state["base"] / predicted)
        return {**state, "bias": bias, "asked": state["asked"] + 1}

    def start(self, state):
        return {"seen": self.strength * state["base"]}

    def update(self, state, client, outputs):
        return {"seen": client["seen"] + np.exp(log_softmax(outputs.logits + state["bias"])).sum(axis=0)}

    def predict(self, state, client, outputs):
        prior = client["seen"] / client["seen"].sum()
        return log_softmax(outputs.logits + state["bias"] - np.log(state["base"]) + np.log(prior))

    def predict_online(self, state, client, outputs):
        rows = []
        for row in outputs.logits:
            one = type(outputs)(row[None])
            rows.append(self.predict(state, client, one)[0])
            client = self.update(state, client, one)
        return np.array(rows), client

    def with_prior(self, state, prior):
        return {"seen": prior}
