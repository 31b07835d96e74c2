"""What server and clients agree on, and checks of what clients report."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from torch import nn

from fedreach._util.arrays import Float32s, Floats, Ints
from fedreach._util.errors import ConfigError
from fedreach.data.datasets import Dataset, form_to_json
from fedreach.engines.models.flat import Layout
from fedreach.engines.protocols import Engine
from fedreach.experiment.naming import PickleStore, to_config
from fedreach.federation.federation import Federation
from fedreach.flower.messages import EXAMPLES, LOSS, MAX_COUNT, STEPS, ReplyError, number, whole_number
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import FederationRecord

# ---- Client statistics in the run folder

STATISTICS_FILE = "client_statistics.json"


@dataclass(frozen=True)
class ClientStatistics:
    """What a client reported about itself."""

    num_examples: int
    bits_per_example: int
    trains_as_asked: bool  # by `client_app`; false for a custom app
    num_held_out: int | None = None  # only `client_app` reports it before the evaluation
    label_counts: tuple[float, ...] | None = None
    label_entropy: float | None = None
    public_key: str | None = None  # in hex, for secure aggregation
    samples: str | None = None  # their form, see `samples_of`; None for a custom app

    @property
    def has_positions(self) -> bool:
        """Whether each position of an example has a label, as far as the client reported."""
        return self.samples is not None and bool(json.loads(self.samples).get("positions"))

    @property
    def parts(self) -> dict[str, int] | None:
        """Number of examples in each part of the client's data; None if it did not report them."""
        if self.num_held_out is None:
            return None
        train, held_out = self.num_examples, self.num_held_out
        return {"train": train, "held_out": held_out, "both": train + held_out}


def save_client_statistics(
    folder: RunFolder, participants: Sequence[int], statistics_by_client: Mapping[int, ClientStatistics], run: str
) -> None:
    """Store the participants and their reported statistics, so that a restarted server need not ask again."""
    clients = {str(client): asdict(facts) for client, facts in sorted(statistics_by_client.items())}
    folder.write_json(STATISTICS_FILE, {"run": run, "participants": list(participants), "clients": clients})


def load_client_statistics(folder: RunFolder) -> tuple[list[int] | None, dict[int, ClientStatistics], str | None]:
    """Return the participants, the statistics of each client and the name of the run; empty for a new folder."""
    stored = folder.read_json(STATISTICS_FILE)
    if stored is None:
        return None, {}, None
    statistics_by_client = {}
    for client, facts in stored["clients"].items():
        counts = facts.pop("label_counts")
        statistics_by_client[int(client)] = ClientStatistics(
            **facts, label_counts=None if counts is None else tuple(counts)
        )
    return stored["participants"], statistics_by_client, stored["run"]


def known_data(record: FederationRecord | None, engine: Engine | None) -> tuple[int | None, Ints | None]:
    """Return the number of classes and the (n,) examples of each client, as far as the server knows them."""
    if record is not None:
        return record.num_classes, record.sizes
    return (None if engine is None else engine.task.data.dataset.num_classes), None


def record_of(
    participants: Sequence[int],
    unseen: Sequence[int],
    statistics_by_client: Mapping[int, ClientStatistics],
    *,
    exact: bool,
) -> FederationRecord:
    """Return the federation record of what clients reported; see `fedreach.runs.describe.federation_record`.

    It contains label counts only if all clients reported them exactly. A report that used some of them, or noisy ones,
    would be wrong.
    """
    count = max([*participants, *unseen, *statistics_by_client], default=-1) + 1
    facts = [statistics_by_client.get(client) for client in range(count)]
    sample_forms = [
        statistics.samples for statistics in facts if statistics is not None and statistics.samples is not None
    ]
    samples: dict[str, Any] = json.loads(sample_forms[0]) if sample_forms else {}
    shared = [None if statistics is None else statistics.label_counts for statistics in facts]
    counts = [list(label_counts or ()) if exact and None not in shared else [] for label_counts in shared]
    classes = len(counts[0]) if counts else 0
    record = FederationRecord(
        hash="",
        dataset={
            "name": "clients' own",
            "source": "",
            "licence": "",
            "sha256": "",
            "notes": "as clients told",
            **samples,
        },
        partition={"kind": "nodes", "parameters": {}},
        num_clients=count,
        num_classes=classes,
        label_counts=np.array(counts, dtype=np.int64).reshape(count, classes),
        sizes=np.array([0 if statistics is None else statistics.num_examples for statistics in facts], dtype=np.int64),
        participants=np.array(participants, dtype=np.int64),
        unseen=np.array(unseen, dtype=np.int64),
        participants_without_held_out_data=np.array([], dtype=np.int64),
        statistics={},
        noise=None,
        server_data=None,
        targets=samples["outputs"] if samples and not samples["classes"] else None,
    )
    content = {key: value for key, value in record.to_json().items() if key != "hash"}
    return replace(record, hash=hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest())


# ---- What server and clients must agree on

MAX_CLIENTS = 2**20  # ids are below it: tables have a row for each


def describe_component(part: object) -> str:
    """Describe a component, the same in every process: its repr without addresses.

    Example:
        >>> describe_component(object())
        '<object object>'
    """
    return re.sub(r" at 0x[0-9a-f]+", "", repr(part))


def training_terms(federation: Federation, layout: Layout) -> dict[str, str]:
    """Return everything that a client's training depends on, as text.

    Example:
        >>> from fedreach.testing.problems import tiny_federation
        >>> from torch import nn
        >>> training_terms(tiny_federation(), Layout.of(nn.Linear(2, 2)))["solver"]
        'FedAvg()'
    """
    shapes = repr([(name, tuple(shape)) for name, shape in zip(layout.names, layout.shapes, strict=True)])
    digest = hashlib.sha256(shapes.encode()).hexdigest()[:12]
    terms = {
        "solver": describe_component(federation.solver),
        "local": describe_component(federation.local),
        "loss": describe_component(federation.loss),
        "augmentation": describe_component(federation.augmentation),
        "measurements": describe_component(federation.measurements()),
        "adaptation": describe_component(federation.adaptation),
        "label_statistics": describe_component(federation.label_statistics),
        "seed": describe_component(federation.seed),
        "model": f"{layout.size} numbers, {layout.num_trainable} of them trained, {digest}",
    }
    if federation.label_statistics.only_sum:
        terms["weighting"] = describe_component(federation.weighting)  # each client computes its own weight
    return terms


def samples_of(dataset: Dataset) -> str:
    """Return the form of the examples as JSON; it must be the same at all clients of a federation."""
    return json.dumps(
        {
            "kind": dataset.kind,
            "dtype": dataset.train_x.dtype.name,
            "shape": list(dataset.train_x.shape[1:]),
            "mean": list(dataset.mean),
            "std": list(dataset.std),
            "classes": dataset.num_classes,
            "outputs": dataset.outputs,
            **form_to_json(dataset),
        }
    )


def identity_of(
    federation: Federation, model: nn.Module, name: str, rounds: int, inputs: Sequence[int], shelf: PickleStore
) -> dict[str, Any]:
    """Return the identity of a run that no experiment file describes, see `fedreach.runs.identity`.

    It names the model and the adaptation rule as an experiment file would, so that the run folder can be loaded.
    Objects without a name are stored on the shelf.
    """
    config: dict[str, Any] = {
        "name": name,
        "federation": describe_component(federation),
        "method": {"adaptation": to_config("adaptation", federation.adaptation, shelf)},
        "rounds": rounds,
        "inputs": [*inputs],
    }
    try:
        config["model"] = {"name": to_config("model", model, shelf)}
    except ConfigError:  # it cannot leave this process, so the user passes it when loading the run
        config["module"] = str(model)
    return {"method": name, "seed": federation.seed, "config": config, "code": {}}


def first_difference(ours: Mapping[str, str], theirs: Mapping[str, object]) -> str | None:
    """Describe the first term that differs; return None if all agree.

    Example:
        >>> first_difference({"solver": "FedAvg()"}, {"solver": "FedProx(mu=0.1)"})
        'its solver is FedProx(mu=0.1), not FedAvg()'
    """
    for name, term in ours.items():
        if theirs.get(name) != term:
            return f"its {name} is {str(theirs.get(name, 'not told'))[:300]}, not {term}"
    return None


# ---- Checks of reported numbers
# A custom app reports less, so it is checked for what every app must know.


@dataclass(frozen=True, eq=False)
class Checks:
    """Checks that numbers of clients are possible; each method returns the number or raises a `ReplyError`.

    Args:
        federation: Federation whose components define the ranges.
        layout: Layout of the model.
        rounds: Length of the run, which schedules of the learning rate refer to.
        classes: Number of classes of the whole federation. None if the server does not know it: then the longest axis
            of the model's tensors is the upper limit.
        sizes: (n,) examples of each client, if the server knows them.
    """

    federation: Federation
    layout: Layout
    rounds: int
    classes: int | None = None
    sizes: Ints | None = None

    # ------------------------------------------------------------------------------------------ before round 1

    def examples(self, client: int, facts: ClientStatistics, before: ClientStatistics | None) -> None:
        """Reject numbers of examples that differ from those at the start of the run, or that the client cannot have."""
        now = facts.num_examples, facts.num_held_out
        if before is not None and now != (before.num_examples, before.num_held_out):
            raise ReplyError(
                f"client {client} holds {_describe(facts)}, and said {_describe(before)} when the run began; other "
                "data need a run of their own"
            )
        if self.sizes is None:
            return
        if client >= len(self.sizes):
            raise ReplyError(f"there are clients 0 to {len(self.sizes) - 1}, and it says that it is client {client}")
        if facts.num_examples + (facts.num_held_out or 0) > self.sizes[client]:
            raise ReplyError(f"client {client} has {self.sizes[client]} examples, and it says {_describe(facts)}")

    def label_counts(self, counts: Floats, facts: ClientStatistics) -> tuple[float, ...]:
        """Return the (c,) label counts that a client reported."""
        expected = "a list of numbers" if self.classes is None else f"{self.classes} numbers"
        if counts.ndim != 1 or not len(counts) or len(counts) != (self.classes or len(counts)):
            raise ReplyError(f"its label_counts must be {expected}; got {counts.shape}")
        if not np.isfinite(counts).all() or (counts < 0).any() or (counts > MAX_COUNT).any():
            raise ReplyError(f"its label_counts must be from 0 to {MAX_COUNT}; got {_shorten(counts)}")
        return tuple(map(float, counts))

    def label_entropy(self, entropy: Floats, facts: ClientStatistics) -> float:
        """Return the entropy of a client's labels in nats."""
        if entropy.shape != (1,) or not np.isfinite(entropy).all():
            raise ReplyError(f"its label_entropy must be one finite number; got {_shorten(entropy)}")
        return float(entropy[0])

    # ------------------------------------------------------------------------------------------------ a round

    def loss(self, metrics: Mapping[str, Any]) -> float:
        """Return a mean training loss."""
        return float(number(metrics, LOSS))

    def measured(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Return the measurements of a client by name."""
        names = [measurement.name for measurement in self.federation.measurements()]
        return {name: float(number(metrics, name)) for name in names}

    def steps(self, metrics: Mapping[str, Any], facts: ClientStatistics, client: int, round_: int) -> int:
        """Return the local steps of a client, which must be the requested ones."""
        federation, size = self.federation, np.array([facts.num_examples])
        (requested_steps,) = federation.local.steps_of(size, np.array([client]), federation.seed, round_).tolist()
        if not self.federation.has_memory and (STEPS not in metrics or not facts.trains_as_asked):
            return int(requested_steps)  # no result depends on it
        steps = whole_number(metrics, STEPS, 1)
        if steps != requested_steps:
            raise ReplyError(f"its {STEPS!r} must be {requested_steps}, as it was asked for; got {steps}")
        return steps

    def num_examples(self, metrics: Mapping[str, Any], facts: ClientStatistics) -> int:
        """Return the number of examples, which must be the one that the client reported before."""
        count = whole_number(metrics, EXAMPLES, 1)
        if count != facts.num_examples:
            raise ReplyError(f"it says that it has {count} examples, but it said {facts.num_examples} before")
        return count

    def update(self, update: Float32s, start: Float32s, facts: ClientStatistics, steps: int, round_: int) -> Float32s:
        """Return the (d,) update of a client that trained from `start`; clipped steps must be able to reach it."""
        if facts.trains_as_asked:
            p, local = self.layout.num_trainable, self.federation.local
            size = float(np.linalg.norm(start[:p].astype(np.float64)))
            furthest = local.furthest(steps, local.lr_at(round_, self.rounds), size)
            norm = float(np.linalg.norm(update[:p].astype(np.float64)))
            if norm > furthest:
                raise ReplyError(
                    f"its update has the norm {norm:.6g}; {steps} steps with gradients clipped to {local.clip_norm:g} "
                    f"make {furthest:.6g} at most"
                )
        return update

    # ---------------------------------------------------------------------------------- evaluation and adaptation

    def accuracy(self, metrics: Mapping[str, Any], name: str, count: int, facts: ClientStatistics) -> float:
        """Return the accuracy on `count` examples, or on their labeled positions."""
        return float(number(metrics, name))

    def score(self, metrics: Mapping[str, Any], name: str) -> float:
        """Return a loss in nats or another non-negative score."""
        return float(number(metrics, name))


def _describe(facts: ClientStatistics) -> str:
    held_out = "" if facts.num_held_out is None else f" and {facts.num_held_out} held out"
    return f"{facts.num_examples} examples{held_out}"


def _shorten(values: Floats) -> str:
    return str(values.tolist())[:100]
