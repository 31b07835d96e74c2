"""Baselines in the folder of a run: fitted and scored once its rounds are over, so that no number depends on them.

They are of a federation, whatever the method: the first run of a comparison that ends keeps them for the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedreach.data.federated import FederatedData
from fedreach.evaluation.baselines import score_baselines
from fedreach.evaluation.leaks import leaks
from fedreach.evaluation.metrics import Metric
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import BaselinesRecord

WAIT_SECONDS = 600.0
"""For another run of the comparison that is about to know them; it takes seconds."""


@dataclass(frozen=True, eq=False)
class Baselines:
    """What the models of a federation must beat.

    Args:
        data: The federation.
        samples_per_client: Of each client at most so many examples are scored, as for models; None: all.
        metrics: Models are scored by.
        shared: Folder in which runs of one comparison keep them for each other; None: they are of one run.
    """

    data: FederatedData
    samples_per_client: int | None = None
    metrics: Sequence[Metric] = ()
    shared: Path | None = None

    def write(self, folder: RunFolder) -> None:
        """Write them into the folder of a run."""
        folder.write(BaselinesRecord(**self._found()))

    def _found(self) -> Mapping[str, Any]:
        if self.shared is None:
            return self._made()
        kept, name = RunFolder(self.shared), f"{self.data.digest()[:16]}.json"
        with kept.locked(WAIT_SECONDS):
            stored = kept.read_json(name)
            if stored is None:
                kept.write_json(name, self._made())
                stored = kept.read_json(name) or {}
        return {key: stored[key] for key in BaselinesRecord.known_keys() if key in stored}

    def _made(self) -> Mapping[str, Any]:
        scored, left_out = score_baselines(self.data, self.samples_per_client, self.metrics)
        return {
            "columns": {name: dict(one.columns) for name, one in scored.items()},
            "clients": {name: dict(one.clients) for name, one in scored.items()},
            "left_out": left_out or None,
            "leaks": [leak._asdict() for leak in leaks(self.data)],
        }
