"""What the run folder keeps of the clients of a real federation."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

import numpy as np

from fedreach.flower.clients import Facts
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import FederationRecord

FACTS = "facts.json"


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


def record_of(
    participants: Sequence[int], unseen: Sequence[int], known: Mapping[int, Facts], *, exact: bool
) -> FederationRecord:
    """Return who holds what, as far as clients told it; see `fedreach.runs.describe.federation_record`.

    Label counts stand in it only if all clients told them exactly: what a report works out from a part of them, or from
    noise, would be wrong.
    """
    count = max([*participants, *unseen, *known], default=-1) + 1
    facts = [known.get(client) for client in range(count)]
    shared = [None if own is None else own.label_counts for own in facts]
    counts = [list(own or ()) if exact and None not in shared else [] for own in shared]
    classes = len(counts[0]) if counts else 0
    record = FederationRecord(
        hash="",
        dataset={"name": "clients' own", "source": "", "licence": "", "sha256": "", "notes": "as clients told"},
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
    )
    content = {key: value for key, value in record.to_json().items() if key != "hash"}
    return replace(record, hash=hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest())
