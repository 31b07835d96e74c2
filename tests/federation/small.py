"""A model of five numbers and six clients, for rounds worked out by hand."""

from dataclasses import replace

import numpy as np

from fedreach._util.streams import generator
from fedreach.federation.federation import Federation
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.round import conclude_round
from fedreach.federation.selection.random import Uniform
from fedreach.federation.server import Average
from fedreach.federation.solvers import FedAvg
from fedreach.federation.state import initial_state
from fedreach.federation.types import ClientResults, Cohort, ServerView
from fedreach.federation.weighting import ByDisagreement, ByEntropy, ByExamples, Equal
from fedreach.testing.problems import with_rates
from fedreach.wireless.radio import Radio

D = 5  # numbers in the model, 4 bytes each

OPTIONS = {
    "product": {"parts": (ByEntropy(), ByExamples())},
    "mix": {"parts": (Equal(), ByDisagreement())},
    "clip": {"inner": ByExamples(), "max": 0.5},
}
"""Of parts that cannot do without."""


def part(table, name):
    """Return a built-in part."""
    return table[name](**OPTIONS.get(name, {}))


def federation(selection=None, weighting=None, server=None, cohort_size=2):
    parts = (selection or Uniform(), weighting or ByExamples(), FedAvg(), LocalSGD(), server or Average())
    radio = Radio() if parts[0].needs_radio else None
    return Federation(*parts, cohort_size=cohort_size, seed=3, radio=radio)


def observe_probe(federation, state, answers):
    """Return the state after the policy has seen the answers to its probe for updates."""
    return replace(state, selection=federation.selection.observe(state.selection, answers))


def make_view(n=6, available=None, facts=()):
    view = ServerView.of(np.arange(n), np.arange(1, n + 1) * 10, available=available)
    entropy = np.linspace(0.1, 0.9, n) if "label_entropy" in facts else None
    counts = np.arange(3 * n).reshape(n, 3) if "label_counts" in facts else None
    return with_rates(replace(view, label_entropy=entropy, label_counts=counts), np.linspace(1e6, 2e6, n))


def make_reports(ids, update=None, trainable=None):
    ids = np.asarray(ids, np.int64)
    update = np.outer(ids + 1.0, np.ones(D)).astype(np.float32) if update is None else update
    metrics = {"num_examples": (ids + 1.0) * 10, "loss": ids * 0.5, "label_entropy": ids * 0.1}
    metrics |= {"disagreement": ids * 0.1 + 0.5, "wlrc": ids * 0.01 + 0.1, "loss_rms": ids * 0.1 + 0.2}
    return ClientResults(ids, update, metrics, np.ones((len(ids), 3), np.int64), trainable=trainable, output_bias=3)


def start(chosen, view):
    return initial_state(chosen, np.zeros((chosen.selection.first_models, D), np.float32), view)


def conclude(chosen, ids, view=None, state=None):
    """Conclude a round in which exactly `ids` were chosen and replied."""
    view = make_view() if view is None else view
    state = start(chosen, view) if state is None else state
    return conclude_round(chosen, state, view, Cohort(np.asarray(ids, np.int64)), make_reports(ids))


def alike(seed, n=8, each=7):
    """Return n rows that only rounding tells apart: each has the numbers of the first, some places further on."""
    first = generator(seed, "rows").standard_normal(n * each).astype(np.float32)
    return np.array([np.roll(first, each * row) for row in range(n)])
