"""What the run folder keeps of the clients of a real federation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fedreach.flower.clients import Facts
from fedreach.runs.folder import RunFolder

FACTS = "facts.json"


def save_facts(store: RunFolder, participants: Sequence[int], known: Mapping[int, Facts], run: str) -> None:
    """Write who takes part and what they told, so that a server that is started again need not ask anew."""
    clients = {str(client): asdict(facts) for client, facts in sorted(known.items())}
    store.write_json(FACTS, {"run": run, "participants": list(participants), "clients": clients})


def load_facts(store: RunFolder) -> tuple[list[int] | None, dict[int, Facts], str | None]:
    """Return who takes part, what each client told, and the run's name; None and nothing where the folder is new."""
    stored = store.read_json(FACTS)
    if stored is None:
        return None, {}, None
    known = {}
    for client, told in stored["clients"].items():
        counts = told.pop("label_counts")
        known[int(client)] = Facts(**told, label_counts=None if counts is None else tuple(counts))
    return stored["participants"], known, stored["run"]


def record_of(
    participants: Sequence[int], unseen: Sequence[int], known: Mapping[int, Facts], *, exact: bool
) -> dict[str, Any]:
    """Return who holds what, as far as clients told it; see `fedreach.runs.describe.federation_record`.

    Label counts stand in it only if all clients told them exactly: what a report works out from a part of them, or from
    noise, would be wrong.
    """
    count = max([*participants, *unseen, *known], default=-1) + 1
    facts = [known.get(client) for client in range(count)]
    told = [None if own is None else own.label_counts for own in facts]
    whole = exact and None not in told
    counts = [list(own or ()) if whole else [] for own in told]
    content = {
        "dataset": {"name": "clients' own", "source": "", "licence": "", "sha256": "", "notes": "as clients told"},
        "partition": {"kind": "nodes", "parameters": {}},
        "num_clients": count,
        "num_classes": len(counts[0]) if counts else 0,
        "label_counts": counts,
        "sizes": [0 if f is None else f.num_examples for f in facts],
        "participants": list(participants),
        "unseen": list(unseen),
        "participants_without_held_out_data": [],
        "statistics": {},
        "noise": None,
        "server_data": None,
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return {"hash": digest, **content}
