"""Names of what engines are handed."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

SAMPLES = ("train_samples", "true_samples", "test_samples", "server_samples")
Terms = dict[str, Tensor]
"""What a solver with memory prepared for the clients of a cohort: (k, p) vectors, or (k, 1) numbers."""

Precision = Literal["highest", "high", "medium"]
