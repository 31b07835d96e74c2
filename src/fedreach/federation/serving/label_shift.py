"""Serve a client by its own class shares, estimated from its inputs without labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedreach.arrays import Floats, Ints
from fedreach.errors import ConfigError, require
from fedreach.federation.serving import calibration, drift, evidence, possible, priors
from fedreach.federation.serving.guard import Guard
from fedreach.federation.serving.repair import Intensity
from fedreach.federation.serving.softmax import log_softmax
from fedreach.federation.values import NO_STATE, Outputs, State

TINY = float(np.finfo(np.float64).tiny)
"""The smallest class share that is told from 0, so that its logarithm is a number."""


FITTED = ("base", "shares", "pseudo_counts")
"""What a state holds beside the search for a and b, and the guard's."""


@dataclass(frozen=True)
class LabelShift:
    """Estimate a client's class prior from its own inputs, and predict with that in place of the participants' prior.

    z are the model's logits. Participants fit a, b (calibration), base (their class shares) and A (how far the class
    shares of clients lie apart). A client with inputs x_1 ... x_n then goes by u = a z + b - log base, the logarithms
    of likelihood ratios:

        pi = mode of the posterior of its class shares under a Dirichlet prior A base (`priors.map_em`)
        W = evidence that its class shares are not base (`evidence.course`),  w = 1/(1 + odds/W)
        log p(y|x) = u + log(w pi + (1 - w) base) + constant

    The order of the inputs matters for W, and for nothing else. Without any input this is the calibrated model,
    softmax(a z + b).

    Inputs that look different (darker, blurred, from another scanner) mislead the estimate. So a guard repairs their
    intensity and then weighs the signal of label shift against the drift of features, see `guard.Guard`: a client
    adapts, or abstains and goes by the raw logits. It needs features and inputs; with logits alone it is off. A client
    that may still see inputs keeps those that it has seen, as the guard decides on all of them anew.

    When: clients hold other class shares than the participants, which is the usual case. Begin here.

    Args:
        odds: Of no shift against a shift, before any input is seen, not negative; 0 always adapts.
        pseudo_counts: A, at least 1e-6, or ``"fitted"``: by the largest likelihood of the participants' training
            labels.
        calibration: ``"bias"`` fits a and b, ``"temperature"`` a only, ``"none"`` neither. With more than 100 classes b
            is not fitted by the likelihood, but such that the mean prediction is near base, see `calibration.matched`.
        online: Whether pi is the prequential prior of `evidence.course`: then a client keeps O(c) numbers and not its
            u. Without a guard only.
        half_life: Inputs after which one counts half in the prequential prior of `evidence.course`, by which inputs are
            predicted one by one (`predict_online`, and all with `online`) and W judges. For clients whose class shares
            drift. Positive; infinite: nothing is forgotten.
        guard: Whether the guard is on.
        k: How many times the drift the signal must be, where inputs lie as usual in the span of the classes; see
            `guard.Guard`.

    Raises:
        ConfigError: If an option is outside its range.

    Reference: Saerens, Latinne and Decaestecker, Neural Computation 14 (2002) for the prior; Alexandari, Kundaje and
    Shrikumar, ICML 2020 for the calibration. The penalties, the fitted A and the weight w are ours.

    Example:
        >>> source = {"a": np.array([1.0]), "b": np.zeros(2), "base": np.full(2, 0.5), "pseudo_counts": np.array([1.0])}
        >>> rule, inputs = LabelShift(), Outputs(np.array([[2.0, 0.0]] * 20))
        >>> client = rule.update(source, rule.start(source), inputs)
        >>> client["prior"].round(3), client["weight"].round(3)
        (array([0.973, 0.027]), array([0.999]))
        >>> np.exp(rule.predict(source, client, Outputs(np.zeros((1, 2))))).round(3)
        array([[0.972, 0.028]])
    """

    odds: float = 9.0
    pseudo_counts: Literal["fitted"] | float = "fitted"
    calibration: Literal["bias", "temperature", "none"] = "bias"
    online: bool = False
    half_life: float = math.inf
    guard: bool = True
    k: float = 0.15

    def __post_init__(self) -> None:
        if self.online and self.guard:
            raise ConfigError("LabelShift.online goes without a guard, which looks at all inputs. Set guard = False.")
        require(self, k="[0, inf)", half_life="(0, inf]")
        if self.pseudo_counts == "fitted":
            require(self, odds="[0, inf)", calibration=("bias", "temperature", "none"))
        else:
            require(
                self,
                odds="[0, inf)",
                calibration=("bias", "temperature", "none"),
                pseudo_counts="[1e-6, inf): Or 'fitted'.",
            )

    def query(self, state: State) -> State | None:
        """Return nothing but the question at first, then `shares` and `candidate`, where these are to be judged.

        With `matches`, of the candidate only the mean prediction is asked for.
        """
        if not state:
            return NO_STATE
        asked = {name: state[name] for name in ("shares", "candidate", "matches") if name in state}
        return (asked if "guard_residual" in state else asked | dict(drift.second_query(state))) or None

    def contribute(self, query: State, outputs: Outputs, labels: Ints, counts: Floats) -> State:
        """Return label counts at first; the log likelihoods of each A; what Newton's method needs at the candidate."""
        classes, trained = outputs.logits.shape[1], np.maximum(counts, 0).astype(np.float64)  # noise may make some < 0
        answer: dict[str, Floats] = {}
        if not query:
            answer["held_out"] = np.bincount(labels, minlength=classes).astype(np.float64)
            if self.pseudo_counts == "fitted":
                answer["trained"] = trained
        if self.guard:
            guarded = drift.second_sums(drift.second_query(query), outputs, labels)
            answer.update(guarded if query else drift.first_sums(outputs, labels, classes))
        if "shares" in query:
            answer["spread"] = priors.spread_likelihoods(trained, query["shares"])
        if self.calibration != "none" and (not query or "candidate" in query):
            point = (query or calibration.begin(classes))["candidate"]
            z = calibration.centred(outputs.logits)
            if "matches" in query:
                answer["predicted"] = calibration.predicted(z, point)
            else:
                bias = self.calibration == "bias" and not self._matches(classes)
                answer.update(calibration.likelihood(z, labels, point, bias=bias))
        return answer

    def possible(self, query: State, sums: State, held_out: int, trained: int) -> bool:
        return possible.are_sums(sums, held_out, trained)

    def fold(self, state: State, sums: State) -> State:
        """Return `base`, `pseudo_counts`, `a` and `b` as far as they are known, and what the next query needs."""
        new = dict(state) or self._begun(sums)
        if "guard_residual" in sums:
            new = {
                name: value.astype(np.float32) if name.startswith("guard_") else value
                for name, value in drift.second_fit(new, sums).items()
            }
        if "spread" in sums:
            del new["shares"]
            new["pseudo_counts"] = np.array([priors.fitted_spread(sums["spread"])])
        if "candidate" in new:
            search = self._searched(new, sums)
            found = {"a": search["point"][:1], "b": search["point"][1:]} if calibration.is_settled(search) else search
            kept = {name: value for name, value in new.items() if name in FITTED or name.startswith("guard_")}
            new = kept | dict(found)
        return new

    def _matches(self, classes: int) -> bool:
        return self.calibration == "bias" and classes > calibration.MOST_BY_NEWTON

    def _searched(self, search: State, sums: State) -> State:
        if "predicted" in sums:
            return calibration.matched(search, sums["predicted"], search["base"])
        after = calibration.advance(search, sums)
        if calibration.is_settled(after) and self._matches(len(search["base"])):
            return calibration.begin_matching(after["point"])
        return after

    def _begun(self, sums: State) -> dict[str, Floats]:
        """Return what the sums of the first exchange say, before the candidate that came with it is looked at."""
        classes = len(sums["held_out"])
        new = {"base": priors.source_prior(sums["held_out"])}
        if "guard_features" in sums:
            new |= dict(drift.first_fit(sums))
        if self.pseudo_counts == "fitted":
            new["shares"] = priors.training_shares(sums["trained"])
        else:
            new["pseudo_counts"] = np.array([float(self.pseudo_counts)])
        if self.calibration == "none":
            return new | {"a": np.ones(1), "b": np.zeros(classes)}
        return new | dict(calibration.begin(classes))

    def start(self, state: State) -> State:
        return self._client(state, np.zeros(1), np.zeros(len(state["base"])), np.zeros((0, len(state["base"]))))

    @property
    def keeps_bias(self) -> bool:
        return self.calibration != "bias"

    @property
    def reads_inputs(self) -> bool:
        return self.guard

    def update(self, state: State, client: State, outputs: Outputs) -> State:
        """Return what a client keeps: `log_w`, `counts`, `n`, `prior` and its `weight`; `u` unless online.

        Under the guard, too, what it decided: `adapted` and `repaired`, 0 or 1, `signal`, `distance`, `drift`,
        `total_drift`, the repair's `scale` and `shift`; and what it saw.
        """
        return self.update_many(state, [client], [outputs])[0]

    def update_many(self, state: State, clients: Sequence[State], outputs: Sequence[Outputs]) -> list[State]:
        """Return what `update` returns for each client, many at a time."""
        guarded = [self._guarded(state, one) for one in outputs]
        which = [[i for i, one in enumerate(guarded) if one is wanted] for wanted in (False, True)]
        bare = self._learnt(state, [clients[i] for i in which[0]], [outputs[i] for i in which[0]])
        decided = self._decided(state, [_all_seen(clients[i], outputs[i]) for i in which[1]])
        found = dict(zip(which[0] + which[1], bare + decided, strict=True))
        return [found[i] for i in range(len(outputs))]

    def _guarded(self, state: State, outputs: Outputs) -> bool:
        return self.guard and outputs.features is not None and "guard_residual" in state

    def _decided(self, state: State, seen: Sequence[Outputs]) -> list[State]:
        """Return what clients keep under the guard, given all that each has seen."""
        base, spread, guard = state["base"], float(state["pseudo_counts"][0]), Guard(k=self.k)

        def priors_of(asked: Sequence[Outputs]) -> Floats:
            return priors.map_em_many([scores(state, one) for one in asked], base, spread)

        def classes_of(one: Outputs, prior: Floats) -> Floats:
            return np.exp(log_softmax(scores(state, one) + np.log(np.maximum(prior, TINY))))

        chosen = guard.choose(state, seen, base, priors_of, classes_of)
        begun = [self.start(state)] * len(chosen)
        learnt = self._learnt(state, begun, [one.outputs for one in chosen], [one.prior for one in chosen])
        found: list[State] = []
        for one, own, all_inputs in zip(chosen, learnt, seen, strict=True):
            numbers = {
                "adapted": guard.adapts(one, float(own["weight"][0])),
                "repaired": one.repaired,
                "signal": one.signal,
                "distance": one.distance,
                "drift": one.residue.drift,
                "total_drift": one.total_drift,
                "scale": one.intensity.scale,
                "shift": one.intensity.shift,
            }
            decided = {name: np.array([float(value)]) for name, value in numbers.items()}
            found.append({**own, **decided, **_kept(all_inputs)})
        return found

    def _learnt(
        self,
        state: State,
        clients: Sequence[State],
        outputs: Sequence[Outputs],
        known: Sequence[Floats] | None = None,
    ) -> list[State]:
        """Return what clients keep without the guard; their priors are worked out unless they are known."""
        if not clients:
            return []
        base, spread = state["base"], float(state["pseudo_counts"][0])
        us = [scores(state, one) for one in outputs]
        before = np.concatenate([client["log_w"] for client in clients])
        counted = np.stack([client["counts"] for client in clients])
        log_w, counts = evidence.prequential_many(us, base, spread, before, counted, self.half_life)
        found: Sequence[Floats] | Floats
        if known is not None:
            found = known
        elif self.online:
            found = evidence.prequential_prior(counts, base, spread)
        else:
            found = priors.map_em_many([_joined(c, u) for c, u in zip(clients, us, strict=True)], base, spread)
        each = zip(log_w[:, None], counts, us, clients, found, strict=True)
        return [self._client(state, log, count, u, client, prior) for log, count, u, client, prior in each]

    def predict(self, state: State, client: State, outputs: Outputs) -> Floats:
        if "repaired" in client and client["repaired"][0]:
            if outputs.inputs is None or outputs.again is None:
                raise ConfigError("The client's inputs were repaired: predicting needs inputs, and the model again.")
            repair = Intensity(float(client["scale"][0]), float(client["shift"][0]))
            outputs = outputs.again(repair.of(outputs.inputs))
        if "adapted" in client and not client["adapted"][0]:
            return log_softmax(outputs.logits)
        return log_softmax(scores(state, outputs) + log_served(client["prior"], client["weight"], state["base"]))

    def predict_online(self, state: State, client: State, outputs: Outputs) -> tuple[Floats, State]:
        """Return (m, c) log-probabilities, each input predicted before it is learnt from, and the client after all.

        Input j goes by the prequential prior pi^(j-1), with its `half_life`, and the weight from W_(j-1), whether
        `online` or not. No guard: it decides on all inputs together.
        """
        u, base, spread = scores(state, outputs), state["base"], float(state["pseudo_counts"][0])
        known = evidence.course(u, base, spread, float(client["log_w"][0]), client["counts"], self.half_life)
        before = evidence.prequential_prior(known.counts[:-1], base, spread)
        weights = np.array([evidence.weight(log_w, self.odds) for log_w in known.log_w[:-1]])
        predicted = log_softmax(u + log_served(before, weights[:, None], base))
        after = self._client(state, known.log_w[-1:], known.counts[-1], u, client)
        return predicted, {**after, **_kept(_all_seen(client, outputs))} if self._guarded(state, outputs) else after

    def with_prior(self, state: State, prior: Floats) -> State:
        return {**self.start(state), "prior": prior, "weight": np.ones(1)}

    def _client(
        self,
        state: State,
        log_w: Floats,
        counts: Floats,
        u: Floats,
        before: State = NO_STATE,
        prior: Floats | None = None,
    ) -> State:
        """Return what a client keeps, given its evidence and its new u; the prior is worked out unless it is given."""
        n = before.get("n", np.zeros(1)) + len(u)
        kept = {} if self.online else {"u": _joined(before, u)}
        if prior is None:
            base, spread = state["base"], float(state["pseudo_counts"][0])
            if self.online:
                prior = evidence.prequential_prior(counts, base, spread)
            else:
                prior = priors.map_em(kept["u"], base, spread)
        weight = np.array([evidence.weight(float(log_w[0]), self.odds)])
        return {"log_w": log_w, "counts": counts, "n": n, "prior": prior, "weight": weight, **kept}


def scores(state: State, outputs: Outputs) -> Floats:
    """Return (m, c) u = a z + b - log base, each row up to a constant the log likelihood of every class."""
    z = calibration.centred(outputs.logits)
    z *= state["a"]
    z += state["b"] - np.log(state["base"])
    return z


def _all_seen(client: State, outputs: Outputs) -> Outputs:
    """Return what the model says of all inputs, those that the client has kept first."""
    if "logits" not in client:
        return outputs
    features, inputs = outputs.features, outputs.inputs
    return replace(
        outputs,
        logits=np.concatenate([client["logits"], outputs.logits]),
        features=None if features is None else np.concatenate([client["features"], features]),
        inputs=None if inputs is None else np.concatenate([client["inputs"], inputs]),
    )


def _kept(seen: Outputs) -> State:
    """Return what the guard needs again once a client sees further inputs."""
    kept = {"logits": seen.logits, "features": seen.features, "inputs": seen.inputs}
    return {name: value for name, value in kept.items() if value is not None}


def log_served(prior: Floats, weight: Floats, base: Floats) -> Floats:
    """Return log(w pi + (1 - w) base)."""
    return np.log(np.maximum(weight * prior + (1 - weight) * base, TINY))


def _joined(client: State, u: Floats) -> Floats:
    return np.concatenate([client["u"], u]) if len(client.get("u", ())) else u
