"""Serve a client by a last layer that its own few labelled examples have moved: a reference, for it needs labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from fedreach.arrays import Floats, Ints
from fedreach.errors import ConfigError, require
from fedreach.federation.serving.softmax import log_softmax
from fedreach.federation.values import NO_STATE, Outputs, State

STEPS = 200
"""Newton steps at most; a few tens are needed where the model is sure of the wrong class."""
SLOPE = 1e-11
"""The largest entry of the gradient at the optimum, as a share of the largest feature."""
HALVINGS = 60
ROUNDING = 1e-14


@dataclass(frozen=True)
class FewLabels:
    """Fine-tune the last layer on m labelled examples of the client's own, and predict its other examples with that.

    h are features, what goes into the last linear layer, and z = V h + v the model's logits. With D and d, what is
    added to V and v, and the labelled examples (x_i, y_i):

        minimise  (1/m) sum_i -log softmax(z_i + D h_i + d)_{y_i} + strength/(2 m) (|D|^2 + |d|^2)
        log p(y|x) = log softmax(z + D h + d)

    That is the mode of the posterior when D and d are normal with variance 1/strength: many examples outweigh the pull
    to the model, few do not. There is one optimum, found to rounding by Newton's method, so that the order of the
    examples does not matter. As strength grows, and without any labelled example, predictions are the model's.

    When to use it: beside rules that do without labels, to see what m labels would buy. A client that has them may do
    better; one that is served by FedReach's other rules has none. So it is a reference like `TruePrior`, is marked as
    one, and cannot be exported. The labelled examples are the client's first m and are never scored: all rungs are of
    the others. `with N` inputs, it has at most N labels, and is scored on the same other examples as every rule: there
    it may be compared with `label_shift`. A client with no more than m examples keeps one to be scored on and learns
    from the rest. Participants are not asked for anything.

    When: clients could label a handful of examples: what that would buy.

    Args:
        labels: m, how many labelled examples a client has, 0 or more.
        strength: Of the pull to the model, positive. The right one goes with the square of the features' length.

    Raises:
        ConfigError: If an option is outside its range, or the model has no last linear layer.

    Reference: fine-tuning the head alone on a client's own data is FedPer's and FedRep's personal layer (Arivazhagan et
    al., 2019, arXiv 1912.00818; Collins et al., ICML 2021, arXiv 2102.07078), here from a model that was trained whole,
    and with a pull to it as in the L2-SP penalty of Li, Grandvalet and Davoine, ICML 2018 (arXiv 1802.01483).

    Example:
        >>> rule = FewLabels(labels=2, strength=1.0)
        >>> own = Outputs(np.zeros((2, 2)), features=np.array([[1.0], [-1.0]]))
        >>> client = rule.with_labels({}, own, np.array([0, 1]))
        >>> np.exp(rule.predict({}, client, own)).round(3).tolist()
        [[0.739, 0.261], [0.261, 0.739]]
    """

    reads_inputs: ClassVar[bool] = True
    needs_features: ClassVar[bool] = True

    labels: int = 20
    strength: float = 1.0

    def __post_init__(self) -> None:
        require(self, labels="[0, inf)", strength="(0, inf)")

    def query(self, state: State) -> State | None:
        return None

    def contribute(self, query: State, outputs: Outputs, labels: Ints, counts: Floats) -> State:
        return NO_STATE

    def fold(self, state: State, sums: State) -> State:
        return state

    def start(self, state: State) -> State:
        return NO_STATE

    def update(self, state: State, client: State, outputs: Outputs) -> State:
        """Return the client unchanged: inputs without labels teach it nothing."""
        return client

    def with_labels(self, state: State, outputs: Outputs, labels: Ints) -> State:
        """Return `head`, the (h + 1, c) transpose of D above d; nothing without examples."""
        if not len(labels):
            return self.start(state)
        return {"head": moved_head(_features(outputs), outputs.logits, labels, self.strength / len(labels))}

    def predict(self, state: State, client: State, outputs: Outputs) -> Floats:
        if "head" not in client:
            return log_softmax(outputs.logits)
        return log_softmax(outputs.logits + _with_one(_features(outputs)) @ client["head"])


def moved_head(features: Floats, logits: Floats, labels: Ints, pull: float) -> Floats:
    """Return the (h + 1, c) head, to be added to the model's, that minimises mean cross-entropy + pull/2 |head|^2.

    Newton's method from 0; a step is halved while the objective rises. Each step solves the linear system by conjugate
    gradients, as the Hessian of h + 1 times c numbers would be too large to be written down. With fewer examples than
    features, the head is sought in their span, where the optimum lies.

    Args:
        features: (m, h), m at least 1.
        logits: (m, c) of the model.
        labels: (m,).
        pull: Positive.

    Example:
        >>> moved_head(np.zeros((1, 1)), np.zeros((1, 2)), np.array([0]), 0.25).round(3).tolist()
        [[0.0, 0.0], [0.741, -0.741]]
    """
    x, m = _with_one(features), len(labels)
    if m < x.shape[1]:
        span, spanned = np.linalg.qr(x.T)  # (h + 1, m), (m, m)
        found: Floats = span @ _minimized(spanned.T, logits, labels, pull)
        return found
    return _minimized(x, logits, labels, pull)


def _minimized(x: Floats, logits: Floats, labels: Ints, pull: float) -> Floats:
    """Return the (k, c) head for (m, k) columns, see `moved_head`."""
    m = len(labels)
    rows, truth = np.arange(m), np.eye(logits.shape[1])[labels]
    slope = SLOPE * np.abs(x).max()

    def objective(head: Floats) -> tuple[float, Floats]:
        log_p = log_softmax(logits + x @ head)
        return float(-log_p[rows, labels].mean() + pull / 2 * np.square(head).sum()), np.exp(log_p)

    head = np.zeros((x.shape[1], logits.shape[1]))
    loss, p = objective(head)
    for _ in range(STEPS):
        gradient: Floats = x.T @ (p - truth) / m + pull * head
        if np.abs(gradient).max() <= slope:
            break
        step = _solved(partial(_curved, x, p, pull), gradient)
        for halvings in range(HALVINGS):
            nearer = head - step / 2**halvings
            after, its = objective(nearer)
            if after <= loss + ROUNDING * abs(loss):
                break
        head, loss, p = nearer, after, its
    return head


def _curved(x: Floats, p: Floats, pull: float, way: Floats) -> Floats:
    """Return the Hessian times a (h + 1, c) way."""
    change = p * (x @ way)
    curved: Floats = x.T @ (change - p * change.sum(axis=1, keepdims=True)) / len(x) + pull * way
    return curved


def _solved(times: Callable[[Floats], Floats], right: Floats) -> Floats:
    """Return the array that a positive definite matrix maps to the right side, by conjugate gradients."""
    found, rest = np.zeros_like(right), right
    way, size = rest, float(np.square(rest).sum())
    enough = 1e-20 * size
    for _ in range(2 * right.size):
        mapped = times(way)
        share = size / float((way * mapped).sum())
        found, rest = found + share * way, rest - share * mapped
        before, size = size, float(np.square(rest).sum())
        if size <= enough:
            break
        way = rest + size / before * way
    return found


def _with_one(features: Floats) -> Floats:
    return np.column_stack([features, np.ones(len(features))])


def _features(outputs: Outputs) -> Floats:
    if outputs.features is None:
        raise ConfigError(
            "FewLabels fine-tunes the last linear layer, which must be given one row of features an example; here "
            "there is none. Take another model, or serving 'label_shift'."
        )
    return outputs.features
