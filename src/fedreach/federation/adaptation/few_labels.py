"""Adaptation to clients that have a few labels."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

import numpy as np

from fedreach._util.arrays import Floats, Ints
from fedreach.federation.adaptation import trust
from fedreach.federation.adaptation.base import log_softmax
from fedreach.federation.adaptation.calibration import center_logits
from fedreach.federation.adaptation.inference import input_order
from fedreach.federation.adaptation.label_shift import LabelShift, OnLabelShift
from fedreach.federation.base import Adaptation
from fedreach.federation.types import Outputs, State

# -------------------- How far few labels are trusted
# A participant draws a few of the labels that it trained on, as an unseen client might learn them, and predicts its
# held-out examples by them: at several shrinkages, with and without the bias of the calibration.

MULTIPLES = np.array([0.5, 1.0, 2.0, 4.0, 8.0])
"""Multiples of A that are compared as pseudo-counts."""
NUMBERS = (1, 5, 20)
"""Numbers of labels that participants simulate."""
DRAWS = 4
"""Number of draws for each number of labels."""


def label_gains(query: State, z: Floats, labels: Ints, trained: Floats) -> Floats:
    """Return (5, 2, 5) a participant's gains from labels, without and with b, for each of `MULTIPLES`.

    The five gains are the mean gain over `NUMBERS`, its square, the gain from one label, the gain in accuracy, and its
    square.

    Args:
        query: Query of the second exchange of `trust`.
        z: (m, c) centered logits of held-out examples.
        labels: (m,) labels of these examples.
        trained: (c,) counts of the participant's training labels.
    """
    point, base = trust.left_out_point(query, z, labels), trust.base_without(query, labels)
    plain, corrected = query["inverse_temperature"] * z, point[0] * z + point[1:]
    before, right = trust.smoothed_scores(plain, labels)
    trained_labels = np.repeat(np.arange(len(trained)), trained.astype(np.int64))
    bits, gains = np.random.PCG64(len(trained_labels)), np.zeros((2, len(NUMBERS), 2, len(MULTIPLES)))
    for _ in range(DRAWS if len(trained_labels) else 0):
        order = np.argsort(bits.random_raw(len(trained_labels)), kind="stable")
        for i, number in enumerate(NUMBERS):
            counts = np.bincount(trained_labels[order[:number]], minlength=len(trained))
            shares = shrink_shares(counts, base, query["pseudo_counts"] * MULTIPLES)  # (5, c)
            offsets = (np.log(shares) - np.log(base))[:, None]
            for bias, scores in enumerate((plain, corrected)):
                after, accuracy = trust.smoothed_scores(scores + offsets, labels)
                gains[:, i, bias] += np.stack([after - before, accuracy - right]) / DRAWS
    mean, accurate = gains.mean(axis=1)
    return np.stack([mean, mean**2, gains[0, 0], accurate, accurate**2])


def shrink_shares(counts: Floats | Ints, base: Floats, pseudo_counts: Floats) -> Floats:
    """Return (..., c) class priors (n + B base)/(m + B), given (c,) label counts n and (...,) pseudo-counts B."""
    pulls = pseudo_counts[..., None]
    return np.asarray((counts + pulls * base) / (counts.sum() + pulls))


def fit_shrinkage(sums: Floats, participants: Floats, pseudo_counts: Floats) -> State:
    """Return the participants' choice of `label_pseudo_counts` and `label_bias`.

    `label_pseudo_counts` is infinite if labels are ignored, and `label_bias` is 0 or 1. The function considers only
    choices for which one label did no harm on average. It uses the choice with the largest mean gain minus one standard
    error, if this gain is significant, see `trust.fit_trust`. `label_gain` (3,) is the mean gain in accuracy over
    `NUMBERS` of labels, in points, and its 95% confidence interval.
    """
    n = float(participants[0])
    mean, error = trust.spread(sums[:2], n)
    allowed = trust.is_decided(mean, error, n, mean.size) & (sums[2] >= 0)
    if not allowed.any():
        return {"label_pseudo_counts": np.array([math.inf]), "label_bias": np.zeros(1), "label_gain": np.zeros(3)}
    best = int(np.where(allowed, mean - error, -math.inf).argmax())
    bias, row = divmod(best, len(MULTIPLES))
    return {
        "label_pseudo_counts": pseudo_counts * MULTIPLES[row],
        "label_bias": np.array([float(bias)]),
        "label_gain": trust.in_points(sums[3:, bias, row], n),
    }


# -------------------- A last layer fine-tuned on few labels: a reference

STEPS = 200
"""Largest number of Newton steps; a few tens are needed if the model is certain of the wrong class."""
SLOPE = 1e-11
"""Largest allowed entry of the gradient at the optimum, as a share of the largest feature."""
HALVINGS = 60
ROUNDING = 1e-14


@dataclass(frozen=True)
class FewLabels(Adaptation):
    """Fine-tuning of the last layer on m labeled examples of the client, as a reference.

    With features h (inputs of the last linear layer) and logits z = V h + v, the rule adds D and d to V and v, which

        minimize  (1/m) sum_i -log softmax(z_i + D h_i + d)_{y_i} + strength/(2 m) (|D|^2 + |d|^2)
        log p(y|x) = log softmax(z + D h + d)

    This is the posterior mode for normal D and d with variance 1/strength. So the regularization matters less with more
    examples. The optimum is unique. Newton's method computes it up to rounding errors, regardless of the order of the
    examples. With a large strength, or without labeled examples, predictions equal those of the unadapted model.

    The labeled examples are the first m examples of the client. They are never scored: all prediction modes are scored
    on the remaining examples. With `evaluation.inputs` of N, the client has at most N labels. For a client with at most
    m examples, one example is reserved for scoring. Participants do not fit anything. The rule is marked as a reference
    and cannot be exported.

    Use when: clients could label a few examples, and you want to measure the gain in accuracy.

    Args:
        labels: Number m of labeled examples per client, at least 0.
        strength: Strength of the regularization, positive. Suitable values increase with the squared length of
            features.

    Raises:
        ConfigError: If an option is out of range, or the model has no last linear layer.

    Reference: A last layer that is fine-tuned on a client's own data is the personal layer of FedPer and FedRep
    (Arivazhagan et al., 2019, arXiv 1912.00818; Collins et al., ICML 2021, arXiv 2102.07078). Here the other layers are
    shared and fixed, and the penalty is L2-SP of Li, Grandvalet and Davoine, ICML 2018 (arXiv 1802.01483).

    Example:
        >>> rule = FewLabels(labels=2, strength=1.0)
        >>> own = Outputs(np.zeros((2, 2)), features=np.array([[1.0], [-1.0]]))
        >>> client = rule.with_labels({}, own, np.array([0, 1]))
        >>> np.exp(rule.predict({}, client, own)).round(3).tolist()
        [[0.739, 0.261], [0.261, 0.739]]
    """

    reads_inputs = True
    needs_features = True

    labels: Annotated[int, "[0, inf)"] = 20
    strength: Annotated[float, "(0, inf)"] = 1.0

    def with_labels(self, state: State, outputs: Outputs, labels: Ints) -> State:
        """Return the state with `head`, the (h + 1, c) transpose of D above d; empty without examples."""
        if not len(labels):
            return self.start(state)
        assert outputs.features is not None  # because of `needs_features`
        return {"head": fit_head(outputs.features, outputs.logits, labels, self.strength / len(labels))}

    def predict(self, state: State, client: State, outputs: Outputs) -> Floats:
        if "head" not in client:
            return log_softmax(outputs.logits)
        assert outputs.features is not None  # because of `needs_features`
        return log_softmax(outputs.logits + _with_bias_column(outputs.features) @ client["head"])


def fit_head(features: Floats, logits: Floats, labels: Ints, pull: float) -> Floats:
    """Return the (h + 1, c) change of the last layer that minimizes mean cross-entropy + pull/2 |head|^2.

    Newton's method starts from 0 and halves a step while the objective increases. Conjugate gradients solve the linear
    systems, because the Hessian for (h + 1) c numbers would be too large to store. With fewer examples than features,
    the solution is in the span of the examples and is computed there.

    Args:
        features: (m, h) features of the examples, m at least 1.
        logits: (m, c) logits of the model.
        labels: (m,) labels of the examples.
        pull: Strength of the regularization, positive.

    Example:
        >>> fit_head(np.zeros((1, 1)), np.zeros((1, 2)), np.array([0]), 0.25).round(3).tolist()
        [[0.0, 0.0], [0.741, -0.741]]
    """
    x, m = _with_bias_column(features), len(labels)
    if m < x.shape[1]:
        span, spanned = np.linalg.qr(x.T)  # (h + 1, m), (m, m)
        return np.asarray(span @ _minimize_loss(spanned.T, logits, labels, pull))
    return _minimize_loss(x, logits, labels, pull)


def _minimize_loss(x: Floats, logits: Floats, labels: Ints, pull: float) -> Floats:
    """Return the (k, c) head for (m, k) columns, see `fit_head`."""
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
        step = _conjugate_gradients(partial(_hessian_product, x, p, pull), gradient)
        for halvings in range(HALVINGS):
            nearer = head - step / 2**halvings
            after, p_after = objective(nearer)
            if after <= loss + ROUNDING * abs(loss):
                break
        head, loss, p = nearer, after, p_after
    return head


def _hessian_product(x: Floats, p: Floats, pull: float, way: Floats) -> Floats:
    """Return the Hessian times a (h + 1, c) direction."""
    change = p * (x @ way)
    return np.asarray(x.T @ (change - p * change.sum(axis=1, keepdims=True)) / len(x) + pull * way)


def _conjugate_gradients(times: Callable[[Floats], Floats], right: Floats) -> Floats:
    """Return the solution of a positive definite linear system, by conjugate gradients."""
    solution, residual = np.zeros_like(right), right
    way, size = residual, float(np.square(residual).sum())
    enough = 1e-20 * size
    for _ in range(2 * right.size):
        mapped = times(way)
        share = size / float((way * mapped).sum())
        solution, residual = solution + share * way, residual - share * mapped
        before, size = size, float(np.square(residual).sum())
        if size <= enough:
            break
        way = residual + size / before * way
    return solution


def _with_bias_column(features: Floats) -> Floats:
    return np.column_stack([features, np.ones(len(features))])


# -------------------- Few-shot adaptation

FOLDS = 5
FEWEST_FOR_HEAD = 10
"""Smallest number of labeled examples for which the last layer may change."""
HEAD_PULL = 10.0
"""Weight of the squared change of the last layer, for features whose mean squared length is 1."""
MARGIN = 1.645
"""Smallest gain of a changed last layer on the client's own labels, in standard errors (5%, one-sided)."""
LABELED, SEEN = "labeled_", "seen_"
OWN_SUMS = ("feature_squares", "label_gains")


@dataclass(frozen=True)
class FewShot(OnLabelShift):
    """Few-shot adaptation: the class prior and the last layer from a client's labels, and unlabeled inputs if helpful.

    With the counts n of a client's m labels, the participants' class prior base, and the pseudo-counts B of the
    client's own class prior:

        own = (n + B base)/(m + B)
        log p(y|x) = a z + b + log own - log base + constant

    If participants find that inputs can be trusted (see `LabelShift`), B is their Dirichlet fit A. The client then also
    uses its unlabeled inputs as in `LabelShift`, with own instead of base and m + A instead of A. Otherwise the client
    ignores unlabeled inputs. Participants then decide three things: the multiple B of A, whether to use b, and whether
    to use labels at all. They measure the effect of a few of their training labels on their held-out examples.

    With at least ten labels, the last layer changes by D and d that minimize mean cross-entropy + 10/(2m) (|D|^2 +
    |d|^2), for features with mean squared length 1. It does not change if five-fold cross-validation on the client's
    labels finds no significant gain (one-sided, 5%).

    Without labels, the rule equals `LabelShift`. The result does not depend on the order or grouping of labels and
    inputs. An input whose label arrives later then counts as a labeled example.

    Use when: clients have a few labels, or receive labels after they predicted, as in a shop, a keyboard or a hospital.

    Args:
        labels: Number of labeled examples per client in the evaluation, at least 0. These are the first examples. A
            deployed client may have any number.
        head: Let the last layer change. The model must have a last linear layer.
        odds: Option of `LabelShift`, as are the next three options.
        pseudo_counts: A, or ``"fitted"``.
        guard: Use the safeguard for inputs, without intensity correction.
        strength: Strength of the adaptation to inputs, or ``"fitted"``.

    Raises:
        ConfigError: If an option is out of range.

    Reference: The prior is the posterior mean of a Dirichlet-multinomial model. Participants fit its spread, as in
    empirical Bayes (Robbins, 1956). The changed last layer is the personal layer of FedPer and FedRep (Arivazhagan et
    al., 2019, arXiv 1912.00818; Collins et al., ICML 2021, arXiv 2102.07078).

    Example:
        >>> source = {"a": np.ones(1), "b": np.zeros(2), "base": np.full(2, 0.5), "pseudo_counts": np.full(1, 2.0)}
        >>> rule, examples = FewShot(guard=False), Outputs(np.zeros((2, 2)))
        >>> client = rule.learn_labels(source, rule.start(source), examples, np.array([0, 0]))
        >>> np.exp(rule.predict(source, client, Outputs(np.zeros((1, 2))))).round(3)  # (2 + 1)/(2 + 2)
        array([[0.75, 0.25]])
    """

    reads_inputs = True

    labels: Annotated[int, "[0, inf)"] = 5
    head: bool = True
    odds: float = 9.0
    pseudo_counts: Literal["fitted"] | float = "fitted"
    guard: bool = True
    strength: Literal["fitted"] | float = "fitted"

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.rule  # checks its options

    @property
    def rule(self) -> LabelShift:
        """Rule for inputs without labels."""
        return LabelShift(self.odds, self.pseudo_counts, guard=self.guard, repairs=False, strength=self.strength)

    def contribute(self, query: State, outputs: Outputs, labels: Ints, counts: Floats) -> State:
        """Return the sums of `LabelShift`, the squared features, and the gains from labels."""
        answer = dict(self.rule.contribute(query, outputs, labels, counts))
        if not query and outputs.features is not None:
            answer["feature_squares"] = np.square(outputs.features, dtype=np.float64).sum(keepdims=True).reshape(1)
        if "class_examples" in query:
            z = center_logits(outputs.logits)
            answer["label_gains"] = label_gains(query, z, labels, np.maximum(counts, 0))
        return answer

    def fold(self, state: State, sums: State) -> State:
        few_shot_state = {name: state[name] for name in ("feature_length",) if name in state}
        if "feature_squares" in sums:
            few_shot_state["feature_length"] = np.sqrt(
                sums["feature_squares"] / np.maximum(sums["held_out"].sum(), 1.0)
            )
        if "label_gains" in sums:
            few_shot_state |= fit_shrinkage(sums["label_gains"], sums["miniatures"], state["pseudo_counts"])
        inner = {name: value for name, value in sums.items() if name not in OWN_SUMS}
        before = {name: value for name, value in state.items() if name != "feature_length"}
        return {**self.rule.fold(before, inner), **few_shot_state}

    def update(self, state: State, client: State, outputs: Outputs) -> State:
        """Return the client's state after further inputs: the state of `LabelShift`, the inputs and the labels."""
        labeled_state = {name: value for name, value in client.items() if name.startswith(LABELED) or name == "head"}
        return self._infer_client(state, labeled_state, replace(outputs, inputs=None).after(client, SEEN))

    def learn_labels(self, state: State, client: State, outputs: Outputs, labels: Ints) -> State:
        """Return the client's state after further labeled examples.

        Args:
            state: Fitted state of the rule.
            client: State of the client before these examples.
            outputs: Model outputs on the m examples. Inputs that the client saw without labels now count as labeled.
            labels: (m,) labels of these examples.
        """
        if not len(labels):
            return client
        unlabeled = _kept(client, SEEN)
        if unlabeled is not None:
            for row in range(len(labels)):
                unlabeled = _without(unlabeled, outputs, row)
        every = replace(outputs, inputs=None).after(client, LABELED)
        before: Ints = client.get(f"{LABELED}classes", np.empty(0, np.int64))
        classes = np.concatenate([before, labels.astype(np.int64)])
        order = input_order(every.logits, every.features, classes[:, None])
        labeled_state = {**every.at(order).arrays(LABELED), f"{LABELED}classes": classes[order]}
        head = self._fit_head(state, self._informed_state(state, labeled_state), labeled_state)
        return self._infer_client(state, {**labeled_state, **head}, unlabeled)

    def with_labels(self, state: State, outputs: Outputs, labels: Ints) -> State:
        """Return the state of a client with labeled examples and without other inputs."""
        return self.learn_labels(state, self.start(state), outputs, labels)

    def predict(self, state: State, client: State, outputs: Outputs) -> Floats:
        log_p = self.rule.predict(self._informed_state(state, client), client, outputs)
        if "head" not in client or outputs.features is None:
            return log_p
        return log_softmax(log_p + _with_bias_column(_scale_features(outputs.features, state)) @ client["head"])

    def with_prior(self, state: State, prior: Floats) -> State:
        return self.rule.with_prior(state, prior)

    def _informed_state(self, state: State, client: State) -> State:
        """Return the state of a client with labels: its own class prior, pseudo-counts and offsets."""
        labeled_classes, base = client.get(f"{LABELED}classes"), state["base"]
        if labeled_classes is None:
            return state
        counts = np.bincount(labeled_classes, minlength=len(base)).astype(np.float64)
        is_trusted = self.rule.strength_of(state) > 0
        spread = state["pseudo_counts"] if is_trusted else state.get("label_pseudo_counts", state["pseudo_counts"])
        if math.isinf(spread[0]):
            return state
        prior = (counts + spread * base) / (counts.sum() + spread)
        return {
            **state,
            "base": prior,
            "pseudo_counts": spread + counts.sum(),
            "label_offsets": np.log(prior) - np.log(base),
            "label_bias": np.zeros(1) if is_trusted else state.get("label_bias", np.ones(1)),
        }

    def _infer_client(self, state: State, labeled_state: State, unlabeled: Outputs | None) -> State:
        informed_state, rule = self._informed_state(state, labeled_state), self.rule
        client = rule.start(informed_state)
        if unlabeled is not None:
            client = rule.update(informed_state, client, unlabeled)
        inner = {name: value for name, value in client.items() if name not in ("logits", "features", "inputs")}
        return {**inner, **labeled_state, **(unlabeled.arrays(SEEN) if unlabeled is not None else {})}

    def _fit_head(self, state: State, informed_state: State, labeled_state: State) -> State:
        """Return the (h + 1, c) change of the last layer; empty if the labels are too few or do not support it."""
        labeled = _kept(labeled_state, LABELED)
        if not self.head or labeled is None or labeled.features is None or len(labeled.logits) < FEWEST_FOR_HEAD:
            return {}
        x, labels = _scale_features(labeled.features, state), labeled_state[f"{LABELED}classes"]
        scores = self.rule.predict(informed_state, self.rule.start(informed_state), labeled)
        fold, gains = np.arange(len(labels)) % FOLDS, np.zeros(len(labels))
        for number in range(FOLDS):
            in_training, out = fold != number, np.flatnonzero(fold == number)
            head = fit_head(x[in_training], scores[in_training], labels[in_training], HEAD_PULL / in_training.sum())
            moved = log_softmax(scores[out] + _with_bias_column(x[out]) @ head)
            rows = np.arange(len(out))
            gains[out] = moved[rows, labels[out]] - log_softmax(scores[out])[rows, labels[out]]
        if gains.mean() <= MARGIN * gains.std(ddof=1) / math.sqrt(len(gains)):
            return {}
        return {"head": fit_head(x, scores, labels, HEAD_PULL / len(labels))}


def _scale_features(features: Floats, state: State) -> Floats:
    """Return (m, h) features, scaled to mean squared length 1 at participants."""
    flat = features.reshape(len(features), -1).astype(np.float64)
    return np.asarray(flat / np.maximum(state.get("feature_length", np.ones(1)), np.finfo(float).tiny))


def _kept(client: State, prefix: str) -> Outputs | None:
    """Return the outputs that a client stored under a prefix; None if it stored none."""
    if f"{prefix}logits" not in client:
        return None
    return Outputs(client[f"{prefix}logits"], client.get(f"{prefix}features"))


def _without(unlabeled: Outputs, outputs: Outputs, row: int) -> Outputs:
    """Return the inputs without one input that has the logits and features of a row, if there is such an input."""
    if not len(unlabeled.logits):
        return unlabeled
    same = (unlabeled.logits == outputs.logits[row]).all(axis=1)
    if unlabeled.features is not None and outputs.features is not None:
        same &= (unlabeled.features == outputs.features[row]).reshape(len(same), -1).all(axis=1)
    places = np.flatnonzero(same)
    return unlabeled.at(np.delete(np.arange(len(same)), places[:1]))
