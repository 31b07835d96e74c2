"""Serve a client by class shares that a confusion matrix explains: BBSE and its regularised form, RLLS."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from fedreach.arrays import Floats, Ints
from fedreach.errors import require
from fedreach.federation.serving import possible
from fedreach.federation.serving.mixing import blended
from fedreach.federation.serving.priors import source_prior
from fedreach.federation.serving.softmax import log_softmax
from fedreach.federation.values import NO_STATE, Outputs, State

CONFIDENCE = 0.05
"""Probability with which the confusion matrix may be further off than RLLS assumes."""
HALVINGS = 100


class _ByConfusion(ABC):
    """What `BBSE` and `RLLS` have in common: all but how a mean prediction is explained."""

    hard: bool

    def query(self, state: State) -> State | None:
        return None if state else NO_STATE

    def contribute(self, query: State, outputs: Outputs, labels: Ints, counts: Floats) -> State:
        """Return `confusion` (c, c), sums of predictions by label, and `held_out` (c,) label counts."""
        ones = np.eye(outputs.logits.shape[1])[labels]
        return {"confusion": self._predictions(outputs).T @ ones, "held_out": ones.sum(axis=0)}

    def possible(self, query: State, sums: State, held_out: int, trained: int) -> bool:
        return possible.are_sums(sums, held_out, trained)

    def fold(self, state: State, sums: State) -> State:
        n = sums["held_out"].sum(keepdims=True)
        return {"confusion": sums["confusion"] / n, "base": source_prior(sums["held_out"]), "n": n}

    def start(self, state: State) -> State:
        return {"predicted": np.zeros(len(state["base"])), "n": np.zeros(1), "prior": state["base"]}

    def update(self, state: State, client: State, outputs: Outputs) -> State:
        """Return `predicted`, the sum of f over all `n` inputs, and the `prior`."""
        predicted = client["predicted"] + self._predictions(outputs).sum(axis=0)
        n = client["n"] + len(outputs.logits)
        if not n[0]:
            return client
        shares = np.maximum(self._importances(state, predicted / n), 0) * state["base"]
        return {"predicted": predicted, "n": n, "prior": shares / shares.sum() if shares.any() else state["base"]}

    def predict(self, state: State, client: State, outputs: Outputs) -> Floats:
        base = state["base"]
        shift = np.log(blended(client["prior"], np.ones(1), base)) - np.log(base)
        return log_softmax(outputs.logits.astype(np.float64) + shift)

    def with_prior(self, state: State, prior: Floats) -> State:
        return {**self.start(state), "prior": prior}

    def _predictions(self, outputs: Outputs) -> Floats:
        logits = outputs.logits.astype(np.float64)
        return np.eye(logits.shape[1])[logits.argmax(axis=1)] if self.hard else np.exp(log_softmax(logits))

    @abstractmethod
    def _importances(self, state: State, mu: Floats) -> Floats:
        """Return (c,) w, to be clipped at 0, that explains the mean prediction (c,)."""


@dataclass(frozen=True)
class BBSE(_ByConfusion):
    """Explain a client's mean prediction by the participants' confusion matrix, and predict with the shares found.

    f is the model's softmax, uncalibrated, or 1 for its argmax and 0 otherwise. With C_cy = the mean over participants'
    held-out examples of f_c 1{label = y}, and mu the mean of f over a client's inputs:

        C w = mu, w clipped at 0,  pi proportional to w base,  log p(y|x) = log softmax(z) + log(pi/base) + constant

    Where C is singular, such as for a class that no participant holds, w is the solution nearest to 1. A class with
    w_y = 0 is not predicted. If all are 0, pi = base.

    When: as the textbook estimate to compare with, or many inputs a client and a well separated model.

    Args:
        hard: Whether f is the argmax.

    Reference: Lipton, Wang and Smola, ICML 2018 (arXiv 1802.03916). They train anew with weights w; as in
    Alexandari et al., ICML 2020, the predictions are adjusted instead.

    Example:
        >>> state = {"confusion": np.array([[0.4, 0.1], [0.1, 0.4]]), "base": np.full(2, 0.5), "n": np.array([100.0])}
        >>> rule = BBSE(hard=True)
        >>> client = rule.update(state, rule.start(state), Outputs(np.array([[1.0, 0.0]] * 3 + [[0.0, 1.0]])))
        >>> client["prior"].round(3)
        array([0.917, 0.083])
    """

    hard: bool = False

    def _importances(self, state: State, mu: Floats) -> Floats:
        return _nearest(state["confusion"], mu)


@dataclass(frozen=True)
class RLLS(_ByConfusion):
    """As `BBSE`, but importance weights are pulled to 1, the more the fewer examples the confusion matrix is from.

        theta = argmin |C theta - (mu - C 1)| + Delta |theta|,  w = 1 + gamma theta, clipped at 0

    Both norms are Euclidean and not squared. With m held-out examples of c classes, and L = log(2c/0.05),

        Delta = 3 strength (2 L/(3 m) + sqrt(2 L/m))

    When: as `bbse`, where a client has few inputs.

    Args:
        strength: Of the pull, not negative; 0 is BBSE.
        gamma: From 0, which never adapts, to 1.
        hard: Whether predictions are the argmax of the model.

    Raises:
        ConfigError: If an option is outside its range.

    Reference: Azizzadenesheli, Liu, Yang and Anandkumar, ICLR 2019 (arXiv 1903.09734); `strength` and the probability
    0.05 are those of their code, github.com/Angela0428/labelshift. That demands theta >= -1 while it minimises, here w
    is clipped afterwards: then a line search for the one number lambda in theta = (C'C + lambda)^-1 C'(mu - C 1)
    solves it. While Delta is below all singular values of C, theta is the exact solution, that of `BBSE`.

    Example:
        >>> state = {"confusion": np.array([[0.4, 0.1], [0.1, 0.4]]), "base": np.full(2, 0.5), "n": np.array([100.0])}
        >>> rule, inputs = RLLS(hard=True, strength=0.2), Outputs(np.array([[1.0, 0.0]] * 3 + [[0.0, 1.0]]))
        >>> bool(rule.update(state, rule.start(state), inputs)["prior"][0] < 0.917)
        True
    """

    strength: float = 0.01
    gamma: float = 1.0
    hard: bool = False

    def __post_init__(self) -> None:
        require(self, strength="[0, inf)", gamma="[0, 1]")

    def _importances(self, state: State, mu: Floats) -> Floats:
        confusion, m = state["confusion"], float(state["n"][0])
        level = np.log(2 * len(mu) / CONFIDENCE)
        delta = 3 * self.strength * (2 * level / (3 * m) + np.sqrt(2 * level / m))
        return 1 + self.gamma * pulled(confusion, mu - confusion.sum(axis=1), delta)


def pulled(confusion: Floats, difference: Floats, delta: float) -> Floats:
    """Return argmin over theta of |C theta - d| + delta |theta|, without squares.

    At an optimum theta = (C'C + lambda)^-1 C'd with lambda |theta| = delta |C theta - d|, or 0 where
    |C'd| <= delta |d|. With r = d - C theta, lambda theta = C'r; and |C'r|/|r| grows with lambda, so that halving an
    interval finds it.

    Args:
        confusion: C (c, c)
        difference: d (c,)
        delta: Not negative; with 0, the shortest theta that fits best.

    Example:
        >>> pulled(np.eye(2), np.array([1.0, 0.0]), 0.5), pulled(np.eye(2), np.array([1.0, 0.0]), 1.1)
        (array([1., 0.]), array([0., 0.]))
    """
    if delta == 0:
        return _shortest(confusion, difference)
    left, sizes, right = np.linalg.svd(confusion)
    d: Floats = left.T @ difference
    if np.linalg.norm(sizes * d) <= delta * np.linalg.norm(d):
        return np.zeros_like(difference)
    low, high = -80.0, 80.0  # log lambda
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        rest: Floats = d / (sizes**2 + np.exp(middle))  # r/lambda: both norms have this factor
        if np.linalg.norm(sizes * rest) < delta * np.linalg.norm(rest):
            low = middle
        else:
            high = middle
    result: Floats = right.T @ (sizes * d / (sizes**2 + np.exp(high)))
    return result


def _shortest(confusion: Floats, moved: Floats) -> Floats:
    return np.linalg.lstsq(confusion, moved)[0].astype(np.float64, copy=False)


def _nearest(confusion: Floats, mu: Floats) -> Floats:
    """Return the solution w of C w = mu that is nearest to 1, that is to no shift."""
    return 1.0 + _shortest(confusion, mu - confusion.sum(axis=1))
