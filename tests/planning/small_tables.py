"""Small tables of clients for the tests of `fedreach allocate`."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedreach.wireless.planning import ClientTable, Question, read_clients

Row = Mapping[str, Any]

# Golden instance G1 of the specification of the allocation, section 5.
G1 = [
    {"client": name, "upload_seconds": tau, "power_watts": P, "cycles": W, "max_gigahertz": f, "num_examples": d}
    for name, tau, P, W, f, d in zip(
        "abcde",
        (0.10, 0.08, 0.12, 0.20, 0.06),
        (0.5, 1, 0.25, 0.1, 2),
        (1e8, 2e8, 5e7, 1.5e8, 3e8),
        (2, 3, 2.5, 1, 4),
        (100, 150, 80, 120, 200),
        strict=True,
    )
]


RADIO = [
    {
        "num_examples": 100 + 10 * i,
        "distance_meters": 200 + 10 * i,
        "fading_gain": 0.2 + 0.3 * i,
        "power_dbm": 20 + 3 * i,
        "cycles_per_bit": 1 + i,
        "max_gigahertz": 2 + 0.5 * i,
    }
    for i in range(5)
]
RADIO_QUESTION = Question(250, bandwidth_hertz=2e6, report_bits=1_421_632, bits_per_example=6272, epochs=10)


def text_of(rows: Sequence[Row], delimiter: str = ",") -> str:
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, list(rows[0]), delimiter=delimiter, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def with_(rows: Sequence[Row], k: int | None = None, drop: Sequence[str] = (), **cells: Any) -> list[dict[str, Any]]:
    """Return the rows with other cells, of one client or of all, and without some columns."""
    return [
        {name: value for name, value in {**row, **(cells if k in (None, j) else {})}.items() if name not in drop}
        for j, row in enumerate(rows)
    ]


def read(text: str, folder: Path) -> ClientTable:
    path = folder / "clients.csv"
    path.write_text(text, encoding="utf-8")
    return read_clients(path)
