"""Further adaptation rules: BBSE, RLLS, BatchNorm statistics and the oracle prior."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from fedreach._util.arrays import Float32s, Floats, Ints
from fedreach._util.errors import ConfigError
from fedreach.federation.adaptation.base import blend_priors, log_softmax, source_prior
from fedreach.federation.adaptation.label_shift import Calibration, LabelShift, OnLabelShift
from fedreach.federation.base import Adaptation
from fedreach.federation.types import NO_STATE, Outputs, RunningStatistics, State

# -------------------- BBSE and RLLS: class priors from a confusion matrix

CONFIDENCE = 0.05
"""Probability with which the error of the confusion matrix may exceed the bound of RLLS."""
HALVINGS = 100


class _ByConfusion(Adaptation):
    """Base class of `BBSE` and `RLLS`, which compute the importance weights in different ways."""

    has_bounded_sums = True  # confusion and label counts sum to m each

    hard: bool

    def query(self, state: State) -> State | None:
        return None if state else NO_STATE

    def contribute(self, query: State, outputs: Outputs, labels: Ints, counts: Floats) -> State:
        """Return `confusion` (c, c), the sums of predictions by label, and `held_out` (c,), the label counts."""
        ones = np.eye(outputs.logits.shape[1])[labels]
        return {"confusion": self._predictions(outputs).T @ ones, "held_out": ones.sum(axis=0)}

    def fold(self, state: State, sums: State) -> State:
        held_out = np.maximum(sums["held_out"], 0)  # noise may make some < 0, or even all
        n = np.maximum(held_out.sum(keepdims=True), 1)
        return {"confusion": sums["confusion"] / n, "base": source_prior(held_out), "n": n}

    def start(self, state: State) -> State:
        return {"predicted": np.zeros(len(state["base"])), "n": np.zeros(1), "prior": state["base"]}

    def update(self, state: State, client: State, outputs: Outputs) -> State:
        """Return the state with `predicted`, the sum of f over all `n` inputs, and the `prior`."""
        predicted = client["predicted"] + self._predictions(outputs).sum(axis=0)
        n = client["n"] + len(outputs.logits)
        if not n[0]:
            return client
        shares = np.maximum(self._importances(state, predicted / n), 0) * state["base"]
        return {"predicted": predicted, "n": n, "prior": shares / shares.sum() if shares.any() else state["base"]}

    def predict(self, state: State, client: State, outputs: Outputs) -> Floats:
        base = state["base"]
        shift = np.log(blend_priors(client["prior"], np.ones(1), base)) - np.log(base)
        return log_softmax(outputs.logits.astype(np.float64) + shift)

    def with_prior(self, state: State, prior: Floats) -> State:
        return {**self.start(state), "prior": prior}

    def _predictions(self, outputs: Outputs) -> Floats:
        logits = outputs.logits.astype(np.float64)
        return np.eye(logits.shape[1])[logits.argmax(axis=1)] if self.hard else np.exp(log_softmax(logits))

    @abstractmethod
    def _importances(self, state: State, mu: Floats) -> Floats:
        """Return (c,) importance weights w, before clipping at 0, that explain the (c,) mean prediction."""


@dataclass(frozen=True)
class BBSE(_ByConfusion):
    """Black-box shift estimation (BBSE; Lipton et al., 2018): the class prior from a confusion matrix.

    f is the model's uncalibrated softmax, or the indicator of its argmax. C_cy is the mean of f_c 1{label = y} over
    participants' held-out examples, and mu is the mean of f over a client's inputs:

        C w = mu, w clipped at 0,  pi proportional to w base,  log p(y|x) = log softmax(z) + log(pi/base) + constant

    If C is singular, for example because no participant has a class, w is the solution closest to 1. A class with w_y =
    0 is never predicted. If all w_y are 0, pi = base.

    Use when: you need the textbook estimate for comparison, or clients have many inputs and well separated classes.

    Args:
        hard: Use the argmax of the model as f.

    Reference: Lipton, Wang and Smola, ICML 2018 (arXiv 1802.03916). The paper retrains with weights w. FedReach adjusts
    predictions instead, as in Alexandari et al., ICML 2020.

    Example:
        >>> state = {"confusion": np.array([[0.4, 0.1], [0.1, 0.4]]), "base": np.full(2, 0.5), "n": np.array([100.0])}
        >>> rule = BBSE(hard=True)
        >>> client = rule.update(state, rule.start(state), Outputs(np.array([[1.0, 0.0]] * 3 + [[0.0, 1.0]])))
        >>> client["prior"].round(3)
        array([0.917, 0.083])
    """

    hard: bool = False

    def _importances(self, state: State, mu: Floats) -> Floats:
        return 1.0 + solve_penalized(state["confusion"], mu - state["confusion"].sum(axis=1), 0.0)


@dataclass(frozen=True)
class RLLS(_ByConfusion):
    """Regularized learning under label shift (RLLS; Azizzadenesheli et al., 2019): BBSE with regularized weights.

        theta = argmin |C theta - (mu - C 1)| + Delta |theta|,  w = 1 + gamma theta, clipped at 0

    Both norms are Euclidean and not squared. With m held-out examples of c classes and L = log(2c/0.05),

        Delta = 3 strength (2 L/(3 m) + sqrt(2 L/m))

    Use when: the reasons for `bbse` apply, but clients have few inputs.

    Args:
        strength: Strength of the regularization, at least 0. With 0, RLLS equals BBSE.
        gamma: Degree of adaptation, from 0 (none) to 1 (full).
        hard: Use the argmax of the model as predictions.

    Raises:
        ConfigError: If an option is out of range.

    Reference: Azizzadenesheli, Liu, Yang and Anandkumar, ICLR 2019 (arXiv 1903.09734), with `strength` and the
    probability 0.05 as in their code (github.com/Angela0428/labelshift). Their code constrains theta >= -1 during the
    minimization. FedReach clips w afterwards, and searches a single number lambda in theta = (C'C + lambda)^-1 C'(mu -
    C 1). If Delta is below all singular values of C, theta is the solution of `BBSE`.

    Example:
        >>> state = {"confusion": np.array([[0.4, 0.1], [0.1, 0.4]]), "base": np.full(2, 0.5), "n": np.array([100.0])}
        >>> rule, inputs = RLLS(hard=True, strength=0.2), Outputs(np.array([[1.0, 0.0]] * 3 + [[0.0, 1.0]]))
        >>> bool(rule.update(state, rule.start(state), inputs)["prior"][0] < 0.917)
        True
    """

    strength: Annotated[float, "[0, inf)"] = 0.01
    gamma: Annotated[float, "[0, 1]"] = 1.0
    hard: bool = False

    def _importances(self, state: State, mu: Floats) -> Floats:
        confusion, m = state["confusion"], float(state["n"][0])
        level = np.log(2 * len(mu) / CONFIDENCE)
        delta = 3 * self.strength * (2 * level / (3 * m) + np.sqrt(2 * level / m))
        return 1 + self.gamma * solve_penalized(confusion, mu - confusion.sum(axis=1), delta)


def solve_penalized(confusion: Floats, difference: Floats, delta: float) -> Floats:
    """Return argmin over theta of |C theta - d| + delta |theta|, without squares.

    An optimum is theta = (C'C + lambda)^-1 C'd with lambda |theta| = delta |C theta - d|, or 0 if |C'd| <= delta |d|.
    With r = d - C theta, lambda theta = C'r. |C'r|/|r| increases with lambda, so bisection finds lambda.

    Args:
        confusion: C, (c, c) confusion matrix.
        difference: d, (c,) difference to explain.
        delta: Weight of the penalty, not negative. With 0, theta is the shortest least-squares solution.

    Example:
        >>> solve_penalized(np.eye(2), np.array([1.0, 0.0]), 0.5), solve_penalized(np.eye(2), np.array([1.0, 0.0]), 1.1)
        (array([1., 0.]), array([0., 0.]))
    """
    if delta == 0:
        return np.linalg.lstsq(confusion, difference)[0].astype(np.float64, copy=False)
    left_vectors, sizes, right_vectors = np.linalg.svd(confusion)
    d: Floats = left_vectors.T @ difference
    if np.linalg.norm(sizes * d) <= delta * np.linalg.norm(d):
        return np.zeros_like(difference)
    low, high = -80.0, 80.0  # log lambda
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        residual: Floats = d / (sizes**2 + np.exp(middle))  # r/lambda: both norms have this factor
        if np.linalg.norm(sizes * residual) < delta * np.linalg.norm(residual):
            low = middle
        else:
            high = middle
    return np.asarray(right_vectors.T @ (sizes * d / (sizes**2 + np.exp(high))))


# -------------------- The true class prior: a reference


@dataclass(frozen=True)
class OraclePrior(OnLabelShift):
    """Prior correction with the true class prior pi: log p(y|x) = a z + b - log base + log pi + constant.

    a, b and base are those of `LabelShift`, which estimates pi. By chance, an estimated prior can be more accurate than
    the true prior.

    Use when: you need a reference that shows the value of the exact class prior. It needs labels.

    Args:
        calibration: Parameters to fit. ``"bias"``: a and b; ``"temperature"``: a only; ``"none"``: neither.

    Raises:
        ConfigError: If `calibration` has another value.

    Example:
        >>> import numpy as np
        >>> source = {"a": np.array([1.0]), "b": np.zeros(2), "base": np.full(2, 0.5), "pseudo_counts": np.array([1.0])}
        >>> rule = OraclePrior()
        >>> client = rule.with_prior(source, np.array([0.9, 0.1]))
        >>> np.exp(rule.predict(source, client, Outputs(np.zeros((1, 2))))).round(3).tolist()
        [[0.9, 0.1]]
    """

    reads_oracle_prior = True

    calibration: Calibration = "bias"

    @property
    def rule(self) -> LabelShift:
        return LabelShift(pseudo_counts=1.0, calibration=self.calibration, guard=False, strength=1.0)

    def with_prior(self, state: State, prior: Floats) -> State:
        return self.rule.with_prior(state, prior)


# -------------------- BatchNorm statistics of the client


@dataclass(frozen=True)
class BatchNormRefresh(OnLabelShift):
    """BatchNorm statistics from the client's own inputs (Schneider et al., 2020), followed by `LabelShift`.

    A client with n inputs mixes its own mean and variance of each channel with the running statistics, layer by layer:

        mean <- w mean(own) + (1 - w) mean(running),  the same for variances,  w = n/(n + strength)

    If all inputs of a client are darker, noisier or lower in contrast, they then look usual to the next layers. The
    shared model does not change. During fitting, participants also mix statistics with their held-out examples. So a, b
    and base fit the model that clients will use.

    The client's own statistics also remove part of the effect of its classes. This part is small after convolutions,
    because a mean covers many positions. In dense layers it is large: with `BatchNorm1d` in an MLP and 200 inputs,
    accuracy on label-shifted clients of Fashion-MNIST dropped from 94% to 69% (2 seeds). So `BatchNorm1d` layers keep
    their running statistics. FedReach rejects a model without other BatchNorm layers. A client stores its inputs,
    because later inputs change the statistics for all inputs. Before its first input, the calibrated model predicts.
    The rule has no safeguard, so inputs that remain unusual mislead the estimate of the prior.

    Use when: the model has BatchNorm after convolutions, and all inputs of some clients are darker, noisier or lower in
    contrast.

    Args:
        strength: Number of inputs to which the running statistics are equivalent, at least 0. With 0, they are ignored.
        odds: Option of `LabelShift`, as are the next two options.
        pseudo_counts: A, or ``"fitted"``.
        calibration: ``"bias"``, ``"temperature"`` or ``"none"``.
        trust: Trust in inputs, from 0 to 1, or ``"fitted"``; option `strength` of `LabelShift`.

    Raises:
        ConfigError: If an option is out of range, or the model has no suitable BatchNorm layers.

    Reference: Schneider et al., "Improving robustness against common corruptions by covariate shift adaptation",
    NeurIPS 2020 (arXiv 2006.16971), for the mixed statistics; `strength` is its pseudo-sample size N. Vianna et al.,
    "Channel-selective normalization for label-shift robust test-time adaptation", 2024 (arXiv 2402.04958), select the
    channels that label shift affects least. FedReach selects by type of layer.

    Example:
        >>> from fedreach.testing.adaptation import adapted_fixture
        >>> given, rule = adapted_fixture("3 classes", 3, (40, 40)), BatchNormRefresh(strength=0.0, trust=1.0)
        >>> state, inputs = given.fitted(rule).state, given.clients[1][0]
        >>> for seen in (inputs, 0.5 * inputs + 3):  # brighter, and with half the contrast
        ...     rule.update(state, rule.start(state), given.outputs(rule, seen))["prior"].round(3)
        array([0.55 , 0.295, 0.155])
        array([0.55 , 0.295, 0.155])
    """

    reads_inputs = True
    needs_batchnorm = True

    strength: Annotated[float, "[0, inf)"] = 1.0
    odds: Annotated[float, "[0, inf)"] = 9.0
    pseudo_counts: Annotated[Literal["fitted"] | float, "[1e-6, inf): Or 'fitted'."] = "fitted"
    calibration: Calibration = "bias"
    trust: Annotated[Literal["fitted"] | float, "[0, 1]: Or 'fitted'."] = "fitted"

    @property
    def rule(self) -> LabelShift:
        return LabelShift(self.odds, self.pseudo_counts, self.calibration, guard=False, strength=self.trust)

    def contribute(self, query: State, outputs: Outputs, labels: Ints, counts: Floats) -> State:
        """Return the sums of `LabelShift` on the outputs of the refreshed model."""
        layers, inputs = _refreshable(outputs)
        refreshed = layers.outputs(layers.refreshed(inputs, self.strength), inputs)
        return self.rule.contribute(query, refreshed, labels, counts)

    def update(self, state: State, client: State, outputs: Outputs) -> State:
        """Return the state of `LabelShift`, with the (s,) `statistics` and all `inputs` so far."""
        layers, inputs = _refreshable(outputs)
        all_inputs = np.concatenate([client["inputs"], inputs]) if "inputs" in client else inputs
        statistics = layers.refreshed(all_inputs, self.strength)
        client_state = self.rule.update(state, self.start(state), layers.outputs(statistics, all_inputs))
        return {**client_state, "statistics": statistics, "inputs": all_inputs}

    def predict(self, state: State, client: State, outputs: Outputs) -> Floats:
        if "statistics" in client:
            layers, inputs = _refreshable(outputs)
            outputs = layers.outputs(client["statistics"], inputs)
        return self.rule.predict(state, client, outputs)


def _refreshable(outputs: Outputs) -> tuple[RunningStatistics, Float32s]:
    if outputs.statistics is None or outputs.inputs is None:
        raise ConfigError(
            "BatchNormRefresh requires inputs, and a model with BatchNorm2d or BatchNorm3d layers that can run again "
            "with other statistics; got no such model or no inputs. Use adaptation 'label_shift'."
        )
    return outputs.statistics, outputs.inputs
