"""The client side: a `ClientApp` that trains as FedReach's simulator does, and helpers for custom apps.

Each message may be handled by a new process. A client therefore stores its state between rounds in its context.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar
from uuid import uuid4

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from torch import nn

from fedreach._util.arrays import AnyArray, Float32s, Floats, Ints
from fedreach._util.errors import ConfigError, DataError, TrainingError
from fedreach._util.streams import fresh, torch_seed
from fedreach.data.federated import FederatedData
from fedreach.engines.models.networks import build as build_model
from fedreach.evaluation.metrics import Metric
from fedreach.federation.attacks import Attack
from fedreach.federation.base import LabelStatistics
from fedreach.federation.federation import Federation
from fedreach.federation.labels import Exact, released_entropy
from fedreach.federation.secure_aggregation import FixedPoint, limbs, share
from fedreach.federation.steps import memory_width
from fedreach.flower import messages
from fedreach.flower.agreement import MAX_CLIENTS, samples_of, training_terms
from fedreach.flower.local import ClientData, LocalClient
from fedreach.flower.secure import SECURE, SecureClient

KEPT_MEMORY, PENDING, NOTHING = "kept-memory-of-round", "pending-memory-of-round", 0


def client_app(
    federation: Federation,
    model: str | Callable[..., nn.Module],
    data: Callable[[Context], ClientData | FederatedData],
    *,
    model_options: Mapping[str, Any] | None = None,
    model_seed: int | None = None,
    share_label_statistics: bool = True,
    engine: str = "sequential",
    device: str = "cpu",
    kept_in_process: int = 8,
    metrics: Sequence[Metric] = (),
    mods: Sequence[Mod] = (),
    attack: Callable[[int], Attack | None] = lambda client: None,
) -> ClientApp:
    """Return the app of a client of this federation.

    The app trains with `federation.solver` and `federation.local` on the same batches as the simulator. It computes the
    measurements that components need, and evaluates models. It stores the solver's state in the node's context. The
    ``partition-id`` in the node config is the client's id.

    Args:
        federation: Federation of the server. The server rejects clients with another solver, local SGD, measurements or
            seed.
        model: Name in `MODELS`, or function that returns a module (see `build`).
        data: Function of the context that returns the client's examples, or a whole federation, of which the client
            uses only its own part.
        model_options: Additional arguments of the model.
        model_seed: Seed of the model's constructor. None: the seed of the federation. The server sends the weights.
        share_label_statistics: Send label statistics that components need, in the form that
            `federation.label_statistics` defines. Otherwise, a federation that needs label statistics excludes the
            client.
        engine: Engine (see `fedreach.engines.choice.ENGINES`). With ``"sequential"``, results equal the simulator's
            results, bit for bit.
        device: Torch device of the tensors.
        kept_in_process: Number of clients whose data and model stay loaded if one process runs many clients.
        metrics: Metrics in addition to loss and accuracy or mean absolute error, the same as for the strategy (see
            `fedreach.evaluation.metrics`).
        mods: Flower mods to apply to every message. Code that changes replies must be a mod: the server rejects a reply
            that was changed after the app returned it.
        attack: Function of a client's id that returns its attack, or None for honest clients.

    Example:
        >>> from fedreach.flower.app import client_app
        >>> from fedreach.flower.local import ClientData
        >>> from fedreach.testing.problems import tiny_federation
        >>> def load(context):
        ...     return ClientData((np.zeros((5, 4), np.float32), [0, 1, 0, 1, 1]), num_classes=2)
        >>> app = client_app(tiny_federation(), "linear", load)
    """
    messages.refuse_unknown_noise(federation)
    app = ClientApp(mods=[_check_and_seal, *mods])

    def load(context: Context) -> LocalClient:
        client, client_data = client_of(context), data(context)
        federated_data = client_data.federated(client) if isinstance(client_data, ClientData) else client_data
        d = federated_data.dataset
        seed = torch_seed(federation.seed if model_seed is None else model_seed, "model")
        module = build_model(model, d.sample_shape, d.outputs, seed=seed, options=model_options)
        local = LocalClient(client, federated_data, federation, module, engine, device, metrics, attack(client))
        constants = context.state.array_records.get(messages.CONSTANTS)
        if constants is not None:  # of the run's model; its own constructor may have drawn others
            local.engine.start_from(messages.arrays_of(constants))
        return local

    worker = _Loaded(load, kept_in_process)

    def open_request(message: Message, context: Context) -> tuple[LocalClient, Mapping[str, Any], Float32s]:
        """Return the client, FedReach's record in the message, and the model in it."""
        local, sent = worker(context), message.content
        params = messages.params_of(sent.array_records[messages.MODEL], local.engine.layout)
        return local, sent.config_records[messages.FEDREACH], params

    @app.query()
    def introduce(message: Message, context: Context) -> Message:
        if messages.CONSTANTS in message.content:
            context.state[messages.CONSTANTS] = message.content[messages.CONSTANTS]
        local = worker(context)
        numbers = {
            messages.CLIENT: local.client,
            messages.EXAMPLES: local.num_examples,
            messages.HELD_OUT: local.num_held_out,
            messages.BITS: 8 * int(local.data.dataset.train_x[:1].nbytes),
        }
        terms = ConfigRecord({**training_terms(federation, local.engine.layout)})
        terms[messages.SAMPLES] = samples_of(local.data.dataset)
        return _reply(message, metrics=numbers, records={messages.FEDREACH: terms})

    @app.query("labels")
    def labels(message: Message, context: Context) -> Message:
        if not share_label_statistics:
            raise TrainingError("this client does not report its labels")
        fact = str(message.content.config_records[messages.FEDREACH]["fact"])
        if fact not in federation.needs():
            raise TrainingError(f"no component of this client's federation needs its {fact}")
        return _label_reply(message, context, worker(context).released_counts)

    @app.query("loss")
    def loss(message: Message, context: Context) -> Message:
        local, request, params = open_request(message, context)
        value = local.loss(params, _whole(request, messages.ROUND), _whole(request, "batch-size") or None)
        return _reply(message, metrics={messages.LOSS: value})

    @app.train()
    def train(message: Message, context: Context) -> Message:
        local, request, params = open_request(message, context)
        round_, version = _whole(request, messages.ROUND), _whole(request, "memory-round")
        lr, relative_size = messages.number(request, "lr"), messages.number(request, "share")
        sent = message.content.array_records
        state = messages.arrays_of(sent[messages.SOLVER]) if messages.SOLVER in sent else {}
        memory = None
        if federation.has_memory:
            width = memory_width(federation, local.engine.num_trainable, local.engine.layout.size)
            memory = _read_memory(context, str(request[messages.RUN]), version, sent, width)
            if memory is None:
                return _reply(message, metrics={messages.LACKS_MEMORY: version})
        work = local.train(params, round_, lr, relative_size, memory, state)
        if memory is not None and work.memory is not None:
            _store_memory(context, str(request[messages.RUN]), version, memory, round_, work.memory)
        metrics = {messages.LOSS: work.metrics["loss"], messages.EXAMPLES: local.num_examples}
        name = messages.UPDATE
        values: AnyArray = work.update
        if federation.label_statistics.only_sum:
            if messages.DRAWS in request:
                work = work._replace(metrics={**work.metrics, messages.DRAWS: float(_whole(request, messages.DRAWS))})
            name, masker = messages.MASKED, SecureClient(context, local.client, federation.label_statistics)
            if federation.distributed_noise is not None:
                rng = local.noise_generator(round_)
                words = federation.distributed_noise.noisy_share({}, work.update, masker.cohort_size, rng)
            else:
                words = share(local.raw_weight(work), work.update, FixedPoint(masker.cohort_size))
            subject = str(request[messages.RUN]), round_
            values = masker.mask(message.content.config_records[SECURE], {"": {name: words}}, subject)[""][name]
        else:
            metrics |= {key: value for key, value in work.metrics.items() if key not in ("loss", "num_examples")}
        return _reply(message, metrics=metrics, records={name: messages.array_record({name: values})})

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        local, _, params = open_request(message, context)
        return _reply(message, metrics=local.scores(params))

    @app.query("adaptation")
    def contribute(message: Message, context: Context) -> Message:
        if not share_label_statistics:
            raise TrainingError("this client does not report its labels")
        sent = message.content
        if messages.MODEL not in sent.array_records:
            return _reply(message, metrics={messages.EXAMPLES: worker(context).num_held_out})
        local, request, params = open_request(message, context)
        fits: Sequence[int] = request[messages.FITS]
        queries = [messages.arrays_of(sent.array_records[f"query-{fit}"]) for fit in fits]
        answers: Mapping[str, Mapping[str, AnyArray]]
        answers = dict(zip(map(str, fits), local.contributions(params, queries), strict=True))
        if federation.label_statistics.only_sum:
            words = {fit: {name: limbs(values) for name, values in answer.items()} for fit, answer in answers.items()}
            subject = (
                f"{request[messages.RUN]} adaptation {request[messages.SESSION]}",
                _whole(request, messages.EXCHANGE),
            )
            masker = SecureClient(context, local.client, federation.label_statistics)
            answers = masker.mask(sent.config_records[SECURE], words, subject)
        records = {f"sums-{fit}": messages.array_record(answer) for fit, answer in answers.items()}
        return _reply(message, metrics={}, records=records)

    @app.query("secure")
    def aggregate(message: Message, context: Context) -> Message:
        if not federation.label_statistics.only_sum:
            raise TrainingError("this client's federation does not use secure aggregation")
        masker = SecureClient(context, client_of(context), federation.label_statistics)
        reply = masker.answer(message.content.config_records[SECURE])
        return Message(RecordDict({SECURE: reply}), reply_to=message)

    @app.evaluate("adaptation")
    def evaluate_adapted(message: Message, context: Context) -> Message:
        local, request, params = open_request(message, context)
        state, part = messages.arrays_of(message.content.array_records[messages.STATE]), request[messages.PART]
        numbers = local.adapted(params, state, part, request[messages.INPUTS], online=request[messages.ONLINE])
        return _reply(message, metrics=numbers)

    return app


def _check_and_seal(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Refuse a request that was altered on the way, and add a digest to the reply."""
    node = message.metadata.dst_node_id
    return messages.seal(call_next(messages.check_digest(message, node, required=False), context), node)


class _Loaded:
    """Cache of the clients used last in this process, because Flower's simulation copies apps for every message."""

    in_process: ClassVar[OrderedDict[tuple[str, str], LocalClient]] = OrderedDict()

    def __init__(self, load: Callable[[Context], LocalClient], capacity: int) -> None:
        self.load, self.capacity, self.app = load, capacity, uuid4().hex

    def __call__(self, context: Context) -> LocalClient:
        constants = context.state.array_records.get(messages.CONSTANTS, ArrayRecord())
        digest = hash(tuple((name, array.data) for name, array in constants.items()))
        terms = sorted(context.node_config.items()), context.state.config_records.get(messages.TABLE), digest
        cache, key = self.in_process, (self.app, repr(terms))
        if key not in cache:
            cache[key] = self.load(context)
        cache.move_to_end(key)
        app_keys = [cached_key for cached_key in cache if cached_key[0] == self.app]
        if len(app_keys) > self.capacity:
            del cache[app_keys[0]]
        return cache[key]


def share_labels(
    app: ClientApp,
    labels: Callable[[Context], Any],
    *,
    num_classes: int,
    statistics: LabelStatistics | None = None,
    bits_per_example: int = 0,
) -> None:
    """Add to a custom app the label statistics that FedReach's selection and weighting need.

    The app's ``@app.train()`` does not change. It receives ``arrays`` and ``config``, and replies with its local model
    in ``arrays`` and with ``metrics`` that contain ``num-examples`` and ``train_loss``. Solvers with client state,
    measurements and loss probes require `client_app`.

    Args:
        app: App without a query function.
        labels: Function of the context that returns the (m,) labels of the client's training examples.
        num_classes: Number of classes of the whole federation.
        statistics: Label statistics to send, such as `DiscreteLaplace(epsilon=1)`. None: exact counts.
        bits_per_example: Size of a stored example in bits, from which a radio computes computing times.
    """
    statistics = Exact() if statistics is None else statistics

    def counts(context: Context) -> Ints:
        y = np.asarray(labels(context))
        if y.ndim != 1 or not np.isin(y, np.arange(num_classes)).all():
            raise DataError(
                f"share_labels: labels must be a list of whole numbers from 0 to {num_classes - 1}; got {y.dtype} "
                f"{y.shape}, {y.min(initial=0)} to {y.max(initial=0)}. Pass num_classes of the whole federation."
            )
        return np.bincount(y.astype(np.int64), minlength=num_classes)

    @app.query()
    def introduce(message: Message, context: Context) -> Message:
        numbers = {
            messages.CLIENT: client_of(context),
            messages.EXAMPLES: int(counts(context).sum()),
            messages.BITS: bits_per_example,
        }
        return _reply(message, metrics=numbers)

    @app.query("labels")
    def answer(message: Message, context: Context) -> Message:
        return _label_reply(message, context, lambda: statistics.release(counts(context)[None], fresh())[0])


def client_of(context: Context) -> int:
    """Return the client's id from the node config."""
    client = context.node_config.get("partition-id")
    if not isinstance(client, int) or not 0 <= client < MAX_CLIENTS:
        raise ConfigError(
            "A node's config must contain 'partition-id', the id of its client as a whole number from 0 to "
            f"{MAX_CLIENTS - 1}; got {client!r}. Start the SuperNode with --node-config 'partition-id=3'."
        )
    return client


def _label_reply(message: Message, context: Context, release: Callable[[], Floats]) -> Message:
    """Reply with label counts, or with their entropy if only that is requested; noise is drawn once per run."""
    request = message.content.config_records[messages.FEDREACH]
    if messages.LABELS not in context.state.array_records:
        context.state.array_records[messages.LABELS] = messages.array_record({"label_counts": release()})
    counts = context.state.array_records[messages.LABELS]["label_counts"].numpy()
    values = counts if request["fact"] == "label_counts" else released_entropy(counts[None])
    return _reply(message, metrics={}, records={messages.LABELS: messages.array_record({str(request["fact"]): values})})


def _read_memory(context: Context, run: str, version: int, sent: Mapping[str, Any], p: int) -> Float32s | None:
    """Return the client's memory after its last counted round, zeros before the first; None if it is lost."""
    if messages.MEMORY in sent:
        return np.array(sent[messages.MEMORY][messages.MEMORY].numpy(), np.float32)
    if version == NOTHING:
        return np.zeros(p, np.float32)
    stored = context.state.config_records.get(messages.FEDREACH, ConfigRecord())
    for key in (PENDING, KEPT_MEMORY):
        if stored.get(messages.RUN) == run and stored.get(key) == version:
            return np.array(context.state.array_records[messages.MEMORY][key].numpy(), np.float32)
    return None


def _store_memory(context: Context, run: str, version: int, memory: Float32s, round_: int, new: Float32s) -> None:
    """Store the old memory, and the new one that holds if a later message confirms that the reply counted."""
    context.state.config_records[messages.FEDREACH] = ConfigRecord(
        {messages.RUN: run, KEPT_MEMORY: version, PENDING: round_}
    )
    context.state.array_records[messages.MEMORY] = messages.array_record({KEPT_MEMORY: memory, PENDING: new})


def _whole(record: Mapping[str, Any], name: str) -> int:
    return messages.whole_number(record, name)


def _reply(message: Message, *, metrics: Mapping[str, float], records: Mapping[str, Any] | None = None) -> Message:
    """Reply; name the run and the round if the request did."""
    content = RecordDict({messages.METRICS: MetricRecord(dict(metrics)), **(records or {})})
    request: Mapping[str, Any] = message.content.config_records.get(messages.FEDREACH, {})
    if messages.ROUND in request:
        content[messages.FEDREACH] = ConfigRecord(
            {messages.RUN: request[messages.RUN], messages.ROUND: request[messages.ROUND]}
        )
    return Message(content, reply_to=message)
