"""Adapters: a model with its adaptation rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, cast

import numpy as np
from numpy.typing import ArrayLike

from fedreach._util import registry
from fedreach._util.arrays import Float32s, Floats, Ints
from fedreach._util.errors import ConfigError, RunFolderError
from fedreach.experiment.components import make
from fedreach.experiment.schema import Choice
from fedreach.federation.adaptation import trust
from fedreach.federation.base import Serving
from fedreach.federation.traits import Traits
from fedreach.federation.types import Outputs, State
from fedreach.runs.folder import SERVING, RunFolder
from fedreach.runs.identity import run_of
from fedreach.runs.schema import RunRecord, ServingRecord

if TYPE_CHECKING:
    from fedreach.federation.base import LearnsMoreLabels, ServesOnline


# --- One client's own use of a deployed model: an estimator in the manner of scikit-learn, which needs numpy alone


class Adapter:
    """One client's own use of a model, by a fitted rule and the client's inputs, which have no labels.

    Whoever holds the model computes its logits; nothing here needs torch. `fit` begins anew with a client's inputs,
    `partial_fit` goes on with further ones. With logits alone a rule's guard against changed inputs is off, which
    `guarded_` says; with `features` (of the layer before the last), `inputs` and `model` it is on.

    Args:
        rule: The rule.
        state: As it was fitted on the participants.
        model: Returns (logits, features) for inputs, (m, ...): where a rule repairs inputs, it asks again.

    Attributes:
        prior_: (c,) estimated class shares of the client, where the rule estimates them.
        decision_: What was decided about inputs: ``"adapted"``, ``"abstained"``, ``"repaired, adapted"`` ..., after
            ``"labels, "`` where the client knows some.
        guarded_: Whether a guard was at work.
        n_inputs_: How many inputs were seen without a label.
        n_labels_: How many labeled examples were seen.

    Example:
        >>> from fedreach.federation.adaptation.label_shift import LabelShift
        >>> state = {"a": np.ones(1), "b": np.zeros(2), "base": np.full(2, 0.5), "pseudo_counts": np.ones(1)}
        >>> adapter = Adapter(LabelShift(), state).fit(np.array([[2.0, 0.0]] * 20))
        >>> adapter.prior_.round(3), adapter.predict(np.array([[0.0, 0.1]])), adapter.decision_
        (array([0.973, 0.027]), array([0]), 'adapted')
    """

    def __init__(
        self,
        rule: Serving,
        state: State,
        model: Callable[[Float32s], tuple[ArrayLike, ArrayLike | None]] | None = None,
    ) -> None:
        self.rule, self.state, self.model = rule, state, model

    def _begin(self) -> None:
        self.client_: State = self.rule.start(self.state)
        self.n_inputs_, self.n_labels_, self.guarded_, self._with_features = 0, 0, True, False

    def fit(
        self,
        logits: ArrayLike,
        features: ArrayLike | None = None,
        inputs: ArrayLike | None = None,
        labels: ArrayLike | None = None,
    ) -> Self:
        """Begin with a client's inputs, as the model sees them.

        Args:
            logits: (m, c), m at least 1.
            features: (m, h) of the layer before the last.
            inputs: (m, ...) as the model gets them.
            labels: (m,) numbers of the classes, -1 where a label is not known; for a rule that learns from labels, such
                as `few_shot`.
        """
        outputs, label_numbers = self._outputs(logits, features, inputs), self._check_labels(labels, logits)
        self._begin()
        return self._learn(outputs, label_numbers)

    def partial_fit(
        self,
        logits: ArrayLike,
        features: ArrayLike | None = None,
        inputs: ArrayLike | None = None,
        labels: ArrayLike | None = None,
    ) -> Self:
        """Go on with more of the client's inputs, or with labels that have arrived; arguments as those of `fit`.

        An input that was seen before without its label counts once, as a labeled example.
        """
        if not hasattr(self, "client_"):
            return self.fit(logits, features, inputs, labels)
        return self._learn(self._outputs(logits, features, inputs), self._check_labels(labels, logits))

    def _check_labels(self, labels: ArrayLike | None, logits: ArrayLike) -> Ints | None:
        """Return (m,) labels, or refuse what are none."""
        if labels is None:
            return None
        if not hasattr(self.rule, "learn_labels"):
            name = type(self.rule).__name__
            raise ConfigError(f"Adapter.fit: labels must be None, as {name} learns from inputs alone; use 'few_shot'.")
        label_numbers, z = np.asarray(labels), np.asarray(logits)
        is_whole = label_numbers.dtype.kind in "iu" and label_numbers.shape == z.shape[:1]
        if not is_whole or (label_numbers < -1).any() or (label_numbers >= z.shape[1]).any():
            raise ConfigError(
                f"Adapter.fit: labels must be ({len(z)},) whole numbers from 0 to {z.shape[1] - 1}, or -1 where a "
                f"label is not known; got {label_numbers.dtype} of shape {label_numbers.shape}."
            )
        return label_numbers.astype(np.int64)

    def predict_online(
        self, logits: ArrayLike, features: ArrayLike | None = None, inputs: ArrayLike | None = None
    ) -> Floats:
        """Return the (m, c) probabilities of the classes of a stream's next inputs, each before it is learned from.

        For inputs that come in an order that means something: sorted by class, in bursts, at other times of day. The
        rule must know how (`label_shift` does); arguments as those of `fit`.
        """
        if not hasattr(self.rule, "predict_online"):
            name = type(self.rule).__name__
            raise ConfigError(f"Adapter.predict_online: {name} knows no order of inputs; use 'label_shift'.")
        outputs = self._outputs(logits, features, inputs)
        if not hasattr(self, "client_"):
            self._begin()
        self._check_features(outputs)
        log_p, self.client_ = cast("ServesOnline", self.rule).predict_online(self.state, self.client_, outputs)
        self._count(outputs)
        probabilities: Floats = np.exp(log_p)
        return probabilities

    def _check_features(self, outputs: Outputs) -> None:
        if self.n_inputs_ + self.n_labels_ and (outputs.features is None) == self._with_features:
            how_given = "without features" if self._with_features else "with features"
            raise ConfigError(
                "Adapter.partial_fit must be given features as fit was, as a guard looks at all inputs together; "
                f"these came {how_given}. Call fit anew."
            )
        self._with_features = outputs.features is not None

    def _count(self, outputs: Outputs) -> None:
        # A rule that says how many inputs count knows of those whose label came later.
        self.n_inputs_ = int(self.client_["n"].item()) if "n" in self.client_ else self.n_inputs_ + len(outputs.logits)
        self.guarded_ = self.guarded_ and "adapted" in self.client_

    def _learn(self, outputs: Outputs, labels: Ints | None = None) -> Self:
        self._check_features(outputs)
        if labels is not None:
            labeled, unlabeled = np.flatnonzero(labels >= 0), np.flatnonzero(labels < 0)
            rule = cast("LearnsMoreLabels", self.rule)
            self.client_ = rule.learn_labels(self.state, self.client_, outputs.at(labeled), labels[labeled])
            self.n_labels_ += len(labeled)
            outputs = outputs.at(unlabeled)
        if len(outputs.logits):
            self.client_ = self.rule.update(self.state, self.client_, outputs)
        self._count(outputs)
        return self

    def predict(self, logits: ArrayLike, features: ArrayLike | None = None, inputs: ArrayLike | None = None) -> Ints:
        """Return the (m,) classes of inputs."""
        classes: Ints = self._log_p(logits, features, inputs).argmax(axis=1)
        return classes

    def predict_proba(
        self, logits: ArrayLike, features: ArrayLike | None = None, inputs: ArrayLike | None = None
    ) -> Floats:
        """Return the (m, c) probabilities of the classes."""
        probabilities: Floats = np.exp(self._log_p(logits, features, inputs))
        return probabilities

    @property
    def prior_(self) -> Floats:
        """See `Adapter`."""
        return self._estimate("prior")

    @property
    def decision_(self) -> str:
        """See `Adapter`."""
        client_state = self._require_fitted()
        adapted, repaired = client_state.get("adapted", np.ones(1)), client_state.get("repaired", np.zeros(1))
        words = ["labels"] if self.n_labels_ else []
        words += ["repaired"] if repaired.item() else []
        return ", ".join([*words, "adapted" if adapted.item() else "abstained"])

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments that it was made with."""
        return {"rule": self.rule, "state": self.state, "model": self.model}

    def set_params(self, **params: Any) -> Self:
        """Change arguments; what was fitted stays until `fit`."""
        for name, value in params.items():
            if name not in self.get_params():
                raise ConfigError(f"Adapter has no parameter {name!r}; it has {', '.join(self.get_params())}.")
            setattr(self, name, value)
        return self

    def _require_fitted(self) -> State:
        if not hasattr(self, "client_"):
            raise ConfigError(f"The adapter of {type(self.rule).__name__} has seen no inputs yet. Call fit first.")
        return self.client_

    def _estimate(self, name: str) -> Floats:
        client_state = self._require_fitted()
        if name not in client_state:
            raise ConfigError(f"{type(self.rule).__name__} estimates no {name}.")
        return client_state[name]

    def _log_p(self, logits: ArrayLike, features: ArrayLike | None, inputs: ArrayLike | None) -> Floats:
        client_state = self.client_ if hasattr(self, "client_") else self.rule.start(self.state)
        return self.rule.predict(self.state, client_state, self._outputs(logits, features, inputs))

    def _outputs(self, logits: ArrayLike, features: ArrayLike | None, inputs: ArrayLike | None) -> Outputs:
        z = np.asarray(logits, np.float64)
        classes = len(self.state["base"]) if "base" in self.state else z.shape[-1]
        if z.ndim != 2 or len(z) == 0 or z.shape[1] != classes or not np.isfinite(z).all():
            raise ConfigError(f"Adapter: logits must be finite numbers of shape (m, {classes}); got shape {z.shape}.")
        h = None if features is None else np.asarray(features, np.float64)
        x = None if inputs is None else np.asarray(inputs, np.float32)
        for what, values in (("features", h), ("inputs", x)):
            if values is not None and len(values) != len(z):
                raise ConfigError(f"Adapter: {what} must be as many as logits, {len(z)}; got {len(values)}.")
        return Outputs(z, h, x, None if self.model is None else self._rerun_model)

    def _rerun_model(self, inputs: Float32s) -> Outputs:
        assert self.model is not None  # or nobody could ask again
        logits, features = self.model(inputs)
        return self._outputs(logits, features, inputs)


# -------------------- The fitted rule that lies beside the model in the folder of a run

Which = Literal["last", "best", "refit"]
"""The last model, the best by participants' held-out data, or the one that was trained once more on all rows."""


class SavedRule(NamedTuple):
    """A rule as it was fitted at the end of a run."""

    rule: Serving
    state: State
    name: str  # of the rule in the experiment, such as "label_shift" or "my.py:Mine"
    run: RunRecord
    round: int  # of the model that it was fitted for


def read(
    folder: Path | str, which: Which = "last", *, cluster: int | None = None, base: Path | None = None
) -> SavedRule:
    """Return the rule that was fitted for a model of a finished run; arguments as those of `load`.

    Raises:
        RunFolderError: If the folder holds no fitted rule of that model.
        ConfigError: If the rule learns from labels of those that it serves.
    """
    run_folder = RunFolder(Path(folder))
    run, record, stored = run_of(run_folder), run_folder.read(ServingRecord), run_folder.read_tensors(SERVING)
    if record is None or stored is None:
        raise RunFolderError(f"{folder} holds no serving rule ({SERVING}). {_why_not_fitted(run)}")
    choice = Choice.model_validate(run.config["method"]["serving"])
    rule: Serving = make(
        "serving", choice, registry.base_of(choice.name, base or Path.cwd(), run_folder.path.resolve())
    )
    if Traits.of(rule).learns_labels and Traits.of(rule).is_reference:
        raise ConfigError(
            f"{folder}: {type(rule).__name__} learns from labels of those that it serves: a reference, which none can "
            "deploy. Export or load a method with serving 'label_shift'."
        )
    head = which if cluster is None else f"{which}/{cluster}"
    state = {key[len(head) + 1 :]: value for key, value in stored[0].items() if key.startswith(f"{head}/")}
    if not state or any("/" in key for key in state):
        raise RunFolderError(f"{folder}: {SERVING} holds no single rule {head!r}; it has {_heads(stored[0])}.")
    return SavedRule(rule, state, choice.name, run, record.rounds[which])


def load(
    folder: Path | str,
    which: Which = "last",
    *,
    cluster: int | None = None,
    base: Path | None = None,
    model: Callable[[Float32s], tuple[ArrayLike, ArrayLike | None]] | None = None,
) -> Adapter:
    """Return the adapter of a finished run.

    Args:
        folder: The run folder, which holds the fitted rule beside the model.
        which: Of the last or the best model.
        cluster: Number of the model, where the run has one a cluster.
        base: Folder that the name of a rule of one's own is relative to; default: the current one.
        model: See `Adapter`.

    Raises:
        RunFolderError: If the folder holds no fitted rule of that model.
        ConfigError: If the rule learns from labels of those that it serves.
    """
    saved = read(folder, which, cluster=cluster, base=base)
    return Adapter(saved.rule, saved.state, model)


def check_supported(saved: SavedRule) -> None:
    """Refuse a rule that participants do not support, by a ConfigError."""
    if not trust.is_supported(saved.state):
        labels = "" if Traits.of(saved.rule).learns_labels else "Where clients learn some labels, try 'few_shot'. "
        raise ConfigError(
            f"Participants of this run do not support {saved.name}: by their own labels, no gain is decided. {labels}"
            "With --force the rule is written all the same."
        )


def _why_not_fitted(run: RunRecord) -> str:
    """Return what to do about a run without a fitted rule."""
    adaptation = run.config["method"]["serving"]
    if adaptation is None or Choice.model_validate(adaptation).name == "none":
        return "The run serves clients by the model as it is. Run with method.serving, such as 'label_shift'."
    return "The run is not finished: the same command again goes on with it."


def _heads(names: Iterable[str]) -> str:
    return ", ".join(repr(head) for head in dict.fromkeys(name.rpartition("/")[0] for name in names)) or "none"
