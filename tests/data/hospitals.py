"""A made-up table of hospitals: numbers, words, missing values, and columns that say nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedreach._util.streams import generator

HOSPITALS = ("north", "south", "east", "west", "harbour", "hill")


def table(rows: int = 240, seed: int = 0) -> dict[str, Any]:
    """Return a table by column; hospitals differ in the age of those they treat."""
    rng = generator(seed, "hospitals")
    hospital = rng.integers(len(HOSPITALS), size=rows)
    age = np.round(rng.normal(50 + 5 * hospital, 10), 1)
    ill = rng.random(rows) < 1 / (1 + np.exp((55 - age) / 8))
    pressure = [None if rng.random() < 0.2 else float(p) for p in rng.integers(90, 160, size=rows)]
    return {
        "patient": [f"p{number:05d}" for number in range(rows)],
        "hospital": [HOSPITALS[h] for h in hospital.tolist()],
        "age": age.tolist(),
        "pressure": pressure,
        "ward": [["surgery", "heart", None][w] for w in rng.integers(3, size=rows).tolist()],
        "smoker": (rng.random(rows) < 0.3).tolist(),
        "country": ["here"] * rows,
        "readmitted": [["no", "yes"][int(i)] for i in ill],
    }


def reordered(columns: dict[str, Any], order: Any) -> dict[str, Any]:
    """Return the rows of a table in another order."""
    return {name: [values[row] for row in order] for name, values in columns.items()}
