"""Conclusions on the claims of papers in docs/results, judged again from the stored numbers of each seed.

    python benchmarks/changed_claims.py    # lists the conclusions that differ from the stored ones; a minute

Nothing is trained. A conclusion differs if the tests of `fedreach.evaluation.statistics` changed after the record was
written. `python -m papers` writes the record again.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from papers.claims import Conclusion, judge_claims
from papers.measured import Measured
from papers.recipe import load

RESULTS = Path(__file__).parents[1] / "docs" / "results"


def measured_of(record: dict[str, Any]) -> Measured:
    """Return the numbers of a record."""
    methods = tuple(record["methods"])
    numbers = {
        quantity: np.array([by_method[method] for method in methods], dtype=np.float64)
        for quantity, by_method in record["numbers"].items()
    }
    return Measured(methods, tuple(record["seeds"]), record["axis"], tuple(record["x"]), numbers)


def judged_again(record: dict[str, Any]) -> Iterator[tuple[dict[str, Any], Conclusion]]:
    """Yield each stored conclusion, and the conclusion from the stored numbers."""
    stored, recipe = record["claims"], load(record["recipe"], record["scale"])
    reasons = {claim["reason"] for claim in stored if claim["outcome"] == "not testable"}
    conclusions = judge_claims(recipe.about.claims, measured_of(record), recipe.about.instead)
    for before, now in zip(stored, conclusions, strict=True):
        assert (before["says"], before["instead"]) == (now.claim.says, now.instead)
        if before["reason"] not in reasons or before["outcome"] != "not testable":
            yield before, now


if __name__ == "__main__":
    counts: Counter[str] = Counter()
    for path in sorted(RESULTS.glob("*.json")):
        for before, now in judged_again(json.loads(path.read_text(encoding="utf-8"))):
            counts["claims"] += 1
            if before["outcome"] != now.outcome:
                counts[f"{before['outcome']} -> {now.outcome}"] += 1
                print(f"{path.stem}: {before['outcome']} -> {now.outcome}: {before['quantity']}, {before['says']}")
    print(dict(counts))
