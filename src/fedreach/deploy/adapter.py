"""Adapters: a model with its adaptation rule."""

from __future__ import annotations

import io
import json
import pkgutil
from collections.abc import Callable
from importlib import import_module
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

import fedreach
from fedreach._util.arrays import Float32s, Floats, Ints
from fedreach._util.errors import ConfigError
from fedreach.federation.base import Adaptation
from fedreach.federation.types import Outputs, State

Values = ArrayLike | None

# -------------------- One client's use of a deployed model: an estimator like those of scikit-learn, with numpy alone


class Adapter:
    """Adaptation of a model to one client: a fitted adaptation rule, and the client's unlabeled inputs.

    The caller computes the model's logits, so this class does not need torch. `fit` starts with a client's inputs, and
    `partial_fit` adds more inputs. The safeguard against covariate shift requires `inputs`, `model` and the `features`
    of the layer before the last. With logits only, the safeguard is off, and `guarded_` is false.

    Args:
        rule: Adaptation rule.
        state: State of the rule, fitted on the participants.
        model: Function that returns (logits, features) of (m, ...) inputs. Rules with intensity correction call this
            function with corrected inputs.

    Attributes:
        prior_: (c,) label distribution of the client, if the rule estimates it.
        decision_: Decision about the inputs, such as ``"adapted"``, ``"abstained"`` or ``"repaired, adapted"``. If the
            client knows some labels, the decision starts with ``"labels, "``.
        guarded_: Whether a safeguard was active.
        n_inputs_: Number of unlabeled inputs so far.
        n_labels_: Number of labeled examples so far.

    Example:
        >>> from fedreach.federation.adaptation.label_shift import LabelShift
        >>> state = {"a": np.ones(1), "b": np.zeros(2), "base": np.full(2, 0.5), "pseudo_counts": np.ones(1)}
        >>> adapter = Adapter(LabelShift(), state).fit(np.array([[2.0, 0.0]] * 20))
        >>> adapter.prior_.round(3), adapter.predict(np.array([[0.0, 0.1]])), adapter.decision_
        (array([0.973, 0.027]), array([0]), 'adapted')
    """

    def __init__(
        self,
        rule: Adaptation,
        state: State,
        model: Callable[[Float32s], tuple[ArrayLike, ArrayLike | None]] | None = None,
    ) -> None:
        self.rule, self.state, self.model = rule, state, model

    def _begin(self) -> None:
        self.client_: State = self.rule.start(self.state)
        self.n_inputs_, self.n_labels_, self.guarded_, self._with_features = 0, 0, True, False

    def fit(self, logits: ArrayLike, features: Values = None, inputs: Values = None, labels: Values = None) -> Self:
        """Discard earlier inputs and labels, and learn from a client's inputs.

        Args:
            logits: (m, c) logits of the inputs, with m at least 1.
            features: (m, h) features of the layer before the last.
            inputs: (m, ...) inputs in the format of the model.
            labels: (m,) class numbers, or -1 for unknown labels. Only rules that learn from labels, such as `few_shot`,
                accept labels.
        """
        outputs, label_numbers = self._outputs(logits, features, inputs), self._check_labels(labels, logits)
        self._begin()
        return self._learn(outputs, label_numbers)

    def partial_fit(
        self, logits: ArrayLike, features: Values = None, inputs: Values = None, labels: Values = None
    ) -> Self:
        """Learn from more inputs of the client, or from new labels; the arguments are as in `fit`.

        If an earlier input was unlabeled and its label is now known, the input counts once, as a labeled example.
        """
        if not hasattr(self, "client_"):
            return self.fit(logits, features, inputs, labels)
        return self._learn(self._outputs(logits, features, inputs), self._check_labels(labels, logits))

    def _check_labels(self, labels: Values, logits: ArrayLike) -> Ints | None:
        """Return (m,) labels, or reject invalid ones."""
        if labels is None:
            return None
        if not self.rule.learns_more_labels:
            name = type(self.rule).__name__
            raise ConfigError(
                f"Adapter.fit: labels must be None, because {name} learns from inputs only. Use 'few_shot'."
            )
        label_numbers, z = np.asarray(labels), np.asarray(logits)
        is_whole = label_numbers.dtype.kind in "iu" and label_numbers.shape == z.shape[:1]
        if not is_whole or (label_numbers < -1).any() or (label_numbers >= z.shape[1]).any():
            raise ConfigError(
                f"Adapter.fit: labels must be ({len(z)},) whole numbers from 0 to {z.shape[1] - 1}, or -1 for an "
                f"unknown label; got {label_numbers.dtype} of shape {label_numbers.shape}."
            )
        return label_numbers.astype(np.int64)

    def predict_online(self, logits: ArrayLike, features: Values = None, inputs: Values = None) -> Floats:
        """Return the (m, c) class probabilities of a stream's next inputs; the rule learns from each input afterwards.

        Use this method if the order of the inputs is informative, for example if they are sorted by class or arrive in
        bursts. The rule must support streams, as `label_shift` does. The arguments are as in `fit`.
        """
        if not self.rule.adapts_online:
            name = type(self.rule).__name__
            raise ConfigError(f"Adapter.predict_online: {name} does not use the order of inputs. Use 'label_shift'.")
        outputs = self._outputs(logits, features, inputs)
        if not hasattr(self, "client_"):
            self._begin()
        self._check_features(outputs)
        log_p, self.client_ = self.rule.predict_online(self.state, self.client_, outputs)
        self._count(outputs)
        probabilities: Floats = np.exp(log_p)
        return probabilities

    def _check_features(self, outputs: Outputs) -> None:
        if self.n_inputs_ + self.n_labels_ and (outputs.features is None) == self._with_features:
            how_given = "without features" if self._with_features else "with features"
            raise ConfigError(
                "Adapter.partial_fit: features must be given as in fit, because the safeguard uses all inputs "
                f"together; got inputs {how_given}. Call fit again."
            )
        self._with_features = outputs.features is not None

    def _count(self, outputs: Outputs) -> None:
        # A rule that counts its inputs excludes those whose label came later.
        self.n_inputs_ = int(self.client_["n"].item()) if "n" in self.client_ else self.n_inputs_ + len(outputs.logits)
        self.guarded_ = self.guarded_ and "adapted" in self.client_

    def _learn(self, outputs: Outputs, labels: Ints | None = None) -> Self:
        self._check_features(outputs)
        if labels is not None:
            labeled, unlabeled = np.flatnonzero(labels >= 0), np.flatnonzero(labels < 0)
            rule = self.rule
            self.client_ = rule.learn_labels(self.state, self.client_, outputs.at(labeled), labels[labeled])
            self.n_labels_ += len(labeled)
            outputs = outputs.at(unlabeled)
        if len(outputs.logits):
            self.client_ = self.rule.update(self.state, self.client_, outputs)
        self._count(outputs)
        return self

    def predict(self, logits: ArrayLike, features: Values = None, inputs: Values = None) -> Ints:
        """Return the (m,) predicted classes of inputs."""
        classes: Ints = self._log_p(logits, features, inputs).argmax(axis=1)
        return classes

    def predict_proba(self, logits: ArrayLike, features: Values = None, inputs: Values = None) -> Floats:
        """Return the (m, c) class probabilities of inputs."""
        probabilities: Floats = np.exp(self._log_p(logits, features, inputs))
        return probabilities

    @property
    def prior_(self) -> Floats:
        """See `Adapter`."""
        client_state = self._require_fitted()
        if "prior" not in client_state:
            raise ConfigError(f"{type(self.rule).__name__} does not estimate a class prior.")
        return client_state["prior"]

    @property
    def decision_(self) -> str:
        """See `Adapter`."""
        client_state = self._require_fitted()
        adapted, repaired = client_state.get("adapted", np.ones(1)), client_state.get("repaired", np.zeros(1))
        words = ["labels"] if self.n_labels_ else []
        words += ["repaired"] if repaired.item() else []
        return ", ".join([*words, "adapted" if adapted.item() else "abstained"])

    def _require_fitted(self) -> State:
        if not hasattr(self, "client_"):
            raise ConfigError(f"The adapter of {type(self.rule).__name__} has no inputs yet. Call fit first.")
        return self.client_

    def _log_p(self, logits: ArrayLike, features: Values, inputs: Values) -> Floats:
        client_state = self.client_ if hasattr(self, "client_") else self.rule.start(self.state)
        return self.rule.predict(self.state, client_state, self._outputs(logits, features, inputs))

    def _outputs(self, logits: ArrayLike, features: Values, inputs: Values) -> Outputs:
        z = np.asarray(logits, np.float64)
        classes = len(self.state["base"]) if "base" in self.state else z.shape[-1]
        if z.ndim != 2 or len(z) == 0 or z.shape[1] != classes or not np.isfinite(z).all():
            raise ConfigError(f"Adapter: logits must be finite numbers of shape (m, {classes}); got shape {z.shape}.")
        h = None if features is None else np.asarray(features, np.float64)
        x = None if inputs is None else np.asarray(inputs, np.float32)
        for what, values in (("features", h), ("inputs", x)):
            if values is not None and len(values) != len(z):
                raise ConfigError(
                    f"Adapter: {what} must have one entry per row of logits, {len(z)}; got {len(values)}."
                )
        return Outputs(z, h, x, None if self.model is None else self._rerun_model)

    def _rerun_model(self, inputs: Float32s) -> Outputs:
        assert self.model is not None  # the rule has this method only with a model
        logits, features = self.model(inputs)
        return self._outputs(logits, features, inputs)


def stored(package: str) -> tuple[dict[str, Any], Adaptation | None, State]:
    """Read the origin, the rule (or None) and the rule's state from the package of an archive.

    Raises:
        ImportError: If the process has already imported another version of FedReach.
    """
    record = json.loads(pkgutil.get_data(package, "stored.json") or b"")
    if fedreach.__version__ != record["version"]:
        raise ImportError(
            f"{package}.pyz contains FedReach {record['version']}; this process has already imported FedReach "
            f"{fedreach.__version__}. Use a new process."
        )
    with np.load(io.BytesIO(pkgutil.get_data(package, "state.npz") or b"")) as arrays:
        state: State = dict(arrays)
    if record["rule"] is None:
        return record["run"], None, state
    module, name, options = record["rule"]
    kind = getattr(import_module(module), name)
    return record["run"], kind(**{option: _as_tuple(value) for option, value in options.items()}), state


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value
