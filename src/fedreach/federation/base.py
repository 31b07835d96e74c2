"""Base classes of the components of a federation; small, so that users can write their own.

A component is a frozen dataclass of hyper-parameters, derived from the base class of its type. What changes during a
run is its `State`, which comes in and goes out, so saving the states saves the run. No method writes into its
arguments.
"""

# mypy: disable-error-code="empty-body"
# A method without a body is optional: it is called only where a class defines it.
from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from fedreach._util.arrays import Dtype, Float32s, Floats, Ints
from fedreach._util.component import Component as Component
from fedreach._util.component import name_of as name_of
from fedreach.federation.types import NO_STATE, ClientResults, Cohort, LocalOutputs, Outputs, Probe, ServerView, State


@dataclass(frozen=True)
class OfFunction(Component):
    """Base of components that wrap a plain function, whose attributes, such as ``needs``, count."""

    function: Callable[..., Any]

    def __post_init__(self) -> None:
        self.take_attributes(self.function)

    @property
    def name(self) -> str:
        """The function's name, for messages."""
        return name_of(self.function)


class Selection(Component):
    """Selects the clients that train."""

    component_type = "selection"
    abilities: ClassVar = {"probes": ("probe",), "makes_clusters": ("clusters",)}

    probes: bool = False  # asks clients before it selects
    makes_clusters: bool = False  # gives clusters of clients a model each
    reads_length: bool = False  # depends on the length of the run
    ignores_cohort: bool = False  # may choose more than k

    def init(self, view: ServerView) -> State:
        """Return the state before round 1."""
        return NO_STATE

    def probe(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Probe | None:
        """Return the clients to ask for a loss or an update first (it costs bytes), or None."""
        return None

    @abstractmethod
    def select(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Cohort:
        """Return at most k available clients; k is never larger than the number available."""

    def observe(self, state: State, reports: ClientResults) -> State:
        """Return the state after hearing the reports of a round, or the answers to a probe for updates."""
        return state

    def clusters(self, state: State) -> Ints:
        """Return (n,) the number 0, 1, ... of each participant's model after `observe`.

        A new number's model starts as that of the cluster its members come from.
        """


class Weighting(Component):
    """Decides how much each report counts.

    With a method `raw`, each weight is a number of the client's own, divided by the sum of all: clients can then scale
    their updates themselves. With a method `mean_scale`, the weighted mean is also scaled, as the weights of some
    papers do not sum to 1.
    """

    component_type = "weighting"
    abilities: ClassVar = {"has_own_weights": ("raw",), "scales_mean": ("mean_scale",)}
    promises: ClassVar = {"has_own_weights": ("weights",), "scales_mean": ("weights",)}

    has_own_weights: bool = False
    scales_mean: bool = False

    @abstractmethod
    def weights(self, state: State, reports: ClientResults) -> tuple[Floats, State]:
        """Return (r,) weights, not negative and summing to 1, and the new state (`NO_STATE` at first)."""

    def raw(self, metrics: Mapping[str, Floats]) -> Floats:
        """Return the (r,) numbers, each from the client's own metrics only."""

    def mean_scale(self, state: State, reports: ClientResults, n: int) -> float:
        """Return what the mean update of one model is multiplied by, finite and not negative; buffers are not.

        Args:
            state: As `weights` was given it.
            reports: Of those that train this model.
            n: Participants that share it, whether they were chosen or not.
        """


class LocalSolver(Component):
    """One correction of the gradient in the local loop.

    A correction acts on each number by itself. The arguments are torch tensors of one shape, or with one more
    dimension in front for a stack of clients: all trainable parameters of a model in a row, or some of them. Written
    with +, - and * the same line works for all. None of them may be written to.

    With `affine` the correction is g + pull (w - w0) + shift, with one number `pull` and one vector `shift` a client
    that stay the same through a round; then the engine `native` trains with it, too.

    With the methods `prepare`, `remember` and `conclude` each client keeps a (p,) vector between rounds, 0
    at first. The server also keeps a `State` of the solver, empty at first.
    """

    component_type = "solver"
    abilities: ClassVar = {"is_stateful": ("prepare", "remember", "conclude")}
    promises: ClassVar = {"affine": ("correct",)}

    affine: bool = False
    is_stateful: bool = False
    sends_note: bool = False  # clients send the change of their memory as a second message, which costs bytes
    sends_state: bool = False  # the server sends the arrays of its state along with the model, which costs bytes
    memory_dtype: Dtype = "float32"  # in which clients' memories are kept

    @abstractmethod
    def correct(self, gradient: Any, params: Any, broadcast: Any) -> Any:
        """Return the gradient that the step follows, at the local `params`, given the `broadcast` ones.

        A stateful solver is also handed, by name, what its `prepare` returned.
        """

    def prepare(self, memory: Float32s, state: State, share: Floats) -> Mapping[str, Float32s]:
        """Return what `correct` is handed by name: arrays (k, p), or (k, 1) for one number per client.

        Args:
            memory: (k, p) of the clients that are about to train.
            state: The server's, of this solver.
            share: (k,) N m_i / sum_j m_j, each client's number of examples relative to the mean over participants.
        """

    def remember(self, memory: Float32s, state: State, update: Float32s, steps: Floats, lr: float) -> Float32s:
        """Return the (k, p) memory after local training, kept by those whose report counts.

        Args:
            memory: (k, p) before.
            state: The server's, as it was when the round began.
            update: (k, p) local - broadcast.
            steps: (k,) local steps that each client ran; with momentum, the sum of what each gradient moved in steps.
            lr: Step size of the round.
        """

    def conclude(self, state: State, reports: ClientResults, mean_update: Floats, n: int) -> tuple[Floats, State]:
        """Return the (p,) step that is handed to the server, and the solver's new state.

        Args:
            state: Before the round.
            reports: Of the round, with `note` where the solver sends one.
            mean_update: (p,) weighted mean update.
            n: Participants that share this model, whether they were chosen or not.
        """

    def adapted(self, params: Float32s, state: State) -> Float32s:
        """Return the (d,) model that is evaluated and handed out, given the one that is broadcast."""
        return params


class Aggregator(Component):
    """Aggregates the updates of a round into one.

    With `linear` it is sum_i w_i u_i: then secure aggregation may replace it, and engines may add up in their own way,
    to the same bits.

    With `remembers_updates` the server keeps what each client sent last, a row of p float32 numbers, r w_i u_i / lr:
    its update without buffers, weighed so that the plain mean over the r reports is the weighted one, per unit of the
    round's local learning rate. Rows are 0 at first. `update` then holds these rows, and `combine` takes two more
    arguments by
    name: `last`, (r, p) what was kept of these clients before, and `n`, the participants that share this model. It
    returns a (p,) update, which is then multiplied by the rate. Buffers take their weighted mean.
    """

    component_type = "aggregation"
    promises: ClassVar = {"linear": ("combine",), "remembers_updates": ("combine",)}

    linear: bool = False
    remembers_updates: bool = False

    @abstractmethod
    def combine(
        self, state: State, weights: Floats, update: Float32s, rng: np.random.Generator
    ) -> tuple[Floats, State]:
        """Return the (d,) float64 update, and the new state (`NO_STATE` at first).

        Args:
            state: Of this model's aggregator.
            weights: (r,) not negative, summing to 1.
            update: (r, d) local - broadcast, ids increasing.
            rng: A stream of its own for each round and model.
        """


class Loss(Component):
    """The objective that a client's model minimizes in training.

    With `cross_entropy` it is the cross-entropy of the outputs as they are, whose gradient some engines have written
    out, and with `squared_error` their mean squared error; others are trained by `sequential` and `vmap`.

    With a method `shift` it is the loss of outputs shifted by the client's label counts, in training only. With a
    method `objective` it depends on more than outputs and targets, and the engine `sequential` trains by it. What else
    asks for the loss of a model, such as probes, the row of a round and a server that trains on its own data, still
    means that of `per_example`. With a method `keep`, too, each client keeps a vector of the model's length d between
    rounds, 0 at first.
    """

    component_type = "loss"
    abilities: ClassVar = {
        "shifts_outputs": ("shift",),
        "has_objective": ("objective",),
        "remembers_clients": ("keep",),
    }
    promises: ClassVar = {
        "cross_entropy": ("per_example",),
        "squared_error": ("per_example",),
    }

    cross_entropy: bool = False
    squared_error: bool = False
    scales_targets: bool = False  # is handed targets and outputs that are numbers on the participants' scale
    shifts_outputs: bool = False
    has_objective: bool = False
    remembers_clients: bool = False

    @abstractmethod
    def per_example(self, outputs: Any, targets: Any) -> Any:
        """Return the loss of each example, a (b,) tensor that torch can differentiate.

        Args:
            outputs: (b, c) tensor, the outputs of the model; (b, t) where targets are numbers.
            targets: (b,) tensor of classes, or (b, t) of numbers.
        """

    def shift(self, counts: Ints) -> Floats:
        """Return (n, c) finite numbers, which are added to the outputs before `per_example` is given them.

        Args:
            counts: (n, c) labels of clients' training examples, or of the server's where it trains on its own. Each row
                by itself says what is added for this client.
        """

    def objective(self, step: LocalStep) -> Any:
        """Return the objective of this step's batch: a tensor of one number that torch can differentiate."""

    def keep(self, memory: Float32s, local: Float32s) -> Float32s:
        """Return the (k, d) float32 vectors that clients keep once their reports count; each from its own row.

        Args:
            memory: (k, d) what they kept before.
            local: (k, d) their models after local training.
        """


class ServerOptimizer(Component):
    """Turns the weighted mean update into new parameters.

    With a method `trains` the server trains in some rounds on data of its own instead of asking clients. With a method
    `tunes` it continues with data of its own once the clients' updates are in; `reads_updates` says that it reads the
    clients' local models for that.
    """

    component_type = "server"
    abilities: ClassVar = {"trains_server": ("trains", "learn"), "tunes_server": ("tunes", "learn")}

    trains_server: bool = False
    tunes_server: bool = False

    @abstractmethod
    def apply(self, params: Float32s, state: State, mean_update: Floats) -> tuple[Float32s, State]:
        """Return the new (d,) parameters and the new state (`NO_STATE` at first)."""

    def trains(self, rng: np.random.Generator) -> bool:
        """Return whether the server trains in this round; `rng` is a stream of its own for each round."""

    def tunes(self, round_: int, rounds: int) -> bool:
        """Return whether it does so after round `round_` of `rounds`."""

    def learn(self, params: Float32s, state: State, data: ServerOperations) -> tuple[Float32s, State]:
        """Return the (d,) model after the server's work on its own data, and the new state, which `apply` shares."""


class ServerOperations(Protocol):
    """Operations of a server on its own data in one round, for one model; it never sees a test set.

    An `index` says which of its examples, (b,) numbers below `examples`.
    """

    @property
    def examples(self) -> int:
        """Number of examples."""

    @property
    def rng(self) -> np.random.Generator:
        """The stream of the round's batches, the same for each model."""

    def split(self, held_out: float) -> tuple[Ints, Ints]:
        """Return what it trains on and what it holds out, a share of each class; the same in every round.

        Raises:
            ConfigError: If nothing would be left of either.
        """

    def step(self, params: Float32s, index: Ints, lr: float) -> Float32s:
        """Return the (d,) model after one gradient step on the task's loss, with the labels."""

    def distill(self, params: Float32s, index: Ints, teacher: Float32s, lr: float) -> Float32s:
        """Return the (d,) model after one gradient step on the mean KL(softmax(teacher) || softmax(logits)).

        The model is in evaluation mode: dropout rests, and BatchNorm uses its running statistics.

        Args:
            params: (d,) the model before.
            index: (b,) the examples; their labels are not used.
            teacher: (b, c) logits.
            lr: Step size.
        """

    def logits(self, params: Float32s, index: Ints) -> Float32s:
        """Return the (b, c) logits of the (d,) model in evaluation mode."""

    def loss(self, params: Float32s, index: Ints) -> float:
        """Return the mean cross-entropy of the (d,) model in evaluation mode, in nats."""

    def local_models(self) -> Iterator[Float32s]:
        """Yield the (d,) local models of this round's reports, ids increasing; for components with `reads_updates`."""


class Adaptation(Component):
    """What an unseen client does with the model before it predicts.

    After training, participants are asked in several exchanges what they see on their held-out examples. What they
    answer is added up over them, so that secure aggregation may do it; `fold` sees sums only. The fitted state is
    handed out with the model. A client then adapts by its own inputs, which have no labels.

    Optional methods: `with_prior` predicts as if the client's class prior were known, a reference that needs labels.
    `with_labels` learns from the first `labels` labeled examples of a client, which are never scored: a reference, too,
    unless `learn_labels` lets a deployed client learn from labels as they arrive. `predict_online` predicts each input
    before it learns from it.
    """

    component_type = "adaptation"
    abilities: ClassVar = {
        "knows_prior": ("with_prior",),
        "learns_labels": ("with_labels",),
        "learns_more_labels": ("learn_labels", "with_labels"),
        "adapts_online": ("predict_online",),
    }

    reads_inputs: bool = False  # reads features, inputs and the model, in addition to logits
    reads_oracle_prior: bool = False  # is the reference that needs the class prior, and nothing else
    needs_batchnorm: bool = False  # a model without BatchNorm after convolutions is rejected before it is trained
    needs_features: bool = False  # a model without a last linear layer is rejected before it is trained
    keeps_bias: bool = False  # takes the model's mean prediction for right, not the participants' class prior
    labels: int = 0  # number of labeled examples that `with_labels` is handed, at most
    knows_prior: bool = False
    learns_labels: bool = False
    learns_more_labels: bool = False
    adapts_online: bool = False

    @property
    def needs_labels(self) -> bool:
        """Whether it is given labels of the adapting clients in evaluation."""
        return self.reads_oracle_prior or self.learns_labels

    @property
    def is_reference(self) -> bool:
        """Whether it cannot be deployed: it needs labels that clients do not have."""
        return self.needs_labels and not self.learns_more_labels

    def query(self, state: State) -> State | None:
        """Return what participants are sent in the next exchange, by name; None once the rule is fitted.

        Args:
            state: The rule's, `NO_STATE` before the first exchange.
        """
        return None

    def contribute(self, query: State, outputs: Outputs, labels: Ints, counts: Floats) -> State:
        """Return one participant's float64 numbers by name, the same names and shapes for all: only ever added up.

        Args:
            query: What it was sent.
            outputs: Of the model on the participant's m held-out examples, m at least 1.
            labels: (m,) of these.
            counts: (c,) of the labels that it trained on, as `LabelStatistics` releases them.
        """
        return NO_STATE

    def fold(self, state: State, sums: State) -> State:
        """Return the rule's state after an exchange, given the sums over participants by name."""
        return state

    def start(self, state: State) -> State:
        """Return the client's state before its first input, given the fitted state."""
        return NO_STATE

    def update(self, state: State, client: State, outputs: Outputs) -> State:
        """Return the client's state after more of its inputs, one or many at a time."""
        return client

    @abstractmethod
    def predict(self, state: State, client: State, outputs: Outputs) -> Floats:
        """Return (m, c) log-probabilities of the classes; with what `start` returned, those of the calibrated model."""

    def update_many(self, state: State, clients: Sequence[State], outputs: Sequence[Outputs]) -> list[State]:
        """Update each of these clients, as `update` does."""
        return [self.update(state, client, rows) for client, rows in zip(clients, outputs, strict=True)]

    def predict_online(self, state: State, client: State, outputs: Outputs) -> tuple[Floats, State]:
        """Return (m, c) log-probabilities, each row by the rows before it only, and the client's new state."""

    def with_prior(self, state: State, prior: Floats) -> State:
        """Return the state of a client with this (c,) class prior, positive and summing to 1."""

    def with_labels(self, state: State, outputs: Outputs, labels: Ints) -> State:
        """Return the state of a client with labeled examples.

        Args:
            state: As the rule was fitted.
            outputs: Of the model on these m examples, m at most `labels`, and 0 of a client with a single example.
            labels: (m,) of these.
        """

    def learn_labels(self, state: State, client: State, outputs: Outputs, labels: Ints) -> State:
        """Return the client's state after further labeled examples.

        Args:
            state: As the rule was fitted.
            client: What it kept.
            outputs: Of the model on these m examples; one that the client saw without its label counts as labeled from
                now on.
            labels: (m,) of these.
        """


class Measurement(Component):
    """A number that each client computes on its own training data after local training, and sends with its report."""

    component_type = "measurement"

    wants_before: bool = False  # also sees the outputs of the broadcast model

    @property
    @abstractmethod
    def name(self) -> str:
        """Key of the number in ``ClientResults.metrics``."""

    @abstractmethod
    def measure(self, outputs: LocalOutputs, rng: np.random.Generator) -> float:
        """Return the number; `rng` is a stream of its own for each client and round."""


class LabelStatistics(Component):
    """What the server learns of clients' labels."""

    component_type = "label_statistics"

    only_sum: bool = False  # the server sees sums over clients only, as under secure aggregation

    @abstractmethod
    def release(self, counts: Ints, rng: np.random.Generator) -> Floats:
        """Return the (n, c) label counts that the server sees, given the true ones."""


# --- What a loss with a method `objective` is handed in a step of local training


class ForwardPass(Protocol):
    """Outputs and features of a model on a batch of b examples."""

    @property
    def outputs(self) -> Any:
        """(b, c) tensor."""

    def features(self, layer: str | None = None) -> Any:
        """Return (b, h) what goes into the last linear layer, or what a named layer returns, one row per example.

        Raises:
            ComponentError: If the layer does not exist, or does not return one tensor of b rows once per pass.
        """


class LocalStep(ForwardPass, Protocol):
    """One step of a client's training, as `Loss.objective` is handed it; outputs and features are of the local model.

    Models are vectors of d numbers, the p that are trained first, see `Layout`. Nothing here may
    be written to.
    """

    @property
    def module(self) -> Any:
        """The local model."""

    @property
    def x(self) -> Any:
        """(b, ...) inputs as the model gets them."""

    @property
    def y(self) -> Any:
        """(b,) classes, or (b, t) numbers as the model learns them."""

    @property
    def loss(self) -> Any:
        """Mean of `per_example` over the batch: the objective of FedAvg."""

    @property
    def broadcast(self) -> Any:
        """(d,) the global model, as it was sent."""

    @property
    def memory(self) -> Any:
        """(d,) what the client keeps, 0 before its first report counted; see `Loss.keep`."""

    @property
    def global_model(self) -> ForwardPass:
        """The pass of the global model."""

    def frozen(self, model: Any) -> ForwardPass:
        """Return the pass of any (d,) model over the batch: in evaluation mode, without gradient."""

    def gradient(self) -> Any:
        """Return the (p,) gradient of `loss`, as a constant."""

    def loss_at(self, move: Any) -> Any:
        """Return `loss` where the trained numbers are moved by (p,) `move`, with its gradient there.

        Dropout is drawn again, and running statistics stay as they are.
        """
