"""Terms on which server and clients agree, and statistics that clients report."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from torch import nn

from fedreach._util.errors import ConfigError
from fedreach.data.datasets import Dataset, form_to_json
from fedreach.engines.models.flat import Layout
from fedreach.experiment.naming import PickleStore, to_config
from fedreach.federation.federation import Federation
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import FederationRecord

# ---- Client statistics in the run folder

STATISTICS_FILE = "client_statistics.json"


@dataclass(frozen=True)
class ClientStatistics:
    """Statistics that a client reported."""

    num_examples: int
    bits_per_example: int
    trains_as_asked: bool  # by `client_app`; false for a custom app
    num_held_out: int | None = None  # only `client_app` reports it before the evaluation
    label_counts: Sequence[float] | None = None
    label_entropy: float | None = None
    samples: str | None = None  # their form, see `samples_of`; None for a custom app

    @property
    def parts(self) -> dict[str, int]:
        """Number of examples in each part of the client's data; empty if the client did not report these numbers."""
        if self.num_held_out is None:
            return {}
        train, held_out = self.num_examples, self.num_held_out
        return {"train": train, "held_out": held_out, "both": train + held_out}


def save_client_statistics(
    folder: RunFolder, participants: Sequence[int], statistics_by_client: Mapping[int, ClientStatistics], run: str
) -> None:
    """Store the participants and their reported statistics, so that a restarted server does not request them again."""
    clients = {str(client): asdict(facts) for client, facts in sorted(statistics_by_client.items())}
    folder.write_json(STATISTICS_FILE, {"run": run, "participants": list(participants), "clients": clients})


def load_client_statistics(folder: RunFolder) -> tuple[list[int] | None, dict[int, ClientStatistics], str | None]:
    """Return the participants, the statistics of each client and the name of the run; empty for a new folder."""
    stored = folder.read_json(STATISTICS_FILE)
    if stored is None:
        return None, {}, None
    clients = {int(client): ClientStatistics(**facts) for client, facts in stored["clients"].items()}
    return stored["participants"], clients, stored["run"]


def record_of(
    participants: Sequence[int],
    unseen: Sequence[int],
    statistics_by_client: Mapping[int, ClientStatistics],
    *,
    exact: bool,
) -> FederationRecord:
    """Return the federation record from reported statistics (see `fedreach.runs.describe.federation_record`).

    The record contains label counts only if all clients reported exact counts. A report with missing or noisy counts
    would be wrong.
    """
    count = max([*participants, *unseen, *statistics_by_client], default=-1) + 1
    facts = [statistics_by_client.get(client) for client in range(count)]
    forms = [statistics.samples for statistics in facts if statistics is not None and statistics.samples is not None]
    samples: dict[str, Any] = json.loads(forms[0]) if forms else {}
    shared = [None if statistics is None else statistics.label_counts for statistics in facts]
    counts = [list(label_counts or ()) if exact and None not in shared else [] for label_counts in shared]
    classes = len(counts[0]) if counts else 0
    about = {"name": "clients' own", "source": "", "licence": "", "sha256": "", "notes": "as reported by clients"}
    record = FederationRecord(
        hash="",
        dataset={**about, **samples},
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
    """Return the repr of a component without memory addresses, which is the same in every process.

    Example:
        >>> describe_component(object())
        '<object object>'
    """
    return re.sub(r" at 0x[0-9a-f]+", "", repr(part))


def training_terms(federation: Federation, layout: Layout) -> dict[str, str]:
    """Return all settings on which a client's training depends, as text.

    Example:
        >>> from fedreach.testing.problems import tiny_federation
        >>> from torch import nn
        >>> training_terms(tiny_federation(), Layout.of(nn.Linear(2, 2)))["solver"]
        'FedAvg()'
    """
    shapes = repr([(name, tuple(shape)) for name, shape in zip(layout.names, layout.shapes, strict=True)])
    digest = hashlib.sha256(shapes.encode()).hexdigest()[:12]
    names = ["solver", "local", "loss", "augmentation", "adaptation", "label_statistics", "seed"]
    names += ["weighting"] * federation.label_statistics.only_sum  # each client computes its own weight
    names += ["aggregation"] * (federation.distributed_noise is not None)  # and clips and adds noise
    terms = {name: describe_component(getattr(federation, name)) for name in names}
    terms["measurements"] = describe_component(federation.measurements())
    return terms | {"model": f"{layout.size} numbers, {layout.num_trainable} of them trained, {digest}"}


def samples_of(dataset: Dataset) -> str:
    """Return the format of the examples as JSON, which must be the same for all clients of a federation."""
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
    """Return the identity of a run without an experiment file (see `fedreach.runs.identity`).

    The identity names the model and the adaptation rule like an experiment file, so that the run folder can be loaded.
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
            return f"its {name} is {str(theirs.get(name, 'not reported'))[:300]}, not {term}"
    return None
