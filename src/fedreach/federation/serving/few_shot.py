"""Adapt to a client by a few labeled examples of its own, and by its inputs where participants support that."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedreach.arrays import AnyArray, Floats, Ints
from fedreach.errors import require
from fedreach.federation.serving import shrinkage
from fedreach.federation.serving.calibration import centred
from fedreach.federation.serving.few_labels import moved_head
from fedreach.federation.serving.inference import input_order
from fedreach.federation.serving.label_shift import LabelShift
from fedreach.federation.serving.softmax import log_softmax
from fedreach.federation.values import Outputs, State

FOLDS = 5
FEWEST_FOR_HEAD = 10
"""Labeled examples, with fewer of which the last layer is left as it is."""
HEAD_PULL = 10.0
"""Weight of the squared change of the last layer, for features whose mean squared length is 1."""
MARGIN = 1.645
"""Standard errors by which a moved last layer must predict the client's own labels better: 5%, one-sided."""
LABELED, SEEN = "labeled_", "seen_"
OWN_SUMS = ("feature_squares", "label_gains")


@dataclass(frozen=True)
class FewShot:
    """Few-shot adaptation: class prior from labels, then the last layer as labels grow; inputs where they help.

    With the counts n of a client's m labels, participants' class shares base and the pseudo-counts B of the client's
    own class prior:

        own = (n + B base)/(m + B)
        log p(y|x) = a z + b + log own - log base + constant

    Where participants find that inputs can be trusted (see `LabelShift`), B is their Dirichlet fit A, and the client's
    unlabeled inputs go on from its own prior: as `LabelShift`, with own in place of base and m + A in place of A.
    Elsewhere inputs are left out, and participants choose B among multiples of A, whether b counts, and whether labels
    count at all, by what a few of their training labels would have done to their held-out examples.

    From ten labels on, the last layer moves by D and d to minimize mean cross-entropy + 10/(2m) (|D|^2 + |d|^2), for
    features of mean squared length 1, on top of the prior; unless five-fold cross-validation on the client's own labels
    finds no gain (one-sided, 5%).

    Without any label it is `LabelShift`. The order of labels and inputs changes no bit, nor whether they come at once.
    An input whose label arrives later counts as a labeled example from then on, and as an input no longer.

    Use when: clients learn some labels after they have predicted, such as a shop, a keyboard or a hospital.

    When: clients have a few labels of their own, or see them after they have predicted.

    Args:
        labels: How many labeled examples clients have where they are evaluated, the first ones; 0 or more. A deployed
            client may have any number.
        head: Whether the last layer may move; it needs a model with a last linear layer.
        odds: See `LabelShift`, as the next three.
        pseudo_counts: A, or ``"fitted"``.
        guard: Whether the safeguard of inputs is on; it never changes their intensity here.
        strength: Of inputs, or ``"fitted"``.

    Raises:
        ConfigError: If an option is outside its range.

    Reference: the prior is the posterior mean of a Dirichlet-multinomial model whose spread participants fit, as in
    empirical Bayes (Robbins, 1956); moving the last layer alone is FedPer's and FedRep's personal layer (Arivazhagan et
    al., 2019, arXiv 1912.00818; Collins et al., ICML 2021, arXiv 2102.07078).

    Example:
        >>> source = {"a": np.ones(1), "b": np.zeros(2), "base": np.full(2, 0.5), "pseudo_counts": np.full(1, 2.0)}
        >>> rule, examples = FewShot(guard=False), Outputs(np.zeros((2, 2)))
        >>> client = rule.learn_labels(source, rule.start(source), examples, np.array([0, 0]))
        >>> np.exp(rule.predict(source, client, Outputs(np.zeros((1, 2))))).round(3)  # (2 + 1)/(2 + 2)
        array([[0.75, 0.25]])
    """

    reads_inputs: ClassVar[bool] = True

    labels: int = 5
    head: bool = True
    odds: float = 9.0
    pseudo_counts: Literal["fitted"] | float = "fitted"
    guard: bool = True
    strength: Literal["fitted"] | float = "fitted"

    def __post_init__(self) -> None:
        require(self, labels="[0, inf)")
        self._inputs()  # checks its options

    def _inputs(self) -> LabelShift:
        """Return what is done with inputs."""
        return LabelShift(self.odds, self.pseudo_counts, guard=self.guard, repairs=False, strength=self.strength)

    def query(self, state: State) -> State | None:
        return self._inputs().query(state)

    def contribute(self, query: State, outputs: Outputs, labels: Ints, counts: Floats) -> State:
        """Return what `LabelShift` does, the squares of features, and what labels would have done."""
        answer = dict(self._inputs().contribute(query, outputs, labels, counts))
        if not query and outputs.features is not None:
            answer["feature_squares"] = np.square(outputs.features, dtype=np.float64).sum(keepdims=True).reshape(1)
        if "class_examples" in query:
            z = centred(outputs.logits)
            answer["label_gains"] = shrinkage.label_gains(query, z, labels, np.maximum(counts, 0))
        return answer

    def possible(self, query: State, sums: State, held_out: int, trained: int) -> bool:
        inner = {name: value for name, value in sums.items() if name not in OWN_SUMS}
        squares = float(sums.get("feature_squares", np.zeros(1)).sum())
        gained = "label_gains" not in sums or shrinkage.are_gains(sums["label_gains"], sums["miniatures"])
        return squares >= 0 and gained and self._inputs().possible(query, inner, held_out, trained)

    def fold(self, state: State, sums: State) -> State:
        own = {name: state[name] for name in ("feature_length",) if name in state}
        if "feature_squares" in sums:
            own["feature_length"] = np.sqrt(sums["feature_squares"] / max(float(sums["held_out"].sum()), 1.0))
        if "label_gains" in sums:
            own |= shrinkage.fitted_shrinkage(sums["label_gains"], sums["miniatures"], state["pseudo_counts"])
        inner = {name: value for name, value in sums.items() if name not in OWN_SUMS}
        return {**self._inputs().fold(_without_own(state), inner), **own}

    def start(self, state: State) -> State:
        return self._inputs().start(state)

    def update(self, state: State, client: State, outputs: Outputs) -> State:
        """Return what a client keeps after more inputs: those of `LabelShift`, and what it has seen and learned."""
        kept = {name: value for name, value in client.items() if name.startswith(LABELED) or name == "head"}
        return self._inferred(state, kept, _joined(_outputs(client, SEEN), outputs))

    def learn_labels(self, state: State, client: State, outputs: Outputs, labels: Ints) -> State:
        """Return what a client keeps after more labeled examples.

        Args:
            state: As the rule was fitted.
            client: As it was.
            outputs: Of the model on these m examples; one that was seen without its label is an input no longer.
            labels: (m,) of these.
        """
        if not len(labels):
            return client
        seen = _outputs(client, SEEN)
        if seen is not None:
            for row in range(len(labels)):
                seen = _without(seen, outputs, row)
        before, told = _outputs(client, LABELED), labels.astype(np.int64)
        every = _joined(before, outputs)
        told = np.concatenate([client[f"{LABELED}classes"], told]) if before is not None else told
        order = input_order(every.logits, every.features, told[:, None])
        every, told = _at(every, order), told[order]
        kept = {**_arrays(every, LABELED), f"{LABELED}classes": told}
        return self._inferred(state, {**kept, **self._head(state, self._own(state, kept), kept)}, seen)

    def with_labels(self, state: State, outputs: Outputs, labels: Ints) -> State:
        """Return what a client keeps that has labeled examples and has seen no input."""
        return self.learn_labels(state, self.start(state), outputs, labels)

    def predict(self, state: State, client: State, outputs: Outputs) -> Floats:
        log_p = self._inputs().predict(self._own(state, client), client, outputs)
        if "head" not in client or outputs.features is None:
            return log_p
        return log_softmax(log_p + _with_one(outputs.features, state) @ client["head"])

    def with_prior(self, state: State, prior: Floats) -> State:
        return self._inputs().with_prior(state, prior)

    def _own(self, state: State, client: State) -> State:
        """Return the state that a client goes by, given its labels: its own base, pseudo-counts and offsets."""
        told, base = client.get(f"{LABELED}classes"), state["base"]
        if told is None:
            return state
        counts = np.bincount(told, minlength=len(base)).astype(np.float64)
        is_trusted = self._inputs().strength_of(state) > 0
        spread = state["pseudo_counts"] if is_trusted else state.get("label_pseudo_counts", state["pseudo_counts"])
        if math.isinf(spread[0]):
            return state
        own = (counts + spread * base) / (counts.sum() + spread)
        known = {"base": own, "pseudo_counts": spread + counts.sum(), "label_offsets": np.log(own) - np.log(base)}
        return {**state, **known, "label_bias": np.zeros(1) if is_trusted else state.get("label_bias", np.ones(1))}

    def _inferred(self, state: State, kept: State, seen: Outputs | None) -> State:
        own, rule = self._own(state, kept), self._inputs()
        client = rule.start(own)
        if seen is not None:
            client = rule.update(own, client, seen)
        inner = {name: value for name, value in client.items() if name not in ("logits", "features", "inputs")}
        return {**inner, **kept, **(_arrays(seen, SEEN) if seen is not None else {})}

    def _head(self, state: State, own: State, kept: State) -> State:
        """Return the (h + 1, c) change of the last layer; nothing if labels are few or do not support it."""
        told = _outputs(kept, LABELED)
        if not self.head or told is None or told.features is None or len(told.logits) < FEWEST_FOR_HEAD:
            return {}
        x, labels = _scaled(told.features, state), kept[f"{LABELED}classes"]
        scores = self._inputs().predict(own, self._inputs().start(own), told)
        fold, gains = np.arange(len(labels)) % FOLDS, np.zeros(len(labels))
        for number in range(FOLDS):
            rest, out = fold != number, np.flatnonzero(fold == number)
            head = moved_head(x[rest], scores[rest], labels[rest], HEAD_PULL / rest.sum())
            moved = log_softmax(scores[out] + np.column_stack([x[out], np.ones(len(out))]) @ head)
            rows = np.arange(len(out))
            gains[out] = moved[rows, labels[out]] - log_softmax(scores[out])[rows, labels[out]]
        if gains.mean() <= MARGIN * gains.std(ddof=1) / math.sqrt(len(gains)):
            return {}
        return {"head": moved_head(x, scores, labels, HEAD_PULL / len(labels))}


def _without_own(state: State) -> State:
    return {name: value for name, value in state.items() if name != "feature_length"}


def _scaled(features: Floats, state: State) -> Floats:
    """Return (m, h) features whose mean squared length is 1 at participants."""
    flat = features.reshape(len(features), -1).astype(np.float64)
    result: Floats = flat / np.maximum(state.get("feature_length", np.ones(1)), np.finfo(float).tiny)
    return result


def _with_one(features: Floats, state: State) -> Floats:
    return np.column_stack([_scaled(features, state), np.ones(len(features))])


def _arrays(outputs: Outputs, prefix: str) -> dict[str, AnyArray]:
    named: Mapping[str, AnyArray | None] = {
        "logits": outputs.logits,
        "features": outputs.features,
    }
    return {f"{prefix}{name}": values for name, values in named.items() if values is not None}


def _outputs(client: State, prefix: str) -> Outputs | None:
    """Return what a client has kept under a prefix; None where there is nothing."""
    if f"{prefix}logits" not in client:
        return None
    return Outputs(client[f"{prefix}logits"], client.get(f"{prefix}features"))


def _joined(before: Outputs | None, outputs: Outputs) -> Outputs:
    if before is None:
        return Outputs(outputs.logits, outputs.features)
    features = None
    if before.features is not None and outputs.features is not None:
        features = np.concatenate([before.features, outputs.features])
    return Outputs(np.concatenate([before.logits, outputs.logits]), features)


def _at(outputs: Outputs, rows: Ints) -> Outputs:
    return Outputs(outputs.logits[rows], None if outputs.features is None else outputs.features[rows])


def _without(seen: Outputs, outputs: Outputs, row: int) -> Outputs:
    """Return the inputs but for one that has the logits and features of a row, if there is one."""
    if not len(seen.logits):
        return seen
    same = (seen.logits == outputs.logits[row]).all(axis=1)
    if seen.features is not None and outputs.features is not None:
        same &= (seen.features == outputs.features[row]).reshape(len(same), -1).all(axis=1)
    places = np.flatnonzero(same)
    return _at(seen, np.delete(np.arange(len(same)), places[:1]))
