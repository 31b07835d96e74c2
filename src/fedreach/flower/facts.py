"""What the run folder keeps of the clients of a real federation."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fedreach.arrays import Ints
from fedreach.engines.protocols import Engine
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import FederationRecord

FACTS = "facts.json"


@dataclass(frozen=True)
class Facts:
    """What a client told of itself."""

    num_examples: int
    bits_per_example: int
    trains_as_asked: bool  # by `client_app`, or by an app of its own
    num_held_out: int | None = None  # which only `client_app` tells before it evaluates
    label_counts: tuple[float, ...] | None = None
    label_entropy: float | None = None
    public_key: str | None = None  # in hex, for a secure sum
    samples: str | None = None  # what they look like, see `samples_of`; an app of its own does not tell

    @property
    def has_positions(self) -> bool:
        """Whether each position of an example has a label, as far as the client told."""
        return self.samples is not None and bool(json.loads(self.samples).get("positions"))

    @property
    def parts(self) -> dict[str, int] | None:
        """How many examples the client has in each part of its data; None where it did not say."""
        if self.num_held_out is None:
            return None
        train, held_out = self.num_examples, self.num_held_out
        return {"train": train, "held_out": held_out, "both": train + held_out}


def save_facts(folder: RunFolder, participants: Sequence[int], known: Mapping[int, Facts], run: str) -> None:
    """Write who takes part and what they told, so that a server that is started again need not ask anew."""
    clients = {str(client): asdict(facts) for client, facts in sorted(known.items())}
    folder.write_json(FACTS, {"run": run, "participants": list(participants), "clients": clients})


def load_facts(folder: RunFolder) -> tuple[list[int] | None, dict[int, Facts], str | None]:
    """Return who takes part, what each client told, and the run's name; None and nothing where the folder is new."""
    stored = folder.read_json(FACTS)
    if stored is None:
        return None, {}, None
    known = {}
    for client, facts in stored["clients"].items():
        counts = facts.pop("label_counts")
        known[int(client)] = Facts(**facts, label_counts=None if counts is None else tuple(counts))
    return stored["participants"], known, stored["run"]


def who_holds_what(record: FederationRecord | None, engine: Engine | None) -> tuple[int | None, Ints | None]:
    """Return how many classes there are and the (n,) examples of each client, as far as the server knows."""
    if record is not None:
        return record.num_classes, record.sizes
    return (None if engine is None else engine.task.data.dataset.num_classes), None


def record_of(
    participants: Sequence[int], unseen: Sequence[int], known: Mapping[int, Facts], *, exact: bool
) -> FederationRecord:
    """Return who holds what, as far as clients told it; see `fedreach.runs.describe.federation_record`.

    Label counts stand in it only if all clients told them exactly: what a report works out from a part of them, or from
    noise, would be wrong.
    """
    count = max([*participants, *unseen, *known], default=-1) + 1
    facts = [known.get(client) for client in range(count)]
    looks = next((own.samples for own in facts if own is not None and own.samples is not None), None)
    samples: dict[str, Any] = {} if looks is None else json.loads(looks)
    shared = [None if own is None else own.label_counts for own in facts]
    counts = [list(own or ()) if exact and None not in shared else [] for own in shared]
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
        sizes=np.array([0 if own is None else own.num_examples for own in facts], dtype=np.int64),
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
