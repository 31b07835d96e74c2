"""Label-shift adaptation, which estimates a client's class prior from its unlabeled inputs."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np

from fedreach._util.arrays import Bools, Floats, Ints
from fedreach._util.errors import ConfigError
from fedreach.federation.adaptation import base as priors
from fedreach.federation.adaptation import calibration, safeguard, trust
from fedreach.federation.adaptation import inference as stream
from fedreach.federation.adaptation.base import TINY, blend_priors, log_softmax, weights
from fedreach.federation.adaptation.inference import ClientPrior, infer_priors, input_order
from fedreach.federation.adaptation.safeguard import Guard, GuardedOutputs, Intensity
from fedreach.federation.base import Adaptation
from fedreach.federation.types import NO_STATE, Outputs, State

Calibration = Literal["bias", "temperature", "none"]
FITTED = ("base", "shares", "pseudo_counts", "inverse_temperature", *trust.FITTED)
"""Names in a state, in addition to those of the search for a and b and of the safeguard."""


@dataclass(frozen=True)
class LabelShift(Adaptation):
    """Label-shift adaptation by MAP-EM (Saerens et al., 2002), to the extent that participants' labels support it.

    z are the logits of the model. Participants fit the calibration a and b, their class prior base, and A, which
    describes how much class priors of clients vary. From their held-out labels they also fit how much inputs can be
    trusted. This gives a strength s from 0 (off) to 1 and an intraclass correlation rho, see `trust`. A client with
    inputs x_1 ... x_n computes log likelihood ratios u = a z + b - log base and

        pi = mode of the posterior of its class prior, with rho and an amplification limit (`inference.infer_priors`)
        W  = evidence that its class prior is not base (ibid.),  w = 1/(1 + odds/W)
        log p(y|x) = a z + b + s (log(w pi + (1 - w) base) - log base) + constant

    The result does not depend on the order of the inputs, bit for bit. Without inputs the prediction is softmax(a z +
    b). If s is 0, or the client abstains, the prediction is softmax(t z) with a scale t that is fitted without b. It
    does not change any predicted class. b fits usual inputs, but reduces accuracy by 5 to 10 points if brightness or
    contrast differ slightly.

    Unusual inputs (darker, blurred, from another scanner) mislead the estimate. A safeguard corrects the intensity of
    inputs. Then it compares the signal of label shift with the drift of features, and the client adapts or abstains,
    see `safeguard.Guard`. The safeguard needs features and inputs, and is off with logits alone. A client that may
    receive more inputs stores its inputs, because the decision depends on all inputs.

    Use when: label distributions of clients differ from the participants' label distribution. You need no prior
    knowledge, because participants test whether adaptation helps. Try this rule first.

    Args:
        odds: Prior odds of no shift against a shift, at least 0. With 0, clients always adapt.
        pseudo_counts: A, at least 1e-6. ``"fitted"``: maximum likelihood on the participants' training labels.
        calibration: Parameters to fit. ``"bias"``: a and b; ``"temperature"``: a only; ``"none"``: neither. With more
            than 100 classes, b is fitted to the class prior instead of the likelihood, see `calibration.match_step`.
        online: Let a client learn from its inputs in their order, as `predict_online` does. Use it for streams that are
            sorted by class, arrive in bursts or vary over the day. A client stores O(c) numbers and, with the
            safeguard, its last 256 inputs.
        half_life: Number of inputs after which the weight of an input in a stream is halved. ``"never"``: all inputs
            have full weight. ``"fitted"``: the client combines 32, 128 and "never" according to its inputs, see
            `inference.follow_stream`.
        guard: Use the safeguard.
        k: Required ratio of signal to drift for usual inputs, see `safeguard.Guard`.
        strength: Strength s from 0 to 1. ``"fitted"``: the strength that participants' labels support.
        correlation: Intraclass correlation rho from 0 to 1. ``"fitted"``: estimated, but 0 if you set the strength.
        amplification: Limit M, at least 1. The distance of the estimate from base is at most M times the distance of
            the mean prediction.
        repairs: Let the safeguard correct the intensity of inputs.

    Raises:
        ConfigError: If an option is out of range.

    Reference: Saerens, Latinne and Decaestecker, Neural Computation 14 (2002) for the prior; Alexandari, Kundaje and
    Shrikumar, ICML 2020 for the calibration. The penalties, the fitted A, the weight w and the participants' test are
    extensions.

    Example:
        >>> source = {"a": np.array([1.0]), "b": np.zeros(2), "base": np.full(2, 0.5), "pseudo_counts": np.array([1.0])}
        >>> rule, inputs = LabelShift(), Outputs(np.array([[2.0, 0.0]] * 20))
        >>> client = rule.update(source, rule.start(source), inputs)
        >>> client["prior"].round(3), client["weight"].round(3)
        (array([0.973, 0.027]), array([0.999]))
        >>> np.exp(rule.predict(source, client, Outputs(np.zeros((1, 2))))).round(3)
        array([[0.972, 0.028]])
    """

    odds: Annotated[float, "[0, inf)"] = 9.0
    pseudo_counts: Annotated[Literal["fitted"] | float, "[1e-6, inf): Or 'fitted'."] = "fitted"
    calibration: Calibration = "bias"
    online: bool = False
    half_life: Annotated[Literal["fitted", "never"] | float, "(0, inf): Or 'fitted' or 'never'."] = "fitted"
    guard: bool = True
    k: Annotated[float, "[0, inf)"] = 0.5
    strength: Annotated[Literal["fitted"] | float, "[0, 1]: Or 'fitted'."] = "fitted"
    correlation: Annotated[Literal["fitted"] | float, "[0, 1]: Or 'fitted'."] = "fitted"
    amplification: Annotated[float, "[1, inf]"] = 3.0
    repairs: bool = True

    def query(self, state: State) -> State | None:
        """Return an empty query at first, then `shares` and `candidate` for evaluation by participants.

        With `matches`, participants evaluate only the mean prediction of the candidate. After the calibration, the two
        exchanges of `trust` follow, unless strength and correlation are set.
        """
        if not state:
            return NO_STATE
        query = {name: state[name] for name in ("shares", "candidate", "matches") if name in state}
        if "guard_residual" not in state:
            query |= dict(safeguard.second_query(state))
        if not query and "strength" not in state:
            query = dict(trust.query(state))
        return query or None

    @property
    def is_learned(self) -> bool:
        """Whether participants decide how much inputs are trusted."""
        return self.strength == "fitted"

    def contribute(self, query: State, outputs: Outputs, labels: Ints, counts: Floats) -> State:
        """Return label counts, the log likelihoods of each A, the sums for Newton's method, or those for `trust`."""
        classes, trained = outputs.logits.shape[1], np.maximum(counts, 0).astype(np.float64)  # noise may make some < 0
        if "point" in query:
            z = calibration.center_logits(outputs.logits)
            if "class_examples" in query:
                return trust.miniature_sums(query, z, labels, trained, self.odds, self.amplification)
            return trust.class_sums(z, labels, query["point"])
        answer: dict[str, Floats] = {}
        if not query:
            answer["held_out"] = np.bincount(labels, minlength=classes).astype(np.float64)
            if self.calibration != "none":
                answer["scale_losses"] = calibration.scale_losses(calibration.center_logits(outputs.logits), labels)
            if self.pseudo_counts == "fitted":
                answer["trained"] = trained
        if self.guard:
            guarded = safeguard.second_sums(safeguard.second_query(query), outputs, labels)
            answer.update(guarded if query else safeguard.first_sums(outputs, labels, classes))
        if "shares" in query:
            answer["spread"] = priors.spread_likelihoods(trained, query["shares"])
        if self.calibration != "none" and (not query or "candidate" in query):
            point = (query or calibration.begin(classes))["candidate"]
            z = calibration.center_logits(outputs.logits)
            if "matches" in query:
                answer["predicted"] = calibration.prediction_sums(z, point)
            else:
                bias = self.calibration == "bias" and not self._matches(classes)
                answer.update(calibration.likelihood(z, labels, point, bias=bias))
        return answer

    def fold(self, state: State, sums: State) -> State:
        """Return the parameters fitted so far, and the values for the next query."""
        if "class_examples" in sums:
            return {**state, **sums}
        if "miniatures" in sums:
            decided = trust.fit_trust(sums)
            if self.correlation != "fitted":
                decided = {**decided, "correlation": np.array([float(self.correlation)])}
            return {**{name: value for name, value in state.items() if name not in trust.SUMS}, **decided}
        new = dict(state) or self._begin(sums)
        if "guard_residual" in sums:
            fit = safeguard.second_fit(new, sums)
            new = {
                name: value.astype(np.float32) if name.startswith("guard_") else value for name, value in fit.items()
            }
        if "spread" in sums:
            del new["shares"]
            new["pseudo_counts"] = np.array([priors.fit_spread(sums["spread"])])
        if "candidate" in new:
            search = self._continue_search(new, sums)
            outcome = {"a": search["point"][:1], "b": search["point"][1:]} if calibration.is_settled(search) else search
            fitted = {name: value for name, value in new.items() if name in FITTED or name.startswith("guard_")}
            if calibration.is_settled(search) and "curvature" in sums and self.is_learned:
                fitted["curvature"] = sums["curvature"]
            new = fitted | dict(outcome)
        return new

    def _matches(self, classes: int) -> bool:
        return self.calibration == "bias" and classes > calibration.MAX_NEWTON_CLASSES

    def _continue_search(self, search: State, sums: State) -> State:
        if "predicted" in sums:
            return calibration.match_step(search, sums["predicted"], search["base"])
        after = calibration.advance(search, sums)
        if calibration.is_settled(after) and self._matches(len(search["base"])):
            return calibration.begin_matching(after["point"])
        return after

    def _begin(self, sums: State) -> dict[str, Floats]:
        """Return the state after the sums of the first exchange, before its candidate is evaluated."""
        classes = len(sums["held_out"])
        new = {"base": priors.source_prior(np.maximum(sums["held_out"], 0))}  # noise may make some < 0
        if not self.is_learned:
            new["strength"] = np.array([float(self.strength)])
            new["correlation"] = np.array([0.0 if self.correlation == "fitted" else float(self.correlation)])
        if "guard_features" in sums:
            new |= dict(safeguard.first_fit(sums))
        if self.pseudo_counts == "fitted":
            new["shares"] = priors.training_shares(sums["trained"])
        else:
            new["pseudo_counts"] = np.array([float(self.pseudo_counts)])
        if self.calibration == "none":
            return new | {"a": np.ones(1), "b": np.zeros(classes)}
        return new | {
            "inverse_temperature": calibration.fit_scale(sums["scale_losses"]),
            **calibration.begin(classes),
        }

    def start(self, state: State) -> State:
        classes = len(state["base"])
        client = {
            "n": np.zeros(1),
            "log_w": np.zeros(1),
            "prior": state["base"],
            "weight": weights(np.zeros(1), self.odds),
            "strength": np.array([self.strength_of(state)]),
        }
        if not self.strength_of(state):
            return {**client, "adapted": np.zeros(1)}
        if self.online:
            return {**client, **stream.empty_stream(classes, self._half_lives).state()}
        batch = {"counts": np.zeros(classes), "predicted": np.zeros(classes), "u": np.zeros((0, classes))}
        return {**client, **batch}

    @property
    def keeps_bias(self) -> bool:  # type: ignore[override]
        return self.calibration != "bias"

    @property
    def reads_inputs(self) -> bool:  # type: ignore[override]
        return self.guard

    @property
    def has_bounded_sums(self) -> bool:  # type: ignore[override]
        only_prior = not (self.is_learned or self.guard) and self.calibration == "none"
        return only_prior and self.pseudo_counts != "fitted"  # label counts, which sum to m

    def update(self, state: State, client: State, outputs: Outputs) -> State:
        """Return the client's state after further inputs.

        The state contains the number `n` of inputs, the expected `counts` of independent inputs by class, and the sums
        `predicted` under the base prior. It also contains `log_w`, `prior`, `weight`, `strength` and `u`. Online,
        `stream_...` replaces `counts`, `predicted` and `u`. With the safeguard, the state also contains the decision
        `adapted` and the client's inputs. If not online, it contains `repaired`, `signal`, `distance`, `drift`,
        `total_drift`, and the `scale` and `shift` of the correction.
        """
        return self.update_many(state, [client], [outputs])[0]

    def update_many(self, state: State, clients: Sequence[State], outputs: Sequence[Outputs]) -> list[State]:
        """Return the states of many clients after further inputs, with the same bits as `update`."""
        if not self.strength_of(state):
            return [self._count_inputs(c, client_outputs) for c, client_outputs in zip(clients, outputs, strict=True)]
        if self.online:
            return [self._follow(state, c, seen)[1] for c, seen in zip(clients, outputs, strict=True)]
        guarded = [self._is_guarded(state, client_outputs) for client_outputs in outputs]
        which = [[i for i, is_guarded in enumerate(guarded) if is_guarded is expected] for expected in (False, True)]
        us = [_append_scores(clients[i], scores(state, outputs[i])) for i in which[0]]
        bare = [self._client(state, u, inferred) for u, inferred in zip(us, self._infer(state, us), strict=True)]
        decided = self._decide(state, [outputs[i].after(clients[i]) for i in which[1]])
        states = dict(zip(which[0] + which[1], bare + decided, strict=True))
        return [states[i] for i in range(len(outputs))]

    def predict(self, state: State, client: State, outputs: Outputs) -> Floats:
        if "repaired" in client and client["repaired"][0]:
            if outputs.inputs is None or outputs.again is None:
                raise ConfigError(
                    "The client has an intensity correction, so predictions require its inputs and the model."
                )
            repair = Intensity(client["scale"], client["shift"])
            outputs = outputs.again(repair.of(outputs.inputs))
        if "adapted" in client and not client["adapted"][0]:
            return log_softmax(calibrated_logits(state, outputs))
        model = corrected_logits if self.strength_of(state) else calibrated_logits
        return log_softmax(model(state, outputs) + self._offsets(state, client))

    def predict_online(self, state: State, client: State, outputs: Outputs) -> tuple[Floats, State]:
        """Return (m, c) log-probabilities, each predicted before the rule learns from the input, and the new state.

        For input j, the rule uses the prior and the weight of `inference.follow_stream` after the earlier inputs, with
        and without `online`. The safeguard decides after 1, 2, 4, ... 128, 256, 384 ... inputs from the last 256
        inputs. It does not correct the intensity.
        """
        if not self.strength_of(state):
            return log_softmax(calibrated_logits(state, outputs)), self._count_inputs(client, outputs)
        log_p, followed = self._follow(state, client, outputs)
        if self.online:
            return log_p, followed
        stream_state = {name: value for name, value in followed.items() if name.startswith("stream_")}
        return log_p, {**self.update(state, client, outputs), **stream_state}  # later inputs continue from these

    def with_prior(self, state: State, prior: Floats) -> State:
        overrides = {"prior": prior, "weight": np.ones(1), "strength": np.ones(1), "adapted": np.ones(1)}
        return {**self.start(state), **overrides}

    def strength_of(self, state: State) -> float:
        """Return s; 1 if the state does not contain a decision of participants."""
        if self.strength != "fitted":
            return float(self.strength)
        return float(state["strength"][0]) if "strength" in state else 1.0

    def _correlation(self, state: State) -> float:
        if self.correlation != "fitted":
            return float(self.correlation)
        return float(state["correlation"][0]) if "correlation" in state else 0.0

    def _offsets(self, state: State, client: State) -> Floats:
        """Return (c,) s (log(w pi + (1 - w) base) - log base)."""
        mixed = blend_priors(client["prior"], client["weight"], state["base"])
        return np.asarray(client["strength"] * (np.log(mixed) - np.log(state["base"])))

    def _infer(self, state: State, us: Sequence[Floats]) -> list[ClientPrior]:
        spread = float(state["pseudo_counts"][0])
        return infer_priors(us, state["base"], spread, self._correlation(state), self.amplification)

    @property
    def _half_lives(self) -> Sequence[float]:
        if self.half_life == "fitted":
            return stream.HALF_LIVES
        return (math.inf if self.half_life == "never" else self.half_life,)

    def _is_guarded(self, state: State, outputs: Outputs) -> bool:
        return self.guard and outputs.features is not None and "guard_residual" in state

    def _choose(self, state: State, guard: Guard, client_outputs: Sequence[Outputs]) -> list[GuardedOutputs]:
        """Return the outputs that each client uses under the safeguard, given all its inputs."""

        def priors_of(batch: Sequence[Outputs]) -> Floats:
            us = [scores(state, outputs) for outputs in batch]
            return np.stack([inferred.prior for inferred in self._infer(state, us)])

        def classes_of(outputs: Outputs, prior: Floats) -> Floats:
            return np.exp(log_softmax(scores(state, outputs) + np.log(np.maximum(prior, TINY))))

        return guard.choose(state, client_outputs, state["base"], priors_of, classes_of)

    def _decide(self, state: State, client_outputs: Sequence[Outputs]) -> list[State]:
        """Return the states of clients under the safeguard, given all inputs of each."""
        guard = Guard(k=self.k, repair=self.repairs)
        ordered = [o.at(input_order(o.logits, o.features, o.inputs)) for o in client_outputs]
        chosen = self._choose(state, guard, ordered)
        us = [scores(state, choice.outputs) for choice in chosen]
        client_states: list[State] = []
        for choice, u, inferred, all_inputs in zip(chosen, us, self._infer(state, us), ordered, strict=True):
            client_state = self._client(state, u, inferred)
            numbers = {
                "adapted": guard.adapts(choice, float(client_state["weight"][0])),
                "repaired": choice.repaired,
                "signal": choice.signal,
                "distance": choice.distance,
                "drift": choice.residue.drift,
                "total_drift": choice.total_drift,
            }
            decided = {name: np.array([float(value)]) for name, value in numbers.items()} | choice.intensity._asdict()
            client_states.append({**client_state, **decided, **all_inputs.arrays()})
        return client_states

    def _client(self, state: State, u: Floats, inferred: ClientPrior) -> State:
        """Return the state of a client with (n, c) scores u, given its inferred prior."""
        u = u[input_order(u)]
        return {
            **self.start(state),
            "n": np.array([float(len(u))]),
            "counts": inferred.counts,
            "predicted": _class_probabilities(u, state["base"]).sum(axis=0),
            "log_w": np.array([inferred.log_evidence]),
            "prior": inferred.prior,
            "weight": weights(np.array([inferred.log_evidence]), self.odds),
            "u": u,
        }

    def _count_inputs(self, client: State, outputs: Outputs) -> State:
        """Return the client's state if adaptation is off, with the new number of inputs."""
        return {**client, "n": client["n"] + len(outputs.logits)}

    def _follow(self, state: State, client: State, outputs: Outputs) -> tuple[Floats, State]:
        """Return log-probabilities, each predicted before the rule learns from the input, and the client's state."""
        base, strength = state["base"], self.strength_of(state)
        before = stream.Stream.of(client, self._half_lives)
        u, correlation = scores(state, outputs), self._correlation(state)
        pseudo_counts = float(state["pseudo_counts"][0])
        followed, after = stream.follow_stream(
            before, u, base, pseudo_counts, self._half_lives, self.odds, correlation, self.amplification
        )
        mixed = blend_priors(followed.prior[:-1], followed.weight[:-1, None], base)
        adapted = corrected_logits(state, outputs) + strength * (np.log(mixed) - np.log(base))
        client_state: dict[str, Floats] = {
            "n": np.array([after.n]),
            "log_w": followed.log_w[-1:],
            "prior": followed.prior[-1],
            "weight": followed.weight[-1:],
            "strength": np.array([strength]),
            **after.state(),
        }
        if not self._is_guarded(state, outputs):
            return log_softmax(adapted), client_state
        adapts, window_state = self._adapts(state, client, outputs, followed.weight)
        adapted_now = adapts[-1:].astype(np.float64)
        client_state |= {"adapted": adapted_now, "stream_adapted": adapted_now, **window_state}
        return log_softmax(np.where(adapts[:-1, None], adapted, calibrated_logits(state, outputs))), client_state

    def _adapts(self, state: State, client: State, outputs: Outputs, weight: Floats) -> tuple[Bools, State]:
        """Return (m + 1,) whether a client adapts before each further input and after the last, and the new window."""
        goes_on, m = "stream_n" in client, len(outputs.logits)
        first = int(client["stream_n" if goes_on else "n"][0])
        all_outputs = replace(outputs, inputs=None).after(client, "stream_" if goes_on else "")
        decision_counts = stream.decision_times(first + 1, first + m)
        if not goes_on and first:
            decision_counts = [first, *decision_counts]  # a batch decides with repairs, a stream without
        windows = [stream.window(all_outputs, len(all_outputs.logits) - m + n - first) for n in decision_counts]
        guard = Guard(k=self.k, repair=False)
        chosen = self._choose(state, guard, windows)
        decided = zip(decision_counts, chosen, strict=True)
        decisions = {n: guard.adapts(choice, float(weight[n - first])) for n, choice in decided}
        adapts = [bool(client.get("stream_adapted", np.ones(1))[0])]
        for n in range(first, first + m + 1):
            adapts.append(decisions.get(n, adapts[-1]))
        last = stream.window(all_outputs)
        return np.array(adapts[1:]), last.arrays("stream_")


def scores(state: State, outputs: Outputs) -> Floats:
    """Return (m, c) u = a z + b - log base, the log likelihoods of the classes, up to a constant per row."""
    return corrected_logits(state, outputs) - np.log(state["base"])


def corrected_logits(state: State, outputs: Outputs) -> Floats:
    """Return (m, c) a z + b, plus the offsets of a client with labels, see `few_labels.FewShot`."""
    z = calibration.center_logits(outputs.logits)
    z *= state["a"]
    z += state["b"] + state.get("label_offsets", 0.0)
    return z


def calibrated_logits(state: State, outputs: Outputs) -> Floats:
    """Return (m, c) t z, plus the offsets of a client with labels; then a z + b if participants found that b helps."""
    if "label_bias" in state and "label_offsets" in state and state["label_bias"][0]:
        return corrected_logits(state, outputs)
    z = calibration.center_logits(outputs.logits)
    z *= state.get("inverse_temperature", state["a"])
    z += state.get("label_offsets", 0.0)
    return z


def _class_probabilities(u: Floats, prior: Floats) -> Floats:
    """Return (n, c) probabilities of the classes under a prior."""
    return np.exp(log_softmax(u + np.log(prior)))


def _append_scores(client: State, u: Floats) -> Floats:
    return np.concatenate([client["u"], u]) if len(client.get("u", ())) else u


class OnLabelShift(Adaptation):
    """Base class of rules that fit and predict as `LabelShift`; implement `rule` and the methods that differ."""

    @property
    @abstractmethod
    def rule(self) -> LabelShift:
        """Rule that all inherited methods use."""

    @property
    def keeps_bias(self) -> bool:  # type: ignore[override]
        return self.rule.keeps_bias

    @property
    def has_bounded_sums(self) -> bool:  # type: ignore[override]
        return self.rule.has_bounded_sums

    def query(self, state: State) -> State | None:
        return self.rule.query(state)

    def contribute(self, query: State, outputs: Outputs, labels: Ints, counts: Floats) -> State:
        return self.rule.contribute(query, outputs, labels, counts)

    def fold(self, state: State, sums: State) -> State:
        return self.rule.fold(state, sums)

    def start(self, state: State) -> State:
        return self.rule.start(state)

    def predict(self, state: State, client: State, outputs: Outputs) -> Floats:
        return self.rule.predict(state, client, outputs)
