"""Base classes of the components of a federation.

A component is a frozen dataclass of options, derived from the base class of its type. A component's `State` changes
during a run. Methods receive the old state and return the new state, so saving the states saves the run. No method
writes to its arguments.
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
    """Base class of components that wrap a function and use the function's attributes, such as ``needs``."""

    function: Callable[..., Any]

    def __post_init__(self) -> None:
        self.take_attributes(self.function)

    @property
    def name(self) -> str:
        """Name of the function, for messages."""
        return name_of(self.function)


class Selection(Component):
    """Selects the clients that train."""

    component_type = "selection"
    abilities: ClassVar = {"probes": ("probe",), "makes_clusters": ("clusters",)}

    probes: bool = False  # asks clients before it selects
    makes_clusters: bool = False  # gives clusters of clients a model each
    first_models: int = 1  # number of models before round 1; with more than one, a model may lose all its clients
    reads_length: bool = False  # depends on the length of the run
    ignores_cohort: bool = False  # may choose more than k
    may_be_empty: bool = False  # may choose no client, although some are available

    def init(self, view: ServerView) -> State:
        """Return the state before round 1."""
        return NO_STATE

    def probe(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Probe | None:
        """Return the clients to probe for a loss or an update before the selection, at extra cost, or None."""
        return None

    @abstractmethod
    def select(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Cohort:
        """Return at most k available clients, at least one; k is never larger than the number available."""

    def observe(self, state: State, reports: ClientResults) -> State:
        """Return the new state, given the client results of a round or the answers to a probe for updates."""
        return state

    def clusters(self, state: State) -> Ints:
        """Return (n,) the number 0, 1, ... of the model of each participant; called after `observe`.

        A model with a new number is initially a copy of the model that its clients used before. With `first_models`
        above 1, all numbers are below it.
        """

    def cluster_numbers(self, state: State) -> Ints | None:
        """Return (n,) the cluster of each participant, -1 if it has none yet; None for a policy without clusters."""
        return self.clusters(state) if self.makes_clusters else None

    def choose_models(self, state: State, ids: Ints, losses: Floats) -> State:
        """Return the state after r clients sent their (r, K) losses with all K models, see `Probe.models`."""
        return state


class Weighting(Component):
    """Computes the aggregation weight of each client result.

    With a method `raw`, a weight is the client's own number divided by the sum of these numbers over clients. Clients
    can then scale their updates themselves. With a method `mean_scale`, the server also scales the weighted mean,
    because the weights of some papers do not sum to 1.
    """

    component_type = "weighting"
    abilities: ClassVar = {"has_own_weights": ("raw",), "scales_mean": ("mean_scale",)}
    promises: ClassVar = {"has_own_weights": ("weights",), "scales_mean": ("weights",)}

    has_own_weights: bool = False
    scales_mean: bool = False

    @abstractmethod
    def weights(self, state: State, reports: ClientResults) -> tuple[Floats, State]:
        """Return (r,) weights, not negative and with sum 1, and the new state (`NO_STATE` at first)."""

    def raw(self, metrics: Mapping[str, Floats]) -> Floats:
        """Return the (r,) unnormalized weights, each computed from the client's own metrics only."""

    def mean_scale(self, state: State, reports: ClientResults, n: int) -> float:
        """Return the factor of one model's mean update, finite and at least 0; it does not apply to buffers.

        Args:
            state: State that was passed to `weights`.
            reports: Results of the clients that train this model.
            n: Number of participants that share this model, selected or not.
        """


class LocalSolver(Component):
    """Corrects the gradient in the local training loop.

    A correction applies to each parameter independently. The arguments are torch tensors of one shape. They contain all
    trainable parameters of a model in one vector, or some of them; a batch of clients adds a first dimension. An
    expression of +, - and * supports all these shapes. Do not write to the arguments.

    With `affine`, the correction is g + pull (w - w0) + shift. The number `pull` and the vector `shift` of each client
    are constant during a round. The engine `native` also supports such solvers.

    With the methods `prepare`, `remember` and `conclude`, each client stores a (p,) vector between rounds, initially 0.
    The server stores a `State` of the solver, initially empty.
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
        """Return the corrected gradient at the local `params`, given the `broadcast` parameters.

        A stateful solver also receives the arrays that its `prepare` returned, as keyword arguments.
        """

    def prepare(self, memory: Float32s, state: State, share: Floats) -> Mapping[str, Float32s]:
        """Return the additional arguments of `correct` by name: (k, p) arrays, or (k, 1) for one number per client.

        Args:
            memory: (k, p) stored vectors of the clients that train next.
            state: The server's state of this solver.
            share: (k,) n m_i / sum_j m_j, the number of examples of each client relative to the mean over the n
                participants that share its model.
        """

    def remember(self, memory: Float32s, state: State, update: Float32s, steps: Floats, lr: float) -> Float32s:
        """Return the (k, p) vectors to store after local training, for clients whose results are aggregated.

        Args:
            memory: (k, p) vectors stored before the round.
            state: The server's state of this solver at the start of the round.
            update: (k, p) local minus broadcast parameters.
            steps: (k,) local steps of each client; with momentum, the equivalent number of plain steps.
            lr: Local learning rate of the round.
        """

    def conclude(self, state: State, reports: ClientResults, mean_update: Floats, n: int) -> tuple[Floats, State]:
        """Return the (p,) update for the server optimizer, and the solver's new state.

        Args:
            state: State before the round.
            reports: Client results of the round, with `note` if the solver sends a note, and the metric `share`.
            mean_update: (p,) weighted mean update.
            n: Number of participants that share this model, selected or not.
        """

    def adapted(self, params: Float32s, state: State) -> Float32s:
        """Return the (d,) model to evaluate and distribute, given the broadcast model."""
        return params


class Aggregator(Component):
    """Aggregates the updates of a round into one update.

    With `linear`, the result is sum_i w_i u_i. Secure aggregation or an engine may then compute this sum, with the same
    bits as a result.

    With `reads_ids`, `combine` receives the (r,) ids of the clients as keyword argument `ids`, for example to keep a
    record of each client in the state.

    With `remembers_updates`, the server stores p float32 numbers r w_i u_i / lr for each client, initially 0. Here u_i
    is the client's last update without buffers, w_i its weight, r the number of replies and lr the local learning rate
    of the round. `combine` then receives the (r, p) new rows as `update` and two keyword arguments. `last` contains the
    (r, p) rows stored before, and `n` is the number of participants that share this model. `combine` returns a (p,)
    update, which the server multiplies by the learning rate. The new buffers are the weighted mean of the buffers.
    """

    component_type = "aggregation"
    promises: ClassVar = {
        "linear": ("combine",),
        "remembers_updates": ("combine",),
        "ignores_weights": ("combine",),
        "reads_ids": ("combine",),
    }

    linear: bool = False
    remembers_updates: bool = False
    reads_ids: bool = False
    ignores_weights: bool = False  # gives each client with a positive weight one vote

    @abstractmethod
    def combine(
        self, state: State, weights: Floats, update: Float32s, rng: np.random.Generator
    ) -> tuple[Floats, State]:
        """Return the (d,) float64 update, and the new state (`NO_STATE` at first).

        Args:
            state: State of this model's aggregator.
            weights: (r,) weights, at least 0 and with sum 1.
            update: (r, d) local minus broadcast parameters, sorted by client id.
            rng: Random generator for this round and model.
        """

    def tolerates(self, r: int) -> int:
        """Return how many malicious clients among r have a bounded effect on the update, by the source of the rule."""
        return 0


class Loss(Component):
    """Objective that local training minimizes.

    With `cross_entropy`, the loss is the cross-entropy of the outputs. With `squared_error`, it is their mean squared
    error. Some engines implement the gradients of these two losses. The engines `sequential` and `vmap` support all
    other losses.

    With a method `shift`, training adds offsets to the outputs that depend on the client's label counts. With a method
    `objective`, the loss depends on more than outputs and targets, and only the engine `sequential` supports it.
    Probes, the metrics of a round and training at the server use `per_example`. With a method `keep`, each client also
    stores a (d,) vector between rounds, initially 0.
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
            outputs: (b, c) tensor of model outputs; (b, t) for numeric targets.
            targets: (b,) tensor of classes, or (b, t) tensor of numbers.
        """

    def shift(self, counts: Ints) -> Floats:
        """Return (n, c) finite numbers to add to the outputs before `per_example`.

        Args:
            counts: (n, c) label counts of the training examples of clients, or of the server if it trains on its own
                data. Each row of the result depends on the same row of the counts only.
        """

    def objective(self, step: LocalStep) -> Any:
        """Return the objective of this step's batch: a scalar tensor that torch can differentiate."""

    def keep(self, memory: Float32s, local: Float32s) -> Float32s:
        """Return the (k, d) float32 vectors that clients store when their results are aggregated, one row per client.

        Args:
            memory: (k, d) vectors stored before.
            local: (k, d) local models after training.
        """


class ServerOptimizer(Component):
    """Computes new parameters from the weighted mean update.

    With a method `trains`, the server trains on its own data in some rounds, without clients. With a method `tunes`,
    the server trains on its own data after aggregating clients' updates. `reads_updates` gives access to the local
    models.
    """

    component_type = "server"
    abilities: ClassVar = {"trains_server": ("trains", "learn"), "tunes_server": ("tunes", "learn")}

    trains_server: bool = False
    tunes_server: bool = False
    trains_alone: bool = False  # `trains` returns True in all rounds, so clients never train

    @abstractmethod
    def apply(self, params: Float32s, state: State, mean_update: Floats) -> tuple[Float32s, State]:
        """Return the new (d,) parameters and the new state (`NO_STATE` at first)."""

    def trains(self, rng: np.random.Generator) -> bool:
        """Return whether the server trains instead of clients in this round; `rng` is a generator for this round."""

    def tunes(self, round_: int, rounds: int) -> bool:
        """Return whether the server trains on its own data after round `round_` of `rounds`."""

    def learn(self, params: Float32s, state: State, data: ServerOperations) -> tuple[Float32s, State]:
        """Return the (d,) model after training on the server's data, and the new state, which `apply` also uses."""


class ServerOperations(Protocol):
    """Operations of a server on its own data in one round, for one model. Test sets are not accessible.

    An `index` is a (b,) array of the selected examples: numbers from 0 to `examples` - 1.
    """

    @property
    def examples(self) -> int:
        """Number of examples at the server."""

    @property
    def rng(self) -> np.random.Generator:
        """Random generator for the batches of the round, the same for each model."""

    def split(self, held_out: float) -> tuple[Ints, Ints]:
        """Return the examples to train on and those to hold out, stratified by class; the same in every round.

        Raises:
            ConfigError: If the examples to train on or the held-out examples would be empty.
        """

    def step(self, params: Float32s, index: Ints, lr: float) -> Float32s:
        """Return the (d,) model after one gradient step on the task's loss with the true labels."""

    def distill(self, params: Float32s, index: Ints, teacher: Float32s, lr: float) -> Float32s:
        """Return the (d,) model after one gradient step on the mean KL(softmax(teacher) || softmax(logits)).

        The model is in evaluation mode: dropout is off, and BatchNorm uses its running statistics.

        Args:
            params: (d,) model before the step.
            index: (b,) indices of the examples, whose labels are not used.
            teacher: (b, c) logits of the teacher.
            lr: Learning rate of the step.
        """

    def logits(self, params: Float32s, index: Ints) -> Float32s:
        """Return the (b, c) logits of the (d,) model in evaluation mode."""

    def loss(self, params: Float32s, index: Ints) -> float:
        """Return the mean cross-entropy of the (d,) model in evaluation mode, in nats."""

    def local_models(self) -> Iterator[Float32s]:
        """Yield the (d,) local models of this round, sorted by client id; requires `reads_updates`."""


class Adaptation(Component):
    """Adapts the model to an unseen client before it predicts.

    After training, participants evaluate their held-out examples in several exchanges. The server only needs sums of
    their answers, so secure aggregation can compute the sums. `fold` receives the sums. The server distributes the
    fitted state with the model. A client then adapts with its own unlabeled inputs.

    Some methods are optional. `with_prior` predicts with a known class prior, as a reference that needs labels.
    `with_labels` learns from the first `labels` labeled examples of a client, which are never scored. This is also only
    a reference, unless `learn_labels` lets a deployed client learn from labels as they arrive. `predict_online`
    predicts each input before it learns from this input.
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
    has_bounded_sums: bool = False  # has one exchange, and each array of `contribute`, divided by m, has norm 1 at most
    knows_prior: bool = False
    learns_labels: bool = False
    learns_more_labels: bool = False
    adapts_online: bool = False

    @property
    def needs_labels(self) -> bool:
        """Whether the rule uses labels of the adapting clients in evaluation."""
        return self.reads_oracle_prior or self.learns_labels

    @property
    def is_reference(self) -> bool:
        """Whether the rule cannot be deployed, because it needs labels that clients do not have."""
        return self.needs_labels and not self.learns_more_labels

    def query(self, state: State) -> State | None:
        """Return the data to send to participants in the next exchange, by name; None once the rule is fitted.

        Args:
            state: State of the rule; `NO_STATE` before the first exchange.
        """
        return None

    def contribute(self, query: State, outputs: Outputs, labels: Ints, counts: Floats) -> State:
        """Return one participant's float64 arrays by name.

        All participants return the same names and shapes. The server uses only the sums over participants.

        Args:
            query: Data that the participant received from `query`.
            outputs: Model outputs on the participant's m held-out examples, m at least 1.
            labels: (m,) labels of these examples.
            counts: (c,) counts of the participant's training labels, as `LabelStatistics` releases them.
        """
        return NO_STATE

    def fold(self, state: State, sums: State) -> State:
        """Return the rule's state after an exchange, given the sums over participants by name."""
        return state

    def start(self, state: State) -> State:
        """Return the client's state before its first input, given the fitted state."""
        return NO_STATE

    def update(self, state: State, client: State, outputs: Outputs) -> State:
        """Return the client's state after further inputs, one or more at a time."""
        return client

    @abstractmethod
    def predict(self, state: State, client: State, outputs: Outputs) -> Floats:
        """Return (m, c) log-probabilities of the classes; the calibrated model's for the client state of `start`."""

    def update_many(self, state: State, clients: Sequence[State], outputs: Sequence[Outputs]) -> list[State]:
        """Return the new states of many clients, as `update` does for one client."""
        return [self.update(state, client, rows) for client, rows in zip(clients, outputs, strict=True)]

    def predict_online(self, state: State, client: State, outputs: Outputs) -> tuple[Floats, State]:
        """Return (m, c) log-probabilities, each adapted to the earlier inputs only, and the client's new state."""

    def with_prior(self, state: State, prior: Floats) -> State:
        """Return the state of a client with this (c,) class prior, positive and with sum 1."""

    def with_labels(self, state: State, outputs: Outputs, labels: Ints) -> State:
        """Return the state of a client with labeled examples.

        Args:
            state: Fitted state of the rule.
            outputs: Model outputs on the m labeled examples. m is at most `labels`, and 0 for a client with one
                example.
            labels: (m,) labels of these examples.
        """

    def learn_labels(self, state: State, client: State, outputs: Outputs, labels: Ints) -> State:
        """Return the state of a client after further labeled examples.

        Args:
            state: Fitted state of the rule.
            client: State of the client before these examples.
            outputs: Model outputs on the m examples. Inputs that the client saw without labels now count as labeled.
            labels: (m,) labels of these examples.
        """


class Measurement(Component):
    """Number that each client computes on its training data after local training and sends with its result."""

    component_type = "measurement"

    wants_before: bool = False  # also sees the outputs of the broadcast model

    @property
    @abstractmethod
    def name(self) -> str:
        """Key of the number in ``ClientResults.metrics``."""

    @abstractmethod
    def measure(self, outputs: LocalOutputs, rng: np.random.Generator) -> float:
        """Return the number; `rng` is a separate random generator for each client and round."""


class LabelStatistics(Component):
    """Rule that determines what the server learns about the labels of clients."""

    component_type = "label_statistics"

    only_sum: bool = False  # the server sees sums over clients only, as under secure aggregation
    adds_noise: bool = False  # clients add noise to their label counts

    @abstractmethod
    def release(self, counts: Ints, rng: np.random.Generator) -> Floats:
        """Return the (n, c) label counts that the server sees, given the true label counts."""

    def needed_replies(self, clients: int) -> int:
        """Return how many of the clients of a cohort must reply so that the server gets their sum, with `only_sum`."""
        return clients


# --- What a loss with a method `objective` is handed in a step of local training


class ForwardPass(Protocol):
    """Outputs and features of a model on a batch of b examples."""

    @property
    def outputs(self) -> Any:
        """Outputs of the model, a (b, c) tensor."""

    def features(self, layer: str | None = None) -> Any:
        """Return the (b, h) inputs of the last linear layer, or the outputs of a named layer, one row per example.

        Raises:
            ComponentError: If the layer does not exist, or does not return exactly one tensor of b rows per pass.
        """


class LocalStep(ForwardPass, Protocol):
    """Step of local training, the argument of `Loss.objective`; outputs and features refer to the local model.

    Models are vectors of d numbers, of which the first p are trained, see `Layout`. Do not write to any of the arrays.
    """

    @property
    def module(self) -> Any:
        """The local model."""

    @property
    def x(self) -> Any:
        """Inputs of the model, a (b, ...) tensor."""

    @property
    def y(self) -> Any:
        """Targets of the model: (b,) classes or (b, t) numbers."""

    @property
    def loss(self) -> Any:
        """Mean of `per_example` over the batch: the objective of FedAvg."""

    @property
    def broadcast(self) -> Any:
        """Global model that the client received, a (d,) vector."""

    @property
    def memory(self) -> Any:
        """Vector (d,) that the client stores, 0 before its first result is aggregated; see `Loss.keep`."""

    @property
    def global_model(self) -> ForwardPass:
        """Forward pass of the global model."""

    def frozen(self, model: Any) -> ForwardPass:
        """Return the forward pass of any (d,) model on the batch, in evaluation mode and without gradient."""

    def gradient(self) -> Any:
        """Return the (p,) gradient of `loss`, as a constant."""

    def loss_at(self, move: Any) -> Any:
        """Return `loss` at the trained parameters plus the (p,) `move`, differentiable at that point.

        Dropout is drawn again, and running statistics do not change.
        """
