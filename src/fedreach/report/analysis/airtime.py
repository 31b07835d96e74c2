"""What the chosen clients of a round did with its simulated time, from stored rows."""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from fedreach.errors import RunFolderError
from fedreach.report.values import Columns

PARTS = ("compute_seconds", "upload_seconds")


def airtime(rows: Sequence[Mapping[str, Any]], path: Path) -> Columns:
    """Return the mean over each round's chosen clients of what they spent; (t,) for t rounds.

    Clients whose reply was lost count as well: they computed and sent. Rounds in which no chosen client had
    anything to send have nan; runs without radio have no columns. A round without a number per client is refused.
    """
    held: list[Mapping[str, list[float]]] = [row.get("allocation") or {} for row in rows]
    if not any(held):
        return {}
    counts = np.array([len(allocation.get("ids") or []) for allocation in held])
    row = np.repeat(np.arange(len(rows)), counts)
    columns = {}
    for name in PARTS:
        lists = [allocation.get(name) or [] for allocation in held]
        for line, (values, count) in enumerate(zip(lists, counts, strict=True), 1):
            if len(values) != count:
                raise RunFolderError(
                    f"{path}, line {line}: allocation must hold one {name} per client; got {len(values)} for {count} "
                    "clients. Run the same command again."
                )
        total = np.bincount(row, np.array(list(chain.from_iterable(lists)), np.float64), minlength=len(rows))
        columns[name] = np.divide(total, counts, out=np.full(len(rows), np.nan), where=counts > 0)
    return columns
