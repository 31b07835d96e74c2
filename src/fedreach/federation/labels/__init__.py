"""What the server is told of clients' labels."""

from __future__ import annotations

from fedreach.federation.labels.exact import Exact
from fedreach.federation.labels.released import released_entropy
from fedreach.federation.labels.secure_sum import SecureSum

LABEL_STATISTICS: dict[str, type] = {"exact": Exact, "secure_sum": SecureSum}

__all__ = ["LABEL_STATISTICS", "Exact", "SecureSum", "released_entropy"]
