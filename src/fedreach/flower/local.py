"""A client's work on its own data, as in the simulator and independent of Flower."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from torch import nn
from torch.utils.data import Dataset as TorchDataset

from fedreach._util.arrays import AnyArray, Float32s, Floats, Ints
from fedreach._util.errors import DataError
from fedreach._util.processes import one_thread
from fedreach._util.streams import fresh
from fedreach.data.assignment import Partition
from fedreach.data.checks import ExampleKind
from fedreach.data.datasets import Dataset, ServerData, from_arrays
from fedreach.data.federated import FederatedData
from fedreach.data.images import as_array, as_labels
from fedreach.data.samples import pairs, samples, size, sort_of
from fedreach.data.several import is_inputs_of_examples, position_counts, records
from fedreach.data.splits import ClientIndex, Population
from fedreach.engines.choice import build_engine
from fedreach.engines.protocols import LOSS_MEMORY, Engine, Task
from fedreach.evaluation.evaluator import mean_of
from fedreach.evaluation.metrics import ClientOutputs, Metric, additional_metrics
from fedreach.evaluation.modes import Client, adapt_and_score
from fedreach.evaluation.scores import ACCURACY, MAE
from fedreach.federation.adaptation.fitting import check_contribution
from fedreach.federation.attacks import Attack, Attackers
from fedreach.federation.federation import Federation
from fedreach.federation.labels import released_entropy
from fedreach.federation.steps import keep_for_loss, measure_outputs, new_memory, probe_batch
from fedreach.federation.types import ClientResults, LocalUpdates, Outputs, State
from fedreach.flower.messages import PARTS, SHORT_NAMES

Examples = tuple[Any, Any] | TorchDataset[Any]


@dataclass(frozen=True, eq=False)
class ClientData:
    """The examples of one client.

    Args:
        train: Inputs and labels, as arrays or tensors of m examples, or a map-style torch data set of such pairs.
        held_out: Examples for evaluation, on which the client never trains. None: no held-out examples.
        num_classes: Number of classes of the whole federation, not only of this client; 0 for regression.
        kind: Kind of the inputs (see `fedreach.data.datasets.from_arrays`).
        mean: (C,) mean for the normalization of images, the same for all clients. Default: 0, which only scales to [0,
            1].
        std: (C,) standard deviation for the normalization of images, the same for all clients. Default: 1.

    Example:
        >>> own = ClientData((np.zeros((5, 4), np.float32), [0, 1, 0, 1, 1]), num_classes=2)
        >>> own.federated(client=3).train.sizes
        array([0, 0, 0, 5])
    """

    train: Examples
    held_out: Examples | None = None
    num_classes: int = field(kw_only=True)
    kind: ExampleKind | None = field(default=None, kw_only=True)
    mean: tuple[float, ...] | None = field(default=None, kw_only=True)
    std: tuple[float, ...] | None = field(default=None, kw_only=True)

    def federated(self, client: int) -> FederatedData:
        """Return a federation in which only this client has examples."""
        numbers = self.num_classes == 0
        x, y = _arrays(self.train, numbers=numbers)
        m = len(y)
        if self.held_out is not None:
            more_x, more_y = _arrays(self.held_out, numbers=numbers)
            if more_x.shape[1:] != x.shape[1:]:
                raise DataError(
                    f"held_out must have examples of the same shape as train, {x.shape[1:]}; got {more_x.shape[1:]}."
                )
            if len(more_y) and m and sort_of(more_x) != sort_of(x):
                raise DataError(
                    f"held_out must have examples of the same type as train, {x.dtype}; got {more_x.dtype}. Images "
                    "from 0 to 255 differ from images after ToTensor by a factor of 255."
                )
            x, y = np.concatenate([x, more_x]), np.concatenate([y, more_y])
        channels = x.shape[1] if x.ndim == 4 else 1
        image = x.dtype == np.uint8 and self.kind in (None, "image")
        dataset = from_arrays(
            x,
            y,
            num_classes=self.num_classes,
            kind=self.kind,
            mean=(self.mean or (0.0,) * channels) if image else self.mean,
            std=(self.std or (1.0,) * channels) if image else self.std,
            name=f"data of client {client}",
        )
        return single_client_federation(client, dataset, m)


def single_client_federation(client: int, dataset: Dataset, trains_on: int) -> FederatedData:
    """Return a federation in which only this client has examples and trains on its first `trains_on` examples."""
    n = len(dataset.train_y)
    partition = Partition(np.arange(n), _offsets(client, n), "own")
    nobody = Population(np.array([client]), np.empty(0, np.int64))
    train = ClientIndex(np.arange(trains_on), _offsets(client, trains_on))
    held_out = ClientIndex(np.arange(trains_on, n), _offsets(client, n - trains_on))
    return FederatedData(dataset, dataset.train_y, partition, nobody, train, held_out, None)


def _offsets(client: int, count: int) -> Ints:
    offsets = np.zeros(client + 2, np.int64)
    offsets[-1] = count
    return offsets


def _arrays(examples: Examples, *, numbers: bool) -> tuple[AnyArray, AnyArray]:
    if not isinstance(examples, tuple):
        name = "ClientData"
        length = size(examples, name)
        if not length:
            return np.empty((0, 1), np.float32), np.empty(0, np.float32 if numbers else np.int64)
        x, y = samples(pairs(examples, name), length, name)
    else:
        y = np.asarray(as_array(as_labels(examples[1], "ClientData: a label"), "ClientData"))
        if is_inputs_of_examples(examples[0], len(y)):
            x = records(examples[0], "ClientData")
        else:
            x = np.asarray(as_array(examples[0], "ClientData"))
    if numbers:
        return x, y  # `from_arrays` checks them
    if len(y) and y.dtype.kind not in "iu":  # names of classes would get other numbers at another client
        raise DataError(f"ClientData: labels must be whole numbers; got {y.dtype} {y.shape}.")
    return x, y.astype(np.int64)


class TrainingResult(NamedTuple):
    """Result of local training."""

    update: Float32s  # (d,)
    metrics: Mapping[str, float]  # num_examples, loss and measurements
    memory: Float32s | None  # kept if the reply counts


class LocalClient:
    """One client of a federation.

    Args:
        client: Id of the client.
        data: Federation in which the client has examples.
        federation: Federation with the local solver, measurements and label statistics.
        engine: Name of the engine. Only with ``"sequential"``, results do not depend on the number of clients, bit for
            bit.
        metrics: Metrics in addition to loss and accuracy or mean absolute error.
        attack: Attack of this client. None: the client is honest.
    """

    def __init__(
        self,
        client: int,
        data: FederatedData,
        federation: Federation,
        module: nn.Module,
        engine: str = "sequential",
        device: str = "cpu",
        metrics: Sequence[Metric] = (),
        attack: Attack | None = None,
    ) -> None:
        if not 0 <= client < data.num_clients:
            raise DataError(f"client must be from 0 to {data.num_clients - 1}; got {client}.")
        self.ids, self.metrics = np.array([client]), additional_metrics(metrics)
        self.attackers = Attackers.nobody() if attack is None else Attackers(attack, self.ids, federation.seed)
        if self.attackers.attack.changes_labels:
            labels = self.attackers.training_labels(data.labels, data.train[client], data.dataset.example_classes)
            data = replace(data, labels=labels)
        self.client, self.data, self.federation = client, data, federation
        task = Task.of(module, data, federation)
        self.engine: Engine = build_engine(engine, task, device)

    @property
    def num_examples(self) -> int:
        """Number of training examples that the client reports."""
        return int(self.attackers.examples(self.ids, self.data.train.sizes_of(self.ids))[0])

    @property
    def num_held_out(self) -> int:
        """Number of held-out examples."""
        return int(self.data.held_out.sizes[self.client])

    def _label_counts(self) -> Ints:
        labels = self.data.labels[self.data.train[self.client]]
        return np.bincount(labels, minlength=self.data.dataset.num_classes)

    def released_counts(self) -> Floats:
        """Return the (c,) label counts that the client releases; their noise has an unpredictable seed."""
        counts = self.attackers.label_counts(self.ids, self._label_counts()[None])
        return np.asarray(self.federation.label_statistics.release(counts, fresh())[0])

    def loss(self, params: Float32s, round_: int, batch_size: int | None) -> float:
        """Return the mean training loss of a model, over a batch of the round if `batch_size` is given."""
        samples = self.data.train[self.client]
        if batch_size is not None:
            samples = probe_batch(samples, batch_size, self.federation.seed, round_, self.client)
        return float(self.attackers.losses(self.ids, self.engine.training_loss(params, self.ids, [samples]))[0])

    def train(
        self, params: Float32s, round_: int, lr: float, share: float, memory: Float32s | None, state: State
    ) -> TrainingResult:
        """Train from a (d,) model.

        Args:
            share: Number of examples of the client, relative to the mean over participants with its model.
            memory: State of the client. None: neither the solver nor the loss has client state.
            state: Part of the server's solver state that the server sends.
        """
        federation = self.federation
        solver, local = federation.memory_solver, federation.local
        trained = self._train(params, round_, lr, share, memory, state)
        if self.attackers.attack.replays:
            nothing = None if memory is None else np.zeros_like(memory)
            first = self._train(self.engine.initial, 1, local.lr_at(1, 1), share, nothing, {})
            trained = trained._replace(update=first.update, loss=first.loss)
        metrics = {"num_examples": float(self.num_examples), "loss": float(trained.loss[0])}
        metrics |= self._measure(params, trained.update, round_)
        p, kept_memory = self.engine.num_trainable, None
        honest = ClientResults(self.ids, trained.update, {"loss": trained.loss}, trainable=p, round=round_)
        sent = self.attackers.with_attack(honest)
        metrics["loss"] = float(sent.metrics["loss"][0])
        if solver is not None and memory is not None:
            new = solver.remember(memory[None], state, sent.update[:, :p], local.moved_steps(trained.steps), lr)
            table = new_memory(federation, 1, p)
            assert table is not None  # the solver has one
            kept_memory = table.kept(new)[0]
        elif memory is not None:
            kept_memory = keep_for_loss(federation, memory[None], params + sent.update)[0]
        return TrainingResult(np.array(sent.update[0]), metrics, kept_memory)

    def _train(
        self, params: Float32s, round_: int, lr: float, share: float, memory: Float32s | None, state: State
    ) -> LocalUpdates:
        solver, terms = self.federation.memory_solver, dict[str, Float32s]()
        if solver is not None:
            assert memory is not None
            terms = dict(solver.prepare(memory[None], state, np.array([share])))
        elif memory is not None:  # of the loss
            terms = {LOSS_MEMORY: memory[None]}
        return self.engine.train(params, self.ids, round_, lr, terms)

    def _measure(self, params: Float32s, update: Float32s, round_: int) -> dict[str, float]:
        measurements = self.federation.measurements()
        if not measurements:
            return {}
        before = any(measurement.wants_before for measurement in measurements)
        (outputs,) = self.engine.outputs(params, update, self.ids, before=before)
        return measure_outputs(measurements, outputs, self.federation.seed, round_, self.client)

    def noise_generator(self, round_: int) -> np.random.Generator:
        """Return the generator of the client's noise in a round, which neither the server nor other clients know."""
        return fresh()

    def raw_weight(self, work: TrainingResult) -> float:
        """Return the weight of the client, up to a common factor, from a weighting with a method `raw`."""
        metrics = {name: np.array([value]) for name, value in work.metrics.items()}
        if self.data.dataset.example_classes:
            counts = self.attackers.label_counts(self.ids, self._label_counts()[None])
            metrics["label_entropy"] = released_entropy(counts.astype(np.float64))
        return float(np.asarray(self.federation.weighting.raw(metrics))[0])

    def scores(self, params: Float32s) -> dict[str, float]:
        """Score a model on the client's ``train`` and ``held_out`` part, and on ``both`` without label noise.

        `fedreach.flower.messages.PARTS` lists the names of the scores.
        """
        train, held_out = self.data.train[self.client], self.data.held_out[self.client]
        indices = {"train": train, "held_out": held_out, "both": np.concatenate([train, held_out])}
        main = SHORT_NAMES[(ACCURACY if self.data.dataset.num_classes else MAE).name]
        numbers: dict[str, float] = {}
        for part, index in indices.items():
            examples, name = PARTS[part]
            numbers |= {examples: len(index), f"{name}_{main}": 0.0, f"{name}_loss": 0.0}
            if len(index):
                right, loss = self.engine.predict(params, "train" if part == "train" else "true", index)
                counts = position_counts(self.data.labels[index]) if self.data.dataset.positions else None
                numbers |= {f"{name}_{main}": mean_of(right, counts), f"{name}_loss": mean_of(loss, counts)}
                metrics = {} if part == "train" else self._metric_values(params, index)
                numbers |= {f"{name}_{metric}": value for metric, value in metrics.items()}
        for part in ("train", "both"):  # a malicious client repeats its false number
            numbers[PARTS[part][0]] += self.num_examples - len(train)
        return numbers

    def _metric_values(self, params: Float32s, index: Ints) -> dict[str, float]:
        """Return the values of the metrics that are defined for these examples."""
        if not self.metrics:
            return {}
        truth, logits = self.data.dataset.train_y[index], self.engine.logits(params, "true", index)
        answers = ClientOutputs.of(truth, [(1.0, logits)], np.array([len(index)]))
        metric_values = {metric.name: answers.pooled(metric) for metric in self.metrics}
        return {name: value for name, value in metric_values.items() if not np.isnan(value)}

    @one_thread()  # as in the simulator
    def contributions(self, params: Float32s, queries: Sequence[State]) -> list[State]:
        """Return the contribution of the client's held-out examples to each fit of the adaptation rule.

        Args:
            params: (d,) parameters of the model.
            queries: Query of the rule for each fit.
        """
        rule, index = self.federation.adaptation, self.data.held_out[self.client]
        outputs, labels = self._outputs(params, index), self.data.dataset.train_y[index]
        counts = self._label_counts().astype(np.float64)
        return [check_contribution(rule, rule.contribute(query, outputs, labels, counts)) for query in queries]

    @one_thread()
    def adapted(
        self, params: Float32s, state: State, part: str, inputs: Sequence[int] = (), *, online: bool = False
    ) -> dict[str, float]:
        """Adapt to the client's inputs; return the scores in each prediction mode and the decisions of the rule.

        Args:
            params: (d,) parameters of the model.
            state: State of the fitted rule.
            part: ``"held_out"``, or ``"both"`` for an unseen client.
            inputs: Numbers of inputs (see `fedreach.evaluation.modes.adapt_and_score`).
            online: Include the online mode (see `fedreach.evaluation.modes.adapt_and_score`).
        """
        index = self.data.held_out[self.client]
        if part == "both":
            index = np.concatenate([self.data.train[self.client], index])
        if not len(index):
            return {}
        client = Client(self.client, self._outputs(params, index), self.data.dataset.train_y[index])
        scores = adapt_and_score(self.federation.adaptation, state, [client], inputs, online=online)
        numbers: dict[str, float] = dict(scores.noted)
        for mode, clients in scores.modes.items():
            numbers |= {f"{mode}_{name}": value for name, value in clients[self.client]._asdict().items()}
        return numbers

    def _outputs(self, params: Float32s, index: Ints) -> Outputs:
        return self.engine.answers(params, "true", index, inputs=self.federation.adaptation.reads_inputs)


def server_engine(
    federation: Federation,
    module: nn.Module,
    *,
    num_classes: int,
    test: tuple[Any, Any] | None = None,
    own: tuple[Any, Any] | None = None,
    kind: ExampleKind | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    device: str = "cpu",
) -> Engine:
    """Return the engine that runs the model on the server's data.

    Args:
        num_classes: Number of classes of the whole federation; 0 for regression.
        test: Inputs and labels of a test set.
        own: Inputs and labels on which the server trains, for example with `Safari` from `fedreach.federation.server`.
        kind: Kind of the inputs. `ClientData` describes `kind`, `mean` and `std`.

    Raises:
        DataError: If neither `test` nor `own` is given.
    """
    examples = own or test
    if examples is None:
        raise DataError("server_engine requires `test`, `own` or both; got neither.")
    client = ClientData(examples, num_classes=num_classes, kind=kind, mean=mean, std=std).federated(0)
    d = client.dataset
    if test is not None:
        d = from_arrays(
            d.train_x, d.train_y, *test, num_classes=num_classes, kind=d.kind, mean=d.mean or None, std=d.std or None
        )
    server = None if own is None else ServerData(d.train_x, d.train_y)
    data = replace(client, dataset=d, server=server)
    task = Task.of(module, data, federation)
    return build_engine("sequential", task, device)
