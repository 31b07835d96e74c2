"""What the server is told of clients' labels."""

from __future__ import annotations

from fedreach.federation.labels.discrete_gaussian import DiscreteGaussian
from fedreach.federation.labels.discrete_laplace import DiscreteLaplace
from fedreach.federation.labels.exact import Exact
from fedreach.federation.labels.released import released_entropy
from fedreach.federation.labels.secure_sum import SecureSum

LABEL_STATISTICS: dict[str, type] = {
    "exact": Exact,
    "discrete_laplace": DiscreteLaplace,
    "discrete_gaussian": DiscreteGaussian,
    "secure_sum": SecureSum,
}

__all__ = ["LABEL_STATISTICS", "DiscreteGaussian", "DiscreteLaplace", "Exact", "SecureSum", "released_entropy"]
