"""Protocols of the components of a federation; small, so that users can write their own.

A component is a frozen dataclass of hyper-parameters. What changes during a run is its `State`, which comes in and goes
out, so saving the states saves the run. No method writes into its arguments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from fedreach._util.arrays import Bools, Float32s, Floats, Ints
from fedreach.federation.types import ClientResults, LocalOutputs, Outputs, Probe, Selection, ServerView, State


@runtime_checkable
class SelectionPolicy(Protocol):
    """Selects the clients that train.

    May have the attributes `needs`, `measures`, `reads_updates`, `reads_length`, `needs_radio` and `ignores_cohort`,
    see `fedreach.federation.traits.Traits`; one that gives clusters of clients a model each is a `Clustering`, too.
    """

    def init(self, view: ServerView) -> State:
        """Return the state before round 1."""

    def probe(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Probe | None:
        """Return the clients to ask for a loss or an update first (it costs bytes), or None."""

    def select(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Selection:
        """Return at most k available clients; k is never larger than the number available."""

    def observe(self, state: State, reports: ClientResults) -> State:
        """Return the state after hearing the reports of a round, or the answers to a probe for updates."""


@runtime_checkable
class Clustering(Protocol):
    """A selection policy that gives clusters of clients a model each."""

    def clusters(self, state: State) -> Ints:
        """Return (n,) the number 0, 1, ... of each participant's model after `observe`.

        A new number's model starts as that of the cluster its members come from.
        """


@runtime_checkable
class Weighting(Protocol):
    """Decides how much each report counts.

    May have the attributes `needs` and `measures`, see `fedreach.federation.traits.Traits`.
    """

    def weights(self, state: State, reports: ClientResults) -> tuple[Floats, State]:
        """Return (r,) weights, not negative and summing to 1, and the new state (`NO_STATE` at first)."""


@runtime_checkable
class HasOwnWeights(Protocol):
    """A weighting under which each weight is a number of the client's own, divided by the sum of all.

    Clients can then scale their updates themselves.
    """

    def raw(self, metrics: Mapping[str, Floats]) -> Floats:
        """Return the (r,) numbers, each from the client's own metrics only."""


@runtime_checkable
class ScalesMean(Protocol):
    """A weighting that also scales the weighted mean: its paper's weights do not sum to 1."""

    def mean_scale(self, state: State, reports: ClientResults, n: int) -> float:
        """Return what the mean update of one model is multiplied by, finite and not negative; buffers are not.

        Args:
            state: As `weights` was given it.
            reports: Of those that train this model.
            n: Participants that share it, whether they were chosen or not.
        """


class LocalSolver(Protocol):
    """One correction of the gradient in the local loop.

    A correction acts on each number by itself. The arguments are torch tensors of one shape, or with one more
    dimension in front for a stack of clients: all trainable parameters of a model in a row, or some of them. Written
    with +, - and * the same line works for all. None of them may be written to.

    A solver may have a class variable ``affine = True`` to say that its correction is g + pull (w - w0) + shift, with
    one number `pull` and one vector `shift` a client that stay the same through a round; then the engine `native`
    trains with it, too. A subclass with a `correct` of its own declares it again.
    """

    def correct(self, gradient: Any, params: Any, broadcast: Any) -> Any:
        """Return the gradient that the step follows, at the local `params`, given the `broadcast` ones.

        A `MemorySolver` is also handed, by name, what its `prepare` returned.
        """


@runtime_checkable
class MemorySolver(Protocol):
    """A local solver whose clients each keep a (p,) vector between rounds, 0 at first.

    The server also keeps a `State` of the solver, empty at first. `sends_note` says whether clients send
    the change of their memory as a second message, `sends_state` whether the server sends its state's arrays along
    with the model; both cost bytes.
    """

    sends_note: ClassVar[bool]
    sends_state: ClassVar[bool]

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


@runtime_checkable
class Aggregator(Protocol):
    """Aggregates the updates of a round into one.

    Class variable ``linear = True`` says that it is sum_i w_i u_i: then secure aggregation may replace it, and
    engines may add up in their own way, to the same bits.

    With ``remembers_updates = True`` it is a `RemembersUpdates` and handed what clients sent last.
    """

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


class RemembersUpdates(Protocol):
    """An aggregator for which the server keeps what each client sent last: that with ``remembers_updates = True``.

    What is kept of a client is a row of p float32 numbers, r w_i u_i / lr: its update without buffers, weighed so
    that the plain mean over the r reports is the weighted one, per unit of the round's local learning rate. Rows are 0
    at first. Buffers take their weighted mean.
    """

    def combine(
        self, state: State, weights: Floats, update: Float32s, rng: np.random.Generator, *, last: Float32s, n: int
    ) -> tuple[Floats, State]:
        """Return the (p,) update, which is then multiplied by the rate, and the new state (`NO_STATE` at first).

        Args:
            state: Of this model's aggregator.
            weights: (r,) not negative, summing to 1; they are in `update` already.
            update: (r, p) what is kept of the clients of this round from now on.
            rng: A stream of its own for each round and model.
            last: (r, p) what was kept of them before.
            n: Participants that share this model, whether they were chosen or not.
        """


class Loss(Protocol):
    """The objective that a client's model minimizes in training.

    Class variable ``cross_entropy = True`` says that it is the cross-entropy of the outputs as they are, whose gradient
    some engines have written out, and ``squared_error = True`` that it is their mean squared error, which `manual` has,
    too; others are trained by `sequential` and `vmap`. With a method `shift` it is that of
    shifted outputs, see `ShiftsOutputs`, which all engines follow. Attributes ``minimum`` and ``maximum`` say that no
    loss is below or above: a real federation rejects the report of a client that is. ``needs_classes`` and
    ``needs_numbers`` say what targets it takes; without either, both. With a method `objective` it sees more than
    outputs and targets, see `Objective`.
    """

    def per_example(self, outputs: Any, targets: Any) -> Any:
        """Return the loss of each example, a (b,) tensor that torch can differentiate.

        Args:
            outputs: (b, c) tensor, the outputs of the model; (b, t) where targets are numbers.
            targets: (b,) tensor of classes, or (b, t) of numbers.
        """


@runtime_checkable
class ShiftsOutputs(Protocol):
    """A loss of outputs shifted by the client's label counts; in training only."""

    def shift(self, counts: Ints) -> Floats:
        """Return (n, c) finite numbers, which are added to the outputs before `per_example` is given them.

        Args:
            counts: (n, c) labels of clients' training examples, or of the server's where it trains on its own. Each row
                by itself says what is added for this client.
        """


@runtime_checkable
class ServerStep(Protocol):
    """Turns the weighted mean update into new parameters."""

    def apply(self, params: Float32s, state: State, mean_update: Floats) -> tuple[Float32s, State]:
        """Return the new (d,) parameters and the new state (`NO_STATE` at first)."""


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


@runtime_checkable
class ServerTrains(Protocol):
    """A server step that in some rounds trains on the server's own data instead of asking clients."""

    def trains(self, rng: np.random.Generator) -> bool:
        """Return whether the server trains in this round; `rng` is a stream of its own for each round."""

    def learn(self, params: Float32s, state: State, data: ServerOperations) -> tuple[Float32s, State]:
        """Return the (d,) model after the server's work on its own data, and the new state, which `apply` shares."""


@runtime_checkable
class ServerTunes(Protocol):
    """A server step that continues with the server's own data once the clients' updates are in.

    Sets ``reads_updates = True`` if it reads the clients' local models.
    """

    def tunes(self, round_: int, rounds: int) -> bool:
        """Return whether it does so after round `round_` of `rounds`."""

    def learn(self, params: Float32s, state: State, data: ServerOperations) -> tuple[Float32s, State]:
        """Return the (d,) model and the new state, given those that the round ended with."""


@runtime_checkable
class Adaptation(Protocol):
    """What an unseen client does with the model before it predicts.

    After training, participants are asked in several exchanges what they see on their held-out examples. What they
    answer is added up over them, so that secure aggregation may do it; `fold` sees sums only. The fitted state is
    handed out with the model. A client then adapts by its own inputs, which have no labels.

    Class variable or property ``reads_inputs = True`` asks for features, inputs and the model, in addition to logits.
    With ``needs_batchnorm = True``, too, a model without BatchNorm after convolutions is rejected before it is trained.
    With a method `with_prior(state, prior)` it predicts as if it knew the (c,) class prior of a
    client: a reference that needs labels. With ``reads_oracle_prior = True`` it is that reference and nothing else.
    With a method `with_labels(state, outputs, labels)` and a number `labels` it learns from this number of labeled
    examples of a client, which are never scored: a reference, too. With ``needs_features = True`` a model without a
    last linear layer is rejected before it is trained. With a method `learn_labels(state, client, outputs, labels)`,
    too, a client may have labels when it is deployed.
    ``keeps_bias = True`` says that it takes the model's mean prediction for right where it differs from the
    participants' class prior: the checks then use a calibrated model only.
    """

    def query(self, state: State) -> State | None:
        """Return what participants are sent in the next exchange, by name; None once the rule is fitted.

        Args:
            state: The rule's, `NO_STATE` before the first exchange.
        """

    def contribute(self, query: State, outputs: Outputs, labels: Ints, counts: Floats) -> State:
        """Return one participant's float64 numbers by name, the same names and shapes for all: only ever added up.

        Args:
            query: What it was sent.
            outputs: Of the model on the participant's m held-out examples, m at least 1.
            labels: (m,) of these.
            counts: (c,) of the labels that it trained on, as `LabelStatistics` releases them.
        """

    def fold(self, state: State, sums: State) -> State:
        """Return the rule's state after an exchange, given the sums over participants by name."""

    def start(self, state: State) -> State:
        """Return the client's state before its first input, given the fitted state."""

    def update(self, state: State, client: State, outputs: Outputs) -> State:
        """Return the client's state after more of its inputs, one or many at a time."""

    def predict(self, state: State, client: State, outputs: Outputs) -> Floats:
        """Return (m, c) log-probabilities of the classes; with what `start` returned, those of the calibrated model."""


@runtime_checkable
class KnowsPossibleSums(Protocol):
    """An adaptation rule that knows which contributions are impossible: a real federation rejects those."""

    def possible(self, query: State, sums: State, held_out: int, trained: int) -> bool:
        """Return whether participants can have contributed this, one of them or several in sum.

        Args:
            query: What they were sent.
            sums: By name, as `contribute` returns them, or added up.
            held_out: How many examples they hold out together.
            trained: How many they trained on.
        """


@runtime_checkable
class KnowsPrior(Protocol):
    """An adaptation rule that can predict as if a client knew its class prior."""

    def with_prior(self, state: State, prior: Floats) -> State:
        """Return the state of a client with this (c,) class prior, positive and summing to 1."""


@runtime_checkable
class LearnsLabels(Protocol):
    """An adaptation rule that learns from a few labeled examples of a client: a reference that needs labels."""

    @property
    def labels(self) -> int:
        """Number of labeled examples of a client, its first ones."""

    def with_labels(self, state: State, outputs: Outputs, labels: Ints) -> State:
        """Return the state of a client with labeled examples.

        Args:
            state: As the rule was fitted.
            outputs: Of the model on these m examples, m at most `labels`, and 0 of a client with a single example.
            labels: (m,) of these.
        """


@runtime_checkable
class LearnsMoreLabels(LearnsLabels, Protocol):
    """A rule by which a deployed client learns from labels as they arrive, in addition to unlabeled inputs."""

    def learn_labels(self, state: State, client: State, outputs: Outputs, labels: Ints) -> State:
        """Return the client's state after further labeled examples.

        Args:
            state: As the rule was fitted.
            client: What it kept.
            outputs: Of the model on these m examples; one that the client saw without its label counts as labeled from
                now on.
            labels: (m,) of these.
        """


@runtime_checkable
class AdaptsMany(Protocol):
    """An adaptation rule that is quicker for many clients at once than for one after the other."""

    def update_many(self, state: State, clients: Sequence[State], outputs: Sequence[Outputs]) -> list[State]:
        """Update each of these clients, as `update` does."""


@runtime_checkable
class AdaptsOnline(Protocol):
    """An adaptation rule by which a client predicts each input before it learns from it."""

    def predict_online(self, state: State, client: State, outputs: Outputs) -> tuple[Floats, State]:
        """Return (m, c) log-probabilities, each row by the rows before it only, and the client's new state."""


@runtime_checkable
class Measurement(Protocol):
    """A number that each client computes on its own training data after local training, and sends with its report.

    Its name is the key of ``ClientResults.metrics``. With ``wants_before = True`` it also sees the outputs of the
    broadcast model.

    May have attributes `minimum` and `maximum`, numbers that no honest client is below or above: a real federation
    rejects a report that is, and a simulated one reports that the measurement is wrong.
    """

    wants_before: ClassVar[bool]

    @property
    def name(self) -> str:
        """Key of the number."""

    def measure(self, outputs: LocalOutputs, rng: np.random.Generator) -> float:
        """Return the number; `rng` is a stream of its own for each client and round."""


@runtime_checkable
class LabelStatistics(Protocol):
    """What the server learns of clients' labels. `only_sum`: nothing, as under secure aggregation.

    One that is a `KnowsPossibleLabels`, too, says what a real federation rejects.
    """

    only_sum: ClassVar[bool]

    def release(self, counts: Ints, rng: np.random.Generator) -> Floats:
        """Return the (n, c) label counts that the server sees, given the true ones."""


@runtime_checkable
class KnowsPossibleLabels(Protocol):
    """Label statistics that say which counts they never release: a real federation rejects a client that sends them."""

    def possible(self, counts: Floats, sizes: Ints) -> Bools:
        """Return (n,) whether clients with these (n,) numbers of examples can have sent these (n, c) finite counts."""


# --- What a loss may have that sees more than outputs and targets, and what it is handed in a step of local training


@runtime_checkable
class Objective(Protocol):
    """A loss with a method `objective`, which depends on more than outputs and targets.

    The engine `sequential` trains by it. What else asks for the loss of a model, such as probes, the row of a round and
    a server that trains on its own data, still means that of `per_example`.
    """

    def objective(self, step: LocalStep) -> Any:
        """Return the objective of this step's batch: a tensor of one number that torch can differentiate."""


@runtime_checkable
class RemembersClients(Protocol):
    """An `Objective` whose clients each keep a vector of the model's length d between rounds, 0 at first."""

    def keep(self, memory: Float32s, local: Float32s) -> Float32s:
        """Return the (k, d) float32 vectors that clients keep once their reports count; each from its own row.

        Args:
            memory: (k, d) what they kept before.
            local: (k, d) their models after local training.
        """


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
    """One step of a client's training, as an `Objective` is handed it; outputs and features are of the local model.

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
        """(d,) what the client keeps, 0 before its first report counted; see `RemembersClients`."""

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
