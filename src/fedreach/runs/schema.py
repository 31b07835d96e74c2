"""What stands in a run folder."""

from __future__ import annotations

FORMAT = 2  # 2: models, clusters, solver states; rows with metrics
ROWS = ("rounds.jsonl", "clients.jsonl")
TIMING = "timing.jsonl"
KEY = "fedreach"  # the one metadata key: safetensors writes several in an order that changes from run to run
